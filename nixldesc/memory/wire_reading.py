"""A stranger's message, read: types, keys and sizes are checked here, geometry where a Layout is made.

The form is drawn in :mod:`nixldesc.memory.wire`. Few bytes may stand for much (numbered names, shared pages, one value
for a whole column), so what they stand for is bounded before it is memory.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, as_name, brief
from nixldesc.errors import GeometryError
from nixldesc.kernels import _kernels
from nixldesc.memory.columns import ROWS, WHERE, Columns, Pages
from nixldesc.memory.region import total_blocks
from nixldesc.memory.wire import VERSION, Place
from nixldesc.memory.wire_checks import as_list, integers, names_of, prove_keys, prove_mem_types
from nixldesc.memory.wire_pages import read_pages
from nixldesc.memory.wire_segments import read_segments

__all__ = ["layout_from_dict", "read_where", "shape_of", "version_of"]

#: More lists of blocks than the regions of any rank take.
MAX_TAKEN_LISTS = 2**17

_COUNTS = ("num_blocks", "sub_blocks", "runs")
_BYTES = ("base_addrs", "block_lens", "block_strides", "device_ids", "sub_strides", "run_strides")
#: The row of each column, and what a column is that is left out: a number, or like another column.
_ROW = {
    **{"base_addrs": 0, "num_blocks": 1, "device_ids": 2, "block_lens": 3, "block_strides": 4, "sub_blocks": 5},
    **{"sub_strides": 6, "runs": 7, "run_strides": 8},
}
_READ: tuple[tuple[str, int | str | None], ...] = (
    ("block_lens", None), ("base_addrs", None), ("num_blocks", None), ("block_strides", "block_lens"),
    ("device_ids", 0), ("sub_blocks", 1), ("runs", 1), ("run_strides", "block_lens"), ("sub_strides", "block_lens"),
)  # fmt: skip
_KEYS = (
    *("version", "cp", "names", *_BYTES, *_COUNTS, "mem_types", "groups", "group_of", "pages", "page_of"),
    *("section_names", "segments"),
)


def _bound(key: str) -> int:
    """What the numbers of a column are less than."""
    return 2**31 if key in _COUNTS else 2**64


#: The least and the largest number of each column.
Bounds = Mapping[str, tuple[int, int]]


def version_of(d: Any) -> int:
    """Return the version of a message, one that is understood."""
    if not isinstance(d, dict):
        raise GeometryError(f"layout must be a dict, got {brief(d)}")
    version = dict.get(d, "version")
    if type(version) is int and version in (1, VERSION):
        return version
    if version is None and not dict.__contains__(d, "version"):
        got = "has no version"
    else:
        got = f"version {brief(version).split(' (')[0]} is not understood"
    raise GeometryError(f"layout: {got}, this library reads versions {VERSION} and 1")


def layout_from_dict(d: dict[str, Any]) -> tuple[Columns, tuple[str, ...], Pages, Place, Bounds]:
    """Return columns, names, pages, place and the least and largest of each column; no geometry is proven yet."""
    if type(d) is not dict:
        d = dict(dict.items(d))  # without what a class of its own may say of it, as in `as_list`
    prove_keys(d, _KEYS, ("names", "base_addrs", "block_lens", "num_blocks"), "layout")
    names = names_of(d["names"], "layout: names")
    size = len(names)
    if not size:
        raise GeometryError("layout: the layout has no regions; at least one is expected")
    reader = _Columns(d, np.empty((len(ROWS), size), dtype=np.uint64))
    for key, default in _READ:
        reader.read(key, default)
    if not reader.bounds["block_lens"][0]:  # an opaque page is as long as its block, so this cannot wait
        empty = names[int(np.argmin(reader.numbers[_ROW["block_lens"]]))]
        raise GeometryError(f"region {empty!r}: block_len must be positive, got 0")
    pieces = read_segments(d["segments"], size) if "segments" in d else {}
    for region, rows in pieces.items():
        total = min(total_blocks(rows), 2**31)
        reader.numbers[:WHERE, region] = rows[0, 0], total, rows[0, 2]
    mems = reader.one_of("mem_types", "VRAM", as_name)
    prove_mem_types(mems)
    groups = reader.of("group_of", _read_groups(d["groups"]) if "groups" in d else [None], "groups")
    if max([len(taken or (None,)) for taken in set(groups)]) * size > MAX_TAKEN_LISTS and (
        sum([len(taken or (None,)) for taken in groups]) > MAX_TAKEN_LISTS
    ):
        raise GeometryError(f"layout: its regions take more than {MAX_TAKEN_LISTS} lists of blocks, counted together")
    plain = not pieces and "sub_blocks" not in d and "runs" not in d
    columns = Columns(reader.numbers, mems, groups, pieces, plain)
    pages = read_pages(d, reader.indices("page_of"), names, columns.block_lens)
    return columns, names, pages, _read_place(d.get("cp", [0, 1, None])), reader.bounds


#: Columns that say where a region's blocks are; all other keys are a layout's shape.
_WHERE = ("base_addrs", "num_blocks", "device_ids")
_READ_WHERE = tuple([(key, _ROW[key], _bound(key), default) for key, default in _READ if key in _WHERE])
#: Longer shapes are not remembered.
MAX_SHAPE = 2**16
#: Nor are those of more lists and dicts.
_MOST_LISTS = 2**10


def shape_of(d: Any) -> bytes | None:
    """Return a message without what says where its blocks are, as bytes; None where it is no plain data or odd.

    Equal bytes are equal messages, types included, of which any but the first need no second proof.
    """
    if type(d) is not dict or "base_addrs" not in d or "segments" in d:
        return None
    plain = d.copy()
    for key in _WHERE:
        plain.pop(key, None)
    if not _kernels.is_short(plain, MAX_SHAPE, _MOST_LISTS):
        return None
    try:
        # Version 2 of the form says nothing of which objects are one. Of subclasses it refuses to say anything.
        shape = marshal.dumps(plain, 2)
    except ValueError:
        return None
    return shape if len(shape) <= MAX_SHAPE else None


def read_where(d: dict[str, Any], like: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], dict[str, tuple[int, int]]]:
    """Return the numbers of a layout shaped as `like`, its blocks where `d` says, and the bounds of what was read."""
    numbers = like.copy()
    bounds: dict[str, tuple[int, int]] = {}
    for key, row, bound, default in _READ_WHERE:
        found = _kernels.read_numbers(d.get(key, default), numbers[row])
        bounds[key] = found if found and found[1] < bound else _Columns(d, numbers).read(key, default)
    return numbers, bounds


class _Columns:
    """A message's columns: each one value for all regions, or a list with an entry for each."""

    def __init__(self, d: dict[str, Any], numbers: NDArray[np.uint64]) -> None:
        self._d, self.numbers = d, numbers
        self._size: int = numbers.shape[1]
        self.bounds: dict[str, tuple[int, int]] = {}

    def read(self, key: str, default: int | str | None) -> tuple[int, int]:
        """Read a column of numbers into its row, return its bounds; `default`: a number, or what column it is like."""
        self.bounds[key] = found = self._read(key, default)
        return found

    def _read(self, key: str, default: int | str | None) -> tuple[int, int]:
        row = self.numbers[_ROW[key]]
        if key not in self._d:
            if default is None:
                raise GeometryError(f"layout: key {key!r} is missing")
            if type(default) is str:
                row[:] = self.numbers[_ROW[default]]
                return self.bounds[default]
            row.fill(default)
            return default, default  # type: ignore[return-value]
        value, bound = self._d[key], _bound(key)
        found = _kernels.read_numbers(value, row)
        if found and found[1] < bound:
            return found
        # What is odd there is looked at once more, by what has words for it.
        items = [value] if type(value) is int else integers(value, f"layout: {key}")
        if type(value) is not int and len(items) != self._size:
            raise GeometryError(f"layout: {len(items)} entries in {key}, but {self._size} in names")
        low, high = min(items), max(items)
        if low < 0 or high >= bound:
            raise self._beyond(key, low if low < 0 else high, bound)
        row[:] = np.array(items, dtype=np.uint64)
        return low, high

    def _beyond(self, key: str, value: int, bound: int) -> GeometryError:
        if bound == 2**31 and value >= bound:
            return GeometryError(
                f"layout: {key} is {brief(value)}: the layout has so many descriptors or more, and int32 ids can name "
                f"{2**31 - 1}"
            )
        return GeometryError(f"layout: {key} must be in 0 to {bound - 1}, got {brief(value)}")

    def of(self, key: str, found: Sequence[Any], what: str) -> tuple[Any, ...]:
        """Return for each region the one of `found` that column `key` names, the first where the key is left out."""
        value = self._d.get(key, 0)
        if type(value) is int and 0 <= value < len(found):
            return (found[value],) * self._size
        numbers = self.indices(key)
        if max(numbers) >= len(found):
            raise GeometryError(f"layout: {key} names entry {brief(max(numbers))} of {what}, which has {len(found)}")
        return tuple([found[number] for number in numbers])

    def indices(self, key: str) -> Sequence[int]:
        """Return small indices, 0 where the key is left out."""
        value = self._d.get(key, 0)
        if type(value) is int:
            value = (value,) * self._size
        items = integers(value, f"layout: {key}")
        if len(items) != self._size or min(items) < 0:
            raise GeometryError(f"layout: {key} must have {self._size} entries from 0, got {brief(value)}")
        return items

    def one_of(self, key: str, default: str, check: Any) -> tuple[Any, ...]:
        """Return one checked name per region."""
        value = self._d.get(key, default)
        if isinstance(value, str):
            return (check(value, f"layout: {key}"),) * self._size
        items = as_list(value, f"layout: {key}")
        if len(items) != self._size:
            raise GeometryError(f"layout: {len(items)} entries in {key}, but {self._size} in names")
        return tuple([check(item, f"layout: {key}[{i}]") for i, item in enumerate(items)])


def _read_place(value: Any) -> Place:
    items = as_list(value, "layout: cp")
    if len(items) != 3:
        raise GeometryError(f"layout: cp must be [rank, size, tokens], got {brief(value)}")
    rank, size = as_int(items[0], "layout: cp rank"), as_int(items[1], "layout: cp size")
    return rank, size, None if items[2] is None else as_int(items[2], "layout: cp tokens")


def _read_groups(value: Any) -> list[tuple[int, ...] | None]:
    found: list[tuple[int, ...] | None] = []
    for i, item in enumerate(as_list(value, "layout: groups")):
        groups = None if item is None else tuple(integers(item, f"layout: groups[{i}]"))
        if groups is not None and (
            len(set(groups)) != len(groups) or not groups or not 0 <= min(groups) <= max(groups) < 2**31
        ):
            raise GeometryError(f"layout: groups[{i}] must be distinct indices from 0, at least one, got {brief(item)}")
        found.append(groups)
    return found
