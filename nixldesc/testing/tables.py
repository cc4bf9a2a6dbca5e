"""Random requests for given engines: block tables whose positions agree on both sides.

Everything follows from the layouts: which groups of the two sides speak of the same caches, how
many tokens a block of each holds, which ranks hold which positions, how many blocks there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import gcd, lcm
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc import Blocks, Layout, Region, Section

from ._memory import Range
from .identities import block_range, sections_of

__all__ = ["Request", "Table", "random_request", "random_tables"]

Table: TypeAlias = Blocks | Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request's block tables: rank -> one entry per group; ``null_block`` fits both sides.

    ``tokens``: how many tokens the request has, where its lists are to be taken so.

    >>> request = Request({0: ([3, 1],)}, {0: ([7, 0],)}, null_block=0)
    >>> request.dst_blocks[0][0]
    [7, 0]
    """

    src_blocks: dict[int, tuple[Table, ...]]
    dst_blocks: dict[int, tuple[Table, ...]]
    null_block: int | None
    tokens: int | None = None


def random_tables(rnd: Random, layout: Layout, num_groups: int, *, most: int = 6) -> tuple[list[int], ...]:
    """One list of distinct block ids per group, at most ``most`` each, all inside the regions.

    >>> from nixldesc import Region
    >>> [ids] = random_tables(Random(0), Layout([Region("K", 0, 8, 3)]), 1)
    >>> set(ids) <= {0, 1, 2}
    True
    """
    rooms = [min((r.num_blocks for r in _serving(layout, group)), default=0) for group in range(num_groups)]
    return tuple(rnd.sample(range(room), rnd.randint(0, min(most, room))) for room in rooms)


def random_request(
    rnd: Random,
    srcs: Mapping[int, Layout],
    dsts: Mapping[int, Layout],
    *,
    most: int = 12,
    trimmed: bool = True,
    null_blocks: Sequence[int | None] = (None, 0, -1, 1_000_000),
    totals: bool = True,
    senders: Literal["one", "all"] = "one",
) -> Request:
    """Block tables of one request for engines of one model.

    ``most``: blocks in one list, about. ``trimmed``: lists may lack a cached prefix, an end or anything between, and
    then say which entries they are (``Blocks``). ``null_blocks``: ids to choose the placeholder from (``None``: no
    placeholders). ``totals``: the request may say how many tokens it has.

    Source ranks of one context-parallel rank list the same positions (with other block ids), or
    with ``senders="all"`` different ones, so that nothing is listed by two. Destination ranks list
    what they like. Blocks of one rank never share memory.

    >>> from nixldesc import Region
    >>> srcs = {0: Layout([Region("K", 0x1000, 16, 8)])}
    >>> request = random_request(Random(0), srcs, {5: Layout([Region("K", 0x8000, 16, 4)])})
    >>> list(request.src_blocks), list(request.dst_blocks)
    ([0], [5])
    """
    null_block = rnd.choice(null_blocks)
    detail = Random(rnd.getrandbits(32))
    sides = _side(detail, srcs, most, null_block), _side(detail, dsts, most, null_block)
    links = [_Link.of(sides, spans, most) for spans in _linked(sides)]
    lengths = [link.longest for link in links if link.of_tokens]
    total = None
    if totals and lengths and all(link.exact for link in links) and rnd.random() < 0.4:
        total = rnd.randint(0, min(lengths))
    how = _How(trimmed and rnd.random() < 0.5, null_block is not None and rnd.random() < 0.5, total, senders)
    lists: _Lists = {}
    for link in links:
        _draw(rnd, detail, link, lists, how)
    src_blocks, dst_blocks = (_tables(detail, number, sides[number], lists, null_block) for number in (0, 1))
    return Request(src_blocks, dst_blocks, null_block, total)


# -- which groups speak of the same ------------------------------------------------------------

Node = tuple[int, int]  # a side (0: src, 1: dst) and its group


class _Side(NamedTuple):
    layouts: Mapping[int, Layout]
    num_groups: int
    pools: Mapping[int, list[list[int]]]  # rank -> for each group the ids to take from


def _side(rnd: Random, layouts: Mapping[int, Layout], most: int, null_block: int | None) -> _Side:
    count = 1 + max((g for x in layouts.values() for r in x.regions for g in r.groups or ()), default=0)
    pools = {rank: _pools(rnd, layout, count, most, null_block) for rank, layout in layouts.items()}
    return _Side(layouts, count, pools)


class _List(NamedTuple):
    """One group's list on one rank: which entries of the full one it has, and which of these are real."""

    entries: tuple[int, ...]
    real: tuple[bool, ...]
    total: int
    plain: bool


_Lists: TypeAlias = dict[tuple[int, int, int], _List]  # side, group, rank


def _groups(region: Region, num_groups: int) -> tuple[int, ...]:
    return tuple(range(num_groups)) if region.groups is None else region.groups


def _serving(layout: Layout, group: int) -> list[Region]:
    return [r for r in layout.regions if r.groups is None or group in r.groups]


