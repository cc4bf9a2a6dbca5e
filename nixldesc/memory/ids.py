"""Block ids as callers give them: any list, range or integer array, read once, refused in the caller's words.

::

    [[7, 3, 9], range(4), np.array([5])]       one list per KV cache group
       list      range    integer array   ->   what the kernels read: list, tuple, contiguous int32 or int64
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, brief
from nixldesc.errors import BlockIdError
from nixldesc.kernels import _kernels

__all__ = [
    "MAX_LISTS",
    "BlockIds",
    "Fault",
    "as_null",
    "group_lists",
    "list_at",
    "out_of_range",
    "read_ids",
    "readable",
    "readable_lists",
    "shown",
    "word_reading",
]

#: More lists than any engine has groups: somebody gave a list of ids for a list of lists.
MAX_LISTS = 2**16

#: A range is a few bytes whatever its length, so its length is bounded before it becomes memory.
MAX_RANGE = 2**24


class _Tensor(Protocol):
    """An integer tensor of another library, in host memory (``torch.Tensor``): what NumPy can read."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def __array__(self, *args: Any, **how: Any) -> NDArray[Any]: ...


#: One group's block ids: a list, tuple, range, integer array or tensor.
BlockIds: TypeAlias = Sequence[int] | NDArray[np.integer[Any]] | _Tensor


class Fault(NamedTuple):
    """Where a kernel stopped: a code of the kernels, and the list, position and figure it is about."""

    code: int
    side: int
    group: int
    position: int
    extra: int


def readable(ids: Any, what: str) -> BlockIds:
    """Return `ids` in a form that the kernels read (list, tuple, contiguous int32 or int64 array).

    Raises :class:`TypeError` for anything that is no sequence of integers, in the words of the caller.
    """
    if isinstance(ids, (list, tuple)):
        return ids
    if isinstance(ids, range):
        return _read_range(ids, what)
    if isinstance(ids, (str, bytes, bytearray, Mapping, Set, Iterator)) or ids is None:
        raise TypeError(f"{what} must be a list, tuple, range or integer array of block ids, got {brief(ids)}")
    if hasattr(ids, "ids") and hasattr(ids, "skip"):
        raise TypeError(f"{what}: Blocks say where a list meets the other side's; one layout alone takes plain ids")
    if isinstance(ids, (np.ndarray, np.generic, memoryview, array)) or hasattr(ids, "__array__"):
        return _read_array(np.asarray(ids), what)
    if isinstance(ids, Sequence):
        return list(ids)
    raise TypeError(
        f"{what} must be a sequence of block ids, got {brief(ids)}; "
        f"one list per KV cache group is expected: [[...], ...]"
    )


def _read_range(ids: range, what: str) -> BlockIds:
    if not ids:
        return ()
    if not (-(2**31) <= min(ids[0], ids[-1]) and max(ids[0], ids[-1]) < 2**31):
        raise BlockIdError(f"{what}: {brief(ids)} leaves the range of block ids, which are below 2**31")
    if len(ids) > MAX_RANGE:
        raise BlockIdError(f"{what}: {brief(ids)} stands for {len(ids)} blocks, more than {MAX_RANGE}")
    return np.arange(ids.start, ids.stop, ids.step, dtype=np.int64)


def _read_array(ids: NDArray[Any], what: str) -> BlockIds:
    if ids.dtype.kind not in "iu":
        empty = "; np.array([]) is of floats, an empty list or np.array([], int) will do" if ids.size == 0 else ""
        raise TypeError(f"{what} must hold integers, got an array of dtype {ids.dtype}{empty}")
    if ids.ndim != 1:
        raise TypeError(f"{what} must be one-dimensional, got an array of shape {ids.shape}")
    if ids.dtype.kind == "u" and ids.dtype.itemsize == 8 and ids.max(initial=0) >= 2**63:
        return [int(block) for block in ids]  # to be refused by its own value
    # A fresh array, always: native, aligned, contiguous.
    return np.array(ids, dtype=np.int64, order="C", subok=False)


