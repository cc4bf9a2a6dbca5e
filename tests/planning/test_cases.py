"""Every case of cases.json: small figures from the public record of what went wrong elsewhere.

A case with ``moves`` becomes layouts, a plan, ids and copies, compared as byte maps; the moves
must also satisfy the painted-memory oracle, and ``must_not_be``, the reported bug, must not. The
other cases are tested through the part of the API that they concern.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from case_sides import Cases, Side, as_copies, both, byte_map, check, layout, only_pair, region

from nixldesc import (
    Axis,
    BlockIdError,
    Blocks,
    DlistPair,
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
    shard_range,
    source_ranks,
    state_sections,
)
from nixldesc.adapter import prepare, register
from nixldesc.testing import LoopbackAgent, LoopbackError
from nixldesc.testing.painted import (
    Copies,
    Memory,
    check_delivery,
    planned_copies,
)

case = Cases("cases.json")


# -- tensor parallelism ------------------------------------------------------------------------


@case("tp-gqa-2to8-k4")
def test_heads_replicated_in_pairs(given: Any, want: Any) -> None:
    srcs, dsts = both(
        given,
        lambda tp, rank: attention_sections(
            "K",
            num_kv_heads=given["num_kv_heads"],
            tp_size=tp,
            tp_rank=rank,
            block_tokens=given["block_tokens"],
            token_head_bytes=given["head_bytes_per_token"],
        ),
    )
    check(want, Side(srcs, given["p_block_ids"]), Side(dsts, given["d_block_ids"]))
    lengths = [one[0].regions[0].block_len for one in (srcs, dsts)]
    assert lengths[0] == want["values"]["block_len_ratio_p_over_d"] * lengths[1]


@case("tp-gqa-ratio-table")
def test_block_length_follows_heads_not_ranks(given: Any, want: Any) -> None:
    for (of, p, d), row in zip(given["rows_in"], want["values"]["rows"], strict=True):
        pages = []
        for tp in (p, d):
            pages.append(
                [
                    attention_sections(
                        "K",
                        num_kv_heads=of,
                        tp_size=tp,
                        tp_rank=rank,
                        block_tokens=2,
                        token_head_bytes=4,
                    )[0]
                    for rank in range(tp)
                ]
            )
        p_heads, d_heads = (stop - start for start, stop in (shard_range(of, t, 0) for t in (p, d)))
        assert (p_heads, d_heads) == (row["p_heads"], row["d_heads"])
        above, below = row["block_len_ratio_num_den"]
        assert pages[0][0].nbytes * below == pages[1][0].nbytes * above
        srcs, dsts = ([Layout([Region("K", 0, s.nbytes, 4, sections=[s])]) for s in some] for some in pages)
        for rank, dst in enumerate(dsts):
            found = plan(dst, dict(enumerate(srcs)), dst_rank=rank, dst_size=d)
            assert tuple(found) == source_ranks(of, d, rank, p)


@case("tp-gqa-1to4-k2-token-major")
def test_two_unique_slices_of_a_token_major_page(given: Any, want: Any) -> None:
    srcs, dsts = both(
        given,
        lambda tp, rank: attention_sections(
            "K",
            num_kv_heads=given["num_kv_heads"],
            tp_size=tp,
            tp_rank=rank,
            block_tokens=given["page_tokens"],
            token_head_bytes=given["head_bytes_per_token"],
            order="NHD",
        ),
    )
    check(want, Side(srcs, given["p_block_ids"]), Side(dsts, given["d_block_ids"]))


@case("tp-blocks-first-kv-1to2")
def test_blocks_first(given: Any, want: Any) -> None:
    srcs, dsts = both(
        given,
        lambda tp, rank: attention_sections(
            "KV",
            num_kv_heads=given["num_kv_heads"],
            tp_size=tp,
            tp_rank=rank,
            block_tokens=given["block_tokens"],
            token_head_bytes=given["head_bytes_per_token"],
            kv="blocks_first",
        ),
    )
    plans = check(want, Side(srcs, given["p_block_ids"]), Side(dsts, given["d_block_ids"]))
    for found in plans.values():
        [[pair]] = found.values()
        assert len(pair.src.regions) == 2


@case("tp-mla-4to2-replicated")
def test_mla_from_one_source_each(given: Any, want: Any) -> None:
    srcs, dsts = both(given, lambda tp, rank: mla_sections("mla", block_tokens=1, token_bytes=24))
    plans = check(want, Side(srcs, given["p_block_ids"]), Side(dsts, given["d_block_ids"]))
    for found in plans.values():
        assert len(found) == want["values"]["transfers_per_decode_rank"]


@case("tp-mla-1to2-replicated")
def test_mla_whole_for_every_rank(given: Any, want: Any) -> None:
    srcs, dsts = both(given, lambda tp, rank: mla_sections("mla", block_tokens=1, token_bytes=24))
    check(want, Side(srcs, given["p_block_ids"]), Side(dsts, given["d_block_ids"]))


@case("tp-fa-vs-state-source-count")
def test_attention_and_state_have_other_sources(given: Any, want: Any) -> None:
    of = given["num_kv_heads"]

    def page(tp: int, rank: int) -> Layout:
        heads = attention_sections("fa", num_kv_heads=of, tp_size=tp, tp_rank=rank, block_tokens=2, token_head_bytes=4)
        state = state_sections(
            "ssm",
            projections={"x": 8},
            conv_rows=3,
            conv_itemsize=2,
            ssm_shape=(8, 2),
            ssm_itemsize=4,
            tp_size=tp,
            tp_rank=rank,
        )
        return Layout(
            [
                Region("fa", 0, heads[-1].end, 4, groups=(0,), sections=heads),
                Region("ssm", 0x1000, state[-1].end, 4, groups=(1,), sections=state),
            ]
        )

    for row in want["values"]["rows"]:
        p, d = row["p_tp"], row["d_tp"]
        srcs = {rank: page(p, rank) for rank in range(p)}
        for rank in range(d):
            found = plan(page(d, rank), srcs, dst_rank=rank, dst_size=d)
            sending: dict[str, set[int]] = {"fa": set(), "ssm": set()}
            for src, pairs in found.items():
                for pair in pairs:
                    for src_region, _, _ in pair.origin:
                        sending[src_region].add(src)
            assert len(sending["fa"]) == row["fa_sources_per_d_rank"]
            assert len(sending["ssm"]) == row["state_sources_per_d_rank"]
            assert tuple(sorted(sending["fa"])) == source_ranks(of, d, rank, p)
            assert tuple(sorted(sending["ssm"])) == source_ranks(8, d, rank, p)


# -- conv states -------------------------------------------------------------------------------


@case("conv-xbc-1to2")
def test_a_conv_shard_is_a_part_of_each_projection(given: Any, want: Any) -> None:
    srcs, dsts = both(
        given,
        lambda tp, rank: state_sections(
            "conv",
            projections=given["rows"],
            conv_rows=3,
            conv_itemsize=2,
            ssm_shape=None,
            ssm_itemsize=1,
            tp_size=tp,
            tp_rank=rank,
        ),
    )
    check(want, Side(srcs, given["p_block_ids"]), Side(dsts, given["d_block_ids"]))


@case("conv-bc-replicated-1to2")
def test_replicated_projections(given: Any, want: Any) -> None:
    srcs, dsts = both(
        given,
        lambda tp, rank: state_sections(
            "page",
            projections=given["rows"],
            conv_rows=3,
            conv_itemsize=2,
            ssm_shape=(2, 16),
            ssm_itemsize=1,
            tp_size=tp,
            tp_rank=rank,
            replicated=given["tp_replicated"],
        ),
    )
    check(want, Side(srcs, given["p_block_ids"]), Side(dsts, given["d_block_ids"]))


@case("conv-sd-rows-1to2")
def test_a_channel_shard_is_a_piece_of_each_tap(given: Any, want: Any) -> None:
    srcs, dsts = both(
        given,
        lambda tp, rank: state_sections(
            "conv",
            projections={"x": 8},
            conv_rows=3,
            conv_itemsize=2,
            ssm_shape=None,
            ssm_itemsize=1,
            tp_size=tp,
            tp_rank=rank,
            conv_order="SD",
        ),
    )
    check(want, Side(srcs, given["p_block_ids"]), Side(dsts, given["d_block_ids"]))


# -- positions ---------------------------------------------------------------------------------


@case("prefix-all-groups-empty")
def test_all_is_cached(given: Any, want: Any) -> None:
    [p_blocks], [d_blocks] = given["p_block_ids"], given["d_block_ids"]
    size = 16 * 128
    memory = np.zeros(2 * size, np.uint8)
    addr = memory.ctypes.data
    src = Layout([Region("K", addr, 16, 128, mem_type="DRAM")])
    dst = Layout([Region("K", addr + size, 16, 128, mem_type="DRAM")])
    blocks = [p_blocks], [Blocks(d_blocks, skip=len(p_blocks))]
    found = plan(dst, {0: src})
    src_ids, dst_ids = found[0][0].desc_ids(*blocks)
    assert (len(src_ids), len(dst_ids)) == (want["values"]["num_moves"],) * 2
    nothings: list[Any] = [[], given["d_block_ids"]]
    for nothing in nothings:  # as engines say it: full lists for prefill, none for decode
        assert [len(ids) for ids in found[0][0].desc_ids(given["p_block_ids"], nothing)] == [0, 0]

    decode, prefill = LoopbackAgent("cases-decode"), LoopbackAgent("cases-prefill")
    with register(prefill, src), register(decode, dst):
        decode.add_remote_agent(prefill.get_agent_metadata())
        with prepare(decode, "cases-prefill", found[0], local="dst") as peer:
            with peer.start(*blocks, notify=b"done") as transfer:
                assert transfer.poll() == "DONE"
            # No handle was made, and prefill knows that it may free its blocks.
            made = [step for step, _ in decode.journal if step == "make"]
            assert bool(made) is want["values"]["make_transfer"]
        told = prefill.get_new_notifs() == {"cases-decode": [b"done"]}
        assert told is want["values"]["notify"]


@case("prefix-state-placeholder")
def test_states_with_a_leading_placeholder(given: Any, want: Any) -> None:
    dst_blocks = [
        Blocks(d_ids, skip=len(p_ids) - len(d_ids))
        for p_ids, d_ids in zip(given["p_block_ids"], given["d_block_ids"], strict=True)
    ]
    check(
        want,
        Side(layout(given["p_regions"]), given["p_block_ids"]),
        Side(layout(given["d_regions"]), dst_blocks),
        null_block=given["null_block"],
    )


@case("prefix-push-tail-trim")
def test_the_tail_is_pushed(given: Any, want: Any) -> None:
    src, dst = layout(given["p_regions"]), layout(given["d_regions"])
    first = given["d_first_position"]
    dst_blocks = [Blocks(given["d_block_ids"][0], skip=first)]
    check(want, Side(src, given["p_block_ids"]), Side(dst, dst_blocks))
    tail = [Blocks.tail(given["d_block_ids"][0], len(given["p_block_ids"][0]))]
    check(want, Side(src, given["p_block_ids"]), Side(dst, tail))
    [[pair]] = plan(dst, {0: src}).values()
    with pytest.raises(BlockIdError):  # taken from the head: never guessed
        pair.desc_ids(given["p_block_ids"], given["d_block_ids"])


@case("pos-a-b-c-unused")
def test_the_last_page_is_unused(given: Any, want: Any) -> None:
    def page(fields: Any) -> Layout:
        return Layout([region(fields[0], mla_sections("K", block_tokens=64, token_bytes=1))])

    ratio = given["p_logical_block_tokens"] // given["page_tokens"]
    p_pages = kernel_blocks(given["p_logical_block_ids"][0], ratio)
    assert p_pages.tolist() == want["values"]["p_page_ids"]
    src = Side(page(given["p_regions"]), [Blocks(p_pages)])
    dst = Side(page(given["d_regions"]), given["d_block_ids"])
    pair = only_pair(check(want, src, dst))
    src_ids, _ = pair.desc_ids([Blocks(p_pages)], given["d_block_ids"])
    assert src_ids.tolist() == want["values"]["used_p_pages"]
    with pytest.raises(BlockIdError):  # four against three: which four is not guessed
        pair.desc_ids([p_pages], given["d_block_ids"])


@case("swa-null-blocks")
def test_a_window_with_placeholders(given: Any, want: Any) -> None:
    p_window, d_window = given["p_block_ids"][1], given["d_block_ids"][1]
    dst_blocks = [given["d_block_ids"][0], Blocks.tail(d_window, len(p_window))]
    null = given["null_block"]
    pair = only_pair(
        check(
            want,
            Side(layout(given["p_regions"]), given["p_block_ids"]),
            Side(layout(given["d_regions"]), dst_blocks),
            null_block=null,
        )
    )
    src_ids, dst_ids = pair.desc_ids(given["p_block_ids"], dst_blocks, null_block=null)
    assert src_ids.tolist() == want["values"]["desc_ids_p"]
    assert dst_ids.tolist() == want["values"]["desc_ids_d"]


@case("prefix-chunked-sender")
def test_chunks(given: Any, want: Any) -> None:
    src, dst = layout(given["p_regions"]), layout(given["d_regions"])
    cached = given["d_cached_tokens"] // given["page_tokens"]
    assert cached == want["values"]["cached_pages"]
    dst_blocks = [Blocks(given["d_block_ids"][0], skip=cached)]
    pair = only_pair(check(want, Side(src, given["p_block_ids"]), Side(dst, dst_blocks)))
    copies = []
    for (low, high), count in zip(given["chunks"], want["values"]["chunk_moves"], strict=True):
        chunk = [Blocks(given["p_block_ids"][0][low:high], skip=low)]
        src_ids, dst_ids = pair.desc_ids(chunk, dst_blocks)
        assert len(src_ids) == count
        copies.append(Copies(Memory(0), Memory(0), pair.moves(src_ids, dst_ids)))
    sides = Side(src, given["p_block_ids"]), Side(dst, dst_blocks)
    assert byte_map(copies, ()) == byte_map(as_copies(want["moves"], *sides), ())


# -- logical and kernel blocks, block sizes ----------------------------------------------------


@case("bs-logical-128-kernel-64")
def test_logical_ids_are_not_page_ids(given: Any, want: Any) -> None:
    ratio = given["logical_block_tokens"] // given["kernel_page_tokens"]
    p_pages = kernel_blocks(given["p_logical_block_ids"][0], ratio)
    d_pages = kernel_blocks(given["d_logical_block_ids"][0], ratio)
    assert p_pages.tolist() == want["values"]["p_page_ids"]
    assert d_pages.tolist() == want["values"]["d_page_ids"]
    check(want, Side(layout(given["p_regions"]), [p_pages]), Side(layout(given["d_regions"]), [d_pages]))


@case("bs-len-per-page-not-per-logical")
def test_the_length_is_a_pages(given: Any, want: Any) -> None:
    ratio = given["logical_block_tokens"] // given["kernel_page_tokens"]
    assert ratio == want["values"]["pages"]
    p_pages = kernel_blocks(given["p_logical_block_ids"][0], ratio)
    d_pages = kernel_blocks(given["d_logical_block_ids"][0], ratio)
    pair = only_pair(
        check(want, Side(layout(given["p_regions"]), [p_pages]), Side(layout(given["d_regions"]), [d_pages]))
    )
    ids = pair.desc_ids([p_pages], [d_pages])
    moves = pair.moves(*ids)
    assert moves[:, 2].tolist() == [want["values"]["len_per_page"]] * ratio
    assert pair.moves(*ids, merge=True).tolist() == [[src, dst, length] for _, src, _, dst, length in want["moves"]]


@case("bs-remote-ratio")
def test_each_side_has_its_own_ratio(given: Any, want: Any) -> None:
    p_pages = kernel_blocks(given["p_logical_block_ids"][0], given["p_pages_per_logical"])
    d_pages = kernel_blocks(given["d_logical_block_ids"][0], given["d_pages_per_logical"])
    assert p_pages.tolist() == want["values"]["p_page_ids"]
    assert d_pages.tolist() == want["values"]["d_page_ids"]
    check(want, Side(layout(given["p_regions"]), [p_pages]), Side(layout(given["d_regions"]), [d_pages]))


@case("bs-ratio-nhd-2-to-4")
def test_token_major_sub_blocks_are_contiguous(given: Any, want: Any) -> None:
    def page(fields: Any, tokens: int) -> Layout:
        return Layout(
            [
                region(
                    fields[0],
                    attention_sections(
                        "K",
                        num_kv_heads=given["num_kv_heads"],
                        tp_size=1,
                        tp_rank=0,
                        block_tokens=tokens,
                        token_head_bytes=given["head_bytes_per_token"],
                        order="NHD",
                    ),
                )
            ]
        )

    src = page(given["p_regions"], given["p_block_tokens"])
    dst = page(given["d_regions"], given["d_block_tokens"])
    pair = only_pair(check(want, Side(src, given["p_block_ids"]), Side(dst, given["d_block_ids"])))
    _, dst_ids = pair.desc_ids(given["p_block_ids"], given["d_block_ids"])
    assert [pair.dst.locate(int(i))[1] for i in dst_ids] == want["values"]["d_sub_block_ids"]
    assert dst_ids.tolist() == want["values"]["d_sub_block_ids"]


@case("ids-virtual-to-physical")
def test_ids_are_translated_before_runs_are_sought(given: Any, want: Any) -> None:
    physical = [given["p_virtual_to_physical"][str(i)] for i in given["p_virtual_ids"][0]]
    pair = only_pair(
        check(
            want, Side(layout(given["p_regions"]), [physical]), Side(layout(given["d_regions"]), given["d_block_ids"])
        )
    )
    ids = pair.desc_ids([physical], given["d_block_ids"])
    assert pair.merged_ops(*ids) == want["values"]["runs"]


@case("cp-transfer-group-vs-cache-group")
def test_one_table_at_two_scales(given: Any, want: Any) -> None:
    """Each cache group's ids are scaled by the transfer group that uses them, and by no other."""
    pages = [
        kernel_blocks(given["block_ids"][one["cache_group"]], one["scale"]).tolist() for one in given["transfer_groups"]
    ]
    assert pages == [want["values"]["indexer_pages"], want["values"]["mla_pages"]]
    scales = [one["scale"] for one in given["transfer_groups"]]
    both = Layout(
        [
            Region(one["name"], 0x10000 * number, 16, 4 * one["scale"], groups=(number,))
            for number, one in enumerate(given["transfer_groups"])
        ]
    )
    assert both.desc_ids(pages).tolist() == [*pages[0], 4 * scales[0] + 1, 4 * scales[0] + 2]
    # The same without expansion: one table of logical blocks, regions at their own block length.
    logical = Layout([Region("indexer", 0, 16 * scales[0], 4), Region("mla", 0x10000, 16, 4)])
    addresses = [logical.address(int(i))[:2] for i in logical.desc_ids(given["block_ids"])]
    assert addresses == [(128, 128), (256, 128), (0x10010, 16), (0x10020, 16)]


