"""Whom to talk to before any metadata is known: the planner's rule for plain tensor parallelism, from sizes alone."""

from __future__ import annotations

from nixldesc._check import as_int
from nixldesc.errors import GeometryError
from nixldesc.memory.shards import shard_range
from nixldesc.planning.boxes import choose

__all__ = ["source_ranks"]


def source_ranks(size: int, dst_tp: int, dst_rank: int, src_tp: int) -> tuple[int, ...]:
    """Return the source ranks from which destination rank `dst_rank` of `dst_tp` reads, before any metadata is known.

    `size` is the global size of the axis that tensor parallelism splits (KV heads, say; 1 for a replicated cache).
    It is the rule of :func:`nixldesc.plan` for plain tensor parallelism, both sides cut by :func:`shard_range`, so
    a connector knows whom to shake hands with. Ascending. Raises :class:`GeometryError` as ``shard_range`` does.

    >>> source_ranks(8, 2, 1, 4), source_ranks(8, 4, 3, 2), source_ranks(2, 1, 0, 4)
    ((2, 3), (1,), (0, 2))
    """
    dst_tp, dst_rank, src_tp = as_int(dst_tp, "dst_tp"), as_int(dst_rank, "dst_rank"), as_int(src_tp, "src_tp")
    if src_tp <= 0 or not 0 <= dst_rank < dst_tp:
        raise GeometryError(
            f"expected src_tp > 0 and 0 <= dst_rank < dst_tp, got src_tp {src_tp}, dst_rank {dst_rank}, dst_tp {dst_tp}"
        )
    wanted = shard_range(size, dst_tp, dst_rank)
    begin = dst_rank * src_tp // dst_tp
    turn = [(begin + n) % src_tp for n in range(src_tp)]
    pieces, _ = choose((wanted,), [(shard_range(size, src_tp, rank),) for rank in turn])
    return tuple(sorted({turn[number] for number, _ in pieces}))
