"""A rank's registered memory as descriptors: the order of descriptors is decided here, once.

Regions one after the other; inside a region its blocks (its sub-blocks and runs, where blocks are cut)::

    region          k (4 blocks)      v (3 blocks)     s (2 blocks of 2 sub-blocks, unevenly spaced)
    desc id         0  1  2  3        4  5  6          7    8    9    10
    means block     0  1  2  3        0  1  2          0.0  1.0  0.1  1.1           block.sub-block
    table row       0                 1                2         3
    starts          0                 4                7                   11 = num_descs

NIXL counts the same way: the id of a descriptor is its position in the expanded list (nixl 1.5.1). How the rows of one
region are laid is decided in :mod:`nixldesc.memory.columns`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, as_names, brief, check_ids_out, few, is_many
from nixldesc.errors import BlockIdError, GeometryError
from nixldesc.kernels import _kernels
from nixldesc.memory import parallel_lists, ranges, sequence, wire
from nixldesc.memory.columns import (
    Columns,
    IdForm,
    Pages,
    columns_of,
    forms_of,
    id_form,
    pages_of,
    part_of,
    regions_of,
    table_of,
)
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
from nixldesc.memory.proof import prove_columns, prove_pages, prove_region, prove_rows, prove_total
from nixldesc.memory.region import Region
from nixldesc.memory.rows import expand_table, row_starts
from nixldesc.memory.wire_version_1 import layout_from_version_1

__all__ = ["MAX_CP_SIZE", "Layout"]

#: More context-parallel ranks than any engine has; bounds what a stranger's layout can make a plan look through.
MAX_CP_SIZE = 2**12

Order = Literal["region", "group"]


class Layout:
    """What one rank has registered: regions, and its place under context parallelism.

    Under context parallelism (``cp_size > 1``) the tokens of every section with a token axis are dealt to the ranks
    block-cyclically, `cp_tokens` at a time (None: one block at a time): token g of the sequence is on rank
    ``(g // cp_tokens) % cp_size``. Frozen, hashable, equal by value.

    Making a Layout proves, in Python integers, everything that later arithmetic relies on, and raises
    :class:`GeometryError` otherwise: at least one region, positive sizes, stride >= len, sub-blocks inside their block,
    addresses inside 2**64, segments apart, sections inside the block and sharing no bytes, unique region names, at most
    2**31 - 1 descriptors. Regions may share memory under different names. Sections of one name are parts of one array:
    same axes, itemsize, dtype and block_tokens, each with its own box.

    >>> layout = Layout([Region("k", 0x1000, 16, 4), Region("v", 0x2000, 16, 3)])
    >>> layout.num_descs, layout.starts.tolist()
    (7, [0, 4, 7])
    >>> layout.desc_ids([[2, 0]]).tolist()
    [2, 0, 6, 4]
    """

    __slots__ = (
        "__weakref__",
        "_cache",
        "_forms",
        "_latest",
        "_starts",
        "columns",
        "cp_rank",
        "cp_size",
        "cp_tokens",
        "names",
        "pages",
    )

    #: The regions' numbers, names and pages: what :attr:`regions` shows as objects.
    columns: Columns
    names: Sequence[str]
    pages: Pages
    cp_rank: int
    cp_size: int
    cp_tokens: int | None
    _forms: NDArray[np.int64]
    _starts: NDArray[np.int64]
    _cache: dict[Any, Any]
    _latest: _kernels.LayoutProgram | None

    def __init__(
        self, regions: Iterable[Region], *, cp_rank: int = 0, cp_size: int = 1, cp_tokens: int | None = None
    ) -> None:
        if not is_many(regions):
            raise TypeError(f"regions must be a sequence of Region, got {brief(regions)}")
        regions = tuple(regions)
        for i, region in enumerate(regions):
            if not isinstance(region, Region):
                raise TypeError(f"regions[{i}] must be a Region, got {brief(region)}")
        place = _check_place(cp_rank, cp_size, cp_tokens)
        if not regions:
            raise GeometryError("the layout has no regions; at least one is expected")
        for region in regions:
            prove_region(region)
        prove_total(sum(region.num_descs for region in regions))
        names, pages = tuple([region.name for region in regions]), pages_of(regions)
        prove_pages(names, [region.block_len for region in regions], pages)
        columns = columns_of(regions)
        _fill(self, columns, names, pages, place, forms_of(columns))
        self._cache["regions"] = regions
        prove_rows(columns, self._forms)

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"a Layout is frozen: {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"a Layout is frozen: {name!r} cannot be deleted")

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
            parallel_lists.regions_from_columns(
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
        tokens = f", {self.cp_tokens} tokens at a time" if self.cp_tokens else ""
        cp = f", cp rank {self.cp_rank} of {self.cp_size}{tokens}" if self.cp_size > 1 else ""
        return f"Layout({len(self.columns)} regions, {self.num_descs:,} descriptors{cp})"

    def __reduce__(self) -> tuple[Callable[..., Layout], tuple[Any, ...]]:
        make = partial(Layout, cp_rank=self.cp_rank, cp_size=self.cp_size, cp_tokens=self.cp_tokens)
        return make, (self.regions,)

    def __hash__(self) -> int:
        columns = self.columns
        numbers = (columns.base_addrs, columns.block_lens, columns.num_blocks)
        return int(self._once("hash", lambda: hash(tuple([column.tobytes() for column in numbers]))))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self is other or (hash(self) == hash(other) and self._value() == other._value())

    def _value(self) -> tuple[Any, ...]:
        return self._once("value", lambda: (self.regions, self.cp_rank, self.cp_size, self.cp_tokens))  # type: ignore[no-any-return]

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        # Computed from frozen fields: two threads that race here compute the same value.
        try:
            return self._cache[key]
        except KeyError:
            return self._cache.setdefault(key, make())

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions as objects, made when first looked at.

        >>> Layout([Region("k", 0, 16, 4)]).regions[0].name
        'k'
        """
        regions: tuple[Region, ...] = self._once(
            "regions", lambda: tuple(regions_of(self.columns, self.names, self.pages))
        )
        return regions

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
        rows where a region's sub-blocks do not lie at one even spacing, and a row per segment. nixl >= 1.5 prepares it
        as it is.

        >>> Layout([Region("k", 4096, 16, 4, block_stride=32)]).table()
        array([[4096,   16,    0,   32,    4]], dtype=uint64)
        """
        table: NDArray[np.uint64] = self._rows()[0]
        return table

    def _rows(self) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        rows: tuple[NDArray[np.uint64], NDArray[np.int32]] = self._once("table", self._make_rows)
        return rows

    def _make_rows(self) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        rows = table_of(self.columns, self._forms)
        for part in rows:
            part.flags.writeable = False
        return rows

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
        table, owners = self._rows()
        starts = self._starts if self.columns.plain else row_starts(table)
        starts.flags.writeable = False
        return starts, owners

    @property
    def forms(self) -> NDArray[np.int64]:
        """How the rows of each region are laid, as :mod:`nixldesc.memory.columns` counts the ways.

        >>> Layout([Region("k", 0, 16, 4)]).forms
        array([0])
        """
        return self._forms

    def id_form(self, region: int) -> IdForm:
        """Return how the ids of region number `region` follow its flat indices.

        >>> Layout([Region("k", 0, 8, 3, sub_blocks=2, block_stride=64)]).id_form(0)
        IdForm(uneven=3, runs=1, outer_step=1, run_step=1)
        """
        numbers = self.columns
        counts = (int(column[region]) for column in (numbers.num_blocks, numbers.sub_blocks, numbers.runs))
        return id_form(int(self._forms[region]), *counts)

    def _check_desc_id(self, desc_id: int) -> int:
        desc_id = as_int(desc_id, "desc_id", BlockIdError)
        if not 0 <= desc_id < self.num_descs:
            raise BlockIdError(f"desc id {desc_id} is out of range, the layout has {self.num_descs} descriptors")
        return desc_id

    def locate(self, desc_id: int) -> tuple[int, int]:
        """Return ``(region index, flat block index)`` of a desc id; flat is ``(block * sub_blocks + k) * runs + j``.

        Raises :class:`BlockIdError` out of range.

        >>> Layout([Region("k", 0, 16, 4), Region("v", 64, 16, 4)]).locate(6)
        (1, 2)
        """
        index, (block, k, j) = self._place(desc_id)
        subs, runs = int(self.columns.sub_blocks[index]), int(self.columns.runs[index])
        return index, (block * subs + k) * runs + j

    def _place(self, desc_id: int) -> tuple[int, tuple[int, int, int]]:
        """Return the region of a desc id, and its block, sub-block and run there."""
        desc_id = self._check_desc_id(desc_id)
        index = bisect_right(self._starts, desc_id) - 1
        form, local = self.id_form(index), desc_id - int(self._starts[index])
        outer, j = divmod(local, form.runs) if form.run_step == 1 else divmod(local, form.run_step)[::-1]
        if form.uneven:
            k, block = divmod(outer, form.uneven)
        else:
            block, k = divmod(outer, int(self.columns.sub_blocks[index]))
        return index, (block, k, j)

    def address(self, desc_id: int) -> tuple[int, int, int]:
        """Return ``(addr, len, dev)`` of a desc id, in Python integers. Raises :class:`BlockIdError` out of range.

        >>> Layout([Region("k", 4096, 16, 4, block_stride=32)]).address(3)
        (4192, 16, 0)
        """
        index, (block, k, j) = self._place(desc_id)
        numbers = self.columns
        base, device = int(numbers.base_addrs[index]), int(numbers.device_ids[index])
        if index in numbers.pieces:
            segments = numbers.pieces[index]
            firsts = np.cumsum(segments[:, 1]) - segments[:, 1]
            segment = int(np.searchsorted(firsts, np.uint64(block), side="right")) - 1
            base, _, device = segments[segment].tolist()
            block -= int(firsts[segment])
        addr = base + block * int(numbers.block_strides[index]) + k * int(numbers.sub_strides[index])
        return addr + j * int(numbers.run_strides[index]), int(numbers.block_lens[index]), device

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
            program = layout_program(self.columns, self._forms, self._starts, order, num_lists)
            self._cache[order, num_lists] = program
        if order == "region":
            object.__setattr__(self, "_latest", program)
        return program

    def _check_lists(self, num_lists: int) -> None:
        highest = max(max(groups or (-1,)) for groups in set(self.columns.groups))
        if highest >= num_lists:
            user = next(i for i, groups in enumerate(self.columns.groups) if max(groups or (-1,)) == highest)
            raise BlockIdError(
                f"block_ids has {num_lists} lists, but region {self.names[user]!r} takes group {highest}; give one "
                f"list per group, an empty one where there is nothing"
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

        It is what to pass as ``skip`` for a cached prefix of `position` blocks under context parallelism by whole
        blocks. Raises :class:`GeometryError` where `cp_tokens` deals another number of tokens at a time.

        >>> Layout([Region("k", 0, 16, 4)], cp_rank=1, cp_size=2).skip_before(4)
        2
        """
        position = as_int(position, "position", BlockIdError)
        if self.cp_tokens is not None and self.cp_size > 1:
            raise GeometryError(
                f"skip_before counts whole blocks, but this layout deals cp_tokens={self.cp_tokens} tokens at a time; "
                f"local_tokens(tokens) says how many tokens of a prefix this rank holds"
            )
        return max(0, -((self.cp_rank - position) // self.cp_size))

    def local_tokens(self, tokens: int, block_tokens: int | None = None) -> int:
        """Return how many of the first `tokens` tokens of a sequence this rank holds.

        `block_tokens` is needed only under context parallelism by whole blocks (``cp_tokens=None``).
        Raises :class:`GeometryError` for numbers that mean nothing.

        >>> layout = Layout([Region("k", 0, 16, 4)], cp_rank=1, cp_size=2, cp_tokens=4)
        >>> [layout.local_tokens(tokens) for tokens in (4, 5, 8, 16)]
        [0, 1, 4, 8]
        """
        return sequence.local_tokens(tokens, self.cp_rank, self.cp_size, self.cp_tokens, block_tokens)

    # ------------------------------------------------------------------------------------------- parts and passport

    def by_mem_type(self) -> dict[str, Layout]:
        """Return a layout per memory type, in order of first appearance; regions keep their order.

        >>> mixed = Layout([Region("a", 0, 16, 4), Region("b", 0, 16, 4, mem_type="DRAM")])
        >>> {mem: part.num_descs for mem, part in mixed.by_mem_type().items()}
        {'VRAM': 4, 'DRAM': 4}
        """
        mems = self.columns.mem_types
        return {kind: self._part([i for i, mem in enumerate(mems) if mem == kind]) for kind in dict.fromkeys(mems)}

    def select(self, names: Iterable[str]) -> Layout:
        """Return the layout of the named regions, in the order of `names`.

        Raises :class:`GeometryError` for a name that is not here or given twice, and for no name at all;
        :class:`TypeError` for a bare str.

        >>> Layout([Region("k", 0, 16, 4), Region("v", 64, 16, 3)]).select(["v"]).num_descs
        3
        """
        number = {name: i for i, name in enumerate(self.names)}
        wanted = as_names(names, "names")
        for i, name in enumerate(wanted):
            if name not in number:
                raise GeometryError(f"select: there is no region {name!r}; regions are {few(number)}")
            if name in wanted[:i]:
                raise GeometryError(f"select: region {name!r} is named twice")
        if not wanted:
            raise GeometryError("select: no region is named; a layout has at least one")
        return self._part([number[name] for name in wanted])

    def _part(self, chosen: Sequence[int]) -> Layout:
        columns, names, pages = part_of(self.columns, self.names, self.pages, chosen)
        return proven_layout(columns, names, pages, (self.cp_rank, self.cp_size, self.cp_tokens))

    def memory_ranges(self) -> list[tuple[int, int, int, str]]:
        """Return ``(addr, len, device_id, mem_type)`` ranges that cover all regions, for registration.

        Overlapping ranges of one memory are joined; merely touching ones are kept apart, for they may be separate
        registrations. Sorted by memory type, device and address.

        >>> Layout([Region("a", 0, 16, 4), Region("view", 0, 32, 2), Region("b", 64, 16, 1)]).memory_ranges()
        [(0, 64, 0, 'VRAM'), (64, 16, 0, 'VRAM')]
        """
        return ranges.memory_ranges(self.columns)

    def split_at(self, ranges_: Iterable[tuple[int, int, int, str]]) -> Layout:
        """Return the same layout, its regions in segments that end where registrations do.

        `ranges_`: the registrations, in :meth:`memory_ranges` form, apart from one another. A row of a prepared list
        may not cross two registrations, even touching ones (nixl 1.5.1: NIXL_ERR_NOT_FOUND); two rows may.
        Raises :class:`GeometryError` for a block that lies across a bound or outside all of them, by its number.

        >>> layout = Layout([Region("k", 0, 16, 4)]).split_at([(0, 32, 0, "VRAM"), (32, 32, 0, "VRAM")])
        >>> layout.table().tolist()
        [[0, 16, 0, 16, 2], [32, 16, 0, 16, 2]]
        """
        columns = ranges.split_columns(self.columns, self.names, ranges_)
        return proven_layout(columns, self.names, self.pages, (self.cp_rank, self.cp_size, self.cp_tokens))

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as plain ints, strings, lists and dicts, for msgpack or JSON; key ``"version"``.

        Its size grows with regions, segments and distinct pages, never with blocks.

        >>> Layout.from_dict(Layout([Region("k", 0, 16, 4)]).to_dict()) == Layout([Region("k", 0, 16, 4)])
        True
        """
        return wire.layout_to_dict(self.columns, self.names, self.pages, (self.cp_rank, self.cp_size, self.cp_tokens))

    @classmethod
    def from_dict(cls, d: Any) -> Layout:
        """Return the layout that a stranger described; everything is checked, unknown keys and versions by name.

        Raises :class:`GeometryError`, whatever is wrong, promptly and without large allocations.

        >>> Layout.from_dict({"version": 99})
        Traceback (most recent call last):
            ...
        nixldesc.errors.GeometryError: layout: version 99 is not understood, this library reads versions 2 and 1
        """
        try:
            if wire.version_of(d) == 1:
                regions, (cp_rank, cp_size) = layout_from_version_1(d)
                return cls(regions, cp_rank=cp_rank, cp_size=cp_size)
            columns, names, pages, given, largest = wire.layout_from_dict(d)
            place = _check_place(*given)
        except (TypeError, RecursionError, OverflowError) as error:
            raise GeometryError(f"layout: {str(error).removeprefix('layout: ')}") from None
        if not prove_columns(columns, largest):
            for region in regions_of(columns, names, pages):
                prove_region(region)
        prove_pages(names, columns.block_lens.tolist(), pages)
        counts = zip(columns.num_blocks.tolist(), columns.sub_blocks.tolist(), columns.runs.tolist(), strict=True)
        prove_total(sum(blocks * subs * runs for blocks, subs, runs in counts))
        layout = proven_layout(columns, names, pages, place)
        prove_rows(columns, layout._forms)
        return layout

    def signature(self) -> str:
        """Return a hex digest of the geometry without addresses, device ids, block counts and segments.

        Equal on ranks that run the same model in the same shape; the place under context parallelism counts as shape.

        >>> a, b = Layout([Region("k", 0, 16, 4)]), Layout([Region("k", 4096, 16, 9, device_id=3)])
        >>> a.signature() == b.signature()
        True
        """
        import hashlib  # here, not above: a fifth of what importing nixldesc would take

        return hashlib.sha256(repr(self.shape()).encode()).hexdigest()

    def shape(self) -> tuple[Any, ...]:
        """Return the geometry that :meth:`signature` digests, as a tuple to compare.

        >>> Layout([Region("k", 0, 16, 4)]).shape() == Layout([Region("k", 64, 16, 9)]).shape()
        True
        """
        shape: tuple[Any, ...] = self._once("shape", self._make_shape)
        return shape

    def _make_shape(self) -> tuple[Any, ...]:
        columns, pages = self.columns, self.pages
        kinds = tuple([tuple([tuple(section.shape) for section in page]) for page in pages.kinds])
        numbers = (columns.block_lens, columns.block_strides, columns.sub_blocks, columns.sub_strides, columns.runs)
        return (
            (self.cp_rank, self.cp_size, self.cp_tokens),
            tuple(self.names),
            columns.mem_types,
            columns.groups,
            tuple([column.tobytes() for column in (*numbers, columns.run_strides)]),
            tuple([kinds[number] for number in pages.of]),
            pages.names,
        )


def _check_place(cp_rank: Any, cp_size: Any, cp_tokens: Any) -> tuple[int, int, int | None]:
    cp_rank, cp_size = as_int(cp_rank, "cp_rank"), as_int(cp_size, "cp_size")
    if not 0 <= cp_rank < cp_size <= MAX_CP_SIZE:
        raise GeometryError(
            f"cp_rank must be in 0 to cp_size - 1, and cp_size at most {MAX_CP_SIZE}, got rank {cp_rank} of {cp_size}"
        )
    if cp_tokens is not None and not 0 < as_int(cp_tokens, "cp_tokens") < 2**31:
        raise GeometryError(f"cp_tokens must be a positive number of tokens, or None for whole blocks, got {cp_tokens}")
    return cp_rank, cp_size, None if cp_tokens is None else int(cp_tokens)


def _fill(
    layout: Layout,
    columns: Columns,
    names: Sequence[str],
    pages: Pages,
    place: tuple[int, int, int | None],
    forms: NDArray[np.int64],
) -> None:
    starts = np.zeros(len(columns) + 1, dtype=np.int64)
    np.cumsum(columns.num_descs(), out=starts[1:])
    starts.flags.writeable = False
    values: tuple[Any, ...] = (columns, names, pages, *place, forms, starts, {}, None)
    for put, value in zip(_SETTERS, values, strict=True):
        put(layout, value)


_SETTERS = tuple(
    getattr(Layout, slot).__set__
    for slot in (
        "columns",
        "names",
        "pages",
        "cp_rank",
        "cp_size",
        "cp_tokens",
        "_forms",
        "_starts",
        "_cache",
        "_latest",
    )
)


def proven_layout(columns: Columns, names: Sequence[str], pages: Pages, place: tuple[int, int, int | None]) -> Layout:
    """Return a layout of columns that are known to be sound: a stranger's, once proven; parts of a proven layout's."""
    layout = object.__new__(Layout)
    _fill(layout, columns, names, pages, place, forms_of(columns))
    return layout
