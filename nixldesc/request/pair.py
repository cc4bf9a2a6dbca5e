"""Two prepared lists of one transfer: row i of the source's is as long as row i of the destination's.

::

    source list        region 0: K@0          region 1: V@4096               each a Region of its own: equal runs of
    dst list           region 0: K@0          region 1: V@0                  bytes inside each block, found by a plan

    a request names blocks; entries that stand at one position meet; each met pair is one descriptor a region:

        src  Blocks([7, 3, 9, 4])           position 0 1 2 3
        dst  Blocks([20, 22], skip=2)       position     2 3       ->   9 -> 20,  4 -> 22
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import brief, check_ids_out, is_many
from nixldesc.errors import BlockIdError, PeerMismatchError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import (
    MAX_LISTS,
    BlockIds,
    Fault,
    as_null,
    group_lists,
    list_at,
    out_of_range,
    readable_lists,
    word_reading,
)
from nixldesc.memory.layout import Layout
from nixldesc.memory.region import Region
from nixldesc.request.blocks import Blocks, Place, Places
from nixldesc.request.moves import id_moves, id_ops, pair_ids
from nixldesc.request.programs import Compiled, pair_program

__all__ = ["DlistPair", "Origin"]

#: Where a region of a pair comes from: (src region, dst region, section names).
Origin = tuple[str, str, tuple[str, ...]]

_ALL = slice(None)
_SIDES = ("source", "destination")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class DlistPair:
    """Source and destination layouts of one transfer, region by region of equal block_len.

    `plan` makes them; ``DlistPair(src, dst)`` also pairs two layouts that are equal region by region as they are.
    `origin[i]` is ``(src region, dst region, section names)`` of region i. `places[i]` says where its two lists stand
    under context parallelism; by default a region with a sharded token section, or cut into sub-blocks, stands where
    its layout's ``cp_rank`` says, any other at ``skip + i``. Hashable and equal by value.

    Raises :class:`PeerMismatchError` for unequal numbers of regions, lengths or groups, or for mixed memory types on
    a side (:meth:`Layout.by_mem_type` splits them).

    >>> from nixldesc import Region
    >>> pair = DlistPair(Layout([Region("k", 0x1000, 16, 8)]), Layout([Region("k", 0x9000, 16, 8, block_stride=32)]))
    >>> src_ids, dst_ids = pair.desc_ids([[5, 6, 7]], [[3, 2, 1]])
    >>> src_ids.tolist(), dst_ids.tolist()
    ([7, 6, 5], [1, 2, 3])
    """

    src: Layout
    dst: Layout
    origin: Sequence[Origin]
    places: tuple[Places, ...]
    _cache: dict[tuple[int, int], Compiled] = field(repr=False, compare=False, hash=False)

    def __init__(
        self, src: Layout, dst: Layout, *, origin: Sequence[Origin] = (), places: Sequence[Places] = ()
    ) -> None:
        for side, layout in (("src", src), ("dst", dst)):
            if not isinstance(layout, Layout):
                raise TypeError(f"{side} must be a Layout, got {brief(layout)}")
        _prove_equal_rows(src, dst)
        regions = list(zip(src.regions, dst.regions, strict=True))
        origin = _of_each(origin, "origin", tuple, len(regions))
        places = _of_each(places, "places", Places, len(regions))
        put = object.__setattr__
        put(self, "src", src)
        put(self, "dst", dst)
        put(self, "origin", tuple(origin) or tuple((s.name, d.name, _names(d)) for s, d in regions))
        put(self, "places", tuple(places) or tuple(Places(_place(src, s), _place(dst, d)) for s, d in regions))
        put(self, "_cache", {})

    def __repr__(self) -> str:
        return (
            f"DlistPair({len(self.src.regions)} regions, {' to '.join(self.mem_types)}, "
            f"{self.src.num_descs:,} to {self.dst.num_descs:,} descriptors)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(DlistPair, origin=self.origin, places=self.places), (self.src, self.dst)

    @property
    def mem_types(self) -> tuple[str, str]:
        """Memory types ``(src, dst)`` of the two lists.

        >>> DlistPair(Layout([Region("k", 0, 16, 4)]), Layout([Region("k", 0, 16, 4, mem_type="DRAM")])).mem_types
        ('VRAM', 'DRAM')
        """
        return self.src.regions[0].mem_type, self.dst.regions[0].mem_type

    # ----------------------------------------------------------------------------------------------- per request

    def desc_ids(
        self,
        src_blocks: Sequence[BlockIds | Blocks],
        dst_blocks: Sequence[BlockIds | Blocks],
        *,
        order: Literal["merge", "given"] = "merge",
        null_block: int | None = None,
        regions: slice = _ALL,
        out: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return ``(src_ids, dst_ids)`` of a request: int32, C-contiguous, of equal length, in range, region-major.

        `src_blocks` and `dst_blocks` hold one entry per KV cache group: a plain sequence of block ids, or
        :class:`Blocks` to say where it starts. Positions present on both sides are paired, others are left out. A
        pair with a `null_block` on either side is dropped, its other id unchecked. Lists whose group no region here
        uses are not looked at. ``order="merge"`` sorts the pairs of each region by dst desc id, so that all that can
        merge are neighbours; ``"given"`` keeps positions ascending. `regions`: only that slice of the pair's regions
        (a layer at a time), against the same prepared lists. `out`: two int32 arrays of the exact size.

        Raises :class:`BlockIdError` for ids out of range, missing lists, and two plain lists that do not fit one
        another (no number of tokens needs exactly so many blocks on each side); :class:`TypeError` for wrong types.

        >>> from nixldesc import Blocks, Region
        >>> pair = DlistPair(Layout([Region("k", 0, 16, 64)]), Layout([Region("k", 0, 16, 64)]))
        >>> [ids.tolist() for ids in pair.desc_ids([[10, 11, 12, 13, 14]], [Blocks.tail([41, 40], 5)])]
        [[14, 13], [40, 41]]
        """
        if null_block is not None:
            null_block = as_null(null_block)
        src_lists, src_skips = _split(src_blocks, "src_blocks")
        dst_lists, dst_skips = _split(dst_blocks, "dst_blocks")
        if out is not None:
            _check_pair_out(out, *src_lists, *dst_lists)
        compiled = self._cache.get((len(src_lists), len(dst_lists))) or self._compile(len(src_lists), len(dst_lists))
        first, last = (0, len(self.places)) if regions is _ALL else self._slice(regions)
        src_out, dst_out = out or (None, None)
        result = compiled.program.run(
            src_lists,
            dst_lists,
            src_skips,
            dst_skips,
            order == "merge" or _is_merge(order),
            null_block,
            first,
            last,
            src_out,
            dst_out,
        )
        if len(result) == 2:
            ids: tuple[NDArray[np.int32], NDArray[np.int32]] = result
            return ids
        if result[0] == _kernels.UNREAD:
            # Rare forms (ranges, other integer arrays) are converted once, then read like any other.
            src_blocks = _readable(_used(self.src, src_blocks), "src_blocks")
            dst_blocks = _readable(_used(self.dst, dst_blocks), "dst_blocks")
            return self.desc_ids(src_blocks, dst_blocks, order=order, null_block=null_block, regions=regions, out=out)
        raise self._word(Fault(*result), (src_lists, dst_lists), compiled.aligns, (first, last))

    def _slice(self, regions: slice) -> tuple[int, int]:
        if not isinstance(regions, slice):
            raise TypeError(f"regions must be a slice of the pair's regions, got {brief(regions)}")
        first, last, step = regions.indices(len(self.places))
        if step != 1:
            raise ValueError(f"regions must be a slice of step 1, got step {step}")
        return first, max(first, last)

    def _compile(self, num_src: int, num_dst: int) -> Compiled:
        for what, given in (("src_blocks", num_src), ("dst_blocks", num_dst)):
            if given > MAX_LISTS:
                raise BlockIdError(f"{what} has {given} lists; one list per KV cache group is expected")
        made = pair_program(self.src, self.dst, self.places, num_src, num_dst)
        return self._cache.setdefault((num_src, num_dst), made)

    def _word(
        self, fault: Fault, lists: tuple[Any, Any], aligns: list[tuple[int, ...]], span: tuple[int, int]
    ) -> Exception:
        if fault.code == _kernels.OUT_SIZE:
            return ValueError(f"out holds {fault.group} and {fault.position} ids, the request has {fault.extra} pairs")
        if fault.code == _kernels.MISFIT:
            src_group, dst_group, src_sub, dst_sub = aligns[fault.group][:4]
            sizes = f" (their block_tokens are as {src_sub} to {dst_sub})" if src_sub != dst_sub else ""
            return BlockIdError(
                f"source group {src_group} has {fault.position} blocks and destination group {dst_group} has "
                f"{fault.extra}{sizes}: no number of tokens needs exactly so many on each side; Blocks(ids, skip=...) "
                f"says where a list starts, Blocks.tail(ids, total) that it is the end"
            )
        where, ids = f"{_SIDES[fault.side]} group {fault.group}", list_at(lists[fault.side], fault.group)
        if fault.code == _kernels.FAR:
            return BlockIdError(f"{where}: skip {fault.position} is beyond any sequence that can be counted in 64 bits")
        if fault.code == _kernels.OUT_OF_RANGE:
            layout = self.dst if fault.side else self.src
            regions = layout.regions
            takers = [i for i in range(*span) if fault.group in (regions[i].groups or (fault.group,))]
            least = min(takers, key=lambda i: regions[i].num_blocks)
            name = self.origin[least][fault.side]
            advice = "; are these the other side's ids, or logical ones for kernel_blocks() to expand?"
            return out_of_range(where, ids, fault.position, str(name), regions[least].num_blocks, advice)
        return word_reading(fault, where, ids)

    def uncovered(
        self,
        src_blocks: Sequence[BlockIds | Blocks],
        dst_blocks: Sequence[BlockIds | Blocks],
        *,
        null_block: int | None = None,
    ) -> NDArray[np.int32]:
        """Return the dst desc ids that the dst lists name and no src position of this pair fills: int32, region-major.

        A tail to zero, say; ``pair.dst.address(desc_id)`` tells where it is. Null entries of the dst lists are not
        named; null entries of the src lists fill nothing. Plain lists stand at the sequence's start, whatever their
        lengths. Raises as :meth:`desc_ids` does.

        >>> from nixldesc import Blocks, Region
        >>> pair = DlistPair(Layout([Region("k", 0, 16, 64)]), Layout([Region("k", 0, 16, 64)]))
        >>> pair.uncovered([[10, 11]], [[40, 41, 42]]).tolist()
        [42]
        """
        null_block = as_null(null_block)
        src_given = [_as_blocks(item) for item in _used(self.src, group_lists(src_blocks, "src_blocks"))]
        dst_given = [_as_blocks(item) for item in _used(self.dst, group_lists(dst_blocks, "dst_blocks"))]
        _, filled = self.desc_ids(src_given, dst_given, order="given", null_block=null_block)
        named = self.dst.desc_ids([_without(item, null_block) for item in dst_given])
        return named[~np.isin(named, filled)]

    # ------------------------------------------------------------------------------------------- what ids stand for

    def merged_ops(self, src_ids: BlockIds, dst_ids: BlockIds) -> int:
        """Return how many wire operations a transfer of these ids is after NIXL's merging (its ``descCount``).

        Neighbouring pairs merge when both ids step by +1, both rows are dense (stride == len) and neither leaves its
        row (nixl 1.5.1). Raises :class:`BlockIdError` for ids that do not pair: count, range, length.

        >>> from nixldesc import Region
        >>> pair = DlistPair(Layout([Region("k", 0, 16, 64)]), Layout([Region("k", 0, 16, 64)]))
        >>> pair.merged_ops([5, 6, 7, 9], [2, 3, 4, 5])
        2
        """
        return id_ops(self.src, self.dst, pair_ids(src_ids, dst_ids))

    def moves(
        self,
        src_ids: BlockIds,
        dst_ids: BlockIds,
        *,
        merge: bool = False,
        out: NDArray[np.uint64] | None = None,
    ) -> NDArray[np.uint64]:
        """Return what will really happen: uint64[n, 3], rows ``(src_addr, dst_addr, len)`` in the order of the ids.

        ``merge=True`` joins neighbours that touch on both sides and belong to one region on each (regions may be
        registrations of their own, which no single move may cross): what engines without prepared lists want. `out`
        has one row per id pair and is returned shortened when rows were joined.

        Raises :class:`BlockIdError` for ids that do not pair: count, range, length.

        >>> from nixldesc import Region
        >>> pair = DlistPair(Layout([Region("k", 0, 16, 64)]), Layout([Region("k", 4096, 16, 64)]))
        >>> pair.moves([5, 6, 9], [2, 3, 4], merge=True).tolist()
        [[80, 4128, 32], [144, 4160, 16]]
        """
        return id_moves(self.src, self.dst, src_ids, dst_ids, merge, out)


