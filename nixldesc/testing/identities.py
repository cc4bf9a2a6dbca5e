"""The identity of every byte of a request: a number for its section, indices, position and place.

Addresses are computed here from what the ranks say (regions, sections, axes, tables), by loops of
its own over blocks and axes; nothing is shared with planning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .copies import DeliveryError, Memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nixldesc import Axis, Layout, Region, Section

    from .copies import Addresses, Table, Tables

    Numbers = NDArray[np.int64]

__all__ = ["NONE", "Held", "Identities", "all_held", "find"]


@dataclass(frozen=True, slots=True)
class Held:
    """The listed blocks of one group, as one section of one region of one rank sees them."""

    rank: int
    region: Region
    section: Section
    ordinal: int  # which of the region's groups
    blocks: Addresses
    positions: Numbers

    @property
    def memory(self) -> Memory:
        """Where the blocks are."""
        return Memory(self.rank, self.region.mem_type, self.region.device_id)


def all_held(layouts: Mapping[int, Layout], tables: Mapping[int, Tables], null_block: int | None) -> Iterator[Held]:
    """What every rank of one side lists, section by section."""
    for rank, layout in layouts.items():
        given = tables[rank]
        for region in layout.regions:
            groups = range(len(given)) if region.groups is None else region.groups
            for section in region.sections:
                for ordinal, group in enumerate(groups):
                    listed = list(_entries(layout, section, given[group], null_block))
                    blocks = np.array([block for block, _ in listed], np.uint64)
                    positions = np.array([position for _, position in listed], np.int64)
                    yield Held(rank, region, section, ordinal, blocks, positions)


def _entries(layout: Layout, section: Section, table: Table, null_block: int | None) -> Iterator[tuple[int, int]]:
    """The (block id, position in the sequence) of each entry that stands for something."""
    skip = getattr(table, "skip", 0)
    sharded = section.cp and _block_tokens(section) > 0
    ids: Iterable[Any] = getattr(table, "ids", table)  # type: ignore[arg-type]
    for i, block in enumerate(ids):
        if null_block is not None and block == null_block:
            continue
        entry = skip + i
        yield int(block), layout.cp_rank + entry * layout.cp_size if sharded else entry


def _block_tokens(section: Section) -> int:
    """Tokens in one block; 0 for a section without a token axis."""
    return next((axis.stop for axis in section.axes if axis.name == "token"), 0)


def _name(axis: Axis) -> str:
    return axis.name


def _words(sizes: Mapping[str, int]) -> list[str]:
    return [axis for axis in sizes if axis not in (_GROUP, _POSITION, _ITEM)]


# What counts beside a section's axes; no axis can have these names by accident.
_GROUP, _POSITION, _ITEM = "(group)", "(position)", "(item)"
#: No bytes at all.
NONE: Addresses = np.zeros(0, np.uint64)


class Identities:
    """Numbers every byte that a section can hold: mixed radix over its global indices.

    The number 0 is no byte of any section.
    """

    def __init__(self, srcs: Mapping[int, Layout], dsts: Mapping[int, Layout], held: list[Held]) -> None:
        self._sizes: dict[str, dict[str, int]] = {}  # section -> axis -> its global size
        self._tokens: dict[str, bool] = {}
        for layout in (*srcs.values(), *dsts.values()):
            for region in layout.regions:
                for section in region.sections:
                    self._learn(section, len(region.groups or ()))
        for one in held:
            sizes = self._sizes[one.section.name]
            per_block = _block_tokens(one.section) or 1
            last = int(one.positions.max(initial=0)) + 1
            sizes[_POSITION] = max(sizes[_POSITION], last * per_block)
            sizes[_GROUP] = max(sizes[_GROUP], one.ordinal + 1)
        self._first: dict[str, int] = {}
        self._step: dict[str, dict[str, int]] = {}
        total = 1
        for name, sizes in self._sizes.items():
            self._first[name] = total
            self._step[name] = {}
            step = 1
            for axis in reversed(sizes):
                self._step[name][axis] = step
                step *= sizes[axis]
            total += step
        if total >= 2**64:
            raise ValueError("the sections are too large to give every byte a number of 64 bits")

    def _learn(self, section: Section, num_groups: int) -> None:
        axes = [axis for axis in section.axes if axis.name != "token"]
        sizes = {_GROUP: max(1, num_groups), _POSITION: 1}
        sizes |= {axis.name: axis.stop for axis in sorted(axes, key=_name)}
        sizes[_ITEM] = section.itemsize
        known = self._sizes.setdefault(section.name, sizes)
        tokens = _block_tokens(section) > 0
        if (
            known.keys() != sizes.keys()
            or known[_ITEM] != section.itemsize
            or self._tokens.setdefault(section.name, tokens) != tokens
        ):
            raise ValueError(
                f"section {section.name!r} is described in two ways: axes {_words(known)} with"
                f" items of {known[_ITEM]} bytes, and {_words(sizes)} with {section.itemsize}"
            )
        for axis, size in sizes.items():
            known[axis] = max(known[axis], size)

    def inside(self, section: Section) -> Addresses:
        """The numbers of one block's bytes at position 0 of the first group, tokens apart."""
        step = self._step[section.name]
        number = np.full((), self._first[section.name], np.uint64)
        for axis in section.axes:
            if axis.name != "token":
                index = np.arange(axis.start, axis.stop, dtype=np.uint64)
                number = number[..., None] + index * np.uint64(step[axis.name])
        return number.reshape(-1)

    def paint(self, held: Held) -> tuple[Addresses, Addresses]:
        """The address of every listed byte of one section, and its number."""
        region, section = held.region, held.section
        step = self._step[section.name]
        per_block = _block_tokens(section) or 1
        addr = held.blocks * np.uint64(region.block_stride)
        addr += np.uint64(region.base_addr + section.offset)
        number = held.positions.astype(np.uint64) * np.uint64(per_block * step[_POSITION])
        number += np.uint64(self._first[section.name] + held.ordinal * step[_GROUP])
        for axis, stride in zip(section.axes, section.strides, strict=True):
            local = np.arange(axis.stop - axis.start, dtype=np.uint64)
            addr = addr[..., None] + local * np.uint64(stride)
            each = step[_POSITION] if axis.name == "token" else step[axis.name]
            number = number[..., None] + (local + np.uint64(axis.start)) * np.uint64(each)
        inside = np.arange(section.itemsize, dtype=np.uint64)
        return (addr[..., None] + inside).reshape(-1), (number[..., None] + inside).reshape(-1)

    def check_sources(
        self,
        srcs: Mapping[int, Layout],
        dsts: Mapping[int, Layout],
        allow_missing: Collection[str] | bool,
    ) -> None:
        """Every index of every dst section must be in the layout of some source."""
        if allow_missing is True:
            return
        allowed = allow_missing or ()
        known = [
            self.inside(section) for layout in srcs.values() for region in layout.regions for section in region.sections
        ]
        known_numbers = np.sort(np.concatenate(known or [NONE]))
        for rank, layout in dsts.items():
            for region in layout.regions:
                for section in region.sections:
                    numbers = self.inside(section)
                    lacking = numbers[find(known_numbers, numbers) < 0]
                    if lacking.size and section.name not in allowed:
                        raise DeliveryError(
                            f"dst rank {rank}, region {region.name!r}: no source holds {self.say(int(lacking[0]))}"
                        )

    def say(self, number: int) -> str:
        """One byte in words: ``section 'L0', head 3, token 17, byte 1 of the item``."""
        name = [name for name, first in self._first.items() if first <= number][-1]
        rest = number - self._first[name]
        index = {}
        for axis in self._sizes[name]:
            index[axis], rest = divmod(rest, self._step[name][axis])
        group, position, item = index.pop(_GROUP), index.pop(_POSITION), index.pop(_ITEM)
        words = [f"section {name!r}"] + [f"{axis} {at}" for axis, at in index.items()]
        words.append(f"{'token' if self._tokens[name] else 'position'} {position}")
        if self._sizes[name][_ITEM] > 1:
            words.append(f"byte {item} of the item")
        if group:
            words.append(f"of the region's groups number {group}")
        return ", ".join(words)


def find(ascending: Addresses, wanted: Addresses) -> Numbers:
    """The index of each wanted value in an ascending array, -1 where it is not there."""
    if not ascending.size:
        return np.full(wanted.size, -1)
    at = np.minimum(np.searchsorted(ascending, wanted), ascending.size - 1)
    return np.where(ascending[at] == wanted, at, -1)