def _held(layout: Layout, group: int) -> list[Section]:
    return [section for region in _serving(layout, group) for section in region.sections]


def _linked(sides: tuple[_Side, _Side]) -> list[dict[Node, Fraction]]:
    """Groups that must agree, each with the span of its blocks in a common measure."""
    src, dst = sides
    by_name: dict[str, list[tuple[Region, Section]]] = {}
    for _, region, section in sections_of(src.layouts):
        by_name.setdefault(section.name, []).append((region, section))
    edges: dict[Node, dict[Node, Fraction]] = {
        (number, group): {} for number, side in enumerate(sides) for group in range(side.num_groups)
    }
    for _, region, section in sections_of(dst.layouts):
        for other_region, other in by_name.get(section.name, ()):
            ratio = Fraction(section.block_tokens or 1, other.block_tokens or 1)
            groups = _groups(other_region, src.num_groups), _groups(region, dst.num_groups)
            for g, h in zip(*groups, strict=True):
                edges[0, g][1, h] = ratio
                edges[1, h][0, g] = 1 / ratio
    found: list[dict[Node, Fraction]] = []
    while edges:
        spans = {next(iter(edges)): Fraction(1)}
        queue = list(spans)
        for node in queue:
            new = {there: spans[node] * ratio for there, ratio in edges.pop(node).items() if there not in spans}
            spans |= new
            queue += new
        found.append(spans)
    return found


# -- lengths and positions ---------------------------------------------------------------------


class _How(NamedTuple):
    """What the lists of a request have in common."""

    trimmed: bool
    nulls: bool
    tokens: int | None
    senders: str


