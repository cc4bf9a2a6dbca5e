"""Whom to talk to before any metadata is known: the planner's rule for plain tensor parallelism, from sizes alone."""

from __future__ import annotations

from nixldesc._check import as_int
from nixldesc.errors import GeometryError
from nixldesc.memory.shards import shard_range
from nixldesc.planning.boxes import choose

__all__ = ["source_ranks"]


def source_ranks(size: int, dst_tp: int, dst_rank: int, src_tp: int, *, src_cp: int = 1) -> tuple[int, ...]:
    """Return the source ranks from which destination rank `dst_rank` of `dst_tp` reads, before any metadata is known.

    `size` is the global size of the axis that tensor parallelism splits (KV heads, say; 1 for a replicated cache).
    It is the rule of :func:`nixldesc.plan` for plain tensor parallelism, both sides cut by :func:`shard_range`, so
    a connector knows whom to shake hands with. Under decode context parallelism of `src_cp` inside the `src_tp` ranks
    (vLLM's DCP: rank r holds the tokens of cp_rank ``r % src_cp`` and the heads of rank ``r // src_cp`` of
    ``src_tp // src_cp``) it names a rank of every cp_rank; a reader that is dealt the same tokens needs fewer.
    Ascending. Raises :class:`GeometryError` as ``shard_range`` does.

    >>> source_ranks(8, 2, 1, 4), source_ranks(8, 4, 3, 2), source_ranks(2, 1, 0, 4)
    ((2, 3), (1,), (0, 2))
    >>> source_ranks(1, 2, 1, 8, src_cp=2)
    (4, 5)
    """
    dst_tp, dst_rank, src_tp = as_int(dst_tp, "dst_tp"), as_int(dst_rank, "dst_rank"), as_int(src_tp, "src_tp")
    src_cp = as_int(src_cp, "src_cp")
    if src_tp <= 0 or not 0 <= dst_rank < dst_tp:
        raise GeometryError(
            f"expected src_tp > 0 and 0 <= dst_rank < dst_tp, got src_tp {src_tp}, dst_rank {dst_rank}, dst_tp {dst_tp}"
        )
    if src_cp <= 0 or src_tp % src_cp:
        raise GeometryError(f"src_cp must divide src_tp, got {src_cp} and {src_tp}")
    wanted, groups = shard_range(size, dst_tp, dst_rank), src_tp // src_cp
    begin = dst_rank * groups // dst_tp
    turn = [(begin + n) % groups for n in range(groups)]
    pieces, _ = choose((wanted,), [(shard_range(size, groups, group),) for group in turn])
    chosen = sorted({turn[number] for number, _ in pieces})
    return tuple([group * src_cp + cp_rank for group in chosen for cp_rank in range(src_cp)])
