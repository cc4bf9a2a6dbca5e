"""What the bytes of one block mean: sections, each an N-dimensional array with global index ranges.

A page is what lies in one block. Two sections, K and V of two heads, four tokens and eight bytes ("blocks first")::

    byte 0                              64                              128
         +-------------------------------+-------------------------------+
    page |  k: head 2      k: head 3     |  v: head 2      v: head 3     |
         |  t0 t1 t2 t3    t0 t1 t2 t3   |  t0 t1 t2 t3    t0 t1 t2 t3   |
         +-------------------------------+-------------------------------+
           Section("l0.k", axes=(head[2:4], token[0:4], byte[0:8]), itemsize=1, offset=0)
           Section("l0.v", axes=(head[2:4], token[0:4], byte[0:8]), itemsize=1, offset=64)

``head[2:4]`` is in *global* indices: this rank holds heads 2 and 3 of the model. Two ranks' sections of one name
overlap where all their ranges overlap, whatever the order and the strides of their axes: that is all a plan needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nixldesc._check import as_int, as_name, brief, is_many
from nixldesc.errors import GeometryError

__all__ = ["BYTE", "MAX_AXES", "MAX_RUNS", "MAX_WOVEN_RUNS", "TOKEN", "Axis", "Section"]

#: The axis that counts the tokens of a block; it starts at 0 in every block and never splits over ranks.
TOKEN = "token"
#: The axis inside an item (a token and head's bytes); whole on every rank. Two different lengths are two formats.
BYTE = "byte"
#: More separate runs of bytes than this in one block are refused, not enumerated.
MAX_RUNS = 2**20
#: Sections that interleave are compared run by run; more runs than this are refused.
MAX_WOVEN_RUNS = 2**16
#: More axes than any cache has; bounds the work that a stranger's description can ask for.
MAX_AXES = 16

#: A section's geometry in plain ints and strings: quick to hash, equal for equal shapes whatever the section's name.
Shape = tuple[tuple[tuple[str, int, int], ...], int, int, tuple[int, ...], str, bool]


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a section and the range of the global index that this rank holds.

    `start` and `stop` are indices, ``0 <= start < stop``. The axis named ``"token"`` counts tokens inside a block and
    starts at 0; the axis named ``"byte"`` is the inside of an item and is whole on every rank.

    Raises :class:`GeometryError` for an empty or negative range, :class:`TypeError` for anything but ints.

    >>> Axis("head", 2, 4)
    Axis(name='head', start=2, stop=4)
    """

    name: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        as_name(self.name, "axis name")
        object.__setattr__(self, "start", as_int(self.start, f"axis {self.name!r}: start"))
        object.__setattr__(self, "stop", as_int(self.stop, f"axis {self.name!r}: stop"))
        if not 0 <= self.start < self.stop < 2**64:
            raise GeometryError(
                f"axis {self.name!r}: range [{self.start}, {self.stop}) is empty, negative or beyond 2**64; "
                f"expected 0 <= start < stop"
            )
        if self.name == TOKEN and self.start != 0:
            raise GeometryError(f"axis 'token' counts tokens inside a block and starts at 0, got start {self.start}")

    @property
    def size(self) -> int:
        """How many indices this rank holds.

        >>> Axis("head", 2, 4).size
        2
        """
        return self.stop - self.start


