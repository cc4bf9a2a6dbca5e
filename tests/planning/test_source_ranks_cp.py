"""source_ranks under context parallelism names the ranks that a plan reads."""

from __future__ import annotations

import pytest

from nixldesc import GeometryError, Layout, Region, attention_sections, plan, source_ranks


def engine(tp: int, rank: int, heads: int, cp: int = 1) -> Layout:
    page = attention_sections(
        "l", num_kv_heads=heads, tp_size=tp // cp, tp_rank=rank // cp, block_tokens=4, token_head_bytes=2
    )
    return Layout([Region("l", 0, page[-1].end, 8, sections=page)], cp_rank=rank % cp, cp_size=cp)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("src_cp", [1, 2, 4])
@pytest.mark.parametrize("dst_tp", [1, 2, 4])
def test_it_names_whom_the_plan_reads(heads: int, src_cp: int, dst_tp: int) -> None:
    srcs = {rank: engine(8, rank, heads, src_cp) for rank in range(8)}
    for rank in range(dst_tp):
        made = plan(engine(dst_tp, rank, heads), srcs, dst_rank=rank, dst_size=dst_tp)
        assert source_ranks(heads, dst_tp, rank, 8, src_cp=src_cp) == tuple(made)


def test_groups_of_another_size_are_refused() -> None:
    for src_cp in (3, 0, -1):
        with pytest.raises(GeometryError, match=f"src_cp must divide src_tp, got {src_cp} and 8"):
            source_ranks(8, 1, 0, 8, src_cp=src_cp)
