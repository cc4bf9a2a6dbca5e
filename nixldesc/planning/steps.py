"""A range of one axis as steps through both sides' memory, whatever parts each side stores the axis in.

::

    index            0  1  2  3  4  5  6  7  8  9 10 11        wanted: [2, 12)
    dst  plain      |.............................|            unit 1, stride d
    src  by fours   |...........|...........|.......           unit 4, stride s4, and unit 1, stride s1
    meets in               [2 3][ 4 .. 7   8 .. 11 ]           [2, 4): 2 x (d, s1); [4, 12): 2 x (4d, s4) x 4 x (d, s1)

Two sides that cut an axis differently meet at the common refinement of their units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from nixldesc.memory.sections import Dim

__all__ = ["Loop", "Stored", "Walk", "alternatives", "stored"]


class Loop(NamedTuple):
    """`size` equal steps, in bytes on either side."""

    dst: int
    src: int
    size: int


class Walk(NamedTuple):
    """Where a stretch of indices begins, in bytes on either side, and the loops that reach all of it."""

    dst: int
    src: int
    loops: tuple[Loop, ...]


class Stored(NamedTuple):
    """How one side stores an axis: its dimensions, the largest unit first, and the first index that it holds."""

    start: int
    dims: tuple[Dim, ...]

    def offset(self, index: int) -> int:
        """Return the bytes from the side's first index to `index`."""
        first, *inner = self.dims
        at = (index - self.start) // first.unit * first.stride
        for dim in inner:
            at += index // dim.unit % dim.size * dim.stride
        return at

    def step(self, unit: int) -> int:
        """Return the bytes of a step of `unit` indices, a multiple of some part's unit and no more than it spans."""
        dim = next(dim for dim in self.dims if dim.unit <= unit)
        return unit // dim.unit * dim.stride


def stored(start: int, dims: tuple[Dim, ...]) -> Stored:
    """Return how a side stores an axis; parts that nest evenly are one dimension, one of size 1 is none."""
    if len(dims) == 1:
        return Stored(start, dims)
    joined: list[Dim] = []
    for dim in [dim for dim in dims if dim.size > 1] or dims[-1:]:
        if joined and joined[-1].stride == dim.size * dim.stride:
            joined[-1] = Dim(dim.unit, joined[-1].size * dim.size, dim.stride)
        else:
            joined.append(dim)
    return Stored(start, tuple(joined))


def alternatives(low: int, high: int, dst: Stored, src: Stored) -> list[Walk] | None:
    """Return the walks that together reach indices [low, high) on both sides; None where neither cut divides the other.

    >>> dst, src = Stored(0, (Dim(1, 12, 10),)), Stored(0, (Dim(4, 3, 100), Dim(1, 4, 7)))
    >>> [walk.loops for walk in alternatives(2, 12, dst, src)]
    [(Loop(dst=10, src=7, size=2),), (Loop(dst=40, src=100, size=2), Loop(dst=10, src=7, size=4))]
    """
    units = sorted({dim.unit for dim in (*dst.dims, *src.dims)}, reverse=True)
    if any(larger % smaller for larger, smaller in pairwise(units)):
        return None
    return [
        Walk(dst.offset(at), src.offset(at), tuple([Loop(dst.step(u), src.step(u), n) for u, n in loops]))
        for at, loops in _stretches(low, high, units)
    ]


def _stretches(low: int, high: int, units: Sequence[int]) -> Iterable[tuple[int, list[tuple[int, int]]]]:
    """Yield (first index, [(unit, count), ...]): whole steps of the largest unit, and at the ends what is left."""
    unit, *inner = units
    first, last = -(-low // unit), high // unit
    if first >= last:  # inside one step, or around one bound
        bounds = [low, first * unit, high] if low < first * unit < high else [low, high]
        for start, stop in pairwise(bounds):
            yield from _stretches(start, stop, inner)
        return
    if low < first * unit:
        yield from _stretches(low, first * unit, inner)
    yield first * unit, [(unit, last - first), *zip(inner, [a // b for a, b in pairwise(units)], strict=True)]
    if last * unit < high:
        yield from _stretches(last * unit, high, inner)
