"""Small things of a request that no larger test would miss: each was planted wrong once, and nothing noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nixldesc import BlockIdError, Blocks, Layout, Region, mla_sections, plan
from nixldesc.kernels import _kernels


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


def test_a_matrix_is_no_list_of_blocks() -> None:
    """Planted once: what has more than one axis taken for a plain list."""
    matrix: Any = np.zeros((2, 2), np.int32)
    words = r"must be one-dimensional, got an array of shape \(2, 2\)$"
    with pytest.raises(TypeError, match=r"^Blocks: ids " + words):
        Blocks(matrix)
    with pytest.raises(TypeError, match=r"^Blocks.tail: ids " + words):
        Blocks.tail(matrix, 5)
    with pytest.raises(TypeError, match=r"^Blocks: at " + words):
        Blocks([1, 2], at=matrix)


def test_an_array_of_floats_is_no_list_of_blocks() -> None:
    """Planted once: an array of any numbers taken for ids."""
    floats: Any = np.zeros(2)
    with pytest.raises(TypeError, match=r"^Blocks: ids must hold integers, got an array of dtype float64$"):
        Blocks(floats)
    with pytest.raises(TypeError, match=r"^Blocks.tail: ids must hold integers, got an array of dtype float64$"):
        Blocks.tail(floats, 5)


def test_ids_that_say_where_they_stand_skip_nothing() -> None:
    """Planted once: a `skip` of 1 beside `at`."""
    assert Blocks([7, 4], at=[0, 3]).skip == 0
    assert Blocks([7, 4]).skip == 0


def test_sources_with_copies_of_one_list_share_their_ids() -> None:
    """Planted once: copies taken for lists of their own, and lists of unlike lengths for copies."""
    layout = Layout([Region("k", 0, 16, 64, groups=(0,))])
    made = plan(layout, {0: layout, 1: layout}, senders="all")
    found = made.desc_ids({0: [[6, 5]], 1: [[6, 5]]}, [[40, 41]])
    assert [[ids.tolist() for ids in found[source][0]] for source in (0, 1)] == [[[6, 5], [40, 41]]] * 2
    assert found[1][0][0] is found[0][0][0]
    longer = made.desc_ids({0: [[6, 5]], 1: [[6, 5], [9]]}, [[40, 41]])
    assert [[ids.tolist() for ids in longer[source][0]] for source in (0, 1)] == [[[6, 5], [40, 41]]] * 2


def test_blocks_that_begin_at_the_start_may_be_more_than_those_they_meet() -> None:
    """Planted once: a `skip` of 0 taken for a plain list, which is all of its side's."""
    layout = Layout([Region("k", 0, 16, 64)])
    made = plan(layout, {0: layout})
    assert [ids.tolist() for ids in made.desc_ids({0: [Blocks([1, 2, 3])]}, [[4, 5]])[0][0]] == [[1, 2], [4, 5]]
    with pytest.raises(BlockIdError, match=r"^source 0: source group 0 has 3 blocks and destination group 0 has 2: "):
        made.desc_ids({0: [[1, 2, 3]]}, [[4, 5]])


def test_pairs_are_sorted_by_their_destination_also_where_there_are_none() -> None:
    """Planted once: no pairs at all were no memory for them."""
    src, dst = np.array([7, 8, 9, 6], np.int32), np.array([2, 1, 2, 0], np.int32)
    assert _kernels.sort_pairs(src, dst) is True
    assert (src.tolist(), dst.tolist()) == ([6, 8, 7, 9], [0, 1, 2, 2])
    assert _kernels.sort_pairs(src[:0], dst[:0]) is True
