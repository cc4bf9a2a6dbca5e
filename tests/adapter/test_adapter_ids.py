"""The adapter with raw descriptor ids: layouts of unlike structure, files, every refusal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import painted
from engines import SIDES, Engine, L, N, Pair

from nixldesc import (
    BlockIdError,
    Layout,
    Region,
    TransferError,
)
from nixldesc.adapter import PreparedPeer, prepare, register
from nixldesc.testing import LoopbackAgent


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def unlike() -> tuple[LoopbackAgent, Any, PreparedPeer, Any]:
    """One buffer of 8 blocks (two of half length) against slots of other lengths in other regions."""
    agent, memory = LoopbackAgent("a"), painted(4 * N * L, 1)
    at = memory.ctypes.data
    src = Layout([Region("s", at, L, 6, mem_type="DRAM"), Region("half", at + 6 * L, L // 2, 2, mem_type="DRAM")])
    dst = Layout(
        [Region("x", at + N * L, L // 2, 3, mem_type="DRAM")]
        + [Region(f"slot{i}", at + (2 * i + 12) * L, L, 1, mem_type="DRAM") for i in range(3)]
    )
    registration = register(agent, src, [(at, memory.nbytes, 0, "DRAM")])
    return agent, memory, prepare(agent, "a", (src, dst), local="dst"), registration


def test_raw_ids_of_layouts_of_unlike_structure() -> None:
    agent, memory, peer, registration = unlike()
    blocks = memory.reshape(-1, L).copy()
    with peer.start_ids(0, np.array([5, 0, 7]), np.array([4, 3, 2], np.int8), notify=b"ids") as transfer:
        assert transfer.wait(10) == "DONE"
    assert agent.get_new_notifs() == {"a": [b"ids"]}
    blocks[14], blocks[12] = blocks[5], blocks[0]
    blocks[9][:8] = blocks[6][8:]
    assert (memory.reshape(-1, L) == blocks).all()

    peer.start_ids(0, np.array([], np.int32), np.array([], np.int64), notify=b"none").release()
    assert agent.get_new_notifs() == {"a": [b"none"]}
    with pytest.raises(
        TransferError, match="layouts of unlike structure, which block tables cannot address; use start_ids"
    ):
        peer.start([[0]], [[0]])
    peer.release()
    registration.release()


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("index", "src", "dst", "error", "words"),
    [
        (1, ints(0), ints(3), BlockIdError, "pair_index is 1, peer 'a' has 1 list pairs"),
        (-1, ints(0), ints(3), BlockIdError, "pair_index is -1"),
        (True, ints(0), ints(3), TypeError, "pair_index must be an int"),
        (0, ints(0, 1), ints(3), BlockIdError, "2 src_ids and 1 dst_ids: they pair one to one"),
        (0, ints(), ints(3), BlockIdError, "0 src_ids and 1 dst_ids"),
        (0, ints(0, 8), ints(3, 4), BlockIdError, r"src_ids, position 1: desc id 8 is out of range"),
        (0, ints(0, -1), ints(3, 4), BlockIdError, r"src_ids\[1\] is -1|src_ids, position 1"),
        (0, ints(0, 1), ints(3, 6), BlockIdError, "desc id 6 is out of range, the dst list has 6"),
        (0, ints(0, 7), ints(3, 4), BlockIdError, "position 1: src id 7 is 8 bytes, dst id 4 is 16 bytes"),
        (0, np.array([0, 2**32 + 1]), ints(3, 4), BlockIdError, "src_ids, position 1"),
        (0, np.array([2**63], np.uint64), ints(3), BlockIdError, "src_ids, position 0"),
        (0, np.array([0.0]), ints(3), TypeError, "src_ids"),
        (0, np.array([True]), ints(3), TypeError, "src_ids"),
        (0, ints(0).reshape(1, 1), ints(3), (TypeError, BlockIdError), "src_ids"),
        (0, ints(0), None, TypeError, "dst_ids"),
        (0, ints(0), "3", TypeError, "dst_ids"),
    ],
)
def test_raw_ids_are_refused_with_the_reason(index: int, src: Any, dst: Any, error: Any, words: str) -> None:
    agent, _, peer, registration = unlike()
    with pytest.raises(error, match=words):
        peer.start_ids(index, src, dst, notify=b"never")
    assert agent.live()["xfers"] == 0 and agent.get_new_notifs() == {}
    peer.release()
    registration.release()


def test_raw_ids_of_one_of_several_pairs(pair: Pair) -> None:
    before = pair.d.blocks(*range(N))
    with pair.peer.start_ids(1, ints(6, 7), ints(1, 0), notify=b"vram") as transfer:
        assert transfer.wait(10) == "DONE"
    assert pair.d.blocks(*range(N))[0] == before[0]
    assert pair.d.blocks(1, 0)[1] == pair.p.blocks(6, 7)[1]
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"vram"]}
    pair.close()


def test_an_object_tier_blocks_against_files(tmp_path: Path) -> None:
    """Block ids on one side, 0..n-1 of a file per request on the other; a file's backend carries no message."""
    engine = Engine("e", 1)
    memory = Layout(engine.layout.regions[:1])
    fds = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "ab"]
    files = Layout([Region(f"file{fd}", 0, L, 3, mem_type="FILE", device_id=fd) for fd in fds])
    with register(engine.agent, files), prepare(engine.agent, "e", (memory, files), local="src") as tier:
        with tier.start_ids(0, ints(7, 0, 3, 2), ints(0, 1, 2, 3), notify=b"stored") as transfer:
            assert transfer.wait(10) == "DONE"
        assert engine.agent.get_new_notifs() == {"e": [b"stored"]}
    want = engine.blocks(7, 0, 3, 2)[0]
    assert [os.pread(fd, 3 * L, 0) for fd in fds] == [bytes(want[0] + want[1] + want[2]), bytes(want[3])]
    with (
        register(engine.agent, files),
        prepare(engine.agent, "e", (files, memory), local="dst") as tier,
        tier.start_ids(0, ints(3, 1), ints(5, 4)) as transfer,
    ):
        assert transfer.wait(10) == "DONE"
    assert engine.blocks(5, 4)[0] == [want[3], want[1]]
    engine.registration.release()
    for fd in fds:
        os.close(fd)
