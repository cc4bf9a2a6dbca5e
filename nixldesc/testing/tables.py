"""Random requests for given engines: block tables whose positions agree on both sides.

Everything follows from the layouts: which groups of the two sides speak of the same caches, how
many tokens a block of each holds, which ranks hold which positions, how many blocks there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import gcd, lcm
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc import Blocks, Layout, Region, Section

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
    tables = []
    for group in range(num_groups):
        capacity = min((r.num_blocks for r in _serving(layout, group)), default=0)
        count = rnd.randint(0, min(most, capacity))
        tables.append(rnd.sample(range(capacity), count))
    return tuple(tables)


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

    ``most``: blocks in one list, about. ``trimmed``: lists may lack a cached prefix, an end or
    anything between, and then say which entries they are (``Blocks``). ``null_blocks``: ids to
    choose the placeholder from (``None``: no placeholders). ``totals``: the request may say how
    many tokens it has.

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
    sides = (
        _side(detail, "src", srcs, most, null_block),
        _side(detail, "dst", dsts, most, null_block),
    )
    links = [_Link.of(sides, spans, most) for spans in _linked(sides)]
    lengths = [link.longest for link in links if link.of_tokens]
    total = None
    if totals and lengths and all(link.exact for link in links) and rnd.random() < 0.4:
        total = rnd.randint(0, min(lengths))
    how = _How(trimmed and rnd.random() < 0.5, null_block is not None and rnd.random() < 0.5, total, senders)
    lists: dict[tuple[str, int, int], _List] = {}
    for link in links:
        _draw(rnd, detail, link, lists, how)
    return Request(
        _tables(detail, sides[0], lists, null_block),
        _tables(detail, sides[1], lists, null_block),
        null_block,
        total,
    )


# -- which groups speak of the same ------------------------------------------------------------

Node = tuple[str, int]  # a side and its group


class _Side(NamedTuple):
    name: str
    layouts: Mapping[int, Layout]
    num_groups: int
    pools: Mapping[int, list[list[int]]]  # rank -> for each group the ids to take from


def _side(rnd: Random, name: str, layouts: Mapping[int, Layout], most: int, null_block: int | None) -> _Side:
    named = [g for x in layouts.values() for r in x.regions for g in r.groups or ()]
    count = 1 + max(named, default=0)
    pools = {rank: _pools(rnd, layout, count, most, null_block) for rank, layout in layouts.items()}
    return _Side(name, layouts, count, pools)


class _List(NamedTuple):
    """One group's list on one rank: which entries of the full one it has, and which of these are real."""

    entries: tuple[int, ...]
    real: tuple[bool, ...]
    total: int
    plain: bool


def _groups(region: Region, num_groups: int) -> tuple[int, ...]:
    return tuple(range(num_groups)) if region.groups is None else region.groups


def _serving(layout: Layout, group: int) -> list[Region]:
    return [r for r in layout.regions if r.groups is None or group in r.groups]


def _sections(side: _Side) -> Iterator[tuple[Section, tuple[int, ...]]]:
    for layout in side.layouts.values():
        for region in layout.regions:
            for section in region.sections:
                yield section, _groups(region, side.num_groups)


