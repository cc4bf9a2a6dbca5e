"""A layout as plain data: what two workers send each other before they trust each other.

Version 2, columns: an entry per region, or one value where all are equal; what has its default value is left out::

    {"version": 2, "names": ["layer0", "layer1"], "base_addrs": [4096, 413696], "block_lens": 4096, "num_blocks": 100,
     "groups": [[0]], "group_of": 0,
     "pages": [[{"itemsize": 1, "axes": [["head", 0, 2], ["token", 0, 16], ["byte", 0, 128]]}]], "page_of": 0}

`names` and `section_names` are lists whose entries are a name, or ``[prefix, first, count, suffix]`` for ``count``
names that are numbered from ``first`` on. A section is named like its region, or as `section_names` says: ``"+.k"`` is
the region's name and ``.k``, ``"=name"`` another name. Segments are columns too, keyed by the region's number
(:mod:`nixldesc.memory.wire_segments`). Version 1, an object per region, is still read
(:mod:`nixldesc.memory.wire_version_1`).

Everything that comes in is a stranger's word: types, keys and sizes are checked here, geometry where a Layout is made.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import MAX_NAME, MAX_WORD, as_int, as_name, brief, few
from nixldesc.errors import GeometryError
from nixldesc.memory.columns import ROWS, WHERE, Columns, Page, Pages
from nixldesc.memory.region import total_blocks
from nixldesc.memory.sections import MAX_AXES, Axis, Section
from nixldesc.memory.wire_segments import read_segments, segments_to_dict

__all__ = ["VERSION", "layout_from_dict", "layout_to_dict", "read_where", "shape_of", "version_of"]

VERSION = 2
#: More than any rank has. Numbered names and shared pages are few bytes, so what they stand for is bounded here, before
#: it is memory: regions, their sections, the lists of blocks that they take, and the bytes of all names.
MAX_REGIONS = 3 * 2**14
MAX_SECTIONS = 3 * 2**14
MAX_TAKEN_LISTS = 2**17
MAX_NAME_BYTES = 2**23
#: Distinct pages, their sections and the axes of these: each is proved and planned by itself, and layers share pages.
MAX_PAGE_ITEMS = 3 * 2**12
#: Pages of more sections are not kept for the next message.
MAX_KEPT_SECTIONS = 16

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
_SECTION_KEYS = ("axes", "itemsize", "offset", "strides", "dtype", "cp")
#: The page of a region without sections: one opaque section of the region's name and its block_len.
_OPAQUE = "opaque"
#: What a section of a page is called until its region gives it a name.
_NAMELESS = "+"

Place = tuple[int, int, "int | None"]
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


# ------------------------------------------------------------------------------------------------------- outwards


def layout_to_dict(columns: Columns, names: Sequence[str], pages: Pages, place: Place) -> dict[str, Any]:
    """Return the version 2 form; see the module's header."""
    d: dict[str, Any] = {"version": VERSION}
    if place != (0, 1, None):
        d["cp"] = list(place)
    d["names"] = _numbered(names)
    d["base_addrs"] = columns.base_addrs.tolist()
    d["block_lens"] = _shared(columns.block_lens)
    d["num_blocks"] = _shared(columns.num_blocks)
    for key, column, default in (
        ("block_strides", columns.block_strides, columns.block_lens),
        ("device_ids", columns.device_ids, 0),
        ("sub_blocks", columns.sub_blocks, 1),
        ("sub_strides", columns.sub_strides, columns.block_lens),
        ("runs", columns.runs, 1),
        ("run_strides", columns.run_strides, columns.block_lens),
    ):
        if (column != default).any():
            d[key] = _shared(column)
    if set(columns.mem_types) != {"VRAM"}:
        d["mem_types"] = _one_of_all(columns.mem_types)
    groups = list(dict.fromkeys(columns.groups))
    if groups != [None]:
        d["groups"] = [None if group is None else list(group) for group in groups]
        d["group_of"] = _one_of_all([groups.index(group) for group in columns.groups])
    if columns.pieces:
        d["segments"] = segments_to_dict(columns.pieces)
    _add_pages(d, columns, names, pages)
    return d


