"""From templates to pairs: members x lanes become the columns of derived layouts, nothing is made per region.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc.errors import GeometryError, PeerMismatchError
from nixldesc.kernels import _kernels
from nixldesc.memory.columns import ROWS, Columns, DerivedNames, Pages, made_columns
from nixldesc.memory.layout import Layout, proven_layout
from nixldesc.memory.proof import MAX_BLOCK_PIECES, MAX_DESCS
from nixldesc.planning.families import Source
from nixldesc.planning.limits import MAX_LANES
from nixldesc.planning.meeting import Deal, Meeting
from nixldesc.planning.template import Run, Template
from nixldesc.request.blocks import Place, Places
from nixldesc.request.pair import DlistPair, Origin, derived_pair

__all__ = ["Room", "Sending", "is_small", "pair_of", "pairs_of", "sendings_of"]

#: Rows of all tables of a plan, both sides; bounds what two strangers' layouts can make a plan build.
MAX_ROWS = 2**19
#: Regions of a plan's lists that lie in several memories, each an array of its own: half a kilobyte.
MAX_SEGMENTED = 2**15

#: A side's lanes, uint64[6, lanes]: bytes from the block's start, length, sub_blocks, sub_stride, runs, run_stride.
Lanes: TypeAlias = NDArray[np.uint64]


class Part(NamedTuple):
    """The runs that one template sends from one source in one pair: which member each run comes from."""

    template: Template
    runs: tuple[Run, ...]
    members: tuple[int, ...]
    meetings: tuple[Meeting, ...]

    @property
    def lanes(self) -> int:
        """How many regions the part adds to its pair."""
        return len(self.runs) * len(self.template.family.dst)

    @property
    def pieces(self) -> int:
        """How many descriptors one block of each of its regions is."""
        each = zip(self.runs, self.meetings, strict=True)
        return sum([max(m.src_sub, m.dst_sub) * run.lane.runs for run, m in each]) * len(self.template.family.dst)


class Sending:
    """What one source sends in one combination of memory types: the recipe of a pair.

    `lists`: what both lists are, whatever the addresses; worked out when first asked for.
    """

    __slots__ = ("_lists", "mem_types", "parts", "source")

    def __init__(self, source: int, mem_types: tuple[str, str], parts: tuple[Part, ...]) -> None:
        self.source, self.mem_types, self.parts = source, mem_types, parts
        self._lists: Lists | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Sending, (self.source, self.mem_types, self.parts)

    @property
    def num_lanes(self) -> int:
        """How many regions the recipe makes."""
        return sum([part.lanes for part in self.parts])

    def lists(self, src: Layout, dst: Layout) -> Lists:
        """Return what the lists are, for layouts of the shape that the recipe was made for."""
        if self._lists is None:
            self._lists = _lists_of(self, src, dst)
        return self._lists


@dataclass(slots=True, eq=False)
class ListSide:
    """One side of a pair, whatever the addresses: each column's region; column i is lane i modulo their number."""

    regions: NDArray[np.int64]
    lanes: Lanes
    groups: tuple[tuple[int, ...] | None, ...]
    mem_types: tuple[str, ...]
    pages: Pages
    plain: bool
    _latest: tuple[weakref.ref[Layout], weakref.ref[Layout]] | None = None

    def over(self, layout: Layout) -> Layout:
        """Return the list over `layout`; of all peers' lists that are alike on this side the same one."""
        if self._latest is not None and self._latest[0]() is layout:
            made = self._latest[1]()
            if made is not None:
                return made
        made = derived_layout(layout, self.columns(layout), self.regions, self.pages)
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


def sendings_of(
    dst: Layout, sources: Sequence[Source], templates: Iterable[Template]
) -> dict[int, tuple[Sending, ...]]:
    """Return the recipes of all pairs by source rank, ascending; bounded before anything is built."""
    found: dict[tuple[int, str, str], list[Part]] = {}
    pieces: dict[tuple[int, str, str], int] = {}
    lanes = 0
    for template in templates:
        family = template.family
        dst_mem = dst.columns.mem_types[int(family.dst[0])]
        runs: dict[tuple[int, str, str], list[tuple[Run, int, Meeting]]] = {}
        for channel in template.channels:
            source = family.sources[channel.member]
            src_mem = sources[source].layout.columns.mem_types[int(family.src[channel.member][0])]
            key = (source, src_mem, dst_mem)
            runs.setdefault(key, []).extend([(run, channel.member, channel.meeting) for run in channel.runs])
        for key, items in runs.items():
            items.sort(key=lambda item: item[0].lane.dst)
            part = Part(template, *zip(*items, strict=True))
            found.setdefault(key, []).append(part)
            lanes += part.lanes
            pieces[key] = pieces.get(key, 0) + part.pieces
            _prove_few(dst, part, lanes / len(sources), pieces[key])
    sendings: dict[int, tuple[Sending, ...]] = {}
    for (source, src_mem, dst_mem), gathered in sorted(found.items(), key=lambda item: item[0][0]):
        rank = sources[source].key
        sendings[rank] = (*sendings.get(rank, ()), Sending(source, (src_mem, dst_mem), tuple(gathered)))
    return sendings