def _prove_equal_rows(src: Layout, dst: Layout) -> None:
    if len(src.regions) != len(dst.regions) or not src.regions:
        raise PeerMismatchError(
            f"a pair has the same regions on both sides, at least one; got {len(src.regions)} and {len(dst.regions)}"
        )
    for i, (s, d) in enumerate(zip(src.regions, dst.regions, strict=True)):
        where = f"region {i} (source {s.name!r}, destination {d.name!r}): "
        if s.block_len != d.block_len:
            raise PeerMismatchError(f"{where}block_len is {s.block_len} and {d.block_len} bytes")
        if s.groups is not None and d.groups is not None and len(s.groups) != len(d.groups):
            raise PeerMismatchError(f"{where}takes {len(s.groups)} and {len(d.groups)} groups")
    for side, layout in zip(_SIDES, (src, dst), strict=True):
        kinds = sorted({region.mem_type for region in layout.regions})
        if len(kinds) > 1:
            raise PeerMismatchError(f"the {side} mixes memory types {kinds}; a prepared list has one")


def _of_each(items: Any, what: str, kind: type, regions: int) -> tuple[Any, ...]:
    if not is_many(items):
        raise TypeError(f"{what} must have one entry per region, got {brief(items)}")
    found: tuple[Any, ...] = tuple(items)
    for i, item in enumerate(found):
        if not isinstance(item, kind):
            raise TypeError(f"{what}[{i}] must be a {kind.__name__}, got {brief(item)}")
        if isinstance(item, Places) and not all(0 <= place.first < place.every < 2**31 for place in item[:2]):
            raise PeerMismatchError(f"places[{i}]: expected 0 <= first < every on both sides, got {item}")
    if found and len(found) != regions:
        raise PeerMismatchError(f"{len(found)} entries in {what} for {regions} regions")
    return found


