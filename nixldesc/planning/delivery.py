"""What of a request arrives, by token position: the report on holes that no length check would notice.

::

    dst entry 2 stands at tokens   [128 ............ 192)
    src 0 gives entries                   [144 ... 160) [160 ... 176)
    undelivered                    [128 144)                        [176 192)      (section, dst block id, 0, 16) ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import brief
from nixldesc.errors import BlockIdError
from nixldesc.memory.ids import BlockIds, as_null, group_lists, out_of_range, read_ids
from nixldesc.memory.region import Region
from nixldesc.memory.sections import Section
from nixldesc.planning.sources import Take
from nixldesc.request.blocks import Blocks, Place

__all__ = ["Delivery", "undelivered"]


class Delivery(NamedTuple):
    """A destination section and the takes that together bring it here."""

    region: Region
    section: Section
    place: Place
    takes: tuple[Take, ...]


class _Entries(NamedTuple):
    """One list's live entries: their block ids and positions in the sequence, in blocks of that side's size."""

    ids: NDArray[np.int32]
    positions: NDArray[np.int64]


def undelivered(
    deliveries: Iterable[Delivery],
    src_blocks: Mapping[int, Sequence[BlockIds | Blocks]],
    dst_blocks: Sequence[BlockIds | Blocks],
    null_block: int | None,
) -> list[tuple[str, int, int, int]]:
    """Return ``(section, dst block id, first token, last token + 1)`` for what no source fills."""
    if not isinstance(src_blocks, Mapping):
        raise TypeError(f"src_blocks must map source ranks to block lists, got {brief(src_blocks)}")
    null_block = as_null(null_block)
    dst_blocks = group_lists(dst_blocks, "dst_blocks")
    given = {rank: group_lists(lists, f"src_blocks[{rank}]") for rank, lists in src_blocks.items()}
    holes = []
    for delivery in deliveries:
        unit, per_block = _unit(delivery)
        for number, group in enumerate(_groups(delivery.region, len(dst_blocks))):
            entries = _entries(dst_blocks, group, delivery.region, delivery.place, null_block, "dst_blocks")
            at = entries.positions[:, None] * per_block + np.arange(per_block)
            filled = np.ones(at.shape, dtype=bool)
            for take in delivery.takes:
                filled &= _filled(take, number, at, unit, given.get(take.holder.rank, ()), null_block)
            for block, row in zip(entries.ids.tolist(), ~filled, strict=True):
                edges = (np.flatnonzero(np.diff(row, prepend=False, append=False)) * unit).tolist()
                holes += [(delivery.section.name, block, *edges[i : i + 2]) for i in range(0, len(edges), 2)]
    return holes


def _unit(delivery: Delivery) -> tuple[int, int]:
    """Return the tokens that all sides' blocks are whole multiples of, and how many of those a dst block has."""
    sizes = [delivery.section.block_tokens, *(take.holder.section.block_tokens for take in delivery.takes)]
    unit = gcd(*sizes) or 1
    return unit, (sizes[0] or 1) // unit


def _groups(region: Region, given: int) -> Sequence[int]:
    return range(given) if region.groups is None else region.groups


def _filled(
    take: Take, number: int, at: NDArray[np.int64], unit: int, lists: Sequence[Any], null_block: int | None
) -> NDArray[np.bool_]:
    """Return which units of tokens `at` this take fills, or leaves to another context-parallel rank."""
    holder = take.holder
    block = at // ((holder.section.block_tokens or 1) // unit)
    others: NDArray[np.bool_] = block % holder.place.every != holder.place.first
    groups = _groups(holder.region, len(lists))
    if not lists or number >= len(groups):
        return others
    what = f"src_blocks[{holder.rank}]"
    entries = _entries(lists, groups[number], holder.region, holder.place, null_block, what)
    others |= np.isin(block, entries.positions)
    return others


def _entries(
    lists: Sequence[Any], group: int, region: Region, place: Place, null_block: int | None, what: str
) -> _Entries:
    if group >= len(lists):
        raise BlockIdError(f"{what} has {len(lists)} lists, but group {group} is used; give one list per group")
    item, where = lists[group], f"{what}[{group}]"
    ids, skip = (item.ids, item.skip) if isinstance(item, Blocks) else (item, 0)
    found = read_ids(ids, where, null_block=null_block)
    if (skip + len(found) + 1) * place.every >= 2**31:
        raise BlockIdError(f"{where}: skip {skip} is beyond any sequence of 2**31 blocks")
    live = np.ones(len(found), dtype=bool) if null_block is None else found != null_block
    beyond = np.flatnonzero(live & (found >= region.num_blocks))
    if len(beyond):
        raise out_of_range(where, ids, int(beyond[0]), region.name, region.num_blocks)
    positions = place.first + (skip + np.arange(len(found))) * place.every
    return _Entries(found[live], positions[live])
