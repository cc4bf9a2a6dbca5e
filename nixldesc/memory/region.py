"""One region: equally spaced blocks, in one memory or numbered through over several, as an object to look at.

::

    base_addr                      block_stride
    |<---------------------------------------------->|
    +-------------------------------------+----------+-------------------------------------+----------+--
    | block 0: block_len bytes            | padding  | block 1                             | padding  | ...
    +-------------------------------------+----------+-------------------------------------+----------+--

    cut into sub_blocks = 3 (what plans are made of: the two sides' blocks hold different numbers of tokens)

    |<-- sub_stride -->|
    +-----------+------+-----------+------+-----------+-------+-----------+--
    | k = 0     |      | k = 1     |      | k = 2     |       | block 1   | ...     each sub-block: block_len bytes
    +-----------+------+-----------+------+-----------+-------+-----------+--
    |<----------------- block_stride ------------------------>|

    and each (sub-)block taken as runs = 2 pieces of block_len bytes, run_stride apart (columns, a head of every token)

    | j = 0 |    | j = 1 |      | j = 0 |    | j = 1 |       flat index (block * sub_blocks + k) * runs + j
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, as_name, brief, is_many
from nixldesc.errors import GeometryError
from nixldesc.memory.sections import Section

__all__ = ["Region", "made_region", "total_blocks"]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Region:
    """Equally spaced blocks in one memory, or one space of block ids over several (:meth:`segmented`).

    `base_addr`, `block_len`, `block_stride`, `sub_stride` and `run_stride` are in bytes; `block_stride` defaults to
    `block_len`. `groups` are the KV cache groups whose block lists address this region, in the order in which their
    lists are taken; None stands for every group given. `device_id` is NIXL's (a GPU index; the file descriptor where
    ``mem_type="FILE"``, whose addresses are offsets; the object where ``mem_type="OBJ"``). `sections` say what a
    block's bytes mean; without them a block is one opaque replicated section named like the region, moved whole or not
    at all. A region of ``sub_blocks > 1`` has blocks of `sub_blocks` pieces of `block_len` bytes, `sub_stride` apart,
    and no sections; with ``runs > 1`` each of these is `runs` pieces, `run_stride` apart.

    Making a Region checks types only (:class:`TypeError`); :class:`nixldesc.Layout` proves the geometry.

    >>> Region("layer0", 0x10000, 4096, 100, block_stride=8192, groups=(0,)).span
    815104
    """

    name: str
    base_addr: int
    block_len: int
    num_blocks: int
    block_stride: int
    groups: tuple[int, ...] | None
    mem_type: str
    device_id: int
    sections: tuple[Section, ...]
    sub_blocks: int
    sub_stride: int
    runs: int
    run_stride: int
    #: Raw uint64 rows (base, blocks, device) of a region in several memories; empty for one memory.
    _pieces: bytes = field(repr=False)

    def __init__(
        self,
        name: str,
        base_addr: int,
        block_len: int,
        num_blocks: int,
        *,
        block_stride: int | None = None,
        groups: Iterable[int] | None = None,
        mem_type: str = "VRAM",
        device_id: int = 0,
        sections: Iterable[Section] | None = None,
        sub_blocks: int = 1,
        sub_stride: int | None = None,
        runs: int = 1,
        run_stride: int | None = None,
    ) -> None:
        name = as_name(name, "region name")
        what = f"region {name!r}: "
        block_len, sub_blocks = as_int(block_len, what + "block_len"), as_int(sub_blocks, what + "sub_blocks")
        runs = as_int(runs, what + "runs")
        run_stride = block_len if run_stride is None else as_int(run_stride, what + "run_stride")
        whole = block_len if runs == 1 else runs * run_stride
        sub_stride = whole if sub_stride is None else as_int(sub_stride, what + "sub_stride")
        if block_stride is None:
            block_stride = whole if sub_blocks == 1 else sub_blocks * sub_stride
        put = object.__setattr__
        put(self, "name", name)
        put(self, "base_addr", as_int(base_addr, what + "base_addr"))
        put(self, "block_len", block_len)
        put(self, "num_blocks", as_int(num_blocks, what + "num_blocks"))
        put(self, "block_stride", as_int(block_stride, what + "block_stride"))
        put(self, "groups", _groups(groups, what))
        put(self, "mem_type", as_name(mem_type, what + "mem_type"))
        put(self, "device_id", as_int(device_id, what + "device_id"))
        put(self, "sections", _sections(sections, name, block_len, sub_blocks * runs))
        put(self, "sub_blocks", sub_blocks)
        put(self, "sub_stride", sub_stride)
        put(self, "runs", runs)
        put(self, "run_stride", run_stride)
        put(self, "_pieces", b"")

    @classmethod
    def segmented(
        cls,
        name: str,
        block_len: int,
        segments: Sequence[Sequence[int]] | NDArray[np.integer[Any]],
        *,
        block_stride: int | None = None,
        groups: Iterable[int] | None = None,
        mem_type: str = "VRAM",
        sections: Iterable[Section] | None = None,
    ) -> Region:
        """Return one space of block ids over several memories: a pool registered in pieces, files, objects.

        `segments`: rows ``(base_addr, num_blocks)`` or ``(base_addr, num_blocks, device_id)``, as a sequence or an
        integer array; blocks are numbered through. Each segment is a row of its own in the table, the ids do not
        notice. `num_blocks` of the region is their sum, `base_addr` and `device_id` are the first one's.

        Raises :class:`GeometryError` for no segments, rows of another length and numbers that leave 64 bits;
        :class:`TypeError` for anything but integers.

        >>> region = Region.segmented("pool", 16, [(0x1000, 4), (0x9000, 2)])
        >>> region.num_blocks, region.segments.tolist()
        (6, [[4096, 4, 0], [36864, 2, 0]])
        """
        name = as_name(name, "region name")
        rows = _read_segments(segments, f"region {name!r}: segments")
        total = total_blocks(rows)
        region = cls(
            name,
            int(rows[0, 0]),
            block_len,
            total,
            block_stride=block_stride,
            groups=groups,
            mem_type=mem_type,
            device_id=int(rows[0, 2]),
            sections=sections,
        )
        if len(rows) > 1:
            object.__setattr__(region, "_pieces", rows.tobytes())
        return region

    def __repr__(self) -> str:
        words = [repr(self.name), f"base_addr={self.base_addr:#x}", f"block_len={self.block_len}"]
        words += [f"num_blocks={self.num_blocks}", f"block_stride={self.block_stride}", f"groups={self.groups}"]
        words += [f"mem_type={self.mem_type!r}", f"device_id={self.device_id}"]
        if self.sections:
            words.append(f"sections={self.sections!r}")
        if self.sub_blocks != 1:
            words.append(f"sub_blocks={self.sub_blocks}, sub_stride={self.sub_stride}")
        if self.runs != 1:
            words.append(f"runs={self.runs}, run_stride={self.run_stride}")
        if self._pieces:
            words.append(f"{len(self.segments):,} segments")
        return f"Region({', '.join(words)})"

    def with_sections(self, sections: Iterable[Section]) -> Region:
        """Return the region of the same blocks that hold these sections, and are as long as these need.

        For bytes of which an array's shape says nothing (vectorised keys, tiles, a state behind a tensor of another
        shape): :func:`nixldesc.array_regions` finds the blocks, this says what is in them.

        Raises :class:`GeometryError` where a block is cut into pieces, or holds nothing; :class:`TypeError` for
        anything but sections.

        >>> from nixldesc import Axis, Section
        >>> page = Section("k", [Axis("dim", 0, 4), Axis("token", 0, 2)], 2)
        >>> region = Region("cache", 4096, 32, 10, block_stride=64).with_sections([page])
        >>> region.base_addr, region.block_len, region.block_stride, region.sections == (page,)
        (4096, 16, 64, True)
        """
        if self.sub_blocks * self.runs > 1:
            raise GeometryError(f"region {self.name!r}: a region cut into sub_blocks has no sections")
        page = _sections(sections, self.name, self.block_len, 1)
        if not page:
            raise GeometryError(f"region {self.name!r}: sections is empty: a block holds at least one")
        length = max([section.end for section in page])
        other = {"block_len": length, "sub_stride": length, "run_stride": length, "sections": page}
        return made_region(*[other.get(slot, getattr(self, slot)) for slot in self.__slots__])

    @property
    def segments(self) -> NDArray[np.uint64]:
        """The memories that the blocks lie in: uint64[n, 3], rows ``(base_addr, num_blocks, device_id)``, read-only.

        >>> Region("k", 4096, 16, 3, device_id=1).segments.tolist()
        [[4096, 3, 1]]
        """
        if self._pieces:
            return np.frombuffer(self._pieces, dtype=np.uint64).reshape(-1, 3)
        rows = np.array([[self.base_addr, self.num_blocks, self.device_id]], dtype=np.uint64)
        rows.flags.writeable = False
        return rows

    @property
    def span(self) -> int:
        """Bytes from the first byte of the first block to the last byte of the last, of a region in one memory.

        >>> Region("k", 0, 24, 3, block_stride=32).span
        88
        """
        return (self.num_blocks - 1) * self.block_stride + self.reach

    @property
    def reach(self) -> int:
        """Bytes from the first byte of a block to its last: `block_len`, or to the end of its last piece.

        >>> Region("k", 0, 8, 3, sub_blocks=2, sub_stride=16).reach
        24
        """
        return (self.sub_blocks - 1) * self.sub_stride + (self.runs - 1) * self.run_stride + self.block_len

    @property
    def num_descs(self) -> int:
        """Descriptors of the region: one per block, sub-block and run.

        >>> Region("k", 0, 8, 3, sub_blocks=4).num_descs
        12
        """
        return self.num_blocks * self.sub_blocks * self.runs


# The slots' own setters: how the fields of a frozen Region are set at a third less than object.__setattr__ takes.
_SETTERS = tuple(getattr(Region, slot).__set__ for slot in Region.__slots__)


def total_blocks(segments: NDArray[np.uint64]) -> int:
    """Return the blocks of all segments, uint64[n, 3]; in Python integers where 64 bits might not hold the sum.

    >>> total_blocks(np.array([[0, 4, 0], [64, 2, 0]], dtype=np.uint64))
    6
    """
    blocks = segments[:, 1]
    if len(blocks) * int(blocks.max()) < 2**64:
        return int(blocks.sum())
    return sum(blocks.tolist())


def made_region(*values: Any) -> Region:
    """Return a region of the given fields, in their order; trusted: they come from a proven layout's columns."""
    region = object.__new__(Region)
    for put, value in zip(_SETTERS, values, strict=True):
        put(region, value)
    return region


