"""From an array to regions: how far each of its dimensions steps says what it is.

A cache ``[kv][block][head][token][byte]`` that lies in memory as it is written, the longest stride first::

    kv        steps over all blocks     outside a block: a region per index
    block                               what block ids count: its stride is the block_stride
    head      steps inside a block      an axis of the section, with its stride
    token     steps inside a block      the same
    byte                                the inside of an item, in bytes

               +---------------------------------------+---------------------------------------+--
    layer0.k   | block 0:  h0 t0 t1 ..   h1 t0 t1 ..   | block 1:  h0 t0 t1 ..   h1 t0 t1 ..   |
               +---------------------------------------+---------------------------------------+--
    layer0.v   | block 0:  h0 t0 t1 ..   h1 t0 t1 ..   | block 1:  h0 t0 t1 ..   h1 t0 t1 ..   |
               +---------------------------------------+---------------------------------------+--

Where kv steps less than block (``[block][kv]...`` in memory, in whatever order the view names them), K and V both lie
inside a block and are two sections of one region. A dimension outside the blocks that has no names of its own cuts
its section into parts: a region per index, each with its own range of that axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from nixldesc._check import as_int, as_names, brief, is_many
from nixldesc.errors import GeometryError
from nixldesc.memory.region import Region
from nixldesc.memory.sections import BYTE, TOKEN, Axis, Section

if TYPE_CHECKING:
    from nixldesc.memory.views import View

__all__ = ["BLOCK", "array_regions"]

#: The dimension that block ids count.
BLOCK = "block"

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def array_regions(
    name: str,
    array: Any,
    axes: str | Iterable[str],
    *,
    ranges: Mapping[str, Sequence[int]] = _NOTHING,
    names: Mapping[str, Iterable[str]] = _NOTHING,
    groups: Iterable[int] | None = None,
    mem_type: str | None = None,
    device_id: int | None = None,
    base_addr: int | None = None,
    cp: bool = True,
) -> tuple[Region, ...]:
    """Return the regions of an array: a cache, a state pool or a weight as it lies in memory, no byte counted by hand.

    `array` has ``__array_interface__`` or ``__cuda_array_interface__`` (which does not say a device: give `device_id`),
    or is a tensor (``data_ptr()``, ``shape``, ``stride()``, ``element_size()``, ``dtype``, ``device``). Its strides
    count, so a permuted, sliced or padded view is described as it lies. `mem_type` and `device_id` come from it (GPU:
    VRAM and its index; host: DRAM, 0) unless given; `base_addr` stands for its pointer, which a meta tensor has not.

    `axes` names its dimensions, ``"block head token byte"`` or a sequence. ``"block"`` is counted by block ids (none:
    the array is one block, a weight), ``"token"`` counts the tokens of a block, ``"byte"`` is the contiguous inside of
    an item, counted in bytes as the ready-made pages do; any other is an axis in elements. `ranges` says which global
    indices a dimension holds, ``{"head": (2, 4)}``, by default all from 0. `names` makes the indices of a dimension
    sections of their own: ``{"kv": ("k", "v")}`` gives ``name.k`` and ``name.v``; several such dimensions stand in
    the names in the order of `names`, and an empty `name` is left out with its dot.

    A dimension that steps further than a block becomes a region per index, of its own section if in `names`, else of a
    part. Regions are named like their section, with the range that begins above 0 and the index outside the blocks
    (``w13[expert=3]``), so that several arrays may hold parts of one section. `groups` as in :class:`Region`, `cp` as
    in :class:`Section`; the dtype label is the array's.

    Raises :class:`GeometryError` for dimensions, ranges and names that do not fit the array, for strides that are
    zero, negative or overlap, tokens outside blocks, and an address or a device that nobody says; :class:`TypeError`
    for what is no array.

    >>> import numpy as np
    >>> cache = np.zeros((2, 100, 4, 16, 64), np.float16)  # K and V apart, 4 of the model's 8 heads
    >>> k, v = array_regions("layer0", cache, "kv block head token byte", ranges={"head": (4, 8)},
    ...                      names={"kv": ("k", "v")})
    >>> k.name, k.block_len, k.num_blocks, k.mem_type, v.base_addr - k.base_addr
    ('layer0.k[head=4:8]', 8192, 100, 'DRAM', 819200)
    >>> [(axis.name, axis.start, axis.stop) for axis in k.sections[0].axes]
    [('head', 4, 8), ('token', 0, 16), ('byte', 0, 128)]
    """
    from nixldesc.memory.views import read_view  # here, not above: for those who have arrays

    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {brief(name)}")
    what = f"array {name!r}"
    view = read_view(what, array, mem_type=mem_type, device_id=device_id, base_addr=base_addr)
    dimensions = _dimensions(what, view, axes, ranges, names)
    itemsize = 1 if any(dim.name == BYTE for dim in dimensions) else view.itemsize
    _prove_apart(what, dimensions, itemsize, view.itemsize)
    named = tuple(dim for key in names for dim in dimensions if dim.name == key)
    _prove_names(what, name, named)

    in_memory = sorted(dimensions, key=lambda dim: -dim.step)
    block = next((dim for dim in in_memory if dim.name == BLOCK), _Dimension(BLOCK, 1, 0, 0, ()))
    outside = [dim for dim in in_memory if dim.size > 1 and block.size > 1 and dim.step > block.step]
    _prove_tokens(what, outside, block, view.itemsize)
    page = _Page(name, [dim for dim in in_memory if dim is not block], outside, named, itemsize, view.dtype, cp)
    regions = []
    for offset, index in _places(outside):
        sections = page.sections(index)
        regions.append(
            Region(
                page.region_name(index, sections),
                view.base_addr + offset,
                max(section.end for section in sections),
                block.size,
                block_stride=block.step if block.size > 1 else None,
                groups=groups,
                mem_type=view.mem_type,
                device_id=view.device_id,
                sections=sections,
            )
        )
    return tuple(regions)


@dataclass(frozen=True, slots=True, eq=False)
class _Dimension:
    """One dimension: how many indices, bytes from one to the next, the first's global index, names of its sections."""

    name: str
    size: int
    step: int
    start: int
    labels: tuple[str, ...]

    def strides(self, itemsize: int) -> str:
        """Return the words of every error about strides."""
        elements = f"{self.step // itemsize}" if self.step % itemsize == 0 else f"{self.step / itemsize:.2f}"
        return f"dimension {self.name!r} has a stride of {elements} elements ({self.step} bytes)"


