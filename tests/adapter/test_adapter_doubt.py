"""Ends that NIXL has not confirmed, and peers that are given up."""

from __future__ import annotations

import gc
import math
import pickle
import re
import weakref
from typing import Any

import pytest
from engines import SIDES, Engine, L, N, Pair, land, moved

import nixldesc
from nixldesc import TransferError
from nixldesc.adapter import prepare, register
from nixldesc.testing import LoopbackAgent


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def own(pair: Pair) -> Engine:
    return pair.d if pair.local == "dst" else pair.p


def own_ranges(pair: Pair, first: int, count: int) -> tuple[Any, ...]:
    """Blocks `first` to `first + count` of both caches on the side that posts."""
    engine = own(pair)
    return (
        (engine.k.ctypes.data + first * L, count * L, 0, "DRAM"),
        (engine.v.ctypes.data + first * L, count * L, 1, "VRAM"),
    )


def leave_in_doubt(pair: Pair) -> None:
    """What `Pair.close` cannot do any more without being told."""
    with pytest.raises(TransferError, match="of this memory are in doubt, NIXL may still use them"):
        own(pair).registration.release()
    own(pair).registration.release(in_doubt=True)
    pair.leave()


def hung(pair: Pair, src: list[int], dst: list[int]) -> Any:
    pair.mine.polls = math.inf
    transfer = pair.peer.start([src], [dst], notify=b"never")
    pair.mine.polls = 0
    return transfer


def test_the_end_of_a_transfer_whose_peer_was_removed_is_in_doubt(pair: Pair) -> None:
    """As NIXL 1.5.1 has it: NIXL_ERR_NOT_FOUND says that the peer is unknown, not that the bytes have stopped."""
    src, dst = ([3, 6, 7], [4, 1, 2]) if pair.local == "dst" else ([4, 1, 2], [3, 6, 7])
    transfer = hung(pair, src, dst)
    assert transfer.poll() == "PROC" and list(pair.peer.in_doubt) == []
    pair.mine.remove_remote_agent(pair.theirs.name)
    assert transfer.poll() == "ERR"
    error = transfer.error
    assert error is not None
    want = tuple(sorted(r for blocks in ((1, 2), (4, 1)) for r in own_ranges(pair, *blocks)))
    assert tuple(sorted(error.in_doubt)) == want
    assert tuple(sorted(pair.peer.in_doubt)) == want
    may = "still write" if pair.local == "dst" else r"still read \(and the peer's blocks still write\)"
    assert re.search(
        f"DRAM to DRAM: poll failed with NIXL_ERR_NOT_FOUND: .*; NIXL has not confirmed its end: it may {may} 48 "
        r"bytes of this agent's memory \(error.in_doubt\); keep these blocks out of use until the agent is gone",
        str(error),
    )
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.in_doubt) == (str(error), error.in_doubt)
    transfer.release()
    pair.peer.release()
    assert pair.peer.in_doubt
    leave_in_doubt(pair)


@pytest.mark.parametrize("step", ["post", "poll"])
@pytest.mark.parametrize("status", ["NIXL_ERR_UNKNOWN", "TypeError"])
def test_what_is_no_answer_of_nixl_is_no_end(pair: Pair, monkeypatch: Any, step: str, status: str) -> None:
    pair.mine.polls = 2
    if status == "TypeError":

        def refuse(handle: Any) -> str:
            raise TypeError("what is this handle?")

        monkeypatch.setattr(pair.mine, {"post": "transfer", "poll": "check_xfer_state"}[step], refuse)
    else:
        pair.mine.fail(step, status)
    transfer = pair.peer.start([[3]], [[3]])
    assert transfer.wait(10) == "ERR"
    assert transfer.error is not None
    assert own_ranges(pair, 3, 1)[0] in transfer.error.in_doubt
    transfer.release()
    pair.peer.release()
    leave_in_doubt(pair)


@pytest.mark.parametrize("status", ["NIXL_ERR_BACKEND", "NIXL_ERR_REMOTE_DISCONNECT", "NIXL_ERR_CANCELED", "ERR"])
def test_what_a_backend_says_is_an_end(pair: Pair, status: str) -> None:
    pair.mine.polls = 2
    pair.mine.fail("poll", status)
    with pair.peer.start([[3]], [[3]]) as transfer:
        assert transfer.wait(10) == "ERR"
    assert transfer.error is not None and transfer.error.in_doubt == pair.peer.in_doubt == ()
    pair.close()


def test_a_post_that_nixl_refuses_has_begun_nothing(pair: Pair) -> None:
    pair.mine.fail("post", "NIXL_ERR_NOT_FOUND")
    with pair.peer.start([[3]], [[3]]) as transfer:
        assert transfer.poll() == "ERR"
    assert transfer.error is not None and transfer.error.in_doubt == ()
    pair.close()


def test_other_memory_than_that_in_doubt_can_be_released(pair: Pair) -> None:
    other = Engine("d2", 9)
    transfer = hung(pair, [3], [3])
    pair.peer.abandon()
    transfer.release()
    other.registration.release()
    leave_in_doubt(pair)


def test_a_doubt_ends_with_its_agent(pair: Pair) -> None:
    transfer = hung(pair, [3], [3])
    pair.peer.abandon()
    transfer.release()
    leave_in_doubt(pair)
    engine = own(pair)
    agent, ranges = weakref.ref(engine.agent), engine.registration.ranges
    del transfer, pair.peer, pair.mine, pair.theirs, engine.agent, engine.registration
    gc.collect()
    assert agent() is None, "who notes a doubt must not keep its agent"
    # The same memory under another agent is as good as any.
    fresh = LoopbackAgent("again")
    with register(fresh, engine.layout, ranges):
        pass


