"""Which indices of a global axis a rank holds.

::

    8 KV heads, TP 4     rank 0: [0, 2)   1: [2, 4)   2: [4, 6)   3: [6, 8)       cut evenly
    2 KV heads, TP 4     rank 0: [0, 1)   1: [0, 1)   2: [1, 2)   3: [1, 2)       replicated on neighbours
"""

from __future__ import annotations

from nixldesc._check import as_int
from nixldesc.errors import GeometryError

__all__ = ["shard_range"]


def shard_range(size: int, tp_size: int, tp_rank: int) -> tuple[int, int]:
    """Return the range ``(start, stop)`` of a global index of `size` that rank `tp_rank` of `tp_size` holds.

    With ``tp_size <= size`` the index is cut evenly (`tp_size` must divide `size`); with more ranks than indices each
    rank holds one index, replicated on ``tp_size / size`` neighbouring ranks (`size` must divide `tp_size`), as GQA
    engines do with KV heads. Raises :class:`GeometryError` where neither divides, :class:`TypeError` for non-ints.

    >>> [shard_range(4, 2, rank) for rank in range(2)]
    [(0, 2), (2, 4)]
    >>> [shard_range(2, 4, rank) for rank in range(4)]
    [(0, 1), (0, 1), (1, 2), (1, 2)]
    """
    size, tp_size, tp_rank = as_int(size, "size"), as_int(tp_size, "tp_size"), as_int(tp_rank, "tp_rank")
    if size <= 0 or tp_size <= 0:
        raise GeometryError(f"size and tp_size must be positive, got {size} and {tp_size}")
    if not 0 <= tp_rank < tp_size:
        raise GeometryError(f"tp_rank {tp_rank} is out of range, tp_size is {tp_size}")
    if tp_size <= size:
        if size % tp_size:
            raise GeometryError(f"tp_size {tp_size} does not divide size {size}: the shards would be unequal")
        return size * tp_rank // tp_size, size * (tp_rank + 1) // tp_size
    if tp_size % size:
        raise GeometryError(f"size {size} does not divide tp_size {tp_size}: the replicas would be unequal")
    start = tp_rank * size // tp_size
    return start, start + 1