# -- ids ---------------------------------------------------------------------------------------


@case("id-own-num-blocks")
def test_ids_use_their_own_sides_count(given: Any, want: Any) -> None:
    def side(num_blocks: int) -> Layout:
        return Layout(Region(f"r{n}", 0x1000 * n, 16, num_blocks) for n in range(given["num_regions"]))

    local, remote = side(given["local_num_blocks"]), side(given["remote_num_blocks"])
    values = want["values"]
    assert local.desc_ids(given["local_block_ids"]).tolist() == values["local_desc_ids"]
    assert remote.desc_ids(given["remote_block_ids"]).tolist() == values["remote_desc_ids"]
    [[pair]] = plan(local, {0: remote}).values()
    src_ids, dst_ids = pair.desc_ids(given["remote_block_ids"], given["local_block_ids"])
    assert src_ids.tolist() == values["remote_desc_ids"]
    assert dst_ids.tolist() == values["local_desc_ids"]
    with pytest.raises(BlockIdError, match="10"):
        pair.moves(src_ids, np.array(values["wrong_local"], np.int32))


@case("id-unequal-region-capacities")
def test_starts_are_cumulative(given: Any, want: Any) -> None:
    one = Layout(
        Region(f"r{n}", 0x1000 * n, 16, blocks, groups=(group,))
        for n, (blocks, group) in enumerate(zip(given["region_num_blocks"], given["region_group"], strict=True))
    )
    values = want["values"]
    assert one.starts.tolist() == [*values["starts"], values["total"]]
    ids = one.desc_ids(given["block_ids"])
    assert ids.tolist() == values["desc_ids_in_region_order"]
    assert ids.dtype == np.int32


