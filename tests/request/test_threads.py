"""Layouts, pairs and plans are shared by threads; the same input gives the same bytes, also in another interpreter."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from nixldesc import (
    BlockIdError,
    Blocks,
    DlistPair,
    Layout,
    Plan,
    Region,
    Section,
    attention_sections,
    expand_table,
    kernel_blocks,
    plan,
    state_sections,
)

THREADS = 8
BLOCKS = 6000


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads take turns in the middle of everything."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# ----------------------------------------------------------------------------------- things that threads share


def rank(tp_rank: int, tp_size: int, tokens: int, base: int) -> Layout:
    """Eight attention layers of two groups and a state."""
    regions = []
    for i in range(8):
        page: tuple[Section, ...] = attention_sections(
            f"l{i}", num_kv_heads=4, tp_size=tp_size, tp_rank=tp_rank, block_tokens=tokens, token_head_bytes=4
        )
        regions.append(Region(f"l{i}", base + (i << 24), page[-1].end, BLOCKS, groups=(i % 2,), sections=page))
    state = state_sections(
        "s",
        projections={"x": 8, "B": 4},
        conv_rows=3,
        conv_itemsize=2,
        ssm_shape=(4, 2),
        ssm_itemsize=4,
        tp_size=tp_size,
        tp_rank=tp_rank,
    )
    return Layout([*regions, Region("s", base + (8 << 24), state[-1].end, 50, groups=(2,), sections=state)])


def fresh() -> tuple[Layout, Plan, DlistPair]:
    """Equal every time, and nothing of it was ever used."""
    dst, srcs = rank(0, 1, 8, 1 << 40), {r: rank(r, 2, 16, r << 44) for r in range(2)}
    made = plan(dst, srcs)
    return dst, made, made[1][0]


def tables(seed: int, long: bool) -> tuple[list[list[int]], list[list[int]]]:
    """One request: lists of three groups for the source (16 tokens a block) and for the destination (8)."""
    rng = np.random.default_rng(seed)
    count = 2500 if long else 20
    src = [rng.permutation(BLOCKS)[:count].tolist() for _ in range(2)]
    dst = [rng.permutation(BLOCKS)[: 2 * count].tolist() for _ in range(2)]
    states = rng.permutation(50)[:4].tolist()
    return [*src, states], [*dst, states[::-1]]


def digest(value: Any) -> str:
    """Of all bytes, types and shapes."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(digest, value))})"
    return repr(value)


Work = Callable[[Layout, Plan, DlistPair], Any]


def request(seed: int, long: bool) -> list[Work]:
    """What a worker does with shared things, each by itself."""
    src, dst = tables(seed, long)
    arrays = [np.array(ids, np.int32) for ids in dst]
    raw = np.arange(seed, seed + 500), np.arange(500)[::-1]
    spare = next(block for block in range(BLOCKS) if block not in dst[0])
    return [
        lambda layout, made, pair: layout.desc_ids(dst),
        lambda layout, made, pair: layout.desc_ids(arrays, order="group"),
        lambda layout, made, pair: layout.desc_ids([*dst, []]),
        lambda layout, made, pair: layout.desc_ids([range(seed, seed + 9), (seed,), []], order="region"),
        lambda layout, made, pair: pair.desc_ids(src, dst),
        lambda layout, made, pair: pair.desc_ids([*src, []], dst, order="given"),
        lambda layout, made, pair: pair.desc_ids(src, [Blocks(ids, skip=4) for ids in dst], regions=slice(1, 7)),
        lambda layout, made, pair: pair.desc_ids(src, dst, null_block=int(src[0][0])),
        lambda layout, made, pair: pair.merged_ops(*raw),
        lambda layout, made, pair: pair.moves(*raw, merge=True),
        lambda layout, made, pair: pair.uncovered(src, [Blocks([*dst[0], spare]), dst[1], dst[2]]),
        lambda layout, made, pair: made.undelivered({0: src}, dst) if not long else None,
        lambda layout, made, pair: layout.table(),
        lambda layout, made, pair: expand_table(pair.src.select([pair.src.regions[0].name]).table()),
        lambda layout, made, pair: [layout.locate(seed), layout.address(seed + 7)],
        lambda layout, made, pair: [layout.to_dict(), layout.signature(), list(layout.by_mem_type())],
        lambda layout, made, pair: plan(layout, {0: layout})[0][0].dst.table(),
        lambda layout, made, pair: kernel_blocks(dst[0], 3),
        lambda layout, made, pair: hash(layout) == hash(Layout(layout.regions)),
    ]


# ------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_first_use_by_all_threads_at_once(long: bool) -> None:
    """Nothing is prepared, all threads start together, each with its own request and its own order of calls."""
    rounds = 2 if long else 6
    works = [request(seed, long) for seed in range(THREADS)]
    for turn in range(rounds):
        alone = fresh()
        want = [[digest(work(*alone)) for work in own] for own in works]
        shared, barrier = fresh(), threading.Barrier(THREADS)

        def run(number: int, shared: Any = shared, barrier: threading.Barrier = barrier, turn: int = turn) -> list[str]:
            own = works[number]
            order = np.random.default_rng([turn, number]).permutation(len(own)).tolist()
            got = [""] * len(own)
            barrier.wait()
            for i in order:
                got[i] = digest(own[i](*shared))
            return got

        with ThreadPoolExecutor(THREADS) as pool:
            assert list(pool.map(run, range(THREADS))) == want