def _add_pages(d: dict[str, Any], columns: Columns, names: Sequence[str], pages: Pages) -> None:
    users: dict[int, list[int]] = {}
    for region, number in enumerate(pages.of):
        users.setdefault(number, []).append(region)
    kinds = {number: _page_to_dict(columns, names, pages, number, found) for number, found in users.items()}
    told: list[Any] = []
    place: dict[int, int] = {}
    words: dict[str, int] = {}  # pages by what is said of them, for thousands of them may differ
    for number, kind in kinds.items():
        place[number] = words.setdefault(repr(kind), len(told))
        if place[number] == len(told):
            told.append(kind)
    if told == [_OPAQUE]:
        return
    of = [place[number] for number in pages.of]
    d["pages"], d["page_of"] = told, _one_of_all(of)
    tails = [
        () if told[number] == _OPAQUE else tuple([_tail(n, region) for n in named])
        for region, named, number in zip(names, pages.names, of, strict=True)
    ]
    if all(tail == "+" for named in tails for tail in named) and max(map(len, tails)) <= 1:
        return
    by_page: dict[int, tuple[str, ...]] = {}
    alike = all(by_page.setdefault(number, named) == named for number, named in zip(of, tails, strict=True))
    if alike and all(tail.startswith("+") for named in tails for tail in named):
        d["section_names"] = {"pages": [list(by_page[number]) for number in range(len(told))]}
    else:
        d["section_names"] = {"regions": _numbered([tail for named in tails for tail in named])}


def _tail(name: str, region: str) -> str:
    return "+" + name[len(region) :] if name.startswith(region) else "=" + name


def _page_to_dict(columns: Columns, names: Sequence[str], pages: Pages, number: int, users: Sequence[int]) -> Any:
    page = pages.kinds[number]
    plain = len(page) == 1 and page[0].shape[0:1] + page[0].shape[2:] == ((), 0, (), "", True)
    if plain and all(pages.names[i] == (names[i],) and columns.block_lens[i] == page[0].itemsize for i in users):
        return _OPAQUE
    return [_section_to_dict(section) for section in page]


def _section_to_dict(section: Section) -> dict[str, Any]:
    axes = [[a.name, a.start, a.stop] if a.unit == 1 else [a.name, a.start, a.stop, a.unit] for a in section.axes]
    plain: dict[str, Any] = {"axes": axes, "itemsize": section.itemsize}
    default = Section(section.name, section.axes, section.itemsize)
    if section.strides != default.strides:
        plain["strides"] = list(section.strides)
    for key in ("offset", "dtype", "cp"):
        if getattr(section, key) != getattr(default, key):
            plain[key] = getattr(section, key)
    return plain


def _shared(column: NDArray[Any]) -> Any:
    """Return one number where all are equal, else all of them."""
    return int(column[0]) if (column == column[0]).all() else column.tolist()


def _one_of_all(items: Sequence[Any]) -> Any:
    return items[0] if all(item == items[0] for item in items) else list(items)


_NUMBER = re.compile(r"\d+")


def _numbered(names: Sequence[str]) -> list[Any]:
    """Return names with stretches that only count on as ``[prefix, first, count, suffix]``."""
    found: list[Any] = []
    for name in names:
        last = found[-1] if found else None
        if type(last) is list and name == f"{last[0]}{last[1] + last[2]}{last[3]}":
            last[2] += 1
            continue
        if type(last) is str:
            joined = _joined(last, name)
            if joined:
                found[-1] = joined
                continue
        found.append(name)
    return found


def _joined(first: str, second: str) -> list[Any] | None:
    """Return two names as a counted stretch, if the second is the first with one number higher by one."""
    for match in _NUMBER.finditer(first):
        digits = match.group()
        if len(digits) < 10 and str(int(digits)) == digits:
            prefix, suffix = first[: match.start()], first[match.end() :]
            if second == f"{prefix}{int(digits) + 1}{suffix}":
                return [prefix, int(digits), 2, suffix]
    return None


# -------------------------------------------------------------------------------------------------------- inwards


