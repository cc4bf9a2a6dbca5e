"""One small deterministic transfer for each kind of pair that the planner covers without a flag.

Every test builds two engines, plans every dst rank, makes the copies of one request and asks the
painted-memory oracle. Most also count runs, because a right plan can still be needlessly cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from nixldesc import (
    Axis,
    Blocks,
    GeometryError,
    Layout,
    PeerMismatchError,
    Plan,
    Region,
    Section,
    attention_sections,
    kernel_blocks,
    mla_sections,
    plan,
    state_sections,
)
from nixldesc.testing.painted import Delivery, check_delivery, planned_copies

SRC, DST = 0x1000, 0x9_0000


def size(sections: Iterable[Section]) -> int:
    return max(section.end for section in sections)


def page(base: int, sections: Sequence[Section], name: str = "r", **how: Any) -> Region:
    """A region of 16 blocks that hold these sections."""
    return Region(name, base, how.pop("block_len", size(sections)), how.pop("num_blocks", 16), sections=sections, **how)


def numbered(layouts: Iterable[Layout]) -> dict[int, Layout]:
    return dict(enumerate(layouts))


def plans(srcs: Mapping[int, Layout], dsts: Mapping[int, Layout], **how: Any) -> dict[int, Plan]:
    return {
        rank: plan(layout, srcs, dst_rank=number, dst_size=len(dsts), **how)
        for number, (rank, layout) in enumerate(dsts.items())
    }


def deliver(
    srcs: Mapping[int, Layout],
    dsts: Mapping[int, Layout],
    src_blocks: Any,
    dst_blocks: Any,
    **how: Any,
) -> Delivery:
    """Plan, copy, check. Tables that all ranks of a side share may be given once, as a list; plain ones start at 0."""

    def each(blocks: Any, ranks: Iterable[int]) -> dict[int, Any]:
        return blocks if isinstance(blocks, dict) else dict.fromkeys(ranks, blocks)

    def stands(tables: Any) -> list[Any]:
        return [table if isinstance(table, Blocks) else Blocks(table) for table in tables]

    src_blocks = each(src_blocks, srcs)
    dst_blocks = {rank: stands(tables) for rank, tables in each(dst_blocks, dsts).items()}
    copies = planned_copies(plans(srcs, dsts), src_blocks, dst_blocks, **how)
    return check_delivery(srcs, dsts, src_blocks, dst_blocks, copies, **how)


def runs(found: Mapping[int, Plan]) -> dict[int, dict[int, int]]:
    """dst rank -> src rank -> derived regions, each one run per (sub-)block."""
    return {
        dst: {src: sum(len(pair.src.regions) for pair in pairs) for src, pairs in one.items()}
        for dst, one in found.items()
    }


def heads(base: int, tp: int, *, of: int = 4, tokens: int = 2, **how: Any) -> dict[int, Layout]:
    """An attention engine of any width: one region, ``of`` heads, 4 bytes per token and head."""

    def sections(rank: int) -> Any:
        return attention_sections(
            "L0",
            num_kv_heads=of,
            tp_size=tp,
            tp_rank=rank,
            block_tokens=tokens,
            token_head_bytes=4,
            **how,
        )

    return numbered(Layout([page(base, sections(rank))]) for rank in range(tp))


# -- tensor parallelism ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "d", "of"),
    [
        (2, 2, 4),
        (4, 2, 4),
        (1, 4, 4),
        (2, 4, 4),
        (3, 2, 6),
        (2, 3, 6),
        (6, 4, 12),
        (3, 1, 3),
    ],
)
@pytest.mark.parametrize("orders", [("HND", "HND"), ("NHD", "NHD"), ("HND", "NHD")])
def test_tensor_parallel_sizes(p: int, d: int, of: int, orders: tuple[str, str]) -> None:
    srcs, dsts = heads(SRC, p, of=of, order=orders[0]), heads(DST, d, of=of, order=orders[1])
    done = deliver(srcs, dsts, [[3, 1, 9]], [[7, 8, 2]])
    assert done.delivered == 3 * of * 2 * 4


def test_equal_tensor_parallel_is_one_run_per_block() -> None:
    found = plans(heads(SRC, 2), heads(DST, 2))
    assert runs(found) == {0: {0: 1}, 1: {1: 1}}


def test_head_major_pages_are_one_run_per_block_and_source() -> None:
    assert runs(plans(heads(SRC, 4), heads(DST, 2))) == {0: {0: 1, 1: 1}, 1: {2: 1, 3: 1}}
    assert runs(plans(heads(SRC, 1), heads(DST, 2))) == {0: {0: 1}, 1: {0: 1}}


def test_three_against_two() -> None:
    found = plans(heads(SRC, 3, of=6), heads(DST, 2, of=6))
    assert runs(found) == {0: {0: 1, 1: 1}, 1: {1: 1, 2: 1}}


@pytest.mark.parametrize(("p", "d", "of"), [(4, 1, 2), (1, 4, 2), (4, 8, 2), (8, 4, 2), (6, 4, 2)])
def test_heads_replicated_because_there_are_more_ranks(p: int, d: int, of: int) -> None:
    srcs, dsts = heads(SRC, p, of=of), heads(DST, d, of=of)
    done = deliver(srcs, dsts, [[3, 1]], [[7, 8]])
    assert done.delivered == sum(size(x.regions[0].sections) for x in dsts.values()) * 2
    readers = [set(one) for one in plans(srcs, dsts).values()]
    if d >= p:
        assert readers == [{rank * p // d} for rank in range(d)]


def test_mla_is_whole_on_every_rank() -> None:
    def engine(base: int, tp: int) -> dict[int, Layout]:
        sections = mla_sections("L0", block_tokens=2, token_bytes=12)
        return numbered(Layout([page(base, sections)]) for _ in range(tp))

    done = deliver(engine(SRC, 4), engine(DST, 2), [[3, 4]], [[1, 2]])
    assert done.delivered == 2 * 2 * 24
    assert runs(plans(engine(SRC, 4), engine(DST, 2))) == {0: {0: 1}, 1: {2: 1}}
    assert runs(plans(engine(SRC, 1), engine(DST, 3))) == {0: {0: 1}, 1: {0: 1}, 2: {0: 1}}


# -- pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1), (2, 2), (3, 2)])
def test_blocks_first_against_blocks_first(p: int, d: int) -> None:
    srcs = heads(SRC, p, of=6, kv="blocks_first")
    dsts = heads(DST, d, of=6, kv="blocks_first", order="NHD")
    assert deliver(srcs, dsts, [[3, 1]], [[7, 8]]).delivered == 2 * 6 * 2 * 4 * 2


def kv_regions(base: int, tp: int) -> dict[int, Layout]:
    """K and V of the layer in a region each."""
    layouts = []
    for rank in range(tp):
        both = attention_sections(
            "L0",
            num_kv_heads=4,
            tp_size=tp,
            tp_rank=rank,
            block_tokens=2,
            token_head_bytes=4,
            kv="blocks_first",
        )
        regions = [
            page(base + 0x1000 * number, [Section(s.name, s.axes, s.itemsize)], s.name) for number, s in enumerate(both)
        ]
        layouts.append(Layout(regions))
    return numbered(layouts)


@pytest.mark.parametrize(("p", "d"), [(1, 1), (2, 1), (1, 2)])
def test_joint_against_separate_regions_both_ways(p: int, d: int) -> None:
    joint, apart = heads(SRC, p, kv="blocks_first"), kv_regions(DST, d)
    want = 2 * 4 * 2 * 4 * 2
    assert deliver(joint, apart, [[3, 1]], [[7, 8]]).delivered == want
    assert deliver(kv_regions(SRC, p), heads(DST, d, kv="blocks_first"), [[3, 1]], [[7, 8]]).delivered == want


def test_hnd_blocks_first_is_one_run_per_block_and_part() -> None:
    found = plans(heads(SRC, 2, kv="blocks_first"), heads(DST, 1, kv="blocks_first"))
    assert runs(found) == {0: {0: 2, 1: 2}}
    found = plans(heads(SRC, 2, kv="blocks_first"), heads(DST, 2, kv="blocks_first"))
    assert runs(found) == {0: {0: 1}, 1: {1: 1}}


def test_quantisation_scales_behind_the_data_of_all_heads() -> None:
    def engine(base: int, tp: int) -> dict[int, Layout]:
        layouts = []
        for rank in range(tp):
            mine = Axis("head", 4 * rank // tp, 4 * (rank + 1) // tp)
            data = Section("L0.data", (mine, Axis("token", 0, 2)), 8, dtype="fp4x2")
            scale = Section("L0.scale", (mine, Axis("token", 0, 2)), 1, offset=data.end)
            layouts.append(Layout([page(base, [data, scale])]))
        return numbered(layouts)

    for p, d in ((1, 2), (2, 1), (4, 2), (2, 2)):
        assert deliver(engine(SRC, p), engine(DST, d), [[3, 1]], [[7, 8]]).delivered == 2 * 72
    assert runs(plans(engine(SRC, 2), engine(DST, 1))) == {0: {0: 2, 1: 2}}
    assert runs(plans(engine(SRC, 2), engine(DST, 2))) == {0: {0: 1}, 1: {1: 1}}


# -- recurrent state ---------------------------------------------------------------------------

STATES: dict[str, dict[str, Any]] = {
    "mamba1": {"projections": {"x": 8}, "ssm_shape": (8, 3)},
    "mamba2": {"projections": {"x": 8, "B": 4, "C": 4}, "ssm_shape": (4, 2, 3)},
    "gdn": {"projections": {"q": 4, "k": 4, "v": 8}, "ssm_shape": (4, 2, 2)},
    "kda": {"projections": {"q": 4, "k": 4, "v": 4}, "ssm_shape": (4, 1, 5)},
    "conv only": {"projections": {"x": 8}, "ssm_shape": None},
}


def states(base: int, tp: int, kind: str, order: Any = "DS", **how: Any) -> dict[int, Layout]:
    padding = how.pop("padding", 0)
    layouts = []
    for rank in range(tp):
        sections = state_sections(
            "L0",
            conv_rows=3,
            conv_itemsize=2,
            ssm_itemsize=4,
            tp_size=tp,
            tp_rank=rank,
            conv_order=order,
            **STATES[kind],
            **how,
        )
        layouts.append(Layout([page(base, sections, block_len=size(sections) + padding)]))
    return numbered(layouts)


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("orders", [("DS", "DS"), ("SD", "SD"), ("DS", "SD"), ("SD", "DS")])
@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1), (4, 2), (2, 2)])
def test_recurrent_state(kind: str, orders: tuple[str, str], p: int, d: int) -> None:
    srcs, dsts = states(SRC, p, kind, orders[0]), states(DST, d, kind, orders[1])
    whole = sum(s.nbytes for s in states(0, 1, kind)[0].regions[0].sections)
    assert deliver(srcs, dsts, [[3]], [[7]]).delivered == whole


@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1), (4, 2), (2, 2)])
@pytest.mark.parametrize("padding", [0, 40])
def test_b_and_c_replicated(p: int, d: int, padding: int) -> None:
    how: dict[str, Any] = {"replicated": ("B", "C"), "padding": padding}
    srcs, dsts = states(SRC, p, "mamba2", **how), states(DST, d, "mamba2", "SD", **how)
    x, b, c, ssm = (s.nbytes for s in states(0, 1, "mamba2")[0].regions[0].sections)
    assert deliver(srcs, dsts, [[3]], [[7]]).delivered == x + ssm + d * (b + c)


def test_b_and_c_replicated_on_one_side_only() -> None:
    how: dict[str, Any] = {"replicated": ("B", "C")}
    for srcs, dsts, copies in (
        (states(SRC, 2, "mamba2", **how), states(DST, 4, "mamba2"), 1),
        (states(SRC, 4, "mamba2"), states(DST, 2, "mamba2", **how), 2),
    ):
        x, b, c, ssm = (s.nbytes for s in states(0, 1, "mamba2")[0].regions[0].sections)
        assert deliver(srcs, dsts, [[3]], [[7]]).delivered == x + ssm + copies * (b + c)


def test_equal_widths_move_a_state_page_in_one_run() -> None:
    for order in ("DS", "SD"):
        found = plans(states(SRC, 2, "mamba2", order), states(DST, 2, "mamba2", order))
        assert runs(found) == {0: {0: 1}, 1: {1: 1}}


def test_state_pages_padded_differently() -> None:
    srcs, dsts = states(SRC, 2, "gdn", padding=100), states(DST, 1, "gdn", padding=7)
    deliver(srcs, dsts, [[0, 3]], [[0, 7]], null_block=0)


def test_attention_mla_and_state_in_one_engine() -> None:
    def engine(base: int, tp: int) -> dict[int, Layout]:
        layouts = []
        for rank in range(tp):
            how: dict[str, Any] = {"tp_size": tp, "tp_rank": rank}
            attention = attention_sections("L0", num_kv_heads=2, block_tokens=2, token_head_bytes=4, **how)
            latent = mla_sections("L1", block_tokens=2, token_bytes=6)
            state = state_sections("L2", conv_rows=3, conv_itemsize=2, ssm_itemsize=4, **STATES["mamba2"], **how)
            layouts.append(
                Layout(
                    [
                        page(base, attention, "a", groups=(0,)),
                        page(base + 0x1000, latent, "m", groups=(0,)),
                        page(base + 0x2000, state, "s", groups=(1,)),
                    ]
                )
            )
        return numbered(layouts)

    for p, d in ((4, 1), (4, 2), (1, 4)):
        deliver(engine(SRC, p), engine(DST, d), [[3, 1], [5]], [[7, 8], [2]])
    # Two heads on four ranks: a rank with a duplicate head sends state, but no attention.
    found = plans(engine(SRC, 4), engine(DST, 1))[0]
    names = {src: {n for pair in pairs for o in pair.origin for n in o[2]} for src, pairs in found.items()}
    assert [rank for rank in names if "L0" in names[rank]] == [0, 2]
    assert [rank for rank in names if "L2.ssm" in names[rank]] == [0, 1, 2, 3]


# -- regions -----------------------------------------------------------------------------------


def layers(count: int, **how: Any) -> list[tuple[Section, ...]]:
    return [
        attention_sections(
            f"L{number}",
            num_kv_heads=4,
            tp_size=how.get("tp", 1),
            tp_rank=how.get("rank", 0),
            block_tokens=2,
            token_head_bytes=4,
            offset=how.get("step", 0) * number,
        )
        for number in range(count)
    ]


def per_layer(base: int, tp: int, count: int = 3) -> dict[int, Layout]:
    return numbered(
        Layout(
            [
                page(base + 0x1000 * number, sections, f"region{number}")
                for number, sections in enumerate(layers(count, tp=tp, rank=rank))
            ]
        )
        for rank in range(tp)
    )


def packed(base: int, tp: int, count: int = 3) -> dict[int, Layout]:
    """One region whose rows hold all layers' pages."""
    step = 32 // tp
    return numbered(Layout([page(base, sum(layers(count, tp=tp, rank=rank, step=step), ()))]) for rank in range(tp))