@dataclass(frozen=True, slots=True, eq=False)
class _Page:
    """The sections of one region's blocks: what is left of the array when an index outside the blocks is chosen."""

    name: str
    dimensions: list[_Dimension]
    outside: list[_Dimension]
    named: tuple[_Dimension, ...]
    itemsize: int
    dtype: str
    cp: bool

    def sections(self, index: dict[str, int]) -> list[Section]:
        """Return a section for every combination of the named dimensions inside a block, in memory order."""
        axes, strides, step = [], [], self.itemsize
        for dim in reversed(self.dimensions):
            if dim.labels:
                continue
            start = dim.start + index.get(dim.name, 0)
            axes.append(Axis(dim.name, start, start + 1 if dim in self.outside else start + dim.size))
            # Where there is one index its stride does not matter; in C order it is the same whatever the array says.
            strides.append(step if axes[-1].size == 1 else dim.step)
            step = strides[-1] * axes[-1].size
        inside = [dim for dim in self.dimensions if dim.labels and dim not in self.outside]
        return [
            Section(
                _joined(self.name, self.named, {**index, **inner}),
                axes[::-1],
                self.itemsize,
                offset=offset,
                strides=strides[::-1],
                dtype=self.dtype,
                cp=self.cp,
            )
            for offset, inner in _places(inside)
        ]

    def region_name(self, index: dict[str, int], sections: list[Section]) -> str:
        """Return the section's name, or what several have in common, and the box of a part: ``layer0[head=2:4]``.

        So the regions of one section have names of their own in a layout, whichever call made them.
        """
        name = sections[0].name
        if len(sections) > 1:
            chosen = tuple(dim for dim in self.named if dim in self.outside)
            name = _joined(self.name, chosen, index) if self.name else f"{name}..{sections[-1].name}"
        for axis in sections[0].axes:
            if axis.start > 0 or axis.name in index:
                name += f"[{axis.name}={axis.start}" + (f":{axis.stop}]" if axis.size > 1 else "]")
        return name


def _places(dimensions: Sequence[_Dimension]) -> Iterator[tuple[int, dict[str, int]]]:
    """Every combination of the dimensions' indices, in memory order: its offset in bytes, and the index on each."""
    for index in product(*(range(dim.size) for dim in dimensions)):
        offset = sum(i * dim.step for i, dim in zip(index, dimensions, strict=True))
        yield offset, {dim.name: i for i, dim in zip(index, dimensions, strict=True)}


def _joined(name: str, named: Sequence[_Dimension], index: Mapping[str, int]) -> str:
    return ".".join(([name] if name else []) + [dim.labels[index[dim.name]] for dim in named])


def _spelled(axes: str | Iterable[str]) -> tuple[str, ...]:
    return as_names(axes.split() if isinstance(axes, str) else axes, "axes")


