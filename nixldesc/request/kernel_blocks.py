"""Logical blocks, which a cache manager counts, as the kernel blocks that an attention backend sees.

::

    logical   3          8                   a logical block is `ratio` kernel blocks, side by side
    kernel    6   7      16  17              ratio 2
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, check_ids_out
from nixldesc.errors import BlockIdError, GeometryError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import BlockIds, Fault, as_null, readable, shown, word_reading

__all__ = ["kernel_blocks"]


def kernel_blocks(
    ids: BlockIds, ratio: int, *, null_block: int | None = None, out: NDArray[np.int32] | None = None
) -> NDArray[np.int32]:
    """Return the kernel block ids of logical ones: block b is kernel blocks ``b * ratio`` to ``b * ratio + ratio - 1``.

    `ids`: list, tuple, range or integer array; the result is int32 of ``len(ids) * ratio``. A `null_block` entry
    becomes `ratio` null entries. A ``skip`` in logical blocks is ``skip * ratio`` in kernel blocks.

    Raises :class:`BlockIdError` for a negative id or one whose kernel blocks exceed 2**31 - 1, :class:`GeometryError`
    for a ratio below 1, :class:`TypeError` for anything but integers, :class:`ValueError` for an `out` of another size.

    >>> kernel_blocks([3, 8], 2)
    array([ 6,  7, 16, 17], dtype=int32)
    >>> kernel_blocks([0, 8], 2, null_block=0)
    array([ 0,  0, 16, 17], dtype=int32)
    """
    ratio = as_int(ratio, "ratio")
    if not 0 < ratio < 2**31:
        raise GeometryError(f"ratio must be a positive number of kernel blocks in a logical block, got {ratio}")
    null_block = as_null(null_block)
    if out is not None:
        check_ids_out(out, ids)
    taken = readable(ids, "ids")
    result = _kernels.expand_kernel_blocks(taken, ratio, null_block, out)
    if not isinstance(result, tuple):
        return result
    fault = Fault(*result)
    if fault.code == _kernels.OUT_SIZE:
        raise ValueError(f"out holds {fault.position} ids, the result {fault.extra}")
    if fault.code == _kernels.OUT_OF_RANGE:
        raise BlockIdError(
            f"ids, position {fault.position}: block id {shown(ids, fault.position)} is out of range for ratio {ratio} "
            f"(0 to {2**31 // ratio - 1})"
        )
    raise word_reading(fault, "ids", ids)