@case("id-state-region-count-drift")
def test_ids_come_from_the_list_that_was_built(given: Any, want: Any) -> None:
    fa = [Region(f"fa{n}", 0x1000 * n, 16, given["fa_num_blocks"], groups=(0,)) for n in range(given["fa_regions"])]
    state = [
        Region(
            f"state{n}.{part}",
            0x10000 + 0x1000 * n + 16 * part,
            16,
            given["state_num_blocks"],
            block_stride=64,
            groups=(1,),
        )
        for n in range(given["state_regions_in_list"])
        for part in range(given["state_parts"])
    ]
    built = Layout([*fa, *state])
    values = want["values"]
    assert built.num_descs == values["list_len"]
    assert built.desc_ids([[], *given["state_block_ids"]]).tolist() == values["right_ids"]
    pair = DlistPair(built, built)
    for outside in values["overflow_ids"]:
        with pytest.raises(BlockIdError, match=str(outside)):
            built.locate(outside)
        with pytest.raises(BlockIdError, match=str(outside)):
            pair.moves(np.array([outside], np.int32), np.array([0], np.int32))


# -- regions -----------------------------------------------------------------------------------


@case("reg-same-base-two-lengths")
def test_two_views_of_one_base(given: Any, want: Any) -> None:
    check(
        want,
        Side(layout(given["p_regions"]), given["p_block_ids"]),
        Side(layout(given["d_regions"]), given["d_block_ids"]),
    )


