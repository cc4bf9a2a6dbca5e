"""Pairs that would have too many ids are several; what a plan costs, counted out by hand."""

from __future__ import annotations

import pytest

from nixldesc import (
    Axis,
    Blocks,
    GeometryError,
    Layout,
    PeerMismatchError,
    Region,
    Section,
    plan,
    reader_counts,
    source_ranks,
)
from nixldesc.planning import sendings
from nixldesc.planning.families import Source
from nixldesc.planning.limits import Limits
from nixldesc.planning.recipe import templates_of
from nixldesc.planning.sources import Rule, Rules, Seat


def test_lanes_are_dealt_to_pairs_in_their_order() -> None:
    """Planted once: the second pair counted from the wrong region on, and nothing noticed."""
    blocks = 2**30 - 1
    names = ["a", "b", "c", "d", "e"]
    offsets = {"here": [0, 16, 32, 48, 64], "there": [64, 48, 32, 16, 0]}

    def layout(base: int, where: str) -> Layout:
        page = [Section(name, [], 8, offset=at) for name, at in zip(names, offsets[where], strict=True)]
        return Layout([Region("r", base, 80, 1, sections=page)])

    one = plan(layout(0, "here"), {0: layout(2**50, "there")})
    assert [len(pair.origin) for pair in one[0]] == [5]

    def large(base: int, where: str) -> Layout:
        page = [Section(name, [], 8, offset=at) for name, at in zip(names, offsets[where], strict=True)]
        # Few enough for a layout's own ids, too many for five lanes of them in one list.
        return Layout([Region("r", base, 80, blocks, sections=page)])

    many = plan(large(0, "here"), {0: large(2**50, "there")})
    assert [[origin[2] for origin in pair.origin] for pair in many[0]] == [
        [("a",), ("b",)],
        [("c",), ("d",)],
        [("e",)],
    ]
    for pair in many[0]:
        assert pair.dst.num_descs == len(pair.origin) * blocks