@pytest.mark.parametrize(("p", "d"), [(1, 1), (2, 1), (1, 2)])
def test_packed_rows_against_a_region_per_layer_both_ways(p: int, d: int) -> None:
    for srcs, dsts in ((packed(SRC, p), per_layer(DST, d)), (per_layer(SRC, p), packed(DST, d))):
        assert deliver(srcs, dsts, [[3, 1]], [[7, 8]]).delivered == 3 * 2 * 32
    assert runs(plans(packed(SRC, 1), per_layer(DST, 1))) == {0: {0: 3}}
    assert runs(plans(packed(SRC, 1), packed(DST, 1))) == {0: {0: 1}}


def test_pipeline_stages_cut_unevenly_on_both_sides() -> None:
    def stages(base: int, sizes: Sequence[int]) -> dict[int, Layout]:
        pages = layers(15)
        found = []
        for number, count in enumerate(sizes):
            first = sum(sizes[:number])
            found.append(Layout([page(base + 0x1000 * n, pages[n], f"region{n}") for n in range(first, first + count)]))
        return numbered(found)

    srcs, dsts = stages(SRC, (7, 8)), stages(DST, (5, 5, 5))
    found = {rank: plan(layout, srcs) for rank, layout in dsts.items()}
    blocks = {key: [[3, 1]] for key in range(3)}, {key: [[7, 8]] for key in range(3)}
    done = check_delivery(srcs, dsts, *blocks, planned_copies(found, *blocks))
    assert done.delivered == 15 * 2 * 32
    assert runs(found) == {0: {0: 5}, 1: {0: 2, 1: 3}, 2: {1: 5}}


