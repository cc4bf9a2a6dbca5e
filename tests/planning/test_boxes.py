"""Boxes of up to four axes, cut differently on both sides: one array of numbers and NumPy's slices are the oracle."""

from __future__ import annotations

import sys
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nixldesc import Axis, Layout, Region, Section, plan

ITEM = 4


def cuts(size: int, parts: int) -> list[tuple[int, int]]:
    """Where np.array_split cuts: empty shards are left out."""
    pieces = np.array_split(np.arange(size), parts)
    return [(int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece)]


def holder(boxes: list[Any], order: tuple[int, ...], base: int) -> tuple[Layout, list[Any]]:
    """A layout of one region for each box, its axes stored in `order`; and (base, box) of each."""
    regions, placed = [], []
    for i, box in enumerate(boxes):
        axes = [Axis(f"a{axis}", *box[axis]) for axis in order]
        section = Section("w", axes, ITEM)
        regions.append(Region(f"part{i}", base, section.nbytes, 1, sections=(section,)))
        placed.append((base, box))
        base += section.nbytes + 64
    return Layout(regions), placed


def memory_of(placed: list[Any], order: tuple[int, ...], whole: Any) -> dict[int, int]:
    """What each address of a side holds: the item's number in the whole array."""
    found: dict[int, int] = {}
    for base, box in placed:
        items = whole[tuple(slice(*span) for span in box)].transpose(order).ravel().tolist()
        found.update((base + i * ITEM, item) for i, item in enumerate(items))
    return found


def arrived(made: Any, source: dict[int, dict[int, int]]) -> dict[int, int]:
    """Move every item that the tables name; none may arrive twice."""
    found: dict[int, int] = {}
    for key, pairs in made.items():
        for pair in pairs:
            ids = pair.desc_ids([[0]], [[0]])
            for src, dst, length in pair.moves(*ids).tolist():
                for at in range(0, length, ITEM):
                    assert dst + at not in found
                    found[dst + at] = source[key][src + at]
    return found


@st.composite
def geometries(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    axes = range(len(shape))

    def side() -> tuple[list[Any], tuple[int, ...]]:
        spans = [cuts(size, draw(st.integers(1, 3))) for size in shape]
        boxes: list[Any] = [()]
        for span in spans:
            boxes = [(*box, piece) for box in boxes for piece in span]
        return boxes, tuple(draw(st.permutations(axes)))

    return shape, side(), side(), draw(st.integers(1, 3)), draw(st.integers(0, 10**6))


@given(geometries())
def test_every_item_of_every_box_arrives_once(drawn: Any) -> None:
    shape, (src_boxes, src_order), (dst_boxes, dst_order), ranks, seed = drawn
    whole = np.arange(prod(shape)).reshape(shape)
    random = np.random.default_rng(seed)
    srcs, source = {}, {}
    of_rank = random.integers(ranks, size=len(src_boxes)).tolist()
    for rank in range(ranks):
        # Every part has an owner, and some have others beside it: holders overlap in part.
        mine = [box for box, owner in zip(src_boxes, of_rank, strict=True) if owner == rank or random.random() < 0.3]
        if mine:
            srcs[rank], placed = holder(mine, src_order, 2**30 * (rank + 1))
            source[rank] = memory_of(placed, src_order, whole)
    wanted = [box for box in dst_boxes if random.random() < 0.7] or dst_boxes[:1]
    dst, placed = holder(wanted, dst_order, 2**40)
    made = plan(dst, srcs, dst_rank=0, dst_size=1)
    assert arrived(made, source) == memory_of(placed, dst_order, whole)


@pytest.mark.parametrize(("rows", "columns", "shards"), [(7, 5, 3), (6, 4, 4), (3, 11, 5)])
def test_flat_shards_are_up_to_three_boxes(rows: int, columns: int, shards: int) -> None:
    """FSDP's flat ranges of a matrix: the end of a row, whole rows, the start of a row."""
    whole = np.arange(rows * columns).reshape(rows, columns)
    srcs, source = {}, {}
    for rank, (start, stop) in enumerate(cuts(rows * columns, shards)):
        flat = [divmod(n, columns) for n in range(start, stop)]
        boxes = []
        first, last = flat[0][0], flat[-1][0]
        full = [row for row in range(first, last + 1) if sum(r == row for r, _ in flat) == columns]
        for row in [row for row in (first, last) if row not in full]:
            mine = [column for r, column in flat if r == row]
            box = ((row, row + 1), (mine[0], mine[-1] + 1))
            if box not in boxes:
                boxes.append(box)
        if full:
            boxes.append(((full[0], full[-1] + 1), (0, columns)))
        assert len(boxes) <= 3
        srcs[rank], placed = holder(boxes, (0, 1), 2**30 * (rank + 1))
        source[rank] = memory_of(placed, (0, 1), whole)
    dst, placed = holder([((0, rows), (1, columns))], (1, 0), 2**40)
    assert arrived(plan(dst, srcs), source) == memory_of(placed, (1, 0), whole)


def test_many_parts_meet_by_an_index() -> None:
    """Twice as many parts on both sides are about twice, not four times, as many steps."""

    def steps(parts: int) -> int:
        src, _ = holder([((2 * i, 2 * i + 2),) for i in range(parts)], (0,), 2**30)
        dst, _ = holder([((2 * i, 2 * i + 2),) for i in range(parts)], (0,), 2**40)
        count = 0

        def tally(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(tally)
        try:
            plan(dst, {0: src})
        finally:
            sys.setprofile(None)
        return count

    assert steps(1024) < 2.5 * steps(512)


def test_experts_dealt_at_random_fill_one_stack() -> None:
    """4,096 allocations on four ranks, none of which says which reader this is: nobody holds what another holds."""
    order = list(range(4096))
    Random(1).shuffle(order)

    def expert(number: int, base: int) -> Region:
        section = Section("w", [Axis("expert", number, number + 1), Axis("x", 0, 8)], 1)
        return Region(f"w{number}", base, 8, 1, sections=[section])

    srcs = {rank: Layout([expert(e, 16 * i) for i, e in enumerate(order[rank::4])]) for rank in range(4)}
    stack = Section("w", [Axis("expert", 0, 4096), Axis("x", 0, 8)], 1)
    for senders in ("one", "all"):
        made = plan(Layout([Region("w", 0, 4096 * 8, 1, sections=[stack])]), srcs, senders=senders)
        moved = set()
        for rank, pairs in made.items():
            for pair in pairs:
                for src_addr, dst_addr, length in pair.moves(*pair.desc_ids([[0]], [[0]])).tolist():
                    assert (order[rank::4][src_addr // 16], length) == (dst_addr // 8, 8)
                    moved.add(dst_addr // 8)
        assert moved == set(range(4096))
