"""From takes to pairs: runs become regions of derived layouts, memory types and id limits become separate pairs.

A lane is one run between a source and a destination region. All lanes of one source and one combination of memory
types, in the order of the destination's regions and of the runs inside their blocks, are one pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from nixldesc.errors import GeometryError, PeerMismatchError
from nixldesc.memory.layout import MAX_DESCS, Layout, derived_layout
from nixldesc.memory.region import Region, derive
from nixldesc.planning.delivery import Delivery
from nixldesc.planning.overlap import Cut, Piece, Run, page_runs
from nixldesc.planning.sources import Meeting, Take
from nixldesc.request.blocks import Place, Places
from nixldesc.request.pair import DlistPair, Origin, derived_pair

__all__ = ["MAX_LANES", "pairs_of"]

#: More rows than any engine's plan; bounds what two strangers' pages can make a plan build.
MAX_LANES = 2**17


#: One run between a source and a destination region: (src, dst, origin, places). Thousands a plan: a plain tuple.
_Lane: TypeAlias = tuple[Region, Region, Origin, Places]


def pairs_of(
    dst: Layout, srcs: Mapping[int, Layout], deliveries: Iterable[Delivery]
) -> dict[int, tuple[DlistPair, ...]]:
    """Return the pairs of each source that sends something, in ascending rank order."""
    memo: dict[Any, list[Run]] = {}
    tables = _BlockTables()
    lanes: dict[tuple[int, str, str], list[_Lane]] = {}
    count = 0
    for region, by_source in _by_region(deliveries):
        for rank, parts in by_source.items():
            kinds: dict[str, list[_Lane]] = {}
            for (_, meeting), takes in parts.items():
                tables.prove(rank, region, meeting, takes[0])
                found = _lanes(region, meeting, takes, memo)
                kinds.setdefault(takes[0].holder.region.mem_type, []).extend(found)
                count += len(found)
                if count > MAX_LANES:
                    raise PeerMismatchError(
                        f"region {region.name!r}: the two sides' pages touch in so many places that the plan has more "
                        f"than {MAX_LANES} rows; store the bytes in the same order on both sides"
                    )
            for src_mem, found in kinds.items():
                if len(parts) > 1:
                    found.sort(key=lambda lane: lane[1].base_addr)
                lanes.setdefault((rank, src_mem, region.mem_type), []).extend(found)
    pairs: dict[int, tuple[DlistPair, ...]] = {}
    for key in sorted(lanes, key=lambda key: key[0]):
        pairs[key[0]] = (*pairs.get(key[0], ()), *_within_limits(srcs[key[0]], dst, lanes[key]))
    return pairs


#: For one dst region: source rank -> (identity of the src region, how their blocks meet) -> takes.
_Parts = dict[int, dict[tuple[int, Meeting], list[Take]]]


def _by_region(deliveries: Iterable[Delivery]) -> Iterator[tuple[Region, _Parts]]:
    """Yield each dst region with its takes by source; deliveries come region by region."""
    region: Region | None = None
    parts: _Parts = {}
    for delivery in deliveries:
        if delivery.region is not region:
            if region is not None:
                yield region, parts
            region, parts = delivery.region, {}
        for take in delivery.takes:
            holder = take.holder
            parts.setdefault(holder.rank, {}).setdefault((id(holder.region), take.meeting), []).append(take)
    if region is not None:
        yield region, parts


def _lanes(dst: Region, meeting: Meeting, takes: list[Take], memo: dict[Any, list[Run]]) -> list[_Lane]:
    src = takes[0].holder.region
    key = tuple([take.kind for take in takes])
    runs = memo.get(key)
    if runs is None:
        runs = memo[key] = page_runs([Piece(take.holder.section, take.section, take.split) for take in takes])
    (src_cut, dst_cut), places = meeting
    return [
        (
            derive(src, run.src, run.length, src_cut, run.src_sub_stride),
            derive(dst, run.dst, run.length, dst_cut, run.dst_sub_stride),
            (src.name, dst.name, tuple([takes[i].section.name for i in run.pieces])),
            places,
        )
        for run in runs
    ]


class _BlockTables:
    """What each block table is taken to mean: sections that share one must agree on it.

    A destination table has one place in the sequence, so has each source's; a pair of tables has one ratio of
    block_tokens. A table of "every group" (None) is any of them.
    """

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._places: dict[tuple[str, int | None], tuple[Place, str]] = {}
        self._cuts: dict[tuple[int, int | None, int | None], tuple[Cut, str]] = {}

    def prove(self, rank: int, dst: Region, meeting: Meeting, take: Take) -> None:
        """Raise :class:`PeerMismatchError` where the regions' groups do not pair or a table would mean two things."""
        src = take.holder.region
        key = (rank, src.groups, dst.groups, meeting)
        if key in self._seen:
            return
        self._seen.add(key)
        name = take.section.name
        for src_group, dst_group in _met_groups(rank, src, dst, name):
            self._agree_place("the destination's table", dst_group, meeting.places.dst, name)
            self._agree_place(f"source {rank}'s table", src_group, meeting.places.src, name)
            self._agree_cut((rank, src_group, dst_group), meeting.cut, name)

    def _agree_place(self, table: str, group: int | None, place: Place, name: str) -> None:
        self._places.setdefault((table, group), (place, name))
        # Only a table of every group has to be held against all others.
        others = list(self._places) if group is None else [(table, group), (table, None)]
        for other in others:
            meant, by = self._places.get(other, (place, name))
            if other[0] == table and meant != place:
                where = "of every group" if group is None else f"of group {group}"
                raise PeerMismatchError(
                    f"sections {by!r} and {name!r} share {table} {where}, but entry i stands at {_words(meant)} for "
                    f"one and at {_words(place)} for the other; give them different groups"
                )

    def _agree_cut(self, tables: tuple[int, int | None, int | None], cut: Cut, name: str) -> None:
        self._cuts.setdefault(tables, (cut, name))
        rank, src_group, dst_group = tables
        others = [tables]
        if src_group is None:  # each group with its like
            others = [other for other in self._cuts if other[0] == rank and other[1] == other[2]]
        elif src_group == dst_group:
            others.append((rank, None, None))
        for other in others:
            meant, by = self._cuts.get(other, (cut, name))
            if meant != cut:
                raise PeerMismatchError(
                    f"sections {by!r} and {name!r} share the block tables of source {rank} and destination, but "
                    f"their block_tokens are as {meant.src} to {meant.dst} and as {cut.src} to {cut.dst}: one pair of "
                    f"tables cannot say both; give them different groups"
                )


