"""What each block table is taken to mean: sections that share one must agree on it.

A destination table has one place in the sequence, so has each source's; a pair of tables has one ratio of
block_tokens. A table of "every group" (None) is any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd
from typing import Any, NamedTuple

from nixldesc.errors import PeerMismatchError
from nixldesc.memory.columns import Groups
from nixldesc.planning.meeting import Deal
from nixldesc.planning.sources import Holder, Want
from nixldesc.planning.template import Template

__all__ = ["prove_tables"]


class Stand(NamedTuple):
    """Where the entries of a table stand: the rank and size of its deal, grain and block as their ratio."""

    rank: int
    size: int
    grain: int
    block: int

    @classmethod
    def of(cls, deal: Deal, block_tokens: int) -> Stand:
        """Return where lists of blocks of `block_tokens` stand under a deal."""
        if deal.size == 1:
            return cls(0, 1, 1, 1)
        common = gcd(deal.tokens, block_tokens)
        return cls(deal.rank, deal.size, deal.tokens // common, block_tokens // common)

    def words(self) -> str:
        """Say it."""
        if self.size == 1:
            return "block skip + i"
        if self.grain == self.block:
            return f"block {self.rank} + (skip + i) * {self.size}"
        return f"the tokens of rank {self.rank} of {self.size}, dealt {self.grain} in {self.block} of a block at a time"


class Side(NamedTuple):
    """One side of a section that regions which meet have: its region's name and groups, and what its tables mean."""

    region: str
    groups: Groups
    stand: Stand
    block_tokens: int

    @classmethod
    def of(cls, has: Want | Holder, groups: Groups) -> Side:
        """Return the side of what is wanted or held in a region of such groups."""
        tokens = has.section.block_tokens
        return cls(has.region, groups, Stand.of(has.deal, tokens), tokens)


# Never "give it a group of its own" alone: a swizzled cache that follows that is planned, and wrong.
_ADVICE = (
    "A cache of tokens whose token axis is hidden in other axes (swizzled scales, vectorised values) must declare it, "
    "in parts: Axis('token', ..., unit=n); only blocks of a really different kind (a state, a cache that is whole on "
    "every rank) have block lists, and so groups, of their own"
)


def prove_tables(templates: Iterable[Template]) -> None:
    """Raise :class:`PeerMismatchError` where the groups of regions do not pair or a table would mean two things."""
    tables = _BlockTables()
    for family, takes, _ in templates:
        mine = [Side.of(slot.want, family.dst.groups) for slot in family.slots]
        for take in takes:
            slot, member = family.slots[take.slot], family.members[take.member]
            theirs = Side.of(slot.holders[take.holder], member.alike.groups)
            tables.prove(member.key, theirs, mine[take.slot], slot.want.name)


class _BlockTables:
    """The meanings seen so far."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._stands: dict[tuple[str, int | None], tuple[Stand, str]] = {}
        self._ratios: dict[tuple[int, int | None, int | None], tuple[tuple[int, int], str]] = {}

    def prove(self, rank: int, src: Side, dst: Side, name: str) -> None:
        """Hold a section that comes from source `rank` against what was seen."""
        common = gcd(src.block_tokens, dst.block_tokens) or 1
        ratio = (src.block_tokens // common or 1, dst.block_tokens // common or 1)
        key = (rank, src.groups, dst.groups, src.stand, dst.stand, ratio)
        if key in self._seen:
            return
        self._seen.add(key)
        for src_group, dst_group in _met_groups(rank, src, dst, name):
            self._agree_stand("the destination's table", dst_group, dst.stand, name)
            self._agree_stand(f"source {rank}'s table", src_group, src.stand, name)
            self._agree_ratio((rank, src_group, dst_group), ratio, name)

    def _agree_stand(self, table: str, group: int | None, stand: Stand, name: str) -> None:
        self._stands.setdefault((table, group), (stand, name))
        # Only a table of every group has to be held against all others.
        others = list(self._stands) if group is None else [(table, group), (table, None)]
        for other in others:
            meant, by = self._stands.get(other, (stand, name))
            if other[0] == table and meant != stand:
                where = "of every group" if group is None else f"of group {group}"
                raise PeerMismatchError(
                    f"sections {by!r} and {name!r} share {table} {where}, but entry i stands at {meant.words()} for "
                    f"one and at {stand.words()} for the other. {_ADVICE}"
                )

    def _agree_ratio(self, tables: tuple[int, int | None, int | None], ratio: tuple[int, int], name: str) -> None:
        self._ratios.setdefault(tables, (ratio, name))
        rank, src_group, dst_group = tables
        others: Sequence[tuple[int, int | None, int | None]] = [tables]
        if src_group is None:  # each group with its like
            others = [other for other in self._ratios if other[0] == rank and other[1] == other[2]]
        elif src_group == dst_group:
            others = [tables, (rank, None, None)]
        for other in others:
            meant, by = self._ratios.get(other, (ratio, name))
            if meant != ratio:
                raise PeerMismatchError(
                    f"sections {by!r} and {name!r} share the block tables of source {rank} and destination, but "
                    f"their block_tokens are as {meant[0]} to {meant[1]} and as {ratio[0]} to {ratio[1]}: one pair of "
                    f"tables cannot say both. {_ADVICE}"
                )


def _met_groups(rank: int, src: Side, dst: Side, name: str) -> list[tuple[int | None, int | None]]:
    """Return which groups' tables meet, the i-th with the i-th; (None, None) where both sides take every group."""
    if src.groups is None and dst.groups is None:
        return [(None, None)]
    src_groups = tuple(range(len(dst.groups or ()))) if src.groups is None else src.groups
    dst_groups = tuple(range(len(src_groups))) if dst.groups is None else dst.groups
    if len(src_groups) != len(dst_groups):
        raise PeerMismatchError(
            f"section {name!r}: source {rank}'s region {src.region!r} takes groups {src_groups}, the destination's "
            f"region {dst.region!r} takes {dst_groups}; they meet one to one"
        )
    return list(zip(src_groups, dst_groups, strict=True))
