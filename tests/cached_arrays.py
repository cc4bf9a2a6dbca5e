"""Arrays of every order and padding, and moves of bytes between them: what tests of `array_regions` share.

The oracle is NumPy: the array itself, indexed. Nothing here knows an address or a stride but NumPy's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from nixldesc import Layout, plan

Array = NDArray[Any]


@dataclass(frozen=True)
class Cache:
    """A view with a name for each dimension, and all the memory that it is a view of."""

    axes: tuple[str, ...]
    view: Array
    memory: Array = field(repr=False)

    def fill(self, seed: int) -> None:
        self.memory[...] = np.random.default_rng(seed).integers(0, 256, self.memory.shape, np.uint8)

    def by(self, *order: str) -> Array:
        """The view with its dimensions in another order."""
        return self.view.transpose([self.axes.index(axis) for axis in order])


def stored(axes: Sequence[str], sizes: Mapping[str, int], dtype: str, slack: Mapping[str, Sequence[int]]) -> Cache:
    """A cache whose memory has the dimensions in this order; `slack`: indices before, step, indices behind."""
    cuts = [slack.get(axis, (0, 1, 0)) for axis in axes]
    whole = [before + sizes[axis] * step + behind for axis, (before, step, behind) in zip(axes, cuts, strict=True)]
    array: Array = np.zeros(whole, dtype)
    memory = array.reshape(-1).view(np.uint8)
    index: list[Any] = [
        slice(before, before + sizes[axis] * step, step) for axis, (before, step, _) in zip(axes, cuts, strict=True)
    ]
    return Cache(tuple(axes), array[(*index, ...)], memory)


@st.composite
def caches(draw: st.DrawFn, sizes: Mapping[str, int], dtype: str) -> Cache:
    """A cache of these dimensions in any order of memory and any order of view; "byte" is innermost in memory."""
    inner = [axis for axis in sizes if axis == "byte"]
    order = draw(st.permutations([axis for axis in sizes if axis != "byte"]))
    if {"block", "token"} <= set(order) and order.index("token") < order.index("block"):
        order[order.index("block")], order[order.index("token")] = "token", "block"  # tokens lie inside a block
    spared = draw(st.lists(st.sampled_from(order), max_size=2, unique=True)) if order else []
    ends = st.integers(0, 2)
    slack = {axis: draw(st.tuples(ends, st.integers(1, 2), ends)) for axis in spared}
    cache = stored([*order, *inner], sizes, dtype, slack)
    seen = draw(st.permutations(cache.axes))
    return Cache(tuple(seen), cache.by(*seen), cache.memory)


def move(src: Layout, dst: Layout, src_blocks: Sequence[int], dst_blocks: Sequence[int]) -> None:
    """Plan, and really copy what the plan says for one request of one group."""
    deliver(src, dst, [src_blocks], [dst_blocks])


def deliver(src: Any, dst: Layout, src_tables: Any, dst_tables: Any, **how: Any) -> None:
    """The same for several groups, and for several sources by their rank."""
    for pairs in plan(dst, {0: src} if isinstance(src, Layout) else src, **how).values():
        for pair in pairs:
            src_ids, dst_ids = pair.desc_ids(src_tables, dst_tables)
            for src_addr, dst_addr, length in pair.moves(src_ids, dst_ids).tolist():
                ctypes.memmove(dst_addr, src_addr, length)
