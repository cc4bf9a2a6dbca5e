"""Which regions a request moves, what must not be named twice, and one request over all its sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import numpy as np
import pytest

from nixldesc import (
    BlockIdError,
    Blocks,
    DlistPair,
    Layout,
    PeerMismatchError,
    Region,
    align_blocks,
    attention_sections,
    kernel_blocks,
    plan,
)
from nixldesc.request.sources import OverSources

N = 50


def lists(ids: Any) -> list[list[int]]:
    return [side.tolist() for side in ids]


def heads(tp_rank: int, tp_size: int, tokens: int = 4, layers: int = 3, **how: Any) -> Layout:
    """Layers of K and V apart inside their blocks: as a part of the heads they are two regions of a pair."""
    regions = []
    for i in range(layers):
        page = attention_sections(
            f"l{i}", num_kv_heads=8, tp_size=tp_size, tp_rank=tp_rank, block_tokens=tokens, token_head_bytes=2,
            kv="blocks_first",
        )  # fmt: skip
        regions.append(Region(f"l{i}", (i + 1) << 20, page[-1].end, N, groups=(i % 2,), sections=page))
    return Layout(regions, **how)


# ------------------------------------------------------------------------------------------ sections and regions

PAIR = plan(heads(0, 2), {0: heads(0, 1)})[0][0]
REQUEST: Any = ([[5, 6], [7]], [[1, 0], [3]])


def by_origin(name: str) -> list[int]:
    return [number for number, (_, _, names) in enumerate(PAIR.origin) if name in names]


def test_sections_choose_all_their_regions() -> None:
    whole = lists(PAIR.desc_ids(*REQUEST))
    starts = PAIR.dst.starts.tolist()
    for name in PAIR.sections:
        got = lists(PAIR.desc_ids(*REQUEST, sections=[name]))
        [number] = by_origin(name)
        want = [pair for pair in zip(*whole, strict=True) if starts[number] <= pair[1] < starts[number + 1]]
        assert list(zip(*got, strict=True)) == want
        assert want
    assert lists(PAIR.desc_ids(*REQUEST, sections=PAIR.sections)) == whole
    assert lists(PAIR.desc_ids(*REQUEST, sections=iter(["l2.k", "l0.k"]))) == [
        a + b
        for a, b in zip(
            lists(PAIR.desc_ids(*REQUEST, sections=["l0.k"])),
            lists(PAIR.desc_ids(*REQUEST, sections=("l2.k",))),
            strict=True,
        )
    ]
    assert lists(PAIR.desc_ids(*REQUEST, sections=[])) == [[], []]


def test_sections_that_cannot_be_chosen() -> None:
    with pytest.raises(PeerMismatchError, match=r"there is no section 'l9' in this pair; its sections are 'l"):
        PAIR.desc_ids(*REQUEST, sections=["l0.k", "l9"])
    with pytest.raises(TypeError, match=r"sections must be several names, got 'l0\.k'"):
        PAIR.desc_ids(*REQUEST, sections="l0.k")
    same = plan(heads(0, 1), {0: heads(0, 1)})[0][0]  # K and V side by side on both: one run of bytes
    with pytest.raises(PeerMismatchError, match=r"region 'l0' moves sections 'l0.k', 'l0.v' .*'l0.v' must be named"):
        same.desc_ids(*REQUEST, sections=["l0.k"])
    assert len(same.desc_ids(*REQUEST, sections=["l0.v", "l0.k"])[0]) == 2


def test_only_what_is_chosen_is_read() -> None:
    """A list whose group no chosen region takes is not looked at."""
    assert lists(PAIR.desc_ids([[5], "?"], [[1], None], sections=["l0.k"])) == [[5], [1]]  # type: ignore[list-item]
    assert lists(PAIR.desc_ids([range(5, 6), "?"], [[1], None], sections=["l0.k"])) == [[5], [1]]  # type: ignore[list-item]
    with pytest.raises(BlockIdError, match="source group 1, position 0: block id 77 is out of range, region 'l1' has"):
        PAIR.desc_ids([["?"], [77]], [None, [1]], sections=["l1.v"])  # type: ignore[list-item]


@pytest.mark.parametrize("regions", [slice(100, 101), slice(0, 7), slice(-8, None), slice(7, None)])
def test_a_slice_beyond_the_regions(regions: slice) -> None:
    with pytest.raises(PeerMismatchError, match=r"but the pair has 6 regions \(they are not layers: sections= names"):
        PAIR.desc_ids(*REQUEST, regions=regions)


def test_a_slice_and_sections() -> None:
    with pytest.raises(TypeError, match="regions and sections both choose; give one of them"):
        PAIR.desc_ids(*REQUEST, regions=slice(0, 1), sections=["l0.k"])
    got = [lists(PAIR.desc_ids(*REQUEST, regions=slice(i, i + 1))) for i in range(6)]
    assert [[i for ids in got for i in ids[side]] for side in (0, 1)] == lists(PAIR.desc_ids(*REQUEST))
    assert lists(PAIR.desc_ids(*REQUEST, regions=slice(6, 6))) == [[], []]


@pytest.mark.parametrize("spell", [range, lambda *ends: np.arange(*ends, dtype=np.uint8)], ids=["range", "uint8"])
def test_a_choice_survives_another_spelling_of_the_ids(spell: Any) -> None:
    """Ranges and odd arrays are read in a second try: of the same regions, order, tokens and all."""
    plain = [[[4, 5, 6], [7, 8, 9]], [[1, 2, 3], [9, 10, 11]]]
    odd = [[spell(4, 7), spell(7, 10)], [spell(1, 4), spell(9, 12)]]
    for how in (
        {"regions": slice(1, 3)},
        {"sections": ["l1.v"]},
        {"order": "given", "null_block": 5},
        {"tokens": 12, "complete": True},
    ):
        assert lists(PAIR.desc_ids(*odd, **how)) == lists(PAIR.desc_ids(*plain, **how))
    assert len(PAIR.desc_ids(*odd, regions=slice(1, 3))[0]) == 6
    with pytest.raises(BlockIdError, match="tokens need 4"):
        PAIR.desc_ids(*odd, tokens=13)
    with pytest.raises(BlockIdError, match="no source entry fills"):
        PAIR.desc_ids(odd[0], [Blocks(spell(1, 4), skip=1), odd[1][1]], complete=True)


# --------------------------------------------------------------------------------------------- named twice


@pytest.mark.parametrize("order", ["merge", "given"])
@pytest.mark.parametrize("count", [2, 40, 3000])
@pytest.mark.parametrize("pool", [4000, 2**30])
def test_a_dst_block_named_twice(order: Any, count: int, pool: int) -> None:
    pair = DlistPair(Layout([Region("p", 0, 1, pool)]), Layout([Region("d", 0, 1, pool)]))
    rnd = Random(count)
    ids = rnd.sample(range(pool), count)
    assert len(pair.desc_ids([range(count)], [ids], order=order)[0]) == count
    first, second = sorted(rnd.sample(range(count), 2))
    ids[second] = ids[first]
    with pytest.raises(BlockIdError) as caught:
        pair.desc_ids([range(count)], [ids], order=order)
    assert (
        f"destination group 0, position {first} and group 0, position {second}: block id {ids[first]} is named twice, "
        f"and what it holds in region 'd' would be written twice"
    ) in str(caught.value)
    # A block that is read twice is no harm, nor is a placeholder, nor one that nothing meets.
    assert len(pair.desc_ids([ids], [range(count)], order=order)[0]) == count
    null, left = ids[first], [i for i in range(count) if ids[first] not in (i, ids[i])]
    assert lists(pair.desc_ids([range(count)], [ids], order="given", null_block=null))[0] == left
    only = Blocks([0], skip=first)
    assert lists(pair.desc_ids([only], [Blocks(ids)], order=order)) == [[0], [ids[first]]]


@pytest.mark.parametrize("order", ["merge", "given"])
def test_a_dst_block_named_by_two_groups(order: Any) -> None:
    shared = Layout([Region("d", 0, 16, N, groups=(2, 0))])
    pair = DlistPair(Layout([Region("p", 0, 16, N, groups=(0, 1))]), shared)
    with pytest.raises(BlockIdError, match="destination group 2, position 1 and group 0, position 0: block id 7 is"):
        pair.desc_ids([[1, 2], [3, 4]], [[7, 8], [], [6, 7]], order=order)
    apart = DlistPair(
        Layout([Region("p", 0, 16, N, groups=(0,)), Region("q", 4096, 16, N, groups=(1,))]),
        Layout([Region("d", 0, 16, N, groups=(0,)), Region("e", 4096, 16, N, groups=(1,))]),
    )
    assert lists(apart.desc_ids([[1], [2]], [[7], [7]], order=order)) == [[1, N + 2], [7, N + 7]]


def test_a_dst_block_named_twice_in_sub_blocks() -> None:
    for order in ("merge", "given"):
        pair = plan(heads(0, 1, tokens=8), {0: heads(0, 1, tokens=4)})[0][0]
        with pytest.raises(BlockIdError, match="destination group 1, position 0 and group 1, position 1: block id 3 "):
            pair.desc_ids([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2], [3, 3]], order=order)


# ------------------------------------------------------------------------------- what a planted bug once lived through


def test_lists_are_held_against_the_smallest_region() -> None:
    """Wherever it stands: first, in the middle, last; on either side."""
    for at in range(3):
        blocks = [9, 9, 9]
        blocks[at] = 4
        small = Layout([Region(f"r{i}", i << 16, 16, n) for i, n in enumerate(blocks)])
        large = Layout([Region(f"r{i}", i << 16, 16, 9) for i in range(3)])
        for src, dst, side in ((small, large, "source"), (large, small, "destination")):
            pair = DlistPair(src, dst)
            ids = ([3, 4], [0, 1])
            request = ([ids[0]], [ids[1]]) if side == "source" else ([ids[1]], [ids[0]])
            with pytest.raises(
                BlockIdError, match=rf"{side} group 0, position 1: block id 4 is out of range, region 'r{at}' has 4"
            ):
                pair.desc_ids(*request)
            apart = [i for i in range(3) if i != at]
            for i in apart:  # the others have that block
                assert len(pair.desc_ids(*request, regions=slice(i, i + 1))[0]) == 2


def test_raw_ids_that_run_off_the_end() -> None:
    pair = DlistPair(Layout([Region("p", 0, 16, 9)]), Layout([Region("d", 0, 16, 4)]))
    for call in (pair.merged_ops, pair.moves):
        with pytest.raises(BlockIdError, match="dst_ids, position 2: desc id 4 is out of range"):
            call([3, 4, 5], [2, 3, 4])
        with pytest.raises(BlockIdError, match="src_ids, position 1: desc id 9 is out of range"):
            call([8, 9], [0, 1])


def test_a_plain_list_beside_blocks_keeps_its_check() -> None:
    src, dst = (Layout([Region("a", 0, 16, N, groups=(0,)), Region("b", 4096, 16, N, groups=(1,))]) for _ in range(2))
    pair = DlistPair(src, dst)
    for at in (0, 1):
        lists: list[Any] = [[1, 2], [1, 2]]
        lists[at] = Blocks([1], skip=1)
        other: list[Any] = [[4, 5, 6], [4, 5, 6]]
        with pytest.raises(BlockIdError, match=rf"source group {1 - at} has 2 blocks and .* group {1 - at} has 3"):
            pair.desc_ids(lists, other)
        with pytest.raises(BlockIdError, match=rf"source group {1 - at} has 3 blocks and .* group {1 - at} has 2"):
            pair.desc_ids(other, lists)


def test_a_pair_made_by_hand_knows_its_cp_rank() -> None:
    def side(rank: int, size: int, **how: Any) -> Layout:
        page = attention_sections("l", num_kv_heads=1, tp_size=1, tp_rank=0, block_tokens=4, token_head_bytes=2)
        return Layout([Region("l", 0, 8, N, sections=page)], cp_rank=rank, cp_size=size, **how)

    whole = Blocks(range(10, 18))
    assert lists(DlistPair(side(0, 1), side(1, 2)).desc_ids([whole], [[1, 2, 3, 4]], tokens=32)) == [
        [11, 13, 15, 17],
        [1, 2, 3, 4],
    ]
    assert lists(DlistPair(side(2, 3), side(0, 1)).desc_ids([Blocks([1, 2])], [Blocks(range(20, 27))])) == [
        [1, 2],
        [22, 25],
    ]
    # Equal sizes: equal ranks meet entry by entry, others never.
    assert lists(DlistPair(side(1, 2), side(1, 2)).desc_ids([[5, 6]], [[8, 9]])) == [[5, 6], [8, 9]]
    assert lists(DlistPair(side(0, 2), side(1, 2)).desc_ids([Blocks([5, 6])], [Blocks([8, 9])])) == [[], []]
    # Two blocks at a time; and what would have to be cut is refused.
    assert lists(DlistPair(side(0, 1), side(1, 2, cp_tokens=8)).desc_ids([whole], [[1, 2, 3, 4]], tokens=32)) == [
        [12, 13, 16, 17],
        [1, 2, 3, 4],
    ]
    with pytest.raises(PeerMismatchError, match="dealt 2 at a time, its blocks of 4 are not cut"):
        DlistPair(side(0, 1), side(1, 2, cp_tokens=2))
    # Dealt alike, whatever the grain: the tokens of the request are of all ranks, the lists of one.
    alike = DlistPair(side(1, 2, cp_tokens=1), side(1, 2, cp_tokens=1))
    assert lists(alike.desc_ids([[5, 6]], [[8, 9]], tokens=11)) == [[5, 6], [8, 9]]
    with pytest.raises(BlockIdError, match="source group 0 has 2 blocks, but 9 tokens need 1 on its side"):
        alike.desc_ids([[5, 6]], [[8, 9]], tokens=9)


def test_moves_do_not_join_across_regions_of_either_side() -> None:
    """Regions may be registrations of their own, and touch."""
    touching = Layout([Region("a", 0, 16, 2), Region("b", 32, 16, 2)])
    apart = Layout([Region("a", 0, 16, 2), Region("b", 4096, 16, 2)])
    joined = Layout([Region("a", 0, 16, 4)])
    for src, dst in ((touching, touching), (joined, touching), (touching, joined)):
        pair = DlistPair.__new__(DlistPair)
        object.__setattr__(pair, "src", src)
        object.__setattr__(pair, "dst", dst)
        rows = pair.moves([0, 1, 2, 3], [0, 1, 2, 3], merge=True).tolist()
        assert rows == [[0, 0, 32], [32, 32, 32]]
    assert DlistPair(apart, touching).moves([0, 1, 2], [0, 1, 2], merge=True).tolist() == [[0, 0, 32], [4096, 32, 16]]


def test_later_layers_with_fewer_source_blocks() -> None:
    """Layers alike but for a smaller pool further on."""
    src = Layout([Region(f"l{i}", i << 16, 16, 20 if i < 5 else 6) for i in range(8)])
    dst = Layout([Region(f"l{i}", i << 16, 16, 20) for i in range(8)])
    pair = DlistPair(src, dst)
    assert len(pair.desc_ids([[5]], [[19]])[0]) == 8
    with pytest.raises(BlockIdError, match="source group 0, position 0: block id 6 is out of range, region 'l5' has 6"):
        pair.desc_ids([[6]], [[19]])
    assert len(pair.desc_ids([[6]], [[19]], regions=slice(0, 5))[0]) == 5


# ------------------------------------------------------------------------------------------------- all sources


def wide(sources: int = 4) -> Any:
    return plan(heads(0, 1), {rank: heads(rank, sources) for rank in range(sources)})


@pytest.mark.parametrize("order", ["merge", "given"])
def test_all_sources_are_what_each_alone_is(order: Any) -> None:
    made, rnd = wide(), Random(4)
    pairs = dict(made)
    for shared in (True, False):
        own = [[rnd.sample(range(N), 6), rnd.sample(range(N), 3)] for _ in made]
        src_blocks: dict[int, Any] = {rank: own[0] if shared else own[i] for i, rank in enumerate(made)}
        dst: list[Any] = [rnd.sample(range(N), 6), tuple(rnd.sample(range(N), 3))]
        for how in ({}, {"tokens": None, "sections": ["l1.k"]}, {"null_block": own[0][0][2]}):
            got = OverSources(pairs).ids(src_blocks, dst, order=order, **how)
            assert list(got) == list(made)
            for rank, (ids,) in got.items():
                want = made[rank][0].desc_ids(src_blocks[rank], dst, order=order, **how)
                assert lists(ids) == lists(want)
                assert lists(ids)[0]


def test_sources_of_one_table_share_the_work_and_others_do_not() -> None:
    pairs, table = dict(wide()), [[5, 6], [7]]
    got = OverSources(pairs).ids({0: table, 1: [[5, 6], [7]], 2: [[5, 9], [7]], 3: table}, [[1, 0], [3]])
    assert got[0][0][0] is got[1][0][0] is got[3][0][0]
    assert got[2][0][0] is not got[0][0][0]
    assert lists(got[2][0]) == lists(pairs[2][0].desc_ids([[5, 9], [7]], [[1, 0], [3]]))


@pytest.mark.parametrize("tables", [None, 7, Blocks([5])], ids=str)
def test_what_is_no_tables_behind_another_sources(tables: Any) -> None:
    with pytest.raises(TypeError, match=r"src_blocks\[1\] must be a list with one .*, got"):
        OverSources(dict(wide())).ids({0: [[5, 6], [7]], 1: tables}, [[1, 0], [3]])


def test_some_sources_dealt_tokens_and_places() -> None:
    made = plan(heads(0, 1), {rank: heads(0, 1, cp_rank=rank, cp_size=3) for rank in range(3)})
    dst = [Blocks(range(10, 18), at=[0, 1, 2, 3, 6, 7, 9, 11]), Blocks([1, 2], skip=4)]
    src: dict[int, Any] = {2: [[4, 5, 6, 7], Blocks([8], skip=1)], 0: [range(20, 24), [0, 1, 2, 3]]}
    got = OverSources(dict(made)).ids(src, dst, tokens=12 * 4)
    assert list(got) == [0, 2]
    for rank in got:
        assert lists(got[rank][0]) == lists(made[rank][0].desc_ids(src[rank], dst, tokens=12 * 4))
        assert lists(got[rank][0])[0]
    nothings: list[Any] = [[], [[], []]]
    for nothing in nothings:
        assert [len(ids[0][0]) for ids in OverSources(dict(made)).ids(src, nothing, tokens=48).values()] == [0, 0]


def test_errors_over_sources_name_the_source() -> None:
    pairs = dict(wide(2))
    with pytest.raises(PeerMismatchError, match="src_blocks names source '7', which sends nothing here; sources are 0"):
        OverSources(pairs).ids({7: [[1], []]}, [[1], []])
    with pytest.raises(TypeError, match="src_blocks must map source ranks to block lists"):
        OverSources(pairs).ids([[[1], []]], [[1], []])  # type: ignore[arg-type]
    with pytest.raises(BlockIdError, match="source 1: source group 0, position 1: block id 99 is out of range, region"):
        OverSources(pairs).ids({0: [[1, 2], []], 1: [[1, 99], []]}, [[1, 2], []])
    with pytest.raises(BlockIdError, match="source 0: source group 0 has 1 blocks and destination group 0 has 2"):
        OverSources(pairs).ids({0: [[1], []]}, [[1, 2], []])
    with pytest.raises(BlockIdError, match="source 0: dst_blocks has 1 lists, but region 'l1' takes group 1"):
        OverSources(pairs).ids({0: [[1], []]}, [[1]])
    with pytest.raises(PeerMismatchError, match=r"no source sends a section 'l7'; sections are 'l0\.k'"):
        OverSources(pairs).ids({0: [[1], []]}, [[1], []], sections=["l7"])


# ------------------------------------------------------------------------------------------- lists by themselves


def test_blocks_aligned_without_memory() -> None:
    assert lists(align_blocks([5, 6], [7, 8])) == [[5, 6], [7, 8]]
    assert lists(align_blocks([5, 6], [3], src_tokens=1, dst_tokens=2)) == [[5, 6], [6, 7]]
    assert lists(align_blocks([3], [5, 6], src_tokens=2, dst_tokens=1)) == [[6, 7], [5, 6]]
    assert lists(align_blocks(Blocks([5, 6, 7], at=[0, 4, 9]), [1, 2, 3, 4, 0])) == [[5, 6], [1, 0]]
    assert lists(align_blocks([5, 0, 6], [7, 8, 0], null_block=0)) == [[5], [7]]
    assert lists(align_blocks([3], Blocks([8], skip=2), src_tokens=48, dst_tokens=16)) == [[11], [8]]
    assert lists(align_blocks([3, 4], [8, 9, 7], src_tokens=48, dst_tokens=32, tokens=70)) == [
        [9, 10, 11, 12, 13],
        [16, 17, 18, 19, 14],
    ]
    assert lists(align_blocks([2**31 - 2], [0])) == [[2**31 - 2], [0]]
    with pytest.raises(BlockIdError, match=r"has 1 blocks and .* has 2 \(of 6 and 2 tokens\): they do not cover"):
        align_blocks([0], [1, 2], src_tokens=6, dst_tokens=2)


def test_kernel_blocks_of_every_group() -> None:
    found = kernel_blocks([[3, 8], (0, 5), range(2), Blocks([4], skip=3), Blocks([4, 7], at=[0, 5])], [1, 2, 3, 2, 2],
                          null_block=0)  # fmt: skip
    plain: list[Any] = found[:3]
    assert [part.tolist() for part in plain] == [[3, 8], [0, 0, 10, 11], [0, 0, 0, 3, 4, 5]]
    assert found[3:] == [Blocks([8, 9], skip=6), Blocks([8, 9, 14, 15], at=[0, 1, 10, 11])]
    with pytest.raises(BlockIdError, match="ids has 1 lists and ratio 2 numbers; one of each per KV cache group"):
        kernel_blocks([[3]], [1, 2])
    with pytest.raises(TypeError, match=r"ids\[1\], position 0: a block id must be an int, got 'x'"):
        kernel_blocks([[3], ["x"]], [1, 2])  # type: ignore[list-item]


# --------------------------------------------------------------------------------------------------- explicit places


@pytest.mark.parametrize("at", [[0, 2, 9], (0, 2, 9), np.array([0, 2, 9], np.uint8), np.array([0, 2, 9])], ids=repr)
def test_where_blocks_stand(at: Any) -> None:
    blocks = Blocks([5, 6, 7], at=at)
    assert blocks.at is not None
    assert (str(blocks.at.dtype), blocks.at.tolist(), blocks.at.flags.writeable) == ("int64", [0, 2, 9], False)
    assert blocks == Blocks((5, 6, 7), at=[0, 2, 9]) != Blocks([5, 6, 7])
    assert hash(blocks) == hash(Blocks((5, 6, 7), at=[0, 2, 9]))
    assert blocks.with_ids([1, 2, 3]) == Blocks([1, 2, 3], at=[0, 2, 9])
    if isinstance(at, np.ndarray):
        at[0] = 1  # theirs, not ours
        assert blocks.at.tolist() == [0, 2, 9]


def test_where_blocks_cannot_stand() -> None:
    for at, words in (
        ([0, 2, 2], "position 2 is 2 after 2"),
        ([3, 1, 2], "position 1 is 1 after 3"),
        ([-1, 1, 2], "position 0 is -1"),
        ([0, 1, 2**62], "position 2 is 4611686018427387904 after 1"),
        ([0, 1, 2**80], "position 2 is 1208925819614629174706176 after 1"),
    ):
        with pytest.raises(BlockIdError) as caught:
            Blocks([5, 6, 7], at=at)
        assert f"Blocks: at must ascend from 0 or more, entry by entry; {words}" in str(caught.value)
    with pytest.raises(BlockIdError, match="at says where 2 entries stand, and there are 3 ids"):
        Blocks([5, 6, 7], at=[0, 1])
    unclear: list[Any] = [[0, 1.0], [True, 2], ["1", 2], [0, None], 5, "12", {0, 1}, np.zeros(2)]
    for odd in unclear:
        with pytest.raises(TypeError, match="Blocks: at"):
            Blocks([5, 6], at=odd)
    for skip in (0, 1):
        with pytest.raises(TypeError, match="Blocks: skip and at say the same thing in two ways"):
            Blocks([5], skip=skip, at=[1])


def test_a_list_that_grew_behind_its_places() -> None:
    ids = [5, 6]
    pair = DlistPair(Layout([Region("k", 0, 16, N)]), Layout([Region("k", 0, 16, N)]))
    blocks = Blocks(ids, at=[1, 4])
    ids.append(7)
    with pytest.raises(BlockIdError, match="source group 0: the list changed from 2 to 3 ids"):
        pair.desc_ids([blocks], [Blocks([1], skip=4)])


class MadeWhenAsked(Mapping[int, list[list[int]]]):
    """A mapping that makes its lists when it is asked and keeps none of them: the next may lie where one lay."""

    def __init__(self, tables: dict[int, list[int]]) -> None:
        self.tables = tables

    def __getitem__(self, rank: int) -> list[list[int]]:
        return [self.tables[rank]]

    def __iter__(self) -> Iterator[int]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)


def test_lists_that_a_mapping_makes_when_asked_are_each_sources_own() -> None:
    """Lists that were gone were taken for those that came to lie in their place: blocks of another source."""
    tables = {rank: [10 * rank + 1, 10 * rank + 2] for rank in range(8)}
    layout = Layout([Region("k", 0, 16, 640)])
    made = plan(layout, dict.fromkeys(tables, layout), senders="all")
    got = made.desc_ids(MadeWhenAsked(tables), [[3, 4]])
    assert {rank: src.tolist() for rank, ((src, _),) in got.items()} == tables