def test_costs_are_counted_out() -> None:
    """Planted once: rows that were taken away instead of added."""
    k, v = ([Axis("row", 0, 4), Axis("column", 0, 2)] for _ in range(2))
    here = [Section("k", k, 8), Section("v", v, 8, offset=64)]
    there = [Section("k", k, 8, strides=[32, 8]), Section("v", v, 8, offset=16, strides=[32, 8])]
    made = plan(
        Layout([Region("page", 0, 128, 3, sections=here)]), {4: Layout([Region("page", 0, 128, 3, sections=there)])}
    )
    found = [tuple(cost) for cost in made.costs()]
    # Four runs of 16 bytes each, which touch on the dst side.
    rows = sum(len(pair.dst.table()) for pair in made[4])
    assert found == [
        (4, "k", "page", "page", 4, 64, 16, rows // 2),
        (4, "v", "page", "page", 4, 64, 16, rows // 2),
    ]
    assert rows // 2 > 0


def test_readers_are_counted_by_each_section_of_its_own() -> None:
    """Planted once: one rule for sections that other numbers of ranks hold."""
    both = Layout([Region("c", 0, 16, 4), Region("d", 64, 16, 4)])
    one = both.select(["c"])
    # Of c the second reader is rank 1 of 2 and begins at source 2 of 4; of d it is the only one and begins at 0.
    assert reader_counts([one, both], dict.fromkeys(range(4), both)) == {0: 2, 1: 0, 2: 1, 3: 0}


def test_what_two_sources_fill_is_named_and_nothing_else() -> None:
    """Planted once: what is missing taken for what is chosen."""
    cache = Layout([Region("k", 0, 16, 64)])
    made = plan(cache, {0: cache, 1: cache}, senders="all")
    request = {0: [Blocks([10, 11, 12])], 1: [Blocks([7, 8], skip=2)]}
    assert made.repeated(request, [Blocks([40, 41, 42, 43])]) == [("k", 42, 0, 1)]
    assert made.undelivered(request, [Blocks([40, 41, 42, 43, 44])]) == [("k", 44, 0, 1)]


@pytest.mark.parametrize("larger", ["dst", "src"])
def test_blocks_cut_in_two_on_one_side_are_counted_in_their_halves(larger: str) -> None:
    """Planted once: only the other side was asked whether its blocks are cut, and a list had 3.2 billion rows."""
    blocks = 2**29 - 1  # three regions of them are one list's, twice as many are not

    def layout(base: int, tokens: int) -> Layout:
        regions = []
        for name in "abc":
            page = [Section(name, [Axis("token", 0, tokens)], 8)]
            regions.append(Region(name, base + 2**45 * "abc".index(name), tokens * 8, blocks, sections=page))
        return Layout(regions)

    whole, halves = layout(0, 32), layout(2**50, 16)
    dst, src = (whole, halves) if larger == "dst" else (halves, whole)
    made = plan(dst, {0: src})[0]
    assert [[origin[1] for origin in pair.origin] for pair in made] == [["a", "b"], ["c"]]
    for pair, regions in zip(made, (2, 1), strict=True):
        cut, other = (pair.dst, pair.src) if larger == "dst" else (pair.src, pair.dst)
        assert (cut.num_descs, other.num_descs) == (regions * 2 * blocks, regions * blocks)
    # Of the last region block 7 of the one side meets blocks 4 and 5 of the other: its halves are ids 14 and 15.
    lists = ([[4, 5]], [[7]]) if larger == "dst" else ([[7]], [[4, 5]])
    ids = [side.tolist() for side in made[1].desc_ids(*lists)]
    assert ids == ([[4, 5], [14, 15]] if larger == "dst" else [[14, 15], [4, 5]])


def test_sources_that_nobody_has_are_refused_and_so_are_ranks_beyond_the_last() -> None:
    """Planted once: a source of no ranks was refused only where the destination was wrong, too."""
    words = "^expected src_tp > 0 and 0 <= dst_rank < dst_tp, got src_tp {}, dst_rank {}, dst_tp {}$"
    for src_tp, dst_rank, dst_tp in ((0, 0, 1), (-2, 1, 2), (4, 2, 2), (4, -1, 2), (1, 0, 0)):
        with pytest.raises(GeometryError, match=words.format(src_tp, dst_rank, dst_tp)):
            source_ranks(8, dst_tp, dst_rank, src_tp)
    assert source_ranks(8, 1, 0, 1) == (0,)


def test_each_source_gives_a_plan_steps_of_its_own() -> None:
    """Planted once: one step more for each source, however much there is to look through."""
    limits = Limits(3)
    assert limits.lanes == 3 * 65_536
    for _ in range(3):
        limits.look(2**18)
    with pytest.raises(OverflowError):
        limits.look(1)


def test_what_a_plan_may_make_is_made_and_not_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two regions, two lanes in each, in two runs a block: four regions of a list, and eight pieces of a block."""
    axes = [Axis("row", 0, 2), Axis("column", 0, 4)]

    def layout(row: int) -> Layout:
        pages = {
            name: [Section(name + end, axes, 1, offset=at, strides=[row, 1]) for end, at in (("k", 0), ("v", 32))]
            for name in ("a", "b")
        }
        return Layout([Region(name, ord(name) << 8, 64, 3, sections=page) for name, page in pages.items()])

    dst, source = layout(4), Source(0, layout(8))

    def sent(regions: int, pieces: int) -> int:
        monkeypatch.setattr(sendings, "MAX_BLOCK_PIECES", pieces)
        limits = Limits(1)
        templates, _, _ = templates_of(dst, [source], Rules(Rule(Seat()), {}), frozenset(), limits)
        limits.regions = regions
        return sum(len(sending.lists.slots) for sending in sendings.sendings_of(templates, limits)[0])

    assert sent(4, 8) == 4
    with pytest.raises(PeerMismatchError, match=r"region 'a': .* more than 65536 rows a source"):
        sent(3, 8)
    with pytest.raises(PeerMismatchError, match="region 'a': one block of each region would be 8 separate pieces"):
        sent(4, 7)


def test_regions_that_begin_as_far_together_but_not_apart_are_planned_apart() -> None:
    """Planted once: the sum of where two boxes begin was taken for how far they are apart."""

    def shard(**rows: tuple[int, int]) -> Layout:
        pages = {name: Section(name, [Axis("row", *ends)], 1) for name, ends in rows.items()}
        return Layout([Region(name, ord(name) << 8, 8, 4, sections=[page]) for name, page in pages.items()])

    # "a" wants four rows of each source, "b" six of source 0 and two of source 1; where the boxes begin sums up to
    # 44 and 36 for both. Source 1 has another order, so that sections are looked up by name.
    dst = shard(a=(20, 28), b=(21, 29))
    srcs = {0: shard(a=(24, 32), b=(23, 31)), 1: shard(b=(15, 23), a=(16, 24))}
    made = plan(dst, srcs, dst_rank=0, dst_size=1)
    taken = {
        rank: {(origin[2], region.block_len) for origin, region in zip(pair.origin, pair.dst.regions, strict=True)}
        for rank, (pair,) in made.items()
    }
    assert taken == {0: {(("a",), 4), (("b",), 6)}, 1: {(("a",), 4), (("b",), 2)}}