def _groups(groups: Any, what: str) -> tuple[int, ...] | None:
    if groups is None:
        return None
    if not is_many(groups):
        raise TypeError(f"{what}groups must be a tuple of group indices or None, got {brief(groups)}")
    return tuple(as_int(group, f"{what}groups[{i}]") for i, group in enumerate(groups))


def _sections(sections: Any, name: str, block_len: int, pieces: int) -> tuple[Section, ...]:
    if sections is None:
        if pieces != 1 or block_len <= 0:
            return ()
        return (Section(name, (), block_len),)
    if not is_many(sections):
        raise TypeError(f"region {name!r}: sections must be a sequence of Section, got {brief(sections)}")
    found = tuple(sections)
    for item in found:
        if not isinstance(item, Section):
            raise TypeError(f"region {name!r}: sections must be Section objects, got {brief(item)}")
    return found


def _read_segments(segments: Any, what: str) -> NDArray[np.uint64]:
    """Return rows (base, blocks, device) as uint64[n, 3]; their geometry is proven where a Layout is made."""
    if isinstance(segments, np.ndarray):
        if segments.dtype.kind not in "iu":
            raise TypeError(f"{what} must hold integers, got an array of dtype {segments.dtype}")
        if segments.ndim != 2 or segments.shape[1] not in (2, 3):
            raise GeometryError(f"{what} must be rows of 2 or 3 integers, got an array of shape {segments.shape}")
        if segments.size and int(segments.min()) < 0:
            raise GeometryError(f"{what} must not be negative, got {int(segments.min())}")
        rows = np.zeros((len(segments), 3), dtype=np.uint64)
        rows[:, : segments.shape[1]] = segments
    else:
        rows = _rows_of_tuples(segments, what)
    if not len(rows):
        raise GeometryError(f"{what} is empty: a region has at least one")
    return rows


