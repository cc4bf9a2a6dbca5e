"""What a layout must be before any arithmetic relies on it: proven once, in Python integers, with words.

Numbers of one region, its segments, its pages, what regions of one layout owe each other. A layout that arrives as
columns is first held against the bounds of its columns, in Python integers too: what passes is sound in every region,
what does not is looked at region by region.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import brief
from nixldesc.errors import GeometryError
from nixldesc.memory.columns import Columns, Laid, Pages
from nixldesc.memory.region import Region
from nixldesc.memory.sections import MAX_RUNS, MAX_WOVEN_RUNS, Section

__all__ = ["MAX_BLOCK_PIECES", "MAX_DESCS", "prove_columns", "prove_pages", "prove_region", "prove_rows", "prove_total"]

#: NIXL's prepared indices are int32.
MAX_DESCS = 2**31 - 1
#: Rows of a table: more segments and unevenly spaced pieces than any rank has registered.
MAX_ROWS = 2**18
#: Descriptors that one block id stands for, in all regions together: they become memory with the first request.
MAX_BLOCK_PIECES = 2**22

_SIZES = ("block_len", "num_blocks", "sub_blocks", "sub_stride", "runs", "run_stride")
_BYTES = ("block_len", "block_stride", "sub_stride", "run_stride")


def prove_region(region: Region) -> None:
    """Raise :class:`GeometryError` unless the region's blocks and addresses can exist (Python integers, no limits)."""
    what = f"region {region.name!r}: "
    for field in _SIZES:
        if getattr(region, field) <= 0:
            raise GeometryError(f"{what}{field} must be positive, got {getattr(region, field)}")
    for field in _BYTES:
        if getattr(region, field) >= 2**64:
            raise GeometryError(
                f"{what}{field} is {getattr(region, field)} bytes, beyond the 64 bits of a table's entry"
            )
    if region.base_addr < 0 or not 0 <= region.device_id < 2**64:
        raise GeometryError(
            f"{what}base_addr and device_id must not be negative, nor device_id beyond 64 bits, "
            f"got {region.base_addr} and {region.device_id}"
        )
    _prove_pieces(region, what)
    if region._pieces:
        prove_segments(region.segments, region.block_stride, region.reach, what)
    elif region.base_addr + region.span > 2**64:
        raise GeometryError(
            f"{what}ends at address {region.base_addr + region.span:#x}, beyond 2**64 "
            f"(base_addr {region.base_addr:#x}, {region.num_blocks} blocks, {region.block_stride} bytes apart)"
        )
    prove_groups(region.groups, what)


def _prove_pieces(region: Region, what: str) -> None:
    """A block holds its sub-blocks and runs, one nested in the other whichever way, and none reaches into the next."""
    length, subs, runs = region.block_len, region.sub_blocks, region.runs
    for word, count, step in (("run_stride", runs, region.run_stride), ("sub_stride", subs, region.sub_stride)):
        if count > 1 and step < length:
            raise GeometryError(f"{what}{word} is {step} bytes, less than block_len {length}")
    of_runs, of_subs = (runs - 1) * region.run_stride + length, (subs - 1) * region.sub_stride + length
    if subs > 1 and runs > 1 and of_runs > region.sub_stride and of_subs > region.run_stride:
        raise GeometryError(
            f"{what}{runs} runs {region.run_stride} bytes apart and {subs} sub-blocks {region.sub_stride} bytes apart, "
            f"of {length} bytes each, reach into one another"
        )
    if subs * runs > 1 and region.reach > region.block_stride:
        kind = f"{subs} sub-blocks of {length} bytes, {region.sub_stride} apart"
        if runs > 1:
            kind = f"{runs} runs of {length} bytes, {region.run_stride} apart" + (
                f", in {subs} sub-blocks" * (subs > 1)
            )
        raise GeometryError(f"{what}{kind}, reach byte {region.reach}, but block_stride is {region.block_stride}")
    if subs * runs > 1 and region.sections:
        raise GeometryError(f"{what}a region cut into sub_blocks has no sections, got {len(region.sections)}")
    if region.block_stride < length:
        raise GeometryError(f"{what}block_stride is {region.block_stride} bytes, less than block_len {length}")


