"""Small things of a request that no larger test would miss: each was planted wrong once, and nothing noticed."""

from __future__ import annotations

import pytest

from nixldesc import BlockIdError, Layout, Region, mla_sections, plan


def test_a_misfit_speaks_of_context_parallel_ranks_only_where_there_are_any() -> None:
    page = mla_sections("l", block_tokens=16, token_bytes=1)
    layout = Layout([Region("l", 0, 16, 64, sections=page)])
    (pair,) = plan(layout, {0: layout})[0]
    with pytest.raises(BlockIdError, match="on each side; tokens= says"):
        pair.desc_ids([[1, 2, 3]], [[1, 2, 3, 4, 5]])


def test_an_id_beyond_a_region_of_several_groups_is_named() -> None:
    layout = Layout([Region("l", 0, 16, 64, groups=(0, 1))])
    (pair,) = plan(layout, {0: layout})[0]
    with pytest.raises(BlockIdError, match=r"group 1.*99"):
        pair.desc_ids([[0], [99]], [[0], [1]])
