"""Nested-loop oracle: descriptors, ids, positions and merged operations, by counting them out.

Written from the design's words alone; it shares no arithmetic with the library.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nixldesc import Layout, Region, Section


class Desc(NamedTuple):
    """One descriptor and where it comes from."""

    addr: int
    length: int
    device: int
    region: int
    block: int
    sub: int
    run: int = 0


def one_even_spacing(region: Region) -> bool:
    """Whether all sub-blocks of the region, block after block, lie equally far apart."""
    starts = [
        block * region.block_stride + k * region.sub_stride
        for block in range(min(region.num_blocks, 2))
        for k in range(region.sub_blocks)
    ]
    steps = {b - a for a, b in itertools.pairwise(starts)}
    return len(steps) <= 1


def descs(layout: Layout) -> list[Desc]:
    """Every descriptor, in the order of ids."""
    found = []
    for number, region in enumerate(layout.regions):
        if region.runs > 1 or len(region.segments) > 1:
            found += in_table_order(layout, number, region)
            continue
        if region.num_blocks == 1 or one_even_spacing(region):
            order = [(b, k) for b in range(region.num_blocks) for k in range(region.sub_blocks)]
        else:
            order = [(b, k) for k in range(region.sub_blocks) for b in range(region.num_blocks)]
        for block, k in order:
            addr = region.base_addr
            for _ in range(block):
                addr += region.block_stride
            for _ in range(k):
                addr += region.sub_stride
            found.append(Desc(addr, region.block_len, region.device_id, number, block, k))
    return found


def pieces(region: Region, number: int = 0) -> Iterator[Desc]:
    """Every piece of a region, in the order of its flat indices."""
    block = 0
    for base, blocks, device in region.segments.tolist():
        for _ in range(blocks):
            for k, j in itertools.product(range(region.sub_blocks), range(region.runs)):
                addr = base + k * region.sub_stride + j * region.run_stride
                yield Desc(addr, region.block_len, device, number, block, k, j)
            base += region.block_stride
            block += 1


def in_table_order(layout: Layout, number: int, region: Region) -> list[Desc]:
    """The pieces of a region that may be laid in rows in several ways: NIXL's ids are the table's order."""
    by_place = {(d.addr, d.length, d.device): d for d in pieces(region, number)}
    first, last = layout.starts[number : number + 2].tolist()
    order = expand(layout.table())[first:last]
    assert len(order) == len(by_place) == len(set(order))
    return [by_place[place] for place in order]


def serves(region: Region, group: int) -> bool:
    return region.groups is None or group in region.groups


def groups_of(region: Region, num_groups: int) -> Sequence[int]:
    return range(num_groups) if region.groups is None else region.groups


def ids(layout: Layout, tables: Sequence[Sequence[int]], order: str) -> list[int]:
    """The desc ids that the tables name, by looking each descriptor up."""
    where = {(d.region, d.block, d.sub, d.run): i for i, d in enumerate(descs(layout))}
    found = []
    numbered = list(enumerate(layout.regions))
    if order == "region":
        turns = [(n, r, g) for n, r in numbered for g in groups_of(r, len(tables))]
    else:
        turns = [(n, r, g) for g in range(len(tables)) for n, r in numbered if serves(r, g)]
    for number, region, group in turns:
        for block in tables[group]:
            for k, j in itertools.product(range(region.sub_blocks), range(region.runs)):
                found.append(where[number, int(block), k, j])
    return found


def expand(table: Any) -> list[tuple[int, int, int]]:
    """N x 5 rows as (addr, len, dev), in Python integers."""
    found = []
    for addr, length, device, stride, count in table.tolist():
        for i in range(count):
            found.append((addr + i * stride, length, device))
    return found


def merged_ops(src: Any, dst: Any, src_ids: Iterable[int], dst_ids: Iterable[int]) -> int:
    """Wire operations by NIXL's rule, for N x 5 tables: pairs that step by +1 on both sides, inside
    one dense row each, are one operation."""
    src_rows, dst_rows = _row_of(src), _row_of(dst)
    operations = 0
    before: tuple[int, int] | None = None
    for pair in zip(src_ids, dst_ids, strict=True):
        joins = (
            before is not None
            and pair == (before[0] + 1, before[1] + 1)
            and src_rows[pair[0]] == src_rows[before[0]]
            and dst_rows[pair[1]] == dst_rows[before[1]]
            and _dense(src, src_rows[pair[0]])
            and _dense(dst, dst_rows[pair[1]])
        )
        operations += not joins
        before = pair
    return operations


def _row_of(table: Any) -> list[int]:
    return [row for row, entry in enumerate(table.tolist()) for _ in range(entry[4])]


def _dense(table: Any, row: int) -> bool:
    return bool(table[row, 1] == table[row, 3])


# -- positions ---------------------------------------------------------------------------------


def block_tokens(section: Section) -> int:
    """Tokens in one block, 0 without a token axis."""
    for axis in section.axes:
        if axis.name == "token":
            return axis.stop
    return 0


def entries(layout: Layout, section: Section, table: Any, null_block: int | None) -> Iterator[tuple[int, int]]:
    """(block id, position) of every entry that is not the placeholder."""
    position, step = 0, 1
    if section.cp and block_tokens(section):
        position, step = layout.cp_rank, layout.cp_size
    for _ in range(getattr(table, "skip", 0)):
        position += step
    for block in getattr(table, "ids", table):
        if null_block is None or block != null_block:
            yield int(block), position
        position += step


def cells(section: Section) -> list[dict[str, int]]:
    """The global indices of every item of one block, the token axis apart."""
    found: list[dict[str, int]] = [{}]
    for axis in section.axes:
        if axis.name != "token":
            found = [at | {axis.name: i} for at in found for i in range(axis.start, axis.stop)]
    return [dict(sorted(at.items())) for at in found]


Token = tuple[str, int, int]  # section, which of the region's groups, token of the sequence


def tokens(layout: Layout, tables: Sequence[Any], null_block: int | None) -> dict[Token, tuple[int, int]]:
    """What the tables of one rank list: token -> (block id, token inside the block)."""
    found = {}
    for region in layout.regions:
        for section in region.sections:
            per_block = block_tokens(section) or 1
            for ordinal, group in enumerate(groups_of(region, len(tables))):
                for block, position in entries(layout, section, tables[group], null_block):
                    for t in range(per_block):
                        found[section.name, ordinal, position * per_block + t] = block, t
    return found


def undelivered(
    srcs: Mapping[int, Layout],
    src_blocks: Mapping[int, Sequence[Any]],
    dst: Layout,
    dst_blocks: Sequence[Any],
    null_block: int | None,
) -> set[tuple[str, int, int]]:
    """(section, dst block id, token inside the block) that dst lists and no source does."""
    there: set[Token] = set()
    for rank, layout in srcs.items():
        there |= tokens(layout, src_blocks[rank], null_block).keys()
    listed = tokens(dst, dst_blocks, null_block)
    return {(name, *listed[name, o, t]) for name, o, t in listed if (name, o, t) not in there}


# -- the choice of replicas --------------------------------------------------------------------


def holders(srcs: Mapping[int, Layout], name: str) -> dict[int, tuple[Section, int]]:
    """Source rank -> the section of that name, and the rank's position class."""
    found = {}
    for rank in sorted(srcs):
        for region in srcs[rank].regions:
            for section in region.sections:
                if section.name == name:
                    sharded = section.cp and block_tokens(section) > 0
                    found[rank] = section, srcs[rank].cp_rank if sharded else 0
    return found