def prove_groups(groups: tuple[int, ...] | None, what: str) -> None:
    """Distinct indices, at least one, or None for every group."""
    if groups is None:
        return
    if len(set(groups)) != len(groups) or any(not 0 <= group < 2**31 for group in groups):
        raise GeometryError(f"{what}groups must be distinct indices from 0, got {brief(groups)}")
    if not groups:
        raise GeometryError(f"{what}groups is empty: no block list would ever address it; None means every group")


def prove_segments(rows: NDArray[np.uint64], stride: int, reach: int, what: str) -> None:
    """Segments hold blocks, end inside 2**64 and lie apart from one another; `reach`: bytes of a block."""
    empty = np.flatnonzero(rows[:, 1] == 0)
    if len(empty):
        raise GeometryError(f"{what}segment {int(empty[0])} has no blocks")
    bases, blocks = rows[:, 0], rows[:, 1]
    if int(bases.max()) + (int(blocks.max()) - 1) * stride + reach > 2**64:
        for i, (base, count, _) in enumerate(rows.tolist()):
            if base + (count - 1) * stride + reach > 2**64:
                raise GeometryError(
                    f"{what}segment {i} ends at address {base + (count - 1) * stride + reach:#x}, beyond 2**64 "
                    f"(base_addr {base:#x}, {count} blocks, {stride} bytes apart)"
                )
    devices = np.sort(rows[:, 2])
    if (devices[1:] != devices[:-1]).all():
        return  # an object or a file each
    order = np.argsort(bases) if devices[0] == devices[-1] else np.lexsort((bases, rows[:, 2]))
    bases, blocks, devices = bases[order], blocks[order], rows[order, 2]
    lasts = bases + (blocks - np.uint64(1)) * np.uint64(stride) + np.uint64(reach - 1)
    clash = np.flatnonzero((devices[1:] == devices[:-1]) & (bases[1:] <= lasts[:-1]))
    if len(clash):
        first, second = sorted(order[[clash[0], clash[0] + 1]].tolist())
        raise GeometryError(
            f"{what}segments {first} and {second} (device {int(devices[clash[0]])}) lie in the same memory: "
            f"{_span(rows[first], stride, reach)} and {_span(rows[second], stride, reach)}"
        )


def _span(row: NDArray[np.uint64], stride: int, reach: int) -> str:
    base, blocks = int(row[0]), int(row[1])
    return f"[{base:#x}, {base + (blocks - 1) * stride + reach:#x})"


# ------------------------------------------------------------------------------------------------------- columns


def prove_columns(columns: Columns, bounds: Mapping[str, tuple[int, int]]) -> bool:
    """Whether the bounds alone show every region to be sound; `bounds`: the least and the largest of each column.

    Columns hold whole numbers from 0 to 2**64 - 1 (counts below 2**31). False means: look at each region.
    """
    least_len, largest_len = bounds["block_lens"]
    least_stride, largest_stride = bounds["block_strides"]
    most = bounds["num_blocks"][1]
    if not columns.plain or not least_len or not bounds["num_blocks"][0]:
        return False
    if not bounds["sub_strides"][0] or not bounds["run_strides"][0]:
        return False
    if least_stride < largest_len and (columns.block_strides < columns.block_lens).any():
        return False
    if most * len(columns) > MAX_DESCS:
        return False
    return bounds["base_addrs"][1] + (most - 1) * largest_stride + largest_len <= 2**64


def prove_total(descs: int) -> None:
    """Bound the descriptors of a whole layout by what int32 ids can name."""
    if descs > MAX_DESCS:
        raise GeometryError(f"the layout has {descs} descriptors, more than the {MAX_DESCS} that int32 ids can name")


def prove_rows(columns: Columns, laid: Laid) -> None:
    """Bound the rows of a layout's table, which its segments and the pieces of unevenly spaced blocks make."""
    if columns.plain:
        return
    rows = laid.total
    if rows > MAX_ROWS:
        raise GeometryError(
            f"the layout has {rows} table rows, for its blocks' pieces lie at no even spacing; at most {MAX_ROWS} are "
            f"supported"
        )
    pieces = int((columns.sub_blocks * columns.runs).sum())
    if pieces > MAX_BLOCK_PIECES:
        raise GeometryError(
            f"the layout's regions cut a block into {pieces:,} pieces, counted together, which one block id would "
            f"stand for; at most {MAX_BLOCK_PIECES:,} are supported"
        )


# --------------------------------------------------------------------------------------------------------- pages