@case("reg-shared-tensor-once")
def test_a_tensor_that_two_layers_share(given: Any, want: Any) -> None:
    src, dst = layout(given["p_regions"]), layout(given["d_regions"])
    pair = only_pair(check(want, Side(src, given["p_block_ids"]), Side(dst, given["d_block_ids"])))
    assert len(src.memory_ranges()) == want["values"]["registrations"]
    ids = pair.desc_ids(given["p_block_ids"], given["d_block_ids"])
    assert len(ids[0]) == want["values"]["moves"]
    # Declared as one region per layer, it is still registered once.
    twice = Layout(
        [
            Region(name, r.base_addr, r.block_len, r.num_blocks, groups=(group,))
            for name, (group, _) in given["layers"].items()
            for r in src.regions
        ]
    )
    assert len(twice.memory_ranges()) == want["values"]["registrations"]


@case("reg-padded-strides")
def test_padding_is_kept(given: Any, want: Any) -> None:
    pair = only_pair(
        check(
            want,
            Side(layout(given["p_regions"]), given["p_block_ids"]),
            Side(layout(given["d_regions"]), given["d_block_ids"]),
        )
    )
    ids = pair.desc_ids(given["p_block_ids"], given["d_block_ids"])
    assert pair.merged_ops(*ids) == 3
    assert len(pair.moves(*ids, merge=True)) == 3


