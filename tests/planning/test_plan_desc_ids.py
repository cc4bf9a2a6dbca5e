"""A request over all its sources at once: the ids of each pair, and whether the whole of it is there."""

from __future__ import annotations

from typing import Any

import pytest

from nixldesc import BlockIdError, Blocks, Layout, PeerMismatchError, Plan, Region, attention_sections, plan


def engine(tp: int, rank: int, layers: int = 2, mem: str = "VRAM") -> Layout:
    regions = []
    for layer in range(layers):
        page = attention_sections(
            f"l{layer}", num_kv_heads=4, tp_size=tp, tp_rank=rank, block_tokens=4, token_head_bytes=2
        )
        regions.append(Region(f"l{layer}", layer << 20, page[-1].end, 50, sections=page, mem_type=mem))
    return Layout(regions)


@pytest.fixture
def made() -> Plan:
    return plan(engine(1, 0), {rank: engine(4, rank) for rank in range(4)})


@pytest.mark.parametrize("options", [{}, {"order": "given"}, {"tokens": 11}, {"sections": ["l1"]}])
def test_it_is_what_each_pair_says(made: Plan, options: dict[str, Any]) -> None:
    src = {rank: [[rank, 7, 9 + rank]] for rank in range(4)}
    whole = made.desc_ids(src, [[30, 2, 11]], complete=True, **options)
    assert list(whole) == [0, 1, 2, 3]
    for rank, found in whole.items():
        (pair,) = made[rank]
        assert [ids.tolist() for ids in found[0]] == [
            ids.tolist() for ids in pair.desc_ids(src[rank], [[30, 2, 11]], **options)
        ]


def test_a_source_that_is_left_out_leaves_a_hole(made: Plan) -> None:
    src = {rank: [[1, 2]] for rank in range(3)}
    assert list(made.desc_ids(src, [[5, 6]])) == [0, 1, 2]
    with pytest.raises(BlockIdError, match=r"no source fills section 'l0', block 5, tokens 0 to 3; .* and \d+ more|l1"):
        made.desc_ids(src, [[5, 6]], complete=True)


def test_half_a_filled_entry_is_not_complete(made: Plan) -> None:
    """A skip in tokens instead of blocks moves nothing of what is named, and would be done."""
    src = {rank: [[1, 2, 3]] for rank in range(4)}
    made.desc_ids(src, [Blocks([5], skip=2)], complete=True)
    with pytest.raises(BlockIdError, match="the request is not complete: no source fills section 'l0', block 5"):
        made.desc_ids(src, [Blocks([5], skip=8)], complete=True)


def test_a_source_of_which_nothing_is_taken_may_be_named() -> None:
    latent = Layout([Region("c", 0, 16, 9)])
    made = plan(latent, {0: latent, 1: latent}, dst_rank=0, dst_size=1)
    assert list(made.desc_ids({0: [[1]], 1: [[2]]}, [[3]], complete=True)) == [0]
    with pytest.raises(PeerMismatchError, match="src_blocks names source '7'"):
        made.desc_ids({7: [[1]]}, [[3]])


def test_pairs_of_several_memories_each_take_the_sections_they_move() -> None:
    dst = Layout([*engine(1, 0).regions[:1], *engine(1, 0, mem="DRAM").regions[1:]])
    made = plan(dst, {0: engine(1, 0)})
    assert len(made[0]) == 2
    found = made.desc_ids({0: [[1, 2]]}, [[3, 4]], sections=["l1"])[0]
    assert [len(src_ids) for src_ids, _ in found] == [0, 2]
    with pytest.raises(PeerMismatchError, match="no source sends a section 'l9'"):
        made.desc_ids({0: [[1, 2]]}, [[3, 4]], sections=["l9"])
