"""Strided tables, N x 5, and what they mean: ``count`` blocks of ``len`` bytes, ``stride`` apart (nixl >= 1.5).

::

    row   (addr, len, dev, stride, count)  = (0x1000, 16, 0, 32, 3)
    means (0x1000, 16, 0)  (0x1020, 16, 0)  (0x1040, 16, 0)           one N x 3 row per block
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import check_rows_out
from nixldesc.errors import GeometryError
from nixldesc.kernels import _kernels

__all__ = ["expand_table", "row_starts"]


def row_starts(table: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the first desc id of each row of a proven table, then the total: int64[rows + 1]."""
    starts = np.zeros(len(table) + 1, dtype=np.int64)
    np.cumsum(table[:, 4].astype(np.int64), out=starts[1:])
    return starts


def expand_table(table: NDArray[np.uint64], out: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Return an N x 5 table as N x 3: uint64[sum of counts, 3], rows ``(addr, len, dev)`` in desc-id order.

    `out` must be uint64 of exactly that shape, C-contiguous, writable and apart from `table`: :class:`ValueError`,
    its dtype :class:`TypeError`. A row that NIXL would refuse or that wraps around 2**64 (zero len or count,
    stride < len, more than 2**31 - 1 descriptors) is a :class:`GeometryError`.

    >>> expand_table(np.array([[4096, 16, 0, 32, 2]], dtype=np.uint64)).tolist()
    [[4096, 16, 0], [4128, 16, 0]]
    """
    total = _prove_rows(table)
    if out is None:
        out = np.empty((total, 3), dtype=np.uint64)
    else:
        check_rows_out(out, (total, 3), table)
    if _kernels.expand_rows(table, out) != total:
        raise GeometryError("the table's counts changed while it was expanded")
    return out


def _prove_rows(table: Any) -> int:
    """Check an N x 5 table in Python integers and return how many descriptors it stands for."""
    if not isinstance(table, np.ndarray) or table.dtype != np.uint64:
        got = f"dtype {table.dtype}" if isinstance(table, np.ndarray) else type(table).__name__
        raise TypeError(f"table must be a uint64 NumPy array, got {got}")
    table = np.ndarray.view(table, np.ndarray)  # whatever shape a subclass claims
    if table.ndim != 2 or table.shape[1] != 5 or not table.flags.c_contiguous or not table.flags.aligned:
        raise ValueError(
            f"table must be C-contiguous and aligned, of shape (rows, 5), got {table.shape}, strides {table.strides}"
        )
    total = 0
    for i, (addr, length, _, stride, count) in enumerate(table.tolist()):
        if not length or not count or stride < length:
            raise GeometryError(
                f"table row {i}: len {length}, stride {stride}, count {count}; expected positive len and count and "
                f"stride >= len"
            )
        if addr + (count - 1) * stride + length > 2**64:
            raise GeometryError(
                f"table row {i}: {count} blocks {stride} bytes apart from {addr:#x} end beyond address 2**64"
            )
        total += count
    if total > 2**31 - 1:
        raise GeometryError(f"the table stands for {total} descriptors, more than the 2**31 - 1 that ids can name")
    return total
