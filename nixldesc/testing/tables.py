"""Random requests for given engines: block tables whose positions agree on both sides.

Everything follows from the layouts: which groups of the two sides speak of the same caches, how
many tokens a block of each holds, which ranks hold which positions, how many blocks there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil
from random import Random
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc import Blocks, Layout, Region, Section

__all__ = ["Request", "Table", "random_request", "random_tables"]

Table: TypeAlias = Blocks | Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request's block tables: rank -> one entry per group; ``null_block`` fits both sides.

    >>> request = Request({0: ([3, 1],)}, {0: ([7, 0],)}, null_block=0)
    >>> request.dst_blocks[0][0]
    [7, 0]
    """

    src_blocks: dict[int, tuple[Table, ...]]
    dst_blocks: dict[int, tuple[Table, ...]]
    null_block: int | None


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
) -> Request:
    """Block tables of one request for engines of one model.

    ``most``: blocks in one list, about. ``trimmed``: lists may lack a cached prefix or an end,
    and then say where they start (``Blocks``). ``null_blocks``: ids to choose the placeholder
    from (``None``: no placeholders).

    Source ranks of one context-parallel rank list the same positions (with other block ids);
    destination ranks need not. Blocks of one rank never share memory.

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
    lists: dict[tuple[str, int, int], _List] = {}
    for nodes in _linked(sides):
        _draw(rnd, detail, sides, nodes, lists, most, trimmed, null_block)
    return Request(
        _tables(detail, sides[0], lists, null_block),
        _tables(detail, sides[1], lists, null_block),
        null_block,
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
    """One group's list on one rank: where it starts, and which of its entries are real."""

    skip: int
    real: tuple[bool, ...]
    total: int
    plain: bool


def _groups(region: Region, num_groups: int) -> tuple[int, ...]:
    return tuple(range(num_groups)) if region.groups is None else region.groups


def _serving(layout: Layout, group: int) -> list[Region]:
    return [r for r in layout.regions if r.groups is None or group in r.groups]


def _block_tokens(section: Section) -> int:
    return next((axis.stop for axis in section.axes if axis.name == "token"), 0)


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
            ratio = Fraction(_block_tokens(section) or 1, _block_tokens(other) or 1)
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


def _sharded(side: _Side, group: int) -> bool:
    """Whether context parallelism deals this group's blocks out."""
    return any(
        layout.cp_size > 1 and any(section.cp and _block_tokens(section) for section in region.sections)
        for layout in side.layouts.values()
        for region in _serving(layout, group)
    )


def _draw(
    rnd: Random,
    detail: Random,
    sides: tuple[_Side, _Side],
    spans: Mapping[Node, Fraction],
    lists: dict[tuple[str, int, int], _List],
    most: int,
    trimmed: bool,
    null_block: int | None,
) -> None:
    """Choose one length for all of them, and what each rank's list says of it."""
    by_name = {side.name: side for side in sides}
    unit = min(spans.values()) / 2
    largest = min(_room(by_name[name], group, most) * span for (name, group), span in spans.items())
    most_units = int(largest / unit)
    length = unit * (0 if detail.random() < 0.05 else rnd.randint(min(1, most_units), most_units))
    trimmed = trimmed and rnd.random() < 0.5
    nulls = null_block is not None and rnd.random() < 0.5
    plain_side = rnd.choice(sides).name
    alike = len(set(spans.values())) == 1  # plain lists of unequal blocks on both sides would be a guess
    for (name, group), span in spans.items():
        side = by_name[name]
        sharded = _sharded(side, group)
        known: dict[int, _List] = {}
        for rank, layout in side.layouts.items():
            mine = ceil(length / span)
            if sharded:
                mine = len(range(layout.cp_rank, mine, layout.cp_size))
            # Replicas must agree, so that any of them may be the source.
            who = rank if name == "dst" else layout.cp_rank if sharded else 0
            if who not in known:
                plain = (name == plain_side or (alike and not trimmed)) and detail.random() < 0.6
                known[who] = _window(detail, mine, trimmed, nulls, plain)
            lists[name, group, rank] = known[who]


def _room(side: _Side, group: int, most: int) -> int:
    """Blocks that a list of this group may have."""
    return min([most, *(len(pools[group]) for pools in side.pools.values())])


def _window(rnd: Random, total: int, trimmed: bool, nulls: bool, plain: bool) -> _List:
    low, high = 0, total
    if trimmed and total:
        low = rnd.choice((0, rnd.randint(0, total)))
        high = rnd.choice((total, rnd.randint(low, total)))
    real = tuple(not (nulls and rnd.random() < 0.3) for _ in range(low, high))
    return _List(low, real, total, plain and low == 0)


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
    spans = []
    for region in layout.regions:
        if len(_groups(region, num_groups)) > 1:
            return True
        spans.append(_span(region, 0, region.num_blocks))
    spans.sort()
    return any(_clash(first, second) for first, second in pairwise(spans))


_Span = tuple[str, int, int, int]  # memory type, device, first address, end


def _span(region: Region, block: int, count: int = 1) -> _Span:
    start = region.base_addr + block * region.block_stride
    end = start + (count - 1) * region.block_stride + region.block_len
    return region.mem_type, region.device_id, start, end


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
    if what.plain:
        return table
    if what.skip + len(ids) == what.total and rnd.random() < 0.5:
        return Blocks.tail(table, what.total)
    return Blocks(table, what.skip)
