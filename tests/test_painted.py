"""Random geometries, pulled and pushed, against painted memory.

The nightly profile (tests/conftest.py) runs ``test_every_byte_arrives_once`` over 20,000 of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import assume, event, given, settings

from nixldesc import Axis, Blocks, DlistPair, Layout, Plan, Region, Section, plan, reader_counts
from nixldesc.testing.geometry import Limits, random_pair
from nixldesc.testing.painted import (
    Copies,
    DeliveryError,
    Memory,
    check_delivery,
    nixl_copies,
    planned_copies,
)
from nixldesc.testing.strategies import Transfer, transfers
from nixldesc.testing.tables import random_request

# The narrower properties need fewer geometries than the main one.
_all = settings().max_examples
fewer = settings(max_examples=min(_all, max(75, _all // 10)))


def plans_of(transfer: Transfer) -> dict[int, Plan]:
    return {
        rank: plan(layout, transfer.srcs, dst_rank=number, dst_size=size)
        for rank, layout in transfer.dsts.items()
        for number, size in [transfer.pair.places[rank]]
    }


def all_pairs(plans: dict[int, Plan]) -> Iterator[tuple[int, int, DlistPair]]:
    for dst_rank, found in plans.items():
        for src_rank, pairs in found.items():
            for pair in pairs:
                yield src_rank, dst_rank, pair


def check(transfer: Transfer, copies: list[Copies], **how: Any) -> int:
    done = check_delivery(
        transfer.srcs,
        transfer.dsts,
        transfer.src_blocks,
        transfer.dst_blocks,
        copies,
        null_block=transfer.null_block,
        **how,
    )
    return done.delivered


def request_copies(transfer: Transfer, plans: dict[int, Plan], **how: Any) -> list[Copies]:
    blocks = transfer.src_blocks, transfer.dst_blocks
    return planned_copies(plans, *blocks, null_block=transfer.null_block, **how)


# -- delivery ----------------------------------------------------------------------------------


@given(transfers())
def test_every_byte_arrives_once(transfer: Transfer) -> None:
    plans = plans_of(transfer)
    delivered = check(transfer, request_copies(transfer, plans))
    event("something to move" if delivered else "nothing to move")


@fewer
@given(transfers())
def test_in_the_order_given(transfer: Transfer) -> None:
    check(transfer, request_copies(transfer, plans_of(transfer), order="given"))


@fewer
@given(transfers())
def test_pushed_by_writers_that_know_no_addresses_of_their_siblings(transfer: Transfer) -> None:
    copies = []
    for writer in transfer.srcs:
        described = {
            rank: layout if rank == writer else moved_away(layout)
            for rank, layout in transfer.srcs.items()
        }
        for rank, layout in transfer.dsts.items():
            number, size = transfer.pair.places[rank]
            own = plan(layout, described, dst_rank=number, dst_size=size).get(writer, ())
            copies += request_copies(transfer, {rank: {writer: own}})  # type: ignore[dict-item]
    check(transfer, copies)


def moved_away(layout: Layout) -> Layout:
    """The same layout at other addresses, as a sibling describes it."""
    regions = []
    for number, region in enumerate(layout.regions):
        regions.append(
            Region(
                region.name,
                number << 40,
                region.block_len,
                region.num_blocks,
                block_stride=region.block_stride,
                groups=region.groups,
                mem_type=region.mem_type,
                device_id=region.device_id,
                sections=region.sections,
            )
        )
    return Layout(regions, cp_rank=layout.cp_rank, cp_size=layout.cp_size)


@fewer
@given(transfers(Limits(cp=1, pp=1)))
def test_who_knows_only_the_sources_it_needs_passes_src_size(transfer: Transfer) -> None:
    assume(list(transfer.srcs) == list(range(len(transfer.srcs))))
    for rank, layout in transfer.dsts.items():
        number, size = transfer.pair.places[rank]
        whole = plan(layout, transfer.srcs, dst_rank=number, dst_size=size)
        needed = {source: transfer.srcs[source] for source in whole}
        assume(needed)
        part = plan(layout, needed, dst_rank=number, dst_size=size, src_size=len(transfer.srcs))
        assert dict(part) == dict(whole)


@fewer
@given(transfers())
def test_any_dst_rank_delivers_whoever_it_says_it_is(transfer: Transfer) -> None:
    plans = {rank: plan(dst, transfer.srcs, dst_rank=2, dst_size=7) for rank, dst in
             transfer.dsts.items()}
    check(transfer, request_copies(transfer, plans))


@fewer
@given(transfers())
def test_region_by_region_delivers_the_same(transfer: Transfer) -> None:
    plans = plans_of(transfer)
    copies = []
    for src_rank, dst_rank, pair in all_pairs(plans):
        count = len(pair.src.regions)
        for part in (slice(0, count // 2), slice(count // 2, count)):
            copies += pair_copies(transfer, src_rank, dst_rank, pair, regions=part)
    check(transfer, copies)


def pair_copies(
    transfer: Transfer, src_rank: int, dst_rank: int, pair: DlistPair, **how: Any
) -> list[Copies]:
    ids = desc_ids(transfer, src_rank, dst_rank, pair, **how)
    tables = pair.src.table(), pair.dst.table()
    return nixl_copies(src_rank, dst_rank, *tables, *ids, mem_types=pair.mem_types)


def desc_ids(
    transfer: Transfer, src_rank: int, dst_rank: int, pair: DlistPair, **how: Any
) -> Any:
    return pair.desc_ids(
        transfer.src_blocks[src_rank],
        transfer.dst_blocks[dst_rank],
        null_block=transfer.null_block,
        **how,
    )


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
        assert sorted(zip(*map(list, merge), strict=True)) == sorted(
            zip(*map(list, given_order), strict=True)
        )
        # Region-major, and inside a region by dst id: so the dst ids ascend as a whole.
        assert merge[1].tolist() == sorted(merge[1].tolist())
        assert len(set(merge[1].tolist())) == len(merge[1])


@fewer
@given(transfers())
def test_moves_are_what_nixl_makes_of_tables_and_ids(transfer: Transfer) -> None:
    for src_rank, dst_rank, pair in all_pairs(plans_of(transfer)):
        src_ids, dst_ids = desc_ids(transfer, src_rank, dst_rank, pair)
        src, dst = oracle.expand(pair.src.table()), oracle.expand(pair.dst.table())
        want = [
            [src[s][0], dst[d][0], dst[d][1]]
            for s, d in zip(src_ids.tolist(), dst_ids.tolist(), strict=True)
        ]
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
        devices = {r.device_id for side in (pair.src, pair.dst) for r in side.regions}
        if len(devices) > 1:
            continue  # equal addresses of two devices do not touch
        rows = pair.moves(*desc_ids(transfer, src_rank, dst_rank, pair), merge=True).tolist()
        for (src, dst, length), after in itertools.pairwise(rows):
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
        whole = [
            (origin[:2], src, dst)
            for origin, src, dst in zip(
                pair.origin, pair.src.regions, pair.dst.regions, strict=True
            )
            if src.sub_blocks == dst.sub_blocks == 1
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
        by_name = [{r.name: r for r in side.regions}
                   for side in (transfer.srcs[src_rank], transfer.dsts[dst_rank])]
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
@given(transfers(Limits(kinds=("attention", "kv", "mla", "state"))))
def test_the_source_of_every_byte_is_the_one_that_the_rule_names(transfer: Transfer) -> None:
    plans = plans_of(transfer)
    for src_rank, dst_rank, pair in all_pairs(plans):
        layout = transfer.srcs[src_rank]
        for (src_name, _, names), derived in zip(pair.origin, pair.src.regions, strict=True):
            [region] = [r for r in layout.regions if r.name == src_name]
            start = derived.base_addr - region.base_addr
            for section in region.sections:
                if section.name not in names:
                    continue
                split = oracle_index(section, start, derived.block_len)
                assert split, f"{section.name} has no byte in a run that names it"
                sharded = section.cp and oracle.block_tokens(section) > 0
                for at in split:
                    want = oracle.chosen_source(
                        transfer.srcs, section.name, at, layout.cp_rank if sharded else 0,
                        transfer.pair.places[dst_rank],
                    )
                    assert src_rank == want


def oracle_index(section: Section, start: int, length: int) -> list[dict[str, int]]:
    """The global indices (tokens apart) of a section's items that begin in a range of the block."""
    found = []

    def walk(depth: int, at: int, index: dict[str, int]) -> None:
        if depth == len(section.axes):
            if start <= at < start + length:
                found.append({k: v for k, v in index.items() if k != "token"})
            return
        axis = section.axes[depth]
        for i in range(axis.stop - axis.start):
            walk(depth + 1, at + i * section.strides[depth], index | {axis.name: axis.start + i})

    walk(0, section.offset, {})
    return found


