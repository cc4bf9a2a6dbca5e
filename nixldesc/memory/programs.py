"""The static part of one layout's request, laid out once for the kernel.

::

    jobs     one per region (and group), in the order of the result: which flat, and the region's first desc id
    flats    one per distinct way in which blocks become ids relative to a region's start; layers of one kind share it
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc.kernels import _kernels
from nixldesc.memory.columns import Columns, id_form

__all__ = ["layout_program", "numbered"]


def layout_program(
    columns: Columns, forms: NDArray[np.int64], starts: NDArray[np.int64], order: str, num_lists: int
) -> _kernels.LayoutProgram:
    """Lay out ``Layout.desc_ids`` for so many lists: each (region, group) takes one flat, at the region's start."""
    limits = [-1] * num_lists
    flats: dict[tuple[int, ...], int] = {}
    flat_of: list[int] = []
    group_of: list[int] = []
    counts: list[int] = []
    numbers = (forms, columns.num_blocks, columns.sub_blocks, columns.runs)
    every = range(num_lists)
    for taken, form, blocks, subs, runs in zip(columns.groups, *(column.tolist() for column in numbers), strict=True):
        how = id_form(form, blocks, subs, runs)
        groups = every if taken is None else taken
        for group in groups:
            limits[group] = blocks if limits[group] < 0 else min(limits[group], blocks)
            flat_of.append(flats.setdefault((group, subs, *how), len(flats)))
        group_of += groups
        counts.append(len(groups))
    jobs = np.empty((len(flat_of), 2), dtype=np.int32)
    jobs[:, 0], jobs[:, 1] = flat_of, starts[:-1].repeat(counts)
    if order == "group":
        jobs = jobs[np.argsort(group_of, kind="stable")]
    return _kernels.LayoutProgram(
        np.array(limits, dtype=np.int64), np.array(list(flats), dtype=np.int64).reshape(-1, 6), jobs
    )


def numbered(items: tuple[Hashable, ...]) -> tuple[list[int], list[Any]]:
    """Return the number of each item, equal ones the same, and an item of each number.

    Mostly equal ones are one object, which may be long: each object is looked at once. The tuple keeps them alive.

    >>> numbered([(1, 2), None, (1, 2)])
    ([0, 1, 0], [(1, 2), None])
    """
    seen: dict[int, int] = {}
    known: dict[Any, int] = {}
    numbers = []
    for item in items:
        number = seen.get(id(item))
        if number is None:
            number = seen[id(item)] = known.setdefault(item, len(known))
        numbers.append(number)
    return numbers, list(known)