def _rows_of_tuples(segments: Any, what: str) -> NDArray[np.uint64]:
    if not is_many(segments):
        raise TypeError(
            f"{what} must be rows of (base_addr, num_blocks) or (base_addr, num_blocks, device_id), got "
            f"{brief(segments)}"
        )
    items = list(segments)
    kinds = set(map(type, items))
    if not kinds <= {tuple, list}:
        odd = next(i for i, item in enumerate(items) if type(item) not in (tuple, list))
        raise TypeError(f"{what}[{odd}] must be (base_addr, num_blocks[, device_id]), got {brief(items[odd])}")
    widths = set(map(len, items))
    if not widths <= {2, 3}:
        odd = next(i for i, item in enumerate(items) if len(item) not in (2, 3))
        raise GeometryError(f"{what}[{odd}] must have 2 or 3 numbers, got {len(items[odd])}")
    if len(widths) > 1:
        items = [(*item, 0) if len(item) == 2 else item for item in items]
    numbers = list(chain.from_iterable(items))
    if set(map(type, numbers)) - {int}:
        width = max(widths)
        numbers = [as_int(n, f"{what}[{i // width}]") for i, n in enumerate(numbers)]
    if numbers and not (min(numbers) >= 0 and max(numbers) < 2**64):
        raise GeometryError(f"{what} must be numbers from 0 to 2**64 - 1, got {min(numbers)} to {max(numbers)}")
    rows = np.zeros((len(items), 3), dtype=np.uint64)
    if items:
        rows[:, : max(widths)] = np.array(numbers, dtype=np.uint64).reshape(len(items), -1)
    return rows
