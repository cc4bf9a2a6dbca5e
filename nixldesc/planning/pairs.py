"""From templates to pairs: who sends what becomes pairs of prepared lists, bounded before anything is built.

All lanes of one source and one combination of memory types are one pair, whose two lists are made of columns
(:mod:`nixldesc.planning.lists`) when somebody looks; what may be refused is made at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from nixldesc.errors import GeometryError, PeerMismatchError
from nixldesc.memory.columns import Columns, Pages
from nixldesc.memory.layout import Layout
from nixldesc.memory.proof import MAX_BLOCK_PIECES, MAX_DESCS
from nixldesc.planning.families import Source
from nixldesc.planning.limits import MAX_LANES
from nixldesc.planning.lists import Lists, Part, derived_layout, lists_of
from nixldesc.planning.meeting import Meeting
from nixldesc.planning.template import Run, Template
from nixldesc.request.pair import DlistPair, Origin, derived_pair

__all__ = ["Room", "Sending", "is_small", "pair_of", "pairs_of", "sendings_of"]

#: Rows of all tables of a plan, both sides; bounds what two strangers' layouts can make a plan build.
MAX_ROWS = 2**19
#: Regions of a plan's lists that lie in several memories, each an array of its own: half a kilobyte.
MAX_SEGMENTED = 2**15


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
            self._lists = lists_of(self.parts, src, dst)
        return self._lists


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


def _chunk(columns: Columns, chunk: slice) -> Columns:
    pieces = {i - chunk.start: rows for i, rows in columns.pieces.items() if chunk.start <= i < chunk.stop}
    return Columns(
        np.ascontiguousarray(columns.numbers[:, chunk]),
        columns.mem_types[chunk],
        columns.groups[chunk],
        pieces,
        columns.plain,
    )
