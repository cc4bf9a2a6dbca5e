"""The adapter over LoopbackAgents: a request, from its tables to its notification."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from agents import painted
from engines import SIDES, L, N, Pair, in_threads, land, local_preps, moved

from nixldesc import (
    BlockIdError,
    Blocks,
    DlistPair,
    Layout,
    Region,
    TransferError,
    adapter,
)
from nixldesc.adapter import prepare, register
from nixldesc.testing import LoopbackAgent


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


# ----------------------------------------------------------------------------------------------------------- a request


def test_a_request_moves_its_blocks_and_notifies_once(pair: Pair) -> None:
    rest = pair.d.blocks(1, 3, 4, 6, 7)
    with pair.peer.start([[3, 2, 7]], [[0, 5, 2]], notify=b"done") as transfer:
        assert transfer.wait(10) == "DONE"
        assert transfer.error is None
    assert moved(pair, [3, 2, 7], [0, 5, 2])
    assert pair.d.blocks(1, 3, 4, 6, 7) == rest
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    assert pair.peer.operation == {"dst": "READ", "src": "WRITE"}[pair.local]
    assert [what.split()[0] for _, what in pair.steps("make")] == [pair.peer.operation] * 2
    pair.close()


def test_every_handle_is_made_before_the_first_is_posted(pair: Pair) -> None:
    pair.peer.start([[3]], [[0]], notify=b"done").release()
    steps = [step for step, _ in pair.steps("make", "post", "notify", "release_xfer")]
    assert steps == ["make", "make", "post", "post", "notify", "release_xfer", "release_xfer"]
    handles = [what for _, what in pair.steps("post")]
    assert [what for _, what in pair.steps("release_xfer")] == handles[::-1]
    pair.close()


def test_the_peer_is_notified_when_the_last_handle_is_done(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = {"DRAM DRAM": 3, "VRAM VRAM": 1}  # handles that need different numbers of polls
    post = pair.mine.transfer

    def transfer_slowly(handle: Any) -> str:
        pair.mine.polls = polls[f"{handle.local_mem} {handle.remote_mem}"]
        return post(handle)

    monkeypatch.setattr(pair.mine, "transfer", transfer_slowly)
    transfer = pair.peer.start([[3]], [[0]], notify=b"done")
    seen = []
    for _ in range(3):
        assert pair.theirs.get_new_notifs() == {}
        seen.append(transfer.poll())
    assert seen == ["PROC", "PROC", "DONE"]
    assert transfer.poll() == "DONE"
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    # A handle that is done is not asked again.
    assert len(pair.steps("poll")) == 4
    transfer.release()
    pair.close()


def test_with_one_handle_nixl_carries_the_message(pair: Pair) -> None:
    only = pair.plan[0][0]
    peer = prepare(pair.mine, pair.theirs.name, only, local=pair.local)
    with peer, peer.start([[3]], [[0]], notify=b"carried") as transfer:
        assert transfer.wait(10) == "DONE"
    assert pair.steps("notify") == []
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"carried"]}
    pair.close()


def test_no_message_no_notification(pair: Pair) -> None:
    for blocks in [3], []:
        pair.peer.start([blocks], [blocks]).release()
    assert pair.steps("notify") == [] and pair.theirs.get_new_notifs() == {}
    pair.close()


def test_nothing_to_move_needs_no_handle_and_notifies_at_once(pair: Pair) -> None:
    requests: list[Any] = [([[]], [[]]), ([Blocks([1], skip=4)], [Blocks([1], skip=9)])]
    for src, dst in requests:
        with pair.peer.start(src, dst, notify=b"empty") as transfer:
            assert (transfer.poll(), transfer.handles) == ("DONE", ())
        assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"empty"]}
    assert pair.steps("make") == []
    pair.close()


def test_a_peer_without_lists_only_notifies(pair: Pair) -> None:
    """What a plan has for a rank with nothing to send: ``plan.get(rank, ())``."""
    with prepare(pair.mine, pair.theirs.name, pair.plan.get(7, ()), local=pair.local) as peer:
        peer.start([[1]], [[2]], notify=b"empty").release()
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"empty"]}
    pair.close()


def test_order_null_blocks_and_regions_are_passed_on(pair: Pair) -> None:
    with pair.peer.start([[3, 0, 1]], [[2, 6, 5]], null_block=0, order="given") as transfer:
        assert transfer.wait(10) == "DONE"
        assert [handle.ops[0].length for handle in transfer.handles] == [L, L]
    assert moved(pair, [3, 1], [2, 5]) and not moved(pair, [0], [6])
    with pytest.raises(ValueError, match="order must be 'merge' or 'given'"):
        pair.peer.start([[3]], [[2]], order="best")
    pair.close()


def test_one_layer_at_a_time_over_the_same_lists() -> None:
    memory = [painted(4 * N * L, seed) for seed in (1, 2)]
    src, dst = (
        Layout([Region(f"layer{i}", m.ctypes.data + i * N * L, L, N, mem_type="DRAM") for i in range(4)])
        for m in memory
    )
    agent = LoopbackAgent("a")
    with register(agent, src), register(agent, dst), prepare(agent, "a", DlistPair(src, dst), local="src") as peer:
        for layer in range(4):
            before = memory[1].reshape(4, N, L).copy()
            with peer.start([[1, 2]], [[5, 0]], regions=slice(layer, layer + 1)) as transfer:
                assert transfer.wait(10) == "DONE"
            before[layer, [5, 0]] = memory[0].reshape(4, N, L)[layer, [1, 2]]
            assert (memory[1].reshape(4, N, L) == before).all()


def test_wait_gives_up_when_time_is_up(pair: Pair) -> None:
    pair.mine.polls = math.inf
    transfer = pair.peer.start([[3]], [[0]])
    assert transfer.wait(0.01) == "PROC"
    assert "PROC" in repr(transfer) and pair.theirs.name in repr(transfer)
    land(pair)
    assert transfer.wait() == "DONE"
    transfer.release()
    pair.close()


def test_tables_that_do_not_fit_start_nothing(pair: Pair) -> None:
    for src, dst in (([[1, 2]], [[1]]), ([[N]], [[0]]), ([[0]], [[-1]])):
        with pytest.raises(BlockIdError):
            pair.peer.start(src, dst, notify=b"never")
    for junk in ("text", None, 5):
        with pytest.raises(TypeError, match="notify must be bytes, got"):
            pair.peer.start([[1]], [[1]], notify=junk)  # type: ignore[arg-type]
    assert pair.steps("make", "notify") == []
    pair.close()


# ------------------------------------------------------------------------------------------------------------- threads


def test_many_threads_poll_one_transfer_and_the_peer_is_notified_once(pair: Pair) -> None:
    pair.mine.polls = 200
    transfer = pair.peer.start([[3]], [[0]], notify=b"done")
    ends: list[str] = []

    def poll() -> None:
        while transfer.poll() == "PROC":
            pass
        ends.append(transfer.poll())

    in_threads(poll, 4)
    assert ends == ["DONE"] * 4
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    in_threads(transfer.release, 4)
    assert pair.mine.live()["xfers"] == 0
    pair.close()


def test_requests_and_peers_of_many_threads(pair: Pair) -> None:
    """Each thread prepares, starts and releases on its own; the local list is shared all the while."""

    def work() -> None:
        for _ in range(20):
            with prepare(pair.mine, pair.theirs.name, pair.plan, local=pair.local) as peer:
                for block in range(3):
                    with peer.start([[block]], [[block]], notify=b"done") as transfer:
                        assert transfer.wait(10) == "DONE"

    in_threads(work, 4)
    assert local_preps(pair) == 2
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"] * 240}
    pair.close()


def test_starting_while_another_thread_releases_is_either_done_or_refused(pair: Pair) -> None:
    refused = []

    def start() -> None:
        try:
            while True:
                with pair.peer.start([[1]], [[1]]) as transfer:
                    transfer.wait(10)
        except TransferError as e:
            refused.append(str(e))

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    pair.peer.release(timeout=30)
    for thread in threads:
        thread.join(30)
    assert refused == [f"peer {pair.theirs.name!r} was released; nothing can be started any more"] * 3
    pair.close()


def test_a_request_half_made_is_in_flight_for_other_threads(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    make = pair.mine.make_prepped_xfer
    threads: list[threading.Thread] = []

    def release_meanwhile(operation: str, *args: Any) -> Any:
        if not threads:
            threads.append(threading.Thread(target=lambda: pair.peer.release(timeout=30)))
            threads[0].start()
            threads[0].join(0.05)
        return make(operation, *args)

    monkeypatch.setattr(pair.mine, "make_prepped_xfer", release_meanwhile)
    pair.mine.polls = 3
    transfer = pair.peer.start([[3]], [[0]], notify=b"done")
    threads[0].join(60)
    assert transfer.poll() == "DONE"
    assert moved(pair, [3], [0])
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    assert pair.mine.live() == {"ranges": 2, "dlists": 0, "xfers": 0}
    transfer.release()
    pair.close()


def test_the_public_names_of_the_adapter() -> None:
    things = {"Agent", "PreparedPeer", "PreparedSources", "Registration", "Status", "Transfer"}
    assert set(adapter.__all__) == things | {"prepare", "register", "settled"}
