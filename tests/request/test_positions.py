"""Where entries stand: grains, explicit positions, a token total; against tokens dealt in a plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from random import Random
from typing import Any

import numpy as np
import pytest
from dealt import Side, met, table

from nixldesc import BlockIdError, Blocks, DlistPair, Layout, Region
from nixldesc.request.blocks import Place, Places

N = 97


@lru_cache(maxsize=4096)
def paired(src: Side, dst: Side) -> tuple[DlistPair, int]:
    """A pair whose sub-blocks are as large as both sides' blocks and grains allow; and that size in tokens."""
    sizes = [part for side in (src, dst) for part in (side.block, side.grain if side.size > 1 else side.block)]
    unit = gcd(*sizes)
    places = Places(place(src, unit), place(dst, unit), unit)
    regions = [Region("k", 0, 8, N, sub_blocks=side.block // unit) for side in (src, dst)]
    return DlistPair(Layout(regions[:1]), Layout(regions[1:]), places=[places]), unit


def place(side: Side, unit: int) -> Place:
    return Place(side.rank, side.size, side.grain // unit) if side.size > 1 else Place()


def delivered(
    src: Side, dst: Side, src_at: Sequence[int], dst_at: Sequence[int], tokens: int | None = None, **how: Any
) -> tuple[set[tuple[int, int, int, int]], set[tuple[int, int, int, int]]]:
    """What the ids of a request amount to, token by token; and what the oracle says."""
    pair, unit = paired(src, dst)
    src_ids, dst_ids = table(src_at, 31, 7), table(dst_at, 57, 40)
    ids = pair.desc_ids([spell(src_ids, src_at)], [spell(dst_ids, dst_at)], tokens=tokens, **how)
    got = set()
    for s, d in zip(*(part.tolist() for part in ids), strict=True):
        (s_block, s_k), (d_block, d_k) = divmod(s, src.block // unit), divmod(d, dst.block // unit)
        for t in range(unit):
            got.add((src_ids.index(s_block), s_k * unit + t, dst_ids.index(d_block), d_k * unit + t))
    assert len(got) == len(ids[0]) * unit
    return got, met(src, dst, src_at, dst_at, tokens, unit)


def spell(ids: list[int], at: Sequence[int]) -> Blocks:
    """Entries in a row as a skip, all others one by one."""
    if list(at) == list(range(at[0] if at else 0, (at[0] if at else 0) + len(at))):
        return Blocks(ids, skip=at[0] if at else 3)
    return Blocks(ids, at=at)


SMALL = [
    Side(block, rank, size, grain)
    for block in (1, 2, 3, 4)
    for size in (1, 2, 3)
    for rank in range(size)
    for grain in ((1, 2, 3, 4, 6) if size > 1 else (1,))
]


def some(rnd: Random, count: int) -> list[tuple[Side, Side]]:
    return [(rnd.choice(SMALL), rnd.choice(SMALL)) for _ in range(count)]


@pytest.mark.parametrize("order", ["merge", "given"])
def test_entries_meet_where_their_tokens_are(order: str) -> None:
    rnd = Random(12)
    moved = 0
    for src, dst in some(rnd, 1500):
        lists = []
        for _ in range(2):
            low, high = sorted(rnd.sample(range(10), 2))
            kept = rnd.random() < 0.5
            lists.append([n for n in range(low, high) if kept or rnd.random() < 0.7])
        tokens = rnd.choice((None, None, rnd.randrange(60)))
        got, want = delivered(src, dst, lists[0], lists[1], tokens, order=order)
        assert got == want, (src, dst, lists, tokens)
        moved += len(got)
    assert moved > 1000


def test_long_lists_far_along() -> None:
    """Past what is met on the stack, and with positions that begin late."""
    for src, dst in (
        (Side(6, 1, 2, 4), Side(4, 2, 3, 6)),
        (Side(4), Side(6, 0, 2, 5)),
        (Side(5, 3, 4, 1), Side(5)),
        (Side(8, 1, 2, 8), Side(8, 1, 2, 8)),
    ):
        for start in (0, 5, 40):
            got, want = delivered(src, dst, range(start, start + 80), range(start // 2, start // 2 + 90))
            assert got == want
            assert want or start == 40


@lru_cache(maxsize=4096)
def needs(side: Side) -> list[int]:
    """The entries that each length of a sequence needs; 80 tokens are more than three blocks of three ranks."""
    return [side.entries(length) for length in range(80)]


def test_plain_lists_are_never_guessed() -> None:
    """Accepted exactly where some length explains both (equal blocks) or both cover as many tokens (unequal, no CP)."""
    accepted = refused = 0
    for src in SMALL:
        for dst in SMALL:
            if src.block > 3 or dst.block > 3 or 6 in (src.grain, dst.grain):
                continue
            pair, _ = paired(src, dst)
            dealt = src.size > 1 or dst.size > 1
            for s in range(4):
                for d in range(1, 4):
                    if src.block != dst.block:
                        fits = not dealt and s * src.block == d * dst.block
                    elif not dealt:
                        fits = s == d
                    else:
                        fits = any(need == (s, d) for need in zip(needs(src), needs(dst), strict=True))
                    lists = [table(range(s), 31, 7)], [table(range(d), 57, 40)]
                    if fits:
                        pair.desc_ids(*lists)
                        accepted += 1
                    else:
                        with pytest.raises(BlockIdError, match=r"tokens= says how many.*Blocks\(ids, skip=\.\.\.\)"):
                            pair.desc_ids(*lists)
                        refused += 1
    assert accepted > 400
    assert refused > 4000


def test_what_is_accepted_moves_the_same_whatever_the_length_was() -> None:
    """Plain lists of a request of T tokens move, with T or without, what its tokens are."""
    rnd = Random(7)
    for src, dst in some(rnd, 400):
        tokens = rnd.randrange(30)
        s, d = src.entries(tokens), dst.entries(tokens)
        pair, unit = paired(src, dst)
        lists = table(range(s), 31, 7), table(range(d), 57, 40)
        ids = pair.desc_ids([lists[0]], [lists[1]], tokens=tokens)
        want = met(src, dst, range(s), range(d), tokens, unit)
        assert len(ids[0]) * unit == len(want)
        if src.block == dst.block:
            free = pair.desc_ids([lists[0]], [lists[1]])
            assert set(zip(*map(np.ndarray.tolist, ids), strict=True)) <= set(
                zip(*map(np.ndarray.tolist, free), strict=True)
            )


def test_tokens_ask_for_exactly_the_entries_that_they_need() -> None:
    rnd = Random(3)
    for src, dst in some(rnd, 250):
        pair, _ = paired(src, dst)
        tokens = rnd.randrange(1, 40)
        need = src.entries(tokens), dst.entries(tokens)
        for s in range(max(0, need[0] - 1), need[0] + 2):
            for d in range(max(1, need[1] - 1), need[1] + 2):
                lists = [table(range(s), 31, 7)], [table(range(d), 57, 40)]
                if (s, d) == need:
                    pair.desc_ids(*lists, tokens=tokens)
                    continue
                side, has, needs = ("source", s, need[0]) if s != need[0] else ("destination", d, need[1])
                with pytest.raises(BlockIdError) as caught:
                    pair.desc_ids(*lists, tokens=tokens)
                assert f"{side} group 0 has {has} blocks, but {tokens} tokens need {needs} on its side" in str(
                    caught.value
                )
                # A list that says where it stands may be of any length; the other one is still held to the tokens.
                only = [Blocks(lists[0][0])] if s != need[0] else lists[0], [Blocks(lists[1][0])]
                pair.desc_ids(*only, tokens=tokens)


@pytest.mark.parametrize("tokens", [None, 0, 5, 1000])
@pytest.mark.parametrize("nothing", [[], [[]], [()], [range(0)], [np.array([], np.int64)], [Blocks([])]], ids=repr)
@pytest.mark.parametrize("sides", [(Side(4), Side(4)), (Side(4), Side(6)), (Side(4, 1, 2, 3), Side(6, 0, 3, 4))])
def test_an_empty_destination_wants_nothing(tokens: int | None, nothing: Any, sides: tuple[Side, Side]) -> None:
    pair, _ = paired(*sides)
    given: list[list[Any]] = [[[1, 2, 3]], [[]], [Blocks([4], skip=7)]]
    for src_blocks in given:
        src_ids, dst_ids = pair.desc_ids(src_blocks, nothing, tokens=tokens, complete=True)
        assert src_ids.dtype == dst_ids.dtype == np.int32
        assert (len(src_ids), len(dst_ids)) == (0, 0)
    assert pair.uncovered([[1, 2, 3]], nothing, tokens=tokens).tolist() == []


def test_uncovered_is_what_is_named_and_not_met() -> None:
    rnd = Random(5)
    for src, dst in some(rnd, 300):
        pair, unit = paired(src, dst)
        src_at = sorted(rnd.sample(range(8), rnd.randrange(6)))
        dst_at = sorted(rnd.sample(range(8), rnd.randrange(6)))
        tokens = rnd.choice((None, rnd.randrange(50)))
        dst_ids = table(dst_at, 57, 40)
        got = pair.uncovered([spell(table(src_at, 31, 7), src_at)], [spell(dst_ids, dst_at)], tokens=tokens).tolist()
        filled = {(i, inside // unit) for _, _, i, inside in met(src, dst, src_at, dst_at, tokens, unit)}
        want = {
            (i, inside // unit)
            for token, i, inside in dst.tokens_of(dst_at)
            if tokens is None or token // unit * unit < tokens
        } - filled
        subs = dst.block // unit
        assert sorted(got) == sorted(dst_ids[i] * subs + k for i, k in want)


def test_complete_asks_for_all_that_this_source_could_hold() -> None:
    rnd = Random(9)
    whole = holed = 0
    for src, dst in some(rnd, 600):
        pair, unit = paired(src, dst)
        src_at = sorted(rnd.sample(range(9), rnd.randrange(5, 10)))
        dst_at = sorted(rnd.sample(range(4), rnd.randrange(1, 4)))
        tokens = rnd.choice((None, rnd.randrange(30)))
        owned = set(src.mine(400))
        wanted = {
            (i, inside)
            for token, i, inside in dst.tokens_of(dst_at)
            if token in owned and (tokens is None or token // unit * unit < tokens)
        }
        filled = {(i, inside) for _, _, i, inside in met(src, dst, src_at, dst_at, tokens, unit)}
        lists = [spell(table(src_at, 31, 7), src_at)], [spell(table(dst_at, 57, 40), dst_at)]
        plain = pair.desc_ids(*lists, tokens=tokens)
        if wanted == filled:
            for one, other in zip(plain, pair.desc_ids(*lists, tokens=tokens, complete=True), strict=True):
                assert one.tolist() == other.tolist()
            whole += 1
            continue
        first = min(i for i, _ in wanted - filled)
        with pytest.raises(BlockIdError, match=rf"destination group 0, position {first}: no source entry fills") as no:
            pair.desc_ids(*lists, tokens=tokens, complete=True)
        assert f"block id {table(dst_at, 57, 40)[first]}," in str(no.value)
        holed += 1
    assert whole > 100
    assert holed > 100


def test_nulls_fill_nothing_and_are_not_asked_for() -> None:
    pair, _ = paired(Side(4), Side(4))
    assert [i.tolist() for i in pair.desc_ids([[5, 0, 7]], [[8, 0, 9]], null_block=0, complete=True)] == [
        [5, 7],
        [8, 9],
    ]
    assert [i.tolist() for i in pair.desc_ids([[5, 6, 7]], [[8, 0, 9]], null_block=0, complete=True)] == [
        [5, 7],
        [8, 9],
    ]
    with pytest.raises(BlockIdError, match="destination group 0, position 1: no source entry fills block id 3"):
        pair.desc_ids([[5, 0, 7]], [[8, 3, 9]], null_block=0, complete=True)


def test_a_skip_in_tokens_is_seen() -> None:
    """Sixteen times too far: it moves nothing, and that would be "DONE"."""
    pair, _ = paired(Side(4), Side(4))
    lists = [[1, 2, 3, 4]], [Blocks([8, 9], skip=32)]
    assert [len(ids) for ids in pair.desc_ids(*lists)] == [0, 0]
    with pytest.raises(BlockIdError, match=r"position 0: no source entry fills block id 8.*skip"):
        pair.desc_ids(*lists, complete=True)


def test_an_offloading_bug_of_old_is_refused() -> None:
    """One CPU block of six tokens against two GPU blocks of two, a suffix: the wrong bytes, and nothing undelivered."""
    pair, _ = paired(Side(6), Side(2))
    with pytest.raises(BlockIdError, match=r"has 1 blocks and .* has 2 \(of 6 and 2 tokens\): they do not cover"):
        pair.desc_ids([[0]], [[10, 11]])
    src_ids, dst_ids = pair.desc_ids([[0]], [Blocks([10, 11], skip=1)])
    assert (src_ids.tolist(), dst_ids.tolist()) == ([1, 2], [10, 11])
    with pytest.raises(BlockIdError, match="destination group 0 has 2 blocks, but 6 tokens need 3"):
        pair.desc_ids([[0]], [[10, 11]], tokens=6)
