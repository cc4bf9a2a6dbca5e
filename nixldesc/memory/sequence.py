"""Tokens dealt to context-parallel ranks, block-cyclically: how many of a sequence's first tokens a rank holds.

::

    cp_size 2, cp_tokens 3      token   0 1 2   3 4 5   6 7 8   9 ...
                                rank      0       1       0      1
"""

from __future__ import annotations

from typing import Any

from nixldesc._check import as_int
from nixldesc.errors import GeometryError

__all__ = ["local_tokens"]


def local_tokens(tokens: Any, cp_rank: int, cp_size: int, cp_tokens: int | None, block_tokens: Any) -> int:
    """Return how many of the first `tokens` tokens rank `cp_rank` holds; see :meth:`nixldesc.Layout.local_tokens`."""
    count: int = as_int(tokens, "tokens")
    if count < 0:
        raise GeometryError(f"tokens must be a number of tokens, 0 or more, got {count}")
    if cp_size == 1:
        return count
    dealt = cp_tokens if cp_tokens is not None else block_tokens
    if dealt is None:
        raise GeometryError(
            "this layout deals whole blocks to its context-parallel ranks; local_tokens needs block_tokens, the "
            "tokens of one block"
        )
    grain: int = as_int(dealt, "block_tokens")
    if grain <= 0:
        raise GeometryError(f"block_tokens must be positive, got {grain}")
    rounds, rest = divmod(count, grain * cp_size)
    return rounds * grain + min(max(rest - cp_rank * grain, 0), grain)
