"""Logical blocks, which a cache manager counts, as the kernel blocks that an attention backend sees.

::

    logical   3          8                   a logical block is `ratio` kernel blocks, side by side
    kernel    6   7      16  17              ratio 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, check_ids_out
from nixldesc.errors import BlockIdError, GeometryError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import BlockIds, Fault, as_null, group_lists, readable, shown, word_reading
from nixldesc.request.blocks import Blocks

__all__ = ["kernel_blocks"]


@overload
def kernel_blocks(
    ids: BlockIds, ratio: int, *, null_block: int | None = None, out: NDArray[np.int32] | None = None
) -> NDArray[np.int32]: ...
@overload
def kernel_blocks(
    ids: Sequence[BlockIds | Blocks], ratio: Sequence[int], *, null_block: int | None = None
) -> list[NDArray[np.int32] | Blocks]: ...
def kernel_blocks(
    ids: Any, ratio: int | Sequence[int], *, null_block: int | None = None, out: NDArray[np.int32] | None = None
) -> NDArray[np.int32] | list[NDArray[np.int32] | Blocks]:
    """Return the kernel block ids of logical ones: block b is kernel blocks ``b * ratio`` to ``b * ratio + ratio - 1``.

    `ids`: list, tuple, range or integer array; the result is int32 of ``len(ids) * ratio``. A `null_block` entry
    becomes `ratio` null entries. A ``skip`` in logical blocks is ``skip * ratio`` in kernel blocks.

    With a sequence of ratios, one for each KV cache group, `ids` is a request's tables, one entry for each, and the
    result is such tables again. There :class:`Blocks` are taken too, and stay where they stand.

    Raises :class:`BlockIdError` for a negative id or one whose kernel blocks exceed 2**31 - 1, and for tables of
    another number than ratios; :class:`GeometryError` for a ratio below 1, :class:`TypeError` for anything but
    integers, :class:`ValueError` for an `out` of another size.

    >>> kernel_blocks([3, 8], 2)
    array([ 6,  7, 16, 17], dtype=int32)
    >>> kernel_blocks([0, 8], 2, null_block=0)
    array([ 0,  0, 16, 17], dtype=int32)
    >>> kernel_blocks([[3, 8], Blocks([5], skip=2)], [1, 2])
    [array([3, 8], dtype=int32), Blocks(array([10, 11], dtype=int32), skip=4)]
    """
    if isinstance(ratio, (Sequence, np.ndarray)) and not isinstance(ratio, (str, bytes, bytearray)):
        if out is not None:
            raise TypeError("out is for one list; with a ratio for each group every list is new")
        return _kernel_tables(ids, ratio, null_block)
    return _kernel_list(ids, ratio, "ids", null_block, out)


def _kernel_tables(tables: Any, ratios: Sequence[int], null_block: int | None) -> list[NDArray[np.int32] | Blocks]:
    lists = group_lists(tables, "ids")
    if len(lists) != len(ratios):
        raise BlockIdError(
            f"ids has {len(lists)} lists and ratio {len(ratios)} numbers; one of each per KV cache group"
        )
    return [
        _kernel_entry(item, ratio, f"ids[{group}]", null_block)
        for group, (item, ratio) in enumerate(zip(lists, ratios, strict=True))
    ]


def _kernel_entry(item: Any, ratio: Any, what: str, null_block: int | None) -> NDArray[np.int32] | Blocks:
    if not isinstance(item, Blocks):
        return _kernel_list(item, ratio, what, null_block, None)
    found = _kernel_list(item.ids, ratio, what, null_block, None)
    if item.at is None:
        return Blocks(found, item.skip * int(ratio))
    return Blocks(found, at=(item.at[:, None] * int(ratio) + np.arange(ratio)).ravel())


def _kernel_list(
    ids: Any, ratio: Any, what: str, null_block: int | None, out: NDArray[np.int32] | None
) -> NDArray[np.int32]:
    ratio = as_int(ratio, "ratio")
    if not 0 < ratio < 2**31:
        raise GeometryError(f"ratio must be a positive number of kernel blocks in a logical block, got {ratio}")
    null_block = as_null(null_block)
    if out is not None:
        check_ids_out(out, ids)
    taken = readable(ids, what)
    result = _kernels.expand_kernel_blocks(taken, ratio, null_block, out)
    if not isinstance(result, tuple):
        return result
    fault = Fault(*result)
    if fault.code == _kernels.OUT_SIZE:
        raise ValueError(f"out holds {fault.position} ids, the result {fault.extra}")
    if fault.code == _kernels.OUT_OF_RANGE:
        raise BlockIdError(
            f"{what}, position {fault.position}: block id {shown(ids, fault.position)} is out of range for ratio "
            f"{ratio} (0 to {2**31 // ratio - 1})"
        )
    raise word_reading(fault, what, ids)