def test_one_thing_is_prepared_once() -> None:
    """Threads that race for what is cached all get the same object."""
    for _ in range(20):
        layout, barrier = rank(0, 1, 8, 0), threading.Barrier(THREADS)

        def first(_: int, layout: Layout = layout, barrier: threading.Barrier = barrier) -> Any:
            barrier.wait()
            return layout.table()

        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(first, range(THREADS)))
        assert all(table is found[0] for table in found)


def until(stop: threading.Event, do: Callable[[], None]) -> threading.Thread:
    """A thread that does it again and again."""

    def repeat() -> None:
        while not stop.is_set():
            do()

    thread = threading.Thread(target=repeat)
    thread.start()
    return thread


def outcome(call: Callable[[], Any], *refusals: str) -> Any:
    """The result; None for a refusal with one of these words."""
    try:
        return call()
    except (BlockIdError, ValueError) as error:
        assert any(words in str(error) for words in refusals), error
        return None


def test_a_list_that_another_thread_resizes() -> None:
    """Each call sees some list: all ids are in range, or it is told that the list changed."""
    layout = Layout([Region("k", 0, 16, 100)])
    pair = DlistPair(layout, layout)
    ids: list[int] = [7] * 50
    rng, stop = np.random.default_rng(5), threading.Event()

    def resize() -> None:
        ids[:] = [7] * int(rng.integers(0, 100_000))

    calls: list[Callable[[], Any]] = [
        lambda: layout.desc_ids([ids]),
        lambda: pair.desc_ids([Blocks(ids)], [range(50)])[0],
        lambda: kernel_blocks(ids, 1),
    ]
    thread = until(stop, resize)
    try:
        results = [outcome(call, "changed from") for _ in range(300) for call in calls]
    finally:
        stop.set()
        thread.join()
    read = [ids for ids in results if ids is not None]
    assert read
    assert all((ids == 7).all() for ids in read)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_an_array_that_another_thread_writes_to(dtype: Any) -> None:
    """No id out of range ever passes, whatever is written when."""
    layout = Layout([Region("k", 0, 16, 20_000)])
    pair = DlistPair(layout, layout)
    ids, stop = np.zeros(20_000, dtype), threading.Event()
    good = np.arange(20_000, dtype=np.int32)
    ids[:] = good

    def write() -> None:
        ids[::7] = 20_000
        ids[5::1000] = 30_000
        ids[:] = good
        stop.wait(0.0005)

    calls: list[Callable[[], Any]] = [
        lambda: layout.desc_ids([ids]),
        lambda: pair.desc_ids([ids], [good], order="given")[0],
        lambda: pair.desc_ids([good], [ids])[1],
    ]
    thread = until(stop, write)
    try:
        results = [outcome(call, "out of range") for _ in range(100) for call in calls]
    finally:
        stop.set()
        thread.join()
    read = [ids for ids in results if ids is not None]
    assert read
    assert all(0 <= ids.min() <= ids.max() < 20_000 for ids in read)


def test_a_table_that_another_thread_writes_to() -> None:
    """What was promised while it was counted is not exceeded while it is written."""
    table, stop = np.array([(0x1000, 16, 0, 16, 5)] * 200, np.uint64), threading.Event()

    def write() -> None:
        table[:, 4] = 9
        table[:, 4] = 5

    thread = until(stop, write)
    try:
        for _ in range(300):
            memory = np.full((3000, 3), 7, np.uint64)
            for out in (None, memory[1000:2000]):
                dense = outcome(lambda out=out: expand_table(table, out), "out has shape", "counts changed")  # type: ignore[misc]
                assert dense is None or 1000 <= len(dense) <= 1800
            assert (memory[:1000] == 7).all()
            assert (memory[2000:] == 7).all()
    finally:
        stop.set()
        thread.join()


# ------------------------------------------------------------------------------------------------- determinism


def everything() -> str:
    """Digests of all kinds of results, one a line; what this module prints when it is run."""
    lines = []
    for long in (False, True):
        for seed in range(3):
            shared = fresh()
            lines += [digest(work(*shared)) for work in request(seed, long)]
    layout, made, pair = fresh()
    lines += [repr(layout), repr(made), repr(pair), repr(pair.origin), repr(made.missing), repr(made.unused)]
    for pairs in made.values():
        lines += [digest(side.table()) for pair in pairs for side in (pair.src, pair.dst)]
    return "\n".join(lines)


def test_the_same_input_gives_the_same_bytes() -> None:
    assert everything() == everything()


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_another_interpreter_gives_the_same_bytes(hash_seed: str) -> None:
    """Strings hash otherwise there: no order may hang on it."""
    there = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__], env=there, capture_output=True, text=True, check=True)
    assert done.stdout == everything()


if __name__ == "__main__":
    sys.stdout.write(everything())
