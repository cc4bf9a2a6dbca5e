"""Two prepared lists of one transfer: row i of the source's is as long as row i of the destination's.

::

    source list        region 0: K@0          region 1: V@4096               each a Region of its own: equal runs of
    dst list           region 0: K@0          region 1: V@0                  bytes inside each block, found by a plan

    a request names blocks; entries that stand at one position meet; each met pair is one descriptor a region:

        src  Blocks([7, 3, 9, 4])           position 0 1 2 3
        dst  Blocks([20, 22], skip=2)       position     2 3       ->   9 -> 20,  4 -> 22
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_names, brief, few, is_many
from nixldesc.errors import BlockIdError, PeerMismatchError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import MAX_LISTS, BlockIds, Fault, as_null, readable_lists
from nixldesc.memory.layout import Layout
from nixldesc.memory.region import Region
from nixldesc.request.blocks import Place, Places
from nixldesc.request.lists import (
    BlockTables,
    as_tokens,
    check_pair_out,
    read_used,
    split_lists,
    standing,
    want_nothing,
)
from nixldesc.request.moves import IdPair, id_moves, id_ops, pair_ids
from nixldesc.request.origins import Origin
from nixldesc.request.programs import Compiled, pair_program

__all__ = ["DlistPair", "Origin"]

_ALL = slice(None)
_SIDES = ("source", "destination")
#: Programs of a pair kept for the next request; one for each number of lists and choice of sections.
_MOST_PROGRAMS = 2**12


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
    _cache: dict[Any, Compiled] = field(repr=False, compare=False, hash=False)

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
        put(self, "places", tuple(places) or tuple(_own_places(src, dst, s, d) for s, d in regions))
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

    @property
    def sections(self) -> tuple[str, ...]:
        """Names of the sections that this pair moves, each once.

        >>> DlistPair(Layout([Region("k", 0, 16, 4)]), Layout([Region("c", 0, 16, 4)])).sections
        ('c',)
        """
        return tuple(dict.fromkeys(name for _, _, names in self.origin for name in names))

    def desc_ids(
        self,
        src_blocks: BlockTables,
        dst_blocks: BlockTables,
        *,
        order: Literal["merge", "given"] = "merge",
        null_block: int | None = None,
        tokens: int | None = None,
        complete: bool = False,
        sections: Iterable[str] | None = None,
        regions: slice = _ALL,
        out: IdPair | None = None,
    ) -> IdPair:
        """Return ``(src_ids, dst_ids)`` of a request: int32, C-contiguous, of equal length, in range, region-major.

        `src_blocks` and `dst_blocks` hold one entry per KV cache group: a plain sequence of block ids, or
        :class:`Blocks` to say which entries of the full list these are. Positions present on both sides are paired,
        others are left out. A pair with a `null_block` on either side is dropped, its other id unchecked. Lists whose
        group no region here uses are not looked at. An empty destination list, or none at all, wants nothing.

        Two plain lists must explain one another without a guess. `tokens`: of the request, from the start of the
        sequence; each plain list of a section of tokens then has exactly the entries that so many need on its side,
        and sub-blocks without a token below stay where they are. Without it both lists cover equally many tokens;
        under context parallelism some number of tokens needs exactly so many entries on each side, and lists of
        unequal blocks are refused.

        ``order="merge"`` sorts the pairs of each region by dst desc id, so that all that can merge are neighbours;
        ``"given"`` keeps positions ascending. ``complete=True`` refuses a request in which a named dst entry lacks
        what this pair's source could hold of it. `sections`: only all regions of these (a layer at a time, while later
        ones are computed), `regions`: only that slice of the pair's regions; against the same prepared lists. `out`:
        two int32 arrays of the exact size.

        Raises :class:`BlockIdError` for ids out of range, missing lists, lists that do not fit, a dst block named
        twice in a region; :class:`PeerMismatchError` for sections or regions that are not here or cannot be moved
        apart from others; :class:`TypeError` for wrong types.

        >>> from nixldesc import Blocks, Region
        >>> pair = DlistPair(Layout([Region("k", 0, 16, 64)]), Layout([Region("k", 0, 16, 64)]))
        >>> [ids.tolist() for ids in pair.desc_ids([[10, 11, 12, 13, 14]], [Blocks.tail([41, 40], 5)])]
        [[14, 13], [40, 41]]
        >>> [ids.tolist() for ids in pair.desc_ids([[10, 11, 12]], [Blocks([40, 41], at=[0, 2])])]
        [[10, 12], [40, 41]]
        """
        if null_block is not None:
            null_block = as_null(null_block)
        wanted = -1 if tokens is None else as_tokens(tokens)
        src_lists, src_skips = split_lists(src_blocks, "src_blocks")
        dst_lists, dst_skips = split_lists(dst_blocks, "dst_blocks")
        if out is not None:
            check_pair_out(out, *src_lists, *dst_lists)
        key: Any = (len(src_lists), len(dst_lists))
        if sections is not None:
            key = (*key, as_names(sections, "sections"))
        src_out, dst_out = out or (None, None)
        merge, complete = order == "merge" or _is_merge(order), complete is not False and _is_true(complete)
        compiled = self._cache.get(key) or self._compile_for(key, src_lists, dst_lists)
        if compiled is None:
            return _nothing(out)
        first, last = (0, len(compiled.flat_of)) if regions is _ALL else self._slice(regions, sections)
        result = compiled.program.run(
            src_lists, dst_lists, src_skips, dst_skips, merge, null_block, wanted, complete, first, last,
            src_out, dst_out,
        )  # fmt: skip
        if len(result) == 2:
            return result
        if result[0] == _kernels.UNREAD:
            # Rare forms (ranges, other integer arrays) are converted once, then read like any other.
            src_lists = read_used(src_lists, compiled.groups(0, first, last), "src_blocks")
            dst_lists = read_used(dst_lists, compiled.groups(1, first, last), "dst_blocks")
            key = (len(src_lists), len(dst_lists), *key[2:])  # an id's __index__ may have shortened the list of lists
            compiled = self._cache.get(key) or self._compile(*key)
            result = compiled.program.run(
                src_lists, dst_lists, src_skips, dst_skips, merge, null_block, wanted, complete, first, last,
                src_out, dst_out,
            )  # fmt: skip
            if len(result) == 2:
                return result
        from nixldesc.request.words import Refused, word  # here: who is never refused imports none of it

        of = Refused((self.src, self.dst), self.origin, compiled, (first, last), (src_lists, dst_lists), wanted)
        raise word(Fault(*result), of)

    def kin(self, num_src: int, num_dst: int, sections: tuple[str, ...] | None = None) -> bytes | None:
        """Return what pairs share that give equal ids for equal lists, or None where so many lists do not fit.

        >>> from nixldesc import Region
        >>> pair = DlistPair(Layout([Region("k", 0, 16, 64)]), Layout([Region("k", 0, 16, 64)]))
        >>> other = DlistPair(Layout([Region("c", 4096, 32, 64)]), Layout([Region("c", 0, 32, 64)]))
        >>> pair.kin(1, 1) == other.kin(1, 1), pair.kin(2, 1)
        (True, None)
        """
        key: Any = (num_src, num_dst) if sections is None else (num_src, num_dst, sections)
        compiled = self._cache.get(key)
        if compiled is None:
            try:
                compiled = self._cache.setdefault(key, self._compile(*key))
            except BlockIdError:  # for desc_ids to word
                return None
        return compiled.kin

    def _slice(self, regions: slice, sections: Any) -> tuple[int, int]:
        if not isinstance(regions, slice):
            raise TypeError(f"regions must be a slice of the pair's regions, got {brief(regions)}")
        if sections is not None:
            raise TypeError("regions and sections both choose; give one of them")
        count = len(self.places)
        first, last, step = regions.indices(count)
        if step != 1:
            raise ValueError(f"regions must be a slice of step 1, got step {step}")
        if any(bound is not None and not -count <= bound <= count for bound in (regions.start, regions.stop)):
            raise PeerMismatchError(
                f"regions is {regions}, but the pair has {count} regions (they are not layers: sections= names those)"
            )
        return first, max(first, last)

    def _compile_for(self, key: Any, src_lists: Any, dst_lists: Any) -> Compiled | None:
        """Return the program for so many lists, or None where they do not fit its groups and dst wants nothing."""
        for what, given in zip(("src_blocks", "dst_blocks"), key, strict=False):
            if given > MAX_LISTS:
                raise BlockIdError(f"{what} has {given} lists; one list per KV cache group is expected")
        try:
            made = self._compile(*key)
        except BlockIdError:
            for what, lists in (("src_blocks", src_lists), ("dst_blocks", dst_lists)):
                readable_lists(lists, what)  # a flat list of ids is none of lists
            if want_nothing(dst_lists):
                return None
            raise
        if len(self._cache) >= _MOST_PROGRAMS:
            self._cache.clear()
        return self._cache.setdefault(key, made)

    def _compile(self, num_src: int, num_dst: int, sections: tuple[str, ...] | None = None) -> Compiled:
        chosen = range(len(self.places)) if sections is None else self._of_sections(sections)
        return pair_program((self.src, self.dst), self.places, self.origin, chosen, num_src, num_dst)

    def _of_sections(self, wanted: tuple[str, ...]) -> list[int]:
        """Return the numbers of the regions of these sections, which hold no others."""
        known = set(self.sections)
        for name in wanted:
            if name not in known:
                raise PeerMismatchError(f"there is no section {name!r} in this pair; its sections are {few(known)}")
        chosen = []
        for number, (_, region, names) in enumerate(self.origin):
            others = [name for name in names if name not in wanted]
            if names and not others:
                chosen.append(number)
            elif len(others) < len(names):
                raise PeerMismatchError(
                    f"region {region!r} moves sections {few(names)} as one run of bytes; {few(others)} must be "
                    f"named as well, or none of them"
                )
        return chosen

    def uncovered(
        self,
        src_blocks: BlockTables,
        dst_blocks: BlockTables,
        *,
        null_block: int | None = None,
        tokens: int | None = None,
    ) -> NDArray[np.int32]:
        """Return the dst desc ids that the dst lists name and no src position of this pair fills: int32, region-major.

        A tail to zero, say; ``pair.dst.address(desc_id)`` tells where it is. Null entries of the dst lists are not
        named; null entries of the src lists fill nothing; nor is named what begins at or behind `tokens`. Plain lists
        stand at the sequence's start, whatever their lengths. Raises as :meth:`desc_ids` does.

        >>> from nixldesc import Blocks, Region
        >>> pair = DlistPair(Layout([Region("k", 0, 16, 64)]), Layout([Region("k", 0, 16, 64)]))
        >>> pair.uncovered([[10, 11]], [[40, 41, 42]]).tolist()
        [42]
        """
        src, dst = standing(src_blocks, "src_blocks"), standing(dst_blocks, "dst_blocks")
        _, filled = self.desc_ids(src, dst, order="given", null_block=null_block, tokens=tokens)
        # What dst names is what it would give itself.
        places = tuple([place._replace(src=place.dst) for place in self.places])
        itself = derived_pair(self.dst, self.dst, self.origin, places)
        _, named = itself.desc_ids(dst, dst, order="given", null_block=null_block, tokens=tokens)
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
        if isinstance(item, Places):
            _prove_places(item, f"{what}[{i}]")
    if found and len(found) != regions:
        raise PeerMismatchError(f"{len(found)} entries in {what} for {regions} regions")
    return found


def _prove_places(places: Places, what: str) -> None:
    for place in (places.src, places.dst, places.deal):
        if not (0 <= place.first < place.every < 2**31 and 0 < place.grain < 2**31):
            raise PeerMismatchError(f"{what}: expected 0 <= first < every and grain > 0 on both sides, got {places}")
    if not 0 <= places.unit_tokens < 2**31:
        raise PeerMismatchError(f"{what}: expected unit_tokens of 0 or more, got {places}")


def _names(region: Region) -> tuple[str, ...]:
    return tuple(section.name for section in region.sections) or (region.name,)


def _own_places(src: Layout, dst: Layout, src_region: Region, dst_region: Region) -> Places:
    """Return where the lists of two regions stand that are paired as they are."""
    src_tokens, dst_tokens = _block_tokens(src_region), _block_tokens(dst_region)
    unit = src_tokens if src_tokens == dst_tokens else 0
    deals = _deal(src, src_region), _deal(dst, dst_region)
    if unit and deals[0] == deals[1]:
        return Places(Place(), Place(), unit, deals[0])
    return Places(_place(deals[0], src_region, unit), _place(deals[1], dst_region, unit), unit)


def _block_tokens(region: Region) -> int:
    """Return the tokens of a block where its sections say so, and the same; what is cut has no sections."""
    tokens = {section.block_tokens for section in region.sections}
    return tokens.pop() if len(tokens) == 1 else 0


def _deal(layout: Layout, region: Region) -> Place:
    """Return which tokens of the sequence a region's list holds; the grain is 1 for whole blocks of no known tokens."""
    sharded = region.sub_blocks > 1 or any(section.cp and section.block_tokens for section in region.sections)
    if not sharded or layout.cp_size == 1:
        return Place()
    tokens = _block_tokens(region)
    if not tokens and layout.cp_tokens:
        raise PeerMismatchError(
            f"region {region.name!r}: the layout deals {layout.cp_tokens} tokens at a time, but nothing says how many "
            f"tokens the region's blocks hold; plan() pairs what has sections, places= says it for all else"
        )
    return Place(layout.cp_rank, layout.cp_size, layout.cp_tokens or tokens or 1)


