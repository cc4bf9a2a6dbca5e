"""Raw desc ids of two lists, checked, and what they stand for: wire operations and moves of bytes.

::

    src ids   5  6  7  9          one wire operation:  (5 -> 2, 6 -> 3, 7 -> 4), both step by +1 in dense rows
    dst ids   2  3  4  5          another:             (9 -> 5)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import check_rows_out
from nixldesc.errors import BlockIdError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import BlockIds, Fault, read_ids
from nixldesc.memory.layout import Layout

__all__ = ["IdPair", "id_moves", "id_ops", "pair_ids"]

IdPair = tuple[NDArray[np.int32], NDArray[np.int32]]


def pair_ids(src_ids: BlockIds, dst_ids: BlockIds) -> IdPair:
    """Return raw desc ids of two sides as C-contiguous int32, equally many; else TypeError or BlockIdError.

    NIXL casts what it gets without looking (1.5.1: an int64 of 2**32 + 5 moves block 5), so nothing else goes there.
    """
    src, dst = _as_int32(src_ids, "src_ids"), _as_int32(dst_ids, "dst_ids")
    if len(src) != len(dst):
        raise BlockIdError(f"{len(src)} src_ids and {len(dst)} dst_ids: they pair one to one")
    return src, dst


def _as_int32(ids: Any, what: str) -> NDArray[np.int32]:
    if type(ids) is np.ndarray and ids.dtype == np.int32 and ids.ndim == 1:
        plain: NDArray[np.int32] = ids
        if plain.flags.c_contiguous and plain.flags.aligned:
            return plain
    return read_ids(ids, what, "desc id")


def id_ops(src: Layout, dst: Layout, ids: IdPair) -> int:
    """Return NIXL's wire operations for paired ids; BlockIdError for a range or a length that does not fit."""
    ops = _kernels.count_ops(src.table(), dst.table(), src.row_index()[0], dst.row_index()[0], *ids)
    if isinstance(ops, int):
        return ops
    raise _word(Fault(*ops), src, dst, ids)


def id_moves(
    src: Layout, dst: Layout, src_ids: BlockIds, dst_ids: BlockIds, merge: bool, out: NDArray[np.uint64] | None
) -> NDArray[np.uint64]:
    """Return rows ``(src_addr, dst_addr, len)`` of raw desc ids, as :meth:`nixldesc.DlistPair.moves` says."""
    ids = pair_ids(src_ids, dst_ids)
    size = len(ids[0])
    if out is None:
        rows = np.empty((size, 3), dtype=np.uint64)
    else:
        check_rows_out(out, (size, 3), src_ids, dst_ids)
        id_ops(src, dst, ids)  # what is refused is refused before a row is written
        rows = out
    (src_starts, src_regions), (dst_starts, dst_regions) = src.row_index(), dst.row_index()
    n = _kernels.fill_moves(
        src.table(), dst.table(), src_starts, dst_starts, src_regions, dst_regions, *ids, rows, merge
    )
    if not isinstance(n, int):
        if n[0] == _kernels.OUT_SIZE:
            raise ValueError("out has another shape than it claims")
        raise _word(Fault(*n), src, dst, ids)
    if out is None and n < size:
        rows.resize((n, 3), refcheck=False)
    return rows[:n]


def _word(fault: Fault, src: Layout, dst: Layout, ids: IdPair) -> BlockIdError:
    at = fault.position
    for side, layout, its in (("src", src, ids[0]), ("dst", dst, ids[1])):
        if not 0 <= its[at] < layout.num_descs:
            return BlockIdError(
                f"{side}_ids, position {at}: desc id {its[at]} is out of range, the {side} list has "
                f"{layout.num_descs} descriptors"
            )
    lengths = src.address(int(ids[0][at]))[1], dst.address(int(ids[1][at]))[1]
    return BlockIdError(
        f"position {at}: src id {ids[0][at]} is {lengths[0]} bytes, dst id {ids[1][at]} is {lengths[1]} bytes"
    )
