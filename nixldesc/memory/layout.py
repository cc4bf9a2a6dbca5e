"""A rank's registered memory as descriptors: the order of descriptors is decided here, once.

Regions one after the other; inside a region its blocks (its sub-blocks, where blocks are cut)::

    region          k (4 blocks)      v (3 blocks)     s (2 blocks of 2 sub-blocks, unevenly spaced)
    desc id         0  1  2  3        4  5  6          7    8    9    10
    means block     0  1  2  3        0  1  2          0.0  1.0  0.1  1.1           block.sub-block
    table row       0                 1                2         3
    starts          0                 4                7                   11 = num_descs

NIXL counts the same way: the id of a descriptor is its position in the expanded list (nixl 1.5.1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, as_names, brief, check_ids_out, few, is_many
from nixldesc.errors import BlockIdError, GeometryError
from nixldesc.kernels import _kernels
from nixldesc.memory import columns as _columns
from nixldesc.memory import wire as _wire
from nixldesc.memory.ids import (
    MAX_LISTS,
    BlockIds,
    Fault,
    group_lists,
    list_at,
    out_of_range,
    readable_lists,
    word_reading,
)
from nixldesc.memory.programs import layout_program
from nixldesc.memory.region import Region, prove_page, prove_region
from nixldesc.memory.rows import expand_table, row_starts
from nixldesc.memory.sections import MAX_RUNS, Shape

__all__ = ["MAX_CP_SIZE", "MAX_DESCS", "Layout"]

#: NIXL's prepared indices are int32.
MAX_DESCS = 2**31 - 1
#: More context-parallel ranks than any engine has; bounds what a stranger's layout can make a plan look through.
MAX_CP_SIZE = 2**12

Order = Literal["region", "group"]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Layout:
    """What one rank has registered: regions, and its place under context parallelism.

    Under context parallelism (``cp_size > 1``) the rank holds only block positions ``cp_rank, cp_rank + cp_size, ...``
    of every section that has a token axis. Frozen, hashable, equal by value.

    Making a Layout proves, in Python integers, everything that later arithmetic relies on, and raises
    :class:`GeometryError` otherwise: positive sizes, stride >= len, sub-blocks inside their block, addresses inside
    2**64, sections inside the block and sharing no bytes, unique region and section names, at most 2**31 - 1
    descriptors. Regions may share memory under different names.

    >>> layout = Layout([Region("k", 0x1000, 16, 4), Region("v", 0x2000, 16, 3)])
    >>> layout.num_descs, layout.starts.tolist()
    (7, [0, 4, 7])
    >>> layout.desc_ids([[2, 0]]).tolist()
    [2, 0, 6, 4]
    """

    regions: tuple[Region, ...]
    cp_rank: int
    cp_size: int
    _starts: NDArray[np.int64] = field(repr=False, compare=False)
    _cache: dict[Any, Any] = field(repr=False, compare=False, hash=False)
    _latest: _kernels.LayoutProgram | None = field(repr=False, compare=False, hash=False)

    def __init__(self, regions: Iterable[Region], *, cp_rank: int = 0, cp_size: int = 1) -> None:
        if not is_many(regions):
            raise TypeError(f"regions must be a sequence of Region, got {brief(regions)}")
        regions = tuple(regions)
        for i, region in enumerate(regions):
            if not isinstance(region, Region):
                raise TypeError(f"regions[{i}] must be a Region, got {brief(region)}")
        cp_rank, cp_size = as_int(cp_rank, "cp_rank"), as_int(cp_size, "cp_size")
        if not 0 <= cp_rank < cp_size <= MAX_CP_SIZE:
            raise GeometryError(
                f"cp_rank must be in 0 to cp_size - 1, and cp_size at most {MAX_CP_SIZE}, got rank {cp_rank} of "
                f"{cp_size}"
            )
        _prove(regions)
        _fill(self, regions, cp_rank, cp_size)

    @classmethod
    def from_columns(
        cls,
        *,
        base_addrs: Sequence[int],
        block_lens: Sequence[int],
        num_blocks: int | Sequence[int],
        block_strides: Sequence[int] | None = None,
        group_ids: Sequence[int | Sequence[int]] | None = None,
        names: Sequence[str] | None = None,
        mem_types: str | Sequence[str] | None = None,
        device_ids: int | Sequence[int] = 0,
        sections: Sequence[Sequence[Any] | None] | None = None,
        sub_blocks: int | Sequence[int] | None = None,
    ) -> Layout:
        """Return a layout from the parallel lists that connectors exchange today, one entry per region.

        `num_blocks`, `device_ids`, `mem_types` and `sub_blocks` may be one value for all regions. `group_ids` uses -1
        for "every group". Names default to ``region0``, ``region1``, ... Addresses and lengths in bytes.

        Raises :class:`GeometryError` for columns of unequal length and whatever :class:`Layout` refuses.

        >>> Layout.from_columns(base_addrs=[4096, 8192], block_lens=[16, 16], num_blocks=4, group_ids=[0, -1])
        Layout(2 regions, 8 descriptors)
        """
        return cls(
            _columns.regions_from_columns(
                base_addrs=base_addrs,
                block_lens=block_lens,
                num_blocks=num_blocks,
                block_strides=block_strides,
                group_ids=group_ids,
                names=names,
                mem_types=mem_types,
                device_ids=device_ids,
                sections=sections,
                sub_blocks=sub_blocks,
            )
        )

    def __repr__(self) -> str:
        cp = f", cp rank {self.cp_rank} of {self.cp_size}" if self.cp_size > 1 else ""
        return f"Layout({len(self.regions)} regions, {self.num_descs:,} descriptors{cp})"

    def __reduce__(self) -> tuple[Callable[..., Layout], tuple[Any, ...]]:
        return partial(Layout, cp_rank=self.cp_rank, cp_size=self.cp_size), (self.regions,)

    def __hash__(self) -> int:
        return int(self._once("hash", lambda: hash((self.regions, self.cp_rank, self.cp_size))))

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        # Computed from frozen fields: two threads that race here compute the same value.
        try:
            return self._cache[key]
        except KeyError:
            return self._cache.setdefault(key, make())

    # ------------------------------------------------------------------------------------------------ descriptors

    @property
    def num_descs(self) -> int:
        """Descriptors of the layout.

        >>> Layout([Region("k", 0, 16, 4)]).num_descs
        4
        """
        return int(self._starts[-1])

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first desc id of each region, then the total: int64[regions + 1], read-only.

        >>> Layout([Region("k", 0, 16, 4), Region("v", 64, 16, 4)]).starts
        array([0, 4, 8])
        """
        return self._starts

    def table(self) -> NDArray[np.uint64]:
        """Return the strided table: uint64[rows, 5], rows ``(addr, len, dev, stride, count)`` in desc-id order.

        C-contiguous, read-only, made once. One row per region (bytes; `count` blocks `stride` apart), but `sub_blocks`
        rows where a region's sub-blocks do not lie at one even spacing. nixl >= 1.5 prepares it as it is.

        >>> Layout([Region("k", 4096, 16, 4, block_stride=32)]).table()
        array([[4096,   16,    0,   32,    4]], dtype=uint64)
        """
        table: NDArray[np.uint64] = self._once("table", self._make_table)
        return table

    def _make_table(self) -> NDArray[np.uint64]:
        rows = [row for region in self.regions for row in region.rows()]
        table = np.array(rows, dtype=np.uint64).reshape(-1, 5)
        table.flags.writeable = False
        return table

    def dense_table(self, out: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
        """Return every descriptor: uint64[num_descs, 3], rows ``(addr, len, dev)`` in desc-id order.

        For nixl before 1.5 and for engines without strided lists. `out` as in :func:`nixldesc.expand_table`.

        >>> Layout([Region("k", 4096, 16, 2, block_stride=32)]).dense_table()
        array([[4096,   16,    0],
               [4128,   16,    0]], dtype=uint64)
        """
        return expand_table(self.table(), out)

    def row_index(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return where the table's rows begin (int64[rows + 1], the total last) and each row's region (int32[rows]).

        >>> [part.tolist() for part in Layout([Region("k", 0, 8, 3, sub_blocks=2, block_stride=64)]).row_index()]
        [[0, 3, 6], [0, 0]]
        """
        index: tuple[NDArray[np.int64], NDArray[np.int32]] = self._once("rows", self._make_row_index)
        return index

    def _make_row_index(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        counts = [1 if region.evenly_spaced else region.sub_blocks for region in self.regions]
        index = row_starts(self.table()), np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        for part in index:
            part.flags.writeable = False
        return index

    def _check_desc_id(self, desc_id: int) -> int:
        desc_id = as_int(desc_id, "desc_id", BlockIdError)
        if not 0 <= desc_id < self.num_descs:
            raise BlockIdError(f"desc id {desc_id} is out of range, the layout has {self.num_descs} descriptors")
        return desc_id

    def locate(self, desc_id: int) -> tuple[int, int]:
        """Return ``(region index, flat block index)`` of a desc id; flat is ``block * sub_blocks + k``.

        Raises :class:`BlockIdError` out of range.

        >>> Layout([Region("k", 0, 16, 4), Region("v", 64, 16, 4)]).locate(6)
        (1, 2)
        """
        desc_id = self._check_desc_id(desc_id)
        index = bisect_right(self._starts, desc_id) - 1
        region, local = self.regions[index], desc_id - int(self._starts[index])
        if region.evenly_spaced:
            return index, local
        k, block = divmod(local, region.num_blocks)
        return index, block * region.sub_blocks + k

    def address(self, desc_id: int) -> tuple[int, int, int]:
        """Return ``(addr, len, dev)`` of a desc id, in Python integers. Raises :class:`BlockIdError` out of range.

        >>> Layout([Region("k", 4096, 16, 4, block_stride=32)]).address(3)
        (4192, 16, 0)
        """
        index, flat = self.locate(desc_id)
        region = self.regions[index]
        block, k = divmod(flat, region.sub_blocks)
        addr = region.base_addr + block * region.block_stride + k * region.sub_stride
        return addr, region.block_len, region.device_id

    # ----------------------------------------------------------------------------------------------- per request

    def desc_ids(
        self, block_ids: Sequence[BlockIds], *, order: Order = "region", out: NDArray[np.int32] | None = None
    ) -> NDArray[np.int32]:
        """Return the desc ids of a request's blocks: int32, C-contiguous, in range.

        `block_ids` holds one list per KV cache group (list, tuple, range, or integer array of any integer dtype; read
        once). ``order="region"``: region by region, inside it the region's groups in their order, inside them blocks
        as given. ``order="group"``: group by group, inside it region by region. Each block of a region with
        sub-blocks gives its `sub_blocks` ids in order. Empty lists are fine.

        Raises :class:`BlockIdError` for an id out of range, a missing list and a non-empty list that no region takes;
        :class:`TypeError` for ids that are no integers; for `out` (exact size, C-contiguous, writable, sharing no
        memory with `block_ids`) :class:`ValueError`, and :class:`TypeError` for its dtype.

        >>> layout = Layout([Region("a", 0, 16, 4, groups=(0,)), Region("b", 64, 16, 10, groups=(1,)),
        ...                  Region("c", 224, 16, 3, groups=(0,))])
        >>> layout.desc_ids([[2], [7]]).tolist(), layout.desc_ids([[2], [7]], order="group").tolist()
        ([2, 11, 16], [2, 16, 11])
        """
        # The common request, in the fewest steps: equal to what follows for it.
        program = self._latest
        if order == "region" and out is None and program is not None:
            result = program.run(block_ids, None)
            if type(result) is not tuple:  # isinstance() would be a twentieth of a small request
                return result  # type: ignore[return-value]
            if result[0] != _kernels.UNREAD:
                raise self._word(Fault(*result), block_ids)
        lists: Sequence[Any] = tuple(group_lists(block_ids, "block_ids"))
        if out is not None:
            check_ids_out(out, *lists)
        result = self._program(order, len(lists)).run(lists, out)
        if isinstance(result, tuple) and result[0] == _kernels.UNREAD:
            lists = readable_lists(lists, "block_ids")
            result = self._program(order, len(lists)).run(lists, out)
        if isinstance(result, tuple):
            raise self._word(Fault(*result), lists)
        return result

    def _program(self, order: Order, num_lists: int) -> _kernels.LayoutProgram:
        if order not in ("region", "group"):
            raise ValueError(f"order must be 'region' or 'group', got {brief(order)}")
        program: _kernels.LayoutProgram | None = self._cache.get((order, num_lists))
        if program is None:
            self._check_lists(num_lists)
            program = layout_program(self.regions, self._starts.tolist(), order, num_lists)
            self._cache[order, num_lists] = program
        if order == "region":
            object.__setattr__(self, "_latest", program)
        return program

    def _check_lists(self, num_lists: int) -> None:
        user = max(self.regions, key=lambda region: max(region.groups or (-1,)), default=None)
        if user is not None and max(user.groups or (-1,)) >= num_lists:
            raise BlockIdError(
                f"block_ids has {num_lists} lists, but region {user.name!r} takes group {max(user.groups or ())}; "
                f"give one list per group, an empty one where there is nothing"
            )
        if num_lists > MAX_LISTS:
            raise BlockIdError(f"block_ids has {num_lists} lists; one list per KV cache group is expected")

    def _word(self, fault: Fault, block_ids: Sequence[BlockIds]) -> Exception:
        where, ids = f"group {fault.group}", list_at(block_ids, fault.group)
        if fault.code == _kernels.OUT_SIZE:
            return ValueError(f"out holds {fault.position} ids, the request has {fault.extra}")
        if fault.code == _kernels.UNSERVED:
            return BlockIdError(
                f"{where} has {fault.extra} block ids, but no region takes that group; regions take groups "
                f"{sorted({group for region in self.regions for group in region.groups or ()})}"
            )
        if fault.code == _kernels.OUT_OF_RANGE:
            takers = [r for r in self.regions if r.groups is None or fault.group in r.groups]
            least = min(takers, key=lambda region: region.num_blocks)
            return out_of_range(where, ids, fault.position, least.name, least.num_blocks)
        return word_reading(fault, where, ids)

    def skip_before(self, position: int) -> int:
        """Return how many entries of this rank's list stand before global block `position`.

        It is what to pass as ``skip`` for a cached prefix of `position` blocks under context parallelism.

        >>> Layout([Region("k", 0, 16, 4)], cp_rank=1, cp_size=2).skip_before(4)
        2
        """
        position = as_int(position, "position", BlockIdError)
        return max(0, -((self.cp_rank - position) // self.cp_size))

    # ------------------------------------------------------------------------------------------- parts and passport

    def by_mem_type(self) -> dict[str, Layout]:
        """Return a layout per memory type, in order of first appearance; regions keep their order.

        >>> mixed = Layout([Region("a", 0, 16, 4), Region("b", 0, 16, 4, mem_type="DRAM")])
        >>> {mem: part.num_descs for mem, part in mixed.by_mem_type().items()}
        {'VRAM': 4, 'DRAM': 4}
        """
        kinds = dict.fromkeys(region.mem_type for region in self.regions)
        return {kind: self._part(r for r in self.regions if r.mem_type == kind) for kind in kinds}

    def select(self, names: Iterable[str]) -> Layout:
        """Return the layout of the named regions, in the order of `names`.

        Raises :class:`GeometryError` for a name that is not here or given twice, :class:`TypeError` for a bare str.

        >>> Layout([Region("k", 0, 16, 4), Region("v", 64, 16, 3)]).select(["v"]).num_descs
        3
        """
        by_name = {region.name: region for region in self.regions}
        wanted = as_names(names, "names")
        for name in wanted:
            if name not in by_name:
                raise GeometryError(f"select: there is no region {name!r}; regions are {few(by_name)}")
        return Layout([by_name[name] for name in wanted], cp_rank=self.cp_rank, cp_size=self.cp_size)

    def _part(self, regions: Iterable[Region]) -> Layout:
        return derived_layout(tuple(regions), self.cp_rank, self.cp_size)

    def memory_ranges(self) -> list[tuple[int, int, int, str]]:
        """Return ``(addr, len, device_id, mem_type)`` ranges that cover all regions, for registration.

        Overlapping ranges of one memory are joined; merely touching ones are kept apart, for they may be separate
        registrations. Sorted by memory type, device and address.

        >>> Layout([Region("a", 0, 16, 4), Region("view", 0, 32, 2), Region("b", 64, 16, 1)]).memory_ranges()
        [(0, 64, 0, 'VRAM'), (64, 16, 0, 'VRAM')]
        """
        spans = sorted((r.mem_type, r.device_id, r.base_addr, r.base_addr + r.span) for r in self.regions)
        joined: list[tuple[str, int, int, int]] = []
        for mem, device, start, stop in spans:
            if joined and joined[-1][:2] == (mem, device) and start < joined[-1][3]:
                _, _, first, last = joined.pop()
                start, stop = first, max(last, stop)
            joined.append((mem, device, start, stop))
        return [(start, stop - start, device, mem) for mem, device, start, stop in joined]

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as plain ints, strings, lists and dicts, for msgpack or JSON; key ``"version"``.

        Its size grows with regions and sections, never with blocks.

        >>> Layout.from_dict(Layout([Region("k", 0, 16, 4)]).to_dict()) == Layout([Region("k", 0, 16, 4)])
        True
        """
        return _wire.layout_to_dict(self.regions, self.cp_rank, self.cp_size)

    @classmethod
    def from_dict(cls, d: Any) -> Layout:
        """Return the layout that a stranger described; everything is checked, unknown keys and versions by name.

        Raises :class:`GeometryError`, whatever is wrong, promptly and without large allocations.

        >>> Layout.from_dict({"version": 99})
        Traceback (most recent call last):
            ...
        nixldesc.errors.GeometryError: layout: version 99 is not understood, this library reads version 1
        """
        try:
            regions, cp_rank, cp_size = _wire.layout_from_dict(d)
            return cls(regions, cp_rank=cp_rank, cp_size=cp_size)
        except (TypeError, RecursionError) as error:
            raise GeometryError(f"layout: {str(error).removeprefix('layout: ')}") from None

    def signature(self) -> str:
        """Return a hex digest of the geometry without addresses, device ids and block counts.

        Equal on ranks that run the same model in the same shape; the place under context parallelism counts as shape.

        >>> a, b = Layout([Region("k", 0, 16, 4)]), Layout([Region("k", 4096, 16, 9, device_id=3)])
        >>> a.signature() == b.signature()
        True
        """
        plain = self.to_dict()
        for region in plain["regions"]:
            for key in ("base_addr", "device_id", "num_blocks"):
                region.pop(key, None)
        import hashlib  # here, not above: a fifth of what importing nixldesc would take
        import json

        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _prove(regions: tuple[Region, ...]) -> None:
    names: set[str] = set()
    sections: dict[str, str] = {}
    seen: dict[tuple[Shape, ...], int] = {}
    budget = MAX_RUNS
    for region in regions:
        prove_region(region)
        if region.name in names:
            raise GeometryError(f"region {region.name!r}: there are two regions of that name")
        names.add(region.name)
        for section in region.sections:
            if section.name in sections:
                raise GeometryError(
                    f"region {region.name!r}: section {section.name!r} is also in region {sections[section.name]!r}; "
                    f"section names are unique in a layout"
                )
            sections[section.name] = region.name
        budget = prove_page(region, seen, budget)
    rows = sum(1 if region.evenly_spaced else region.sub_blocks for region in regions)
    if rows > MAX_RUNS:
        raise GeometryError(
            f"the layout has {rows} table rows, for its sub-blocks lie at no even spacing; at most {MAX_RUNS} are "
            f"supported"
        )
    total = sum(region.num_descs for region in regions)
    if total > MAX_DESCS:
        raise GeometryError(f"the layout has {total} descriptors, more than the {MAX_DESCS} that int32 ids can name")


def _fill(layout: Layout, regions: tuple[Region, ...], cp_rank: int, cp_size: int) -> None:
    starts = np.zeros(len(regions) + 1, dtype=np.int64)
    np.cumsum([region.num_descs for region in regions], out=starts[1:])
    starts.flags.writeable = False
    put = object.__setattr__
    put(layout, "regions", regions)
    put(layout, "cp_rank", cp_rank)
    put(layout, "cp_size", cp_size)
    put(layout, "_starts", starts)
    put(layout, "_cache", {})
    put(layout, "_latest", None)


def derived_layout(regions: tuple[Region, ...], cp_rank: int, cp_size: int) -> Layout:
    """Return a layout of regions that are known to be sound: parts of a proven layout's regions."""
    layout = object.__new__(Layout)
    _fill(layout, regions, cp_rank, cp_size)
    return layout