def layout_from_dict(d: dict[str, Any]) -> tuple[Columns, tuple[str, ...], Pages, Place, Bounds]:
    """Return columns, names, pages, place and the least and largest of each column; no geometry is proven yet."""
    if type(d) is not dict:
        d = dict(dict.items(d))  # without what a class of its own may say of it, as in `_list`
    odd = [key for key in d if key not in _KEYS]
    if odd:
        raise GeometryError(f"layout: unknown key {brief(odd[0])}; known keys are {few(_KEYS, len(_KEYS))}")
    for key in ("names", "base_addrs", "block_lens", "num_blocks"):
        if key not in d:
            raise GeometryError(f"layout: key {key!r} is missing")
    names = _read_names(d["names"], "layout: names")
    size = len(names)
    if not size:
        raise GeometryError("layout: the layout has no regions; at least one is expected")
    reader = _Columns(d, size)
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
    groups = reader.of("group_of", _read_groups(d["groups"]) if "groups" in d else [None], "groups")
    if max([len(taken or (None,)) for taken in set(groups)]) * size > MAX_TAKEN_LISTS and (
        sum([len(taken or (None,)) for taken in groups]) > MAX_TAKEN_LISTS
    ):
        raise GeometryError(f"layout: its regions take more than {MAX_TAKEN_LISTS} lists of blocks, counted together")
    plain = not pieces and "sub_blocks" not in d and "runs" not in d
    columns = Columns(reader.numbers, mems, groups, pieces, plain)
    pages = _read_pages(d, reader, names, columns.block_lens)
    return columns, names, pages, _read_place(d.get("cp", [0, 1, None])), reader.bounds


#: Columns that say where a region's blocks are; all other keys are a layout's shape.
_WHERE = frozenset(("base_addrs", "num_blocks", "device_ids"))
#: Longer shapes are not remembered.
MAX_SHAPE = 2**16
#: Nor are those of more lists and dicts.
_MOST_LISTS = 2**10


def shape_of(d: Any) -> bytes | None:
    """Return a message without what says where its blocks are, as bytes; None where it is no plain data or odd.

    Equal bytes are equal messages, types included, of which any but the first need no second proof.
    """
    if type(d) is not dict or not _WHERE & d.keys() or "segments" in d:
        return None
    if not _is_short([value for key, value in d.items() if key not in _WHERE]):
        return None
    try:
        # Version 2 of the form says nothing of which objects are one. Of subclasses it refuses to say anything.
        shape = marshal.dumps({key: value for key, value in d.items() if key not in _WHERE}, 2)
    except ValueError:
        return None
    return shape if len(shape) <= MAX_SHAPE else None


def _is_short(items: Any) -> bool:
    """Whether plain data is little in all: lists that hold one list many times are long though they are small."""
    left, room, lists = [items], MAX_SHAPE, _MOST_LISTS
    while left:
        item = left.pop()
        entries = [*item, *item.values()] if isinstance(item, dict) else item
        room, lists = room - len(entries), lists - 1
        if room < 0 or lists < 0:
            return False
        numbers = [entry for entry in entries if type(entry) is int]
        if numbers and max(max(numbers), -min(numbers)) >> 64:
            return False
        room -= sum(map(len, [entry for entry in entries if isinstance(entry, (str, bytes, bytearray))]))
        left += [entry for entry in entries if isinstance(entry, (list, tuple, dict))]
    return room >= 0


def read_where(d: dict[str, Any], shape: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], Bounds]:
    """Return the numbers of a known shape whose blocks are where `d` says, and the bounds of what was read."""
    reader = _Columns(d, shape.shape[1])
    reader.numbers[WHERE:] = shape
    for key, default in _READ:
        if key in _WHERE:
            if default is None and key not in d:
                raise GeometryError(f"layout: key {key!r} is missing")
            reader.read(key, default)
    return reader.numbers, reader.bounds


