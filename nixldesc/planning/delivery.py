"""What of a request arrives, by token position: the report on holes that no length check would notice.

::

    dst entry 2 stands at tokens   [128 ............ 192)
    src 0 gives entries                   [144 ... 160) [160 ... 176)
    undelivered                    [128 144)                        [176 192)      (section, dst block id, 0, 16) ...

Worked out once per family of alike regions, in units of tokens that divide all sides' blocks and grains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import as_int, brief
from nixldesc.errors import BlockIdError, GeometryError
from nixldesc.memory.ids import as_null, group_lists, out_of_range, read_ids
from nixldesc.memory.layout import Layout
from nixldesc.planning.boxes import Box, choose, held_of, volume
from nixldesc.planning.families import Alike, Family, Slot, Source
from nixldesc.planning.meeting import Deal
from nixldesc.planning.sources import box_of
from nixldesc.planning.template import SlotTake, Template
from nixldesc.request.blocks import Blocks

__all__ = ["Hole", "holes_of", "shared", "unfilled"]

#: (section, dst block id, first token, last token + 1)
Hole = tuple[str, int, int, int]


class _Request(NamedTuple):
    """A request's lists by source, those of the destination, and what narrows them."""

    src: Mapping[int, Sequence[Any]]
    dst: Sequence[Any]
    null_block: int | None
    tokens: int | None


class _Entries(NamedTuple):
    """One list's live entries: their block ids and numbers in the rank's full list."""

    ids: NDArray[np.int32]
    numbers: NDArray[np.int64]


#: Whether the boxes that arrive are wrong for what is wanted.
Judge = Callable[[Box, Sequence[Box]], bool]


def unfilled(wanted: Box, boxes: Sequence[Box]) -> bool:
    """Whether something of `wanted` is in none of the boxes that arrive.

    >>> unfilled(((0, 4),), [((0, 2),)]), unfilled(((0, 4),), [((0, 2),), ((2, 4),)])
    (True, False)
    """
    return bool(choose(wanted, boxes)[1])


def shared(wanted: Box, boxes: Sequence[Box]) -> bool:
    """Whether something of `wanted` is in more than one of the boxes that arrive.

    >>> shared(((0, 4),), [((0, 3),), ((2, 4),)]), shared(((0, 4),), [((0, 2),), ((2, 4),)])
    (True, False)
    """
    return sum(map(volume, boxes)) > sum(volume(box) for _, box in held_of(wanted, boxes))


def holes_of(
    templates: Sequence[Template],
    dst: Layout,
    sources: Sequence[Source],
    wrong: Judge,
    src_blocks: Any,
    dst_blocks: Any,
    null_block: Any,
    tokens: Any,
) -> list[Hole]:
    """Return where what arrives is `wrong`; see ``Plan.undelivered`` and ``Plan.repeated``."""
    request = _read(src_blocks, dst_blocks, null_block, tokens)
    holes: list[tuple[int, int, list[tuple[int, int, int]]]] = []
    for template in templates:
        family = template.family
        for number, slot in enumerate(family.slots):
            takes = [take for take in template.takes if take.slot == number]
            if not takes:
                continue
            found = list(_slot_holes(dst, sources, family, slot, takes, request, wrong))
            if found:
                holes += [(region, number, found) for region in family.dst.regions.tolist()]
    holes.sort(key=lambda hole: hole[:2])
    named = dst.pages.names
    return [(named[region][slot], *hole) for region, slot, found in holes for hole in found]


def _read(src_blocks: Any, dst_blocks: Any, null_block: Any, tokens: Any) -> _Request:
    if not isinstance(src_blocks, Mapping):
        raise TypeError(f"src_blocks must map source ranks to block lists, got {brief(src_blocks)}")
    given = {rank: group_lists(lists, f"src_blocks[{rank}]") for rank, lists in src_blocks.items()}
    if tokens is not None and as_int(tokens, "tokens") < 0:
        raise GeometryError(f"tokens must be a number of tokens, 0 or more, got {tokens}")
    return _Request(given, group_lists(dst_blocks, "dst_blocks"), as_null(null_block), tokens)


