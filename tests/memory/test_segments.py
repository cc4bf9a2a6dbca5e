"""One space of block ids over many memories: segments, against plain loops that share no arithmetic with the library.

Their blocks are told one by one here (``Memory`` below), so numbering, tables, ids, cuts and ranges can be compared
with lists that a reader checks by eye.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from time import thread_time
from typing import Any, NamedTuple

import numpy as np
import pytest

from nixldesc import (
    Axis,
    BlockIdError,
    DlistPair,
    GeometryError,
    Layout,
    PeerMismatchError,
    Region,
    Section,
    attention_sections,
    expand_table,
    plan,
)

Rows = list[tuple[int, int, int]]


class Drawn(NamedTuple):
    """A region in segments, and its blocks one by one: (address, device)."""

    region: Region
    blocks: list[tuple[int, int]]


def drawn(rnd: random.Random, name: str, *, at: int = 0, mem_type: str = "VRAM") -> Drawn:
    length = rnd.choice((1, 8, 24))
    stride = length + rnd.choice((0, 0, 3, 40))
    rows: Rows = []
    ends: dict[int, int] = {}
    for _ in range(rnd.randint(1, 7)):
        device = rnd.choice((0, 0, 0, 5))
        base = ends.get(device, at) + rnd.choice((0, 0, 16, 500))
        blocks = rnd.randint(1, 6)
        ends[device] = base + stride * blocks
        rows.append((base, blocks, device))
    rnd.shuffle(rows)
    region = Region.segmented(name, length, rows, block_stride=stride, mem_type=mem_type)
    return Drawn(region, [(base + stride * n, device) for base, blocks, device in rows for n in range(blocks)])


# -- numbering ---------------------------------------------------------------------------------


def test_blocks_are_numbered_through() -> None:
    region = Region.segmented("pool", 16, [(0x1000, 2), (0x9000, 3, 7)], block_stride=32, groups=(1,), mem_type="FILE")
    assert (region.num_blocks, region.base_addr, region.device_id) == (5, 0x1000, 0)
    assert region.segments.tolist() == [[0x1000, 2, 0], [0x9000, 3, 7]]
    assert region.segments.dtype == np.uint64
    assert not region.segments.flags.writeable
    layout = Layout([region])
    assert layout.table().tolist() == [[0x1000, 16, 0, 32, 2], [0x9000, 16, 7, 32, 3]]
    assert layout.desc_ids([[], [4, 0, 2]]).tolist() == [4, 0, 2]
    assert [layout.address(n) for n in range(5)] == [
        (0x1000, 16, 0), (0x1020, 16, 0), (0x9000, 16, 7), (0x9020, 16, 7), (0x9040, 16, 7),
    ]  # fmt: skip
    assert "2 segments" in repr(region)


def test_one_segment_is_a_plain_region() -> None:
    plain = Region("k", 0x1000, 16, 4, device_id=3)
    assert Region.segmented("k", 16, [(0x1000, 4, 3)]) == plain
    assert Region.segmented("k", 16, np.array([[0x1000, 4, 3]], np.int32)) == plain
    assert plain.segments.tolist() == [[0x1000, 4, 3]]


@pytest.mark.parametrize("seed", range(40))
def test_random_segments(seed: int) -> None:
    rnd = random.Random(seed)
    found = [drawn(rnd, f"r{n}") for n in range(rnd.randint(1, 4))]
    layout = Layout([one.region for one in found])
    descs = [(addr, one.region.block_len, device) for one in found for addr, device in one.blocks]
    assert [tuple(row) for row in layout.dense_table().tolist()] == descs
    assert expand_table(layout.table()).tolist() == layout.dense_table().tolist()
    assert len(layout.table()) == sum(len(one.region.segments) for one in found)
    assert [layout.address(n) for n in range(len(descs))] == descs
    flat = [(number, block) for number, one in enumerate(found) for block in range(len(one.blocks))]
    assert [layout.locate(n) for n in range(len(descs))] == flat
    ids = [rnd.randrange(min(one.region.num_blocks for one in found)) for _ in range(9)]
    starts = [flat.index((number, 0)) for number in range(len(found))]
    assert layout.desc_ids([ids]).tolist() == [start + block for start in starts for block in ids]


def test_block_ids_beyond_the_last_segment() -> None:
    layout = Layout([Region.segmented("pool", 16, [(0, 2), (0x100, 3)])])
    with pytest.raises(BlockIdError, match=r"block id 5 .*'pool' has 5 blocks"):
        layout.desc_ids([[4, 5]])
    with pytest.raises(BlockIdError, match="desc id 5"):
        layout.address(5)


# -- what a layout owes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ([(0, 2), (64, 0)], "'p': segment 1 has no blocks"),
        ([(0, 4), (100, 1), (32, 1)], r"segments 0 and 2 \(device 0\) lie in the same memory: \[0x0, 0x40\) and"),
        ([(0, 4, 1), (0, 4, 2), (48, 1, 2)], r"segments 1 and 2 \(device 2\)"),
        ([(0, 1), (2**64 - 31, 2)], r"segment 1 ends at address 0x1000000000000000(1|0), beyond 2\*\*64"),
        ([(0, 2**31), (2**40, 2**31)], "descriptors"),
        ([(0, 2**63), (2**40, 2**63)], r"2\*\*64"),
        ([], "segments is empty"),
        ([(0, 1), (64,)], r"segments\[1\] must have 2 or 3 numbers, got 1"),
        ([(0, 1), (-64, 1)], "from 0 to"),
        ([(0, 1), (2**64, 1)], "from 0 to"),
        (np.zeros((2, 4), np.int64), "rows of 2 or 3 integers"),
        (np.array([[0, 1], [-64, 1]]), "must not be negative, got -64"),
    ],
)  # fmt: skip
def test_segments_that_cannot_be(segments: Any, words: str) -> None:
    with pytest.raises(GeometryError, match=words):
        Layout([Region.segmented("p", 16, segments)])


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ("ab", "rows of"),
        ([(0, 1), 3], r"segments\[1\] must be"),
        ([(0, 1.0)], r"segments\[0\]"),
        ([(0, True)], r"segments\[0\]"),
        (np.zeros((2, 2)), "dtype float64"),
        (None, "rows of"),
    ],
)
def test_segments_of_no_integers(segments: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Region.segmented("p", 16, segments)


def test_the_last_byte_of_the_address_space() -> None:
    layout = Layout([Region.segmented("p", 16, [(0, 1), (2**64 - 32, 2)])])
    assert layout.memory_ranges() == [(0, 16, 0, "VRAM"), (2**64 - 32, 32, 0, "VRAM")]
    assert layout.split_at(layout.memory_ranges()) == layout
    assert Layout.from_dict(layout.to_dict()) == layout


def test_layouts_keep_their_segments() -> None:
    layout = Layout(
        [
            Region("k", 0, 16, 4),
            Region.segmented("f", 8, [(0, 2, 11), (0, 3, 12)], mem_type="FILE"),
            Region.segmented("g", 8, [(64, 2, 11), (64, 3, 12)], mem_type="FILE", groups=(0,)),
        ]
    )
    assert layout.select(["g"]).table().tolist() == [[64, 8, 11, 8, 2], [64, 8, 12, 8, 3]]
    assert layout.by_mem_type()["FILE"].num_descs == 10
    assert len({layout, copy.deepcopy(layout), pickle.loads(pickle.dumps(layout))}) == 1
    other = Layout(
        [
            *layout.regions[:2],
            Region.segmented("g", 8, [(64, 3, 11), (64, 2, 12)], mem_type="FILE", groups=(0,)),
        ]
    )
    assert other != layout
    assert other.signature() == layout.signature()


# -- where registrations end -------------------------------------------------------------------


def cut_by_hand(found: list[Drawn], ranges: list[tuple[int, int, int, str]]) -> list[Rows] | tuple[str, int]:
    """Segments that end where ranges do, block by block; or the region and block that no range holds."""
    result = []
    for region, blocks in found:
        rows: list[list[int]] = []
        before = None
        begins = {sum(region.segments[:n, 1].tolist()) for n in range(len(region.segments))}
        for number, (addr, device) in enumerate(blocks):
            holders = [
                r for r in ranges
                if r[2:] == (device, region.mem_type) and r[0] <= addr and addr + region.block_len <= r[0] + r[1]
            ]  # fmt: skip
            if not holders:
                return region.name, number
            if holders[0] == before and number not in begins:
                rows[-1][1] += 1
            else:
                rows.append([addr, 1, device])
            before = holders[0]
        result.append([(base, count, device) for base, count, device in rows])
    return result


def random_cuts(rnd: random.Random, found: list[Drawn]) -> list[tuple[int, int, int, str]]:
    """Ranges cut anywhere or, so that it may succeed, where a block begins; now and then with a gap."""
    ranges = []
    for mem_type in ("VRAM", "DRAM"):
        for device in (0, 5):
            bounds = {rnd.randrange(1, 600) for _ in range(rnd.choice((0, 0, 1)))}
            bounds |= {addr for one in found[:1] for addr, dev in one.blocks if dev == device and rnd.random() < 0.5}
            edges = [0, *sorted(bounds - {0}), 5000]
            ranges += [(a, b - a, device, mem_type) for a, b in pairwise(edges) if rnd.random() > 0.03]
    rnd.shuffle(ranges)
    return ranges


def test_split_at() -> None:
    cuts = refusals = 0
    for seed in range(200):
        rnd = random.Random(seed)
        found = [drawn(rnd, f"r{n}", at=rnd.choice((0, 300)), mem_type=rnd.choice(("VRAM", "DRAM"))) for n in range(3)]
        layout = Layout([one.region for one in found])
        ranges = random_cuts(rnd, found)
        want = cut_by_hand(found, ranges)
        if isinstance(want, tuple):
            region, block = want
            with pytest.raises(GeometryError, match=f"region '{region}': block {block}, .* inside none of the ranges"):
                layout.split_at(ranges)
            refusals += 1
            continue
        cut = layout.split_at(ranges)
        assert [[tuple(row) for row in region.segments.tolist()] for region in cut.regions] == want
        assert cut.dense_table().tolist() == layout.dense_table().tolist()
        cuts += cut != layout
    assert cuts > 40
    assert refusals > 40


def test_words_about_ranges() -> None:
    layout = Layout([Region("k", 0x1000, 16, 8)])
    words = r"block 2, \[0x1020, 0x1030\) of VRAM 0, .*the nearest is \[0x1000, 0x1028\)"
    with pytest.raises(GeometryError, match=words):
        layout.split_at([(0x1000, 40, 0, "VRAM"), (0x1028, 400, 0, "VRAM")])
    with pytest.raises(GeometryError, match=r"block 0, .* of VRAM 0, lies inside none of the ranges$"):
        layout.split_at([(0x1000, 400, 0, "DRAM"), (0x1000, 400, 1, "VRAM")])
    with pytest.raises(GeometryError, match="block 0"):
        layout.split_at([])
    with pytest.raises(GeometryError, match=r"\[0x0, 0x11\) and \[0x10, 0x20\) of VRAM 0 overlap"):
        layout.split_at([(16, 16, 0, "VRAM"), (0, 17, 0, "VRAM")])
    with pytest.raises(GeometryError, match=r"ranges\[0\]: addr 0 and len 0"):
        layout.split_at([(0, 0, 0, "VRAM")])
    with pytest.raises(GeometryError, match="device_id"):
        layout.split_at([(0, 16, -1, "VRAM")])
    for odd in ("ab", [(0, 16, 0)], [(0.5, 16, 0, "VRAM")], [(0, 16, 0, 5)], [(0, 16, 0, "")], None):
        with pytest.raises((TypeError, GeometryError)):
            layout.split_at(odd)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_memory_ranges(seed: int) -> None:
    """Overlapping ranges of one memory joined, touching ones apart: byte by byte."""
    rnd = random.Random(seed)
    found = [drawn(rnd, f"r{n}", at=rnd.choice((0, 30, 900)), mem_type=rnd.choice(("VRAM", "DRAM"))) for n in range(4)]
    spans = []
    for one in found:
        region = one.region
        for base, blocks, device in region.segments.tolist():
            spans.append((region.mem_type, device, base, base + (blocks - 1) * region.block_stride + region.block_len))
    spans.sort()
    joined: list[list[Any]] = []
    for mem, device, start, stop in spans:
        if joined and joined[-1][:2] == [mem, device] and start < joined[-1][3]:
            joined[-1][3] = max(stop, joined[-1][3])
        else:
            joined.append([mem, device, start, stop])
    want = [(start, stop - start, device, mem) for mem, device, start, stop in joined]
    assert Layout([one.region for one in found]).memory_ranges() == want


# -- plans -------------------------------------------------------------------------------------


def pool_in_pieces(name: str, tokens: int, pieces: list[tuple[int, int]], tp: tuple[int, int]) -> Layout:
    heads = attention_sections(
        name, num_kv_heads=4, tp_size=tp[1], tp_rank=tp[0], block_tokens=tokens, token_head_bytes=4, order="NHD"
    )
    stride = heads[-1].end + 8
    return Layout([Region.segmented(name, heads[-1].end, pieces, block_stride=stride, sections=heads)])


def item(layout: Layout, blocks: list[int], tokens: int, token: int, head: int, first_head: int) -> int:
    """The address of one head of one token, by hand."""
    [region] = layout.regions
    block = blocks[token // tokens]
    for base, count, _ in region.segments.tolist():
        if block < count:
            heads = region.block_len // (4 * tokens)
            return int(base + block * region.block_stride + (token % tokens * heads + head - first_head) * 4)
        block -= count
    raise AssertionError


@pytest.mark.parametrize("tokens", [(4, 4), (4, 8), (8, 4), (4, 6)])
def test_a_plan_over_pieces(tokens: tuple[int, int]) -> None:
    """TP 1 to TP 2 and unequal blocks, both sides in pieces."""
    src = pool_in_pieces("k", tokens[0], [(0x10000, 3), (0x40000, 4), (0x20000, 20)], (0, 1))
    dst = pool_in_pieces("k", tokens[1], [(0x90000, 2), (0x80000, 9), (0xA0000, 9)], (1, 2))
    src_blocks, dst_blocks = [25, 2, 3, 7, 6, 0], [1, 2, 19, 0, 11, 10]
    total = min(tokens[0], tokens[1]) * 6 // 24 * 24
    src_blocks, dst_blocks = src_blocks[: total // tokens[0]], dst_blocks[: total // tokens[1]]
    [[pair]] = plan(dst, {0: src}).values()
    moves = pair.moves(*pair.desc_ids([src_blocks], [dst_blocks]))
    where = {dst + n: src + n for src, dst, length in moves.tolist() for n in range(length)}
    want = {
        item(dst, dst_blocks, tokens[1], token, head, 2) + n: item(src, src_blocks, tokens[0], token, head, 0) + n
        for token in range(total)
        for head in (2, 3)
        for n in range(4)
    }
    assert where == want
    assert pair.src.num_descs % 27 == 0  # every block of every piece
    assert pair.src.locate(pair.src.num_descs - 1)[0] == len(pair.src.regions) - 1


def test_bind_to_other_pieces() -> None:
    a = pool_in_pieces("k", 4, [(0x10000, 3), (0x40000, 4)], (0, 1))
    b = pool_in_pieces("k", 4, [(0x50000, 2), (0x60000, 2), (0x70000, 9)], (0, 1))
    plain = pool_in_pieces("k", 4, [(0x80000, 10)], (0, 1))
    made = plan(plain, {0: a})
    for src, dst in ((b, plain), (plain, a), (a, b)):
        bound, fresh = made.bind(dst, {0: src}), plan(dst, {0: src})
        for ours, theirs in zip(bound[0], fresh[0], strict=True):
            assert ours == theirs
            assert ours.src.table().tolist() == theirs.src.table().tolist()
            assert ours.dst.table().tolist() == theirs.dst.table().tolist()


def test_merged_ops_end_where_segments_do() -> None:
    """NIXL joins neighbours inside a row; a segment is a row, also where the next begins at the very next byte."""
    whole = Layout([Region("k", 0, 16, 12)])
    pieces = Layout([Region.segmented("k", 16, [(0x1000, 4), (0x1040, 5), (0x9000, 3)])])
    pair = DlistPair(pieces, whole)
    ids = pair.desc_ids([range(12)], [range(12)])
    assert pair.merged_ops(*ids) == 3
    assert pair.moves(*ids, merge=True).tolist() == [[0x1000, 0, 144], [0x9000, 144, 48]]  # bytes do touch
    assert pair.merged_ops(*pair.desc_ids([[2, 3, 4, 5]], [[2, 3, 4, 5]])) == 2
    assert DlistPair(whole, pieces).merged_ops(*ids) == 3


def test_derived_regions_over_pieces() -> None:
    """Sub-blocks and runs of a segmented region: one region, a row per piece and segment, ids in the table's order."""
    section = Section("k", (Axis("head", 0, 2), Axis("token", 0, 8), Axis("byte", 0, 4)), 1)
    src = Layout([Region.segmented("k", 64, [(0, 3), (0x1000, 2)], block_stride=80, sections=[section])])
    want = Section("k", (Axis("token", 0, 4), Axis("head", 0, 2), Axis("byte", 0, 4)), 1)
    dst = Layout([Region.segmented("k", 32, [(0x5000, 6), (0x9000, 9)], sections=[want])])
    [[pair]] = plan(dst, {0: src}).values()
    for side in (pair.src, pair.dst):
        dense = side.dense_table().tolist()
        assert len(dense) == side.num_descs
        for n in range(side.num_descs):
            assert side.address(n) == tuple(dense[n])


