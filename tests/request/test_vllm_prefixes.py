"""The two ways in which vLLM 0.33.0 pairs a cached prefix of unequal blocks wrongly (PORTING.md), and what is right.

Tokens are counted one by one: a page here is a byte per token, so an address says which token a descriptor begins with.
"""

from __future__ import annotations

import pytest

from nixldesc import BlockIdError, Blocks, DlistPair, Layout, Region, mla_sections, plan


def pair_of(src_tokens: int, dst_tokens: int) -> DlistPair:
    def side(tokens: int) -> Layout:
        page = mla_sections("l", block_tokens=tokens, token_bytes=1)
        return Layout([Region("l", 0, tokens, 64, sections=page)])

    (pair,) = plan(side(dst_tokens), {0: side(src_tokens)})[0]
    return pair


def tokens_moved(
    pair: DlistPair, src: Blocks, dst: Blocks, sizes: tuple[int, int], tokens: int
) -> list[tuple[int, int]]:
    """Return for each token that is moved its position in the request on both sides."""
    positions: list[dict[int, int]] = []
    for blocks, size in zip((src, dst), sizes, strict=True):
        stands = [(block, blocks.skip + i) for i, block in enumerate(blocks.ids)]
        positions.append({block * size + t: i * size + t for block, i in stands for t in range(size)})
    moved = []
    for s, d in zip(*pair.desc_ids([src], [dst], tokens=tokens), strict=True):
        from_, length, _ = pair.src.address(int(s))
        to, _, _ = pair.dst.address(int(d))
        moved += [(positions[0][from_ + t], positions[1][to + t]) for t in range(length)]
    return moved


def test_a_pull_into_larger_blocks_after_a_cached_prefix() -> None:
    pair = pair_of(32, 64)
    moved = tokens_moved(pair, Blocks([5, 6, 7, 8, 9]), Blocks([20, 21], skip=1), (32, 64), 160)
    assert sorted(moved) == [(t, t) for t in range(64, 160)]
    with pytest.raises(BlockIdError):  # lists alone do not say it
        pair.desc_ids([[6, 7, 8]], [[20, 21]])


def test_a_push_from_larger_blocks_after_a_cached_prefix() -> None:
    pair = pair_of(64, 32)
    moved = tokens_moved(pair, Blocks([10, 11, 12]), Blocks([40, 41, 42, 43, 44], skip=1), (64, 32), 192)
    assert sorted(moved) == [(t, t) for t in range(32, 192)]
    with pytest.raises(BlockIdError):
        pair.desc_ids([[10, 11, 12]], [[40, 41, 42, 43, 44]])
