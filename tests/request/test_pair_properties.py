"""What ids, moves, counts, choices and reports of random plans must be, besides right."""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import Any

import numpy as np
import oracle
from drawn import all_pairs, desc_ids, fewer, planned, plans_of, said
from hypothesis import given

from nixldesc import (
    Blocks,
    Section,
    reader_counts,
)
from nixldesc.testing.geometry import Limits
from nixldesc.testing.strategies import Transfer, transfers

# -- ids, moves, counts ------------------------------------------------------------------------


@fewer
@given(transfers())
def test_ids_are_int32_and_in_merge_order(transfer: Transfer) -> None:
    for src_rank, dst_rank, pair in all_pairs(plans_of(transfer)):
        merge = desc_ids(transfer, src_rank, dst_rank, pair)
        given_order = desc_ids(transfer, src_rank, dst_rank, pair, order="given")
        for some in (*merge, *given_order):
            assert some.dtype == np.int32
            assert some.flags.c_contiguous
            assert some.ndim == 1
        assert sorted(zip(*map(list, merge), strict=True)) == sorted(zip(*map(list, given_order), strict=True))
        # Region-major, and inside a region by dst id: so the dst ids ascend as a whole.
        assert merge[1].tolist() == sorted(merge[1].tolist())
        assert len(set(merge[1].tolist())) == len(merge[1])


@fewer
@given(transfers())
def test_moves_are_what_nixl_makes_of_tables_and_ids(transfer: Transfer) -> None:
    for src_rank, dst_rank, pair in all_pairs(plans_of(transfer)):
        src_ids, dst_ids = desc_ids(transfer, src_rank, dst_rank, pair)
        src, dst = oracle.expand(pair.src.table()), oracle.expand(pair.dst.table())
        want = [[src[s][0], dst[d][0], dst[d][1]] for s, d in zip(src_ids.tolist(), dst_ids.tolist(), strict=True)]
        assert [src[s][1] for s in src_ids.tolist()] == [row[2] for row in want]
        moves = pair.moves(src_ids, dst_ids)
        assert moves.dtype == np.uint64
        assert moves.tolist() == want
        joined = pair.moves(src_ids, dst_ids, merge=True).tolist()
        assert byte_list(joined) == byte_list(want)


def byte_list(rows: list[list[int]]) -> list[tuple[int, int]]:
    return [(src + i, dst + i) for src, dst, length in rows for i in range(length)]


@fewer
@given(transfers())
def test_joined_moves_leave_no_neighbours_that_touch(transfer: Transfer) -> None:
    for src_rank, dst_rank, pair in all_pairs(plans_of(transfer)):
        # Region by region: what two regions hold may be two registrations, which never merge.
        for number in range(len(pair.src.regions)):
            only = slice(number, number + 1)
            ids = desc_ids(transfer, src_rank, dst_rank, pair, regions=only)
            rows = pair.moves(*ids, merge=True).tolist()
            for (src, dst, length), after in pairwise(rows):
                assert (src + length, dst + length) != tuple(after[:2])


@fewer
@given(transfers())
def test_merged_ops(transfer: Transfer) -> None:
    for src_rank, dst_rank, pair in all_pairs(plans_of(transfer)):
        for order in ("merge", "given"):
            ids = desc_ids(transfer, src_rank, dst_rank, pair, order=order)
            lists = [some.tolist() for some in ids]
            want = oracle.merged_ops(pair.src.table(), pair.dst.table(), *lists)
            assert pair.merged_ops(*ids) == want


@fewer
@given(transfers())
def test_runs_are_as_long_as_possible(transfer: Transfer) -> None:
    for _, _, pair in all_pairs(plans_of(transfer)):
        # Blocks of tokens and blocks of a state are never one run: `tokens=` is said of the first alone.
        whole = [
            ((*origin[:2], place), src, dst)
            for origin, place, src, dst in zip(
                pair.origin, pair.places, pair.src.regions, pair.dst.regions, strict=True
            )
            if src.sub_blocks == dst.sub_blocks == src.runs == 1
        ]
        starts = {(o, s.base_addr, d.base_addr) for o, s, d in whole}
        for origin, src, dst in whole:
            after = src.base_addr + src.block_len, dst.base_addr + dst.block_len
            assert (origin, *after) not in starts, f"{src.name} could go on"