@case("reg-joint-vs-separate-kv")
def test_joint_against_separate(given: Any, want: Any) -> None:
    def part(name: str, offset: int = 0) -> Section:
        return Section(name, (Axis("byte", 0, 16),), 1, offset=offset)

    src = Layout([region(fields, [part(f"K{n}"), part(f"V{n}", 16)]) for n, fields in enumerate(given["p_regions"])])
    dst = Layout([region(fields, [part(fields["name"])]) for fields in given["d_regions"]])
    check(want, Side(src, given["p_block_ids"]), Side(dst, given["d_block_ids"]))


# -- pipeline stages ---------------------------------------------------------------------------


def stage(names: Iterable[str]) -> Layout:
    return Layout([Region(name, 0x1000 * n, 16, 4) for n, name in enumerate(names)])


def region_numbers(found: Plan, dst: Layout) -> dict[str, int]:
    """The name of each delivered region -> its number in dst."""
    names = [r.name for r in dst.regions]
    return {
        dst_name: names.index(dst_name) for pairs in found.values() for pair in pairs for _, dst_name, _ in pair.origin
    }


@case("pp-uneven-7-8-v-offset")
def test_stages_push_into_k_then_v(given: Any, want: Any) -> None:
    count = given["num_layers"]
    dst = stage([f"K{n}" for n in range(count)] + [f"V{n}" for n in range(count)])
    assert len(dst.regions) == given["d_list_len"]
    first = 0
    for number, layers in enumerate(given["stage_layers"]):
        mine = range(first, first + layers)
        src = stage([f"K{n}" for n in mine] + [f"V{n}" for n in mine])
        at = region_numbers(plan(dst, {number: src}, allow_missing=True), dst)
        for part in "KV":
            low, high = want["values"][f"stage{number}"][part.lower()]
            assert [at[f"{part}{n}"] for n in mine] == list(range(low, high + 1))
        first += layers


