"""Every case of cases_2.json: more small figures from the public record, about tiers, deals, weights and scales.

As in test_cases.py: layouts, a plan, ids and copies, compared as byte maps with the right moves; the painted-memory
oracle accepts these and refuses ``must_not_be``, the reported bug. What the file does not tell in bytes (which bytes
another rule would have moved) is written here beside the case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from case_sides import Cases, Side, as_copies, both, byte_map, check, layout, only_pair, refused, region

from nixldesc import (
    Axis,
    BlockIdError,
    Blocks,
    GeometryError,
    Layout,
    PeerMismatchError,
    Region,
    Section,
    attention_sections,
    mla_sections,
    plan,
)
from nixldesc.testing.painted import Copies, nixl_copies, planned_copies

case = Cases("cases_2.json")


def one_region(fields: Sequence[Mapping[str, Any]], sections: Sequence[Section], **place: int) -> Layout:
    [only] = fields
    return Layout([region(only, sections)], **place)


def latents(fields: Sequence[Mapping[str, Any]], block_tokens: Mapping[str, int], row_bytes: int) -> Layout:
    """Regions of rows of so many bytes a token."""
    return Layout(
        [
            region(one, mla_sections(one["name"], block_tokens=block_tokens[one["name"]], token_bytes=row_bytes))
            for one in fields
        ]
    )


def at(lists: Sequence[Sequence[int]], skips: Sequence[int]) -> list[Blocks]:
    return [Blocks(ids, skip) for ids, skip in zip(lists, skips, strict=True)]


# -- positions ---------------------------------------------------------------------------------


@case("off-partial-cpu-block")
def test_a_hit_ends_inside_a_larger_block(given: Any, want: Any) -> None:
    def page(fields: Any, tokens: int) -> Layout:
        return one_region(
            fields,
            attention_sections(
                "k",
                num_kv_heads=given["num_kv_heads"],
                tp_size=1,
                tp_rank=0,
                block_tokens=tokens,
                token_head_bytes=given["head_bytes_per_token"],
                order=given["layout"],
            ),
        )

    src = Side(page(given["p_regions"], given["p_block_tokens"]), at(given["p_block_ids"], given["p_skip"]))
    dst = Side(page(given["d_regions"], given["d_block_tokens"]), at(given["d_block_ids"], given["d_skip"]))
    pair = only_pair(check(want, src, dst))
    # Six tokens against four: bare lists say neither how many tokens there are nor where they start.
    with pytest.raises(BlockIdError, match=r"(?s)skip|tokens="):
        pair.desc_ids(given["p_block_ids"], given["d_block_ids"])


@case("swa-ring-unified")
def test_a_ring_and_pages_in_one_buffer(given: Any, want: Any) -> None:
    src = latents(given["p_regions"], given["p_block_tokens"], given["row_bytes"])
    dst = latents(given["d_regions"], given["d_block_tokens"], given["row_bytes"])
    # The rows of the last `window` tokens of each side's ring, slot * ring + token % ring.
    for side, ids in (("p", given["p_block_ids"]), ("d", given["d_block_ids"])):
        _, ring = given["ring"][side]
        last = range(given["tokens"] - given["window"], given["tokens"])
        assert ids[0] == [given[f"{side}_slot"] * ring + token % ring for token in last]
    check(
        want,
        Side(src, at(given["p_block_ids"], given["p_skip"])),
        Side(dst, at(given["d_block_ids"], given["d_skip"])),
    )


@case("pre-allocated-for-external")
def test_a_list_that_starts_at_the_second_block(given: Any, want: Any) -> None:
    src, dst = layout(given["p_regions"]), layout(given["d_regions"])
    pair = only_pair(check(want, Side(src, given["p_block_ids"]), Side(dst, at(given["d_block_ids"], given["d_skip"]))))
    with pytest.raises(BlockIdError, match=r"73.*72"):
        pair.desc_ids(given["p_block_ids"], given["d_block_ids"])


@case("pre-chunk-window-anchor")
def test_a_windowed_list_beyond_its_chunk(given: Any, want: Any) -> None:
    tokens = dict.fromkeys(("g0", "g1"), given["block_tokens"])
    row = given["token_bytes"]
    check(
        want,
        Side(latents(given["p_regions"], tokens, row), at(given["p_block_ids"], given["p_skip"])),
        Side(latents(given["d_regions"], tokens, row), given["d_block_ids"]),
    )


@case("swa-local-chunk")
def test_local_layers_take_the_last_chunk(given: Any, want: Any) -> None:
    tokens = dict.fromkeys(("l0", "l1", "l2", "l3"), given["block_tokens"])
    row = given["token_bytes"]
    pair = only_pair(
        check(
            want,
            Side(latents(given["p_regions"], tokens, row), at(given["p_block_ids"], given["p_skip"])),
            Side(latents(given["d_regions"], tokens, row), at(given["d_block_ids"], given["d_skip"])),
        )
    )
    ids = pair.desc_ids(at(given["p_block_ids"], given["p_skip"]), at(given["d_block_ids"], given["d_skip"]))
    assert len(ids[0]) == 3 * 2 + 10  # not 4 * 10


@case("mm-embedding-lengths")
def test_rows_of_an_encoder_are_counted_by_the_encoder(given: Any, want: Any) -> None:
    [fields] = given["p_regions"]
    assert fields["block_len"] == given["row_bytes"]
    src, dst = layout(given["p_regions"]), layout(given["d_regions"])
    pair = only_pair(check(want, Side(src, given["p_block_ids"]), Side(dst, given["d_block_ids"])))
    assert len(given["p_block_ids"][0]) == sum(given["embedding_lengths"])
    longer = range(sum(given["prompt_lengths"]))  # with the markers, which have no row
    with pytest.raises(BlockIdError, match=r"8.*12"):
        pair.desc_ids(given["p_block_ids"], [longer])


# -- context parallelism -----------------------------------------------------------------------


@case("cp-interleave-below-block")
def test_tokens_dealt_in_less_than_a_block(given: Any, want: Any) -> None:
    sections = mla_sections("k", block_tokens=given["p_block_tokens"], token_bytes=given["token_bytes"])
    src = Side(
        {
            rank: one_region(
                given["p_regions"], sections, cp_rank=rank, cp_size=given["dcp"], cp_tokens=given["interleave"]
            )
            for rank in range(given["dcp"])
        },
        dict(enumerate(given["p_block_ids_by_rank"])),
    )
    page = mla_sections("k", block_tokens=given["d_block_tokens"], token_bytes=given["token_bytes"])
    dst = Side(one_region(given["d_regions"], page), given["d_block_ids"])
    check(want, src, dst, tokens=16)
    # Interleaved by whole blocks: rank 0 has tokens 0 to 3 in its first block, rank 1 has 4 to 7.
    refused([[0, 4136, 0, 36912, 8], [1, 4112, 0, 36920, 8], [0, 4104, 0, 36960, 8], [1, 4152, 0, 36968, 8]], src, dst)


@case("cp-dcp-decode-only-indexer")
def test_an_index_that_every_rank_holds_whole(given: Any, want: Any) -> None:
    def page(fields: Any, **place: int) -> Layout:
        tokens, row = given["block_tokens"], given["token_bytes"]
        pages = {
            name: Section(
                name,
                (Axis("token", 0, tokens), Axis("byte", 0, row[name])),
                1,
                cp=name not in given["replicated_under_cp"],
            )
            for name in row
        }
        return Layout([region(one, [pages[one["name"]]] if one["name"] in pages else None) for one in fields], **place)

    src = Side(page(given["p_regions"]), given["p_block_ids"])
    ranks = range(given["d_cp"])
    dst = Side(
        {rank: page(given["d_regions"], cp_rank=rank, cp_size=given["d_cp"]) for rank in ranks},
        dict(enumerate(given["d_block_ids_by_rank"])),
    )
    plans = check(want, src, dst)
    assert plans[1].undelivered({0: src.blocks[0]}, dst.blocks[1]) == []
    # The index as if it were dealt too: rank 1 would get blocks 1 and 3 in places 0 and 1.
    refused([*want["moves"][:7], [0, 5164, 1, 37948, 4], [0, 5172, 1, 37952, 4], want["moves"][8]], src, dst)


@case("cp-token-cyclic-count")
def test_tokens_dealt_one_by_one(given: Any, want: Any) -> None:
    size, row = given["d_cp"], given["token_bytes"]
    sections = mla_sections("k", block_tokens=given["p_block_tokens"], token_bytes=row)
    src = Side(one_region(given["p_regions"], sections), given["p_block_ids"])
    one = mla_sections("k", block_tokens=given["d_block_tokens"], token_bytes=row)
    dst = Side(
        {rank: one_region(given["d_regions"], one, cp_rank=rank, cp_size=size) for rank in range(size)},
        dict(enumerate(given["d_block_ids_by_rank"])),
    )
    plans = check(want, src, dst, tokens=12)
    ids = plans[0][0][0].desc_ids(given["p_block_ids"], given["d_block_ids_by_rank"][0], tokens=12)
    assert len(ids[0]) == 3

    # 61 layers, 32,768 tokens, blocks of 64 on both sides: a piece per token and layer, and no way around it.
    def engine(cp_rank: int, cp_size: int, blocks: int) -> Layout:
        page = mla_sections("k", block_tokens=64, token_bytes=row)
        return Layout(
            [
                Region(f"l{n}", n << 32, 64 * row, blocks, sections=[Section(f"l{n}", page[0].axes, 1)])
                for n in range(61)
            ],
            cp_rank=cp_rank, cp_size=cp_size, cp_tokens=1,
        )  # fmt: skip

    [[pair]] = plan(engine(1, size, 600), {0: engine(0, 1, 600)}).values()
    ids = pair.desc_ids([range(512)], [range(128)], tokens=32_768)
    assert len(ids[0]) == 8_192 * 61 == 499_712
    assert pair.merged_ops(*ids) == 499_712
    assert len(pair.src.table()) == len(pair.dst.table()) == 61  # rows do not grow with tokens


# -- padding, layouts, scales ------------------------------------------------------------------


@case("off-canonical-padded-rows")
def test_padding_is_nobodys_business(given: Any, want: Any) -> None:
    check(
        want,
        Side(layout(given["p_regions"]), given["p_block_ids"]),
        Side(layout(given["d_regions"]), given["d_block_ids"]),
    )


def swizzled(tokens: int, offset: int = 0) -> Section:
    """Scales in tiles of four tokens: [t // 4][scale][t % 4]."""
    axes = Axis("token", 0, tokens // 4, unit=4), Axis("scale", 0, 4), Axis("token", 0, 4)
    return Section("sf", axes, 1, offset=offset)


def linear(tokens: int, offset: int = 0) -> Section:
    """Scales as one expects them: [t][scale]."""
    return Section("sf", (Axis("token", 0, tokens), Axis("scale", 0, 4)), 1, offset=offset)


@case("q-nvfp4-v-swizzle")
def test_scales_are_unswizzled_on_the_way(given: Any, want: Any) -> None:
    tokens = given["block_tokens"]
    [data] = mla_sections("v", block_tokens=tokens, token_bytes=given["k_bytes_per_token"])
    src = one_region(given["p_regions"], [data, swizzled(tokens, data.end)])
    dst = one_region(given["d_regions"], [data, linear(tokens, data.end)])
    check(want, Side(src, given["p_block_ids"]), Side(dst, given["d_block_ids"]))


def test_swizzled_scales_at_unequal_blocks() -> None:
    """Declared in parts the right bytes move, whatever the blocks; looked up scale by scale."""
    src = Layout([Region("sf", 8192, 32, 8, sections=[swizzled(8)])])
    dst = Layout([Region("sf", 40960, 16, 32, sections=[linear(4)])])
    [[pair]] = plan(dst, {0: src}).values()
    moved = np.zeros(40960 + 16 * 32, np.int64)
    for a, b, length in pair.moves(*pair.desc_ids([[3, 1]], [[5, 6, 7, 8]])).tolist():
        moved[b : b + length] = range(a, a + length)
    right = np.zeros_like(moved)
    for token in range(16):
        for scale in range(4):
            from_block, within = [3, 1][token // 8], token % 8
            to = 40960 + 16 * [5, 6, 7, 8][token // 4] + 4 * (token % 4) + scale
            right[to] = 8192 + 32 * from_block + 16 * (within // 4) + 4 * scale + within % 4
    assert (moved == right).all()


@case("q-swizzle-advice")
def test_words_about_a_hidden_token_axis(given: Any, want: Any) -> None:
    assert want["error"] == "UNSUPPORTED_SPLIT"

    def side(fields: Any, tokens: int, groups: tuple[int, int], scales: Section, **place: int) -> Layout:
        data = mla_sections("k", block_tokens=tokens, token_bytes=2)
        pages = {"k": data, "sf": [scales]}
        numbers = dict(zip(("k", "sf"), groups, strict=True))
        return Layout([region({**one, "group": numbers[one["name"]]}, pages[one["name"]]) for one in fields], **place)

    def plain(tokens: int) -> Section:
        # The token axis hidden in two others that restart in every block.
        axes = Axis("tile", 0, tokens // 4), Axis("scale", 0, 4), Axis("inner", 0, 4)
        return Section("sf", axes, 1)

    p, d = given["p_block_tokens"], given["d_block_tokens"]
    together, apart = (0, 0), (0, 1)
    for dst in (
        side(given["d_regions"], d, together, plain(d)),
        side(given["p_regions"], p, together, plain(p), cp_rank=1, cp_size=2),
    ):
        with pytest.raises(PeerMismatchError, match=r"in parts: Axis\('token', \.\.\., unit=n\)") as caught:
            plan(dst, {0: side(given["p_regions"], p, together, plain(p))})
        assert "sf" in str(caught.value)
    # In a group of its own the lists do not fit, and no plan of bytes comes of it either.
    found = plan(side(given["d_regions"], d, apart, plain(d)), {0: side(given["p_regions"], p, apart, plain(p))})
    with pytest.raises(BlockIdError, match="group 1"):
        found[0][0].desc_ids(given["p_block_ids"], given["d_block_ids"])
    # As the words say: in parts, in the same group.
    src = Side(side(given["p_regions"], p, together, swizzled(p)), given["p_block_ids"][:1])
    dst_side = Side(side(given["d_regions"], d, together, linear(d)), given["d_block_ids"][:1])
    moves = [
        [0, 4096 + 16 * [3, 1][n // 2] + 8 * (n % 2), 0, 36864 + 8 * (5 + n), 8]
        for n in range(4)
    ] + [
        [0, 8192 + 32 * [3, 1][t // 8] + 16 * (t % 8 // 4) + 4 * s + t % 4, 0,
         40960 + 16 * (5 + t // 4) + 4 * (t % 4) + s, 1]
        for t in range(16) for s in range(4)
    ]  # fmt: skip
    # The second destination block with the scales of tokens 8 to 11 instead of 4 to 7.
    wrong = [move for move in moves if not 40960 + 16 * 6 <= move[3] < 40960 + 16 * 7]
    wrong += [[0, 8192 + 32 + 4 * s + t, 0, 40960 + 16 * 6 + 4 * t + s, 1] for t in range(4) for s in range(4)]
    check({"moves": moves, "must_not_be": wrong}, src, dst_side)


@case("lay-mixed-per-layer")
def test_a_layout_per_layer(given: Any, want: Any) -> None:
    page = 8

    def half(name: str, offset: int = 0) -> Section:
        axes = Axis("token", 0, 2), Axis("head", 0, 2), Axis("byte", 0, 2)
        return Section(name, axes, 1, offset=offset)

    def side(fields: Any) -> Layout:
        regions = []
        for one in fields:
            name = one["name"]
            if name == "l2.idx":
                sections = list(mla_sections(name, block_tokens=given["block_tokens"], token_bytes=2))
            elif "." in name:
                sections = [half(name)]
            else:
                sections = [half(f"{name}.k"), half(f"{name}.v", page)]
            regions.append(region(one, sections))
        return Layout(regions)

    check(
        want,
        Side(side(given["p_regions"]), given["p_block_ids"]),
        Side(side(given["d_regions"]), given["d_block_ids"]),
    )


@case("lay-hicache-page-head")
def test_host_pages_of_another_tp_size(given: Any, want: Any) -> None:
    layers, tokens, dim = given["layers"], given["page_tokens"], 2

    def share(tp: int, rank: int) -> Axis:
        heads = given["num_kv_heads"] // tp
        return Axis("head", heads * rank, heads * (rank + 1))

    def host(rank: int) -> Layout:
        axes = share(given["p_tp"], rank), Axis("token", 0, tokens), Axis("byte", 0, dim)
        strides = tokens * layers * dim, layers * dim, 1
        return one_region(
            given["p_regions"], [Section(f"l{n}.k", axes, 1, offset=n * dim, strides=strides) for n in range(layers)]
        )

    def device(rank: int) -> Layout:
        axes = Axis("token", 0, tokens), share(given["d_tp"], rank), Axis("byte", 0, dim)
        return Layout([region(one, [Section(one["name"], axes, 1)]) for one in given["d_regions"]])

    check(
        want,
        Side({rank: host(rank) for rank in range(given["p_tp"])}, given["p_block_ids"]),
        Side({rank: device(rank) for rank in range(given["d_tp"])}, given["d_block_ids"]),
    )


def chunk(layers: int, tokens: int, head_bytes: int, heads: tuple[int, int]) -> Section:
    axes = Axis("kv", 0, 2), Axis("layer", 0, layers), Axis("token", 0, tokens), Axis("head", *heads)
    return Section("chunk", (*axes, Axis("byte", 0, head_bytes)), 1)


@case("lay-chunk-tp-count")
def test_token_major_chunks_under_tp(given: Any, want: Any) -> None:
    shape, of = given["chunk"], given["num_kv_heads"]
    srcs, dsts = both(
        given,
        lambda tp, rank: [
            chunk(shape["layers"], shape["tokens"], shape["head_bytes"], (of // tp * rank, of // tp * (rank + 1)))
        ],
    )
    check(want, Side(srcs, given["p_block_ids"]), Side(dsts, given["d_block_ids"]))

    # The real one: 80 layers x 256 tokens of 8 heads of 256 bytes. A piece per token, layer and half, but one row.
    def pool(tp: int, rank: int) -> Layout:
        section = chunk(80, 256, 256, (8 // tp * rank, 8 // tp * (rank + 1)))
        return Layout([Region("pool", 0x1000_0000, section.end, 6, mem_type="DRAM", sections=[section])])

    found = plan(pool(1, 0), {rank: pool(4, rank) for rank in range(4)})
    assert sorted(found) == [0, 1, 2, 3]
    for [pair] in found.values():
        assert pair.dst.regions[0].runs == 2 * 80 * 256
        assert len(pair.src.table()) == len(pair.dst.table()) == 1
        assert len(pair.desc_ids([[3]], [[5]])[0]) == 2 * 80 * 256


# -- pools and groups --------------------------------------------------------------------------


@case("pool-masked-indexer")
def test_rows_only_for_layers_with_an_index(given: Any, want: Any) -> None:
    def side(fields: Any, indexed: Sequence[int]) -> Layout:
        regions = []
        for one in fields:
            if one["name"] == "idx":
                sections = [
                    section
                    for n, layer in enumerate(indexed)
                    for section in mla_sections(
                        f"l{layer}.idx", block_tokens=given["block_tokens"], token_bytes=2, offset=4 * n
                    )
                ]
            else:
                sections = list(mla_sections(one["name"], block_tokens=given["block_tokens"], token_bytes=4))
            regions.append(region(one, sections))
        return Layout(regions)

    indexed = given["indexer_layers"]
    src = Side(
        {
            stage: side(fields, [layer for layer in indexed if layer in layers])
            for stage, (fields, layers) in enumerate(zip(given["p_regions_by_stage"], given["p_pp"], strict=True))
        },
        dict(enumerate(given["p_block_ids_by_stage"])),
    )
    [found] = check(want, src, Side(side(given["d_regions"], indexed), given["d_block_ids"])).values()
    assert [name for pair in found[1] for origin in pair.origin for name in origin[2]] == ["l2.kv", "l3.kv"]


@case("pool-pp-tensor-tables")
def test_tensors_of_unlike_composition(given: Any, want: Any) -> None:
    tokens, row = given["block_tokens"], given["token_bytes"]
    group = {name: number for number, names in enumerate(given["d_rows"]) for name in names}
    [fields] = given["p_regions"]

    def stage(names: Sequence[str]) -> Layout:
        """A row of layers of different groups, one table each: a region per layer over the same memory."""
        return Layout(
            [
                Region(
                    f"row.{name}",
                    fields["base"],
                    fields["block_len"],
                    fields["num_blocks"],
                    groups=(group[name],),
                    sections=mla_sections(name, block_tokens=tokens, token_bytes=row, offset=tokens * row * n),
                )
                for n, name in enumerate(names)
            ]
        )

    def tensor(one: Mapping[str, Any], names: Sequence[str]) -> Region:
        return region(
            one,
            [
                section
                for n, name in enumerate(names)
                for section in mla_sections(name, block_tokens=tokens, token_bytes=row, offset=tokens * row * n)
            ],
        )

    src = Side(dict(enumerate(map(stage, given["p_rows"]))), dict(enumerate(given["p_block_ids_by_stage"])))
    dst = Side(Layout(list(map(tensor, given["d_regions"], given["d_rows"]))), given["d_block_ids"])
    check(want, src, dst)
    # Tensors paired by position, whole: layer 1 would be read as layer 2.
    refused([[0, 4144, 0, 36976, 16], [1, 4192, 0, 37904, 16]], src, dst)


@case("grp-draft-heads")
def test_a_draft_of_heads_beside_a_latent(given: Any, want: Any) -> None:
    def side(fields: Any, tp: int, rank: int) -> Layout:
        tokens = given["block_tokens"]
        pages = {
            "mla": mla_sections("mla", block_tokens=tokens, token_bytes=4),
            "draft": attention_sections(
                "draft",
                num_kv_heads=given["num_kv_heads"]["draft"],
                tp_size=tp,
                tp_rank=rank,
                block_tokens=tokens,
                token_head_bytes=2,
            ),
        }
        return Layout([region(one, pages[one["name"]]) for one in fields])

    p, d = given["p_tp"], given["d_tp"]
    plans = check(
        want,
        Side({rank: side(given["p_regions"], p, rank) for rank in range(p)}, given["p_block_ids"]),
        Side({rank: side(given["d_regions"], d, rank) for rank in range(d)}, given["d_block_ids"]),
    )
    assert [len({rank for rank in found if rank // 4 == number}) for number, found in plans.items()] == [4, 4]


# -- weights -----------------------------------------------------------------------------------


@case("rl-2d-tiles")
def test_tiles_of_rows_and_columns(given: Any, want: Any) -> None:
    def side(fields: Any, tiles: Any) -> dict[int, Layout]:
        return {
            rank: one_region(fields, [Section("w", (Axis("row", *rows), Axis("column", *columns)), given["itemsize"])])
            for rank, (rows, columns) in enumerate(tiles)
        }

    src = Side(side(given["p_regions"], given["p_tiles"]), given["p_block_ids"])
    dst = Side(side(given["d_regions"], given["d_tiles"]), given["d_block_ids"])
    check(want, src, dst)
    # Column tiles as if they were rows: the first half of the first tile.
    refused([[0, 4096, 0, 36864, 16], [2, 4096, 0, 36880, 16]], src, dst)


@case("rl-zero-size-sidecar")
def test_an_empty_tensor_is_named(given: Any, want: Any) -> None:
    assert want["error"] == "ZERO_LENGTH"
    with pytest.raises(GeometryError, match=r"__meta__.*block_len must be positive, got 0"):
        layout(given["p_regions"])


@case("eplb-physical-slots")
def test_experts_in_permuted_slots(given: Any, want: Any) -> None:
    null, ranks = given["null_block"], range(given["p_ep"])
    srcs = {rank: layout(given["p_regions"]) for rank in ranks}
    for d_rank, slots in enumerate(given["physical_to_logical"]):
        lists = {rank: [given["p_block_ids_by_rank_and_d_rank"][rank][d_rank]] for rank in ranks}
        for rank in ranks:  # the owner of an expert is a source of its slots, nobody else is
            owned = {2 * rank: 0, 2 * rank + 1: 1}
            assert lists[rank] == [[owned.get(expert, null) for expert in slots]]
        src = Side(srcs, lists)
        dst = Side({d_rank: layout(given["d_regions"])}, given["d_block_ids"])
        moves = [move for move in want["moves"] if move[2] == d_rank]
        found = plan(dst.layouts[d_rank], srcs, senders="all")
        copies = planned_copies({d_rank: found}, src.blocks, dst.blocks, null_block=null)
        assert byte_map(copies, ()) == byte_map(as_copies(moves, src, dst), ())
        # One slot at a time before the oracle, which paints what is listed, and an expert may be listed twice.
        for slot in range(len(slots)):
            mine = [move for move in moves if slot in ((move[3] - 36864) // 16, (move[3] - 37120) // 8)]
            one = {
                rank: [[block if n == slot else null for n, block in enumerate(ids)]] for rank, [ids] in lists.items()
            }
            check({"moves": mine}, Side(srcs, one), dst, null_block=null, senders="all")
        # The same without placeholders: which slots an owner fills.
        owned_slots = {
            rank: [Blocks([i for i in ids if i != null], at=[n for n, i in enumerate(ids) if i != null])]
            for rank, [ids] in lists.items()
        }
        copies = planned_copies({d_rank: found}, owned_slots, dst.blocks)
        assert byte_map(copies, ()) == byte_map(as_copies(moves, src, dst), ())
        assert found.undelivered(owned_slots, given["d_block_ids"]) == []
        assert found.repeated(owned_slots, given["d_block_ids"]) == []
        # Without one owner its slots, and only these, are seen to stay empty.
        holes = found.undelivered({**owned_slots, 1: [Blocks([])]}, given["d_block_ids"])
        assert {hole[1] for hole in holes} == {slot for slot, expert in enumerate(slots) if expert in (2, 3)}


def test_experts_in_their_initial_slots() -> None:
    """The reported bug of eplb-physical-slots, with an expert once: slots [3, 0] filled with [0, 1]."""
    srcs = {rank: Layout([Region("w", 4096, 16, 2)]) for rank in range(2)}
    src = Side(srcs, {0: [Blocks([0], at=[1])], 1: [Blocks([1], at=[0])]})
    dst = Side(Layout([Region("w", 36864, 16, 2)]), [[0, 1]])
    moves = [[1, 4112, 0, 36864, 16], [0, 4096, 0, 36880, 16]]
    initial = [[0, 4096, 0, 36864, 16], [0, 4112, 0, 36880, 16]]
    check({"moves": moves, "must_not_be": initial}, src, dst, senders="all")


# -- files and objects -------------------------------------------------------------------------


def by_device(found: list[Copies]) -> list[list[int]]:
    """Copies as the file writes them: the device of a file or an object for its rank."""
    return sorted(
        [one.src.device_id, src, one.dst.rank, dst, length] for one in found for src, dst, length in one.rows.tolist()
    )


@case("obj-layer-ranges")
def test_a_layer_is_a_range_of_every_object(given: Any, want: Any) -> None:
    size = given["page_bytes"]
    pages = [Section(f"l{n}", (), size, offset=size * n) for n in range(given["layers"])]
    lengths = {one["len"] for one in given["p_objects"]}
    [length] = lengths
    objects = Layout(
        [
            Region.segmented(
                "blocks",
                length,
                [(0, 1, one["device_id"]) for one in given["p_objects"]],
                mem_type="OBJ",
                sections=pages,
            )
        ]
    )
    pool = layout(given["d_regions"])
    src = Side(objects, [[one["key"] for one in given["p_objects"]]])
    dst = Side(pool, given["d_block_ids"])
    pair = only_pair(check({"moves": [move for moves in want["moves_by_layer"] for move in moves]}, src, dst))
    assert pair.mem_types == ("OBJ", "DRAM")
    tables = pair.src.table(), pair.dst.table()
    for layer, moves in enumerate(want["moves_by_layer"]):
        for only in ({"regions": slice(layer, layer + 1)}, {"sections": [f"l{layer}"]}):
            ids = pair.desc_ids(src.blocks[0], given["d_block_ids"], **only)
            assert by_device(nixl_copies(0, 0, *tables, *ids, mem_types=pair.mem_types)) == sorted(moves)
    # All layers' size taken for one layer's: the first object over three blocks of layer 0.
    refused([[1000, 0, 0, 37000, 24], [1001, 0, 0, 36896, 24]], src, dst)


@case("file-unaligned-start")
def test_a_load_that_starts_inside_a_file(given: Any, want: Any) -> None:
    size, layers, per_file = given["page_bytes"], given["layers"], given["blocks_per_file"]
    pages = [Section(f"l{n}", (), size, offset=size * n) for n in range(layers)]
    files = Layout(
        [
            Region.segmented(
                "blocks",
                size * layers,
                [(0, per_file, fd) for fd in given["p_files"]],
                mem_type="FILE",
                sections=pages,
            )
        ]
    )
    pool = layout(given["d_regions"])
    [ids] = given["d_block_ids"]
    first = given["start_block"]
    src = Side(files, [Blocks(range(first, first + len(ids)), skip=first)])
    dst = Side(pool, [Blocks(ids, skip=first)])
    plans = check(want, src, dst)
    # The files may list all that they hold: positions say what meets.
    whole = Side(files, [list(range(per_file * len(given["p_files"])))])
    check(want, whole, dst)
    assert len(only_pair(plans).src.table()) == layers * len(given["p_files"])
    # A key per GPU block on one side, per file on the other: the fifth block looked for in the sixth file.
    refused([[11, 0, 0, 36920, 8]], src, dst)


# -- issue reports beyond the file -------------------------------------------------------------


def test_a_zigzag_of_two_ranks() -> None:
    """Context parallelism in mirrored chunks: rank 0 has chunks 0 and 3, rank 1 has 1 and 2. Not replicas."""

    def pool(base: int, blocks: int) -> Layout:
        return Layout([Region("k", base, 8, blocks, sections=mla_sections("k", block_tokens=2, token_bytes=4))])

    held = {0: [0, 1, 6, 7], 1: [2, 3, 4, 5]}  # two blocks a chunk
    ids = {0: [9, 4, 2, 7], 1: [5, 6, 1, 3]}
    src = Side(
        {rank: pool(0x1000, 16) for rank in held},
        {rank: [Blocks(ids[rank], at=held[rank])] for rank in held},
    )
    dst = Side(pool(0x9000, 16), [list(range(2, 10))])
    moves = [
        [rank, 0x1000 + 8 * block, 0, 0x9000 + 8 * (2 + place), 8]
        for rank in held
        for block, place in zip(ids[rank], held[rank], strict=True)
    ]
    # Both taken for replicas: rank 0 is elected for all, and its four blocks are counted from the front.
    elected = [[0, 0x1000 + 8 * block, 0, 0x9000 + 8 * (2 + n), 8] for n, block in enumerate(ids[0])]
    [found] = check({"moves": moves, "must_not_be": elected}, src, dst, senders="all").values()
    assert found.undelivered(src.blocks, dst.blocks[0]) == []
    holes = found.undelivered({0: src.blocks[0]}, dst.blocks[0])
    assert [hole[:2] for hole in holes] == [("k", 2 + place) for place in held[1]]
    with pytest.raises(PeerMismatchError, match="dst_rank"):
        plan(dst.layouts[0], src.layouts)


# -- all of them -------------------------------------------------------------------------------


def test_every_case_has_a_test() -> None:
    assert set(case.all) == case.tested
    assert len(case.all) >= 23