def _prove_few(dst: Layout, part: Part, lanes: float, pieces: int) -> None:
    where = f"region {dst.names[int(part.template.family.dst[0])]!r}"
    if lanes > MAX_LANES:
        raise PeerMismatchError(
            f"{where}: the two sides' pages touch in so many separate places that the plan has more than {MAX_LANES} "
            f"rows a source; a piece that steps evenly through a block is one row, so let the axes that step closest "
            f"in memory be the same on both sides"
        )
    if pieces > MAX_BLOCK_PIECES:
        raise PeerMismatchError(
            f"{where}: one block of each region would be {pieces:,} separate pieces; at most {MAX_BLOCK_PIECES:,} are "
            f"supported"
        )


def is_small(dst: Layout, sources: Sequence[Source], sending: Sending) -> bool:
    """Whether a recipe makes one pair with a row per region, which its lanes alone show to be within all limits."""
    src = sources[sending.source].layout
    if dst.columns.pieces or src.columns.pieces:
        return False
    lists = sending.lists(src, dst)
    rows = len(lists.slots)
    if not lists.plain or 2 * rows > MAX_ROWS:
        return False
    return dst.most_blocks * rows <= MAX_DESCS and src.most_blocks * rows <= MAX_DESCS


class Room:
    """How many rows the lists of one plan may still have, and how many regions in several memories."""

    def __init__(self) -> None:
        self._left, self._segmented = MAX_ROWS, MAX_SEGMENTED

    def take_segmented(self, regions: int) -> None:
        """Take regions in several memories of both lists of a pair, or raise :class:`PeerMismatchError`."""
        self._segmented -= regions
        if self._segmented < 0:
            raise PeerMismatchError(
                f"the plan's lists would have more than {MAX_SEGMENTED:,} regions in several segments: a block of "
                f"segments is taken in so many pieces (plan for the files or objects of a job, not for all there are; "
                f"let the axes that step closest in memory be the same on both sides)"
            )

    def take(self, rows: int) -> None:
        """Take the rows of both lists of a pair, or raise :class:`PeerMismatchError`."""
        self._left -= rows
        if self._left < 0:
            raise PeerMismatchError(
                f"the plan's lists would have more than {MAX_ROWS:,} rows: blocks and their pieces nest so unevenly "
                f"that each piece of a block, or each block, is a row of its own, or many pieces of a block are taken "
                f"from many segments (plan for the files or objects of a job, not for all there are)"
            )


# --------------------------------------------------------------------------------------------------------- sides


def pair_of(dst: Layout, sources: Sequence[Source], sending: Sending) -> DlistPair:
    """Return a recipe's only pair."""
    src = sources[sending.source].layout
    sides, slots, places, _ = sending.lists(src, dst)
    here, there = sides
    return derived_pair(here.over(src), there.over(dst), Origins(src, dst, here.regions, there.regions, slots), places)


def pairs_of(dst: Layout, sources: Sequence[Source], sending: Sending, room: Room) -> tuple[DlistPair, ...]:
    """Return the pairs of a recipe: one, or several where it would exceed 2**31 - 1 ids on a side."""
    src = sources[sending.source].layout
    lists = sending.lists(src, dst)
    room.take_segmented(sum([side.segmented(layout) for side, layout in zip(lists.sides, (src, dst), strict=True)]))
    whole = pair_of(dst, sources, sending)
    room.take(whole.src.num_rows + whole.dst.num_rows)
    made = whole.src.columns, whole.dst.columns
    chunks = list(_within_limits(made, lists, (src, dst)))
    return (whole,) if len(chunks) == 1 else tuple([_pair(src, dst, made, lists, chunk) for chunk in chunks])


def _lists_of(sending: Sending, src: Layout, dst: Layout) -> Lists:
    """Members x lanes of all parts, in the order of the destination's regions."""
    sides = _Side(src), _Side(dst)
    slots: list[tuple[int, ...]] = []
    places: list[Places] = []
    src_plain = dst_plain = True
    for part in sending.parts:
        family, count = part.template.family, len(part.template.family.dst)
        sides[0].add([family.src[member] for member in part.members], _lanes(part, _at_src))
        sides[1].add([family.dst] * len(part.runs), _lanes(part, _at_dst))
        whole = max([run.lane.runs for run in part.runs]) == 1
        src_plain = src_plain and whole and max([meeting.src_sub for meeting in part.meetings]) == 1
        dst_plain = dst_plain and whole and max([meeting.dst_sub for meeting in part.meetings]) == 1
        slots += [run.lane.slots for run in part.runs] * count
        places += [places_of(meeting) for meeting in part.meetings] * count
    turn = None
    if len(sending.parts) > 1:
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

    def __init__(self, layout: Layout) -> None:
        self._whole = layout.columns
        self._regions: list[NDArray[np.int64]] = []
        self._lanes: list[tuple[int, Lanes]] = []
        self._groups: list[tuple[int, ...] | None] = []

    def add(self, members: Sequence[NDArray[np.int64]], lanes: Lanes) -> None:
        """Add members x lanes: `members` names for each lane the regions of the layout that have it."""
        self._regions.append(members[0] if len(members) == 1 else np.array(members).T.ravel())
        self._lanes.append((len(members[0]), lanes))
        # The regions that a lane has in a family take the same groups.
        self._groups += [self._whole.groups[int(regions[0])] for regions in members] * len(members[0])

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
        mems = (self._whole.mem_types[int(regions[0])],) * len(regions)
        return ListSide(regions, lanes, tuple(groups), mems, pages, plain)


