"""Members x lanes become the columns of derived layouts: the two lists of a pair, nothing is made per region.

::

    template        lanes (dst offset, src offset, length):   k 0, 64, 64     v 64, 192, 64
    members         dst regions 0 1 2 ...  of base address    D0 D1 D2 ...     src regions 0 1 2 ...   S0 S1 S2 ...
    dst columns     base  D0+0  D0+64  D1+0  D1+64  ...       length 64 64 64 64 ...
    src columns     base  S0+64 S0+192 S1+64 S1+192 ...

All lanes of one source and one combination of memory types, in the order of the destination's regions and of the lanes
inside their blocks, are one pair.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc.kernels import _kernels
from nixldesc.memory.columns import ROWS, Columns, DerivedNames, Groups, Pages, made_columns
from nixldesc.memory.layout import Layout, proven_layout
from nixldesc.planning.families import Alike, Family
from nixldesc.planning.meeting import Deal, Meeting
from nixldesc.planning.template import Run
from nixldesc.request.blocks import Place, Places

__all__ = ["ListSide", "Lists", "Part", "lists_of"]

#: A side's lanes, uint64[6, lanes]: bytes from the block's start, length, sub_blocks, sub_stride, runs, run_stride.
Lanes: TypeAlias = NDArray[np.uint64]


class Part(NamedTuple):
    """The runs that one family gets from one source in one pair: which member each run comes from."""

    family: Family
    runs: tuple[Run, ...]
    members: tuple[int, ...]
    meetings: tuple[Meeting, ...]

    @property
    def regions(self) -> int:
        """How many regions the part adds to its pair."""
        return len(self.runs) * len(self.family.dst.regions)

    @property
    def pieces(self) -> int:
        """How many descriptors one block of each of its regions is."""
        each = zip(self.runs, self.meetings, strict=True)
        return sum([max(m.src_sub, m.dst_sub) * run.lane.runs for run, m in each]) * len(self.family.dst.regions)


@dataclass(slots=True, eq=False)
class ListSide:
    """One side of a pair, whatever the addresses: each column's region; column i is lane i modulo their number."""

    regions: NDArray[np.int64]
    lanes: Lanes
    groups: tuple[Groups, ...]
    mem_types: tuple[str, ...]
    pages: Pages
    plain: bool
    _latest: tuple[weakref.ref[Layout], weakref.ref[Layout]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ListSide, (self.regions, self.lanes, self.groups, self.mem_types, self.pages, self.plain)

    def over(self, layout: Layout) -> Layout:
        """Return the list over `layout`; of all peers' lists that are alike on this side the same one."""
        if self._latest is not None and self._latest[0]() is layout:
            made = self._latest[1]()
            if made is not None:
                return made
        columns = self.columns(layout)
        names = DerivedNames(layout.names, layout.columns, self.regions, columns)
        made = proven_layout(columns, names, self.pages, (layout.cp_rank, layout.cp_size, layout.cp_tokens))
        self._latest = weakref.ref(layout), weakref.ref(made)
        return made

    def columns(self, layout: Layout) -> Columns:
        """Return the columns of a list over `layout`."""
        whole = layout.columns
        numbers = np.empty((len(ROWS), len(self.regions)), dtype=np.uint64)
        if _kernels.fill_columns(whole.numbers, self.regions, self.lanes, numbers) < len(self.regions):
            raise IndexError("the list is of a layout with more regions")
        pieces = self._pieces(whole) if whole.pieces else {}
        return made_columns(numbers, self.mem_types, self.groups, pieces, self.plain and not pieces)

    def segmented(self, layout: Layout) -> int:
        """Return how many columns of a list over `layout` lie in several memories."""
        regions = sorted(layout.columns.pieces)
        return int(np.isin(self.regions, regions).sum()) if regions else 0

    def part(self, chunk: slice) -> ListSide:
        """Return the side of some of the columns."""
        columns = np.arange(len(self.regions))[chunk]
        lanes, pages = self.lanes.take(columns % self.lanes.shape[1], axis=1), Pages.none(len(columns))
        return ListSide(self.regions[chunk], lanes, self.groups[chunk], self.mem_types[chunk], pages, self.plain)

    def _pieces(self, whole: Columns) -> dict[int, NDArray[np.uint64]]:
        return {
            here: whole.pieces[there] + np.array([self.lanes[0, here % self.lanes.shape[1]], 0, 0], dtype=np.uint64)
            for here, there in enumerate(self.regions.tolist())
            if there in whole.pieces
        }


class Lists(NamedTuple):
    """Both sides of a pair, and for each region the sections that it carries and where its lists stand.

    `plain`: each region is one piece of a block on both sides.
    """

    sides: tuple[ListSide, ListSide]
    slots: tuple[tuple[int, ...], ...]
    places: tuple[Places, ...]
    plain: bool

    def part(self, chunk: slice) -> Lists:
        """Return the lists of some of the regions."""
        src, dst = self.sides
        return Lists((src.part(chunk), dst.part(chunk)), self.slots[chunk], self.places[chunk], self.plain)


def lists_of(parts: Sequence[Part]) -> Lists:
    """Members x lanes of all parts, in the order of the destination's regions."""
    sides = _Side(), _Side()
    slots: list[tuple[int, ...]] = []
    places: list[Places] = []
    src_plain = dst_plain = True
    for part in parts:
        family, count = part.family, len(part.family.dst.regions)
        sides[0].add([family.members[member].alike for member in part.members], _lanes(part, _at_src))
        sides[1].add([family.dst] * len(part.runs), _lanes(part, _at_dst))
        whole = max([run.lane.runs for run in part.runs]) == 1
        src_plain = src_plain and whole and max([meeting.src_sub for meeting in part.meetings]) == 1
        dst_plain = dst_plain and whole and max([meeting.dst_sub for meeting in part.meetings]) == 1
        slots += [run.lane.slots for run in part.runs] * count
        places += [places_of(meeting) for meeting in part.meetings] * count
    turn = None
    if len(parts) > 1:
        turn = np.argsort(sides[1].regions(), kind="stable")
        slots, places = [slots[i] for i in turn.tolist()], [places[i] for i in turn.tolist()]
    pages = Pages.none(len(slots))
    made = sides[0].made(turn, pages, src_plain), sides[1].made(turn, pages, dst_plain)
    return Lists(made, tuple(slots), tuple(places), src_plain and dst_plain)


def _at_src(run: Run, met: Meeting) -> tuple[int, int, int, int]:
    return run.lane.src, met.src_sub, run.src_sub_stride, run.lane.src_step


def _at_dst(run: Run, met: Meeting) -> tuple[int, int, int, int]:
    return run.lane.dst, met.dst_sub, run.dst_sub_stride, run.lane.dst_step


def _lanes(part: Part, at: Callable[[Run, Meeting], tuple[int, int, int, int]]) -> Lanes:
    rows = []
    for run, met in zip(part.runs, part.meetings, strict=True):
        start, subs, sub_stride, step = at(run, met)
        rows.append((start, run.lane.length, subs, sub_stride or run.lane.length, run.lane.runs, step))
    return np.array(list(zip(*rows, strict=True)), dtype=np.uint64)


class _Side:
    """Gathers one side of a pair, part by part."""

    def __init__(self) -> None:
        self._regions: list[NDArray[np.int64]] = []
        self._lanes: list[tuple[int, Lanes]] = []
        self._groups: list[Groups] = []
        self._mem_types: set[str] = set()

    def add(self, members: Sequence[Alike], lanes: Lanes) -> None:
        """Add members x lanes: `members` names for each lane the regions of the layout that have it."""
        regions = [alike.regions for alike in members]
        self._regions.append(regions[0] if len(regions) == 1 else np.array(regions).T.ravel())
        self._lanes.append((len(regions[0]), lanes))
        self._groups += [alike.groups for alike in members] * len(regions[0])
        self._mem_types.update([alike.mem_type for alike in members])

    def regions(self) -> NDArray[np.int64]:
        """Return each column's region, in the order in which they were added."""
        return self._regions[0] if len(self._regions) == 1 else np.concatenate(self._regions)

    def made(self, turn: NDArray[np.int64] | None, pages: Pages, plain: bool) -> ListSide:
        """Return the side, its columns in the order that `turn` says; `plain`: each is one piece of a block."""
        regions, lanes, groups = self.regions(), self._lanes[0][1], self._groups
        if turn is not None:
            each = [part if count == 1 else np.tile(part, count) for count, part in self._lanes]
            lanes = np.concatenate(each, axis=1).take(turn, axis=1)
            regions, groups = regions[turn], [groups[i] for i in turn.tolist()]
        (mem_type,) = self._mem_types
        return ListSide(regions, lanes, tuple(groups), (mem_type,) * len(regions), pages, plain)


def places_of(meeting: Meeting) -> Places:
    """Return where the two sides' lists stand, in sub-blocks; ranks dealt alike meet in their local tokens."""
    if meeting.src == meeting.dst:
        deal = meeting.src
        return Places(Place(), Place(), meeting.unit_tokens, Place(deal.rank, deal.size, deal.tokens or 1))
    return Places(_place(meeting.src, meeting), _place(meeting.dst, meeting), meeting.unit_tokens)


def _place(deal: Deal, meeting: Meeting) -> Place:
    return Place() if deal.size == 1 else Place(deal.rank, deal.size, deal.tokens // meeting.unit_tokens)