def prove_pages(names: Sequence[str], least_len: int, block_lens: Callable[[], Iterable[int]], pages: Pages) -> None:
    """Prove names unique, sections inside their blocks and apart, and sections of one name parts of one array.

    `block_lens` are looked at where not even the least of them holds every page.
    """
    if len(set(names)) != len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise GeometryError(f"region {twice!r}: there are two regions of that name")
    ends: list[int] = []
    budget = MAX_RUNS
    for number, page in enumerate(pages.kinds):
        ends.append(max([section.end for section in page], default=0))
        budget -= sum(map(_count_runs, page))
        if budget < 0:
            raise GeometryError(
                f"region {_user(names, pages, number)!r}: the layout's pages have more than {MAX_RUNS} separate runs "
                f"of bytes"
            )
        if len(page) > 1:
            _prove_disjoint(page, _user(names, pages, number))
    if max(ends) > least_len:
        _prove_inside(names, block_lens(), pages, ends)
    _prove_parts(names, pages)


def _user(names: Sequence[str], pages: Pages, number: int) -> str:
    """Return the first region that has a page."""
    return names[pages.of.index(number)] if number in pages.of else f"none (page {number})"


def _prove_inside(names: Sequence[str], block_lens: Iterable[int], pages: Pages, ends: Sequence[int]) -> None:
    for region, length, number, named in zip(names, block_lens, pages.of, pages.names, strict=True):
        if ends[number] > length:
            last = max(range(len(named)), key=lambda i: pages.kinds[number][i].end)
            raise GeometryError(
                f"region {region!r}: section {named[last]!r} ends at byte {ends[number]}, outside the block of "
                f"{length} bytes"
            )


def _prove_parts(names: Sequence[str], pages: Pages) -> None:
    if not pages.have_parts:
        return
    first: dict[str, tuple[Any, str]] = {}
    for region, number, named in zip(names, pages.of, pages.names, strict=True):
        for section, name in zip(pages.kinds[number], named, strict=True):
            kind = _kind(section)
            meant, other = first.setdefault(name, (kind, region))
            for word, mine, theirs in zip(("axes", "itemsize", "dtype", "block_tokens"), kind, meant, strict=True):
                if mine != theirs:
                    raise GeometryError(
                        f"region {region!r}: section {name!r} is also in region {other!r}; sections of one name are "
                        f"parts of one array, but their {word} are {_words(mine)} here and {_words(theirs)} there"
                    )


def _words(kind: Any) -> str:
    return (", ".join(map(repr, kind)) or "none (opaque)") if isinstance(kind, tuple) else repr(kind)


def _kind(section: Section) -> tuple[tuple[str, ...], int, str, int]:
    axes = sorted(name for name, _, _ in section.geometry.box)
    return tuple(axes), section.itemsize, section.dtype, section.block_tokens


def _count_runs(section: Section) -> int:
    count = 1
    for size, _ in section.runs()[1]:
        count *= size
    return count


def _prove_disjoint(page: Sequence[Section], region: str) -> None:
    """No byte belongs to two sections: by their hulls where those lie apart, run by run where they interleave."""
    order = sorted(page, key=lambda section: section.offset)
    if all(a.end <= b.offset for a, b in pairwise(order)):
        return
    if sum(map(_count_runs, order)) > MAX_WOVEN_RUNS:
        raise GeometryError(
            f"region {region!r}: its sections interleave in more than {MAX_WOVEN_RUNS} separate runs of bytes"
        )
    starts, ends, owners = [], [], []
    for number, section in enumerate(order):
        length, loops = section.runs()
        at = np.array([section.offset], dtype=np.uint64)
        for size, step in loops:
            at = np.add.outer(at, np.arange(size, dtype=np.uint64) * np.uint64(step)).ravel()
        starts.append(at)
        ends.append(at + np.uint64(length))
        owners.append(np.full(len(at), number))
    start, end, owner = (np.concatenate(part) for part in (starts, ends, owners))
    by_start = np.argsort(start, kind="stable")
    start, end, owner = start[by_start], end[by_start], owner[by_start]
    shared = np.flatnonzero(start[1:] < end[:-1])
    if len(shared):
        first, second = order[owner[shared[0]]], order[owner[shared[0] + 1]]
        raise GeometryError(
            f"region {region!r}: sections {first.name!r} and {second.name!r} share byte {start[shared[0] + 1]} "
            f"of the block"
        )
