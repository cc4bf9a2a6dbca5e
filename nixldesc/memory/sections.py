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

An axis may be stored in parts: the index is the sum of each part's index times its unit. Scales of 8 tokens, swizzled
by 4 (``[t // 4][scale][t % 4]``), are ``Axis("token", 0, 2, unit=4), Axis("scale", 0, 3), Axis("token", 0, 4)``::

    byte   0   1   2   3   4   5   6   7   8   9  10  11 | 12  13 ...
          s0  s0  s0  s0  s1  s1  s1  s1  s2  s2  s2  s2 | s0  s0 ...
          t0  t1  t2  t3  t0  t1  t2  t3  t0  t1  t2  t3 | t4  t5 ...
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nixldesc._check import MAX_WORD, as_int, as_name, brief, is_many
from nixldesc._memory import remembered
from nixldesc.errors import GeometryError

__all__ = [
    "BYTE",
    "MAX_AXES",
    "MAX_RUNS",
    "MAX_WOVEN_RUNS",
    "TOKEN",
    "Axis",
    "Dim",
    "Geometry",
    "Section",
    "Shape",
    "renamed",
]

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


class Shape(NamedTuple):
    """A section without its name, in plain ints and strings: quick to hash, equal for equal geometry."""

    axes: tuple[tuple[str, int, int, int], ...]  # name, start, stop, unit
    itemsize: int
    offset: int
    strides: tuple[int, ...]
    dtype: str
    cp: bool


class Dim(NamedTuple):
    """One stored dimension: `size` steps of `unit` indices of its axis, `stride` bytes apart."""

    unit: int
    size: int
    stride: int


class Geometry(NamedTuple):
    """What a shape's numbers mean, worked out once per shape.

    `box`: for each axis, in order of appearance, its name and the global range of indices. `dims`: for each of them
    its stored dimensions, the largest unit first. `end`: bytes from the block's start to the end of the last item.
    `form`: the shape with every axis counted from 0, alike for all shares of one size.
    """

    box: tuple[tuple[str, int, int], ...]
    dims: tuple[tuple[Dim, ...], ...]
    end: int
    block_tokens: int
    runs: tuple[int, tuple[tuple[int, int], ...]]
    form: Shape


@dataclass(frozen=True, slots=True, repr=False)
class Axis:
    """One dimension of a section and the range of the global index that this rank holds.

    `start` and `stop` are indices, ``0 <= start < stop``, in steps of `unit` of them (1 but where an axis is stored in
    parts; see the module's header). The axis named ``"token"`` counts tokens inside a block and starts at 0; the axis
    named ``"byte"`` is the inside of an item and is whole on every rank.

    Raises :class:`GeometryError` for an empty or negative range, :class:`TypeError` for anything but ints.

    >>> Axis("head", 2, 4)
    Axis(name='head', start=2, stop=4)
    """

    name: str
    start: int
    stop: int
    unit: int = 1

    def __post_init__(self) -> None:
        as_name(self.name, "axis name", MAX_WORD)
        for key in ("start", "stop", "unit"):
            object.__setattr__(self, key, as_int(getattr(self, key), f"axis {self.name!r}: {key}"))
        if not 0 <= self.start < self.stop < 2**64:
            raise GeometryError(
                f"axis {self.name!r}: range [{self.start}, {self.stop}) is empty, negative or beyond 2**64; "
                f"expected 0 <= start < stop"
            )
        if not 0 < self.unit < 2**64:
            raise GeometryError(f"axis {self.name!r}: unit must be a positive number of indices, got {self.unit}")
        if self.name == TOKEN and self.start != 0:
            raise GeometryError(f"axis 'token' counts tokens inside a block and starts at 0, got start {self.start}")

    def __repr__(self) -> str:
        unit = f", unit={self.unit}" if self.unit != 1 else ""
        return f"Axis(name={self.name!r}, start={self.start}, stop={self.stop}{unit})"

    @property
    def size(self) -> int:
        """How many steps of the index this rank holds.

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
    every context-parallel rank holds whole. A section without axes is one item: `itemsize` opaque bytes. Axes of one
    name are one axis stored in parts: one of them has unit 1, the unit of each other is the product of the sizes of
    those inside it, inner parts start at 0.

    Raises :class:`GeometryError` for strides that do not nest (bytes of one item inside another), for axes of one name
    that are not parts of one, and for sizes that leave 64 bits; :class:`TypeError` for wrong types.

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
    #: Name-free geometry, for doing a page's arithmetic once per shape, and what follows from it.
    shape: Shape = field(repr=False, compare=False)
    geometry: Geometry = field(repr=False, compare=False)

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
        if len(dtype) > MAX_WORD:
            raise GeometryError(f"{what}: dtype is a label of at most {MAX_WORD} characters, got {len(dtype)}")
        if not isinstance(cp, bool):
            raise TypeError(f"{what}: cp must be True or False, got {brief(cp)}")
        steps = _c_strides(axes, itemsize) if strides is None else _given_strides(strides, axes, what)
        shape = Shape(tuple([(a.name, a.start, a.stop, a.unit) for a in axes]), itemsize, offset, steps, dtype, cp)
        try:
            geometry = _geometry(shape)
        except GeometryError as error:
            raise GeometryError(f"{what}: {error}") from None
        _fill(self, name, axes, shape, geometry)

    @property
    def block_tokens(self) -> int:
        """Tokens of one block; 0 for a section without a token axis, whose block is one whole.

        >>> Section("k", (Axis("token", 0, 4, unit=4), Axis("scale", 0, 3), Axis("token", 0, 4)), 1).block_tokens
        16
        """
        return self.geometry.block_tokens

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
        return self.geometry.end

    def runs(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Contiguous runs of the section: their length in bytes and the (size, stride) loops that reach them all.

        >>> Section("s", (Axis("head", 0, 2), Axis("token", 0, 4)), 8, strides=[64, 8]).runs()
        (32, ((2, 64),))
        """
        return self.geometry.runs


def _fill(section: Section, name: str, axes: tuple[Axis, ...], shape: Shape, geometry: Geometry) -> None:
    put = object.__setattr__
    put(section, "name", name)
    put(section, "axes", axes)
    put(section, "itemsize", shape.itemsize)
    put(section, "offset", shape.offset)
    put(section, "strides", shape.strides)
    put(section, "dtype", shape.dtype)
    put(section, "cp", shape.cp)
    put(section, "shape", shape)
    put(section, "geometry", geometry)


def renamed(section: Section, name: str) -> Section:
    """Return a proven section under another name: layers of one shape differ in nothing else."""
    if name == section.name:
        return section
    other = object.__new__(Section)
    _fill(other, name, section.axes, section.shape, section.geometry)
    return other


def _axes(axes: Any, what: str) -> tuple[Axis, ...]:
    if not is_many(axes):
        raise TypeError(f"{what}: axes must be a sequence of Axis, got {brief(axes)}")
    found: tuple[Axis, ...] = tuple(axes)
    for axis in found:
        if not isinstance(axis, Axis):
            raise TypeError(f"{what}: axes must be Axis objects, got {brief(axis)}")
    if len(found) > MAX_AXES:
        raise GeometryError(f"{what}: {len(found)} axes, at most {MAX_AXES} are supported")
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


@remembered(4096)
def _geometry(shape: Shape) -> Geometry:
    """Prove a shape and return what follows from it; GeometryError without the section's name."""
    if shape.itemsize <= 0 or shape.offset < 0:
        raise GeometryError(f"itemsize must be positive and offset >= 0, got {shape.itemsize} and {shape.offset}")
    end = _prove_nested(shape)
    parts: dict[str, list[tuple[int, int, Dim]]] = {}
    for (name, start, stop, unit), stride in zip(shape.axes, shape.strides, strict=True):
        parts.setdefault(name, []).append((start, stop, Dim(unit, stop - start, stride)))
    box, dims = [], []
    for name, found in parts.items():
        found.sort(key=lambda part: -part[2].unit)
        _prove_parts(name, found)
        (start, stop, (unit, *_)), *_ = found
        if stop * unit >= 2**64:
            raise GeometryError(f"axis {name!r} reaches index {stop * unit}, beyond 2**64")
        box.append((name, start * unit, stop * unit))
        dims.append(tuple([dim for _, _, dim in found]))
    tokens = next((stop for name, _, stop in box if name == TOKEN), 0)
    form = shape._replace(axes=tuple([(name, 0, stop - start, unit) for name, start, stop, unit in shape.axes]))
    return Geometry(tuple(box), tuple(dims), end, tokens, _runs(shape), form)


def _prove_parts(name: str, parts: list[tuple[int, int, Dim]]) -> None:
    """Parts of one axis, the largest unit first: each spans exactly those inside it, and only the outermost starts."""
    inside = 1
    for place, (start, _, dim) in enumerate(reversed(parts)):
        if dim.unit != inside:
            if len(parts) == 1:
                raise GeometryError(f"axis {name!r} has one part, whose unit must be 1, got unit {dim.unit}")
            if dim.unit == 1:
                raise GeometryError(f"axis {name!r} is named twice; parts of one axis have different units")
            raise GeometryError(
                f"axis {name!r} is stored in parts: the unit of one is {dim.unit}, but those inside it span {inside} "
                f"indices"
            )
        if start and place < len(parts) - 1:
            raise GeometryError(
                f"axis {name!r} is stored in parts: the part of unit {dim.unit} starts at {start}; only the outermost "
                f"part says where the rank's range begins, inner ones start at 0"
            )
        inside = dim.unit * dim.size


def _prove_nested(shape: Shape) -> int:
    """Every item lies outside every other: sorted by stride, each axis steps over all that lies inside it.

    Returns the end of the last item, in bytes from the block's start.
    """
    span = shape.itemsize
    for step, (name, start, stop, _) in sorted(zip(shape.strides, shape.axes, strict=True), key=lambda pair: pair[0]):
        if step < 0 or (stop - start > 1 and step < span):
            raise GeometryError(
                f"axis {name!r} has a stride of {step} bytes, but one step of it covers {span} bytes; strides are in "
                f"bytes (not elements) and must not overlap"
            )
        span += step * (stop - start - 1)
    if shape.offset + span > 2**64:
        raise GeometryError(f"ends at byte {shape.offset + span}, beyond 2**64")
    return shape.offset + span


def _runs(shape: Shape) -> tuple[int, tuple[tuple[int, int], ...]]:
    length = shape.itemsize
    loops: list[tuple[int, int]] = []
    for step, (_, start, stop, _) in sorted(zip(shape.strides, shape.axes, strict=True)):
        size = stop - start
        if size > 1 and step == length and not loops:
            length *= size
        elif size > 1:
            loops.append((size, step))
    return length, tuple(loops[::-1])
