"""Block lists: what a request gives, one list per KV cache group and side, and where each entry stands.

Nothing is ever matched by counting from an end; every entry has a position in the sequence::

    full list of the group      [ 7  3  9  4  8 ]      position  0 1 2 3 4
    a cached prefix of two            [ 9  4  8 ]      Blocks([9, 4, 8], skip=2)      positions 2 3 4
    the last one of five                    [ 8 ]      Blocks.tail([8], 5)            position  4

    context parallelism, rank 1 of 2: entry i stands at 1 + (skip + i) * 2        positions 1 3 5 ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, check_ids_out
from nixldesc.errors import BlockIdError, GeometryError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import BlockIds, Fault, as_null, readable, shown, word_reading

__all__ = ["Blocks", "Place", "Places", "kernel_blocks"]


class Place(NamedTuple):
    """Where a rank's list stands: its sub-block l at ``l // grain * grain * every + first * grain + l % grain``."""

    first: int = 0
    every: int = 1
    grain: int = 1


class Places(NamedTuple):
    """Where the two sides' lists of one region stand, and the tokens of a sub-block (0: a whole without tokens)."""

    src: Place = Place()
    dst: Place = Place()
    unit_tokens: int = 0


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