@fewer
@given(transfers(Limits(pp=1)))
def test_reader_counts(transfer: Transfer) -> None:
    dsts = list(transfer.dsts.values())
    want = dict.fromkeys(transfer.srcs, 0)
    for number, layout in enumerate(dsts):
        for source in plan(layout, transfer.srcs, dst_rank=number, dst_size=len(dsts)):
            want[source] += 1
    assert reader_counts(dsts, transfer.srcs) == want


# -- what is not delivered ---------------------------------------------------------------------


@fewer
@given(transfers())
def test_undelivered(transfer: Transfer) -> None:
    for rank, found in plans_of(transfer).items():
        layout = transfer.dsts[rank]
        reports = found.undelivered(
            transfer.src_blocks, transfer.dst_blocks[rank], null_block=transfer.null_block
        )
        got = [(name, block, t) for name, block, low, high in reports for t in range(low, high)]
        want = oracle.undelivered(
            transfer.srcs, transfer.src_blocks, layout, transfer.dst_blocks[rank],
            transfer.null_block,
        )
        assert sorted(got) == sorted(want)


@fewer
@given(transfers())
def test_uncovered(transfer: Transfer) -> None:
    for src_rank, dst_rank, pair in all_pairs(plans_of(transfer)):
        filled = set(desc_ids(transfer, src_rank, dst_rank, pair)[1].tolist())
        tables: Any = transfer.dst_blocks[dst_rank]
        where = {(d.region, d.block, d.sub): i for i, d in enumerate(oracle.descs(pair.dst))}
        want = {
            where[number, int(block), k]
            for number, region in enumerate(pair.dst.regions)
            for group in oracle.groups_of(region, len(tables))
            for block in getattr(tables[group], "ids", tables[group])
            if transfer.null_block is None or block != transfer.null_block
            for k in range(region.sub_blocks)
        }
        got = pair.uncovered(
            transfer.src_blocks[src_rank], tables, null_block=transfer.null_block
        )
        assert got.dtype == np.int32
        assert sorted(got.tolist()) == sorted(want - filled)


