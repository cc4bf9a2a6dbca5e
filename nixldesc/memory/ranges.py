"""Where a layout's bytes lie: the ranges to register, and regions cut where registrations end.

::

    region     | 0 | 1 | 2 | 3 | 4 | 5 |          one space of block ids
    registered [   a   )[       b      )          NIXL: a row may not cross two registrations, even touching ones
    segments   (0x0, 2 blocks) (0x20, 4 blocks)   so each is a row of its own
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, as_name, brief, is_many
from nixldesc.errors import GeometryError
from nixldesc.memory.columns import Columns

__all__ = ["memory_ranges", "split_columns"]

#: A range of memory: (addr, len, device_id, mem_type).
Range = tuple[int, int, int, str]

U64 = np.uint64


class _Spans(NamedTuple):
    """Stretches of memory as columns; `mems` counts in `kinds`, `lasts` are the last bytes: 2**64 fits no uint64."""

    kinds: Sequence[str]
    mems: NDArray[np.int64]
    devices: NDArray[np.uint64]
    firsts: NDArray[np.uint64]
    lasts: NDArray[np.uint64]

    def sorted(self) -> _Spans:
        """Return them by memory type, device and first byte."""
        order = np.lexsort((self.lasts, self.firsts, self.devices, self.mems))
        mems, devices, firsts, lasts = self.mems, self.devices, self.firsts, self.lasts
        return _Spans(self.kinds, mems[order], devices[order], firsts[order], lasts[order])

    def text(self, i: int) -> str:
        """Return one of them in words, without its memory."""
        return f"[{int(self.firsts[i]):#x}, {int(self.lasts[i]) + 1:#x})"


class _Segments(NamedTuple):
    """All segments of all regions, as columns: the region of each, its stride and reach, and where it lies."""

    regions: NDArray[np.int64]
    blocks: NDArray[np.uint64]
    strides: NDArray[np.uint64]
    reaches: NDArray[np.uint64]
    spans: _Spans


def _segments(columns: Columns) -> _Segments:
    size = len(columns)
    counts = np.ones(size, dtype=np.int64)
    for region, rows in columns.pieces.items():
        counts[region] = len(rows)
    regions = np.repeat(np.arange(size), counts)
    rows = np.empty((len(regions), 3), dtype=U64)
    for place, column in enumerate((columns.base_addrs, columns.num_blocks, columns.device_ids)):
        rows[:, place] = column[regions]
    ends = np.cumsum(counts)
    for region, pieces in columns.pieces.items():
        rows[ends[region] - counts[region] : ends[region]] = pieces
    # Bytes from the first byte of a block to its last.
    more = (columns.sub_blocks - 1).astype(U64), (columns.runs - 1).astype(U64)
    reaches = (more[0] * columns.sub_strides + more[1] * columns.run_strides + columns.block_lens)[regions]
    strides = columns.block_strides[regions]
    kinds = sorted(set(columns.mem_types))
    mems = np.array([kinds.index(mem) for mem in columns.mem_types])[regions]
    lasts = rows[:, 0] + (rows[:, 1] - U64(1)) * strides + (reaches - U64(1))
    return _Segments(regions, rows[:, 1], strides, reaches, _Spans(kinds, mems, rows[:, 2], rows[:, 0], lasts))


def memory_ranges(columns: Columns) -> list[Range]:
    """Return the ranges that cover all regions, overlapping ones of one memory joined, touching ones kept apart."""
    spans = _segments(columns).spans.sorted()
    # The furthest byte so far, of each memory: as a rank among all last bytes, memory by memory, so that a running
    # maximum starts anew with each.
    order = np.lexsort((spans.lasts, spans.devices, spans.mems))
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    furthest = spans.lasts[order][np.maximum.accumulate(ranks)]
    apart = np.ones(len(order), dtype=np.bool_)
    apart[1:] = _other_memory(spans) | (spans.firsts[1:] > furthest[:-1])
    begins = np.flatnonzero(apart)
    ends = np.append(begins[1:], len(order)) - 1
    firsts = spans.firsts[begins]
    kept = firsts, furthest[ends] - firsts, spans.devices[begins], spans.mems[begins]
    rows = zip(*(column.tolist() for column in kept), strict=True)
    return [(addr, above + 1, device, spans.kinds[mem]) for addr, above, device, mem in rows]


def _other_memory(spans: _Spans) -> NDArray[np.bool_]:
    """Whether each but the first lies in another memory than the one before."""
    changed: NDArray[np.bool_] = (spans.mems[1:] != spans.mems[:-1]) | (spans.devices[1:] != spans.devices[:-1])
    return changed


def _read_ranges(ranges: Any) -> _Spans:
    """Return the ranges, sorted; apart from one another."""
    if not is_many(ranges):
        raise TypeError(f"ranges must be (addr, len, device_id, mem_type) tuples, got {brief(ranges)}")
    items = list(ranges)
    for i, item in enumerate(items):
        if not isinstance(item, (tuple, list)) or len(item) != 4:
            raise TypeError(f"ranges[{i}] must be (addr, len, device_id, mem_type), got {brief(item)}")
    numbers = [[item[place] for item in items] for place in range(3)]
    for place, word in enumerate(("addr", "len", "device_id")):
        if set(map(type, numbers[place])) - {int}:
            numbers[place] = [as_int(number, f"ranges[{i}]: {word}") for i, number in enumerate(numbers[place])]
    names = [item[3] for item in items]
    if set(map(type, names)) - {str} or "" in names:
        names = [as_name(name, f"ranges[{i}]: mem_type") for i, name in enumerate(names)]
    addrs, lengths, devices = numbers
    lasts = [addr + length - 1 for addr, length in zip(addrs, lengths, strict=True)]
    if items and not (
        min(addrs) >= 0 < min(lengths) and max(lasts) < 2**64 and 0 <= min(devices) <= max(devices) < 2**64
    ):
        _word_range(addrs, lengths, devices)
    kinds = sorted(set(names))
    place_of = {kind: n for n, kind in enumerate(kinds)}
    mems = np.array([place_of[name] for name in names], dtype=np.int64)
    columns = (np.array(column, dtype=U64) for column in (devices, addrs, lasts))
    spans = _Spans(kinds, mems, *columns).sorted()
    clash = np.flatnonzero(~_other_memory(spans) & (spans.firsts[1:] <= spans.lasts[:-1]))
    if len(clash):
        i = int(clash[0])
        raise GeometryError(
            f"ranges {spans.text(i)} and {spans.text(i + 1)} of {kinds[spans.mems[i]]} {int(spans.devices[i])} "
            f"overlap: registrations are apart"
        )
    return spans


def _word_range(addrs: Sequence[int], lengths: Sequence[int], devices: Sequence[int]) -> None:
    """Raise :class:`GeometryError` for the first range that cannot be."""
    for i, (addr, length, device) in enumerate(zip(addrs, lengths, devices, strict=True)):
        if addr < 0 or length <= 0 or addr + length > 2**64:
            raise GeometryError(f"ranges[{i}]: addr {addr} and len {length} are no range of memory below 2**64")
        if not 0 <= device < 2**64:
            raise GeometryError(f"ranges[{i}]: device_id must be in 0 to 2**64 - 1, got {brief(device)}")


def split_columns(columns: Columns, names: Sequence[str], ranges: Iterable[Range]) -> Columns:
    """Return the columns with every region in segments that end where `ranges` do."""
    spans, segments = _read_ranges(ranges), _segments(columns)
    # Which ranges each segment may meet: from the one that begins at or before it to the last before its end.
    place_of = {kind: n for n, kind in enumerate(spans.kinds)}
    # A memory type without ranges sorts behind all others, and finds no range of its own there.
    mems = np.array([place_of.get(kind, len(place_of)) for kind in segments.spans.kinds])[segments.spans.mems]
    first = np.maximum(_count_up_to(spans, mems, segments.spans.devices, segments.spans.firsts) - 1, 0)
    stop = _count_up_to(spans, mems, segments.spans.devices, segments.spans.lasts)
    counts = np.maximum(stop - first, 0)
    owner = np.repeat(np.arange(len(first)), counts)
    span = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + first[owner]
    same = (spans.mems[span] == mems[owner]) & (spans.devices[span] == segments.spans.devices[owner])
    low, high = _blocks_inside(segments, owner, spans, span, same)
    some = low < high
    owner, low, high = owner[some], low[some], high[some]
    _prove_covered(segments, names, spans, owner, low, high)
    base = segments.spans.firsts[owner] + low.astype(U64) * segments.strides[owner]
    rows = np.stack((base, (high - low).astype(U64), segments.spans.devices[owner]), axis=1)
    ends = np.cumsum(np.bincount(segments.regions[owner], minlength=len(columns)))
    begins = ends - np.diff(ends, prepend=0)
    many = np.flatnonzero(ends - begins > 1).tolist()
    pieces = {region: rows[begins[region] : ends[region]] for region in many}
    plain = not pieces and bool((columns.sub_blocks == 1).all() and (columns.runs == 1).all())
    return replace(columns, pieces=pieces, plain=plain)


def _count_up_to(
    spans: _Spans, mems: NDArray[np.int64], devices: NDArray[np.uint64], addrs: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return how many sorted `spans` come before or begin at each address; `mems` counts as they do."""
    asked = np.repeat([0, 1], (len(spans.mems), len(addrs)))
    keys = (
        asked,
        np.concatenate((spans.firsts, addrs)),
        np.concatenate((spans.devices, devices)),
        np.concatenate((spans.mems, mems)),
    )
    order = np.lexsort(keys)
    before = np.cumsum(asked[order] == 0)
    counts = np.empty(len(order), dtype=np.int64)
    counts[order] = before
    return counts[len(spans.mems) :]


