"""The adapter's handles at their end: nothing goes under a transfer, nothing stays for ever."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import weakref
from typing import Any

import pytest
from engines import SIDES, Engine, Pair, land, moved, shifted

from nixldesc import (
    DlistPair,
    Layout,
    TransferError,
)
from nixldesc.adapter import prepare


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


# --------------------------------------------------------------------------------------------- release while in flight


def test_nothing_is_released_under_a_transfer(pair: Pair) -> None:
    pair.mine.polls = math.inf
    transfer = pair.peer.start([[3]], [[0]], notify=b"done")
    live = pair.mine.live()
    with pytest.raises(TransferError, match=r"is still in flight; wait\(\) for its end before release"):
        transfer.release()
    with pytest.raises(TransferError, match=f"peer '{pair.theirs.name}': 1 transfers are still in flight"):
        pair.peer.release()
    with pytest.raises(TransferError, match="1 transfers are still in flight"):
        pair.peer.release(timeout=0.01)
    assert pair.mine.live() == live
    with pytest.raises(TransferError, match="2 prepared lists still name this memory; release their peers first"):
        (pair.d if pair.local == "dst" else pair.p).registration.release()
    # All is as before: another request can be started, and this one ends well.
    land(pair)
    with pair.peer.start([[2]], [[1]]) as other:
        assert other.wait(10) == "DONE"
    assert transfer.wait(10) == "DONE"
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    transfer.release()
    transfer.release()
    pair.close()


@pytest.mark.parametrize("what", ["transfer", "peer"])
def test_release_waits_as_long_as_it_is_told(pair: Pair, what: str) -> None:
    pair.mine.polls = 20
    transfer = pair.peer.start([[3]], [[0]], notify=b"done")
    (transfer if what == "transfer" else pair.peer).release(timeout=30)
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    assert moved(pair, [3], [0])
    transfer.release()
    pair.close()


def test_a_peer_releases_what_is_left_of_settled_transfers(pair: Pair) -> None:
    transfers = [pair.peer.start([[3]], [[0]]) for _ in range(3)]
    assert pair.mine.live()["xfers"] == 6
    pair.close()
    handles = [int(what) for _, what in pair.steps("release_xfer")]
    assert handles == sorted(handles, reverse=True)
    for transfer in transfers:
        transfer.release()


# ---------------------------------------------------------------------------------------------------------- finalisers


def test_a_peer_keeps_its_lists_until_the_last_handle_is_gone(pair: Pair) -> None:
    transfer = pair.peer.start([[3]], [[0]])
    pair.mine.fail("release_xfer", "NIXL_ERR_REPOST_ACTIVE")
    with pytest.raises(TransferError, match="VRAM to VRAM: release failed with NIXL_ERR_REPOST_ACTIVE"):
        pair.peer.release()
    assert pair.mine.live() == {"ranges": 2, "dlists": 4, "xfers": 1}
    with pytest.raises(TransferError, match="was released"):
        pair.peer.start([[3]], [[0]])
    transfer.release()
    pair.close()


def test_a_peer_forgets_what_is_over(pair: Pair) -> None:
    for block in range(3):
        pair.peer.start([[block]], [[block]]).release()
    pair.mine.fail("make", times=2)
    for _ in range(2):
        with pytest.raises(TransferError):
            pair.peer.start([[3]], [[0]])
    assert "0 transfers" in repr(pair.peer)
    pair.close()


@pytest.mark.parametrize("step", ["make", "post", "poll", "notify", "release_xfer"])
def test_a_failure_leaves_no_cycle_that_keeps_handles_and_lists(pair: Pair, step: str) -> None:
    """What is dropped goes at once, not when the garbage collector happens to come."""
    pair.mine.polls = 1
    pair.mine.fail(step, after=1 if step in ("make", "post", "poll") else 0)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(TransferError):
            run_and_raise(pair)
        peer = weakref.ref(pair.peer)
        pair.peer.release()
        del pair.peer
        assert peer() is None
    finally:
        gc.enable()
    pair.leave()


def run_and_raise(pair: Pair) -> None:
    transfer = pair.peer.start([[3]], [[0]], notify=b"never")
    try:
        if transfer.wait(10) == "ERR":
            raise TransferError(str(transfer.error))
        transfer.release()
    finally:
        transfer.release()


def test_a_dropped_transfer_that_is_done_is_released_with_a_warning(pair: Pair) -> None:
    with pytest.warns(ResourceWarning, match="never released"):
        pair.peer.start([[3]], [[0]])
    assert pair.mine.live()["xfers"] == 0
    pair.close()


def test_a_dropped_transfer_in_flight_is_released_when_it_has_landed(pair: Pair) -> None:
    pair.mine.polls = 2
    with pytest.warns(ResourceWarning, match="never released"):
        pair.peer.start([[3]], [[0]], notify=b"done")
    assert pair.mine.live()["xfers"] == 2
    land(pair)
    pair.peer.start([], []).release()  # whoever starts next looks after it
    assert pair.mine.live()["xfers"] == 0
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    pair.close()


def test_a_dropped_peer_is_released_with_a_warning(pair: Pair) -> None:
    with pytest.warns(ResourceWarning, match=f"the prepared lists of peer '{pair.theirs.name}' were never released"):
        drop_peer(pair)
    assert pair.mine.live() == {"ranges": 2, "dlists": 0, "xfers": 0}
    pair.leave()


def drop_peer(pair: Pair) -> None:
    del pair.peer
    gc.collect()


def test_a_dropped_peer_with_a_transfer_in_flight_waits_for_it(pair: Pair) -> None:
    pair.mine.polls = math.inf
    transfers = [pair.peer.start([[3]], [[0]], notify=b"done")]
    drop_peer(pair)
    assert transfers[0].poll() == "PROC"  # a transfer keeps its peer's lists
    with pytest.warns(ResourceWarning) as caught:
        transfers.clear()
    assert sorted(str(w.message)[:5] for w in caught) == ["<Tran", "the p"]
    assert pair.mine.live() == {"ranges": 2, "dlists": 4, "xfers": 2}
    land(pair)
    # Whoever prepares or releases next looks after what is left, of any agent.
    Pair("dst").close()
    assert pair.mine.live() == {"ranges": 2, "dlists": 0, "xfers": 0}
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    pair.leave()


def test_a_finaliser_that_finds_the_lists_busy_comes_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may run a finaliser in the middle of another prepare, in the same thread."""
    prep = pair.mine.prep_xfer_dlist
    cycle: list[Any] = [pair.peer]
    cycle.append(cycle)
    del pair.peer, cycle

    def collecting(*args: Any) -> Any:
        gc.collect()
        return prep(*args)

    monkeypatch.setattr(pair.mine, "prep_xfer_dlist", collecting)
    fresh = DlistPair(*(shifted(side) for side in (pair.plan[0][0].src, pair.plan[0][0].dst)))
    with pytest.warns(ResourceWarning, match="were never released"):
        peer = prepare(pair.mine, pair.theirs.name, fresh, local=pair.local)
    assert pair.mine.live()["dlists"] == 2
    peer.release()
    pair.leave()