@case("pp-hybrid-dense-layer-index")
def test_a_dense_list_of_attention_layers(given: Any, want: Any) -> None:
    layers = given["full_attention_layers"]
    dst = stage(f"L{n}" for n in layers)
    assert len(dst.regions) == given["d_list_len"]
    cut = given["stage1_first_layer"]
    for number, mine in enumerate(([n for n in layers if n < cut], [n for n in layers if n >= cut])):
        found = plan(dst, {number: stage(f"L{n}" for n in mine)}, allow_missing=True)
        low, high = want["values"][f"stage{number}_slice"]
        assert sorted(region_numbers(found, dst).values()) == list(range(low, high))
        assert len(found.missing) == len(layers) - len(mine)


@case("pp-uneven-both-sides")
def test_stages_uneven_on_both_sides(given: Any, want: Any) -> None:
    def stages(sizes: Sequence[int]) -> list[Layout]:
        return [stage(f"L{n}" for n in range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes))]

    srcs, dsts = dict(enumerate(stages(given["p_stages"]))), stages(given["d_stages"])
    overlaps, offsets = [], []
    for d, dst in enumerate(dsts):
        for p, pairs in plan(dst, srcs).items():
            names = [origin[0] for pair in pairs for origin in pair.origin]
            numbers = sorted(int(name[1:]) for name in names)
            overlaps.append([p, d, numbers[0], numbers[-1]])
            places = [[r.name for r in one.regions].index(f"L{numbers[0]}") for one in (srcs[p], dst)]
            offsets.append([p, d, *places])
    assert sorted(overlaps) == sorted(want["values"]["overlaps_p_d_first_last"])
    assert sorted(offsets) == sorted(want["values"]["local_offsets"])


# -- mixed memory ------------------------------------------------------------------------------


@case("mem-dram-vram-partition")
def test_two_lists_for_two_memories(given: Any, want: Any) -> None:
    src, dst = layout(given["p_regions"]), layout(given["d_regions"])
    p_ids, d_ids = given["p_block_ids"], given["d_block_ids"]
    [found] = check(want, Side(src, p_ids), Side(dst, d_ids)).values()
    values = want["values"]
    assert sum(len(pairs) for pairs in found.values()) == values["num_transfers"]
    lists = {pair.mem_types[1]: pair for pair in found[0]}
    for mem_type, about in values["d_lists"].items():
        pair = lists[mem_type]
        names = [given["d_regions"][n]["name"] for n in about["regions"]]
        assert [origin[1] for origin in pair.origin] == names
        assert pair.dst.num_descs == about["len"]
        assert {r.device_id for r in pair.dst.regions} == {about["device_id"]}
        src_ids, dst_ids = pair.desc_ids(p_ids, d_ids)
        assert dst_ids.tolist() == about["ids"]
        # The case numbers the source in one list; ours has one per pair. The descriptors agree.
        whole = values["p_list"]["VRAM"][f"ids_for_d_{mem_type.lower()}"]
        assert [pair.src.address(int(i)) for i in src_ids] == [src.address(i) for i in whole]
    assert src.num_descs == values["p_list"]["VRAM"]["len"]
    parts = dst.by_mem_type()
    assert {kind: part.num_descs for kind, part in parts.items()} == {"VRAM": 8, "DRAM": 10}


