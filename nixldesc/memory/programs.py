"""The static part of one layout's request, laid out once for the kernel.

::

    jobs     one per region (and group), in the order of the result: which flat, and the region's first desc id
    flats    one per distinct way in which blocks become ids relative to a region's start; layers of one kind share it
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nixldesc.kernels import _kernels
from nixldesc.memory.columns import Columns, id_form

__all__ = ["layout_program"]


def layout_program(
    columns: Columns, forms: NDArray[np.int64], starts: NDArray[np.int64], order: str, num_lists: int
) -> _kernels.LayoutProgram:
    """Lay out ``Layout.desc_ids`` for so many lists: each (region, group) takes one flat, at the region's start."""
    limits = [-1] * num_lists
    flats: dict[tuple[int, ...], int] = {}
    jobs: list[tuple[int, int, int, int]] = []
    numbers = (forms, columns.num_blocks, columns.sub_blocks, columns.runs, starts)
    rows = zip(columns.groups, *(column.tolist() for column in numbers), strict=False)
    for number, (taken, form, blocks, subs, runs, start) in enumerate(rows):
        how = id_form(form, blocks, subs, runs)
        for turn, group in enumerate(range(num_lists) if taken is None else taken):
            limits[group] = blocks if limits[group] < 0 else min(limits[group], blocks)
            flat = flats.setdefault((group, subs, *how), len(flats))
            rank = (number, turn) if order == "region" else (group, number)
            jobs.append((*rank, flat, start))
    jobs.sort()
    return _kernels.LayoutProgram(
        np.array(limits, dtype=np.int64),
        np.array(list(flats), dtype=np.int64).reshape(-1, 6),
        np.array([job[2:] for job in jobs], dtype=np.int32).reshape(-1, 2),
    )
