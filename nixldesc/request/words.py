"""What a refused request says: which group, which position, what was got and expected, and the ways out.

Regions are named as their owners made them, never as a plan derived them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nixldesc.errors import BlockIdError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import Fault, list_at, out_of_range, shown, word_reading
from nixldesc.memory.layout import Layout
from nixldesc.request.origins import Origin
from nixldesc.request.programs import Align, Compiled

__all__ = ["Refused", "word"]

_SIDES = ("source", "destination")


class Refused(NamedTuple):
    """A request that a kernel stopped at: the pair, its program and which of its jobs, the lists, the tokens."""

    layouts: tuple[Layout, Layout]
    origin: Sequence[Origin]
    compiled: Compiled
    span: tuple[int, int]
    lists: tuple[Any, Any]
    tokens: int


def word(fault: Fault, of: Refused) -> Exception:
    """Return the exception for a fault of a pair's request."""
    if fault.code == _kernels.OUT_SIZE:
        return ValueError(f"out holds {fault.group} and {fault.position} ids, the request has {fault.extra} pairs")
    if fault.code == _kernels.MISFIT:
        return _misfit(fault, of.compiled.aligns[fault.group])
    if fault.code == _kernels.TWICE:
        return _twice(fault, of)
    where, ids = f"{_SIDES[fault.side]} group {fault.group}", list_at(of.lists[fault.side], fault.group)
    if fault.code == _kernels.TOKENS:
        return BlockIdError(
            f"{where} has {fault.position} blocks, but {of.tokens} tokens need {fault.extra} on its side; "
            f"Blocks(ids, skip=...) says where a list starts that is not all of them, tokens= counts from the start of "
            f"the sequence"
        )
    if fault.code == _kernels.FAR:
        return BlockIdError(
            f"{where}: skip {fault.position} is beyond any sequence that can be counted in 64 bits"
            + (f" (the last entry stands at {fault.extra})" if not fault.position else "")
        )
    if fault.code == _kernels.OUT_OF_RANGE:
        return _beyond(fault, of, where, ids)
    if fault.code == _kernels.UNMET:
        return BlockIdError(
            f"{where}, position {fault.position}: no source entry fills block id {shown(ids, fault.position)}, and "
            f"complete=True asks for every named one; does `skip` count blocks of its own side?"
        )
    return word_reading(fault, where, ids)


def _misfit(fault: Fault, align: Align) -> BlockIdError:
    says = "tokens= says how many tokens the request has, Blocks(ids, skip=...) says where a list starts"
    what = f"source group {align.src_group} has {fault.position} blocks and destination group {align.dst_group} has "
    if align.src_sub == align.dst_sub:
        ranks = " of what their context-parallel ranks hold" if align.dealt else ""
        return BlockIdError(
            f"{what}{fault.extra}: no number of tokens needs exactly so many on each side{ranks}; {says}, "
            f"Blocks.tail(ids, total) that it is the end"
        )
    sizes = f"their block_tokens are as {align.src_sub} to {align.dst_sub}"
    if align.unit_tokens:
        sizes = f"of {align.src_sub * align.unit_tokens} and {align.dst_sub * align.unit_tokens} tokens"
    if align.dealt:
        return BlockIdError(
            f"{what}{fault.extra} ({sizes}), dealt over context-parallel ranks: their numbers cannot say how many "
            f"tokens that is; {says}"
        )
    return BlockIdError(
        f"{what}{fault.extra} ({sizes}): they do not cover equally many tokens, and which of them are meant would be a "
        f"guess; {says}"
    )


def _beyond(fault: Fault, of: Refused, where: str, ids: Any) -> BlockIdError:
    num_blocks, taken = of.layouts[fault.side].columns.num_blocks.tolist(), []
    for flat, number in of.compiled.jobs(*of.span):
        if any(align[fault.side] == fault.group for align in _aligns(of.compiled, flat)):
            taken.append(number)
    least = min(taken, key=num_blocks.__getitem__)
    advice = "; are these the other side's ids, or logical ones for kernel_blocks() to expand?"
    src_name, dst_name, _ = of.origin[least]
    name = dst_name if fault.side else src_name
    return out_of_range(where, ids, fault.position, name, num_blocks[least], advice)


def _twice(fault: Fault, of: Refused) -> BlockIdError:
    flat = of.compiled.flats[fault.group]
    aligns = _aligns(of.compiled, fault.group)
    uneven = flat[6]
    block = fault.extra % uneven if uneven else fault.extra // aligns[0].dst_sub
    number = next(number for kind, number in of.compiled.jobs(*of.span) if kind == fault.group)
    groups = dict.fromkeys(align.dst_group for align in aligns)
    at = [f"group {group}, position {i}" for group in groups for i in _named(list_at(of.lists[1], group), block)]
    return BlockIdError(
        f"destination {' and '.join(at[:2])}: block id {block} is named twice, and what it holds in region "
        f"{of.origin[number][1]!r} would be written twice; null_block= says which id is a placeholder"
    )


def _aligns(compiled: Compiled, flat: int) -> Sequence[Align]:
    first, count = compiled.flats[flat][:2]
    return compiled.aligns[first : first + count]


def _named(ids: Any, block: int) -> Iterator[int]:
    for i, item in enumerate(ids):
        try:
            found = operator.index(item) == block
        except TypeError:  # changed by now
            continue
        if found:
            yield i
