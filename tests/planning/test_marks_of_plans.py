"""Small things of a plan that no larger test would miss: each was planted wrong once, and nothing noticed."""

from __future__ import annotations

import pytest

from nixldesc import Axis, BlockIdError, Blocks, Layout, Region, Section, plan
from nixldesc.memory.sections import Dim
from nixldesc.planning.steps import stored


def page(heads: tuple[int, int], order: tuple[int, ...] = (0, 1), gap: int = 0) -> tuple[Section, ...]:
    """K and V of two heads of eight bytes and `gap`, in the order given; K lies first."""
    axes = [Axis("head", *heads), Axis("byte", 0, 8)]
    size = (8 + gap) * (heads[1] - heads[0])
    both = [Section(name, axes, 1, offset=at * size, strides=[8 + gap, 1]) for at, name in enumerate("kv")]
    return tuple([both[i] for i in order])


def test_parts_of_an_axis_that_nest_evenly_are_one() -> None:
    assert stored(0, (Dim(4, 3, 40), Dim(1, 4, 10))).dims == (Dim(1, 12, 10),)
    assert stored(0, (Dim(4, 3, 44), Dim(1, 4, 10))).dims == (Dim(4, 3, 44), Dim(1, 4, 10))


def test_loops_that_nest_evenly_on_both_sides_are_one_lane() -> None:
    # [token][head] with a gap behind every head's bytes: eight runs 16 bytes apart, not two of four.
    axes = [Axis("token", 0, 2), Axis("head", 0, 4), Axis("byte", 0, 8)]
    section = Section("k", axes, 1, strides=[64, 16, 1])
    layout = Layout([Region("k", 0, section.end, 4, block_stride=128, sections=(section,))])
    (pair,) = plan(layout, {0: layout})[0]
    assert pair.dst.table().tolist() == [[0, 8, 0, 16, 32]]


def test_sections_in_any_order_are_joined_where_they_touch() -> None:
    for order in ((0, 1), (1, 0)):
        layout = Layout([Region("l", 0, 32, 4, sections=page((0, 2), order))])
        (pair,) = plan(layout, {0: layout})[0]
        assert pair.dst.table().tolist() == [[0, 32, 0, 32, 4]]


def test_the_walk_begins_at_the_rank_that_the_number_of_ranks_says() -> None:
    latent = Layout([Region("c", 0, 16, 4)])
    known = dict.fromkeys((1, 2, 3), latent)  # rank 1 of 2 begins at rank 2 of 4, the second that is known
    assert list(plan(latent, known, dst_rank=1, dst_size=2, src_size=4)) == [2]


def test_costs_name_the_shortest_run() -> None:
    # K whole and four heads of V one by one: runs of 32 bytes and of 8.
    whole, apart = Section("k", [Axis("head", 0, 4), Axis("byte", 0, 8)], 1), [Axis("head", 0, 4), Axis("byte", 0, 8)]
    src = Layout([Region("l", 0, 96, 4, sections=(whole, Section("v", apart, 1, offset=32, strides=[16, 1])))])
    dst = Layout([Region("l", 0, 64, 4, sections=(whole, Section("v", apart, 1, offset=32)))])
    assert {cost.section: cost.run_len for cost in plan(dst, {0: src}).costs()} == {"k": 32, "v": 8}


def test_of_many_holes_four_are_named() -> None:
    layout = Layout([Region("k", 0, 16, 64)])
    made = plan(layout, {0: layout})
    with pytest.raises(BlockIdError, match=r"block 4, tokens 0 to 0; .* block 7, tokens 0 to 0 and 2 more;"):
        made.desc_ids({0: [Blocks([])]}, [Blocks([4, 5, 6, 7, 8, 9])], complete=True)


def test_positions_that_nobody_counts_to_are_refused() -> None:
    layout = Layout([Region("k", 0, 16, 64)])
    with pytest.raises(BlockIdError):
        plan(layout, {0: layout}).undelivered({0: [Blocks([1])]}, [Blocks([1], skip=2**31)])


def test_costs_of_a_section_in_pieces_name_its_shortest_run() -> None:
    # Indices 2 to 12 of an axis that the source stores by fours, with a gap after each: 2 bytes, then twice 4.
    parts = Section("x", [Axis("x", 0, 3, 4), Axis("x", 0, 4)], 1, strides=[8, 1])
    src = Layout([Region("x", 0, parts.end, 4, sections=(parts,))])
    dst = Layout([Region("x", 0, 10, 4, sections=(Section("x", [Axis("x", 2, 12)], 1),))])
    (cost,) = plan(dst, {0: src}).costs()
    assert (cost.run_len, cost.runs, cost.nbytes) == (2, 3, 10)
