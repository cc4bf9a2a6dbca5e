"""How the blocks of two regions meet: sub-blocks, and the tokens that each side's rank is dealt.

::

    src blocks of 6 tokens, one rank            |  0 1 2 3 4 5  |  6 7 8 9 10 11  |
    dst blocks of 4, rank 1 of 2, 2 at a time       |  2 3 6 7  |  10 11 14 15  |        gcd(6, 4, 2) = 2
    sub-blocks of 2 tokens                src    0    1    2       3    4    5
                                          dst         0            1         2           at global 1, 3, 5, 7 ...
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from nixldesc.memory.sections import Section

__all__ = ["Deal", "Meeting", "meeting_of", "share_tokens"]


class Deal(NamedTuple):
    """Which tokens a rank holds: those with ``token // tokens % size == rank``; all of them where `size` is 1."""

    rank: int = 0
    size: int = 1
    tokens: int = 1


class Meeting(NamedTuple):
    """Into how many sub-blocks each side's block is cut, how its tokens are dealt, and the tokens of a sub-block.

    `unit_tokens` is 0 for sections without a token axis, whose blocks meet whole.
    """

    src_sub: int
    dst_sub: int
    src: Deal = Deal()
    dst: Deal = Deal()
    unit_tokens: int = 0


def meeting_of(src: Section, src_deal: Deal, dst: Section, dst_deal: Deal) -> Meeting:
    """Return how two sections' blocks meet: in sub-blocks of the gcd of both block_tokens and both grains.

    Ranks that are dealt the same tokens meet in their own local tokens, whatever the grain.

    >>> from nixldesc.memory.sections import Axis
    >>> k48, k32 = (Section("k", [Axis("token", 0, tokens)], 2) for tokens in (48, 32))
    >>> meeting_of(k48, Deal(), k32, Deal())[:2]
    (3, 2)
    """
    if not src.block_tokens or not dst.block_tokens:
        return Meeting(1, 1)
    unit = gcd(src.block_tokens, dst.block_tokens)
    if src_deal != dst_deal:
        unit = gcd(unit, *[deal.tokens for deal in (src_deal, dst_deal) if deal.size > 1])
    return Meeting(src.block_tokens // unit, dst.block_tokens // unit, src_deal, dst_deal, unit)


def share_tokens(a: Deal, b: Deal) -> bool:
    """Whether two ranks hold any token in common.

    Each holds ``[first, first + tokens)`` modulo its period; two such combs meet exactly if the stretches meet modulo
    the gcd of the periods.

    >>> share_tokens(Deal(0, 2, 4), Deal(1, 4, 2)), share_tokens(Deal(0, 2, 4), Deal(1, 2, 4))
    (True, False)
    """
    period = gcd(a.size * a.tokens, b.size * b.tokens)
    ahead = (b.rank * b.tokens - a.rank * a.tokens) % period
    return ahead < a.tokens or period - ahead < b.tokens