def _linked(sides: tuple[_Side, _Side]) -> list[dict[Node, Fraction]]:
    """Groups that must agree, each with the span of its blocks in a common measure."""
    by_name: dict[str, list[tuple[Section, tuple[int, ...]]]] = {}
    for section, groups in _sections(sides[0]):
        by_name.setdefault(section.name, []).append((section, groups))
    edges: dict[Node, dict[Node, Fraction]] = {
        (side.name, group): {} for side in sides for group in range(side.num_groups)
    }
    for section, groups in _sections(sides[1]):
        for other, other_groups in by_name.get(section.name, ()):
            ratio = Fraction(section.block_tokens or 1, other.block_tokens or 1)
            for g, h in zip(other_groups, groups, strict=True):
                edges["src", g]["dst", h] = ratio
                edges["dst", h]["src", g] = 1 / ratio
    found: list[dict[Node, Fraction]] = []
    for start in edges:
        if any(start in spans for spans in found):
            continue
        spans = {start: Fraction(1)}
        queue = [start]
        for node in queue:
            for other_node, ratio in edges[node].items():
                if other_node not in spans:
                    spans[other_node] = spans[node] * ratio
                    queue.append(other_node)
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
        by_name = {side.name: side for side in sides}
        sizes = {node: _block_tokens(by_name[node[0]], node[1]) for node in spans}
        of_tokens = any(sizes.values())
        tokens = {node: max(held, default=1) for node, held in sizes.items()}
        one = next(iter(spans))
        ratios = all(span * tokens[one] == spans[one] * tokens[node] for node, span in spans.items())
        exact = ratios and all(len(held) <= 1 for held in sizes.values())
        common = lcm(*(span.denominator for span in spans.values()))
        together = gcd(*(int(span * common) for span in spans.values()))
        unit = spans[one] / tokens[one] if exact else Fraction(together, 2 * common)
        units = {node: int(span / unit) for node, span in spans.items()}
        longest = min(_room(by_name[name], group, most) * units[name, group] for name, group in spans)
        if not exact and any(layout.cp_tokens for side in sides for layout in side.layouts.values()):
            raise ValueError("with cp_tokens all sections that share a list must have the same block_tokens")
        return cls(sides, units, longest, of_tokens, exact)

    def has(self, layout: Layout, node: Node, length: int) -> int:
        """How many entries the list of a rank has for a sequence of that length."""
        span = self.spans[node]
        if _sharded(layout, node[1]):
            grain = layout.cp_tokens or span
            length = sum(at // grain % layout.cp_size == layout.cp_rank for at in range(length))
        return -(-length // span)

    def fits(self, length: int, how: _How) -> bool:
        """Whether two plain lists need no guess: it is said how many tokens they stand for, or they agree."""
        if how.tokens is not None and self.of_tokens:
            return True
        if how.trimmed:
            return False
        sharded = any(
            _sharded(layout, group)
            for side in self.sides
            for name, group in self.spans
            if name == side.name
            for layout in side.layouts.values()
        )
        equal = len(set(self.spans.values())) == 1
        return equal or not (sharded or any(length % span for span in self.spans.values()))


def _block_tokens(side: _Side, group: int) -> set[int]:
    """The tokens of a block, as the sections of a group have them."""
    regions = [region for layout in side.layouts.values() for region in _serving(layout, group)]
    return {section.block_tokens for region in regions for section in region.sections} - {0}


def _sharded(layout: Layout, group: int) -> bool:
    """Whether context parallelism deals this group's tokens out."""
    return layout.cp_size > 1 and any(
        section.cp and section.block_tokens for region in _serving(layout, group) for section in region.sections
    )


def _draw(rnd: Random, detail: Random, link: _Link, lists: dict[tuple[str, int, int], _List], how: _How) -> None:
    """Choose one length for all of them, and what each rank's list says of it."""
    shortest = 0 if detail.random() < 0.05 else min(1, link.longest)
    length = rnd.randint(shortest, max(shortest, link.longest))
    if how.tokens is not None and link.of_tokens:
        length = how.tokens
    both_plain = link.fits(length, how)
    plain_side = rnd.choice(link.sides).name
    for node in link.spans:
        name, group = node
        side = next(side for side in link.sides if side.name == name)
        known: dict[int, _List] = {}
        for rank, layout in side.layouts.items():
            # Replicas must agree, so that any of them may be the source.
            who = rank if name == "dst" else layout.cp_rank if _sharded(layout, group) else -1
            if who not in known:
                plain = (name == plain_side or both_plain) and detail.random() < 0.6
                known[who] = _window(detail, link.has(layout, node, length), plain, how)
            lists[name, group, rank] = known[who]
        if name == "src" and how.senders == "all":
            _share_out(detail, side, group, lists)


def _share_out(rnd: Random, side: _Side, group: int, lists: dict[tuple[str, int, int], _List]) -> None:
    """Leave each entry to ranks of which no two hold the same bytes at the same place."""
    whole = {rank: lists[side.name, group, rank] for rank in side.layouts}
    taken: dict[int, list[int]] = {rank: [] for rank in whole}
    for entry in sorted({entry for one in whole.values() for entry in one.entries}):
        chosen: list[int] = []
        for rank in rnd.sample(sorted(whole), len(whole)):
            layout = side.layouts[rank]
            others = [side.layouts[other] for other in chosen]
            if entry in whole[rank].entries and not any(_overlap(layout, other, group) for other in others):
                chosen.append(rank)
                taken[rank].append(entry)
    for rank, one in whole.items():
        if taken[rank] != list(one.entries):
            real = [known for entry, known in zip(one.entries, one.real, strict=True) if entry in taken[rank]]
            lists[side.name, group, rank] = _List(tuple(taken[rank]), tuple(real), one.total, False)


def _overlap(one: Layout, other: Layout, group: int) -> bool:
    """Whether two ranks hold bytes of one section and one position."""
    theirs = [section for region in _serving(other, group) for section in region.sections]
    for region in _serving(one, group):
        for section in region.sections:
            apart = section.cp and section.block_tokens > 0 and one.cp_rank != other.cp_rank
            if not apart and any(_meet(section, there) for there in theirs if there.name == section.name):
                return True
    return False


def _meet(one: Section, other: Section) -> bool:
    boxes = _box(one), _box(other)
    return all(boxes[0][name] & boxes[1][name] for name in boxes[0])


def _box(section: Section) -> dict[str, set[int]]:
    """For each axis the indices that are held."""
    found: dict[str, set[int]] = {}
    for axis in section.axes:
        steps = [step * axis.unit for step in range(axis.start, axis.stop)]
        found[axis.name] = {index + step for index in found.get(axis.name, {0}) for step in steps}
    return found


def _room(side: _Side, group: int, most: int) -> int:
    """Blocks that a list of this group may have."""
    return min([most, *(len(pools[group]) for pools in side.pools.values())])


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
    if _shares_memory(layout, num_groups):
        pools = _parted(layout, pools, most)
    return pools


def _shares_memory(layout: Layout, num_groups: int) -> bool:
    """Whether two groups of this rank address the same bytes."""
    spans: list[_Span] = []
    for region in layout.regions:
        if len(_groups(region, num_groups)) > 1:
            return True
        for base, count, device in region.segments.tolist():
            end = base + (count - 1) * region.block_stride + region.block_len
            spans.append((region.mem_type, device, base, end))
    spans.sort()
    return any(_clash(first, second) for first, second in pairwise(spans))


_Span = tuple[str, int, int, int]  # memory type, device, first address, end


def _span(region: Region, block: int) -> _Span:
    for base, count, device in region.segments.tolist():
        if block < count:
            start = base + block * region.block_stride
            return region.mem_type, device, start, start + region.block_len
        block -= count
    raise ValueError(f"region {region.name!r} has too few blocks")


def _clash(one: _Span, other: _Span) -> bool:
    return one[:2] == other[:2] and one[2] < other[3] and other[2] < one[3]


def _parted(layout: Layout, pools: list[list[int]], most: int) -> list[list[int]]:
    """The groups choose in turn, each a block of memory that nobody has yet."""
    taken: list[_Span] = []
    parted: list[list[int]] = [[] for _ in pools]
    left = [iter(pool) for pool in pools]
    for _ in range(most):
        for group, blocks in enumerate(left):
            for block in blocks:
                spans = [_span(region, block) for region in _serving(layout, group)]
                if not any(_clash(span, other) for span in spans for other in taken):
                    taken += spans
                    parted[group].append(block)
                    break
    return parted


def _tables(
    rnd: Random,
    side: _Side,
    lists: Mapping[tuple[str, int, int], _List],
    null_block: int | None,
) -> dict[int, tuple[Table, ...]]:
    found = {}
    for rank, pools in side.pools.items():
        tables = []
        for group, pool in enumerate(pools):
            what = lists[side.name, group, rank]
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