# ------------------------------------------------------------------------------------------------------------- abandon


def test_a_hung_peer_is_given_up_and_the_agent_goes_on(pair: Pair) -> None:
    third = Engine("third", 5)
    pair.mine.add_remote_agent(third.agent.get_agent_metadata())
    src, dst = (third, pair.d) if pair.local == "dst" else (pair.p, third)
    other = prepare(pair.mine, "third", nixldesc.plan(dst.layout, {0: src.layout}), local=pair.local)
    with pair.peer.start([[5]], [[6]], notify=b"before") as done:
        assert done.wait(10) == "DONE"
    transfers = [hung(pair, [3], [0]), hung(pair, [4], [1])]
    for release in transfers[0].release, pair.peer.release:
        with pytest.raises(TransferError, match="still in flight"):
            release()
    pair.peer.abandon()
    pair.peer.abandon()
    assert [t.poll() for t in transfers] == ["ERR", "ERR"]
    mems = "DRAM to DRAM, VRAM to VRAM"
    assert f"peer '{pair.theirs.name}', {pair.peer.operation} {mems}: abandoned; NIXL has not" in str(
        transfers[0].error
    )
    first = 0 if pair.local == "dst" else 3
    assert pair.peer.in_doubt == own_ranges(pair, first, 2)
    assert repr(pair.peer).endswith(", abandoned>")
    # Only what is of the other peer is left, and that works.
    assert pair.mine.live() == {"ranges": 2, "dlists": 4, "xfers": 0}
    with pytest.raises(TransferError, match="was abandoned; nothing can be started any more"):
        pair.peer.start([[3]], [[0]])
    with other.start([[2]], [[7]], notify=b"third") as transfer:
        assert transfer.wait(10) == "DONE"
    assert third.agent.get_new_notifs() == {pair.mine.name: [b"third"]}
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"before"]}
    for transfer in transfers:
        transfer.release()
    pair.peer.release()
    # The peer comes back: its metadata is added again, and it is prepared anew.
    with pytest.raises(TransferError, match="prepare failed with NIXL_ERR_NOT_FOUND"):
        prepare(pair.mine, pair.theirs.name, pair.plan, local=pair.local)
    pair.mine.add_remote_agent(pair.theirs.get_agent_metadata())
    with prepare(pair.mine, pair.theirs.name, pair.plan, local=pair.local) as again:
        assert again.in_doubt == ()
        with again.start([[3]], [[0]]) as transfer:
            assert transfer.wait(10) == "DONE"
    assert moved(pair, [3], [0])
    other.release()
    third.registration.release()
    leave_in_doubt(pair)


def test_a_peer_with_nothing_in_flight_is_abandoned_without_doubt(pair: Pair) -> None:
    transfer = pair.peer.start([[3]], [[0]], notify=b"done")
    pair.peer.abandon()
    assert transfer.poll() == "DONE" and pair.peer.in_doubt == ()
    transfer.release()
    pair.leave()


def test_what_lands_at_the_last_look_is_not_in_doubt(pair: Pair) -> None:
    transfer = hung(pair, [3], [0])
    land(pair)
    pair.peer.abandon()
    assert transfer.poll() == "DONE" and transfer.error is None
    transfer.release()
    pair.leave()


@pytest.mark.parametrize("step", ["release_xfer", "release_dlist"])
def test_what_nixl_keeps_of_an_abandoned_peer_is_tried_again(pair: Pair, step: str) -> None:
    transfer = hung(pair, [3], [0])
    pair.mine.fail(step, "NIXL_ERR_REPOST_ACTIVE", times=2)
    pair.peer.abandon()
    for _ in range(2):
        with prepare(pair.mine, pair.mine.name, ()):
            pass  # whoever prepares or releases next looks after it
    transfer.release()
    assert pair.mine.live() == {"ranges": 2, "dlists": 0, "xfers": 0}
    leave_in_doubt(pair)


def test_an_agent_that_is_its_own_peer_keeps_its_metadata() -> None:
    engine = Engine("e", 1)
    engine.agent.remove_remote_agent = None  # type: ignore[method-assign, assignment]
    peer = prepare(engine.agent, "e", nixldesc.plan(engine.layout, {0: engine.layout}))
    peer.abandon()
    engine.registration.release()
    assert engine.agent.live() == {"ranges": 0, "dlists": 0, "xfers": 0}


def test_after_leaving_by_an_exception_a_peer_can_still_be_abandoned(pair: Pair) -> None:
    pair.mine.polls = math.inf
    with pytest.raises(KeyboardInterrupt), pair.peer as peer, peer.start([[3]], [[0]]):
        raise KeyboardInterrupt
    assert pair.mine.live()["xfers"] == 2
    peer.abandon()
    assert pair.mine.live() == {"ranges": 2, "dlists": 0, "xfers": 0}
    leave_in_doubt(pair)


def test_blocks_of_one_request_only(pair: Pair) -> None:
    """`error.in_doubt` is the request's, `peer.in_doubt` all of it."""
    one, two = hung(pair, [0], [0]), hung(pair, [N - 1], [N - 1])
    pair.peer.abandon()
    assert one.error.in_doubt == own_ranges(pair, 0, 1)
    assert two.error.in_doubt == own_ranges(pair, N - 1, 1)
    assert sorted(pair.peer.in_doubt) == sorted(one.error.in_doubt + two.error.in_doubt)
    one.release()
    two.release()
    leave_in_doubt(pair)
