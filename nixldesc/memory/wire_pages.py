"""The pages of a stranger's message: what a block's bytes mean, each distinct page made and proven once.

::

    "pages": [[{"itemsize": 1, "axes": [["head", 0, 2], ["byte", 0, 128]]}], "opaque"], "page_of": [0, 0, 1]
    "section_names": {"pages": [["+.k"], []]}  or  {"regions": ["+.k", "=other"]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import MAX_WORD, as_name, brief
from nixldesc._memory import remembered
from nixldesc.errors import GeometryError
from nixldesc.memory.columns import Page, Pages
from nixldesc.memory.sections import Axis, Section
from nixldesc.memory.wire import OPAQUE
from nixldesc.memory.wire_checks import (
    MAX_NAME_BYTES,
    as_axes,
    as_list,
    as_plain,
    as_size,
    names_of,
    prove_keys,
    weight,
)

__all__ = ["read_pages"]

MAX_SECTIONS = 3 * 2**14
#: Distinct pages, their sections and the axes of these: each is proved and planned by itself, and layers share pages.
MAX_PAGE_ITEMS = 3 * 2**12
#: Pages of more sections are not kept for the next message.
MAX_KEPT_SECTIONS = 16

_SECTION_KEYS = ("axes", "itemsize", "offset", "strides", "dtype", "cp")
#: What a section of a page is called until its region gives it a name.
_NAMELESS = "+"


def read_pages(d: dict[str, Any], of: Sequence[int], names: tuple[str, ...], lens: NDArray[np.uint64]) -> Pages:
    """Return the pages: `of` says which each region has; opaque ones are told apart by their block_len."""
    given = as_list(d.get("pages", [OPAQUE]), "layout: pages")
    if max(of) >= len(given):
        raise GeometryError(f"layout: page_of names page {brief(max(of))}, there are {len(given)}")
    frozen = [None if item == OPAQUE else _frozen(item, f"layout: pages[{i}]") for i, item in enumerate(given)]
    if len(frozen) + sum([1 + len(axes) for page in frozen if page for axes, *_ in page]) > MAX_PAGE_ITEMS:
        raise GeometryError(f"layout: more than {MAX_PAGE_ITEMS} pages, their sections and axes, counted together")
    kinds: list[Page] = [() if page is None else _page(page, f"layout: pages[{i}]") for i, page in enumerate(frozen)]
    sizes = [1 if item == OPAQUE else len(kind) for item, kind in zip(given, kinds, strict=True)]
    if max(sizes) * len(of) > MAX_SECTIONS and sum([sizes[number] for number in of]) > MAX_SECTIONS:
        raise GeometryError(f"layout: more than {MAX_SECTIONS} sections")
    section_names = _read_section_names(d.get("section_names"), names, of, sizes, given)
    if OPAQUE not in given:
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
        opaque = given[number] == OPAQUE
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
        tails = [names_of(item, "layout: section_names") for item in as_list(value["pages"], "layout: section_names")]
        if [len(tail) for tail in tails] != [0 if page == OPAQUE else n for page, n in zip(given, sizes, strict=True)]:
            raise GeometryError("layout: section_names must have a name for each section of each page")
        weights = [sum(map(weight, tail)) for tail in tails]
        _prove_few_names(sum([weight(name) * sizes[n] + weights[n] for name, n in zip(names, of, strict=True)]))
        cut = [tuple([tail[1:] if tail[0] == "+" else None for tail in named]) for named in tails]
        if any(tail is None for named in cut for tail in named):
            raise GeometryError("layout: section_names of pages must begin with '+': layers differ in their names")
        return tuple(
            [
                (name,) if given[number] == OPAQUE else tuple([name + tail for tail in cut[number]])  # type: ignore[operator]
                for name, number in zip(names, of, strict=True)
            ]
        )
    flat = iter(names_of(value["regions"], "layout: section_names", MAX_SECTIONS))
    _prove_few_names(sum([weight(name) * sizes[n] for name, n in zip(names, of, strict=True)]))
    found: list[tuple[str, ...]] = []
    try:
        for name, number in zip(names, of, strict=True):
            if given[number] == OPAQUE:
                found.append((name,))
            else:
                tails_ = [next(flat) for _ in range(sizes[number])]
                found.append(tuple([_named(tail, name) for tail in tails_]))
    except (StopIteration, RuntimeError):
        raise GeometryError("layout: section_names has fewer names than the regions have sections") from None
    if next(flat, None) is not None:
        raise GeometryError("layout: section_names has more names than the regions have sections")
    return tuple(found)


def _prove_few_names(nbytes: int) -> None:
    if nbytes > MAX_NAME_BYTES:
        raise GeometryError(f"layout: the names of its sections are more than {MAX_NAME_BYTES} bytes")


def _named(tail: str, region: str) -> str:
    if tail[0] not in "+=":
        raise GeometryError(f"layout: section_names must begin with '+' or '=', got {brief(tail)}")
    return region + tail[1:] if tail[0] == "+" else as_name(tail[1:], "layout: section_names: a name")


def _frozen(item: Any, what: str) -> tuple[Any, ...]:
    """Return a page as nested tuples, for the memory of pages already read."""
    sections = []
    for i, section in enumerate(as_list(item, what)):
        where = f"{what}[{i}]"
        prove_keys(section, _SECTION_KEYS, ("axes", "itemsize"), where)
        axes = as_axes(section["axes"], where)
        strides = section.get("strides")
        sections.append(
            (
                tuple([_axis(axis, f"{where}: axes[{n}]") for n, axis in enumerate(axes)]),
                as_size(section["itemsize"], f"{where}: itemsize"),
                as_size(section.get("offset", 0), f"{where}: offset"),
                None
                if strides is None
                else tuple([as_size(s, f"{where}: strides") for s in as_list(strides, f"{where}: strides")]),
                as_plain(section.get("dtype", ""), str, f"{where}: dtype"),
                as_plain(section.get("cp", True), bool, f"{where}: cp"),
            )
        )
    return tuple(sections)


def _axis(item: Any, what: str) -> tuple[Any, ...]:
    if not isinstance(item, (list, tuple)) or len(item) not in (3, 4):
        raise GeometryError(f"{what} must be [name, start, stop] or [name, start, stop, unit], got {brief(item)}")
    start, stop = as_size(item[1], f"{what}: start"), as_size(item[2], f"{what}: stop")
    unit = as_size(item[3], f"{what}: unit") if len(item) == 4 else 1
    return as_name(item[0], f"{what}: name", MAX_WORD), start, stop, unit


def _page(page: tuple[Any, ...], what: str) -> Page:
    return _kept_page(page, what) if len(page) <= MAX_KEPT_SECTIONS else _read_page(page, what)


def _read_page(page: tuple[Any, ...], what: str) -> Page:
    return tuple([_read_section(section, f"{what}[{i}]") for i, section in enumerate(page)])


#: Engines of a fleet send the same pages time and again.
_kept_page = remembered(256)(_read_page)


def _read_section(section: tuple[Any, ...], what: str) -> Section:
    axes, itemsize, offset, strides, dtype, cp = section
    try:
        made = [Axis(*axis) for axis in axes]
        return Section(_NAMELESS, made, itemsize, offset=offset, strides=strides, dtype=dtype, cp=cp)
    except GeometryError as error:
        raise GeometryError(f"{what}: {str(error).removeprefix(f'section {_NAMELESS!r}: ')}") from None
