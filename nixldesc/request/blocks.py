"""Block lists: what a request gives, one list per KV cache group and side, and where each entry stands.

Nothing is ever matched by counting from an end; every entry has a position in the sequence::

    full list of the group      [ 7  3  9  4  8 ]      entry     0 1 2 3 4
    a cached prefix of two            [ 9  4  8 ]      Blocks([9, 4, 8], skip=2)      entries 2 3 4
    the last one of five                    [ 8 ]      Blocks.tail([8], 5)            entry   4
    a sink and a window         [ 7        4  8 ]      Blocks([7, 4, 8], at=[0, 3, 4])

    context parallelism: entries are counted in the rank's own list, and dealt to the sequence grain by grain

    rank 1 of 2, a grain of one block     entry  0 1 2 3     block of the sequence   1 3 5 7
    rank 1 of 2, a grain of two blocks    entry  0 1 2 3     block of the sequence   2 3 6 7
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int
from nixldesc.errors import BlockIdError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import BlockIds, Fault, readable, shown, word_reading

__all__ = ["Blocks", "Place", "Places"]


class Place(NamedTuple):
    """Where a rank's list stands in the sequence, counted in sub-blocks: rank `first` of `every`, `grain` at a time.

    Sub-block l of the rank's list is ``l // grain * grain * every + first * grain + l % grain`` of the sequence's.
    """

    first: int = 0
    every: int = 1
    grain: int = 1


class Places(NamedTuple):
    """Where the two sides' lists of one region stand, and how many tokens a sub-block is (0: it is not of tokens).

    Ranks that are dealt alike meet in the sequence of their own tokens, which is cut into sub-blocks without regard to
    the grain: their `src` and `dst` are whole, and `deal` says, in tokens, which of all tokens that sequence is.
    """

    src: Place = Place()
    dst: Place = Place()
    unit_tokens: int = 0
    deal: Place = Place()


class _Unsaid(int):
    """A `skip` of 0 that nobody wrote, so that ``skip=0, at=[...]`` is seen to say two things."""


_UNSAID = _Unsaid()


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Blocks:
    """One group's block ids on one side, and which entries of that side's full list they are.

    Either the first `skip` entries are not given: a cached prefix, or a sliding window's dead start. Or `at` says it
    for each id, strictly ascending: a zigzag's chunks, a window and a sink, the slots that an owner holds. Both are
    counted in entries of that side's own list (blocks of its own size). `ids` is kept as given (list, tuple, range or
    integer array) and read when used; `at` is kept as int64[n], read-only, or None.

    Raises :class:`BlockIdError` for a negative `skip` and an `at` that does not ascend or is not as long as `ids`;
    :class:`TypeError` where `ids` or `at` is no sequence of integers, and for `skip` and `at` together.

    >>> Blocks([9, 4, 8], skip=2)
    Blocks([9, 4, 8], skip=2)
    >>> Blocks([7, 4, 8], at=[0, 3, 4])
    Blocks([7, 4, 8], at=[0, 3, 4])
    >>> Blocks.tail([8], 5) == Blocks([8], skip=4)
    True
    """

    ids: BlockIds
    skip: int
    at: NDArray[np.int64] | None

    def __init__(self, ids: BlockIds, skip: int = _UNSAID, *, at: BlockIds | None = None) -> None:
        put = object.__setattr__
        put(self, "ids", ids)
        if type(ids) is not list and type(ids) is not tuple and not _plain_array(ids):
            readable(ids, "Blocks: ids")
        if at is not None:
            if skip is not _UNSAID:
                raise TypeError("Blocks: skip and at say the same thing in two ways; give one of them")
            put(self, "skip", 0)
            put(self, "at", _read_at(ids, at))
            return
        skip = 0 if skip is _UNSAID else as_int(skip, "Blocks: skip", BlockIdError)
        if not 0 <= skip < 2**62:
            raise BlockIdError(f"Blocks: skip must be a number of entries, 0 or more, got {skip}")
        put(self, "skip", skip)
        put(self, "at", None)

    @classmethod
    def tail(cls, ids: BlockIds, total: int) -> Blocks:
        """Return the last ``len(ids)`` entries of a list of `total`.

        Raises :class:`BlockIdError` when `ids` is longer than `total`.

        >>> Blocks.tail([40, 41], 5).skip
        3
        """
        total = as_int(total, "Blocks.tail: total", BlockIdError)
        if type(ids) not in (list, tuple) and not _plain_array(ids):
            readable(ids, "Blocks.tail: ids")
        if len(ids) > total:
            raise BlockIdError(f"Blocks.tail: {len(ids)} ids cannot be the tail of {total} entries")
        return cls(ids, total - len(ids))

    def with_ids(self, ids: BlockIds) -> Blocks:
        """Return other ids that stand where these stand.

        >>> Blocks([7, 8], at=[0, 3]).with_ids([20, 21])
        Blocks([20, 21], at=[0, 3])
        """
        return Blocks(ids, self.skip) if self.at is None else Blocks(ids, at=self.at)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        where = f"skip={self.skip}" if self.at is None else f"at={self.at.tolist()!r}"
        return f"Blocks({self.ids!r}, {where})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blocks):
            return NotImplemented
        return self._where() == other._where() and list(self.ids) == list(other.ids)

    def __hash__(self) -> int:
        return hash((self._where(), tuple(self.ids)))

    def _where(self) -> int | tuple[int, ...]:
        return self.skip if self.at is None else tuple(self.at.tolist())


def _plain_array(ids: Any) -> bool:
    return type(ids) is np.ndarray and ids.ndim == 1 and ids.dtype.kind in "iu"


def _read_at(ids: Any, at: Any) -> NDArray[np.int64]:
    """Return where each of `ids` stands, as read-only int64."""
    own = at.astype(np.int64) if _plain_array(at) and at.dtype.itemsize < 8 else readable(at, "Blocks: at")
    places = _kernels.read_places(own)
    if isinstance(places, tuple):
        fault = Fault(*places)
        if fault.code == _kernels.BAD_TYPE:
            raise word_reading(fault, "Blocks: at", at, "list entry")
        raise BlockIdError(
            f"Blocks: at must ascend from 0 or more, entry by entry; position {fault.position} is "
            f"{shown(at, fault.position)}" + (f" after {shown(at, fault.position - 1)}" if fault.position else "")
        )
    if len(places) != len(ids):
        raise BlockIdError(f"Blocks: at says where {len(places)} entries stand, and there are {len(ids)} ids")
    return places