def _names(region: Region) -> tuple[str, ...]:
    return tuple(section.name for section in region.sections) or (region.name,)


def _place(layout: Layout, region: Region) -> Place:
    sharded = region.sub_blocks > 1 or any(section.cp and section.block_tokens for section in region.sections)
    return Place(layout.cp_rank, layout.cp_size) if sharded else Place()


def derived_pair(src: Layout, dst: Layout, origin: Sequence[Origin], places: tuple[Places, ...]) -> DlistPair:
    """Return a pair of layouts that a plan derived from proven ones; trusted."""
    pair = object.__new__(DlistPair)
    put = object.__setattr__
    put(pair, "src", src)
    put(pair, "dst", dst)
    put(pair, "origin", origin)
    put(pair, "places", places)
    put(pair, "_cache", {})
    return pair


def _is_merge(order: Any) -> bool:
    if order == "given":
        return False
    raise ValueError(f"order must be 'merge' or 'given', got {brief(order)}")


def _split(blocks: Any, what: str) -> tuple[Any, tuple[int, ...] | None]:
    """Return plain lists and, where any entry is Blocks, how many entries of each are not given (-1: plain)."""
    if type(blocks) is not list and type(blocks) is not tuple:
        if isinstance(blocks, Blocks):
            raise TypeError(f"{what} must be a list with one entry per group, got a single Blocks: write [Blocks(...)]")
        blocks = list(group_lists(blocks, what))
    for item in blocks:
        if type(item) is Blocks:
            blocks = tuple(blocks)  # both lists below are of one moment, whatever another thread does to the caller's
            lists = [item.ids if type(item) is Blocks else item for item in blocks]
            return lists, tuple(item.skip if type(item) is Blocks else -1 for item in blocks)
    return blocks, None


def _readable(blocks: Any, what: str) -> list[Any]:
    lists, skips = _split(blocks, what)
    taken = readable_lists(lists, what)
    if skips is None:
        return list(taken)
    return [ids if skip < 0 else Blocks(ids, skip) for ids, skip in zip(taken, skips, strict=True)]


def _used(layout: Layout, lists: Any) -> list[Any]:
    """Return the lists with those left empty whose group no region of `layout` takes: they are not looked at."""
    lists = list(lists)
    used: set[int] = set()
    for region in layout.regions:
        used.update(range(len(lists)) if region.groups is None else region.groups)
    return [item if group in used else () for group, item in enumerate(lists)]


def _as_blocks(item: Any) -> Blocks:
    return item if isinstance(item, Blocks) else Blocks(item)


def _without(item: Blocks, null_block: int | None) -> Any:
    return item.ids if null_block is None else [block for block in item.ids if block != null_block]


def _check_pair_out(out: Any, *lists: Any) -> None:
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"out must be a tuple of two int32 arrays (source, destination), got {brief(out)}")
    check_ids_out(out[0], out[1], *lists)
    check_ids_out(out[1], *lists)