class _Columns:
    """A message's columns: each one value for all regions, or a list with an entry for each."""

    def __init__(self, d: dict[str, Any], size: int) -> None:
        self._d, self._size = d, size
        self.numbers = np.empty((len(ROWS), size), dtype=np.uint64)
        self.bounds: dict[str, tuple[int, int]] = {}

    def read(self, key: str, default: int | str | None) -> None:
        """Read a column of numbers into its row; `default`: a number, or the column that it is like."""
        row = self.numbers[_ROW[key]]
        if key not in self._d:
            if type(default) is str:
                self.bounds[key] = self.bounds[default]
                row[:] = self.numbers[_ROW[default]]
            else:
                self.bounds[key] = default, default  # type: ignore[assignment]
                row.fill(default)
            return
        value = self._d[key]
        bound = 2**31 if key in _COUNTS else 2**64
        if type(value) is int:
            low = high = value
        else:
            items = _integers(value, f"layout: {key}")
            if len(items) != self._size:
                raise GeometryError(f"layout: {len(items)} entries in {key}, but {self._size} in names")
            low, high = min(items), max(items)
        if low < 0 or high >= bound:
            raise self._beyond(key, low if low < 0 else high, bound)
        self.bounds[key] = low, high
        row[:] = value if type(value) is int else np.array(items, dtype=np.uint64)

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
        items = _integers(value, f"layout: {key}")
        if len(items) != self._size or min(items) < 0:
            raise GeometryError(f"layout: {key} must have {self._size} entries from 0, got {brief(value)}")
        return items

    def one_of(self, key: str, default: str, check: Any) -> tuple[Any, ...]:
        """Return one checked name per region."""
        value = self._d.get(key, default)
        if isinstance(value, str):
            return (check(value, f"layout: {key}"),) * self._size
        items = _list(value, f"layout: {key}")
        if len(items) != self._size:
            raise GeometryError(f"layout: {len(items)} entries in {key}, but {self._size} in names")
        return tuple([check(item, f"layout: {key}[{i}]") for i, item in enumerate(items)])


def _integers(value: Any, what: str) -> Sequence[int]:
    items = _list(value, what)
    if set(map(type, items)) - {int}:
        return [as_int(item, f"{what}[{i}]") for i, item in enumerate(items)]
    return items


def _read_place(value: Any) -> Place:
    items = _list(value, "layout: cp")
    if len(items) != 3:
        raise GeometryError(f"layout: cp must be [rank, size, tokens], got {brief(value)}")
    rank, size = as_int(items[0], "layout: cp rank"), as_int(items[1], "layout: cp size")
    return rank, size, None if items[2] is None else as_int(items[2], "layout: cp tokens")


def _read_names(value: Any, what: str, limit: int = MAX_REGIONS) -> tuple[str, ...]:
    names: list[str] = []
    numbered = 0
    for i, item in enumerate(_list(value, what)):
        if type(item) is str and 0 < len(item) <= MAX_NAME:
            names.append(item)
        elif isinstance(item, (list, tuple)):
            if len(item) != 4 or not isinstance(item[0], str) or not isinstance(item[3], str):
                raise GeometryError(f"{what}[{i}] must be a name or [prefix, first, count, suffix], got {brief(item)}")
            first, count = as_int(item[1], f"{what}[{i}]: first"), as_int(item[2], f"{what}[{i}]: count")
            length = _weight(item[0]) + _weight(item[3]) + 10
            numbered += max(count, 0) * length
            as_name(item[0] + "0" + item[3], f"{what}[{i}]")
            if not 0 <= first < 2**31 or not 0 < count <= limit or numbered > MAX_NAME_BYTES:
                raise GeometryError(
                    f"{what}[{i}]: {brief(count)} names numbered from {brief(first)} on are no names of regions"
                )
            names += [f"{item[0]}{number}{item[3]}" for number in range(first, first + count)]
        else:
            names.append(as_name(item, f"{what}[{i}]"))
        if len(names) > limit:
            raise GeometryError(f"{what}: more than {limit} names")
    return tuple(names)


def _weight(name: str) -> int:
    """Return the bytes of a name's characters in memory, at most."""
    return len(name) if name.isascii() else 4 * len(name)


def _read_groups(value: Any) -> list[tuple[int, ...] | None]:
    found: list[tuple[int, ...] | None] = []
    for i, item in enumerate(_list(value, "layout: groups")):
        groups = None if item is None else tuple(_integers(item, f"layout: groups[{i}]"))
        if groups is not None and (
            len(set(groups)) != len(groups) or not groups or not 0 <= min(groups) <= max(groups) < 2**31
        ):
            raise GeometryError(f"layout: groups[{i}] must be distinct indices from 0, at least one, got {brief(item)}")
        found.append(groups)
    return found


# ---------------------------------------------------------------------------------------------------------- pages


