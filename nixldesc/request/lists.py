"""A request's lists as a caller gives them, taken apart for the kernels.

::

    [[7, 3], Blocks([9, 4], skip=2), Blocks(range(8, 10), at=[0, 5])]       one entry per KV cache group
    lists     [7, 3]   [9, 4]   range(8, 10)
    skips       -1        2      int64[0, 5]                                None where every list is plain
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, brief, check_ids_out
from nixldesc.errors import BlockIdError
from nixldesc.memory.ids import BlockIds, group_lists, readable_lists
from nixldesc.request.blocks import Blocks

__all__ = [
    "BlockTables",
    "Skips",
    "as_tokens",
    "check_pair_out",
    "read_used",
    "split_lists",
    "standing",
    "want_nothing",
]

#: One side of a request: one entry per KV cache group, each a plain sequence of block ids or `Blocks`.
BlockTables: TypeAlias = Sequence[BlockIds | Blocks]

#: Of each list: -1 for a plain one, the entries not given, or where each entry stands. None: all are plain.
Skips: TypeAlias = "tuple[int | NDArray[np.int64], ...] | None"


def split_lists(blocks: Any, what: str) -> tuple[Any, Skips]:
    """Return plain lists and, where any entry is Blocks, where their entries stand."""
    if type(blocks) is not list and type(blocks) is not tuple:
        if isinstance(blocks, Blocks):
            raise TypeError(f"{what} must be a list with one entry per group, got a single Blocks: write [Blocks(...)]")
        blocks = list(group_lists(blocks, what))
    for item in blocks:
        if type(item) is Blocks:
            return _taken_apart(tuple(blocks))  # of one moment, whatever another thread does to the caller's
    return blocks, None


def _taken_apart(blocks: tuple[Any, ...]) -> tuple[list[Any], tuple[int | NDArray[np.int64], ...]]:
    lists, skips = [], []
    for item in blocks:
        if type(item) is Blocks:
            at = item.at
            lists.append(item.ids)
            skips.append(item.skip if at is None else at)
        else:
            lists.append(item)
            skips.append(-1)
    return lists, tuple(skips)


def read_used(lists: Sequence[Any], used: Collection[int], what: str) -> list[Any]:
    """Return the lists of the groups `used` in a form that the kernels read, all others empty: nobody looks at them."""
    return list(readable_lists([item if group in used else () for group, item in enumerate(lists)], what))


def standing(blocks: Any, what: str) -> list[Blocks]:
    """Return every list as Blocks: a plain one stands at the start, whatever its length."""
    if isinstance(blocks, Blocks):
        split_lists(blocks, what)
    return [item if isinstance(item, Blocks) else Blocks(item) for item in group_lists(blocks, what)]


def want_nothing(dst_lists: Sequence[Any]) -> bool:
    """Whether the destination names no block at all: there are no lists, or they are empty."""
    try:
        return not any(len(ids) for ids in dst_lists)
    except TypeError:
        return False


def as_tokens(tokens: Any) -> int:
    """Return a request's tokens, or -1 where they are not said."""
    if tokens is None:
        return -1
    count = as_int(tokens, "tokens", BlockIdError)
    if not 0 <= count < 2**62:
        raise BlockIdError(f"tokens must be the number of tokens of a request, 0 or more, got {count}")
    return count


def check_pair_out(out: Any, *lists: Any) -> None:
    """Refuse an `out` that is no pair of int32 vectors of their own memory; their size is checked later."""
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"out must be a tuple of two int32 arrays (source, destination), got {brief(out)}")
    check_ids_out(out[0], out[1], *lists)
    check_ids_out(out[1], *lists)
