"""Ranges of addresses: which meet, which hold another, and which of them descriptor ids name.

::

    registered   [---------------)      [--------)          sorted by first byte, the last byte so far beside it:
    a list            [-----)                [------)       one binary search per range, whatever their number
                      inside                 meets, is not inside
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc import Layout

__all__ = ["Range", "Spans", "joined", "named_bytes", "named_ranges"]

#: ``(addr, len, device_id, mem_type)``, as ``Layout.memory_ranges`` gives them.
Range: TypeAlias = tuple[int, int, int, str]
_Bounds: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.uint64]]


class Spans:
    """Ranges, each inside 2**64 and not empty, sorted per memory: first and last bytes (an end may be 2**64)."""

    __slots__ = ("_by_memory",)

    def __init__(self, ranges: Iterable[Range]) -> None:
        found: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for addr, size, device, mem_type in ranges:
            found.setdefault((device, mem_type), []).append((addr, addr + size - 1))
        self._by_memory: dict[tuple[int, str], _Bounds] = {}
        for memory, items in found.items():
            bounds = np.array(sorted(items), dtype=np.uint64)
            self._by_memory[memory] = bounds[:, 0].copy(), np.maximum.accumulate(bounds[:, 1])

    def meet(self, other: Spans) -> bool:
        """Whether any range here shares a byte with any of the other's."""
        for memory, (firsts, lasts) in self._by_memory.items():
            if memory in other._by_memory:
                theirs = other._by_memory[memory]
                # `lasts` is a running maximum, which widens a range only into one before it that reaches as far.
                if _reached(theirs, lasts, firsts).any():
                    return True
        return False

    def hold(
        self, device: int, mem_type: str, firsts: NDArray[np.uint64], lasts: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Say of each range, first to last byte, whether a single one of these holds it."""
        mine = self._by_memory.get((device, mem_type))
        if mine is None:
            return np.zeros(len(firsts), np.bool_)
        return _reached(mine, firsts, lasts)


def _reached(bounds: _Bounds, begun_by: NDArray[np.uint64], lasts_to: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Say of each (b, l) whether a range begins at b or before and has its last byte at l or after."""
    firsts, reach = bounds
    at = np.searchsorted(firsts, begun_by, side="right")
    found: NDArray[np.bool_] = (at > 0) & (reach[np.maximum(at, 1) - 1] >= lasts_to)
    return found


def _rows_of(layout: Layout, ids: NDArray[np.int32]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the table's row of each id, and how far into its row it is."""
    table = layout.table()
    ends = np.cumsum(table[:, 4])
    at = np.searchsorted(ends, ids, side="right")
    rows: NDArray[np.uint64] = table[at]
    into: NDArray[np.uint64] = ids.astype(np.uint64) - (ends[at] - rows[:, 4])
    return rows, into


def named_bytes(layout: Layout, ids: NDArray[np.int32]) -> int:
    """Return how many bytes the ids of a list name together."""
    return int(_rows_of(layout, ids)[0][:, 1].sum())


def named_ranges(layout: Layout, ids: NDArray[np.int32]) -> list[Range]:
    """Return the bytes that the ids of a list name, as ranges; neighbours are joined.

    >>> from nixldesc import Region
    >>> named_ranges(Layout([Region("k", 64, 16, 8)]), np.array([5, 0, 1], np.int32))
    [(64, 32, 0, 'VRAM'), (144, 16, 0, 'VRAM')]
    """
    rows, into = _rows_of(layout, ids)
    rows[:, 0] += into * rows[:, 3]
    mem_type = layout.regions[0].mem_type
    return joined((addr, size, device, mem_type) for addr, size, device in rows[:, :3].tolist())


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the same bytes in order, with as few ranges as it takes."""
    found: list[Range] = []
    for addr, size, device, mem_type in sorted(ranges, key=lambda item: (item[3], item[2], item[0])):
        if found:
            first, have, *memory = found[-1]
            if memory == [device, mem_type] and addr <= first + have:
                found[-1] = (first, max(have, addr + size - first), device, mem_type)
                continue
        found.append((addr, size, device, mem_type))
    return found
