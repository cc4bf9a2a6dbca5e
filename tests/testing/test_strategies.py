"""The shipped random geometries: they reach every kind of pair, and keep within their limits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import oracle
from hypothesis import given, settings

from nixldesc import Blocks, Layout, Region, Section
from nixldesc.testing import EnginePair, Limits, Transfer, random_pair, random_request, tp_pairs, transfers
from nixldesc.testing.models import random_model
from nixldesc.testing.strategies import _layout

few = settings(max_examples=50)


def sections_of(layouts: dict[int, Layout]) -> Iterator[tuple[Region, Section]]:
    for layout in layouts.values():
        for region in layout.regions:
            for section in region.sections:
                yield region, section


def widths(transfer: Transfer) -> Iterator[str]:
    p_cp, d_cp = (side[0].cp_size for side in map(ranks, (transfer.srcs, transfer.dsts)))
    yield f"context parallel {p_cp}:{d_cp}"
    p, d = len(transfer.srcs) // p_cp, len(transfer.dsts) // d_cp
    yield "equal widths" if p == d else "source wider" if p > d else "destination wider"
    if p % d and d % p:
        yield "widths that do not divide"
    if any(size < len(transfer.dsts) for _, size in transfer.pair.places.values()):
        yield "pipeline stages"


def ranks(layouts: dict[int, Layout]) -> list[Layout]:
    return list(layouts.values())


def memories(layouts: dict[int, Layout]) -> Iterator[str]:
    for layout in layouts.values():
        mem_types = {region.mem_type for region in layout.regions}
        yield from mem_types
        if len(mem_types) > 1:
            yield "mixed memory"
        if len({region.num_blocks for region in layout.regions}) > 1:
            yield "unequal capacities"
        bases = {(r.mem_type, r.device_id, r.base_addr) for r in layout.regions}
        if len(bases) < len(layout.regions):
            yield "aliased regions"
        for region in layout.regions:
            if len(region.groups or ()) > 1:
                yield "a region of several groups"
            if region.block_stride > region.block_len:
                yield "padded blocks"
            if len({section.name.split(".")[0] for section in region.sections}) > 1:
                yield "packed rows"
            if len(region.segments) > 1:
                yield "segments"
        if layout.cp_tokens:
            yield "a grain in tokens"
        yield from parts(layout)


def parts(layout: Layout) -> Iterator[str]:
    held: dict[str, list[set[oracle.Cell]]] = {}
    for _, section in sections_of({0: layout}):
        held.setdefault(section.name, []).append(set(oracle.cells(section)))
        if any(axis.unit > 1 for axis in section.axes):
            yield "axes in parts"
    for boxes in held.values():
        if len(boxes) > 1:
            yield "parts"
            if any(one & other for one, other in itertools.combinations(boxes, 2)):
                yield "indices held twice"


def cut_axes(transfer: Transfer) -> Iterator[str]:
    """On how many axes the two sides hold other ranges."""
    src: dict[str, dict[str, set[tuple[int, int]]]] = {}
    for _, section in sections_of(transfer.srcs):
        for name, indices in spans(section).items():
            src.setdefault(section.name, {}).setdefault(name, set()).add(indices)
    for _, section in sections_of(transfer.dsts):
        cut = [name for name, indices in spans(section).items() if indices not in src[section.name][name]]
        if len(cut) > 1:
            yield f"{min(len(cut), 3)} axes cut differently"


def spans(section: Section) -> dict[str, tuple[int, int]]:
    cells = [dict(cell) for cell in oracle.cells(section)]
    return {name: (min(c[name] for c in cells), max(c[name] for c in cells)) for name in cells[0]}


def order(section: Section) -> list[str]:
    """Axes from the largest stride to the smallest."""
    steps = sorted(zip(section.strides, section.axes, strict=True), key=lambda pair: -pair[0])
    return [axis.name for _, axis in steps]


def differences(transfer: Transfer) -> Iterator[str]:
    src = {section.name: (region, section) for region, section in sections_of(transfer.srcs)}
    for region, section in sections_of(transfer.dsts):
        other_region, other = src[section.name]
        p_tokens, d_tokens = oracle.block_tokens(other), oracle.block_tokens(section)
        yield "tokens" if d_tokens else "state"
        if p_tokens != d_tokens:
            yield "other block_tokens"
            if p_tokens % d_tokens and d_tokens % p_tokens:
                yield "block_tokens that do not divide"
        if order(section) != order(other):
            yield "axes in another order"
        if not section.cp:
            yield "not sharded by context parallelism"
        if region.groups != other_region.groups:
            yield "other groups"
        if len(region.sections) != len(other_region.sections):
            yield "other regions"


def shards(layouts: dict[int, Layout], side: str) -> Iterator[str]:
    held: dict[str, list[str]] = {}
    for _, section in sections_of(layouts):
        held.setdefault(section.name, []).append(str(section.axes))
    for ranges in held.values():
        if 1 < len(set(ranges)) < len(ranges):
            yield f"shards with replicas on the {side} side"


def lists(transfer: Transfer) -> Iterator[str]:
    if transfer.tokens is not None:
        yield "a total of tokens"
    if transfer.pair.senders == "all":
        yield "all send"
    for tables in transfer.dst_blocks.values():
        for table in tables:
            if getattr(table, "skip", 0):
                yield "a skipped prefix"
            if getattr(table, "at", None) is not None:
                yield "explicit entries"
            if isinstance(table, (list, tuple)) and transfer.null_block in table:
                yield "placeholders"


def features(transfer: Transfer) -> set[str]:
    """What is special about a transfer."""
    return {
        *widths(transfer),
        *cut_axes(transfer),
        *memories(transfer.srcs),
        *memories(transfer.dsts),
        *differences(transfer),
        *lists(transfer),
        *shards(transfer.srcs, "source"),
        *shards(transfer.dsts, "destination"),
    }


KINDS = {
    *(f"context parallel {p}:{d}" for p in (1, 2, 3) for d in (1, 2, 3)),
    "equal widths",
    "source wider",
    "destination wider",
    "widths that do not divide",
    "pipeline stages",
    "VRAM",
    "DRAM",
    "FILE",
    "mixed memory",
    "unequal capacities",
    "aliased regions",
    "a region of several groups",
    "padded blocks",
    "packed rows",
    "tokens",
    "state",
    "other block_tokens",
    "block_tokens that do not divide",
    "axes in another order",
    "not sharded by context parallelism",
    "other groups",
    "other regions",
    "shards with replicas on the source side",
    "shards with replicas on the destination side",
    "a skipped prefix",
    "placeholders",
    "segments",
    "parts",
    "indices held twice",
    "axes in parts",
    "2 axes cut differently",
    "3 axes cut differently",
    "a grain in tokens",
    "explicit entries",
    "a total of tokens",
    "all send",
}


def test_random_transfers_reach_every_kind() -> None:
    seen: Counter[str] = Counter()
    for seed in range(600):
        rnd = Random(seed)
        pair = random_pair(rnd)
        request = random_request(rnd, pair.srcs, pair.dsts, senders=pair.senders)
        seen.update(features(Transfer(pair, request)))
    assert {kind for kind in KINDS if seen[kind] < 3} == set()
    assert set(seen) <= KINDS


def test_layouts_reach_the_ends_of_memory_and_every_spacing() -> None:
    """Planted once: no region at address 0, and blocks that never touch where their sub-blocks are apart."""
    seen: Counter[str] = Counter()
    for seed in range(1500):
        for region in _layout(Random(seed), 5, 3).regions:
            last = max(sub * region.sub_stride + region.block_len for sub in range(region.sub_blocks))
            apart = region.sub_blocks > 1 and region.sub_stride > region.block_len
            seen["address 0"] += region.base_addr == 0
            seen["beyond 2**63"] += region.base_addr > 2**63
            seen[f"{region.sub_blocks} sub-blocks"] += 1
            seen["sub-blocks apart, blocks touch"] += apart and region.block_stride == last
            seen["sub-blocks apart, and blocks alike"] += apart and region.block_stride == last + 5
            seen["sub-blocks apart, and blocks further"] += apart and region.block_stride > last + 5
            seen["whole blocks that touch"] += region.sub_blocks == 1 and region.block_stride == region.block_len
    names = ["address 0", "beyond 2**63", "1 sub-blocks", "2 sub-blocks", "3 sub-blocks", "whole blocks that touch"]
    names += ["sub-blocks apart, " + how for how in ("blocks touch", "and blocks alike", "and blocks further")]
    assert {name for name in names if seen[name] < 3} == set()
    assert set(seen) == set(names)


def test_models_have_items_and_channels_of_every_size() -> None:
    """Planted once: no head of two bytes, no state of four channels."""
    items: set[int] = set()
    channels: set[int] = set()
    for seed in range(300):
        for cache in random_model(Random(seed), Limits(kinds=("attention", "state")), sharded=False).caches:
            for part in cache.parts:
                sizes = {axis.name: axis.stop - axis.start for axis in part.axes}
                if part.tokens:
                    items.add(sizes.get("byte", 1) * part.itemsize)
                elif "channel" in sizes:
                    channels.add(sizes["channel"])
    assert items == {1, 2, 3, 4}  # odd ones and powers of two
    assert channels == {1, 2, 4, 6}  # and what three divide


@few
@given(
    transfers(
        Limits(
            tp=2,
            cp=1,
            pp=1,
            kinds=("attention", "mla"),
            mem_types=("DRAM",),
            block_tokens=(4,),
            ragged=False,
            aliased=False,
            any_order=False,
            segments=1,
            boxes=False,
            swizzled=False,
            senders=("one",),
        )
    )
)
def test_limits_are_kept(transfer: Transfer) -> None:
    never = {
        "VRAM",
        "FILE",
        "mixed memory",
        "aliased regions",
        "a region of several groups",
        "padded blocks",
        "state",
        "other block_tokens",
        "not sharded by context parallelism",
        "pipeline stages",
        "segments",
        "parts",
        "axes in parts",
        "2 axes cut differently",
        "all send",
    }
    assert features(transfer) & never == set()
    assert len(transfer.srcs) <= 2
    assert len(transfer.dsts) <= 2


@few
@given(tp_pairs())
def test_the_sources_hold_all_that_the_destinations_want(pair: EnginePair) -> None:
    held = {(section.name, cell) for _, section in sections_of(pair.srcs) for cell in oracle.cells(section)}
    for _, section in sections_of(pair.dsts):
        assert {(section.name, cell) for cell in oracle.cells(section)} <= held


@few
@given(transfers(Limits(senders=("one",))))
def test_replicas_list_the_same_positions(transfer: Transfer) -> None:
    """So that any of them may be the source: what one rank lists, all of its class list."""
    listed: dict[tuple[str, int], set[frozenset[oracle.Token]]] = {}
    for rank, layout in transfer.srcs.items():
        tokens = oracle.tokens(layout, transfer.src_blocks[rank], transfer.null_block)
        for _, section in sections_of({rank: layout}):
            key = section.name, layout.cp_rank if oracle.dealt(layout, section) else 0
            mine = frozenset(token for token in tokens if token[0] == section.name)
            listed.setdefault(key, set()).add(mine)
    assert all(len(sets) == 1 for sets in listed.values())


@few
@given(transfers())
def test_no_two_listed_blocks_share_a_byte(transfer: Transfer) -> None:
    for layouts, blocks in (
        (transfer.srcs, transfer.src_blocks),
        (transfer.dsts, transfer.dst_blocks),
    ):
        for rank, layout in layouts.items():
            taken = []
            for region in layout.regions:
                places = {piece.block: (piece.device, piece.addr) for piece in oracle.pieces(region)}
                for group in oracle.groups_of(region, len(blocks[rank])):
                    table: Any = blocks[rank][group]
                    for block in getattr(table, "ids", table):
                        if block != transfer.null_block:
                            device, start = places[int(block)]
                            taken.append((region.mem_type, device, start, start + region.block_len))
            taken.sort()
            for one, other in itertools.pairwise(taken):
                assert one[:2] != other[:2] or one[3] <= other[2]


def test_blocks_of_two_groups_share_no_memory_where_blocks_are_cut() -> None:
    """Block n of "b" lies on the second half of block n of "a", which is eight bytes long but reaches over 24."""
    regions = [
        Region("a", 0, 8, 12, block_stride=32, groups=(0,), sub_blocks=2, sub_stride=16),
        Region("b", 16, 8, 12, block_stride=32, groups=(1,)),
    ]
    layout = Layout(regions)
    listed = 0
    for seed in range(50):
        request = random_request(Random(seed), {0: layout}, {0: layout}, null_blocks=[None], most=6)
        for tables in (request.src_blocks[0], request.dst_blocks[0]):
            a, b = ({*(table.ids if isinstance(table, Blocks) else table)} for table in tables)
            assert not a & b
            listed += len(a) + len(b)
    assert listed > 500
