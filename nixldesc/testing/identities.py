"""The identity of every byte of a request: a number for its section, indices, position and place.

::

    what a rank says                      what it means here
    Section, Axis, unit, cp_rank ...      byte (offset in the block) -> section, index on each axis, token of the block
    a table's entry                       block id, and which tokens of the sequence that rank's entry holds
    Region.segments                       block id -> address, in which memory

Addresses and positions are computed here from what the ranks say, by loops of its own over entries, tokens and axes;
nothing is shared with planning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._memory import Range
from .copies import DeliveryError, Memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nixldesc import Layout, Region, Section

    from .copies import Addresses, Table, Tables

    Numbers = NDArray[np.int64]

__all__ = ["MUST", "NEVER", "Held", "Identities", "all_held", "ascending", "block_range", "find", "sections_of"]

#: What may happen to a listed byte of dst: nothing, one copy or none, exactly one copy.
NEVER, MAY, MUST = 0, 1, 2

# What counts beside a section's axes; no axis can have these names by accident.
_GROUP, _TOKEN, _POSITION, _ITEM = "(group)", "(token)", "(position)", "(item)"


@dataclass(frozen=True, slots=True)
class Held:
    """The listed blocks of one group in one memory, as one section of one region of one rank sees them.

    `blocks[i]` begins at `starts[i]`; step t of its token axis is token `tokens[i, t]` of the sequence (without a token
    axis: its one step is position `tokens[i, 0]`).
    """

    memory: Memory
    region: Region
    section: Section
    ordinal: int  # which of the region's groups
    blocks: Numbers
    starts: Addresses
    tokens: Numbers


class Painted(NamedTuple):
    """Bytes, [block][byte]: `token` is where in the sequence, `first` the first token of the block; -1: no tokens."""

    addr: Addresses
    identity: Addresses
    token: Numbers
    first: Numbers

    def due(self, tokens: int | None) -> Numbers:
        """What may happen to each byte: behind the request's last token none need arrive."""
        if tokens is None:
            return np.full(self.addr.shape, MUST)
        return np.where(self.token < tokens, MUST, np.where(self.first < tokens, MAY, NEVER))


def all_held(layouts: Mapping[int, Layout], tables: Mapping[int, Tables], null_block: int | None) -> Iterator[Held]:
    """What every rank of one side lists, section by section."""
    for rank, layout in layouts.items():
        for region in layout.regions:
            groups = range(len(tables[rank])) if region.groups is None else region.groups
            for section, (ordinal, group) in product(region.sections, enumerate(groups)):
                yield from _held(rank, layout, region, section, ordinal, tables[rank][group], null_block)


def _held(
    rank: int, layout: Layout, region: Region, section: Section, ordinal: int, table: Table, null_block: int | None
) -> Iterator[Held]:
    size = _span(section).get("token", 0)
    found = [
        (block, block_range(region, block), _tokens(layout, section, size, entry))
        for entry, block in _entries(table, null_block)
    ]
    for device in sorted({there.device_id for _, there, _ in found}) or [region.device_id]:
        here = [(block, there.addr, tokens) for block, there, tokens in found if there.device_id == device]
        blocks, starts, tokens = zip(*here, strict=True) if here else ((), (), ())
        at = np.array(tokens, np.int64).reshape(-1, size or 1)
        memory = Memory(rank, region.mem_type, device)
        yield Held(memory, region, section, ordinal, np.array(blocks, np.int64), np.array(starts, np.uint64), at)


def _entries(table: Table, null_block: int | None) -> Iterator[tuple[int, int]]:
    """Which entry of the rank's full list each block id is, placeholders left out."""
    skip, at = getattr(table, "skip", 0), getattr(table, "at", None)
    ids: Any = getattr(table, "ids", table)
    for i, block in enumerate(ids):
        if null_block is None or block != null_block:
            yield (skip + i if at is None else int(at[i])), int(block)


def _tokens(layout: Layout, section: Section, size: int, entry: int) -> list[int]:
    """The tokens of the sequence that an entry of the rank's list holds, `size` of them: dealt grain by grain."""
    if not size:
        return [entry]
    local = range(entry * size, (entry + 1) * size)
    if not section.cp or layout.cp_size == 1:
        return list(local)
    grain = layout.cp_tokens or size
    return [(turn * layout.cp_size + layout.cp_rank) * grain + i for turn, i in (divmod(at, grain) for at in local)]


def block_range(region: Region, block: int) -> Range:
    """Where a block lies."""
    if not 0 <= block < region.num_blocks:
        raise ValueError(f"region {region.name!r} has {region.num_blocks} blocks, block {block} is none of them")
    for base, count, device in region.segments.tolist():
        if block < count:
            return Range(region.mem_type, base + block * region.block_stride, region.reach, device)
        block -= count
    raise ValueError(f"the segments of region {region.name!r} hold fewer blocks than it has")


def _span(section: Section) -> dict[str, int]:
    """For each axis the last index that the section holds, plus one; an axis stored in parts counts once."""
    last: dict[str, int] = {}
    for axis in section.axes:
        last[axis.name] = last.get(axis.name, 0) + (axis.stop - 1) * axis.unit
    return {name: index + 1 for name, index in last.items()}


