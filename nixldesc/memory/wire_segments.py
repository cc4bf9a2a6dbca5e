"""The segments of a message: columns of a region in several memories, each told as briefly as it can be.

::

    "segments": {"2": [base_addrs, num_blocks, device_ids]}        keyed by the region's number

    a column      0                                                one number for all segments
                  {"first": 1000, "step": 1, "count": 50000}       evenly ascending: objects that are numbered through
                  [0, 131072, 65536]                               anything else

Everything that comes in is a stranger's word: 50,000 segments may be told in a dozen bytes, so their number is bounded
before it becomes memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, brief
from nixldesc.errors import GeometryError
from nixldesc.memory.proof import MAX_ROWS

__all__ = ["read_segments", "segments_to_dict"]

_STEPS = ("first", "step", "count")


def segments_to_dict(pieces: Mapping[int, NDArray[np.uint64]]) -> dict[str, Any]:
    """Return the segments of all regions that have several."""
    return {str(region): [_told(column) for column in rows.T] for region, rows in pieces.items()}


def _told(column: NDArray[np.uint64]) -> Any:
    first, second = column[:2].tolist()
    if first == second and (column == column[0]).all():
        return first
    if first < second:
        step = second - first
        # Wrapped differences cannot pass for steps: the last one would have to leave 64 bits.
        if first + (len(column) - 1) * step < 2**64 and (np.diff(column) == np.uint64(step)).all():
            return {"first": first, "step": step, "count": len(column)}
    return column.tolist()


def read_segments(value: Any, regions: int) -> dict[int, NDArray[np.uint64]]:
    """Return the segments by region, uint64[n, 3]; their geometry is proven where a Layout is made."""
    if not isinstance(value, dict):
        raise GeometryError(f"layout: segments must be a dict, got {brief(value)}")
    found: dict[int, NDArray[np.uint64]] = {}
    budget = MAX_ROWS
    for key, item in value.items():
        if not isinstance(key, str) or not key.isdecimal() or len(key) > 9 or int(key) >= regions:
            raise GeometryError(f"layout: segments: {brief(key)} is no number of a region, there are {regions}")
        what = f"layout: segments of region {key}"
        if not isinstance(item, (list, tuple)) or len(item) != 3:
            raise GeometryError(f"{what} must be [base_addrs, num_blocks, device_ids], got {brief(item)}")
        if int(key) in found:
            raise GeometryError(f"{what} are told twice")
        counts = [_count(column, what) for column in item]
        size = max(counts)
        if size < 2 or any(count not in (0, size) for count in counts):
            raise GeometryError(f"{what}: columns of {', '.join(map(str, counts))} entries, 0 standing for one of all")
        budget -= size
        if budget < 0:
            raise GeometryError(f"{what}: more than {MAX_ROWS} segments")
        rows = np.empty((size, 3), dtype=np.uint64)
        for place, column in enumerate(item):
            rows[:, place] = _column(column, what)
        found[int(key)] = rows
    return found


def _count(column: Any, what: str) -> int:
    """Return how many entries a column says that it has, 0 where one number stands for all."""
    if isinstance(column, (list, tuple)):
        if not column:
            raise GeometryError(f"{what}: a column is empty")
        return len(column)
    if not isinstance(column, dict):
        as_int(column, what)
        return 0
    if set(column) != set(_STEPS):
        raise GeometryError(f"{what}: a column in steps has the keys first, step and count, got {brief(column)}")
    count = as_int(column["count"], f"{what}: count")
    if not 2 <= count <= MAX_ROWS:
        raise GeometryError(f"{what}: count must be in 2 to {MAX_ROWS}, got {brief(count)}")
    return count


def _column(column: Any, what: str) -> Any:
    """Return a column's numbers, all of them in 0 to 2**64 - 1."""
    if isinstance(column, dict):
        first, step, count = (as_int(column[word], f"{what}: {word}") for word in _STEPS)
        _prove_range(first, first + (count - 1) * step, what)
        if step < 0:
            raise GeometryError(f"{what}: step must not be negative, got {brief(step)}")
        return np.uint64(first) + np.uint64(step) * np.arange(count, dtype=np.uint64)
    numbers: Sequence[int] = column if isinstance(column, (list, tuple)) else (column,)
    if set(map(type, numbers)) - {int}:
        numbers = [as_int(number, f"{what}, entry {i}") for i, number in enumerate(numbers)]
    _prove_range(min(numbers), max(numbers), what)
    return np.array(numbers, dtype=np.uint64)


def _prove_range(low: int, high: int, what: str) -> None:
    if low < 0 or high >= 2**64:
        raise GeometryError(f"{what}: numbers must be in 0 to 2**64 - 1, got {brief(low if low < 0 else high)}")