def _read_pages(d: dict[str, Any], reader: _Columns, names: tuple[str, ...], lens: NDArray[np.uint64]) -> Pages:
    """Return the pages: each distinct one made and proven once, opaque ones by their block_len."""
    given = _list(d.get("pages", [_OPAQUE]), "layout: pages")
    of = reader.indices("page_of")
    if max(of) >= len(given):
        raise GeometryError(f"layout: page_of names page {brief(max(of))}, there are {len(given)}")
    frozen = [None if item == _OPAQUE else _frozen(item, f"layout: pages[{i}]") for i, item in enumerate(given)]
    if len(frozen) + sum([1 + len(axes) for page in frozen if page for axes, *_ in page]) > MAX_PAGE_ITEMS:
        raise GeometryError(f"layout: more than {MAX_PAGE_ITEMS} pages, their sections and axes, counted together")
    kinds: list[Page] = [() if page is None else _page(page, f"layout: pages[{i}]") for i, page in enumerate(frozen)]
    sizes = [1 if item == _OPAQUE else len(kind) for item, kind in zip(given, kinds, strict=True)]
    if max(sizes) * len(of) > MAX_SECTIONS and sum([sizes[number] for number in of]) > MAX_SECTIONS:
        raise GeometryError(f"layout: more than {MAX_SECTIONS} sections")
    section_names = _read_section_names(d.get("section_names"), names, of, sizes, given)
    if _OPAQUE not in given:
        return Pages(tuple(kinds), tuple(of), section_names)
    return _with_opaque(kinds, of, section_names, given, lens.tolist(), names)


def _with_opaque(
    kinds: list[Page], of: Sequence[int], section_names: Any, given: Any, lens: list[int], names: tuple[str, ...]
) -> Pages:
    """Give opaque pages a kind for each block_len."""
    found: dict[Any, int] = {}
    pages: list[Page] = []
    numbers = []
    for number, length, name in zip(of, lens, names, strict=True):
        opaque = given[number] == _OPAQUE
        key = (length,) if opaque else number
        if key not in found:
            found[key] = len(pages)
            pages.append((Section(name, (), length),) if opaque else kinds[number])
        numbers.append(found[key])
    return Pages(tuple(pages), tuple(numbers), section_names)


def _read_section_names(
    value: Any, names: tuple[str, ...], of: Sequence[int], sizes: list[int], given: Any
) -> tuple[tuple[str, ...], ...]:
    if value is None:
        if set(sizes) == {1}:
            return tuple(zip(names))
        if max(sizes) <= 1:
            return tuple([(name,) if sizes[number] else () for name, number in zip(names, of, strict=True)])
        raise GeometryError("layout: section_names is missing, but a page has more than one section")
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in ("pages", "regions"):
        raise GeometryError(f"layout: section_names must have one key, 'pages' or 'regions', got {brief(value)}")
    if "pages" in value:
        tails = [_read_names(item, "layout: section_names") for item in _list(value["pages"], "layout: section_names")]
        if [len(tail) for tail in tails] != [0 if page == _OPAQUE else n for page, n in zip(given, sizes, strict=True)]:
            raise GeometryError("layout: section_names must have a name for each section of each page")
        weights = [sum(map(_weight, tail)) for tail in tails]
        _prove_few_names(sum([_weight(name) * sizes[n] + weights[n] for name, n in zip(names, of, strict=True)]))
        cut = [tuple([tail[1:] if tail[0] == "+" else None for tail in named]) for named in tails]
        if any(tail is None for named in cut for tail in named):
            raise GeometryError("layout: section_names of pages must begin with '+': layers differ in their names")
        return tuple(
            [
                (name,) if given[number] == _OPAQUE else tuple([name + tail for tail in cut[number]])  # type: ignore[operator]
                for name, number in zip(names, of, strict=True)
            ]
        )
    flat = iter(_read_names(value["regions"], "layout: section_names", MAX_SECTIONS))
    _prove_few_names(sum([_weight(name) * sizes[n] for name, n in zip(names, of, strict=True)]))
    found: list[tuple[str, ...]] = []
    try:
        for name, number in zip(names, of, strict=True):
            if given[number] == _OPAQUE:
                found.append((name,))
            else:
                tails_ = [next(flat) for _ in range(sizes[number])]
                found.append(tuple([_named(tail, name) for tail in tails_]))
    except (StopIteration, RuntimeError):
        raise GeometryError("layout: section_names has fewer names than the regions have sections") from None
    if next(flat, None) is not None:
        raise GeometryError("layout: section_names has more names than the regions have sections")
    return tuple(found)


