"""What one rank has registered, whole: its descriptors, what their bytes mean, and how it is told to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any

from nixldesc._check import as_int, as_names, brief, few, is_many, is_plain
from nixldesc._memory import Memory
from nixldesc.errors import BlockIdError, GeometryError
from nixldesc.memory import sequence, wire, wire_reading
from nixldesc.memory.columns import (
    Columns,
    Pages,
    columns_of,
    made_columns,
    pages_of,
    part_of,
    regions_of,
)
from nixldesc.memory.descriptors import Descriptors
from nixldesc.memory.proof import prove_columns, prove_pages, prove_region, prove_rows, prove_total
from nixldesc.memory.region import Region

__all__ = ["MAX_CP_SIZE", "Layout"]

#: More context-parallel ranks than any engine has; bounds what a stranger's layout can make a plan look through.
MAX_CP_SIZE = 2**12


class Layout(Descriptors):
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

    __slots__ = ("__weakref__", "cp_rank", "cp_size", "cp_tokens", "pages")

    #: What the blocks of the regions mean.
    pages: Pages
    cp_rank: int
    cp_size: int
    cp_tokens: int | None

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
        lens = [region.block_len for region in regions]
        prove_pages(names, min(lens), lambda: lens, pages)
        columns = columns_of(regions)
        _fill(self, columns, names, pages, place)
        self._cache["regions"] = regions
        prove_rows(columns, self.laid)

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
        from nixldesc.memory.parallel_lists import regions_from_columns  # here, not above: the few who have lists

        return cls(
            regions_from_columns(
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

    @property
    def kind(self) -> object:
        """A token: layouts of one kind are known to differ in nothing but where their blocks are.

        >>> message = Layout([Region("k", 0, 16, 4)]).to_dict()
        >>> Layout.from_dict(message).kind is Layout.from_dict({**message, "base_addrs": [4096]}).kind
        True
        """
        return self._once("kind", object)

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
        from nixldesc.memory import ranges  # here, not above: registration asks for it, once

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
        from nixldesc.memory import ranges

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
            shape = wire_reading.shape_of(d)
            known = _KNOWN.get(shape) if shape else None
            layout = known.at(d) if known else None
            if layout is None:
                layout = cls._read(d)
                if shape and layout.columns.plain and _is_small(layout):
                    _KNOWN.put(shape, Known(layout))
        except (TypeError, RecursionError, OverflowError) as error:
            raise GeometryError(f"layout: {str(error).removeprefix('layout: ')}") from None
        except Exception as error:
            if isinstance(error, (GeometryError, MemoryError)) or is_plain(d):
                raise  # what plain data cannot do is a fault of this library, and is to be seen
            raise GeometryError(f"layout: it holds objects that are no plain data ({type(error).__name__})") from None
        return layout

    @classmethod
    def _read(cls, d: Any) -> Layout:
        if wire_reading.version_of(d) == 1:
            from nixldesc.memory.wire_version_1 import layout_from_version_1  # of old peers alone

            regions, (cp_rank, cp_size) = layout_from_version_1(d)
            return cls(regions, cp_rank=cp_rank, cp_size=cp_size)
        columns, names, pages, given, bounds = wire_reading.layout_from_dict(d)
        place = _check_place(*given)
        sound = prove_columns(columns, bounds)
        if not sound:
            for region in regions_of(columns, names, pages):
                prove_region(region)
        prove_pages(names, bounds["block_lens"][0], columns.block_lens.tolist, pages)
        if not sound:
            counts = zip(columns.num_blocks.tolist(), columns.sub_blocks.tolist(), columns.runs.tolist(), strict=True)
            prove_total(sum([blocks * subs * runs for blocks, subs, runs in counts]))
        layout = proven_layout(columns, names, pages, place)
        prove_rows(columns, layout.laid)
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
) -> None:
    """Set each slot by its own setter: layouts are made for each peer, and object.__setattr__ takes twice as long."""
    rank, size, tokens = place
    _put_columns(layout, columns)
    _put_names(layout, names)
    _put_pages(layout, pages)
    _put_rank(layout, rank)
    _put_size(layout, size)
    _put_tokens(layout, tokens)
    _put_cache(layout, {})
    _put_latest(layout, None)


_put_columns, _put_names, _put_pages, _put_rank, _put_size, _put_tokens, _put_cache, _put_latest = (
    getattr(Layout, slot).__set__
    for slot in ("columns", "names", "pages", "cp_rank", "cp_size", "cp_tokens", "_cache", "_latest")
)


def proven_layout(columns: Columns, names: Sequence[str], pages: Pages, place: tuple[int, int, int | None]) -> Layout:
    """Return a layout of columns that are known to be sound: a stranger's, once proven; parts of a proven layout's."""
    layout = object.__new__(Layout)
    _fill(layout, columns, names, pages, place)
    return layout


class Known:
    """A shape that some stranger's layout was proven to have: the next of its shape owes only where its blocks are."""

    def __init__(self, first: Layout) -> None:
        columns = first.columns
        self._like = columns
        self._lens = {
            "block_lens": (int(columns.block_lens.min()), int(columns.block_lens.max())),
            "block_strides": (int(columns.block_strides.min()), int(columns.block_strides.max())),
            "sub_strides": (1, 1),
            "run_strides": (1, 1),
        }
        self._rest = first.names, first.pages, (first.cp_rank, first.cp_size, first.cp_tokens)
        self._kind = first.kind

    def at(self, d: dict[str, Any]) -> Layout | None:
        """Return the layout of this shape whose blocks are where `d` says; None if that must be looked at closely."""
        numbers, bounds = wire_reading.read_where(d, self._like.numbers)
        like = self._like
        columns = made_columns(numbers, like.mem_types, like.groups, like.pieces, like.plain)
        bounds.update(self._lens)
        if not prove_columns(columns, bounds):
            return None
        layout = proven_layout(columns, *self._rest)
        layout._cache["kind"] = self._kind
        layout._cache["most blocks"] = bounds["num_blocks"][1]
        return layout


#: Of larger layouts a stranger's few bytes could fill the memory with hundreds.
MAX_KNOWN_NAMES, MAX_KNOWN_LETTERS = 2**11, 2**16


def _is_small(layout: Layout) -> bool:
    names = [layout.names, *layout.pages.names]
    few = sum(map(len, names)) <= MAX_KNOWN_NAMES
    return few and sum([len(name) for found in names for name in found]) <= MAX_KNOWN_LETTERS


_KNOWN: Memory[bytes, Known] = Memory(256)
