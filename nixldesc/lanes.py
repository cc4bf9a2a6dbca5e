"""From takes to pairs: runs become regions of derived layouts, memory types and id limits become separate pairs.

A lane is one run between a source and a destination region. All lanes of one source and one combination of memory
types, in the order of the destination's regions and of the runs inside their blocks, are one pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from nixldesc.blocks import Places
from nixldesc.delivery import Delivery
from nixldesc.errors import GeometryError, PeerMismatchError
from nixldesc.layout import MAX_DESCS, Layout, derived_layout
from nixldesc.overlap import Piece, Run, page_runs
from nixldesc.pair import DlistPair, Origin, derived_pair
from nixldesc.region import Region, derive
from nixldesc.sources import Meeting, Take

__all__ = ["pairs_of"]


#: One run between a source and a destination region: (src, dst, origin, places). Thousands a plan: a plain tuple.
_Lane: TypeAlias = tuple[Region, Region, Origin, Places]


def pairs_of(
    dst: Layout, srcs: Mapping[int, Layout], deliveries: Iterable[Delivery]
) -> dict[int, tuple[DlistPair, ...]]:
    """Return the pairs of each source that sends something, in ascending rank order."""
    memo: dict[Any, list[Run]] = {}
    tables = _BlockTables()
    lanes: dict[tuple[int, str, str], list[_Lane]] = {}
    for region, by_source in _by_region(deliveries):
        for rank, parts in by_source.items():
            kinds: dict[str, list[_Lane]] = {}
            for (_, meeting), takes in parts.items():
                tables.prove(rank, region, meeting, takes[0])
                kinds.setdefault(takes[0].holder.region.mem_type, []).extend(_lanes(region, meeting, takes, memo))
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
    """What each pair of block tables (source rank and group, destination group) is taken to mean.

    Two sections that share both tables must agree on it: one ratio of block_tokens, one place in the sequence.
    """

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._meant: dict[tuple[int, int, int], tuple[Meeting, str]] = {}
        self._any: dict[int, tuple[Meeting, str]] = {}

    def prove(self, rank: int, dst: Region, meeting: Meeting, take: Take) -> None:
        """Raise :class:`PeerMismatchError` where the regions' groups do not pair or a table would mean two things."""
        src = take.holder.region
        key = (rank, src.groups, dst.groups, meeting)
        if key in self._seen:
            return
        self._seen.add(key)
        name = take.section.name
        if src.groups is None and dst.groups is None:
            self._agree(self._any.setdefault(rank, (meeting, name)), meeting, name, "every group")
            for (other, src_group, dst_group), meant in self._meant.items():
                if other == rank and src_group == dst_group:
                    self._agree(meant, meeting, name, f"source group {src_group}, destination group {dst_group}")
            return
        src_groups = range(len(dst.groups or ())) if src.groups is None else src.groups
        dst_groups = range(len(src_groups)) if dst.groups is None else dst.groups
        if len(src_groups) != len(dst_groups):
            raise PeerMismatchError(
                f"section {name!r}: source {rank}'s region {src.name!r} takes groups {tuple(src_groups)}, the "
                f"destination's region {dst.name!r} takes {tuple(dst_groups)}; they meet one to one"
            )
        for src_group, dst_group in zip(src_groups, dst_groups, strict=True):
            where = f"source group {src_group}, destination group {dst_group}"
            self._agree(self._meant.setdefault((rank, src_group, dst_group), (meeting, name)), meeting, name, where)
            if src_group == dst_group and rank in self._any:
                self._agree(self._any[rank], meeting, name, where)

    def _agree(self, meant: tuple[Meeting, str], meeting: Meeting, name: str, where: str) -> None:
        if meant[0] != meeting:
            raise PeerMismatchError(
                f"sections {meant[1]!r} and {name!r} share one block table ({where}), but one has {_words(meant[0])}, "
                f"the other {_words(meeting)}; give them different groups"
            )


def _words(meeting: Meeting) -> str:
    (src_cut, dst_cut), (src, dst) = meeting
    places = ""
    if src.every > 1 or dst.every > 1:
        places = f" at cp_rank {src.first} of {src.every} to {dst.first} of {dst.every}"
    return f"{src_cut} to {dst_cut} sub-blocks of tokens in a block{places}"


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