@case("mem-mixed-with-tp-gather")
def test_a_list_per_memory_and_source(given: Any, want: Any) -> None:
    def heads(tp: int, rank: int, name: str) -> Any:
        return attention_sections(name, num_kv_heads=2, tp_size=tp, tp_rank=rank, block_tokens=2, token_head_bytes=4)

    srcs = {
        rank: Layout(
            [
                Region(f"r{n}", 0x1000 * n, 16 // given["p_tp"], 4, sections=heads(given["p_tp"], rank, f"L{n}"))
                for n in range(2)
            ]
        )
        for rank in range(given["p_tp"])
    }
    dst = Layout(
        [
            Region(f"r{n}", 0x1000 * n, 16, 4, mem_type=kind, sections=heads(1, 0, f"L{n}"))
            for n, kind in enumerate(given["d_region_kinds"])
        ]
    )
    found = plan(dst, srcs)
    lists = [[pair.mem_types[1], rank] for rank, pairs in found.items() for pair in pairs]
    assert sorted(lists) == sorted(want["values"]["lists"])
    blocks = {rank: [[1, 2]] for rank in srcs}, {0: [[3, 0]]}
    done = check_delivery(srcs, {0: dst}, *blocks, planned_copies({0: found}, *blocks))
    assert done.delivered == 64


# -- context parallelism -----------------------------------------------------------------------


@case("dcp-4-to-2")
def test_context_parallel_four_to_two(given: Any, want: Any) -> None:
    def side(fields: Any, cp: int, ids: Sequence[int]) -> Side:
        sections = mla_sections("mla", block_tokens=1, token_bytes=16)
        ranks = range(cp)
        return Side(
            {r: Layout([region(fields[0], sections)], cp_rank=r, cp_size=cp) for r in ranks},
            {r: [ids[: len(range(r, given["num_global_blocks"], cp))]] for r in ranks},
        )

    src = side(given["p_regions"], given["p_dcp"], given["p_block_ids"][0])
    dst = side(given["d_regions"], given["d_dcp"], given["d_block_ids"][0])
    plans = check(want, src, dst)
    assert sorted(plans[0]) == want["values"]["sources_of_d0"]
    assert sorted(plans[1]) == want["values"]["sources_of_d1"]


# -- integers, arrays, validation --------------------------------------------------------------


@case("int-uint64-high-address")
def test_addresses_with_the_highest_bit(given: Any, want: Any) -> None:
    one = Layout([Region("K", given["base"], given["stride"], 8)])
    [block] = given["block_ids"]
    assert one.address(block) == (want["values"]["addr"], given["stride"], 0)
    assert hex(one.address(block)[0]) == want["values"]["addr_hex"]
    assert int(one.dense_table()[block, 0]) == want["values"]["addr"]
    [[pair]] = plan(one, {0: one}).values()
    assert pair.moves(*pair.desc_ids([[block]], [[block]])).tolist() == [
        [want["values"]["addr"], want["values"]["addr"], given["stride"]]
    ]


@case("int-desc-id-overflow")
def test_more_descriptors_than_ids(given: Any, want: Any) -> None:
    def of(num_blocks: int) -> Layout:
        return Layout(Region(f"r{n}", n << 40, 16, num_blocks) for n in range(given["num_regions"]))

    with pytest.raises(GeometryError) as caught:
        of(given["num_blocks"])
    said = str(caught.value).replace(",", "").replace("_", "")
    assert str(want["values"]["total"]) in said
    assert str(want["error"]["limit"]) in said or "2**31 - 1" in str(caught.value)
    assert of(13_421_772).num_descs == 2_147_483_520


@case("int-index-dtype")
def test_index_arrays_are_int32(given: Any, want: Any) -> None:
    one = Layout([Region("K", 0, 16, 8)])
    ids = one.desc_ids([np.arange(8)])  # block ids may be of any integer type
    assert ids.dtype == np.dtype(want["error"]["want"])
    assert ids.ndim == 1
    assert ids.flags.c_contiguous
    with pytest.raises(TypeError, match="int64"):
        one.desc_ids([np.arange(8)], out=np.empty(8, want["error"]["given"]))


@case("int-table-layout")
def test_tables_are_c_contiguous(given: Any, want: Any) -> None:
    """Ours always are; where a caller gives the array, ours is stricter than NIXL in one point."""
    one = Layout([Region("K", 0, 16, 5)])
    for table in (one.table(), one.dense_table()):
        assert table.dtype == np.uint64
        assert table.flags.c_contiguous
    arrays: dict[str, Any] = {
        "uint64 (5,3) C": np.empty((5, 3), np.uint64),
        "int64 (5,3) C": np.empty((5, 3), np.int64),
        "uint64 (5,3) Fortran": np.empty((5, 3), np.uint64, order="F"),
        "uint64 (5,4)[:, :3]": np.empty((5, 4), np.uint64)[:, :3],
        "float64 (5,3)": np.empty((5, 3), np.float64),
        "uint64 (15,)": np.empty(15, np.uint64),
        "uint64 (0,3)": np.empty((0, 3), np.uint64),
    }
    assert list(arrays) == given["tables"]
    for words, accepted in zip(given["tables"], want["values"]["accepted"], strict=True):
        if words.startswith("int64"):
            with pytest.raises(TypeError, match="uint64"):  # NIXL would take it
                one.dense_table(out=arrays[words])
        elif accepted is True:
            assert one.dense_table(out=arrays[words]) is arrays[words]
        else:
            with pytest.raises((TypeError, ValueError)):
                one.dense_table(out=arrays[words])


@case("nx5-span-overflow")
def test_a_span_beyond_the_address_space(given: Any, want: Any) -> None:
    run = given["run"]
    assert (run["count"] - 1) * run["stride"] + run["len"] == want["values"]["true_span"]
    with pytest.raises(GeometryError):
        Layout([Region("r", run["addr"], run["len"], run["count"], block_stride=run["stride"])])
    # The wrap alone, with a stride and a count that are allowed.
    with pytest.raises(GeometryError, match=r"2\*\*64"):
        Layout([Region("r", run["addr"], 16, 2**31 - 1, block_stride=2**34)])


@case("reg-len-times-blocks-exceeds-tensor")
def test_a_region_larger_than_its_tensor(given: Any, want: Any) -> None:
    memory = np.zeros(given["tensor_bytes"], np.uint8)
    addr = memory.ctypes.data
    wrong = Layout(
        [Region("K", addr, given["block_len"], given["num_blocks"], block_stride=given["stride"], mem_type="DRAM")]
    )
    assert wrong.memory_ranges() == [(addr, want["error"]["need"], 0, "DRAM")]
    agent = LoopbackAgent("cases-tensor")
    agent.register_memory([(addr, given["tensor_bytes"], 0, "")], "DRAM")
    with pytest.raises(Exception, match="NOT_FOUND") as caught:
        agent.prep_xfer_dlist("", wrong.table(), "DRAM")
    assert isinstance(caught.value, LoopbackError)


@case("reg-transport-dtype")
def test_sizes_come_from_the_pool_that_is_moved(given: Any, want: Any) -> None:
    elems = given["attention_block_elems"]
    item = {pool["name"]: pool["elem_bytes"] for pool in given["pools"]}
    pages = [Section(name, (Axis("element", 0, elems),), size) for name, size in item.items()]
    one = Layout([Region(s.name, n << 20, s.nbytes, 4, sections=[s]) for n, s in enumerate(pages)])
    [[pair]] = plan(one, {0: one}).values()
    lengths = {origin[1]: r.block_len for origin, r in zip(pair.origin, pair.dst.regions, strict=True)}
    assert lengths["attention"] == want["values"]["attention_block_bytes"]
    assert lengths["state"] == want["values"]["wrong_from_pool0"]
    other = Section("attention", (Axis("element", 0, elems),), item["state"])
    peer = Layout([one.regions[0], Region("attention", 1 << 20, other.nbytes, 4, sections=[other])])
    with pytest.raises(PeerMismatchError, match="attention"):
        plan(peer, {0: one})


@case("noncontig-column")
def test_a_column_is_walked_by_its_stride(given: Any, want: Any) -> None:
    axes = (Axis("row", 0, *given["shape"]),)
    column = Section("c", axes, given["elem_bytes"], offset=given["offset"], strides=given["strides_bytes"])
    dense = Section("c", axes, given["elem_bytes"])
    src = Layout([Region("c", given["base"], column.end, 1, sections=[column])])
    dst = Layout([Region("c", given["d_base"], dense.end, 1, sections=[dense])])
    check(want, Side(src, [[0]]), Side(dst, [[0]]))


# -- counts ------------------------------------------------------------------------------------


@case("coalesce-both-sides")
def test_runs_need_both_sides(given: Any, want: Any) -> None:
    def side() -> Layout:
        return Layout(
            Region(f"r{n}", 0x1000 * n, given["block_len"], 16, block_stride=given["stride"])
            for n in range(given["num_regions"])
        )

    remote, local, values = given["remote_block_ids"], given["local_block_ids"], want["values"]
    [[pair]] = plan(side(), {0: side()}).values()
    ids = pair.desc_ids([remote], [local])
    assert len(ids[0]) == values["without_merge"]
    assert pair.merged_ops(*ids) == values["descriptors"]
    joined = pair.moves(*ids, merge=True)
    assert len(joined) == values["descriptors"]
    first = [[src // 16, dst // 16, n // 16] for src, dst, n in joined[:3].tolist()]
    assert first == values["runs_remote_local_count"]
    adjacent = pair.desc_ids([list(range(5, 10))], [list(range(2, 7))])
    assert pair.merged_ops(*adjacent) == values["if_contiguous"]


@case("count-fragmentation")
def test_counts_that_were_reported_as_too_many(given: Any, want: Any) -> None:
    values = want["values"]

    def pieces(count: int) -> list[Section]:
        return [Section(f"p{n}", (Axis("byte", 0, 16384),), 1, offset=16384 * n) for n in range(count)]

    def regions(count: int, blocks: int) -> Layout:
        return Layout(Region(f"r{n}", n << 30, 16384, blocks) for n in range(count))

    # a: one row of 96 pieces against a region per piece.
    row = Layout([Region("row", 0, 1572864, 4, sections=pieces(values["a"]))])
    apart = Layout(
        Region(f"r{n}", n << 20, 16384, 4, sections=[Section(s.name, s.axes, 1)])
        for n, s in enumerate(pieces(values["a"]))
    )
    [[pair]] = plan(apart, {0: row}).values()
    assert len(pair.desc_ids([[2]], [[1]])[0]) == values["a"]
    # ... and one descriptor where both sides have the row.
    [[pair]] = plan(row, {0: row}).values()
    assert len(pair.desc_ids([[2]], [[1]])[0]) == 1

    # b: 80 layers, K and V, 118 blocks that are nowhere adjacent, then everywhere.
    side = regions(80 * 2, 240)
    [[pair]] = plan(side, {0: side}).values()
    ids = pair.desc_ids([range(0, 236, 2)], [range(0, 236, 2)])
    assert pair.merged_ops(*ids) == values["b"]
    ids = pair.desc_ids([range(118)], [range(100, 218)])
    assert pair.merged_ops(*ids) == values["b_if_adjacent"]

    # c: 28 layers, K and V, 63 blocks; then one row that holds all layers.
    side = regions(28 * 2, 130)
    [[pair]] = plan(side, {0: side}).values()
    assert pair.merged_ops(*pair.desc_ids([range(0, 126, 2)], [range(0, 126, 2)])) == values["c"]
    row = Layout([Region("row", 0, 16384 * 56, 130, sections=pieces(56))])
    [[pair]] = plan(row, {0: row}).values()
    ids = pair.desc_ids([range(63)], [range(63)])
    assert pair.merged_ops(*ids) == values["c_cross_layer_contiguous"]


@case("count-prepared-list-size")
def test_a_prepared_list_is_small(given: Any, want: Any) -> None:
    one = Layout(Region(f"r{n}", n << 40, 16, given["num_blocks"]) for n in range(given["num_regions"]))
    values = want["values"]
    assert one.num_descs == values["descriptors"]
    assert len(one.table()) == values["runs"]
    assert one.table().nbytes == values["bytes_nx5"]
    assert one.dense_table().nbytes == values["bytes_nx3"]


# -- all of them -------------------------------------------------------------------------------


def test_every_case_has_a_test() -> None:
    assert set(case.all) == case.tested
    assert len(case.all) >= 40
