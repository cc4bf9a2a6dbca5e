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

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc.errors import GeometryError, PeerMismatchError
from nixldesc.memory.columns import Columns, DerivedNames, Pages, forms_of, num_rows
from nixldesc.memory.layout import Layout, proven_layout
from nixldesc.memory.proof import MAX_BLOCK_PIECES, MAX_DESCS
from nixldesc.planning.families import Source
from nixldesc.planning.limits import MAX_LANES
from nixldesc.planning.meeting import Deal, Meeting
from nixldesc.planning.template import Run, Template
from nixldesc.request.blocks import Place, Places
from nixldesc.request.pair import DlistPair, Origin, derived_pair

__all__ = ["Room", "Sending", "is_small", "pairs_of", "sendings_of"]

#: Rows of all tables of a plan, both sides; bounds what two strangers' layouts can make a plan build.
MAX_ROWS = 2**19


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
        return sum(max(m.src_sub, m.dst_sub) * run.lane.runs for run, m in each) * len(self.template.family.dst)


class Sending(NamedTuple):
    """What one source sends in one combination of memory types: the recipe of a pair."""

    source: int
    mem_types: tuple[str, str]
    parts: tuple[Part, ...]


def sendings_of(dst: Layout, sources: Sequence[Source], templates: Iterable[Template]) -> list[Sending]:
    """Return the recipes of all pairs, by source in ascending order; bounded before anything is built."""
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
    ordered = sorted(found.items(), key=lambda item: item[0][0])
    return [Sending(source, (src_mem, dst_mem), tuple(parts)) for (source, src_mem, dst_mem), parts in ordered]


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
    most = max(int(layout.columns.num_blocks.max()) for layout in (dst, src))
    cut = any(run.lane.runs > 1 for part in sending.parts for run in part.runs)
    cut = cut or any(m.src_sub > 1 or m.dst_sub > 1 for part in sending.parts for m in part.meetings)
    return not cut and most * sum(part.lanes for part in sending.parts) <= MAX_DESCS


class Room:
    """How many rows the lists of one plan may still have."""

    def __init__(self) -> None:
        self._left = MAX_ROWS

    def take(self, sides: Iterable[Columns]) -> None:
        """Take the rows of both lists of a pair, or raise :class:`PeerMismatchError`."""
        for columns in sides:
            self._left -= len(columns) if columns.plain else int(num_rows(columns, forms_of(columns)).sum())
        if self._left < 0:
            raise PeerMismatchError(
                f"the plan's lists would have more than {MAX_ROWS:,} rows: blocks and their pieces nest so unevenly "
                f"that each piece of a block, or each block, is a row of its own, or many pieces of a block are taken "
                f"from many segments (plan for the files or objects of a job, not for all there are)"
            )


# --------------------------------------------------------------------------------------------------------- sides


class _Lanes(NamedTuple):
    """A side's lanes of one part: bytes from the block's start, how they repeat."""

    offsets: list[int]
    steps: list[int]
    subs: list[int]
    sub_strides: list[int]


def pairs_of(dst: Layout, sources: Sequence[Source], sending: Sending, room: Room) -> tuple[DlistPair, ...]:
    """Return the pairs of a recipe: one, or several where it would exceed 2**31 - 1 ids on a side."""
    src = sources[sending.source].layout
    sides = [_Side(layout) for layout in (src, dst)]
    slots: list[tuple[int, ...]] = []
    places: list[Places] = []
    order: list[NDArray[np.int64]] = []
    for part in sending.parts:
        family, count = part.template.family, len(part.template.family.dst)
        lengths = [run.lane.length for run in part.runs]
        runs = [run.lane.runs for run in part.runs]
        src_regions = np.stack([family.src[member] for member in part.members], axis=1)
        dst_regions = np.repeat(family.dst[:, None], len(part.runs), axis=1)
        for side, regions, lanes in (
            (sides[0], src_regions, _src_lanes(part)),
            (sides[1], dst_regions, _dst_lanes(part)),
        ):
            side.add(regions, lanes, lengths, runs)
        slots += [run.lane.slots for run in part.runs] * count
        places += [places_of(meeting) for meeting in part.meetings] * count
        order.append(dst_regions.ravel())
    turn = None
    if len(order) > 1:
        turn = np.argsort(np.concatenate(order), kind="stable")
        slots, places = [slots[i] for i in turn.tolist()], [places[i] for i in turn.tolist()]
    made = [side.columns(turn) for side in sides]
    room.take(columns for columns, _, _ in made)
    return tuple(
        [_pair(src, dst, made, slots[chunk], tuple(places[chunk]), chunk) for chunk in _within_limits(made, [src, dst])]
    )


def _src_lanes(part: Part) -> _Lanes:
    return _Lanes(
        [run.lane.src for run in part.runs],
        [run.lane.src_step for run in part.runs],
        [meeting.src_sub for meeting in part.meetings],
        [run.src_sub_stride for run in part.runs],
    )


def _dst_lanes(part: Part) -> _Lanes:
    return _Lanes(
        [run.lane.dst for run in part.runs],
        [run.lane.dst_step for run in part.runs],
        [meeting.dst_sub for meeting in part.meetings],
        [run.dst_sub_stride for run in part.runs],
    )


