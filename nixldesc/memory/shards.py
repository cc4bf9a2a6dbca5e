"""Which indices of a global axis a rank holds.

::

    8 KV heads, TP 4     rank 0: [0, 2)   1: [2, 4)   2: [4, 6)   3: [6, 8)       cut evenly
    2 KV heads, TP 4     rank 0: [0, 1)   1: [0, 1)   2: [1, 2)   3: [1, 2)       replicated on neighbours
    10 rows, 4 shards    rank 0: [0, 3)   1: [3, 6)   2: [6, 9)   3: [9, 10)      a tensor on a device mesh
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from nixldesc._check import as_int, brief, is_many
from nixldesc.errors import GeometryError

__all__ = ["mesh_ranges", "shard_range"]


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


def mesh_ranges(
    shape: Iterable[int], mesh: Iterable[int], placements: Iterable[int | None], rank: int
) -> tuple[tuple[int, int], ...] | None:
    """Return what `rank` of a device mesh holds of a tensor: ``(start, stop)`` per dimension, or None for nothing.

    `shape` is the whole tensor's, `mesh` the mesh's (its ranks numbered row-major), `placements` says for each
    dimension of the mesh which dimension of the tensor it shards (counted from the end if negative), or None where it
    replicates. Shards are as ``torch.chunk`` cuts them: each ``ceil(size / number)`` long, the last ones shorter or
    empty. Two mesh dimensions that shard one dimension of the tensor cut it one after the other, left to right: the
    arithmetic of DTensor, FSDP and Megatron.

    Raises :class:`GeometryError` for numbers that do not fit each other, :class:`TypeError` for what is no number.

    >>> mesh_ranges((10, 8), (2, 4), (1, 0), rank=7)  # columns over 2, rows over 4: the last rows of the right half
    ((9, 10), (4, 8))
    >>> mesh_ranges((3, 8), (4,), (0,), rank=3) is None
    True
    """
    sizes, mesh = _sizes(shape, "shape", 0), _sizes(mesh, "mesh", 1)
    rank, shards = as_int(rank, "rank"), _shards(placements, len(mesh), len(sizes))
    if not 0 <= rank < prod(mesh):
        raise GeometryError(f"rank {rank} is out of range, a mesh {mesh} has {prod(mesh)} ranks")
    held = [(0, size) for size in sizes]
    ranks_left = prod(mesh)
    for number, dim in zip(mesh, shards, strict=True):
        ranks_left //= number
        if dim is not None:
            start, stop = held[dim]
            chunk = -(-(stop - start) // number)
            begin = start + chunk * (rank // ranks_left % number)
            held[dim] = min(begin, stop), min(begin + chunk, stop)
    return None if any(start == stop for start, stop in held) else tuple(held)


def _sizes(given: Any, what: str, least: int) -> tuple[int, ...]:
    if not is_many(given):
        raise TypeError(f"{what} must be a sequence of ints, got {brief(given)}")
    sizes = tuple(as_int(size, f"{what}[{i}]") for i, size in enumerate(given))
    if any(size < least for size in sizes):
        raise GeometryError(f"{what} {sizes} has a size below {least}")
    return sizes


def _shards(placements: Any, of_mesh: int, of_tensor: int) -> list[int | None]:
    """Return the tensor dimension that each mesh dimension shards, from 0."""
    if not is_many(placements):
        raise TypeError(f"placements must be a sequence of a tensor dimension or None, got {brief(placements)}")
    given = tuple(placements)
    if len(given) != of_mesh:
        raise GeometryError(f"{len(given)} placements for a mesh of {of_mesh} dimensions; expected one for each")
    shards = [None if dim is None else as_int(dim, f"placements[{i}]") for i, dim in enumerate(given)]
    for i, dim in enumerate(shards):
        if dim is not None and not -of_tensor <= dim < of_tensor:
            raise GeometryError(f"placements[{i}] shards dimension {dim} of a tensor of {of_tensor} dimensions")
    return [dim if dim is None else dim % of_tensor for dim in shards]