def lacking(srcs: Mapping[int, Layout], dst: Layout) -> set[str]:
    """The sections of dst that the sources do not hold whole, at every position it may list."""
    found = set()
    for region in dst.regions:
        for section in region.sections:
            there = holders(srcs, section.name)
            for need in _classes(there, srcs, section, dst):
                held = [c for one, cls in there.values() if cls == need for c in cells(one)]
                if any(cell not in held for cell in cells(section)):
                    found.add(section.name)
    return found


def _classes(
    there: Mapping[int, tuple[Section, int]],
    srcs: Mapping[int, Layout],
    section: Section,
    dst: Layout,
) -> set[int]:
    """The context-parallel ranks of the source that hold a token which dst may list."""
    if not there or not block_tokens(section):
        return {0}
    rank, (other, _) = next(iter(there.items()))
    if not other.cp:
        return {0}
    src_tokens, dst_tokens = block_tokens(other), block_tokens(section)
    period = src_tokens * dst_tokens * srcs[rank].cp_size * dst.cp_size
    return {
        t // src_tokens % srcs[rank].cp_size
        for t in range(period)
        if not section.cp or t // dst_tokens % dst.cp_size == dst.cp_rank
    }


def chosen_source(
    srcs: Mapping[int, Layout], name: str, at: Mapping[str, int], cp_class: int, turn: tuple[int, int]
) -> int:
    """The source from which dst rank ``turn[0]`` of ``turn[1]`` takes one index of a section."""
    ranks = [r for r, (_, cls) in holders(srcs, name).items() if cls == cp_class]
    begin = turn[0] * len(ranks) // turn[1]
    for rank in ranks[begin:] + ranks[:begin]:
        section = holders(srcs, name)[rank][0]
        ranges = {axis.name: (axis.start, axis.stop) for axis in section.axes}
        if all(ranges[axis][0] <= index < ranges[axis][1] for axis, index in at.items()):
            return rank
    raise LookupError(f"no source of class {cp_class} holds {name} at {dict(at)}")