def _place(deal: Place, region: Region, unit: int) -> Place:
    if deal.every == 1:
        return deal
    if not unit:
        return deal._replace(grain=region.sub_blocks)
    if deal.grain % unit:
        raise PeerMismatchError(
            f"region {region.name!r}: its tokens are dealt {deal.grain} at a time, its blocks of {unit} are not cut "
            f"to that; plan() cuts them"
        )
    return deal._replace(grain=deal.grain // unit)


def derived_pair(src: Layout, dst: Layout, origin: Sequence[Origin], places: tuple[Places, ...]) -> DlistPair:
    """Return a pair of layouts that a plan derived from proven ones; trusted."""
    pair = object.__new__(DlistPair)
    _put_src(pair, src)
    _put_dst(pair, dst)
    _put_origin(pair, origin)
    _put_places(pair, places)
    _put_cache(pair, {})
    return pair


# As in a Layout: one is made for each peer.
_put_src, _put_dst, _put_origin, _put_places, _put_cache = (
    getattr(DlistPair, slot).__set__ for slot in ("src", "dst", "origin", "places", "_cache")
)


def _is_merge(order: Any) -> bool:
    if order == "given":
        return False
    raise ValueError(f"order must be 'merge' or 'given', got {brief(order)}")


def _is_true(complete: Any) -> bool:
    if complete is True:
        return True
    raise TypeError(f"complete must be True or False, got {brief(complete)}")


def _nothing(out: Any) -> IdPair:
    """Return the ids of a request that wants nothing."""
    if out is None:
        return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32)
    if len(out[0]) or len(out[1]):
        raise ValueError(f"out holds {len(out[0])} and {len(out[1])} ids, the request has 0 pairs")
    ids: IdPair = out
    return ids
