"""Where the regions of a pair come from: names for words and for whoever looks, made when somebody does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from nixldesc.memory.layout import Layout

__all__ = ["Origin", "Origins"]

#: Where a region of a pair comes from: (src region, dst region, section names).
Origin = tuple[str, str, tuple[str, ...]]


class Origins(Sequence[Origin]):
    """Region i of a pair is a piece of these regions, by number, and carries these slots of the destination's page."""

    __slots__ = ("_dst", "_dst_regions", "_slots", "_src", "_src_regions")

    def __init__(
        self,
        src: Layout,
        dst: Layout,
        src_regions: NDArray[Any],
        dst_regions: NDArray[Any],
        slots: Sequence[tuple[int, ...]],
    ) -> None:
        self._src, self._src_regions = src, src_regions
        self._dst, self._dst_regions, self._slots = dst, dst_regions, slots

    def __len__(self) -> int:
        return len(self._slots)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (tuple, Origins)) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple([self[i] for i in range(*index.indices(len(self)))])
        there, here = int(self._src_regions[index]), int(self._dst_regions[index])
        named = self._dst.pages.names[here]
        return self._src.names[there], self._dst.names[here], tuple([named[slot] for slot in self._slots[index]])
