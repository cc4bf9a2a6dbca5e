"""Small things of the adapter that no larger test would miss: each was planted wrong once, and nothing noticed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from engines import L, N, Pair

import nixldesc
from nixldesc import Layout, Region, TransferError
from nixldesc.adapter import Transfer, prepare
from nixldesc.adapter.ranges import named_bytes, named_ranges
from nixldesc.adapter.waiting import wait_while


def test_ids_of_a_second_region_name_its_bytes() -> None:
    """Planted once: the ids before a row added instead of taken away, so a doubt was about memory far behind."""
    layout = Layout([Region("k", 64, 16, 8, mem_type="DRAM"), Region("v", 4096, 32, 8, device_id=1, mem_type="DRAM")])
    ids = np.array([0, 9, 15, 7], np.int32)  # v's are 8 to 15
    assert named_ranges(layout, ids) == [
        (64, 16, 0, "DRAM"),
        (64 + 7 * 16, 16, 0, "DRAM"),
        (4096 + 32, 32, 1, "DRAM"),
        (4096 + 7 * 32, 32, 1, "DRAM"),
    ]
    assert named_bytes(layout, ids) == 16 + 32 + 32 + 16


@pytest.mark.parametrize("several", [False, True])
def test_an_old_nixl_gets_a_gigabyte_of_rows_and_no_more(several: bool) -> None:
    """Planted once: a limit that nobody names, of nothing at all."""
    old = Pair("dst", strided=False)
    peer = old.theirs.name
    (prepare(old.mine, {0: peer}, old.plan) if several else prepare(old.mine, peer, old.plan)).release()
    many = Layout([Region("k", old.d.k.ctypes.data, 1, 44_739_243, block_stride=L, mem_type="DRAM")])
    made = nixldesc.plan(many, {0: many})
    words = r"the N x 3 list would take 1,073,741,832 bytes, more than dense_limit = 1,073,741,824$"
    with pytest.raises(TransferError, match=words):
        prepare(old.mine, {0: peer}, made) if several else prepare(old.mine, peer, made)
    old.close()


def test_the_end_of_a_block_releases_all_sources() -> None:
    """Planted once: a block over all sources that ended well and left their lists."""
    pair = Pair("dst")
    pair.peer.release()
    pair.mine.polls = 20
    with prepare(pair.mine, {0: pair.theirs.name}, pair.plan) as sources:
        assert pair.mine.live()["dlists"] == 4  # DRAM and VRAM, on both sides
        transfer = sources.start({0: [[3]]}, [[N - 1]], notify=b"r")
        assert transfer.poll() == "PROC"
    assert pair.mine.live()["dlists"] == 0
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"r"]}
    assert pair.d.blocks(N - 1) == pair.p.blocks(3)
    transfer.release()
    pair.leave()


def test_waiting_ends_when_its_time_is_up() -> None:
    """Planted once: it went on for as long as there was anything to wait for."""
    answers = iter([3, 2, 2, 2])
    assert wait_while(lambda: next(answers), timeout=0) == 3
    assert wait_while(lambda: next(answers), timeout=-1.0) == 2
    assert next(answers) == 2  # nobody asked any more


def test_a_loop_asks_again_soon() -> None:
    """Planted once: after as long as the machine has run."""
    pair = Pair("dst")
    pair.mine.polls = 3

    async def moved() -> str:
        with pair.peer.start([[3]], [[0]]) as transfer:
            return await asyncio.wait_for(_ended(transfer), 20)

    assert asyncio.run(moved()) == "DONE"
    pair.close()


async def _ended(transfer: Transfer) -> str:
    return await transfer