def test_pieces_of_another_engine_are_a_mismatch_only_where_it_matters() -> None:
    a = pool_in_pieces("k", 4, [(0x10000, 3), (0x40000, 4)], (0, 1))
    other = Layout([Region("k", 0, 16, 4)])
    with pytest.raises(PeerMismatchError):
        plan(a, {0: a}).bind(a, {0: other})


# -- the wire ----------------------------------------------------------------------------------


def test_brief_on_the_wire() -> None:
    objects = Layout([Region.segmented("o", 16, [(0, 1, 1000 + n) for n in range(50_000)], mem_type="OBJ")])
    told = objects.to_dict()
    assert told["segments"] == {"0": [0, 1, {"first": 1000, "step": 1, "count": 50_000}]}
    assert len(json.dumps(told)) < 300
    assert Layout.from_dict(json.loads(json.dumps(told))) == objects
    files = Layout([Region.segmented("f", 16, [(0, 64, fd) for fd in (9, 4, 5)], mem_type="FILE")])
    assert files.to_dict()["segments"] == {"0": [0, 64, [9, 4, 5]]}


@pytest.mark.parametrize("seed", range(20))
def test_there_and_back(seed: int) -> None:
    rnd = random.Random(seed)
    layout = Layout([drawn(rnd, f"r{n}").region for n in range(3)])
    back = Layout.from_dict(json.loads(json.dumps(layout.to_dict())))
    assert back == layout
    assert back.table().tolist() == layout.table().tolist()


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ([], "segments must be a dict"),
        ({"7": [0, 1, [1, 2]]}, "'7' .*is no number of a region"),
        ({"x": [0, 1, [1, 2]]}, "is no number"),
        ({0: [0, 1, [1, 2]]}, "is no number"),
        ({"0": [0, 1]}, r"must be \[base_addrs, num_blocks, device_ids\]"),
        ({"0": [0, 1, 5]}, "columns of 0, 0, 0 entries"),
        ({"0": [0, 1, [5]]}, "columns of 0, 0, 1 entries"),
        ({"0": [[0, 64, 128], 1, [1, 2]]}, "columns of 3, 0, 2 entries"),
        ({"0": [0, 1, []]}, "a column is empty"),
        ({"0": [0, 1, [5, -1]]}, "got -1"),
        ({"0": [0, 1, [5, 2**64]]}, "in 0 to"),
        ({"0": [0, 1, [5, "6"]]}, "entry 1 must be an int"),
        ({"0": [0, "1", [5, 6]]}, "must be an int"),
        ({"0": [0, 1, {"first": 0, "step": 1, "count": 2**40}]}, r"count must be in 2 to 262144, got 1099511627776"),
        ({"0": [0, 1, {"first": 0, "step": 1, "count": 1}]}, "count must be in"),
        ({"0": [0, 1, {"first": 0, "step": -1, "count": 2}]}, "got -1"),
        ({"0": [0, 1, {"first": 5, "step": -1, "count": 2}]}, "step must not be negative"),
        ({"0": [0, 1, {"first": 2**63, "step": 2**62, "count": 5}]}, "in 0 to"),
        ({"0": [0, 1, {"first": 0, "step": 1}]}, "has the keys first, step and count"),
        ({"0": [0, 1, {"first": 0, "step": 0, "count": 9}]}, "lie in the same memory"),
        ({"0": [0, [1, 0], [5, 6]]}, "segment 1 has no blocks"),
        ({"0": [0, 2**40, [5, 6]]}, "descriptors"),
        ({"0": [2**64 - 16, 2, [5, 6]]}, r"beyond 2\*\*64"),
        ({"0": [0, 1, [5, 5]]}, "lie in the same memory"),
        ({"0": [0, 1, {"first": 1, "step": 1, "count": 2**18}], "1": [0, 1, [1, 2]]}, "more than 262144 segments"),
        ({"0": [0, 1, [5, 6]], "00": [0, 1, [5, 6]]}, "told twice"),
    ],
)  # fmt: skip
def test_a_strangers_segments(segments: Any, words: str) -> None:
    told = {"version": 2, "names": ["a", "b"], "base_addrs": [0, 0], "block_lens": 16, "num_blocks": [2, 2]}
    tracemalloc.start()
    try:
        with pytest.raises(GeometryError, match=words):
            Layout.from_dict({**told, "segments": segments})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**26