def test_a_stage_pushes_its_own_layers() -> None:
    whole = per_layer(DST, 1)
    first = {0: Layout(per_layer(SRC, 1)[0].regions[:2])}
    with pytest.raises(PeerMismatchError, match="L2"):
        plan(whole[0], first)
    found = plan(whole[0], first, allow_missing=True)
    assert set(found.missing) == {"L2"}
    blocks = {0: [[3]]}, {0: [[7]]}
    copies = planned_copies({0: found}, *blocks)
    done = check_delivery(first, whole, *blocks, copies, allow_missing=found.missing)
    assert (done.delivered, done.uncovered) == (64, 32)


def test_a_draft_layer_that_only_one_side_has() -> None:
    srcs, dsts = per_layer(SRC, 1, 3), per_layer(DST, 1, 2)
    assert deliver(srcs, dsts, [[3]], [[7]]).delivered == 64
    assert set(plan(dsts[0], srcs).unused) == {"L2"}


def test_regions_in_another_order() -> None:
    srcs = per_layer(SRC, 2)
    dsts = {rank: Layout(reversed(x.regions)) for rank, x in per_layer(DST, 1).items()}
    assert deliver(srcs, dsts, [[3, 1]], [[7, 8]]).delivered == 192


def test_different_group_structures() -> None:
    """Layers 0 and 1 share a table on the source, layers 1 and 2 on the destination."""

    def engine(base: int, groups: Sequence[int]) -> dict[int, Layout]:
        return {
            0: Layout(
                [
                    page(base + 0x1000 * number, sections, f"region{number}", groups=(groups[number],))
                    for number, sections in enumerate(layers(3))
                ]
            )
        }

    srcs, dsts = engine(SRC, (0, 0, 1)), engine(DST, (1, 0, 0))
    assert deliver(srcs, dsts, [[3, 1], [4, 5]], [[7, 8], [9, 2]]).delivered == 192


