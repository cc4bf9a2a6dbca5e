"""Two block lists aligned by position, without any memory behind them: what a pair does before it makes ids.

::

    src   Blocks([7, 3, 9], skip=1)      entries 1 2 3           3 and 9 meet 20 and 22
    dst   Blocks([20, 22], skip=2)       entries   2 3
"""

from __future__ import annotations

from math import gcd

from nixldesc._check import as_int
from nixldesc._memory import remembered
from nixldesc.errors import GeometryError
from nixldesc.memory.ids import BlockIds
from nixldesc.memory.layout import Layout
from nixldesc.memory.region import Region
from nixldesc.request.blocks import Blocks, Place, Places
from nixldesc.request.moves import IdPair
from nixldesc.request.pair import DlistPair

__all__ = ["align_blocks"]


def align_blocks(
    src: BlockIds | Blocks,
    dst: BlockIds | Blocks,
    *,
    src_tokens: int = 1,
    dst_tokens: int = 1,
    tokens: int | None = None,
    null_block: int | None = None,
) -> IdPair:
    """Return the blocks of two lists that stand at the same positions: two int32 arrays, equally long, in order.

    `src_tokens` and `dst_tokens` are the sides' block_tokens. Where they are equal the ids are block ids. Otherwise
    they are ids of sub-blocks of ``gcd(src_tokens, dst_tokens)`` tokens, counted through as :func:`kernel_blocks`
    does: ``block * (src_tokens // gcd) + k``. All else is as :meth:`DlistPair.desc_ids` says: plain lists must explain
    one another, `tokens`, nulls, no dst block twice.

    >>> align_blocks(Blocks([7, 3, 9], skip=1), Blocks([20, 22], skip=2))
    (array([3, 9], dtype=int32), array([20, 22], dtype=int32))
    >>> align_blocks([5], [20, 21], src_tokens=32, dst_tokens=16)
    (array([10, 11], dtype=int32), array([20, 21], dtype=int32))
    """
    sizes = as_int(src_tokens, "src_tokens"), as_int(dst_tokens, "dst_tokens")
    if not (0 < sizes[0] < 2**31 and 0 < sizes[1] < 2**31):
        raise GeometryError(f"block_tokens must be positive, got {sizes[0]} and {sizes[1]}")
    pair = _pair(*sizes)
    return pair.desc_ids([src], [dst], order="given", tokens=tokens, null_block=null_block)


@remembered(64)
def _pair(src_tokens: int, dst_tokens: int) -> DlistPair:
    """A pair of byte-sized sub-blocks, as many as there are ids."""
    unit = gcd(src_tokens, dst_tokens)
    sides = []
    for tokens in (src_tokens, dst_tokens):
        subs = tokens // unit
        sides.append(Layout([Region("blocks", 0, 1, (2**31 - 1) // subs, sub_blocks=subs)]))
    return DlistPair(*sides, places=[Places(Place(), Place(), unit)])