def _prove_few_names(weight: int) -> None:
    if weight > MAX_NAME_BYTES:
        raise GeometryError(f"layout: the names of its sections are more than {MAX_NAME_BYTES} bytes")


def _named(tail: str, region: str) -> str:
    if tail[0] not in "+=":
        raise GeometryError(f"layout: section_names must begin with '+' or '=', got {brief(tail)}")
    return region + tail[1:] if tail[0] == "+" else as_name(tail[1:], "layout: section_names: a name")


def _frozen(item: Any, what: str) -> tuple[Any, ...]:
    """Return a page as nested tuples, for the memory of pages already read."""
    sections = []
    for i, section in enumerate(_list(item, what)):
        where = f"{what}[{i}]"
        if not isinstance(section, dict):
            raise GeometryError(f"{where} must be a dict, got {brief(section)}")
        odd = [key for key in section if key not in _SECTION_KEYS]
        if odd:
            raise GeometryError(f"{where}: unknown key {brief(odd[0])}; known keys are {few(_SECTION_KEYS, 6)}")
        for key in ("axes", "itemsize"):
            if key not in section:
                raise GeometryError(f"{where}: key {key!r} is missing")
        axes = _list(section["axes"], f"{where}: axes")
        if len(axes) > MAX_AXES:  # before a million of them are made
            raise GeometryError(f"{where}: {len(axes)} axes, at most {MAX_AXES} are supported")
        strides = section.get("strides")
        sections.append(
            (
                tuple([_axis(axis, f"{where}: axes[{n}]") for n, axis in enumerate(axes)]),
                _size(section["itemsize"], f"{where}: itemsize"),
                _size(section.get("offset", 0), f"{where}: offset"),
                None
                if strides is None
                else tuple([_size(s, f"{where}: strides") for s in _list(strides, f"{where}: strides")]),
                _plain(section.get("dtype", ""), str, f"{where}: dtype"),
                _plain(section.get("cp", True), bool, f"{where}: cp"),
            )
        )
    return tuple(sections)


def _axis(item: Any, what: str) -> tuple[Any, ...]:
    if not isinstance(item, (list, tuple)) or len(item) not in (3, 4):
        raise GeometryError(f"{what} must be [name, start, stop] or [name, start, stop, unit], got {brief(item)}")
    start, stop = _size(item[1], f"{what}: start"), _size(item[2], f"{what}: stop")
    unit = _size(item[3], f"{what}: unit") if len(item) == 4 else 1
    return as_name(item[0], f"{what}: name", MAX_WORD), start, stop, unit


def _page(page: tuple[Any, ...], what: str) -> Page:
    return _kept_page(page, what) if len(page) <= MAX_KEPT_SECTIONS else _read_page(page, what)


def _read_page(page: tuple[Any, ...], what: str) -> Page:
    return tuple([_read_section(section, f"{what}[{i}]") for i, section in enumerate(page)])


#: Engines of a fleet send the same pages time and again.
_kept_page = lru_cache(maxsize=256)(_read_page)


def _read_section(section: tuple[Any, ...], what: str) -> Section:
    axes, itemsize, offset, strides, dtype, cp = section
    try:
        made = [Axis(*axis) for axis in axes]
        return Section(_NAMELESS, made, itemsize, offset=offset, strides=strides, dtype=dtype, cp=cp)
    except GeometryError as error:
        raise GeometryError(f"{what}: {str(error).removeprefix(f'section {_NAMELESS!r}: ')}") from None


def _plain(value: Any, kind: type, what: str) -> Any:
    if type(value) is not kind:
        raise GeometryError(f"{what} must be a {kind.__name__}, got {brief(value)}")
    return value


def _size(value: Any, what: str) -> int:
    number = value if type(value) is int else as_int(value, what)
    if not 0 <= number < 2**64:
        raise GeometryError(f"{what} must be in 0 to 2**64 - 1, got {brief(number)}")
    return number


def _list(value: Any, what: str) -> Sequence[Any]:
    if type(value) is list or type(value) is tuple:
        return value
    if isinstance(value, list):
        return list(list.__iter__(value))
    if isinstance(value, tuple):
        return list(tuple.__iter__(value))
    raise GeometryError(f"{what} must be a list, got {brief(value)}")