def test_a_tensor_that_two_groups_share() -> None:
    def engine(base: int, groups: tuple[int, int]) -> dict[int, Layout]:
        return {0: Layout([page(base, layers(1)[0], groups=groups)])}

    srcs, dsts = engine(SRC, (0, 1)), engine(DST, (1, 0))
    assert deliver(srcs, dsts, [[3, 1], [4]], [[7], [9, 2]]).delivered == 96


def test_aliased_regions_against_regions_of_their_own() -> None:
    """Two layers of different groups in one tensor, against two tensors in one group."""
    first, second = layers(2)
    shared = {0: Layout([page(SRC, first, "a", groups=(0,)), page(SRC, second, "b", groups=(1,))])}
    own = {0: Layout([page(DST, first, "a"), page(DST + 0x1000, second, "b")])}
    assert deliver(shared, own, [[3, 1], [4, 5]], [[7, 8]]).delivered == 128
    assert deliver(own, shared, [[7, 8]], [[3, 1], [4, 5]]).delivered == 128


def test_regions_of_unequal_capacity() -> None:
    def engine(base: int, capacities: Sequence[int]) -> dict[int, Layout]:
        return {
            0: Layout(
                [
                    page(base + 0x1000 * n, sections, f"region{n}", groups=(n,), num_blocks=capacities[n])
                    for n, sections in enumerate(layers(3))
                ]
            )
        }

    srcs, dsts = engine(SRC, (5, 40, 9)), engine(DST, (30, 3, 12))
    deliver(srcs, dsts, [[4, 1], [39, 0], [8]], [[29, 2], [2, 1], [11]])


