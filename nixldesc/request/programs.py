"""The static part of a request, laid out once for the kernels: what they need of regions as rows of integers.

::

    jobs     one per region, in the order of the result: which flat, and the region's first desc id on each side
    flats    one per distinct way in which blocks become ids relative to a region's start; layers of one kind share it
    aligns   one per way in which a source and a destination list meet

A model of 64 equal layers is 64 jobs, one flat and one align: its lists are read, met and sorted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nixldesc.errors import BlockIdError
from nixldesc.kernels import _kernels
from nixldesc.memory.columns import IdForm, id_form
from nixldesc.memory.layout import Layout
from nixldesc.request.blocks import Place, Places

__all__ = ["Align", "Compiled", "Origin", "pair_program"]

#: Where a region of a pair comes from: (src region, dst region, section names).
Origin = tuple[str, str, tuple[str, ...]]

#: A grain that holds any sequence: with one rank there is nothing to deal.
_ONE_GRAIN = 2**62


class Align(NamedTuple):
    """How two lists meet; the kernels' ``Align``."""

    src_group: int
    dst_group: int
    src_sub: int
    dst_sub: int
    src_first: int
    src_every: int
    src_grain: int
    dst_first: int
    dst_every: int
    dst_grain: int
    deal_first: int
    deal_every: int
    deal_grain: int
    unit_tokens: int

    @property
    def dealt(self) -> bool:
        """Whether a list holds only some of the sequence's tokens, by context parallelism."""
        return max(self.src_every, self.dst_every, self.deal_every) > 1


class _Side(NamedTuple):
    """A region's side of a pair."""

    groups: tuple[int, ...] | None
    num_blocks: int
    sub_blocks: int
    form: IdForm
    start: int


class Compiled(NamedTuple):
    """A pair's program; for the words of an error also its aligns, and which flat and region each job is.

    Programs of equal `kin` give equal ids for equal lists.
    """

    program: _kernels.PairProgram
    aligns: list[Align]
    flats: list[tuple[int, ...]]
    jobs: list[tuple[int, int]]
    kin: bytes

    def groups(self, side: int, first: int, last: int) -> set[int]:
        """Return the groups whose lists jobs `first` to `last` read on a side."""
        flats = {self.flats[flat][:2] for flat, _ in self.jobs[first:last]}
        return {align[side] for start, count in flats for align in self.aligns[start : start + count]}


def pair_program(
    sides: tuple[Layout, Layout],
    places: Sequence[Places],
    origin: Sequence[Origin],
    chosen: Sequence[int],
    num_src: int,
    num_dst: int,
) -> Compiled:
    """Lay out ``DlistPair.desc_ids`` for so many lists and the regions `chosen`, by number."""
    aligns: list[Align] = []
    flats: dict[tuple[Any, ...], int] = {}
    rows: list[tuple[int, ...]] = []
    jobs: list[tuple[int, int, int, int, int]] = []
    numbers: list[tuple[int, int]] = []
    met_groups: dict[Any, list[tuple[int, int]]] = {}
    regions = list(zip(places, *map(_sides_of, sides), strict=True))
    if max(num_src, num_dst) > 1:
        _prove_one_kind(places, regions, origin)
    for number in chosen:
        place, src, dst = regions[number]
        groups = (src.groups, dst.groups)
        if groups not in met_groups:
            met_groups[groups] = _met_groups(*groups, origin[number], num_src, num_dst)
        flat = flats.setdefault((groups, src[2:4], dst[2:4], place), len(flats))
        if flat == len(rows):
            meeting = *_dealt(place.src), *_dealt(place.dst), *_dealt(place.deal), place.unit_tokens
            met = [Align(*pair, src.sub_blocks, dst.sub_blocks, *meeting) for pair in met_groups[groups]]
            forms = [(form.uneven, form.outer_step, form.run_step) for form in (src.form, dst.form)]
            rows.append((len(aligns), len(met), dst.form.runs, *forms[0], *forms[1]))
            aligns += met
        jobs.append((flat, src.start, dst.start, src.num_blocks, dst.num_blocks))
        numbers.append((flat, number))
    parts = (
        np.array(aligns, dtype=np.int64).reshape(-1, 14),
        np.array(rows, dtype=np.int64).reshape(-1, 9),
        np.array(jobs, dtype=np.int32).reshape(-1, 5),
    )
    kin = b"".join(part.tobytes() for part in parts)
    return Compiled(_kernels.PairProgram(*parts, num_src, num_dst), aligns, rows, numbers, kin)


def _prove_one_kind(places: Sequence[Places], parts: Sequence[Any], origin: Sequence[Origin]) -> None:
    """Refuse several lists where every region takes each of them and the regions' blocks are of unlike kinds."""
    every = [number for number, (_, src, dst) in enumerate(parts) if src.groups is None and dst.groups is None]
    kinds = {places[number].unit_tokens > 0: number for number in reversed(every)}
    if len(kinds) == 2:
        tokens, whole = origin[kinds[True]][1], origin[kinds[False]][1]
        raise BlockIdError(
            f"several lists are given, and regions {tokens!r} (blocks of tokens) and {whole!r} (blocks without tokens, "
            f"a state) take every one of them, so a state's block would be moved as a block of tokens: say groups= of "
            f"both regions, on both sides"
        )


def _sides_of(layout: Layout) -> Iterator[_Side]:
    columns = layout.columns
    numbers = (columns.num_blocks, columns.sub_blocks, columns.runs, layout.forms, layout.starts)
    rows = zip(columns.groups, *(column.tolist() for column in numbers), strict=False)
    for groups, blocks, subs, runs, form, start in rows:
        yield _Side(groups, blocks, subs, id_form(form, blocks, subs, runs), start)


def _dealt(place: Place) -> tuple[int, int, int]:
    return (place.first, place.every, place.grain) if place.every > 1 else (0, 1, _ONE_GRAIN)


def _met_groups(
    src: tuple[int, ...] | None, dst: tuple[int, ...] | None, origin: Origin, num_src: int, num_dst: int
) -> list[tuple[int, int]]:
    """Return which lists of the two sides meet in a pair of regions: the i-th with the i-th."""
    src_name, dst_name, _ = origin
    taken = []
    for what, groups, name, given in (("src_blocks", src, src_name, num_src), ("dst_blocks", dst, dst_name, num_dst)):
        numbers = range(given) if groups is None else groups
        if max(numbers, default=-1) >= given:
            raise BlockIdError(
                f"{what} has {given} lists, but region {name!r} takes group {max(numbers)}; give one list per group, "
                f"an empty one where there is nothing"
            )
        taken.append(numbers)
    if len(taken[0]) != len(taken[1]):
        raise BlockIdError(
            f"source region {src_name!r} takes {len(taken[0])} groups and destination region {dst_name!r} "
            f"{len(taken[1])}: they meet one to one"
        )
    return list(zip(*taken, strict=True))