def _words(place: Place) -> str:
    return "block skip + i" if place.every == 1 else f"block {place.first} + (skip + i) * {place.every}"


def _met_groups(rank: int, src: Region, dst: Region, name: str) -> list[tuple[int | None, int | None]]:
    """Return which groups' tables meet, the i-th with the i-th; (None, None) where both sides take every group."""
    if src.groups is None and dst.groups is None:
        return [(None, None)]
    src_groups = tuple(range(len(dst.groups or ()))) if src.groups is None else src.groups
    dst_groups = tuple(range(len(src_groups))) if dst.groups is None else dst.groups
    if len(src_groups) != len(dst_groups):
        raise PeerMismatchError(
            f"section {name!r}: source {rank}'s region {src.name!r} takes groups {src_groups}, the destination's "
            f"region {dst.name!r} takes {dst_groups}; they meet one to one"
        )
    return list(zip(src_groups, dst_groups, strict=True))


def _within_limits(src: Layout, dst: Layout, lanes: list[_Lane]) -> list[DlistPair]:
    """Return the lanes as one pair, or as several where one would exceed 2**31 - 1 ids on a side."""
    pair = _pair(src, dst, lanes)
    if max(pair.src.num_descs, pair.dst.num_descs) <= MAX_DESCS:
        return [pair]
    chunks: list[list[_Lane]] = [[]]
    src_descs = dst_descs = 0
    for lane in lanes:
        (src_name, dst_name, _), src_more, dst_more = lane[2], lane[0].num_descs, lane[1].num_descs
        if max(src_more, dst_more) > MAX_DESCS:
            raise GeometryError(
                f"region {dst_name!r} (source region {src_name!r}): alone it needs {max(src_more, dst_more)} "
                f"descriptors, more than the {MAX_DESCS} that int32 ids can name"
            )
        src_descs, dst_descs = src_descs + src_more, dst_descs + dst_more
        if max(src_descs, dst_descs) > MAX_DESCS:
            chunks.append([])
            src_descs, dst_descs = src_more, dst_more
        chunks[-1].append(lane)
    return [_pair(src, dst, chunk) for chunk in chunks]


def _pair(src: Layout, dst: Layout, lanes: list[_Lane]) -> DlistPair:
    src_regions, dst_regions, origin, places = zip(*lanes, strict=True)
    return derived_pair(
        derived_layout(src_regions, src.cp_rank, src.cp_size),
        derived_layout(dst_regions, dst.cp_rank, dst.cp_size),
        origin,
        places,
    )