def test_padded_strides() -> None:
    sections = layers(1)[0]
    srcs = {0: Layout([page(SRC, sections, block_stride=40)])}
    dsts = {0: Layout([page(DST, sections, block_stride=56)])}
    done = deliver(srcs, dsts, [[0, 1, 3]], [[2, 3, 4]])
    assert done.delivered == 96
    [pair] = plan(dsts[0], srcs)[0]
    assert pair.merged_ops(*pair.desc_ids([[0, 1, 3]], [[2, 3, 4]])) == 3


@pytest.mark.parametrize(
    "kinds",
    [
        (("VRAM", "VRAM"), ("VRAM", "DRAM")),
        (("VRAM", "DRAM"), ("VRAM", "VRAM")),
        (("DRAM", "VRAM"), ("VRAM", "DRAM")),
        (("DRAM", "DRAM"), ("FILE", "DRAM")),
        (("FILE", "VRAM"), ("DRAM", "VRAM")),
    ],
)
@pytest.mark.parametrize(("p", "d"), [(1, 1), (2, 1), (1, 2)])
def test_mixed_memory(kinds: tuple[tuple[str, str], tuple[str, str]], p: int, d: int) -> None:
    def engine(tp: int, kinds: Sequence[str]) -> dict[int, Layout]:
        return numbered(
            Layout(
                [
                    # Equal addresses: only memory type and device tell the regions apart.
                    page(0, sections, f"region{n}", mem_type=kinds[n], device_id=n)
                    for n, sections in enumerate(layers(2, tp=tp, rank=rank))
                ]
            )
            for rank in range(tp)
        )

    srcs, dsts = engine(p, kinds[0]), engine(d, kinds[1])
    assert deliver(srcs, dsts, [[3, 1]], [[7, 8]]).delivered == 2 * 2 * 32
    for found in plans(srcs, dsts).values():
        for pairs in found.values():
            assert {pair.mem_types for pair in pairs} == set(zip(*kinds, strict=True))
            assert len(pairs) == len(set(zip(*kinds, strict=True)))


# -- blocks of different sizes -----------------------------------------------------------------