@dataclass(frozen=True, slots=True, init=False)
class Section:
    """A named N-dimensional array inside a block.

    `name` is global: the same cache of the same layer has the same name on every rank. `axes` go from outermost to
    innermost, items are `itemsize` bytes; `offset` is in bytes from the block's start. `strides` (bytes per axis)
    default to C order. `dtype` is a free label that both sides must share. ``cp=False`` marks a token section that
    every context-parallel rank holds whole. A section without axes is one item: `itemsize` opaque bytes.

    Raises :class:`GeometryError` for strides that do not nest (bytes of one item inside another), for repeated axis
    names and for sizes that leave 64 bits; :class:`TypeError` for wrong types.

    >>> k = Section("layer0.k", (Axis("head", 2, 4), Axis("token", 0, 16), Axis("byte", 0, 128)), 1)
    >>> k.strides, k.nbytes, k.end
    ((2048, 128, 1), 4096, 4096)
    """

    name: str
    axes: tuple[Axis, ...]
    itemsize: int
    offset: int
    strides: tuple[int, ...]
    dtype: str
    cp: bool
    #: Tokens of one block; 0 for a section without a token axis, whose block is one whole.
    block_tokens: int = field(repr=False, compare=False)
    #: Name-free geometry, for doing a page's arithmetic once per shape.
    shape: Shape = field(repr=False, compare=False)

    def __init__(
        self,
        name: str,
        axes: Iterable[Axis],
        itemsize: int,
        *,
        offset: int = 0,
        strides: Iterable[int] | None = None,
        dtype: str = "",
        cp: bool = True,
    ) -> None:
        as_name(name, "section name")
        what = f"section {name!r}"
        axes = _axes(axes, what)
        itemsize, offset = as_int(itemsize, f"{what}: itemsize"), as_int(offset, f"{what}: offset")
        if not isinstance(dtype, str):
            raise TypeError(f"{what}: dtype must be a str label, got {brief(dtype)}")
        if not isinstance(cp, bool):
            raise TypeError(f"{what}: cp must be True or False, got {brief(cp)}")
        if itemsize <= 0 or offset < 0:
            raise GeometryError(f"{what}: itemsize must be positive and offset >= 0, got {itemsize} and {offset}")
        steps = _c_strides(axes, itemsize) if strides is None else _given_strides(strides, axes, what)
        put = object.__setattr__
        put(self, "name", name)
        put(self, "axes", axes)
        put(self, "itemsize", itemsize)
        put(self, "offset", offset)
        put(self, "strides", steps)
        put(self, "dtype", dtype)
        put(self, "cp", cp)
        ranges = tuple((a.name, a.start, a.stop) for a in axes)
        put(self, "block_tokens", next((axis.stop for axis in axes if axis.name == TOKEN), 0))
        put(self, "shape", (ranges, itemsize, offset, steps, dtype, cp))
        _prove_nested(self)

    @property
    def nbytes(self) -> int:
        """Bytes that the section holds; padding between its items is not counted.

        >>> Section("s", (Axis("row", 0, 3),), 2, strides=[8]).nbytes
        6
        """
        count = self.itemsize
        for axis in self.axes:
            count *= axis.size
        return count

    @property
    def end(self) -> int:
        """Offset just past the section's last byte, from the block's start: where the next section may begin.

        >>> Section("s", (Axis("row", 0, 3),), 2, offset=4, strides=[8]).end
        22
        """
        spans = (step * (axis.size - 1) for axis, step in zip(self.axes, self.strides, strict=True))
        return self.offset + sum(spans) + self.itemsize

    def runs(self) -> tuple[int, list[tuple[int, int]]]:
        """Contiguous runs of the section: their length in bytes and the (size, stride) loops that reach them all.

        >>> Section("s", (Axis("head", 0, 2), Axis("token", 0, 4)), 8, strides=[64, 8]).runs()
        (32, [(2, 64)])
        """
        length = self.itemsize
        loops: list[tuple[int, int]] = []
        for step, size in sorted((s, a.size) for a, s in zip(self.axes, self.strides, strict=True)):
            if size > 1 and step == length and not loops:
                length *= size
            elif size > 1:
                loops.append((size, step))
        return length, loops[::-1]


def _axes(axes: Any, what: str) -> tuple[Axis, ...]:
    if not is_many(axes):
        raise TypeError(f"{what}: axes must be a sequence of Axis, got {brief(axes)}")
    found: tuple[Axis, ...] = tuple(axes)
    for axis in found:
        if not isinstance(axis, Axis):
            raise TypeError(f"{what}: axes must be Axis objects, got {brief(axis)}")
    if len(found) > MAX_AXES:
        raise GeometryError(f"{what}: {len(found)} axes, at most {MAX_AXES} are supported")
    names = [axis.name for axis in found]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise GeometryError(f"{what}: axis {twice!r} is named twice")
    return found


def _c_strides(axes: tuple[Axis, ...], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for axis in reversed(axes):
        strides.append(step)
        step *= axis.size
    return tuple(reversed(strides))


def _given_strides(strides: Any, axes: tuple[Axis, ...], what: str) -> tuple[int, ...]:
    if not is_many(strides):
        raise TypeError(f"{what}: strides must be a sequence of ints (bytes), got {brief(strides)}")
    steps = tuple(as_int(s, f"{what}: strides[{i}]") for i, s in enumerate(strides))
    if len(steps) != len(axes):
        raise GeometryError(f"{what}: {len(steps)} strides for {len(axes)} axes")
    if any(step >= 2**64 for step in steps):
        raise GeometryError(f"{what}: a stride of {max(steps)} bytes is beyond 2**64")
    return steps


def _prove_nested(section: Section) -> None:
    """Every item lies outside every other: sorted by stride, each axis steps over all that lies inside it."""
    span = section.itemsize
    for step, axis in sorted(zip(section.strides, section.axes, strict=True), key=lambda pair: pair[0]):
        if step < 0 or (axis.size > 1 and step < span):
            raise GeometryError(
                f"section {section.name!r}: axis {axis.name!r} has a stride of {step} bytes, but one step of it "
                f"covers {span} bytes; strides are in bytes (not elements) and must not overlap"
            )
        span += step * (axis.size - 1)
    if section.offset + span > 2**64:
        raise GeometryError(f"section {section.name!r}: ends at byte {section.offset + span}, beyond 2**64")