def _slot_holes(
    dst: Layout,
    sources: Sequence[Source],
    family: Family,
    slot: Slot,
    takes: Sequence[SlotTake],
    request: _Request,
    wrong: Judge,
) -> Iterator[tuple[int, int, int]]:
    """Yield (dst block id, first token, last token + 1) where `wrong` of the boxes that arrive."""
    section, deal = slot.want.section, slot.want.deal
    wanted = box_of(section, section)
    held = [slot.holders[take.holder] for take in takes]
    unit = _unit(section.block_tokens, deal, [(holder.section.block_tokens, holder.deal) for holder in held])
    per_block = max(section.block_tokens // unit, 1)
    for turn, group in enumerate(_groups(family.dst, len(request.dst))):
        entries = _entries(request.dst, group, dst, family.dst.regions, request.null_block, "dst_blocks")
        local = entries.numbers[:, None] * per_block + np.arange(per_block)
        at = _global(local, deal, unit)
        arrives = []
        for take, holder in zip(takes, held, strict=True):
            source, key, alike = family.members[take.member]
            lists = request.src.get(key, ())
            own = _owned(at, holder.deal, unit)
            there = _groups(alike, len(lists))
            if not lists or turn >= len(there):
                arrives.append((own, np.zeros_like(own)))
                continue
            layout, what = sources[source].layout, f"src_blocks[{key}]"
            given = _entries(lists, there[turn], layout, alike.regions, request.null_block, what)
            block = _local(at, holder.deal, unit) // max(holder.section.block_tokens // unit, 1)
            arrives.append((own, own & np.isin(block, given.numbers)))
        bad = _judge(wanted, [take.box for take in takes], arrives, wrong)
        step = unit
        if request.tokens is not None and section.block_tokens:
            # Token by token: the last unit may hold some that the request does not have.
            step = 1
            bad = np.repeat(bad, unit, axis=1) & (_tokens_of(at, unit) < request.tokens)
        for block_id, row in zip(entries.ids.tolist(), bad, strict=True):
            edges = (np.flatnonzero(np.diff(row, prepend=False, append=False)) * step).tolist()
            yield from ((block_id, *edges[i : i + 2]) for i in range(0, len(edges), 2))


def _tokens_of(at: NDArray[np.int64], unit: int) -> NDArray[np.int64]:
    """Return the tokens of the sequence that units hold, those of a block in a row."""
    return (at[:, :, None] * unit + np.arange(unit)).reshape(len(at), at.shape[1] * unit)


def _judge(
    wanted: Box,
    boxes: Sequence[Box],
    arrives: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]],
    wrong: Judge,
) -> NDArray[np.bool_]:
    """Return for each unit of tokens whether the boxes that arrive for it are wrong; each case is judged once."""
    came = np.stack([there for _, there in arrives], axis=-1)
    flat = came.reshape(-1, came.shape[-1])
    cases, which = np.unique(flat, axis=0, return_inverse=True)
    verdicts = [wrong(wanted, [box for box, there in zip(boxes, case, strict=True) if there]) for case in cases]
    judged: NDArray[np.bool_] = np.array(verdicts, dtype=bool)[which.ravel()].reshape(came.shape[:-1])
    return judged


def _unit(block_tokens: int, deal: Deal, others: Sequence[tuple[int, Deal]]) -> int:
    """Return the tokens that all blocks and grains are whole multiples of; 1 where there are no tokens."""
    sides = [(block_tokens, deal), *others]
    sizes = [tokens for tokens, _ in sides]
    sizes += [side.tokens for _, side in sides if side.size > 1]
    return gcd(*sizes) or 1


def _global(local: NDArray[np.int64], deal: Deal, unit: int) -> NDArray[np.int64]:
    if deal.size == 1:
        return local
    grain = deal.tokens // unit
    return local // grain * (grain * deal.size) + deal.rank * grain + local % grain


def _owned(at: NDArray[np.int64], deal: Deal, unit: int) -> NDArray[np.bool_]:
    """Return which units of tokens a rank holds."""
    if deal.size == 1:
        return np.ones(at.shape, dtype=bool)
    owned: NDArray[np.bool_] = at // (deal.tokens // unit) % deal.size == deal.rank
    return owned


def _local(at: NDArray[np.int64], deal: Deal, unit: int) -> NDArray[np.int64]:
    if deal.size == 1:
        return at
    grain = deal.tokens // unit
    return at // (grain * deal.size) * grain + at % grain


def _groups(alike: Alike, given: int) -> Sequence[int]:
    return range(given) if alike.groups is None else alike.groups


def _entries(
    lists: Sequence[Any], group: int, layout: Layout, regions: NDArray[np.int64], null_block: int | None, what: str
) -> _Entries:
    if group >= len(lists):
        raise BlockIdError(f"{what} has {len(lists)} lists, but group {group} is used; give one list per group")
    item, where = lists[group], f"{what}[{group}]"
    ids = item.ids if isinstance(item, Blocks) else item
    found = read_ids(ids, where, null_block=null_block)
    numbers = np.arange(len(found))
    if isinstance(item, Blocks):
        if item.skip + len(found) >= 2**31:
            raise BlockIdError(f"{where}: skip {item.skip} is beyond any sequence of 2**31 blocks")
        numbers = numbers + item.skip
        at = getattr(item, "at", None)
        if at is not None:
            numbers = np.asarray(at, dtype=np.int64)
    live = np.ones(len(found), dtype=bool) if null_block is None else found != null_block
    counts = layout.columns.num_blocks[regions]
    least = int(regions[np.argmin(counts)])
    beyond = np.flatnonzero(live & (found >= counts.min()))
    if len(beyond):
        raise out_of_range(where, ids, int(beyond[0]), layout.names[least], int(counts.min()))
    return _Entries(found[live], numbers[live])