@pytest.mark.parametrize(("p", "d"), [(4, 16), (16, 4), (12, 8), (8, 12), (3, 2), (4, 6)])
@pytest.mark.parametrize("orders", [("HND", "HND"), ("NHD", "NHD"), ("HND", "NHD")])
@pytest.mark.parametrize(("p_tp", "d_tp"), [(1, 1), (2, 1), (1, 2)])
def test_block_tokens(p: int, d: int, orders: tuple[str, str], p_tp: int, d_tp: int) -> None:
    tokens = 29
    srcs = heads(SRC, p_tp, tokens=p, order=orders[0])
    dsts = heads(DST, d_tp, tokens=d, order=orders[1])
    src_blocks, dst_blocks = list(range(-(-tokens // p))), list(range(15, 15 - -(-tokens // d), -1))
    done = deliver(srcs, dsts, [src_blocks], [Blocks(dst_blocks)])  # whole blocks, whatever the last one holds
    both = min(len(src_blocks) * p, len(dst_blocks) * d)
    assert done.delivered == both * 4 * 4


@pytest.mark.parametrize(("p", "d"), [(4, 16), (12, 8)])
def test_block_tokens_with_padding(p: int, d: int) -> None:
    def engine(base: int, tokens: int, padding: int) -> dict[int, Layout]:
        how: dict[str, Any] = {
            "num_kv_heads": 2,
            "tp_size": 1,
            "tp_rank": 0,
            "block_tokens": tokens,
            "token_head_bytes": 3,
        }
        first = attention_sections("L0", **how)
        second = attention_sections("L1", offset=size(first) + padding, order="NHD", **how)
        sections = first + second
        return {0: Layout([page(base, sections, block_stride=size(sections) + padding)])}

    srcs, dsts = engine(SRC, p, 5), engine(DST, d, 11)
    src_blocks, dst_blocks = [3, 1, 9, 4, 5, 7][: -(-23 // p)], [2, 8, 5][: -(-23 // d)]
    done = deliver(srcs, dsts, [src_blocks], [dst_blocks])
    assert done.delivered == 24 * 2 * 3 * 2  # all blocks of both sides end at token 24 or later


def test_block_tokens_of_two_caches_at_one_ratio() -> None:
    """A cache with one entry per four tokens beside a full one, in the same groups."""

    def engine(base: int, tokens: int) -> dict[int, Layout]:
        full = mla_sections("full", block_tokens=tokens, token_bytes=2)
        index = mla_sections("index", block_tokens=tokens // 4, token_bytes=3)
        return {0: Layout([page(base, full, "full"), page(base + 0x4000, index, "index")])}

    assert deliver(engine(SRC, 16), engine(DST, 64), [[3, 1, 9, 4]], [[5]]).delivered == 176


def test_logical_blocks_against_kernel_blocks() -> None:
    """The source's manager hands out blocks of four kernel blocks, the destination's of two."""
    srcs, dsts = heads(SRC, 1), heads(DST, 1)
    src_ids, dst_ids = kernel_blocks([2, 0], 4), kernel_blocks([7, 3, 1, 0], 2)
    assert deliver(srcs, dsts, [src_ids], [dst_ids]).delivered == 8 * 32


# -- positions ---------------------------------------------------------------------------------


def test_a_cached_prefix_is_not_read() -> None:
    srcs, dsts = heads(SRC, 2), heads(DST, 1)
    done = deliver(srcs, dsts, [[3, 1, 9, 4]], [Blocks([7, 8], skip=2)])
    assert (done.delivered, done.uncovered) == (64, 0)


def test_a_window_on_both_sides() -> None:
    srcs, dsts = heads(SRC, 1), heads(DST, 2)
    done = deliver(srcs, dsts, [Blocks.tail([3, 1, 9], 6)], [Blocks([7, 8, 2], skip=2)])
    assert (done.delivered, done.uncovered) == (64, 32)


def test_placeholders_on_either_side() -> None:
    srcs, dsts = heads(SRC, 1), heads(DST, 1)
    done = deliver(srcs, dsts, [[0, 0, 3, 1]], [[7, 0, 8, 0]], null_block=0)
    assert (done.delivered, done.uncovered) == (32, 32)


def context(base: int, cp: int, tokens: int = 2, tp: int = 1) -> dict[int, Layout]:
    """CP by TP ranks of an attention layer."""
    return numbered(
        Layout(heads(base, tp, tokens=tokens)[rank].regions, cp_rank=part, cp_size=cp)
        for part in range(cp)
        for rank in range(tp)
    )


def dealt(total: int, cp: int, tp: int = 1) -> dict[int, list[list[int]]]:
    """Tables for ``total`` blocks dealt to ``cp`` ranks, other ids on each rank."""
    found = {}
    for part in range(cp):
        for rank in range(tp):
            count = len(range(part, total, cp))
            found[part * tp + rank] = [[(i + 3 * part + rank) % 16 for i in range(count)]]
    return found


@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1), (1, 3), (4, 2), (2, 4), (3, 2), (2, 3), (2, 2)])
@pytest.mark.parametrize("tp", [(1, 1), (2, 1), (1, 2)])
def test_context_parallel(p: int, d: int, tp: tuple[int, int]) -> None:
    srcs, dsts = context(SRC, p, tp=tp[0]), context(DST, d, tp=tp[1])
    done = deliver(srcs, dsts, dealt(7, p, tp[0]), dealt(7, d, tp[1]))
    assert done.delivered == 7 * 32
    assert done.uncovered == 0


@pytest.mark.parametrize(("p", "d"), [(1, 2), (2, 1), (3, 2), (2, 3), (2, 2)])
@pytest.mark.parametrize(("p_tokens", "d_tokens"), [(2, 4), (4, 2), (3, 2), (2, 3)])
def test_context_parallel_with_other_block_tokens(p: int, d: int, p_tokens: int, d_tokens: int) -> None:
    tokens = 17
    srcs, dsts = context(SRC, p, p_tokens), context(DST, d, d_tokens)
    p_blocks, d_blocks = -(-tokens // p_tokens), -(-tokens // d_tokens)
    done = deliver(srcs, dsts, dealt(p_blocks, p), dealt(d_blocks, d))
    assert done.delivered == min(p_blocks * p_tokens, d_blocks * d_tokens) * 16


def test_a_cached_prefix_under_context_parallelism() -> None:
    srcs, dsts = context(SRC, 2), context(DST, 3)
    # Blocks 0 to 3 are cached on every destination rank; rank r holds 3i + r.
    skips = {rank: layout.skip_before(4) for rank, layout in dsts.items()}
    assert skips == {0: 2, 1: 1, 2: 1}
    dst_blocks = {rank: [Blocks([5, 6][: len(range(rank, 9, 3)) - skips[rank]], skips[rank])] for rank in dsts}
    done = deliver(srcs, dsts, dealt(9, 2), dst_blocks)
    assert (done.delivered, done.uncovered) == (5 * 32, 0)


def test_what_context_parallelism_does_not_shard() -> None:
    """A draft's cache (cp=False) and a state beside a sharded cache."""

    def engine(base: int, cp: int) -> dict[int, Layout]:
        axes = Axis("token", 0, 2), Axis("byte", 0, 3)
        state = states(base + 0x2000, 1, "mamba2")[0].regions[0].sections
        return numbered(
            Layout(
                [
                    page(base, [Section("main", axes, 1)], "main", groups=(0,)),
                    page(base + 0x1000, [Section("draft", axes, 1, cp=False)], "draft", groups=(1,)),
                    page(base + 0x2000, state, "state", groups=(2,)),
                ],
                cp_rank=part,
                cp_size=cp,
            )
            for part in range(cp)
        )

    whole = [[3, 1, 9, 4, 5], [7]]
    for p, d in ((2, 1), (1, 2), (3, 2)):
        src_blocks = {r: [*tables, *whole] for r, tables in dealt(5, p).items()}
        dst_blocks = {r: [*tables, *whole] for r, tables in dealt(5, d).items()}
        done = deliver(engine(SRC, p), engine(DST, d), src_blocks, dst_blocks)
        state_bytes = sum(s.nbytes for s in states(0, 1, "mamba2")[0].regions[0].sections)
        assert done.delivered == 5 * 6 + d * (5 * 6 + state_bytes)


@pytest.mark.parametrize(("p", "d"), [(2, 1), (1, 2), (2, 2), (3, 2)])
@pytest.mark.parametrize("whole", ["source", "destination"])
def test_dealt_out_on_one_side_and_whole_on_the_other(p: int, d: int, whole: str) -> None:
    def engine(base: int, ranks: int, dealt_out: bool) -> tuple[dict[int, Layout], dict[int, Any]]:
        section = Section("L0", (Axis("token", 0, 2), Axis("byte", 0, 3)), 1, cp=dealt_out)
        found = numbered(Layout([page(base, [section])], cp_rank=rank, cp_size=ranks) for rank in range(ranks))
        return found, dealt(7, ranks) if dealt_out else {rank: [[*range(7)]] for rank in found}

    srcs, src_blocks = engine(SRC, p, whole != "source")
    dsts, dst_blocks = engine(DST, d, whole != "destination")
    done = deliver(srcs, dsts, src_blocks, dst_blocks)
    assert done.delivered == 7 * 6 * (d if whole == "destination" else 1)
    assert done.uncovered == 0


# -- more ids than int32 -----------------------------------------------------------------------


def test_several_pairs_when_one_would_hold_too_many_ids() -> None:
    """Blocks of 64 tokens cut to 16: each destination region alone has 2**30 descriptors."""

    def engine(base: int, tokens: int, num_blocks: int) -> dict[int, Layout]:
        return {
            0: Layout(
                [
                    page(
                        base + (n << 45),
                        mla_sections(f"L{n}", block_tokens=tokens, token_bytes=1),
                        f"region{n}",
                        num_blocks=num_blocks,
                    )
                    for n in range(3)
                ]
            )
        }

    srcs, dsts = engine(SRC, 16, 50), engine(DST, 64, 2**28)
    [pairs] = plan(dsts[0], srcs).values()
    assert len(pairs) > 1
    assert all(pair.dst.num_descs <= 2**31 - 1 for pair in pairs)
    assert sum(pair.dst.num_descs for pair in pairs) == 3 * 2**30
    done = deliver(srcs, dsts, [[3, 1, 9, 4, 0]], [[2**28 - 1, 7]])
    assert done.delivered == 3 * 5 * 16


def test_a_region_with_too_many_ids_alone_is_refused() -> None:
    def engine(tokens: int, num_blocks: int) -> Layout:
        return Layout([page(0, mla_sections("L0", block_tokens=tokens, token_bytes=1), "kv", num_blocks=num_blocks)])

    with pytest.raises(GeometryError, match="'kv'"):
        plan(engine(64, 2**29), {0: engine(16, 50)})


# -- everything at once ------------------------------------------------------------------------


def test_a_hybrid_model_with_everything_different() -> None:
    """Prefill TP 4 against decode TP 2: other orders, block sizes, groups, memories, regions."""

    def prefill(rank: int) -> Layout:
        how: dict[str, Any] = {"tp_size": 4, "tp_rank": rank}
        attention = attention_sections(
            "L0", num_kv_heads=2, block_tokens=4, token_head_bytes=4, kv="blocks_first", **how
        )
        latent = mla_sections("L1", block_tokens=4, token_bytes=6, offset=size(attention) + 5)
        state = state_sections(
            "L2",
            conv_rows=3,
            conv_itemsize=2,
            ssm_itemsize=4,
            replicated=("B", "C"),
            **STATES["mamba2"],
            **how,
        )
        return Layout(
            [
                page(SRC, (*attention, *latent), "token", groups=(0,), block_stride=96),
                page(SRC + 0x2000, state, "state", groups=(1,)),
            ]
        )

    def decode(rank: int) -> Layout:
        how: dict[str, Any] = {"tp_size": 2, "tp_rank": rank}
        k, v = attention_sections(
            "L0",
            num_kv_heads=2,
            block_tokens=6,
            token_head_bytes=4,
            order="NHD",
            kv="blocks_first",
            **how,
        )
        state = state_sections(
            "L2",
            conv_rows=3,
            conv_itemsize=2,
            ssm_itemsize=4,
            conv_order="SD",
            **STATES["mamba2"],
            **how,
        )
        return Layout(
            [
                page(DST, state, "state", groups=(0,), block_len=size(state) + 9),
                page(DST + 0x2000, [Section(v.name, v.axes, v.itemsize)], "v", groups=(2,)),
                page(0, mla_sections("L1", block_tokens=6, token_bytes=6), "latent", groups=(1,), mem_type="DRAM"),
                page(DST + 0x4000, [k], "k", groups=(2,)),
            ]
        )

    srcs, dsts = numbered(map(prefill, range(4))), numbered(map(decode, range(2)))
    done = deliver(
        srcs,
        dsts,
        [[3, 1, 9, 4, 5], [2]],
        [[11], Blocks([7, 8, 2], skip=1), Blocks([6, 0], skip=2)],
    )
    assert done.delivered == (
        14 * 6 * 2  # latent: tokens 6 to 19 on both ranks
        + 8 * 8 * 2  # K and V: tokens 12 to 19, two heads
        + sum(s.nbytes for s in states(0, 1, "mamba2")[0].regions[0].sections)
    )
