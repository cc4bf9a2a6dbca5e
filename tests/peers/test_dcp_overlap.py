"""PyTorch's distributed checkpoint says where two shards of a tensor overlap: our plans move exactly that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nixldesc import Axis, Layout, Region, Section, plan

torch = pytest.importorskip("torch", reason="DCP is torch's; make test-peers has it")

from torch.distributed.checkpoint.metadata import ChunkStorageMetadata  # noqa: E402
from torch.distributed.checkpoint.resharding import (  # noqa: E402
    _check_shard_metadata_pair_overlap,
    _shards_get_overlap_region_wrt_saved_tensor,
)

ITEM = 4
Box = tuple[tuple[int, int], ...]


def cuts(size: int, parts: int) -> list[tuple[int, int]]:
    pieces = np.array_split(np.arange(size), parts)
    return [(int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece)]


@st.composite
def shardings(draw: st.DrawFn) -> tuple[list[Box], list[Box]]:
    """Both sides' shards of a tensor of up to four dimensions, any of which either side may cut."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))

    def side() -> list[Box]:
        boxes: list[Box] = [()]
        for size in shape:
            spans = cuts(size, draw(st.integers(1, 3)))
            boxes = [(*box, span) for box in boxes for span in spans]
        return boxes

    return side(), side()


def chunk(box: Box) -> Any:
    offsets, sizes = [start for start, _ in box], [stop - start for start, stop in box]
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def numbers(box: Box) -> Any:
    """Each item's place in the shard's own memory."""
    shape = [stop - start for start, stop in box]
    return np.arange(int(np.prod(shape))).reshape(shape)


def theirs(saved: list[Box], wanted: Box) -> dict[int, tuple[int, int]]:
    """Item of the wanted shard -> (saved shard, item there)."""
    found: dict[int, tuple[int, int]] = {}
    for number, box in enumerate(saved):
        if not _check_shard_metadata_pair_overlap(chunk(wanted), chunk(box)):
            continue
        here, there = numbers(wanted), numbers(box)
        for dim, at, to, size in _shards_get_overlap_region_wrt_saved_tensor(chunk(box), chunk(wanted)):
            there, here = there.take(range(at, at + size), dim), here.take(range(to, to + size), dim)
        for item, origin in zip(here.ravel().tolist(), there.ravel().tolist(), strict=True):
            assert item not in found
            found[item] = number, origin
    return found


def layout(box: Box) -> Layout:
    section = Section("w", [Axis(f"a{d}", *span) for d, span in enumerate(box)], ITEM)
    return Layout([Region("w", 0, section.nbytes, 1, sections=[section])])


def ours(saved: list[Box], wanted: Box) -> dict[int, tuple[int, int]]:
    """The same of our plan."""
    found: dict[int, tuple[int, int]] = {}
    for source, pairs in plan(layout(wanted), {n: layout(box) for n, box in enumerate(saved)}).items():
        for pair in pairs:
            for there, here, length in pair.moves(*pair.desc_ids([[0]], [[0]])).tolist():
                for at in range(0, length, ITEM):
                    assert (here + at) // ITEM not in found
                    found[(here + at) // ITEM] = source, (there + at) // ITEM
    return found


@given(shardings())
def test_shards_overlap_where_dcp_says(drawn: tuple[list[Box], list[Box]]) -> None:
    saved, wanted = drawn
    for box in wanted:
        assert ours(saved, box) == theirs(saved, box)
