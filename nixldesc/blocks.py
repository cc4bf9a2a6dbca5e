"""Block lists: what a request gives, one list per KV cache group and side, and where each entry stands.

Nothing is ever matched by counting from an end; every entry has a position in the sequence::

    full list of the group      [ 7  3  9  4  8 ]      position  0 1 2 3 4
    a cached prefix of two            [ 9  4  8 ]      Blocks([9, 4, 8], skip=2)      positions 2 3 4
    the last one of five                    [ 8 ]      Blocks.tail([8], 5)            position  4

    context parallelism, rank 1 of 2: entry i stands at 1 + (skip + i) * 2        positions 1 3 5 ...
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc import _kernels
from nixldesc._check import as_int, brief, check_ids_out
from nixldesc.errors import BlockIdError, GeometryError

__all__ = [
    "MAX_LISTS",
    "BlockIds",
    "Blocks",
    "Fault",
    "Place",
    "Places",
    "as_null",
    "group_lists",
    "kernel_blocks",
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

#: One group's block ids: a list, tuple, range or integer array.
BlockIds: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]


class Fault(NamedTuple):
    """Where a kernel stopped: a code of :mod:`nixldesc._kernels` and the list, position and figure it is about."""

    code: int
    side: int
    group: int
    position: int
    extra: int


class Place(NamedTuple):
    """Where a rank's list stands in the sequence: entry i at block position ``first + (skip + i) * every``."""

    first: int = 0
    every: int = 1


class Places(NamedTuple):
    """Where the two sides' lists of one region stand."""

    src: Place = Place()
    dst: Place = Place()


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """One group's block ids on one side, of which the first `skip` entries of the full list are not given.

    `skip` is counted in entries of that side's own list (blocks of its own size): a cached prefix, or a sliding
    window's dead start. `ids` is kept as given (list, tuple, range or integer array) and read when used.

    Raises :class:`BlockIdError` for a negative `skip`, :class:`TypeError` where `ids` is no sequence of ids.

    >>> Blocks([9, 4, 8], skip=2)
    Blocks(ids=[9, 4, 8], skip=2)
    >>> Blocks.tail([8], 5) == Blocks([8], skip=4)
    True
    """

    ids: BlockIds
    skip: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip", as_int(self.skip, "Blocks: skip", BlockIdError))
        if not 0 <= self.skip < 2**62:
            raise BlockIdError(f"Blocks: skip must be a number of entries, 0 or more, got {self.skip}")
        if type(self.ids) not in (list, tuple):
            readable(self.ids, "Blocks: ids")

    @classmethod
    def tail(cls, ids: BlockIds, total: int) -> Blocks:
        """Return the last ``len(ids)`` entries of a list of `total`.

        Raises :class:`BlockIdError` when `ids` is longer than `total`.

        >>> Blocks.tail([40, 41], 5).skip
        3
        """
        total = as_int(total, "Blocks.tail: total", BlockIdError)
        if type(ids) not in (list, tuple):
            readable(ids, "Blocks.tail: ids")
        if len(ids) > total:
            raise BlockIdError(f"Blocks.tail: {len(ids)} ids cannot be the tail of {total} entries")
        return cls(ids, total - len(ids))

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blocks):
            return NotImplemented
        return self.skip == other.skip and list(self.ids) == list(other.ids)

    def __hash__(self) -> int:
        return hash((self.skip, tuple(self.ids)))


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
    if isinstance(ids, Blocks):
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
        raise TypeError(f"{what} must hold integers, got an array of dtype {ids.dtype}")
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
