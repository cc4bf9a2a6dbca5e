"""How blocks of two sides meet, against tokens counted out one by one."""

from __future__ import annotations

from itertools import product

import pytest

from nixldesc import Axis, Section
from nixldesc.planning.meeting import Deal, meeting_of, share_tokens


def held(deal: Deal, tokens: int) -> set[int]:
    return {token for token in range(tokens) if deal.size == 1 or token // deal.tokens % deal.size == deal.rank}


DEALS = [Deal(rank, size, tokens) for size in (1, 2, 3, 4) for rank in range(size) for tokens in (1, 2, 3, 4, 6)]


def test_two_deals_share_tokens_if_any_token_is_in_both() -> None:
    """Planted once: a sum for a difference in the second comparison lived through the suite."""
    wrong = [(a, b) for a, b in product(DEALS, DEALS) if share_tokens(a, b) != bool(held(a, 288) & held(b, 288))]
    assert wrong == []


@pytest.mark.parametrize(("src_tokens", "dst_tokens"), [(4, 4), (12, 8), (6, 4), (1, 5)])
def test_sub_blocks_are_the_largest_that_fit_both_sides(src_tokens: int, dst_tokens: int) -> None:
    src, dst = (Section("k", [Axis("token", 0, tokens)], 2) for tokens in (src_tokens, dst_tokens))
    for src_deal, dst_deal in product(DEALS[:12], DEALS[:12]):
        found = meeting_of(src, src_deal, dst, dst_deal)
        sizes = [src_tokens, dst_tokens]
        if src_deal != dst_deal:
            sizes += [deal.tokens for deal in (src_deal, dst_deal) if deal.size > 1]
        unit = max(n for n in range(1, 13) if all(size % n == 0 for size in sizes))
        assert (found.src_sub, found.dst_sub, found.unit_tokens) == (src_tokens // unit, dst_tokens // unit, unit)
        assert (found.src, found.dst) == (src_deal, dst_deal)


def test_blocks_without_tokens_meet_whole() -> None:
    state, cache = Section("s", [Axis("row", 0, 4)], 2), Section("s", [Axis("token", 0, 4)], 2)
    for src, dst in ((state, state), (state, cache), (cache, state)):
        assert meeting_of(src, Deal(1, 2, 4), dst, Deal(0, 2, 4)) == (1, 1, Deal(), Deal(), 0)
