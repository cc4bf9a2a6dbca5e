"""The static part of a request, laid out once for the kernels: what they need of regions as rows of integers.

::

    jobs     one per region (and group), in the order of the result: which flat, and the region's first desc id
    flats    one per distinct way in which blocks become ids relative to a region's start; layers of one kind share it
    aligns   (of a pair) one per way in which a source and a destination list meet

A model of 64 equal layers is 64 jobs, one flat and one align: its lists are read, met and sorted once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nixldesc.errors import BlockIdError
from nixldesc.kernels import _kernels
from nixldesc.memory.columns import id_form
from nixldesc.memory.layout import Layout
from nixldesc.request.blocks import Places

__all__ = ["Compiled", "pair_program"]


class Compiled(NamedTuple):
    """A pair's program, and its aligns for the words of an error."""

    program: _kernels.PairProgram
    aligns: list[tuple[int, ...]]


def pair_program(src: Layout, dst: Layout, places: Sequence[Places], num_src: int, num_dst: int) -> Compiled:
    """Lay out ``DlistPair.desc_ids`` for so many lists."""
    aligns: list[tuple[int, ...]] = []
    flats: dict[tuple[Any, ...], int] = {}
    rows: list[tuple[int, ...]] = []
    jobs: list[tuple[int, int, int, int, int]] = []
    sides = [
        zip(
            layout.columns.groups,
            layout.columns.num_blocks.tolist(),
            layout.columns.sub_blocks.tolist(),
            layout.columns.runs.tolist(),
            layout.forms.tolist(),
            layout.starts.tolist(),
            strict=False,
        )
        for layout in (src, dst)
    ]
    met_groups: dict[Any, list[tuple[int, int]]] = {}
    for number, (place, mine, theirs) in enumerate(zip(places, *sides, strict=True)):
        src_groups, src_blocks, src_sub, runs, src_form, src_start = mine
        dst_groups, dst_blocks, dst_sub, _, dst_form, dst_start = theirs
        groups = (src_groups, dst_groups)
        if groups not in met_groups:
            met_groups[groups] = _met_groups(src, dst, number, num_src, num_dst)
        there, here = id_form(src_form, src_blocks, src_sub, runs), id_form(dst_form, dst_blocks, dst_sub, runs)
        key = (groups, src_sub, dst_sub, place, there, here)
        flat = flats.setdefault(key, len(flats))
        if flat == len(rows):
            met = [(*pair, src_sub, dst_sub, *place.src[:2], *place.dst[:2]) for pair in met_groups[groups]]
            rows.append((len(aligns), len(met), there.uneven, here.uneven, runs, *there[2:], *here[2:]))
            aligns += met
        jobs.append((flat, src_start, dst_start, src_blocks, dst_blocks))
    program = _kernels.PairProgram(
        np.array(aligns, dtype=np.int64).reshape(-1, 8),
        np.array(rows, dtype=np.int64).reshape(-1, 9),
        np.array(jobs, dtype=np.int32).reshape(-1, 5),
        num_src,
        num_dst,
    )
    return Compiled(program, aligns)


def _met_groups(src: Layout, dst: Layout, number: int, num_src: int, num_dst: int) -> list[tuple[int, int]]:
    """Return which lists of the two sides meet in a pair of regions: the i-th with the i-th."""
    sides = (("src_blocks", src, num_src), ("dst_blocks", dst, num_dst))
    taken = []
    for what, layout, given in sides:
        region = layout.columns.groups[number]
        groups = list(range(given)) if region is None else list(region)
        if max(groups, default=-1) >= given:
            raise BlockIdError(
                f"{what} has {given} lists, but region {layout.names[number]!r} takes group {max(groups)}; give one "
                f"list per group, an empty one where there is nothing"
            )
        taken.append(groups)
    if len(taken[0]) != len(taken[1]):
        raise BlockIdError(
            f"source region {src.names[number]!r} takes {len(taken[0])} groups and destination region "
            f"{dst.names[number]!r} {len(taken[1])}: they meet one to one"
        )
    return list(zip(*taken, strict=True))