def places_of(meeting: Meeting) -> Places:
    """Return where the two sides' lists stand, in sub-blocks; ranks dealt alike meet in their local tokens."""
    if meeting.src == meeting.dst:
        deal = meeting.src
        return Places(Place(), Place(), meeting.unit_tokens, Place(deal.rank, deal.size, deal.tokens or 1))
    return Places(_place(meeting.src, meeting), _place(meeting.dst, meeting), meeting.unit_tokens)


def _place(deal: Deal, meeting: Meeting) -> Place:
    return Place() if deal.size == 1 else Place(deal.rank, deal.size, deal.tokens // meeting.unit_tokens)


def _within_limits(made: Sequence[Columns], lists: Lists, layouts: Sequence[Layout]) -> Iterator[slice]:
    """Yield the regions of each pair that is small enough for int32 ids."""
    # What is far too much stays so, and sums of it inside int64.
    counts = [np.minimum(columns.num_descs(), 2**40) for columns in made]
    ends = [np.cumsum(count) for count in counts]
    if max(int(end[-1]) for end in ends) <= MAX_DESCS:
        yield slice(0, len(counts[0]))
        return
    first = 0
    for number, most in enumerate(np.maximum(*counts).tolist()):
        if most > MAX_DESCS:
            src_name, dst_name = (
                layout.names[int(side.regions[number])] for layout, side in zip(layouts, lists.sides, strict=True)
            )
            raise GeometryError(
                f"region {dst_name!r} (source region {src_name!r}): alone it needs {most} descriptors, more than the "
                f"{MAX_DESCS} that int32 ids can name"
            )
        if max(int(end[number] - (end[first - 1] if first else 0)) for end in ends) > MAX_DESCS:
            yield slice(first, number)
            first = number
    yield slice(first, len(counts[0]))


class Origins(Sequence[Origin]):
    """Where each region of a pair comes from, made when somebody looks."""

    __slots__ = ("_dst", "_dst_regions", "_slots", "_src", "_src_regions")

    def __init__(
        self, src: Layout, dst: Layout, src_regions: Any, dst_regions: Any, slots: Sequence[tuple[int, ...]]
    ) -> None:
        self._src, self._dst, self._src_regions, self._dst_regions, self._slots = (
            src,
            dst,
            src_regions,
            dst_regions,
            slots,
        )

    def __len__(self) -> int:
        return len(self._slots)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (tuple, Origins)) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple([self[i] for i in range(*index.indices(len(self)))])
        there, here = int(self._src_regions[index]), int(self._dst_regions[index])
        named = self._dst.pages.names[here]
        return self._src.names[there], self._dst.names[here], tuple([named[slot] for slot in self._slots[index]])


def _pair(src: Layout, dst: Layout, made: Sequence[Columns], lists: Lists, chunk: slice) -> DlistPair:
    mine, theirs = (side.regions[chunk] for side in lists.sides)
    pages = Pages.none(len(mine))
    here = derived_layout(src, _chunk(made[0], chunk), mine, pages)
    there = derived_layout(dst, _chunk(made[1], chunk), theirs, pages)
    origins = Origins(src, dst, mine, theirs, lists.slots[chunk])
    return derived_pair(here, there, origins, lists.places[chunk])


def derived_layout(layout: Layout, columns: Columns, regions: NDArray[np.int64], pages: Pages) -> Layout:
    """Return the layout of a list's columns: pieces of the regions of `layout` that `regions` name."""
    names = DerivedNames(layout.names, layout.columns, regions, columns)
    place = (layout.cp_rank, layout.cp_size, layout.cp_tokens)
    return proven_layout(columns, names, pages, place)


def _chunk(columns: Columns, chunk: slice) -> Columns:
    pieces = {i - chunk.start: rows for i, rows in columns.pieces.items() if chunk.start <= i < chunk.stop}
    return Columns(
        np.ascontiguousarray(columns.numbers[:, chunk]),
        columns.mem_types[chunk],
        columns.groups[chunk],
        pieces,
        columns.plain,
    )