def _dimensions(
    what: str,
    view: View,
    axes: str | Iterable[str],
    ranges: Mapping[str, Sequence[int]],
    names: Mapping[str, Iterable[str]],
) -> list[_Dimension]:
    """Return the array's dimensions as the caller names them; "byte" is in bytes."""
    spelled = _spelled(axes)
    if len(spelled) != len(view.shape):
        raise GeometryError(
            f"{what}: {len(spelled)} axes {spelled}, but the array has {len(view.shape)} dimensions, shape {view.shape}"
        )
    twice = [axis for axis in spelled if spelled.count(axis) > 1]
    if twice:
        raise GeometryError(f"{what}: axes names {twice[0]!r} twice: {spelled}")
    for word, given in (("ranges", ranges), ("names", names)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{what}: {word} must be a mapping by dimension, got {brief(given)}")
        for key in given:
            if key not in spelled:
                raise GeometryError(f"{what}: {word} speaks of dimension {key!r}, but axes are {spelled}")
    found = []
    for axis, size, step in zip(spelled, view.shape, view.steps, strict=True):
        if size <= 0:
            raise GeometryError(f"{what}: dimension {axis!r} is empty, the array's shape is {view.shape}")
        labels = _labels(what, axis, size, names[axis]) if axis in names else ()
        start = _start(what, axis, size, ranges[axis], bool(labels)) if axis in ranges else 0
        dim = _Dimension(axis, size, step, start, labels)
        found.append(_in_bytes(what, dim, view.itemsize) if axis == BYTE else dim)
    return found


def _labels(what: str, axis: str, size: int, given: Iterable[str]) -> tuple[str, ...]:
    labels = as_names(given, f"{what}: names[{axis!r}]")
    if axis in (BLOCK, TOKEN, BYTE):
        raise GeometryError(f"{what}: the indices of dimension {axis!r} cannot be sections of their own")
    if len(labels) != size:
        raise GeometryError(f"{what}: names[{axis!r}] has {len(labels)} names for the {size} indices of the dimension")
    return labels


def _start(what: str, axis: str, size: int, given: Sequence[int], named: bool) -> int:
    said = f"{what}: ranges[{axis!r}]"
    if not is_many(given) or len(given) != 2:
        raise TypeError(f"{said} must be (start, stop), got {brief(given)}")
    start, stop = as_int(given[0], said), as_int(given[1], said)
    if stop - start != size:
        raise GeometryError(
            f"{said} is [{start}, {stop}), {stop - start} indices, but the dimension has {size}; expected the global "
            f"indices that this array holds"
        )
    if start < 0:
        raise GeometryError(f"{said} is [{start}, {stop}); global indices begin at 0")
    if start and (named or axis in (BLOCK, TOKEN, BYTE)):
        why = "its indices are sections of their own" if named else f"{axis!r} counts from 0 on every rank"
        raise GeometryError(f"{said} is [{start}, {stop}), but {why}")
    return start


def _in_bytes(what: str, dim: _Dimension, itemsize: int) -> _Dimension:
    if dim.size > 1 and dim.step != itemsize:
        raise GeometryError(
            f"{what}: {dim.strides(itemsize)}, but it is the inside of an item and must be the last dimension, "
            f"contiguous: a stride of 1 element ({itemsize} bytes)"
        )
    return _Dimension(dim.name, dim.size * itemsize, 1, 0, ())


def _prove_apart(what: str, dimensions: list[_Dimension], item: int, element: int) -> None:
    """No two items share a byte: by stride, the least first, each dimension steps over all that lies inside it."""
    span, inner = item, "an item"
    for dim in sorted((dim for dim in dimensions if dim.size > 1), key=lambda dim: dim.step):
        if dim.step <= 0:
            why = "steps backwards" if dim.step else f"is broadcast: its {dim.size} indices are the same bytes"
            raise GeometryError(f"{what}: {dim.strides(element)}: it {why}; give the array that has the memory")
        if dim.step < span:
            raise GeometryError(
                f"{what}: {dim.strides(element)}, but {inner} inside it covers {span} bytes: its indices overlap"
            )
        span += dim.step * (dim.size - 1)
        inner = f"dimension {dim.name!r}"


def _prove_names(what: str, name: str, named: Sequence[_Dimension]) -> None:
    if not name and not named:
        raise GeometryError(f"{what}: name may be empty only where names gives the sections names of their own")
    seen = set()
    for _, index in _places(named):
        section = _joined(name, named, index)
        if section in seen:
            raise GeometryError(f"{what}: names gives two sections the name {section!r}")
        seen.add(section)


def _prove_tokens(what: str, outside: list[_Dimension], block: _Dimension, element: int) -> None:
    for dim in outside:
        if dim.name == TOKEN:
            raise GeometryError(
                f"{what}: {dim.strides(element)}, further than {block.strides(element)}, but tokens lie inside a "
                f"block; are two of the axes exchanged?"
            )
