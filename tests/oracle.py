"""Nested-loop oracle: descriptors, ids, positions and merged operations, by counting them out.

Written from the design's words alone; it shares no arithmetic with the library.
"""

from __future__ import annotations

import itertools
import math
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
    """Tokens in one block, 0 without a token axis; stored in parts, they multiply."""
    sizes = [axis.stop for axis in section.axes if axis.name == "token"]
    return math.prod(sizes) if sizes else 0


def dealt(layout: Layout, section: Section) -> bool:
    return section.cp and block_tokens(section) > 0


def grain(layout: Layout, section: Section) -> int:
    return layout.cp_tokens or block_tokens(section)


def tokens_of_rank(layout: Layout, section: Section) -> Iterator[int]:
    """The tokens of the sequence that a rank holds, one by one."""
    for token in itertools.count():
        if not dealt(layout, section) or token // grain(layout, section) % layout.cp_size == layout.cp_rank:
            yield token


def entries(layout: Layout, section: Section, table: Any, null_block: int | None) -> Iterator[tuple[int, list[int]]]:
    """(block id, its tokens, or its position) of every entry that is not the placeholder."""
    ids: Any = getattr(table, "ids", table)
    at, skip = getattr(table, "at", None), getattr(table, "skip", 0)
    by_entry = {int(at[i]) if at is not None else skip + i: int(block) for i, block in enumerate(ids)}
    own = tokens_of_rank(layout, section)
    for entry in range(max(by_entry, default=-1) + 1):
        tokens = [next(own) for _ in range(block_tokens(section) or 1)]
        block = by_entry.get(entry, null_block)
        if entry in by_entry and (null_block is None or block != null_block):
            yield by_entry[entry], tokens


Cell = tuple[tuple[str, int], ...]  # the global index on each axis but the token's


def cells(section: Section) -> list[Cell]:
    """The global indices of every item of one block, the token axis apart."""
    found: set[Cell] = set()
    for steps in itertools.product(*[range(axis.start, axis.stop) for axis in section.axes]):
        at = {axis.name: 0 for axis in section.axes if axis.name != "token"}
        for axis, step in zip(section.axes, steps, strict=True):
            if axis.name != "token":
                at[axis.name] += step * axis.unit
        found.add(tuple(sorted(at.items())))
    return sorted(found)


Token = tuple[str, int, int]  # section, which of the region's groups, token of the sequence


def listed(layout: Layout, tables: Sequence[Any], null_block: int | None) -> Iterator[tuple[Token, Section, int, int]]:
    """What the tables of one rank list: a token, of which section, in which block, where in it."""
    for region in layout.regions:
        for section in region.sections:
            for ordinal, group in enumerate(groups_of(region, len(tables))):
                for block, its_tokens in entries(layout, section, tables[group], null_block):
                    for t, token in enumerate(its_tokens):
                        yield (section.name, ordinal, token), section, block, t


def tokens(layout: Layout, tables: Sequence[Any], null_block: int | None) -> set[Token]:
    return {token for token, _, _, _ in listed(layout, tables, null_block)}


def undelivered(
    srcs: Mapping[int, Layout],
    src_blocks: Mapping[int, Sequence[Any]],
    dst: Layout,
    dst_blocks: Sequence[Any],
    null_block: int | None,
    total: int | None = None,
) -> set[tuple[str, int, int]]:
    """(section, dst block id, token inside the block) of which dst lists a byte that no source does."""
    there: dict[Token, set[Cell]] = {}
    for rank, layout in srcs.items():
        for token, section, _, _ in listed(layout, src_blocks[rank], null_block):
            there.setdefault(token, set()).update(cells(section))
    return {
        (token[0], block, t)
        for token, section, block, t in listed(dst, dst_blocks, null_block)
        if not there.get(token, set()).issuperset(cells(section))
        if total is None or not block_tokens(section) or token[2] < total
    }


# -- the choice of replicas --------------------------------------------------------------------


def holders(srcs: Mapping[int, Layout], name: str) -> dict[int, tuple[list[Section], int]]:
    """Source rank -> its sections of that name, and the rank's position class."""
    found: dict[int, tuple[list[Section], int]] = {}
    for rank in sorted(srcs):
        for region in srcs[rank].regions:
            for section in region.sections:
                if section.name == name:
                    cls = srcs[rank].cp_rank if dealt(srcs[rank], section) else 0
                    found.setdefault(rank, ([], cls))[0].append(section)
    return found


def lacking(srcs: Mapping[int, Layout], dst: Layout) -> set[str]:
    """The sections of dst that the sources do not hold whole, at every position it may list."""
    found = set()
    for region in dst.regions:
        for section in region.sections:
            there = holders(srcs, section.name)
            for need in _classes(there, srcs, section, dst):
                held = {cell for some, cls in there.values() if cls == need for one in some for cell in cells(one)}
                if not held.issuperset(cells(section)):
                    found.add(section.name)
    return found


def _classes(
    there: Mapping[int, tuple[list[Section], int]], srcs: Mapping[int, Layout], section: Section, dst: Layout
) -> set[int]:
    """The context-parallel ranks of the source that hold a token which dst may list."""
    if not there or not block_tokens(section):
        return {0}
    rank, ([other, *_], _) = next(iter(there.items()))
    src = srcs[rank]
    if not dealt(src, other):
        return {0}
    period = grain(src, other) * src.cp_size * grain(dst, section) * dst.cp_size
    own = itertools.takewhile(lambda token: token < period, tokens_of_rank(dst, section))
    return {token // grain(src, other) % src.cp_size for token in own}


def cuts_a_part(srcs: Mapping[int, Layout], dsts: Mapping[int, Layout]) -> bool:
    """Whether some sub-block ends inside a part of a token axis: the one thing that a plan of these may refuse."""
    for dst in dsts.values():
        for section in (section for region in dst.regions for section in region.sections):
            for rank, (theirs, _) in holders(srcs, section.name).items():
                for other in theirs:
                    sides = [(srcs[rank], other), (dst, section)]
                    sizes = [block_tokens(one) for _, one in sides]
                    sizes += [grain(of, one) for of, one in sides if dealt(of, one) and of.cp_size > 1]
                    units = [axis.unit for _, one in sides for axis in one.axes if axis.name == "token"]
                    if any(math.gcd(*sizes) % unit for unit in units):
                        return True
    return False


def chosen_source(srcs: Mapping[int, Layout], name: str, at: Cell, cp_class: int, turn: tuple[int, int]) -> int:
    """The source from which dst rank ``turn[0]`` of ``turn[1]`` takes one index of a section."""
    there = holders(srcs, name)
    ranks = [rank for rank, (_, cls) in there.items() if cls == cp_class]
    begin = turn[0] * len(ranks) // turn[1]
    for rank in ranks[begin:] + ranks[:begin]:
        if any(at in cells(section) for section in there[rank][0]):
            return rank
    raise LookupError(f"no source of class {cp_class} holds {name} at {at}")
