"""The static part of one layout's request, laid out once for the kernel.

::

    jobs     one per region (and group), in the order of the result: which flat, and the region's first desc id
    flats    one per distinct way in which blocks become ids relative to a region's start; layers of one kind share it
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nixldesc.kernels import _kernels
from nixldesc.memory.region import Region

__all__ = ["layout_program", "uneven"]


def uneven(region: Region) -> int:
    """Return num_blocks where flat ids are ``k * num_blocks + block``, 0 where they are ``block * sub_blocks + k``."""
    return 0 if region.evenly_spaced else region.num_blocks


def layout_program(
    regions: Sequence[Region], starts: Sequence[int], order: str, num_lists: int
) -> _kernels.LayoutProgram:
    """Lay out ``Layout.desc_ids`` for so many lists: each (region, group) takes one flat, at the region's start."""
    limits = [-1] * num_lists
    flats: dict[tuple[int, int, int], int] = {}
    jobs: list[tuple[int, int, int, int]] = []
    for number, (region, start) in enumerate(zip(regions, starts, strict=False)):
        groups = range(num_lists) if region.groups is None else region.groups
        for turn, group in enumerate(groups):
            limits[group] = region.num_blocks if limits[group] < 0 else min(limits[group], region.num_blocks)
            flat = flats.setdefault((group, region.sub_blocks, uneven(region)), len(flats))
            rank = (number, turn) if order == "region" else (group, number)
            jobs.append((*rank, flat, start))
    jobs.sort()
    return _kernels.LayoutProgram(
        np.array(limits, dtype=np.int64),
        np.array(list(flats), dtype=np.int64).reshape(-1, 3),
        np.array([job[2:] for job in jobs], dtype=np.int32).reshape(-1, 2),
    )
