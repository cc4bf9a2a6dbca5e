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
from numpy.typing import NDArray

from nixldesc.errors import BlockIdError
from nixldesc.kernels import _kernels
from nixldesc.memory.columns import ONE, IdForm, id_form
from nixldesc.memory.layout import Layout
from nixldesc.memory.programs import numbered
from nixldesc.request.blocks import Place, Places
from nixldesc.request.origins import Origin

__all__ = ["Align", "Compiled", "pair_program"]

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


class _Kind(NamedTuple):
    """What a region's side of a pair must share with another's so that their ids differ by their starts alone."""

    groups: tuple[int, ...] | None
    sub_blocks: int
    form: IdForm


class Compiled(NamedTuple):
    """A pair's program; for the words of an error also its aligns, and which flat and region each job is.

    Programs of equal `kin` give equal ids for equal lists.
    """

    program: _kernels.PairProgram
    aligns: list[Align]
    flats: list[tuple[int, ...]]
    flat_of: Sequence[int]
    regions: Sequence[int]
    kin: bytes

    def jobs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield flat and region of jobs `first` to `last`."""
        return zip(self.flat_of[first:last], self.regions[first:last], strict=True)

    def groups(self, side: int, first: int, last: int) -> set[int]:
        """Return the groups whose lists jobs `first` to `last` read on a side."""
        flats = {self.flats[flat][:2] for flat in set(self.flat_of[first:last])}
        return {align[side] for start, count in flats for align in self.aligns[start : start + count]}


def pair_program(
    sides: tuple[Layout, Layout],
    places: tuple[Places, ...],
    origin: Sequence[Origin],
    chosen: Sequence[int],
    num_src: int,
    num_dst: int,
) -> Compiled:
    """Lay out ``DlistPair.desc_ids`` for so many lists and the regions `chosen`, by number."""
    if max(num_src, num_dst) > 1:
        _prove_one_kind(places, sides, origin)
    aligns: list[Align] = []
    flats: dict[tuple[int, int, int], int] = {}
    rows: list[tuple[int, ...]] = []
    flat_of: list[int] = []
    met_groups: dict[Any, list[tuple[int, int]]] = {}
    (src_of, src_kinds), (dst_of, dst_kinds), (place_of, _) = (*map(_kinds_of, sides), numbered(places))
    for number in chosen:
        kind = src_of[number], dst_of[number], place_of[number]
        flat = flats.setdefault(kind, len(flats))
        if flat == len(rows):
            src, dst, place = src_kinds[kind[0]], dst_kinds[kind[1]], places[number]
            groups = (src.groups, dst.groups)
            if groups not in met_groups:
                met_groups[groups] = _met_groups(*groups, origin[number], num_src, num_dst)
            meeting = *_dealt(place.src), *_dealt(place.dst), *_dealt(place.deal), place.unit_tokens
            met = [Align(*pair, src.sub_blocks, dst.sub_blocks, *meeting) for pair in met_groups[groups]]
            forms = [(form.uneven, form.outer_step, form.run_step) for form in (src.form, dst.form)]
            rows.append((len(aligns), len(met), dst.form.runs, *forms[0], *forms[1]))
            aligns += met
        flat_of.append(flat)
    parts = (
        np.array(aligns, dtype=np.int64).reshape(-1, 14),
        np.array(rows, dtype=np.int64).reshape(-1, 9),
        _jobs(sides, flat_of, chosen),
    )
    kin = b"".join(part.tobytes() for part in parts)
    return Compiled(_kernels.PairProgram(*parts, num_src, num_dst), aligns, rows, flat_of, chosen, kin)


def _jobs(sides: tuple[Layout, Layout], flat_of: Sequence[int], chosen: Sequence[int]) -> NDArray[np.int32]:
    """Return for each region its flat, and on either side its first desc id and its blocks."""
    jobs = np.empty((len(chosen), 5), dtype=np.int32)
    jobs[:, 0] = flat_of
    for i, layout in enumerate(sides):
        jobs[:, 1 + i] = layout.starts[:-1].take(chosen)
        jobs[:, 3 + i] = layout.columns.num_blocks.take(chosen)
    return jobs


def _prove_one_kind(places: Sequence[Places], sides: tuple[Layout, Layout], origin: Sequence[Origin]) -> None:
    """Refuse several lists where every region takes each of them and the regions' blocks are of unlike kinds."""
    kinds: dict[bool, int] = {}
    for number, (place, *groups) in enumerate(zip(places, *[layout.columns.groups for layout in sides], strict=True)):
        if groups == [None, None]:
            kinds.setdefault(place.unit_tokens > 0, number)
    if len(kinds) == 2:
        tokens, whole = origin[kinds[True]][1], origin[kinds[False]][1]
        raise BlockIdError(
            f"several lists are given, and regions {tokens!r} (blocks of tokens) and {whole!r} (blocks without tokens, "
            f"a state) take every one of them, so a state's block would be moved as a block of tokens: say groups= of "
            f"both regions, on both sides"
        )


def _kinds_of(layout: Layout) -> tuple[Sequence[int], list[_Kind]]:
    """Return the number of each region's kind, and the kinds."""
    columns = layout.columns
    taken, groups = numbered(columns.groups)
    if columns.plain:
        return taken, [_Kind(of, 1, id_form(ONE, 1, 1, 1)) for of in groups]
    known: dict[Any, int] = {}
    numbers = (layout.forms, columns.num_blocks, columns.sub_blocks, columns.runs)
    kinds = []
    for of, form, blocks, subs, runs in zip(taken, *(column.tolist() for column in numbers), strict=True):
        kinds.append(known.setdefault((of, subs, id_form(form, blocks, subs, runs)), len(known)))
    return kinds, [_Kind(groups[of], subs, form) for of, subs, form in known]


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
