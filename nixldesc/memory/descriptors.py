"""Columns of regions as descriptors: the order of descriptors is decided here, once.

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

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, brief, check_ids_out
from nixldesc.errors import BlockIdError
from nixldesc.kernels import _kernels
from nixldesc.memory.columns import Columns, IdForm, Laid, id_form, laid_of, plain_table, table_of
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
from nixldesc.memory.rows import expand_table, row_starts

__all__ = ["Descriptors"]

Order = Literal["region", "group"]


class Descriptors:
    """Regions as NIXL sees them: a table of rows, and ids that count along it. A Layout is one, and says more."""

    __slots__ = ("_cache", "_latest", "columns", "names")

    #: The regions' numbers and names.
    columns: Columns
    names: Sequence[str]
    _cache: dict[Any, Any]
    _latest: _kernels.LayoutProgram | None

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        # Computed from frozen fields: two threads that race here compute the same value.
        try:
            return self._cache[key]
        except KeyError:
            return self._cache.setdefault(key, make())

    @property
    def num_descs(self) -> int:
        """Descriptors of the layout.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 0, 16, 4)]).num_descs
        4
        """
        return int(self.starts[-1])

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first desc id of each region, then the total: int64[regions + 1], read-only.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 0, 16, 4), Region("v", 64, 16, 4)]).starts
        array([0, 4, 8])
        """
        starts: NDArray[np.int64] = self._once("starts", self._make_starts)
        return starts

    def _make_starts(self) -> NDArray[np.int64]:
        starts = np.empty(len(self.columns) + 1, dtype=np.int64)
        starts[0] = 0
        self.columns.num_descs().cumsum(out=starts[1:])
        starts.flags.writeable = False
        return starts

    def table(self) -> NDArray[np.uint64]:
        """Return the strided table: uint64[rows, 5], rows ``(addr, len, dev, stride, count)`` in desc-id order.

        C-contiguous, read-only, made once. One row per region (bytes; `count` blocks `stride` apart), but `sub_blocks`
        rows where a region's sub-blocks do not lie at one even spacing, and a row per segment. nixl >= 1.5 prepares it
        as it is.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 4096, 16, 4, block_stride=32)]).table()
        array([[4096,   16,    0,   32,    4]], dtype=uint64)
        """
        table: NDArray[np.uint64] = self._once("table", self._make_table)
        return table

    def _make_table(self) -> NDArray[np.uint64]:
        columns = self.columns
        table = plain_table(columns) if columns.plain else table_of(columns, self.laid)
        table.setflags(write=False)
        return table

    def dense_table(self, out: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
        """Return every descriptor: uint64[num_descs, 3], rows ``(addr, len, dev)`` in desc-id order.

        For nixl before 1.5 and for engines without strided lists. `out` as in :func:`nixldesc.expand_table`.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 4096, 16, 2, block_stride=32)]).dense_table()
        array([[4096,   16,    0],
               [4128,   16,    0]], dtype=uint64)
        """
        return expand_table(self.table(), out)

    def row_index(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return where the table's rows begin (int64[rows + 1], the total last) and each row's region (int32[rows]).

        >>> from nixldesc import Layout, Region
        >>> [part.tolist() for part in Layout([Region("k", 0, 8, 3, sub_blocks=2, block_stride=64)]).row_index()]
        [[0, 3, 6], [0, 0]]
        """
        index: tuple[NDArray[np.int64], NDArray[np.int32]] = self._once("rows", self._make_row_index)
        return index

    def _make_row_index(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        starts = self.starts if self.columns.plain else row_starts(self.table())
        owners = np.arange(len(self.columns), dtype=np.int32).repeat(self.laid.rows)
        for part in (starts, owners):
            part.flags.writeable = False
        return starts, owners

    @property
    def forms(self) -> NDArray[np.int64]:
        """How the rows of each region are laid, as :mod:`nixldesc.memory.columns` counts the ways.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 0, 16, 4)]).forms
        array([0])
        """
        return self.laid.forms

    @property
    def laid(self) -> Laid:
        """How the rows of each region are laid and how many they are.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 0, 16, 4)]).laid.total
        1
        """
        laid: Laid = self._once("laid", lambda: laid_of(self.columns))
        return laid

    @property
    def num_rows(self) -> int:
        """Rows of the table.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 0, 8, 3, sub_blocks=2, block_stride=64)]).num_rows
        2
        """
        return len(self.columns) if self.columns.plain else self.laid.total

    @property
    def most_blocks(self) -> int:
        """The blocks of the region that has most.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 0, 16, 4), Region("v", 64, 16, 9)]).most_blocks
        9
        """
        most: int = self._once("most blocks", lambda: int(self.columns.num_blocks.max()))
        return most

    def id_form(self, region: int) -> IdForm:
        """Return how the ids of region number `region` follow its flat indices.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 0, 8, 3, sub_blocks=2, block_stride=64)]).id_form(0)
        IdForm(uneven=3, runs=1, outer_step=1, run_step=1)
        """
        numbers = self.columns
        counts = (int(column[region]) for column in (numbers.num_blocks, numbers.sub_blocks, numbers.runs))
        return id_form(int(self.forms[region]), *counts)

    def _check_desc_id(self, desc_id: int) -> int:
        desc_id = as_int(desc_id, "desc_id", BlockIdError)
        if not 0 <= desc_id < self.num_descs:
            raise BlockIdError(f"desc id {desc_id} is out of range, the layout has {self.num_descs} descriptors")
        return desc_id

    def locate(self, desc_id: int) -> tuple[int, int]:
        """Return ``(region index, flat block index)`` of a desc id; flat is ``(block * sub_blocks + k) * runs + j``.

        Raises :class:`BlockIdError` out of range.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 0, 16, 4), Region("v", 64, 16, 4)]).locate(6)
        (1, 2)
        """
        index, (block, k, j) = self._place(desc_id)
        subs, runs = int(self.columns.sub_blocks[index]), int(self.columns.runs[index])
        return index, (block * subs + k) * runs + j

    def _place(self, desc_id: int) -> tuple[int, tuple[int, int, int]]:
        """Return the region of a desc id, and its block, sub-block and run there."""
        desc_id = self._check_desc_id(desc_id)
        index = int(self.starts.searchsorted(desc_id, side="right")) - 1
        form, local = self.id_form(index), desc_id - int(self.starts[index])
        outer, j = divmod(local, form.runs) if form.run_step == 1 else divmod(local, form.run_step)[::-1]
        if form.uneven:
            k, block = divmod(outer, form.uneven)
        else:
            block, k = divmod(outer, int(self.columns.sub_blocks[index]))
        return index, (block, k, j)

    def address(self, desc_id: int) -> tuple[int, int, int]:
        """Return ``(addr, len, dev)`` of a desc id, in Python integers. Raises :class:`BlockIdError` out of range.

        >>> from nixldesc import Layout, Region
        >>> Layout([Region("k", 4096, 16, 4, block_stride=32)]).address(3)
        (4192, 16, 0)
        """
        index, (block, k, j) = self._place(desc_id)
        numbers = self.columns
        base, device = int(numbers.base_addrs[index]), int(numbers.device_ids[index])
        if index in numbers.pieces:
            segments = numbers.pieces[index]
            firsts = self._once(("firsts", index), lambda: np.cumsum(segments[:, 1]) - segments[:, 1])
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

        >>> from nixldesc import Layout, Region
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
            program = layout_program(self.columns, self.forms, self.starts, order, num_lists)
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
        taken = self.columns.groups
        if fault.code == _kernels.UNSERVED:
            return BlockIdError(
                f"{where} has {fault.extra} block ids, but no region takes that group; regions take groups "
                f"{sorted({group for groups in set(taken) for group in groups or ()})}"
            )
        if fault.code == _kernels.OUT_OF_RANGE:
            counts = self.columns.num_blocks.tolist()
            takers = [i for i, groups in enumerate(taken) if groups is None or fault.group in groups]
            least = min(takers, key=counts.__getitem__)
            return out_of_range(where, ids, fault.position, self.names[least], counts[least])
        return word_reading(fault, where, ids)
