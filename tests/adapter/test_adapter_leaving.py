"""Leaving a ``with`` block, and leaving the interpreter."""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import sys
import time

import pytest
from engines import SIDES, Engine, Pair, land, moved, shifted

from nixldesc import Layout, NixldescError, TransferError
from nixldesc.adapter import prepare, register


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, ValueError])
def test_an_exception_on_its_way_stays_on_top_and_nothing_waits(
    pair: Pair, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    pair.mine.polls = math.inf
    mine = pair.d if pair.local == "dst" else pair.p
    began = time.monotonic()
    with pytest.raises(kind, match="the user's own"):
        with mine.registration, pair.peer, pair.peer.start([[3]], [[0]], notify=b"done"):
            raise kind("the user's own")
    assert time.monotonic() - began < 5
    assert pair.mine.live() == {"ranges": 2, "dlists": 4, "xfers": 2}  # NIXL still writes
    words = [record.getMessage() for record in caplog.records if record.name == "nixldesc"]
    assert len(words) == 3 and all(f" by {kind.__name__}" in line for line in words), words
    with pytest.raises(TransferError, match="was released; nothing can be started any more"):
        pair.peer.start([[3]], [[0]])
    # When it has landed, whoever comes next finds it; then lists and registration go too.
    land(pair)
    for _ in range(3):
        Pair("dst").close()
    assert pair.mine.live() == {"ranges": 0, "dlists": 0, "xfers": 0}
    assert moved(pair, [3], [0])
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    (pair.p if pair.local == "dst" else pair.d).registration.release()


def test_what_has_landed_is_released_also_by_an_exception(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    mine = pair.d if pair.local == "dst" else pair.p
    with pytest.raises(ValueError, match="own"):
        with mine.registration, pair.peer, pair.peer.start([[3]], [[0]]):
            raise ValueError("own")
    assert pair.mine.live() == {"ranges": 0, "dlists": 0, "xfers": 0}
    assert not caplog.records
    pair.leave()


def test_without_an_exception_leaving_waits_then_says_so(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty seconds in all: the first level's TransferError is an exception on its way for the next."""
    for module in ("transfer", "peer"):
        monkeypatch.setattr(f"nixldesc.adapter.{module}.EXIT_SECONDS", 0.3)
    pair.mine.polls = math.inf
    began = time.monotonic()
    with pytest.raises(TransferError, match="is still in flight"):
        with pair.peer, pair.peer.start([[3]], [[0]]) as transfer:
            pass
    assert 0.3 <= time.monotonic() - began < 0.6 + 5
    with pytest.raises(TransferError, match="was released"):
        pair.peer.start([[1]], [[1]])
    land(pair)
    transfer.release()
    pair.peer.release()
    pair.leave()


def test_a_peer_that_ends_well_waits_for_what_is_in_flight(pair: Pair) -> None:
    pair.mine.polls = 20
    with pair.peer:
        transfer = pair.peer.start([[3]], [[0]], notify=b"done")
    transfer.release()
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    pair.leave()


def test_a_registration_left_by_an_exception_goes_after_the_lists(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine("e", 1)
    part = Layout(engine.layout.regions[:1])
    engine.registration.release()
    with pytest.raises(ValueError, match="own"), register(engine.agent, part):
        peer = prepare(engine.agent, "e", (part, part))
        raise ValueError("own")
    assert "it goes after the lists that name it" in caplog.text
    assert engine.agent.live() == {"ranges": 1, "dlists": 2, "xfers": 0}
    peer.release()
    assert engine.agent.live() == {"ranges": 0, "dlists": 0, "xfers": 0}


def test_refusals_and_failures_are_logged(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def said(words: str, level: int) -> bool:
        found = [r for r in caplog.records if r.name == "nixldesc" and words in r.getMessage() and r.levelno == level]
        caplog.clear()
        return len(found) == 1

    name = pair.theirs.name
    with pytest.raises(NixldescError):
        pair.peer.start([[1, 2]], [[1]])
    assert said(f"peer {name!r}, {pair.peer.operation}: ", logging.WARNING)
    with pytest.raises(NixldescError):
        pair.peer.start_ids(0, [1, 2], [1])
    assert said("they pair one to one", logging.WARNING)
    pair.mine.fail("make")
    with pytest.raises(TransferError):
        pair.peer.start([[1]], [[1]])
    assert said("make failed with NIXL_ERR_BACKEND", logging.WARNING)
    pair.mine.fail("post")
    pair.peer.start([[1]], [[1]]).release()
    assert said("post failed with NIXL_ERR_BACKEND", logging.ERROR)
    pair.mine.fail("prep")
    with pytest.raises(TransferError):
        prepare(pair.mine, name, (shifted(pair.p.layout.select(["k"])), shifted(pair.d.layout.select(["k"]))))
    assert said("prepare failed with NIXL_ERR_BACKEND", logging.WARNING)
    with pytest.raises(TransferError):
        (pair.d if pair.local == "dst" else pair.p).registration.release()
    assert said("2 prepared lists still name this memory", logging.WARNING)
    pair.close()


EXIT = """
import atexit, sys, numpy as np
from nixldesc import DlistPair, Layout, Region
from nixldesc.testing import LoopbackAgent
memory, agent = np.zeros(64, np.uint8), LoopbackAgent("a")
atexit.register(lambda: print(agent.live(), [step for step, _ in agent.journal if step.startswith("release")]))
from nixldesc.adapter import prepare, register  # whose own end comes before that
layout = Layout([Region("k", memory.ctypes.data, 8, 8, mem_type="DRAM")])
registration = register(agent, layout)
peer = prepare(agent, "a", DlistPair(layout, layout), local="dst")
agent.polls = POLLS
transfer = peer.start([[1]], [[2]], notify=b"landed")
atexit.register(lambda: print(agent.journal[-1][0]))
"""


@pytest.mark.parametrize(("polls", "end"), [("0", "DONE"), ("50", "DONE"), ("float('inf')", "PROC")])
def test_at_the_end_of_the_interpreter_nothing_is_released(polls: str, end: str) -> None:
    """What is in flight has a moment to land: the memory that it writes to is freed next."""
    code = EXIT.replace("POLLS", polls) + "atexit.unregister(print)\n"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "{'ranges': 1, 'dlists': 2, 'xfers': 1} []"
    assert done.stderr == ""
    if end == "PROC":
        assert 5 <= time.monotonic() - began < 60
