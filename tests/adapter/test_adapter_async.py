"""Transfers in an asyncio loop, and `settled`."""

from __future__ import annotations

import asyncio
import gc
import math
import time
import weakref
from typing import Any

import numpy as np
import pytest
from agents import painted, real_agent
from engines import SIDES, Pair, land, moved

from nixldesc import DlistPair, Layout, Region
from nixldesc.adapter import Transfer, prepare, register, settled


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def test_a_transfer_is_awaited_as_often_as_one_likes(pair: Pair) -> None:
    pair.mine.polls = 5
    transfer = pair.peer.start([[3]], [[0]], notify=b"done")

    async def twice(transfer: Transfer) -> list[str]:
        return [await transfer, *await asyncio.gather(wait(transfer), wait(transfer))]

    assert asyncio.run(twice(transfer)) == ["DONE"] * 3
    assert asyncio.run(wait(transfer)) == "DONE", "in another loop too"
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    transfer.release()
    assert asyncio.run(wait(transfer)) == "DONE"
    pair.close()


async def wait(transfer: Transfer) -> str:
    return await transfer


def test_several_tasks_await_one_transfer_and_the_loop_goes_on(pair: Pair) -> None:
    pair.mine.polls = math.inf
    transfer = pair.peer.start([[3]], [[0]])

    async def run() -> tuple[list[str], int]:
        tasks = [asyncio.ensure_future(wait(transfer)) for _ in range(3)]
        turns = 0
        deadline = time.monotonic() + 0.1
        while time.monotonic() < deadline:
            turns += 1
            await asyncio.sleep(0)
        land(pair)
        return list(await asyncio.gather(*tasks)), turns

    states, turns = asyncio.run(run())
    assert states == ["DONE"] * 3
    polls = len(pair.steps("poll"))
    assert 10 < polls < 2 * turns + 20, (polls, turns)
    transfer.release()
    pair.close()


def test_a_loop_is_not_kept_waiting(pair: Pair) -> None:
    """The pause between two looks is a few times what a look takes, and far below a second."""
    asked: list[float] = []

    pair.mine.polls = 20
    with pair.peer.start([[3]], [[0]]) as transfer:
        loop = asyncio.new_event_loop()
        later = loop.call_later

        def soon(delay: float, *args: Any) -> Any:
            asked.append(delay)
            return later(min(delay, 0.001), *args)

        loop.call_later = soon  # type: ignore[method-assign, assignment]
        assert loop.run_until_complete(wait(transfer)) == "DONE"
        loop.close()
    assert len(asked) > 10 and min(asked) < 0.1, asked
    pair.close()


def test_a_failure_is_a_status_not_an_exception(pair: Pair) -> None:
    pair.mine.polls = 3
    pair.mine.fail("poll", "NIXL_ERR_REMOTE_DISCONNECT", after=1)
    with pair.peer.start([[3]], [[0]], notify=b"never") as transfer:
        assert asyncio.run(wait(transfer)) == "ERR"
    assert transfer.error is not None
    pair.close()


def test_a_cancelled_await_leaves_the_transfer_alive(pair: Pair) -> None:
    pair.mine.polls = math.inf
    transfer = pair.peer.start([[3]], [[0]], notify=b"done")

    async def run() -> None:
        other = asyncio.ensure_future(wait(transfer))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait(transfer), 0.02)
        task = asyncio.ensure_future(wait(transfer))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transfer.poll() == "PROC" and not other.done()
        land(pair)
        assert await other == await transfer == "DONE"

    asyncio.run(run())
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    assert moved(pair, [3], [0])
    transfer.release()
    pair.close()


def test_a_loop_that_ends_before_its_transfers_is_let_go(pair: Pair) -> None:
    pair.mine.polls = math.inf
    transfer = pair.peer.start([[3]], [[0]])

    async def run() -> Any:
        task = asyncio.ensure_future(wait(transfer))
        await asyncio.sleep(0.005)
        assert not task.done()
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(run())
    gc.collect()
    assert loop() is None
    land(pair)
    assert asyncio.run(wait(transfer)) == "DONE"
    transfer.release()
    pair.close()


def test_settled_are_those_that_are_at_their_end(pair: Pair) -> None:
    pair.mine.polls = 1
    quick = pair.peer.start([[3]], [[0]])
    pair.mine.polls = math.inf
    slow = pair.peer.start([[4]], [[1]])
    pair.mine.polls = 0
    pair.mine.fail("post")
    failed = pair.peer.start([[5]], [[2]])
    assert settled([failed, slow, quick]) == [failed, quick]
    assert settled(iter(())) == []
    land(pair)
    assert settled([slow]) == [slow]
    for transfer in (quick, slow, failed):
        transfer.release()
    pair.close()


def test_two_hundred_transfers_of_real_agents_at_once() -> None:
    """A third of the tasks is cancelled; every byte arrives all the same."""
    count, size = 200, 1 << 16
    src, dst = real_agent("async-src"), real_agent("async-dst")
    theirs, mine = painted(count * size, 1), np.zeros(count * size, np.uint8)
    layouts = [Layout([Region("k", m.ctypes.data, size, count, mem_type="DRAM")]) for m in (theirs, mine)]
    with register(src, layouts[0]), register(dst, layouts[1]):
        dst.add_remote_agent(src.get_agent_metadata())
        with prepare(dst, "async-src", DlistPair(*layouts)) as peer:
            transfers = [peer.start([[block]], [[block]], notify=b"%d" % block) for block in range(count)]

            async def run() -> list[str]:
                tasks = [asyncio.ensure_future(wait(transfer)) for transfer in transfers]
                await asyncio.sleep(0)
                for task in tasks[::3]:
                    task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                left = [t for t, end in zip(transfers, ends, strict=True) if isinstance(end, asyncio.CancelledError)]
                assert left == transfers[::3] or len(left) < count / 3
                return [await transfer for transfer in transfers]

            assert asyncio.run(asyncio.wait_for(run(), 60)) == ["DONE"] * count
            assert settled(transfers) == transfers
            for transfer in transfers:
                transfer.release()
    assert (mine == theirs).all()