class _Side:
    """Gathers one side's columns, part by part."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._regions: list[NDArray[np.int64]] = []
        self._lanes: list[list[NDArray[Any]]] = []
        self._cut = False

    def add(self, regions: NDArray[np.int64], lanes: _Lanes, lengths: list[int], runs: list[int]) -> None:
        """Add members x lanes: `regions` names each one's region of the layout."""
        members = len(regions)
        self._regions.append(regions.ravel())
        spaced = [stride or length for stride, length in zip(lanes.sub_strides, lengths, strict=True)]
        numbers = (lanes.offsets, lengths, spaced, lanes.steps)
        wide = [np.array(column, dtype=np.uint64) for column in numbers]
        narrow = [np.array(column, dtype=np.int64) for column in (lanes.subs, runs)]
        self._cut = self._cut or max(lanes.subs) > 1 or max(runs) > 1
        self._lanes.append([column if members == 1 else np.tile(column, members) for column in (*wide, *narrow)])

    def columns(self, turn: NDArray[np.int64] | None) -> tuple[Columns, NDArray[np.int64], NDArray[np.uint64]]:
        """Return the columns in their order, each one's region, and its offset there."""
        one = len(self._regions) == 1
        regions = self._regions[0] if one else np.concatenate(self._regions)
        lanes = self._lanes[0] if one else [np.concatenate(parts) for parts in zip(*self._lanes, strict=True)]
        if turn is not None:
            regions, lanes = regions[turn], [column[turn] for column in lanes]
        offsets, lengths, sub_strides, steps, subs, runs = lanes
        whole = self.layout.columns
        numbers = regions.tolist()
        shared = whole.groups[0] if len(set(whole.groups)) == 1 else ()
        groups = tuple([whole.groups[i] for i in numbers]) if shared == () else (shared,) * len(numbers)
        pieces = {}
        if whole.pieces:
            for here, there in enumerate(numbers):
                if there in whole.pieces:
                    pieces[here] = whole.pieces[there] + np.array([offsets[here], 0, 0], dtype=np.uint64)
        columns = Columns(
            whole.base_addrs[regions] + offsets, lengths, whole.num_blocks[regions], whole.block_strides[regions],
            whole.device_ids[regions], subs, sub_strides, runs, steps, (whole.mem_types[numbers[0]],) * len(numbers),
            groups, pieces, not (self._cut or pieces),
        )  # fmt: skip
        return columns, regions, offsets


def places_of(meeting: Meeting) -> Places:
    """Return where the two sides' lists stand, in sub-blocks; ranks dealt alike meet in their local tokens."""
    if meeting.src == meeting.dst:
        deal = meeting.src
        return Places(Place(), Place(), meeting.unit_tokens, Place(deal.rank, deal.size, deal.tokens or 1))
    return Places(_place(meeting.src, meeting), _place(meeting.dst, meeting), meeting.unit_tokens)


def _place(deal: Deal, meeting: Meeting) -> Place:
    return Place() if deal.size == 1 else Place(deal.rank, deal.size, deal.tokens // meeting.unit_tokens)


def _within_limits(made: list[Any], layouts: Sequence[Layout]) -> Iterator[slice]:
    """Yield the regions of each pair that is small enough for int32 ids."""
    # What is far too much stays so, and sums of it inside int64.
    counts = [np.minimum(columns.num_descs(), 2**40) for columns, _, _ in made]
    ends = [np.cumsum(count) for count in counts]
    if max(int(end[-1]) for end in ends) <= MAX_DESCS:
        yield slice(0, len(counts[0]))
        return
    first = 0
    for number, most in enumerate(np.maximum(*counts).tolist()):
        if most > MAX_DESCS:
            src_name, dst_name = (
                layout.names[int(regions[number])] for layout, (_, regions, _) in zip(layouts, made, strict=True)
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


def _pair(
    src: Layout,
    dst: Layout,
    made: list[Any],
    slots: Sequence[tuple[int, ...]],
    places: tuple[Places, ...],
    chunk: slice,
) -> DlistPair:
    layouts, regions = [], []
    for layout, (columns, numbers, offsets) in zip((src, dst), made, strict=True):
        whole = len(columns) == len(slots)
        part = columns if whole else _chunk(columns, chunk)
        numbers, offsets = numbers[chunk], offsets[chunk]
        names = DerivedNames(layout.names, numbers, offsets)
        place = (layout.cp_rank, layout.cp_size, layout.cp_tokens)
        layouts.append(proven_layout(part, names, Pages.none(len(part)), place))
        regions.append(numbers)
    origins = Origins(src, dst, regions[0], regions[1], slots)
    return derived_pair(layouts[0], layouts[1], origins, places)


def _chunk(columns: Columns, chunk: slice) -> Columns:
    pieces = {i - chunk.start: rows for i, rows in columns.pieces.items() if chunk.start <= i < chunk.stop}
    numbers = [column[chunk] for column in columns.arrays()]
    return Columns.of(numbers, columns.mem_types[chunk], columns.groups[chunk], pieces, columns.plain)
