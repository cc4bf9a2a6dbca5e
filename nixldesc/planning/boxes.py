"""Boxes of indices: products of ranges, one per axis. Which holder sends which part of a box that several may hold.

::

    wanted (rows x columns)      +-------+-------+      holders in turn, each sends what is still missing:
                                 |   A   |   A   |        A holds the upper half      -> all of it
                                 +-------+-------+        B holds the left half       -> the lower left quarter
                                 |   B   |   C   |        C holds everything          -> what is left
                                 +-------+-------+

A box is a tuple of ``(start, stop)``, one for each axis in one agreed order; a box of no axes is one point.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from nixldesc.planning.limits import AT_ONCE, Limits

__all__ = ["MAX_PIECES", "Box", "PartIndex", "apart", "choose", "held_of", "meet", "volume"]

#: A half-open range per axis.
Box = tuple[tuple[int, int], ...]

#: More pieces of one box than any sharding makes; bounds what overlapping holders can make a plan look through.
MAX_PIECES = 2**14


def meet(a: Box, b: Box) -> Box | None:
    """Return the indices that both boxes hold, None where there are none.

    >>> meet(((0, 4), (0, 2)), ((2, 6), (1, 3))), meet(((0, 2),), ((2, 4),))
    (((2, 4), (1, 2)), None)
    """
    both = []
    for (a0, a1), (b0, b1) in zip(a, b, strict=True):
        start, stop = a0 if a0 > b0 else b0, a1 if a1 < b1 else b1
        if start >= stop:
            return None
        both.append((start, stop))
    return tuple(both)


def volume(box: Box) -> int:
    """Return how many indices a box holds.

    >>> volume(((0, 4), (1, 3)))
    8
    """
    return prod([stop - start for start, stop in box])


def _without(box: Box, hole: Box) -> list[Box]:
    """Return what is left of a box without a part of it: slabs along each axis in turn."""
    left = []
    done: Box = ()
    for axis, ((start, stop), (low, high)) in enumerate(zip(box, hole, strict=True)):
        rest = box[axis + 1 :]
        if start < low:
            left.append((*done, (start, low), *rest))
        if high < stop:
            left.append((*done, (high, stop), *rest))
        done = (*done, (low, high))
    return left


def choose(
    wanted: Box, holders: Sequence[Box], limits: Limits | None = None
) -> tuple[list[tuple[int, Box]], list[Box]]:
    """Return which holder sends which part of `wanted`, and what nobody holds.

    Holders are asked in their order; each sends what it holds of what is still missing. OverflowError where they
    overlap in too many pieces, or the plan's `limits` allow no more looking.

    >>> choose(((2, 4),), [((2, 3),), ((2, 3),), ((3, 4),), ((3, 4),)])
    ([(0, ((2, 3),)), (2, ((3, 4),))], [])
    """
    first, separate = _parts(wanted, holders, limits)
    if separate and sum(map(volume, first)) == volume(wanted):
        return [(number, part) for part, number in first.items()], []
    return _dealt(wanted, first, separate, limits)


def held_of(wanted: Box, holders: Sequence[Box], limits: Limits | None = None) -> list[tuple[int, Box]]:
    """Return which holder sends which part of `wanted`, as :func:`choose` does, whatever is missing.

    >>> held_of(((2, 4),), [((3, 9),), ((0, 4),)])
    [(0, ((3, 4),)), (1, ((2, 3),))]
    """
    first, separate = _parts(wanted, holders, limits)
    if separate:
        return [(number, part) for part, number in first.items()]
    return _dealt(wanted, first, separate, limits)[0]


def _parts(wanted: Box, holders: Sequence[Box], limits: Limits | None) -> tuple[dict[Box, int], bool]:
    """Return what holders have of `wanted`, and whether these are many parts and all apart from one another.

    Replicas hold equal boxes, of which only the first in turn matters.
    """
    if limits is not None:
        limits.look(len(holders))
    first: dict[Box, int] = {}
    for number, held in enumerate(holders):
        part = meet(wanted, held)
        if part is not None:
            first.setdefault(part, number)
    return first, len(first) > 8 and apart(list(first), limits)


def _dealt(
    wanted: Box, first: dict[Box, int], separate: bool, limits: Limits | None
) -> tuple[list[tuple[int, Box]], list[Box]]:
    """Let each part in turn take what is still missing; parts that are apart ascend, so that it stays in few pieces."""
    taken: list[tuple[int, Box]] = []
    missing = [wanted]
    for part in sorted(first) if separate else first:
        if not missing:
            break
        if limits is not None:
            limits.look(len(missing))
        still: list[Box] = []
        for gap in missing:
            piece = meet(gap, part)
            if piece is None:
                still.append(gap)
            else:
                taken.append((first[part], piece))
                still += _without(gap, piece)
        missing = still
        if len(taken) + len(missing) > MAX_PIECES:
            raise OverflowError
    return taken, missing


def apart(boxes: Sequence[Box], limits: Limits | None = None) -> bool:
    """Whether no two boxes share an index (of boxes with at least one axis).

    >>> apart([((0, 2), (0, 2)), ((0, 2), (2, 4)), ((2, 4), (0, 4))]), apart([((0, 2),), ((1, 3),)])
    (True, False)
    """
    if len(boxes) < 2:
        return True
    if not boxes[0]:
        return False
    axis = max(range(len(boxes[0])), key=lambda axis: len({box[axis] for box in boxes}))
    order = sorted(boxes, key=lambda box: box[axis])
    numbers = np.array(order, dtype=np.uint64)  # boxes, axes, 2
    reach = np.maximum.accumulate(numbers[:, axis, 1])
    firsts = np.searchsorted(reach, numbers[:, axis, 0], side="right")
    near = np.flatnonzero(firsts < np.arange(len(order)))
    if limits is not None:
        limits.look(int((near - firsts[near]).sum()) // AT_ONCE + 4 * len(near))
    for here in near.tolist():
        others, mine = numbers[firsts[here] : here], numbers[here]
        if ((others[:, :, 0] < mine[:, 1]) & (mine[:, 0] < others[:, :, 1])).all(axis=1).any():
            return False
    return True


class PartIndex:
    """The boxes of many parts of one section, to find those that meet another box without looking at all of them."""

    def __init__(self, boxes: Sequence[Box], limits: Limits | None = None) -> None:
        self._limits = limits
        self._equal: dict[Box, list[int]] = {}
        for number, box in enumerate(boxes):
            self._equal.setdefault(box, []).append(number)
        # Parts that are equal or apart: who holds exactly what is wanted holds all that meets it.
        self._apart = apart(list(self._equal), limits)
        numbers = np.array(boxes, dtype=np.uint64).reshape(len(boxes), -1, 2)
        self._axis = max(range(numbers.shape[1]), key=lambda axis: len(np.unique(numbers[:, axis, 0])), default=-1)
        starts = numbers[:, self._axis, 0] if self._axis >= 0 else np.arange(len(boxes))
        self._order = np.argsort(starts, kind="stable")
        self._boxes = numbers[self._order]
        self._reach = np.maximum.accumulate(self._boxes[:, self._axis, 1]) if self._axis >= 0 else self._order

    def meeting(self, box: Box) -> Sequence[int]:
        """Return the numbers, ascending, of the parts that share an index with `box`.

        >>> PartIndex([((2, 4),), ((0, 2),), ((4, 6),)]).meeting(((1, 3),))
        [0, 1]
        """
        if self._apart and box in self._equal:
            return self._equal[box]
        if self._axis < 0:
            return range(len(self._order))
        start, stop = box[self._axis]
        first = int(np.searchsorted(self._reach, np.uint64(start), side="right"))
        last = int(np.searchsorted(self._boxes[:, self._axis, 0], np.uint64(stop), side="left"))
        if self._limits is not None:
            self._limits.look(8 + max(last - first, 0) // AT_ONCE)
        near, mine = self._boxes[first:last], np.array(box, dtype=np.uint64)
        kept = ((near[:, :, 0] < mine[:, 1]) & (mine[:, 0] < near[:, :, 1])).all(axis=1)
        found: list[int] = sorted(self._order[first:last][kept].tolist())
        return found