def test_a_dropped_registration_is_deregistered_unless_lists_name_it() -> None:
    engine = Engine("e", 1)
    part = Layout(engine.layout.regions[:1])
    with prepare(engine.agent, "e", DlistPair(part, part), local="dst") as peer:
        with pytest.warns(
            ResourceWarning, match="a registration of 2 ranges was never released: agent 'e', 128 bytes of DRAM at 0x"
        ):
            del engine.registration
        assert engine.agent.live()["ranges"] == 2
        with peer.start([[1]], [[2]]) as transfer:
            assert transfer.wait(10) == "DONE"
    assert engine.agent.live()["ranges"] == 0


def test_finalisers_release_also_where_warnings_are_errors(pair: Pair) -> None:
    """`python -W error`: the warning is raised inside the finaliser."""
    code = """
import gc, sys, numpy as np
from nixldesc import DlistPair, Layout, Region
from nixldesc.adapter import prepare, register
from nixldesc.testing import LoopbackAgent
memory, agent = np.zeros(64, np.uint8), LoopbackAgent("a")
layout = Layout([Region("k", memory.ctypes.data, 8, 8, mem_type="DRAM")])
sys.unraisablehook = lambda what: print(what.exc_value)
registration = register(agent, layout)
peer = prepare(agent, "a", DlistPair(layout, layout), local="dst")
transfer = peer.start([[1]], [[2]])
del transfer, peer, registration
gc.collect()
print(agent.live())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    words = [line.partition(" at 0x")[0] for line in done.stdout.splitlines()]
    assert words == [
        "<Transfer: READ DRAM to DRAM with peer 'a', DONE> was never released",
        "the prepared lists of peer 'a' were never released",
        "a registration of 1 ranges was never released: agent 'a', 64 bytes of DRAM",
        "{'ranges': 0, 'dlists': 0, 'xfers': 0}",
    ]
    pair.close()