def _blocks_inside(
    segments: _Segments,
    owner: NDArray[np.int64],
    spans: _Spans,
    span: NDArray[np.int64],
    same: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first block of each segment inside each range, and the one after the last; none where it is not less.

    `same`: whether both lie in one memory. Numbers stay in uint64: what would be negative is seen by a comparison.
    """
    stride, reach = segments.strides[owner], segments.reaches[owner]
    base, first, last = segments.spans.firsts[owner], spans.firsts[span], spans.lasts[span]
    ahead = np.where(first > base, first - base, U64(0))
    low = ahead // stride + (ahead % stride > 0)
    room = np.where(last >= base, last - base, U64(0))
    fits = same & (last >= base) & (room >= reach - U64(1))
    high = np.where(fits, np.minimum((room - (reach - U64(1))) // stride + U64(1), segments.blocks[owner]), U64(0))
    # A range that begins behind the last block: any number beyond will do.
    low = np.minimum(low, U64(2**62))
    return low.astype(np.int64), high.astype(np.int64)


def _prove_covered(
    segments: _Segments,
    names: Sequence[str],
    spans: _Spans,
    owner: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> None:
    """Every block of every segment lies inside one range: the stretches of each follow one another without a gap."""
    begins = np.ones(len(owner), dtype=np.bool_)
    begins[1:] = owner[1:] != owner[:-1]
    expected = np.where(begins, 0, np.append(0, high[:-1]))
    missing = np.zeros(len(segments.blocks), dtype=np.int64)  # the first block of each segment that no range holds
    last = np.append(begins[1:], True) if len(owner) else begins
    missing[owner[last]] = high[last]
    gaps = np.flatnonzero(low != expected)[::-1]  # of several in one segment the first
    missing[owner[gaps]] = expected[gaps]
    lacking = np.flatnonzero(missing < segments.blocks.astype(np.int64))
    if not len(lacking):
        return
    i = int(lacking[0])
    region, block = int(segments.regions[i]), int(missing[i])
    before = int(segments.blocks[:i][segments.regions[:i] == region].sum())
    reach, where = int(segments.reaches[i]), segments.spans
    start = int(where.firsts[i]) + block * int(segments.strides[i])
    mem, device = where.kinds[where.mems[i]], int(where.devices[i])
    held = (spans.devices == where.devices[i]) & (np.array(spans.kinds, dtype=object)[spans.mems] == mem)
    near = np.flatnonzero(held & (spans.firsts <= U64(start)))
    nearest = f"; the nearest is {spans.text(int(near[-1]))}" if len(near) else ""
    raise GeometryError(
        f"region {names[region]!r}: block {before + block}, [{start:#x}, {start + reach:#x}) of {mem} {device}, lies "
        f"inside none of the ranges{nearest}"
    )