class Identities:
    """Numbers every byte that a section can hold: its place in an array of all its global indices, one after another.

    The number 0 is no byte of any section.
    """

    def __init__(self, srcs: Mapping[int, Layout], dsts: Mapping[int, Layout], held: list[Held]) -> None:
        self._sizes: dict[str, dict[str, int]] = {}  # section -> axis -> its global size
        for _, region, section in sections_of(srcs, dsts):
            self._learn(section, len(region.groups or ()))
        for one in held:
            sizes = self._sizes[one.section.name]
            position = _position(sizes)
            sizes[position] = max(sizes[position], int(one.tokens.max(initial=0)) + 1)
            sizes[_GROUP] = max(sizes[_GROUP], one.ordinal + 1)
        *firsts, total = accumulate((prod(sizes.values()) for sizes in self._sizes.values()), initial=1)
        if total >= 2**63:
            raise ValueError("the sections are too large to give every byte a number of 64 bits")
        self._first = dict(zip(self._sizes, firsts, strict=True))

    def _learn(self, section: Section, num_groups: int) -> None:
        span = _span(section)
        position = _TOKEN if span.pop("token", 0) else _POSITION
        sizes = {_GROUP: max(1, num_groups), position: 1, **dict(sorted(span.items())), _ITEM: section.itemsize}
        known = self._sizes.setdefault(section.name, sizes)
        if known.keys() != sizes.keys() or known[_ITEM] != section.itemsize:
            raise ValueError(
                f"section {section.name!r} is described in two ways: axes {_words(known)} with"
                f" items of {known[_ITEM]} bytes, and {_words(sizes)} with {section.itemsize}"
            )
        for axis, size in sizes.items():
            known[axis] = max(known[axis], size)

    def _page(self, section: Section) -> tuple[Addresses, dict[str, Numbers]]:
        """For each byte of one block: where it lies, and its index on each axis."""
        shape = [*(axis.stop - axis.start for axis in section.axes), section.itemsize]
        *along, item = np.indices(shape).reshape(len(shape), -1)
        offset, index = item.astype(np.uint64) + np.uint64(section.offset), {_ITEM: item}
        for axis, stride, local in zip(section.axes, section.strides, along, strict=True):
            offset += local.astype(np.uint64) * np.uint64(stride)
            index[axis.name] = index.get(axis.name, 0) + (local + axis.start) * axis.unit
        return offset, index

    def _numbers(self, name: str, index: Mapping[str, Numbers | int]) -> Addresses:
        """The numbers of bytes with these indices; an axis that is not said is at 0."""
        sizes = self._sizes[name]
        place = np.ravel_multi_index([index.get(axis, 0) for axis in sizes], [*sizes.values()])
        return place.astype(np.uint64) + np.uint64(self._first[name])

    def paint(self, held: Held) -> Painted:
        """The address of every listed byte of one section, and its number; [block][byte]."""
        offset, index = self._page(held.section)
        token = held.tokens[:, index.pop("token", np.zeros_like(index[_ITEM]))]
        position = _position(self._sizes[held.section.name])
        identity = self._numbers(held.section.name, {**index, position: token, _GROUP: held.ordinal})
        first = np.broadcast_to(held.tokens.min(axis=1, keepdims=True), token.shape)
        if position == _POSITION:
            token = first = np.full_like(token, -1)
        return Painted(np.add.outer(held.starts, offset), identity, token, first)

    def check_sources(
        self, srcs: Mapping[int, Layout], dsts: Mapping[int, Layout], allow_missing: Collection[str] | bool
    ) -> None:
        """Every index of every dst section must be in the layout of some source."""
        if allow_missing is True:
            return
        known = ascending(self._numbers(section.name, self._page(section)[1]) for _, _, section in sections_of(srcs))
        for rank, region, section in sections_of(dsts):
            numbers = self._numbers(section.name, self._page(section)[1])  # at position 0
            lacking = numbers[find(known, numbers) < 0]
            if lacking.size and section.name not in (allow_missing or ()):
                raise DeliveryError(
                    f"dst rank {rank}, region {region.name!r}: no source holds {self.say(int(lacking.min()))}"
                )

    def say(self, number: int) -> str:
        """One byte in words: ``section 'L0', head 3, token 17, byte 1 of the item``."""
        name = [name for name, first in self._first.items() if first <= number][-1]
        sizes = self._sizes[name]
        at = np.unravel_index(number - self._first[name], [*sizes.values()])
        group, position, *inside, item = zip(sizes, map(int, at), strict=True)
        words = [f"section {name!r}", *(f"{axis} {index}" for axis, index in inside)]
        words.append("{} {}".format(position[0].strip("()"), position[1]))
        if sizes[_ITEM] > 1:
            words.append(f"byte {item[1]} of the item")
        if group[1]:
            words.append(f"of the region's groups number {group[1]}")
        return ", ".join(words)


def sections_of(*sides: Mapping[int, Layout]) -> Iterator[tuple[int, Region, Section]]:
    """Every section of every region, and whose it is."""
    for rank, layout in chain.from_iterable(side.items() for side in sides):
        yield from ((rank, region, section) for region in layout.regions for section in region.sections)


def _position(sizes: Mapping[str, int]) -> str:
    return _TOKEN if _TOKEN in sizes else _POSITION


def _words(sizes: Mapping[str, int]) -> list[str]:
    return [axis for axis in sizes if axis not in (_GROUP, _TOKEN, _POSITION, _ITEM)]


def ascending(parts: Iterable[Addresses]) -> Addresses:
    """All values, each once."""
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *parts]))


def find(known: Addresses, wanted: Addresses) -> Numbers:
    """The index of each wanted value in an ascending array, -1 where it is not there."""
    if not known.size:
        return np.full(wanted.size, -1)
    at = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return np.where(known[at] == wanted, at, -1)