def group_lists(lists: Any, what: str) -> Sequence[Any]:
    """Return a request's lists, one per KV cache group, as they are; a list, tuple or array of rows holds them."""
    if type(lists) is list or type(lists) is tuple:
        return lists
    if isinstance(lists, np.ndarray) and lists.ndim == 2:
        return list(lists)
    if isinstance(lists, (str, bytes, bytearray, range)) or not isinstance(lists, Sequence):
        raise TypeError(f"{what} must be a list with one list of block ids per KV cache group, got {brief(lists)}")
    return lists


def readable_lists(lists: Any, what: str) -> Sequence[BlockIds]:
    """Return one readable list per group; `lists` itself is a list, tuple or array of rows."""
    return [readable(ids, f"{what}[{group}]") for group, ids in enumerate(group_lists(lists, what))]


def read_ids(ids: Any, what: str, noun: str = "block id", null_block: int | None = None) -> NDArray[np.int32]:
    """Return ids of any readable form as a fresh int32 array of 0 to 2**31 - 1 (and `null_block`)."""
    taken = _kernels.expand_kernel_blocks(readable(ids, what), 1, null_block, None)
    if isinstance(taken, np.ndarray):
        return taken
    fault = Fault(*taken)
    if fault.code == _kernels.OUT_OF_RANGE:
        raise BlockIdError(
            f"{what}, position {fault.position}: {noun} {shown(ids, fault.position)} is outside 0 to 2**31 - 1"
        )
    raise word_reading(fault, what, ids, noun)


def as_null(value: Any) -> int | None:
    """Return a null block id that fits an id's 32 bits, or None for no null block."""
    if value is None or (type(value) is int and -(2**31) <= value < 2**31):
        return value
    number = as_int(value, "null_block", BlockIdError)
    if not -(2**31) <= number < 2**31:
        raise BlockIdError(f"null_block {number} is no block id: ids are 32 bits")
    return number


def word_reading(fault: Fault, where: str, ids: Any, noun: str = "block id") -> Exception:
    """Return the exception for a list that could not be read; `where` names the list, `ids` is the list."""
    if fault.code == _kernels.BAD_TYPE:
        return TypeError(
            f"{where}, position {fault.position}: a {noun} must be an int, got {_item(ids, fault.position)}"
        )
    if fault.code == _kernels.CHANGED:
        return BlockIdError(f"{where}: the list changed from {fault.extra} to {fault.position} ids while it was read")
    if fault.code == _kernels.MEMORY:
        return MemoryError(f"{where}: no memory for its block ids")
    return TypeError(f"{where}: not readable as block ids, got {brief(ids)}")


def list_at(lists: Any, group: int) -> Any:
    """Return the list of a group for an error's words; none where somebody has taken it away since."""
    try:
        return lists[group]
    except IndexError:
        return ()


def shown(ids: Any, position: int) -> str:
    """Return the id at `position` as text; the list may have changed under our hands, the number be endless."""
    try:
        value = operator.index(ids[position])
    except Exception:
        return "(changed by now)"
    return str(value) if value.bit_length() <= 256 else f"of {value.bit_length()} bits"


def _item(ids: Any, position: int) -> str:
    try:
        item = ids[position]
    except Exception:  # a list that changes under our hands: the words come without the value
        return "another value by now"
    return brief(item)


def out_of_range(where: str, ids: Any, position: int, name: str, num_blocks: int, advice: str = "") -> BlockIdError:
    """Return the error for a block id that region `name` of `num_blocks` blocks does not have."""
    return BlockIdError(
        f"{where}, position {position}: block id {shown(ids, position)} is out of range, region {name!r} has "
        f"{num_blocks} blocks (0 to {num_blocks - 1}){advice}"
    )
