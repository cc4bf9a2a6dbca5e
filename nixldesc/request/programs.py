"""The static part of a request, laid out once for the kernels: what they need of regions as rows of integers.

::

    jobs     one per region (and group), in the order of the result: which flat, and the region's first desc id
    flats    one per distinct way in which blocks become ids relative to a region's start; layers of one kind share it
    aligns   (of a pair) one per way in which a source and a destination list meet

A model of 64 equal layers is 64 jobs, one flat and one align: its lists are read, met and sorted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from nixldesc.errors import BlockIdError
from nixldesc.kernels import _kernels
from nixldesc.memory.programs import uneven
from nixldesc.memory.region import Region
from nixldesc.request.blocks import Places

__all__ = ["Compiled", "pair_program"]


class Compiled(NamedTuple):
    """A pair's program, and its aligns for the words of an error."""

    program: _kernels.PairProgram
    aligns: list[tuple[int, ...]]


def pair_program(regions: Iterable[tuple[Region, Region, Places, int, int]], num_src: int, num_dst: int) -> Compiled:
    """Lay out ``DlistPair.desc_ids`` for so many lists; `regions`: (src, dst, places, src start, dst start) of each."""
    aligns: list[tuple[int, ...]] = []
    flats: dict[tuple[Any, ...], int] = {}
    rows: list[tuple[int, int, int, int]] = []
    jobs: list[tuple[int, int, int, int, int]] = []
    for src, dst, place, src_start, dst_start in regions:
        met = tuple(
            (*groups, src.sub_blocks, dst.sub_blocks, *place.src, *place.dst)
            for groups in _met_groups(src, dst, num_src, num_dst)
        )
        flat = flats.setdefault((met, uneven(src), uneven(dst)), len(flats))
        if flat == len(rows):
            rows.append((len(aligns), len(met), uneven(src), uneven(dst)))
            aligns += met
        jobs.append((flat, src_start, dst_start, src.num_blocks, dst.num_blocks))
    program = _kernels.PairProgram(
        np.array(aligns, dtype=np.int64).reshape(-1, 8),
        np.array(rows, dtype=np.int64).reshape(-1, 4),
        np.array(jobs, dtype=np.int32).reshape(-1, 5),
        num_src,
        num_dst,
    )
    return Compiled(program, aligns)


def _met_groups(src: Region, dst: Region, num_src: int, num_dst: int) -> list[tuple[int, int]]:
    """Return which lists of the two sides meet in a pair of regions: the i-th with the i-th."""
    sides = (("src_blocks", src, num_src), ("dst_blocks", dst, num_dst))
    taken = []
    for what, region, given in sides:
        groups = list(range(given)) if region.groups is None else list(region.groups)
        if max(groups, default=-1) >= given:
            raise BlockIdError(
                f"{what} has {given} lists, but region {region.name!r} takes group {max(groups)}; give one list per "
                f"group, an empty one where there is nothing"
            )
        taken.append(groups)
    if len(taken[0]) != len(taken[1]):
        raise BlockIdError(
            f"source region {src.name!r} takes {len(taken[0])} groups and destination region {dst.name!r} "
            f"{len(taken[1])}: they meet one to one"
        )
    return list(zip(*taken, strict=True))
