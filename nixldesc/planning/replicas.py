"""Who sends what: the one rule by which a destination rank chooses among sources that hold the same bytes.

Sources stand in ascending rank order. Destination rank d of D begins at number ``d * n // D`` and goes round until
every index of its range has a sender, taking from each source what is still missing::

    4 KV heads, P = 8 source ranks (each head twice), D = 2, d = 1: wants heads [2, 4), begins at 1 * 8 // 2 = 4

    source   0    1    2    3    4    5    6    7
    head     0    0    1    1   >2<   2   >3<   3          -> takes head 2 from source 4, head 3 from source 6

So the load spreads over the replicas, and both sides can compute the choice without talking to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nixldesc._check import as_int
from nixldesc.errors import GeometryError
from nixldesc.memory.shards import shard_range

__all__ = ["choose", "source_ranks"]

#: A half-open range of a global index.
Range = tuple[int, int]


def choose(wanted: Range, holders: Sequence[Range], begin: int) -> tuple[list[tuple[int, Range]], list[Range]]:
    """Return which holder sends which part of `wanted`, and what nobody holds.

    `holders` are the ranges of the sources in turn; the walk starts at number `begin` and goes round once.

    >>> choose((2, 4), [(0, 1), (0, 1), (1, 2), (1, 2), (2, 3), (2, 3), (3, 4), (3, 4)], 4)
    ([(4, (2, 3)), (6, (3, 4))], [])
    """
    pieces: list[tuple[int, Range]] = []
    missing = [wanted]
    for turn in range(len(holders)):
        if not missing:
            break
        number = (begin + turn) % len(holders)
        taken, missing = _cut(missing, holders[number])
        pieces += [(number, piece) for piece in taken]
    return pieces, missing


def _cut(missing: Iterable[Range], held: Range) -> tuple[list[Range], list[Range]]:
    taken, left = [], []
    for low, high in missing:
        start, stop = max(low, held[0]), min(high, held[1])
        if start >= stop:
            left.append((low, high))
            continue
        taken.append((start, stop))
        left += [piece for piece in ((low, start), (stop, high)) if piece[0] < piece[1]]
    return taken, left


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
    holders = [shard_range(size, src_tp, rank) for rank in range(src_tp)]
    pieces, _ = choose(wanted, holders, dst_rank * src_tp // dst_tp)
    return tuple(sorted({number for number, _ in pieces}))