class _Link(NamedTuple):
    """Groups of both sides that must agree, and how many units of the sequence a block of each spans.

    ``exact``: a unit is a token, to all sections.
    """

    sides: tuple[_Side, _Side]
    spans: Mapping[Node, int]
    longest: int
    of_tokens: bool
    exact: bool

    @classmethod
    def of(cls, sides: tuple[_Side, _Side], spans: Mapping[Node, Fraction], most: int) -> _Link:
        sizes = {
            (side, group): {s.block_tokens for x in sides[side].layouts.values() for s in _held(x, group)} - {0}
            for side, group in spans
        }
        units = {node: max(held, default=1) for node, held in sizes.items()}
        alike = len({span / units[node] for node, span in spans.items()}) == 1
        exact = alike and all(len(held) <= 1 for held in sizes.values())
        if not exact:  # a unit is half of what all blocks are multiples of
            common = lcm(*(span.denominator for span in spans.values()))
            whole = gcd(*(int(span * common) for span in spans.values()))
            units = {node: int(2 * span * common) // whole for node, span in spans.items()}
        rooms = {node: min([most, *(len(pools[node[1]]) for pools in sides[node[0]].pools.values())]) for node in spans}
        longest = min(rooms[node] * units[node] for node in spans)
        if not exact and any(layout.cp_tokens for side in sides for layout in side.layouts.values()):
            raise ValueError("with cp_tokens all sections that share a list must have the same block_tokens")
        return cls(sides, units, longest, any(sizes.values()), exact)

    def has(self, layout: Layout, node: Node, length: int) -> int:
        """How many entries the list of a rank has for a sequence of that length."""
        span = self.spans[node]
        return -(-(layout.local_tokens(length, span) if _sharded(layout, node[1]) else length) // span)

    def fits(self, length: int, how: _How) -> bool:
        """Whether two plain lists need no guess: it is said how many tokens they stand for, or they agree."""
        if how.tokens is not None and self.of_tokens:
            return True
        dealt = any(_sharded(x, group) for side, group in self.spans for x in self.sides[side].layouts.values())
        whole = not dealt and all(length % span == 0 for span in self.spans.values())
        return not how.trimmed and (whole or len(set(self.spans.values())) == 1)


def _sharded(layout: Layout, group: int) -> bool:
    """Whether context parallelism deals this group's tokens out."""
    return layout.cp_size > 1 and any(section.cp and section.block_tokens for section in _held(layout, group))


def _draw(rnd: Random, detail: Random, link: _Link, lists: _Lists, how: _How) -> None:
    """Choose one length for all of them, and what each rank's list says of it."""
    shortest = 0 if detail.random() < 0.05 else min(1, link.longest)
    length = rnd.randint(shortest, max(shortest, link.longest))
    if how.tokens is not None and link.of_tokens:
        length = how.tokens
    both_plain = link.fits(length, how)
    plain_side = rnd.randrange(2)
    for node in link.spans:
        side, group = node
        layouts = link.sides[side].layouts
        known: dict[int, _List] = {}
        for rank, layout in layouts.items():
            # Replicas must agree, so that any of them may be the source.
            who = rank if side else layout.cp_rank if _sharded(layout, group) else -1
            if who not in known:
                plain = (side == plain_side or both_plain) and detail.random() < 0.6
                known[who] = _window(detail, link.has(layout, node, length), plain, how)
            lists[side, group, rank] = known[who]
        if not side and how.senders == "all":
            _share_out(detail, layouts, group, lists)


def _share_out(rnd: Random, layouts: Mapping[int, Layout], group: int, lists: _Lists) -> None:
    """Leave each entry to source ranks of which no two hold the same bytes at the same place."""
    whole = {rank: lists[0, group, rank] for rank in layouts}
    senders: dict[int, list[int]] = {}  # of each entry
    for entry in sorted({entry for one in whole.values() for entry in one.entries}):
        chosen = senders[entry] = []
        for rank in rnd.sample(sorted(whole), len(whole)):
            mine = layouts[rank]
            if entry in whole[rank].entries and not any(_overlap(mine, layouts[other], group) for other in chosen):
                chosen.append(rank)
    for rank, one in whole.items():
        kept = [(entry, real) for entry, real in zip(one.entries, one.real, strict=True) if rank in senders[entry]]
        if len(kept) < len(one.entries):
            entries, real = tuple(entry for entry, _ in kept), tuple(real for _, real in kept)
            lists[0, group, rank] = _List(entries, real, one.total, False)


def _overlap(one: Layout, other: Layout, group: int) -> bool:
    """Whether two ranks hold bytes of one section and one position."""
    for section, there in product(_held(one, group), _held(other, group)):
        apart = section.cp and section.block_tokens > 0 and one.cp_rank != other.cp_rank
        if section.name == there.name and not apart:
            held = {axis: (start, stop) for axis, start, stop in there.geometry.box}
            if all(start < held[axis][1] and held[axis][0] < stop for axis, start, stop in section.geometry.box):
                return True
    return False


def _window(rnd: Random, total: int, plain: bool, how: _How) -> _List:
    entries = range(total)
    if how.trimmed and total:
        low = rnd.choice((0, rnd.randint(0, total)))
        high = rnd.choice((total, rnd.randint(low, total)))
        entries = range(low, high)
    some = [entry for entry in entries if not (how.trimmed and rnd.random() < 0.2)] if rnd.random() < 0.3 else entries
    real = tuple(not (how.nulls and rnd.random() < 0.3) for _ in some)
    whole = list(some) == list(range(total if how.tokens is not None else len(some)))
    return _List(tuple(some), real, total, plain and whole)


# -- block ids ---------------------------------------------------------------------------------


def _pools(rnd: Random, layout: Layout, num_groups: int, most: int, null_block: int | None) -> list[list[int]]:
    """For each group the ids that its list may have; no two groups' blocks share memory."""
    pools = []
    for group in range(num_groups):
        capacity = min((r.num_blocks for r in _serving(layout, group)), default=2 * most)
        first = rnd.randrange(capacity)
        ids = [*range(first, capacity), *range(first)]
        if rnd.random() < 0.25:
            rnd.shuffle(ids)
        pools.append([block for block in ids if block != null_block])
    # What lies in the same memory is one range to register; what several groups name is the same memory, too.
    lies = len(layout.memory_ranges()) < sum(len(region.segments) for region in layout.regions)
    if lies or any(len(_groups(region, num_groups)) > 1 for region in layout.regions):
        return _parted(layout, pools, most)
    return pools


def _parted(layout: Layout, pools: list[list[int]], most: int) -> list[list[int]]:
    """The groups choose in turn, each a block of memory that nobody has yet."""
    taken: list[Range] = []
    parted: list[list[int]] = [[] for _ in pools]
    left = [iter(pool) for pool in pools]
    for _ in range(most):
        for group, blocks in enumerate(left):
            for block in blocks:
                own = [block_range(region, block) for region in _serving(layout, group)]
                if not any(one.meets(other) for one, other in product(own, taken)):
                    taken += own
                    parted[group].append(block)
                    break
    return parted


def _tables(
    rnd: Random, number: int, side: _Side, lists: _Lists, null_block: int | None
) -> dict[int, tuple[Table, ...]]:
    found = {}
    for rank, pools in side.pools.items():
        tables = []
        for group, pool in enumerate(pools):
            what = lists[number, group, rank]
            chosen = pool[: sum(what.real)]
            if rnd.random() < 0.3:
                chosen.reverse()
            ids = iter(chosen)
            entries = [next(ids) if real else null_block for real in what.real]
            tables.append(_spelled(rnd, [block for block in entries if block is not None], what))
        found[rank] = tuple(tables)
    return found


def _spelled(rnd: Random, ids: list[int], what: _List) -> Table:
    """The same list as a caller might write it."""
    table: Sequence[int] | NDArray[np.integer[Any]] = ids
    spelling = rnd.randrange(4)
    if spelling == 0:
        table = tuple(ids)
    elif spelling == 1 and all(-(2**31) <= block < 2**31 for block in ids):
        table = np.array(ids, rnd.choice((np.int32, np.int64)))
    first = what.entries[0] if what.entries else what.total
    if what.plain:
        return table
    if list(what.entries) != list(range(first, first + len(ids))) or rnd.random() < 0.15:
        return Blocks(table, at=what.entries)
    if first + len(ids) == what.total and rnd.random() < 0.5:
        return Blocks.tail(table, what.total)
    return Blocks(table, first)
