"""Where a layout's bytes lie: the ranges to register, and regions cut where registrations end.

::

    region     | 0 | 1 | 2 | 3 | 4 | 5 |          one space of block ids
    registered [   a   )[       b      )          NIXL: a row may not cross two registrations, even touching ones
    segments   (0x0, 2 blocks) (0x20, 4 blocks)   so each is a row of its own
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, as_name, brief, is_many
from nixldesc.errors import GeometryError
from nixldesc.memory.columns import Columns

__all__ = ["memory_ranges", "split_columns"]

#: A range of memory: (addr, len, device_id, mem_type).
Range = tuple[int, int, int, str]


def _segments(columns: Columns, region: int) -> NDArray[np.uint64]:
    if region in columns.pieces:
        return columns.pieces[region]
    numbers = columns.base_addrs[region], columns.num_blocks[region], columns.device_ids[region]
    return np.array([[int(number) for number in numbers]], dtype=np.uint64)


def _reaches(columns: Columns) -> list[int]:
    """Bytes from the first byte of a block to its last, of each region."""
    counts = (columns.sub_blocks - 1).astype(np.uint64), (columns.runs - 1).astype(np.uint64)
    reach = counts[0] * columns.sub_strides + counts[1] * columns.run_strides + columns.block_lens
    found: list[int] = reach.tolist()
    return found


def memory_ranges(columns: Columns) -> list[Range]:
    """Return the ranges that cover all regions, overlapping ones of one memory joined, touching ones kept apart."""
    spans: list[tuple[str, int, int, int]] = []
    for region, (mem, stride, reach) in enumerate(
        zip(columns.mem_types, columns.block_strides.tolist(), _reaches(columns), strict=True)
    ):
        spans += [
            (mem, device, base, base + (blocks - 1) * stride + reach)
            for base, blocks, device in _segments(columns, region).tolist()
        ]
    joined: list[tuple[str, int, int, int]] = []
    for mem, device, start, stop in sorted(spans):
        if joined and joined[-1][:2] == (mem, device) and start < joined[-1][3]:
            _, _, first, last = joined.pop()
            start, stop = first, max(last, stop)
        joined.append((mem, device, start, stop))
    return [(start, stop - start, device, mem) for mem, device, start, stop in joined]


def _read_ranges(ranges: Any) -> dict[tuple[str, int], NDArray[np.uint64]]:
    """Return the ranges of each memory and device as uint64[n, 2], first and last byte, ascending and apart."""
    if not is_many(ranges):
        raise TypeError(f"ranges must be (addr, len, device_id, mem_type) tuples, got {brief(ranges)}")
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for i, item in enumerate(ranges):
        if not isinstance(item, (tuple, list)) or len(item) != 4:
            raise TypeError(f"ranges[{i}] must be (addr, len, device_id, mem_type), got {brief(item)}")
        addr, length, device = (
            as_int(n, f"ranges[{i}]: {w}") for n, w in zip(item, ("addr", "len", "device_id"), strict=False)
        )
        mem = as_name(item[3], f"ranges[{i}]: mem_type")
        if addr < 0 or length <= 0 or addr + length > 2**64:
            raise GeometryError(f"ranges[{i}]: addr {addr} and len {length} are no range of memory below 2**64")
        found.setdefault((mem, device), []).append((addr, addr + length - 1))
    for (mem, device), spans in found.items():
        spans.sort()
        for (a, b), (c, d) in pairwise(spans):
            if c <= b:
                raise GeometryError(
                    f"ranges [{a:#x}, {b + 1:#x}) and [{c:#x}, {d + 1:#x}) of {mem} {device} overlap: registrations "
                    f"are apart"
                )
    return {key: np.array(spans, dtype=np.uint64) for key, spans in found.items()}


def split_columns(columns: Columns, names: Sequence[str], ranges: Iterable[Range]) -> Columns:
    """Return the columns with every region in segments that end where `ranges` do."""
    bounds = _read_ranges(ranges)
    pieces: dict[int, NDArray[np.uint64]] = {}
    for region, (mem, stride, reach) in enumerate(
        zip(columns.mem_types, columns.block_strides.tolist(), _reaches(columns), strict=True)
    ):
        rows: list[tuple[int, int, int]] = []
        first = 0
        for base, blocks, device in _segments(columns, region).tolist():
            spans = bounds.get((mem, device), np.zeros((0, 2), dtype=np.uint64))
            rows += _cut(spans, (base, blocks, device), stride, reach, f"region {names[region]!r}", first, mem)
            first += blocks
        if len(rows) > 1:
            pieces[region] = np.array(rows, dtype=np.uint64)
    plain = not pieces and bool((columns.sub_blocks == 1).all() and (columns.runs == 1).all())
    return replace(columns, pieces=pieces, plain=plain)


def _cut(
    spans: NDArray[np.uint64], segment: tuple[int, int, int], stride: int, reach: int, what: str, first: int, mem: str
) -> list[tuple[int, int, int]]:
    """Cut one segment where ranges end; every block lies inside one of them."""
    base, blocks, device = segment
    rows = []
    done = 0
    while done < blocks:
        start = base + done * stride
        number = int(np.searchsorted(spans[:, 0], np.uint64(start), side="right")) - 1
        last = int(spans[number, 1]) if number >= 0 else -1
        fits = min((last - reach + 1 - start) // stride + 1, blocks - done) if last >= start + reach - 1 else 0
        if fits < 1:
            raise GeometryError(
                f"{what}: block {first + done}, [{start:#x}, {start + reach:#x}) of {mem} {device}, lies inside none "
                f"of the ranges" + (f"; the nearest ends at {last + 1:#x}" if last >= start else "")
            )
        rows.append((start, fits, device))
        done += fits
    return rows