# -- many --------------------------------------------------------------------------------------


def seconds(call: Callable[[], Any]) -> float:
    """The least processor time of three calls."""
    found = []
    for _ in range(3):
        begin = thread_time()
        call()
        found.append(thread_time() - begin)
    return min(found)


def test_a_hundred_thousand_segments() -> None:
    """Tens of milliseconds each where the machine is free: here with room, for a machine that is not."""
    count = 100_000
    rows = np.zeros((count, 3), np.int64)
    rows[:, 0] = np.random.default_rng(0).permutation(count) * 2**20
    rows[:, 1] = 4
    region = Region.segmented("pool", 2**16, rows, mem_type="DRAM")
    layout, near = Layout([region]), Layout([Region("pool", 0, 2**16, 500)])
    told = layout.to_dict()
    pair = plan(near, {0: layout})[0][0]
    lists = [range(7, 4 * count, 801)], [range(500)]
    ranges = layout.memory_ranges()
    work: dict[str, Callable[[], Any]] = {
        "made": lambda: Layout([Region.segmented("pool", 2**16, rows, mem_type="DRAM")]),
        "tabled": lambda: Layout([region]).table(),
        "planned": lambda: plan(near, {0: layout})[0][0].src.table(),
        "bound": lambda: plan(near, {0: layout}).bind(near, {0: layout})[0][0].src.table(),
        "told": layout.to_dict,
        "read": lambda: Layout.from_dict(told),
        "ids": lambda: pair.desc_ids(*lists),
        "ranges": layout.memory_ranges,
        "cut": lambda: layout.split_at(ranges),
    }
    took = {words: seconds(call) for words, call in work.items()}
    assert max(took.values()) < 0.5, took
    assert took["ids"] < 0.002, took
    assert len(pair.desc_ids(*lists)[0]) == 500
    assert layout.split_at(ranges) == layout
