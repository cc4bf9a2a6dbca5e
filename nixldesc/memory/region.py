"""One region: equally spaced blocks in one memory, and the proof that its geometry can exist.

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
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from nixldesc._check import as_int, as_name, brief, is_many
from nixldesc.errors import GeometryError
from nixldesc.memory.sections import MAX_RUNS, MAX_WOVEN_RUNS, Section, Shape

__all__ = ["Region", "derive", "prove_page", "prove_region"]


@dataclass(frozen=True, slots=True, init=False)
class Region:
    """Equally spaced blocks in one memory.

    `base_addr`, `block_len`, `block_stride` and `sub_stride` are in bytes; `block_stride` defaults to `block_len`.
    `groups` are the KV cache groups whose block lists address this region, in the order in which their lists are
    taken; None stands for every group given. `device_id` is NIXL's (a GPU index; the file descriptor where
    ``mem_type="FILE"``, whose addresses are offsets). `sections` say what a block's bytes mean; without them a block
    is one opaque replicated section named like the region, moved whole or not at all. A region of ``sub_blocks > 1``
    has blocks of `sub_blocks` pieces of `block_len` bytes, `sub_stride` apart, and no sections.

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
    ) -> None:
        name = as_name(name, "region name")
        what = f"region {name!r}: "
        block_len, sub_blocks = as_int(block_len, what + "block_len"), as_int(sub_blocks, what + "sub_blocks")
        sub_stride = block_len if sub_stride is None else as_int(sub_stride, what + "sub_stride")
        if block_stride is None:
            block_stride = block_len if sub_blocks == 1 else sub_blocks * sub_stride
        put = object.__setattr__
        put(self, "name", name)
        put(self, "base_addr", as_int(base_addr, what + "base_addr"))
        put(self, "block_len", block_len)
        put(self, "num_blocks", as_int(num_blocks, what + "num_blocks"))
        put(self, "block_stride", as_int(block_stride, what + "block_stride"))
        put(self, "groups", _groups(groups, what))
        put(self, "mem_type", as_name(mem_type, what + "mem_type"))
        put(self, "device_id", as_int(device_id, what + "device_id"))
        put(self, "sections", _sections(sections, self, sub_blocks))
        put(self, "sub_blocks", sub_blocks)
        put(self, "sub_stride", sub_stride)

    @property
    def span(self) -> int:
        """Bytes from the first byte of the first block to the last byte of the last.

        >>> Region("k", 0, 24, 3, block_stride=32).span
        88
        """
        return (self.num_blocks - 1) * self.block_stride + (self.sub_blocks - 1) * self.sub_stride + self.block_len

    @property
    def num_descs(self) -> int:
        """Descriptors of the region: one per block and sub-block.

        >>> Region("k", 0, 8, 3, sub_blocks=4).num_descs
        12
        """
        return self.num_blocks * self.sub_blocks

    @property
    def evenly_spaced(self) -> bool:
        """Whether one strided row covers all sub-blocks of all blocks.

        >>> [Region("k", 0, 8, 3, sub_blocks=4, block_stride=stride).evenly_spaced for stride in (32, 48)]
        [True, False]
        """
        return self.sub_blocks == 1 or self.num_blocks == 1 or self.sub_blocks * self.sub_stride == self.block_stride

    def rows(self) -> list[tuple[int, int, int, int, int]]:
        """Strided rows ``(addr, len, dev, stride, count)`` of the region, in desc-id order.

        >>> Region("k", 4096, 8, 3, sub_blocks=2, block_stride=64).rows()
        [(4096, 8, 0, 64, 3), (4104, 8, 0, 64, 3)]
        """
        base, length, device = self.base_addr, self.block_len, self.device_id
        if self.sub_blocks == 1:
            return [(base, length, device, self.block_stride, self.num_blocks)]
        if self.evenly_spaced:
            return [(base, length, device, self.sub_stride, self.num_descs)]
        starts = range(base, base + self.sub_blocks * self.sub_stride, self.sub_stride)
        return [(start, length, device, self.block_stride, self.num_blocks) for start in starts]


# The slots' own setters: how the fields of a frozen Region are set at a third less than object.__setattr__ takes.
(
    _put_name,
    _put_base_addr,
    _put_block_len,
    _put_num_blocks,
    _put_block_stride,
    _put_groups,
    _put_mem_type,
    _put_device_id,
    _put_sections,
    _put_sub_blocks,
    _put_sub_stride,
) = (getattr(Region, field).__set__ for field in Region.__slots__)


def derive(region: Region, offset: int, block_len: int, sub_blocks: int = 1, sub_stride: int = 0) -> Region:
    """Return the region of one run inside each block of `region`; trusted: the caller took it from a proven page.

    Skips the checks of ``Region(...)``: a plan makes thousands of these and every one lies inside a proven block.
    """
    derived = object.__new__(Region)
    _put_name(derived, f"{region.name}@{offset}")
    _put_base_addr(derived, region.base_addr + offset)
    _put_block_len(derived, block_len)
    _put_num_blocks(derived, region.num_blocks)
    _put_block_stride(derived, region.block_stride)
    _put_groups(derived, region.groups)
    _put_mem_type(derived, region.mem_type)
    _put_device_id(derived, region.device_id)
    _put_sections(derived, ())
    _put_sub_blocks(derived, sub_blocks)
    _put_sub_stride(derived, sub_stride or block_len)
    return derived