@fewer
@given(transfers())
def test_pairs_are_equal_region_by_region(transfer: Transfer) -> None:
    for src_rank, dst_rank, pair in all_pairs(plans_of(transfer)):
        regions = list(zip(pair.src.regions, pair.dst.regions, strict=True))
        assert len(pair.origin) == len(regions)
        by_name = [{r.name: r for r in side.regions} for side in (transfer.srcs[src_rank], transfer.dsts[dst_rank])]
        for (src, dst), (src_name, dst_name, names) in zip(regions, pair.origin, strict=True):
            assert src.block_len == dst.block_len
            assert (src.mem_type, dst.mem_type) == pair.mem_types
            assert src.sections == dst.sections == ()
            for region, of in ((src, by_name[0][src_name]), (dst, by_name[1][dst_name])):
                assert set(names) <= {section.name for section in of.sections}
                assert (region.mem_type, region.device_id) == (of.mem_type, of.device_id)
                assert region.num_blocks == of.num_blocks
                assert region.block_stride == of.block_stride


# -- who sends ---------------------------------------------------------------------------------


@fewer
@given(transfers(Limits(senders=("one",))))
def test_the_source_of_every_byte_is_the_one_that_the_rule_names(transfer: Transfer) -> None:
    plans = plans_of(transfer)
    for src_rank, dst_rank, pair in all_pairs(plans):
        layout = transfer.srcs[src_rank]
        for (src_name, _, names), derived in zip(pair.origin, pair.src.regions, strict=True):
            [region] = [r for r in layout.regions if r.name == src_name]
            starts = [derived.base_addr - region.base_addr + j * derived.run_stride for j in range(derived.runs)]
            for section in region.sections:
                if section.name not in names:
                    continue
                cls = layout.cp_rank if oracle.dealt(layout, section) else 0
                for at in oracle_cells(section, starts, derived.block_len):
                    turn = transfer.pair.places[dst_rank]
                    assert src_rank == oracle.chosen_source(transfer.srcs, section.name, at, cls, turn)


def oracle_cells(section: Section, starts: list[int], length: int) -> set[oracle.Cell]:
    """The global indices (tokens apart) of a section's items that begin in some ranges of the block."""
    found: set[oracle.Cell] = set()
    for steps in itertools.product(*[range(axis.stop - axis.start) for axis in section.axes]):
        byte, at = section.offset, {axis.name: 0 for axis in section.axes if axis.name != "token"}
        for axis, stride, step in zip(section.axes, section.strides, steps, strict=True):
            byte += step * stride
            if axis.name != "token":
                at[axis.name] += (axis.start + step) * axis.unit
        if any(start <= byte < start + length for start in starts):
            found.add(tuple(sorted(at.items())))
    return found


@fewer
@given(transfers(Limits(pp=1, boxes=False)))
def test_reader_counts(transfer: Transfer) -> None:
    dsts = list(transfer.dsts.values())
    want = dict.fromkeys(transfer.srcs, 0)
    for rank in transfer.dsts:
        for source in planned(transfer, rank, senders="one"):
            want[source] += 1
    assert reader_counts(dsts, transfer.srcs) == want


# -- what is not delivered ---------------------------------------------------------------------


@fewer
@given(transfers())
def test_undelivered(transfer: Transfer) -> None:
    for rank, found in plans_of(transfer).items():
        layout = transfer.dsts[rank]
        reports = found.undelivered(transfer.src_blocks, transfer.dst_blocks[rank], **said(transfer))
        got = {(name, block, t) for name, block, low, high in reports for t in range(low, high)}
        want = oracle.undelivered(
            transfer.srcs,
            transfer.src_blocks,
            layout,
            transfer.dst_blocks[rank],
            transfer.null_block,
            transfer.tokens,
        )
        assert got == want


def standing(tables: Any) -> list[Blocks]:
    """Plain lists stand at the start of the sequence."""
    return [table if isinstance(table, Blocks) else Blocks(table) for table in tables]


@fewer
@given(transfers())
def test_uncovered(transfer: Transfer) -> None:
    for src_rank, dst_rank, pair in all_pairs(plans_of(transfer)):
        sides: Any = transfer.src_blocks[src_rank], transfer.dst_blocks[dst_rank]
        null = transfer.null_block
        _, dst_ids = pair.desc_ids(*map(standing, sides), order="given", null_block=null)
        filled, tables = set(dst_ids.tolist()), sides[1]
        where = {(d.region, d.block, d.sub, d.run): i for i, d in enumerate(oracle.descs(pair.dst))}
        want = {
            where[number, int(block), k, j]
            for number, region in enumerate(pair.dst.regions)
            for group in oracle.groups_of(region, len(tables))
            for block in getattr(tables[group], "ids", tables[group])
            if transfer.null_block is None or block != transfer.null_block
            for k in range(region.sub_blocks)
            for j in range(region.runs)
        }
        got = pair.uncovered(*sides, null_block=null)
        assert got.dtype == np.int32
        assert sorted(got.tolist()) == sorted(want - filled)