# -- the oracle finds what is wrong ------------------------------------------------------------
#
# Errors planted into right copies. Each must be found, whatever the geometry.


def swap_blocks(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    i, j = rnd.sample(range(len(one.rows)), 2)
    one.rows[[i, j], 0] = one.rows[[j, i], 0]


def shift_source(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    one.rows[rnd.randrange(len(one.rows)), 0] += np.uint64(rnd.choice((1, 4, 32)))


def shift_destination(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    one.rows[rnd.randrange(len(one.rows)), 1] += np.uint64(rnd.choice((1, 4, 32)))


def drop_pair(copies: list[Copies], rnd: Random) -> None:
    number = rnd.randrange(len(copies))
    keep = np.delete(copies[number].rows, rnd.randrange(len(copies[number].rows)), axis=0)
    copies[number] = replace(copies[number], rows=keep)


def double_pair(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    at = rnd.randrange(len(one.rows))
    copies.append(replace(one, rows=one.rows[at : at + 1]))


def one_byte_more(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    one.rows[rnd.randrange(len(one.rows)), 2] += np.uint64(1)


def one_byte_less(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    one.rows[rnd.randrange(len(one.rows)), 2] -= np.uint64(1)


def wrong_rank(copies: list[Copies], rnd: Random) -> None:
    number = rnd.randrange(len(copies))
    one = copies[number]
    copies[number] = replace(one, dst=one.dst._replace(rank=one.dst.rank + 1000))


PLANTED = [
    swap_blocks, shift_source, shift_destination, drop_pair, double_pair, one_byte_more,
    one_byte_less, wrong_rank,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_error_is_found(plant: Callable[[list[Copies], Random], None]) -> None:
    found = 0
    for seed in range(60):
        rnd = Random(seed)
        pair = random_pair(rnd)
        transfer = Transfer(pair, random_request(rnd, pair.srcs, pair.dsts))
        copies = request_copies(transfer, plans_of(transfer))
        copies = [one for one in copies if len(one.rows) > 1]
        if not copies:
            continue
        copies = request_copies(transfer, plans_of(transfer))
        large = [one for one in copies if len(one.rows) > 1]
        small = [one for one in copies if len(one.rows) <= 1]
        check(transfer, large + small)
        plant(large, rnd)
        with pytest.raises(DeliveryError):
            check(transfer, large + small)
        found += 1
    assert found >= 20


def planted_ids(shift: Callable[[Any, Any], tuple[Any, Any]]) -> list[Copies]:
    """Two heads in two blocks from engines of one rank, with the ids tampered with."""
    srcs, dst = {0: two_heads(0x1000)}, two_heads(0x8000, stride=20)
    [[pair]] = plan(dst, srcs).values()
    ids = shift(*pair.desc_ids([[3, 4]], [[5, 6]]))
    return nixl_copies(0, 7, pair.src.table(), pair.dst.table(), *ids)


@pytest.mark.parametrize("shift", [
    lambda src, dst: (src + 1, dst),
    lambda src, dst: (src, dst + 1),
    lambda src, dst: (src[::-1], dst),
    lambda src, dst: (src[:1], dst[:1]),
    lambda src, dst: (src[:0], dst[:0]),
    lambda src, dst: (np.append(src, src[0]), np.append(dst, dst[0])),
    lambda src, dst: (np.append(src, 0), np.append(dst, 0)),
], ids=["src id", "dst id", "swapped", "dropped", "none", "doubled", "one more"])
def test_planted_ids_are_found(shift: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    engines = {0: two_heads(0x1000)}, {7: two_heads(0x8000, stride=20)}
    blocks: Any = {0: [[3, 4]]}, {7: [[5, 6]]}
    right = planted_ids(lambda src, dst: (src, dst))
    assert check_delivery(*engines, blocks[0], blocks[1], right).delivered == 32
    with pytest.raises(DeliveryError):
        check_delivery(*engines, blocks[0], blocks[1], planted_ids(shift))


# -- the words of the oracle -------------------------------------------------------------------


def two_heads(base: int, *, stride: int = 16) -> Layout:
    section = Section("K", (Axis("head", 0, 2), Axis("token", 0, 2)), 4)
    return Layout([Region("K", base, 16, 8, block_stride=stride, sections=[section])])


def words(*rows: tuple[int, int, int], src: Any = ((3, 4),), dst: Any = ((5, 6),), **how: Any) -> str:
    """What the oracle says of copies from blocks at 0x1000 to blocks at 0x8000, 20 bytes apart."""
    copies = Copies(Memory(0), Memory(7), np.array(rows, np.uint64).reshape(-1, 3))
    srcs, dsts = {0: two_heads(0x1000)}, {7: two_heads(0x8000, stride=20)}
    with pytest.raises(DeliveryError) as caught:
        check_delivery(srcs, dsts, {0: src}, {7: dst}, [copies], **how)
    return str(caught.value)


RIGHT = (0x1030, 0x8064, 16), (0x1040, 0x8078, 16)


def test_right_copies_pass() -> None:
    copies = Copies(Memory(0), Memory(7), np.array(RIGHT, np.uint64))
    srcs, dsts = {0: two_heads(0x1000)}, {7: two_heads(0x8000, stride=20)}
    done = check_delivery(srcs, dsts, {0: [[3, 4]]}, {7: [[5, 6]]}, [copies])
    assert (done.delivered, done.uncovered, done.by_source) == (32, 0, {0: 32})


def test_words_for_a_missing_byte() -> None:
    assert words(RIGHT[0]) == (
        "dst rank 7, region 'K', block 6: section 'K', head 0, token 2, byte 0 of the item"
        " (address 0x8078) was not delivered. Wrong bytes in all: 16"
    )


def test_words_for_a_byte_in_the_wrong_place() -> None:
    assert words((0x1038, 0x8064, 8), (0x1030, 0x806C, 8), RIGHT[1]) == (
        "dst rank 7, region 'K', block 5: section 'K', head 0, token 0, byte 0 of the item"
        " (address 0x8064) holds section 'K', head 1, token 0, byte 0 of the item"
        " (src rank 0, address 0x1038); it must hold itself. Wrong bytes in all: 16"
    )


def test_words_for_a_byte_written_twice() -> None:
    assert "section 'K', head 1, token 1, byte 3 of the item (address 0x8073) was written 2 times" in (
        words(*RIGHT, (0x103F, 0x8073, 1))
    )


def test_words_for_padding() -> None:
    assert (
        "dst rank 7, address 0x8074: byte 16 of block 5 of region 'K', padding, was written"
        " (section 'K', head 0, token 2, byte 0 of the item (src rank 0, address 0x1040))"
        " although the request does not cover it"
    ) in words((0x1030, 0x8064, 17), RIGHT[1])


def test_words_for_a_block_that_nobody_listed() -> None:
    assert "block 1 of region 'K', which is not listed, was written" in (
        words(*RIGHT, (0x1030, 0x8014, 1))
    )


def test_words_for_memory_outside_every_region() -> None:
    assert "address 0x100: outside every region of rank 7" in words(*RIGHT, (0x1030, 0x100, 1))


def test_words_for_a_block_that_no_source_lists() -> None:
    said = words(*RIGHT, src=([3],), dst=([5, 6],))
    assert "block 6: section 'K', head 0, token 2, byte 0 of the item (address 0x8078)" in said
    assert "although no source lists it" in said
    assert "block 4 of region 'K', which is not listed (src rank 0, address 0x1040)" in said


def test_words_for_placeholders() -> None:
    said = words(*RIGHT, src=([3, 4],), dst=([5, 6],), null_block=4)
    assert "although no source lists it" in said


def test_words_for_a_length_that_cannot_be() -> None:
    assert words((0x1030, 0x8064, 1 << 50)) == (
        f"{1 << 50} bytes are copied from 0x1030 to 0x8064 in dst rank 7, VRAM of device 0,"
        " where the request lists 32 bytes in all"
    )


def test_a_section_that_no_source_holds_whole_is_named() -> None:
    src = Layout([Region("K", 0, 8, 8, sections=[Section("K", (Axis("head", 0, 1),), 8)])])
    dst = Layout([Region("K", 0, 16, 8, sections=[Section("K", (Axis("head", 0, 2),), 8)])])
    with pytest.raises(DeliveryError, match="no source holds section 'K', head 1"):
        check_delivery({0: src}, {0: dst}, {0: [[1]]}, {0: [[2]]}, [])
    copies = Copies(Memory(0), Memory(0), np.array([[8, 32, 8]], np.uint64))
    blocks = {0: [[1]]}, {0: [[2]]}
    done = check_delivery({0: src}, {0: dst}, *blocks, [copies], allow_missing=["K"])
    assert (done.delivered, done.uncovered) == (8, 8)


def test_two_things_in_one_place_cannot_be_judged() -> None:
    srcs, dsts = {0: two_heads(0x1000)}, {0: two_heads(0x8000)}
    with pytest.raises(ValueError, match=r"src rank 0, VRAM of device 0: .* two things .*null_block"):
        check_delivery(srcs, dsts, {0: [[0, 0]]}, {0: [[1, 2]]}, [])
    with pytest.raises(ValueError, match=r"dst rank 0.* two things at address 0x8010"):
        check_delivery(srcs, dsts, {0: [[0, 3]]}, {0: [[1, 1]]}, [])


def test_a_section_described_in_two_ways_cannot_be_judged() -> None:
    other = Layout([Region("K", 0, 16, 8)])
    with pytest.raises(ValueError, match="section 'K' is described in two ways"):
        check_delivery({0: two_heads(0)}, {0: other}, {0: [[0]]}, {0: [[1]]}, [])


def test_positions_are_counted_with_context_parallelism_and_skip() -> None:
    section = Section("K", (Axis("token", 0, 1),), 4)
    srcs = {
        rank: Layout([Region("K", 0, 4, 8, sections=[section])], cp_rank=rank, cp_size=2)
        for rank in (0, 1)
    }
    dsts = {0: Layout([Region("K", 0, 4, 8, sections=[section])])}
    blocks: Any = {0: [Blocks([6], 1)], 1: [[7, 5]]}, {0: [Blocks([1, 2, 3], 1)]}
    # dst positions 1, 2, 3 are entry 0 of source 1, entry 1 of source 0, entry 1 of source 1.
    right = [
        Copies(Memory(1), Memory(0), np.array([[28, 4, 4], [20, 12, 4]], np.uint64)),
        Copies(Memory(0), Memory(0), np.array([[24, 8, 4]], np.uint64)),
    ]
    done = check_delivery(srcs, dsts, blocks[0], blocks[1], right)
    assert (done.delivered, done.by_source) == (12, {0: 4, 1: 8})


def test_nixl_copies_refuses_what_nixl_would() -> None:
    table = np.array([[0, 4, 0], [4, 8, 0]], np.uint64)
    with pytest.raises(DeliveryError, match="src id 2 at position 1 is outside a list of 2"):
        nixl_copies(0, 0, table, table, [0, 2], [0, 1])
    with pytest.raises(DeliveryError, match="position 0: src id 0 has 4 bytes, dst id 1 has 8"):
        nixl_copies(0, 0, table, table, [0], [1])
    with pytest.raises(DeliveryError, match="1 src ids against 2 dst ids"):
        nixl_copies(0, 0, table, table, [0], [0, 1])