def _groups(groups: Any, what: str) -> tuple[int, ...] | None:
    if groups is None:
        return None
    if not is_many(groups):
        raise TypeError(f"{what}groups must be a tuple of group indices or None, got {brief(groups)}")
    return tuple(as_int(group, f"{what}groups[{i}]") for i, group in enumerate(groups))


def _sections(sections: Any, region: Region, sub_blocks: int) -> tuple[Section, ...]:
    if sections is None:
        if sub_blocks != 1 or region.block_len <= 0:
            return ()
        return (Section(region.name, (), region.block_len),)
    if not is_many(sections):
        raise TypeError(f"region {region.name!r}: sections must be a sequence of Section, got {brief(sections)}")
    found = tuple(sections)
    for item in found:
        if not isinstance(item, Section):
            raise TypeError(f"region {region.name!r}: sections must be Section objects, got {brief(item)}")
    return found


def prove_region(region: Region) -> None:
    """Raise :class:`GeometryError` unless the region's blocks and addresses can exist (Python integers, no limits)."""
    what = f"region {region.name!r}: "
    for field in ("block_len", "num_blocks", "sub_blocks", "sub_stride"):
        if getattr(region, field) <= 0:
            raise GeometryError(f"{what}{field} must be positive, got {getattr(region, field)}")
    for field in ("block_len", "block_stride", "sub_stride"):
        if getattr(region, field) >= 2**64:
            raise GeometryError(
                f"{what}{field} is {getattr(region, field)} bytes, beyond the 64 bits of a table's entry"
            )
    if region.base_addr < 0 or not 0 <= region.device_id < 2**64:
        raise GeometryError(
            f"{what}base_addr and device_id must not be negative, nor device_id beyond 64 bits, "
            f"got {region.base_addr} and {region.device_id}"
        )
    if region.sub_blocks == 1 and region.block_stride < region.block_len:
        raise GeometryError(
            f"{what}block_stride is {region.block_stride} bytes, less than block_len {region.block_len}"
        )
    if region.sub_blocks > 1:
        _prove_sub_blocks(region, what)
    if region.base_addr + region.span > 2**64:
        raise GeometryError(
            f"{what}ends at address {region.base_addr + region.span:#x}, beyond 2**64 "
            f"(base_addr {region.base_addr:#x}, {region.num_blocks} blocks, {region.block_stride} bytes apart)"
        )
    groups = region.groups or ()
    if len(set(groups)) != len(groups) or any(not 0 <= group < 2**31 for group in groups):
        raise GeometryError(f"{what}groups must be distinct indices from 0, got {brief(groups)}")
    if region.groups == ():
        raise GeometryError(f"{what}groups is empty: no block list would ever address it; None means every group")


def _prove_sub_blocks(region: Region, what: str) -> None:
    if region.sub_stride < region.block_len:
        raise GeometryError(f"{what}sub_stride is {region.sub_stride} bytes, less than block_len {region.block_len}")
    reach = (region.sub_blocks - 1) * region.sub_stride + region.block_len
    if reach > region.block_stride:
        raise GeometryError(
            f"{what}{region.sub_blocks} sub-blocks of {region.block_len} bytes, {region.sub_stride} apart, reach byte "
            f"{reach}, but block_stride is {region.block_stride}"
        )
    if region.sections:
        raise GeometryError(f"{what}a region cut into sub_blocks has no sections, got {len(region.sections)}")


def prove_page(region: Region, seen: dict[tuple[Shape, ...], int], budget: int = MAX_RUNS) -> int:
    """Prove that the sections lie inside the block and share no bytes; return what is left of `budget`.

    `seen` remembers proven shapes: a layout of 160 equal layers proves one page. `budget` bounds, over one layout,
    the separate runs of bytes that a (perhaps hostile) description may make anybody enumerate.
    """
    key = tuple(section.shape for section in region.sections)
    known = seen.get(key)
    end = max((section.end for section in region.sections), default=0) if known is None else known
    if end > region.block_len:
        last = max(region.sections, key=lambda section: section.end)
        raise GeometryError(
            f"region {region.name!r}: section {last.name!r} ends at byte {end}, outside the block of "
            f"{region.block_len} bytes"
        )
    if known is None:
        budget -= sum(_count_runs(section) for section in region.sections)
        if budget < 0:
            raise GeometryError(
                f"region {region.name!r}: the layout's pages have more than {MAX_RUNS} separate runs of bytes"
            )
        _prove_disjoint(region)
        seen[key] = end
    return budget


def _count_runs(section: Section) -> int:
    count = 1
    for size, _ in section.runs()[1]:
        count *= size
    return count


def _prove_disjoint(region: Region) -> None:
    """No byte belongs to two sections: by their hulls where those lie apart, run by run where they interleave."""
    order = sorted(region.sections, key=lambda section: section.offset)
    if all(a.end <= b.offset for a, b in pairwise(order)):
        return
    if sum(map(_count_runs, order)) > MAX_WOVEN_RUNS:
        raise GeometryError(
            f"region {region.name!r}: its sections interleave in more than {MAX_WOVEN_RUNS} separate runs of bytes"
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
            f"region {region.name!r}: sections {first.name!r} and {second.name!r} share byte {start[shared[0] + 1]} "
            f"of the block"
        )
