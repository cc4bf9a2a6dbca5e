"""The same work in plain NumPy, as the author of a good connector would write it.

What does not change from request to request is made beforehand, here as in nixldesc. Nothing is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc import Layout

Ids = NDArray[np.int64]


class DescIds:
    """Descriptor ids of a layout in which each region takes one group: group by group, in it region by region."""

    def __init__(self, layout: Layout) -> None:
        firsts: dict[int, list[int]] = {}
        for region, first in zip(layout.regions, layout.starts.tolist(), strict=False):
            group, *more = region.groups or (0,)
            if more or region.sub_blocks > 1:
                raise ValueError(f"region {region.name!r}: one group and whole blocks only")
            firsts.setdefault(group, []).append(first)
        self._firsts = [np.array(firsts[group], dtype=np.int64)[:, None] for group in sorted(firsts)]

    def __call__(self, block_ids: Sequence[Any]) -> Ids:
        groups = zip(self._firsts, block_ids, strict=True)
        parts = [(firsts + np.asarray(ids, dtype=np.int64)).ravel() for firsts, ids in groups]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class DescIdsInto:
    """The least that NumPy can do: one addition of int32 into memory that is there already."""

    def __init__(self, layout: Layout) -> None:
        self._firsts = layout.starts[:-1].astype(np.int32)[:, None]

    def __call__(self, block_ids: NDArray[np.int32], out: NDArray[np.int32]) -> None:
        np.add(self._firsts, block_ids, out=out.reshape(len(self._firsts), -1))


def pair_desc_ids(src: DescIds, dst: DescIds, src_blocks: Any, dst_blocks: Any) -> tuple[Ids, Ids]:
    """Ids of both sides in merge order; the two tables of a group are equally long and start at one position."""
    ordered = [sort_pairs(np.asarray(s), np.asarray(d)) for s, d in zip(src_blocks, dst_blocks, strict=True)]
    return src([s for s, _ in ordered]), dst([d for _, d in ordered])


def sort_pairs(src: NDArray[Any], dst: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Pairs by ascending destination."""
    order = np.argsort(dst, kind="stable")
    return src[order], dst[order]


def dense_table(layout: Layout) -> NDArray[np.uint64]:
    """Every descriptor of a layout of whole blocks, N x 3."""
    parts = []
    for region in layout.regions:
        blocks = np.arange(region.num_blocks, dtype=np.uint64)
        addrs = np.uint64(region.base_addr) + blocks * np.uint64(region.block_stride)
        lens, devices = np.full_like(addrs, region.block_len), np.full_like(addrs, region.device_id)
        parts.append(np.column_stack([addrs, lens, devices]))
    return np.concatenate(parts)


def tuples(layout: Layout) -> list[tuple[int, int, int]]:
    """Every descriptor of a layout of whole blocks, a tuple each: what connectors hand to NIXL."""
    descs = []
    for region in layout.regions:
        for block in range(region.num_blocks):
            descs.append((region.base_addr + block * region.block_stride, region.block_len, region.device_id))
    return descs


def merged_ops(src: Layout, dst: Layout, src_ids: Ids, dst_ids: Ids) -> int:
    """Wire operations of ids within dense rows: a new one wherever either side does not step by one, or a row ends."""
    joined = (np.diff(src_ids) == 1) & (np.diff(dst_ids) == 1)
    for layout, ids in ((src, src_ids), (dst, dst_ids)):
        rows = np.searchsorted(layout.starts, ids, side="right")
        joined &= rows[1:] == rows[:-1]
    return len(src_ids) - int(np.count_nonzero(joined))


def moves(src: Layout, dst: Layout, src_ids: Ids, dst_ids: Ids) -> NDArray[np.uint64]:
    """Rows ``(src_addr, dst_addr, len)`` by looking the ids up in both dense tables."""
    src_rows, dst_rows = dense_table(src)[src_ids], dense_table(dst)[dst_ids]
    return np.column_stack([src_rows[:, 0], dst_rows[:, 0], dst_rows[:, 1]])
