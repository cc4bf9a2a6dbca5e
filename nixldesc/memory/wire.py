"""A layout as plain data: what two workers send each other before they trust each other, and how it is written.

Version 2, columns: an entry per region, or one value where all are equal; what has its default value is left out::

    {"version": 2, "names": ["layer0", "layer1"], "base_addrs": [4096, 413696], "block_lens": 4096, "num_blocks": 100,
     "groups": [[0]], "group_of": 0,
     "pages": [[{"itemsize": 1, "axes": [["head", 0, 2], ["token", 0, 16], ["byte", 0, 128]]}]], "page_of": 0}

`names` and `section_names` are lists whose entries are a name, or ``[prefix, first, count, suffix]`` for ``count``
names that are numbered from ``first`` on. A section is named like its region, or as `section_names` says: ``"+.k"`` is
the region's name and ``.k``, ``"=name"`` another name. Segments are columns too, keyed by the region's number
(:mod:`nixldesc.memory.wire_segments`). What comes in is read by :mod:`nixldesc.memory.wire_reading`; version 1, an
object per region, too (:mod:`nixldesc.memory.wire_version_1`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from nixldesc.memory.columns import Columns, Pages
from nixldesc.memory.sections import Section
from nixldesc.memory.wire_segments import segments_to_dict

__all__ = ["OPAQUE", "VERSION", "Place", "layout_to_dict"]

VERSION = 2
#: The page of a region without sections: one opaque section of the region's name and its block_len.
OPAQUE = "opaque"

#: Of a layout: cp_rank, cp_size, cp_tokens.
Place = tuple[int, int, "int | None"]


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
    if told == [OPAQUE]:
        return
    of = [place[number] for number in pages.of]
    d["pages"], d["page_of"] = told, _one_of_all(of)
    tails = [
        () if told[number] == OPAQUE else tuple([_tail(n, region) for n in named])
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
        return OPAQUE
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
