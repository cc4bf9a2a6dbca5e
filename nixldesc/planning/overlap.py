"""The overlap of two pages as lanes: pure arithmetic, done once per distinct pair of page shapes.

Two sections of one name overlap where all their ranges overlap. The box of common items is walked in the
destination's order; where both sides lie contiguously the walk takes long steps, a loop of equal steps is one strided
lane, and lanes that touch on both sides are joined, across sections too::

    src page (heads 0..4)   [k0 | k1 | k2 | k3][v0 | v1 | v2 | v3]
                                       \\   \\            \\   \\
    dst page (heads 2..4)             [k2 | k3][v2 | v3]            two lanes: (dst 0, src 2h, 2h), (dst 2h, src 6h, 2h)

    src rows (NHD)          [t0 | h0 h1 h2 h3][t1 | h0 h1 h2 h3] ...
    dst rows                [t0 | h2 h3][t1 | h2 h3] ...            one lane, a run per token: dst_step 2h, src_step 4h

With unequal block_tokens both sides are cut into sub-blocks of their gcd (and of the grain by which tokens are dealt);
a lane is then one sub-block's, repeated in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from nixldesc.errors import PeerMismatchError
from nixldesc.memory.sections import TOKEN, Dim, Section
from nixldesc.planning.boxes import Box
from nixldesc.planning.limits import MAX_LANES, Limits
from nixldesc.planning.meeting import Meeting
from nixldesc.planning.steps import Loop, Stored, Walk, alternatives, stored

__all__ = ["Lane", "Piece", "axes_of", "page_lanes"]


class Piece(NamedTuple):
    """A part of a destination section (its slot in the page) and the source section it comes from.

    `box` are the indices moved, in the order of :func:`axes_of` of the destination's section.
    """

    slot: int
    src: Section
    dst: Section
    box: Box


class Lane(NamedTuple):
    """Bytes contiguous on both sides, `runs` times; offsets from the (sub-)block's start, all in bytes."""

    dst: int
    src: int
    length: int
    runs: int
    dst_step: int
    src_step: int
    slots: tuple[int, ...]


class Page(NamedTuple):
    """The lanes between two regions' pages, ascending on dst, and how far apart a block's sub-blocks are (0: one)."""

    lanes: tuple[Lane, ...]
    dst_sub_stride: int
    src_sub_stride: int


def axes_of(section: Section) -> list[tuple[str, int, int]]:
    """Return name, start and stop of the section's axes, but for the tokens, which lists of blocks speak for."""
    return [axis for axis in section.geometry.box if axis[0] != TOKEN]


def page_lanes(pieces: Sequence[Piece], meeting: Meeting, limits: Limits | None = None) -> list[Page]:
    """Return the longest lanes that the pieces of one region pair amount to, by the spacing of their sub-blocks.

    >>> from nixldesc.memory.pages import attention_sections
    >>> make = dict(num_kv_heads=4, block_tokens=2, token_head_bytes=4, kv="blocks_first")
    >>> src = attention_sections("l", tp_size=1, tp_rank=0, **make)
    >>> dst = attention_sections("l", tp_size=2, tp_rank=1, **make)
    >>> pieces = [Piece(i, s, d, ((2, 4), (0, 4))) for i, (s, d) in enumerate(zip(src, dst))]
    >>> [lane[:3] for page in page_lanes(pieces, Meeting(1, 1, unit_tokens=2)) for lane in page.lanes]
    [(0, 16, 16), (16, 48, 16)]
    """
    found: dict[tuple[int, int], list[Lane]] = {}
    limits = limits or Limits()
    for piece in pieces:
        spacing, lanes = _piece_lanes(piece, meeting, limits)
        found.setdefault(spacing, []).extend(lanes)
    return [Page(tuple(_joined(sorted(lanes))), *spacing) for spacing, lanes in found.items()]


def _piece_lanes(piece: Piece, meeting: Meeting, limits: Limits) -> tuple[tuple[int, int], list[Lane]]:
    src, dst = piece.src, piece.dst
    ranges = dict(zip([name for name, _, _ in axes_of(dst)], piece.box, strict=True))
    ranges[TOKEN] = (0, meeting.unit_tokens)
    sides = {name: (start, dims) for (name, start, _), dims in zip(src.geometry.box, src.geometry.dims, strict=True)}
    to, fro, loops = dst.offset, src.offset, []
    walks: list[list[Walk]] = []
    spacing = (0, 0)
    for (name, start, _), dims in zip(dst.geometry.box, dst.geometry.dims, strict=True):
        low, high = ranges[name]
        other, theirs = sides[name]
        if len(dims) == len(theirs) == 1 and dims[0].unit == theirs[0].unit == 1:  # mostly: in one piece on both sides
            here, there = dims[0].stride, theirs[0].stride
            to, fro = to + (low - start) * here, fro + (low - other) * there
            loops.append(Loop(here, there, high - low))
        else:
            walks.append(_walks(dst.name, name, (low, high), stored(start, dims), stored(other, theirs)))
        if name == TOKEN:
            mine, yours = (meeting.dst_sub, start, dims), (meeting.src_sub, other, theirs)
            spacing = _spacing(*mine, meeting, dst), _spacing(*yours, meeting, dst)
    lanes: list[Lane] = []
    for walk in product(*walks):
        at = to + sum([w.dst for w in walk]), fro + sum([w.src for w in walk])
        lanes += _lanes(piece, at, [*loops, *[loop for w in walk for loop in w.loops]], limits)
    return spacing, lanes


def _walks(section: str, axis: str, span: tuple[int, int], here: Stored, there: Stored) -> list[Walk]:
    found = alternatives(*span, here, there)
    if found is None:
        raise PeerMismatchError(
            f"section {section!r}: axis {axis!r} is stored in parts of {_units(here)} indices here and of "
            f"{_units(there)} in the source; neither cut divides the other"
        )
    return found


def _units(side: Stored) -> str:
    return " and ".join(str(dim.unit) for dim in side.dims)


def _spacing(subs: int, start: int, dims: tuple[Dim, ...], meeting: Meeting, section: Section) -> int:
    """Return how far apart the sub-blocks of one side are; 0 where its block is one."""
    if subs == 1:
        return 0
    side = stored(start, dims)
    if len(side.dims) > 1 and meeting.unit_tokens % side.dims[0].unit:
        raise PeerMismatchError(
            f"section {section.name!r}: its blocks meet in sub-blocks of {meeting.unit_tokens} tokens, but axis "
            f"'token' is stored in parts of {_units(side)} tokens, inside which a sub-block would end"
        )
    return side.step(meeting.unit_tokens)


def _lanes(piece: Piece, at: tuple[int, int], loops: list[Loop], limits: Limits) -> list[Lane]:
    """Return one walk as lanes: contiguous steps make them longer, the longest loop is their runs, others separate."""
    length = piece.dst.itemsize
    left: list[Loop] = []
    for loop in sorted([loop for loop in loops if loop.size > 1]):
        if not left and loop.dst == loop.src == length:
            length *= loop.size
        elif left and loop.dst == left[-1].dst * left[-1].size and loop.src == left[-1].src * left[-1].size:
            left[-1] = left[-1]._replace(size=left[-1].size * loop.size)
        else:
            left.append(loop)
    runs = max(left, key=lambda loop: loop.size, default=Loop(length, length, 1))
    others = [loop for loop in reversed(left) if loop is not runs]
    count = prod([loop.size for loop in others])
    if count > limits.lanes:
        raise PeerMismatchError(
            f"section {piece.dst.name!r}: the two sides order its bytes so differently that a block is more than "
            f"{MAX_LANES} separate pieces ({count * runs.size:,} runs of {length} bytes); let the axes that step "
            f"closest in memory be the same on both sides: {_order(piece.dst)} here, {_order(piece.src)} in the source"
        )
    limits.lanes -= count
    shape = (length, runs.size, runs.dst, runs.src, (piece.slot,))
    return [Lane(to, fro, *shape) for to, fro in _starts(at, others)]


def _order(section: Section) -> str:
    order = sorted(zip(section.strides, (axis.name for axis in section.axes), strict=True), reverse=True)
    return ", ".join(name for _, name in order)


def _starts(at: tuple[int, int], loops: Sequence[Loop]) -> Iterator[tuple[int, int]]:
    dst_steps = product(*[range(0, loop.dst * loop.size, loop.dst) for loop in loops])
    src_steps = product(*[range(0, loop.src * loop.size, loop.src) for loop in loops])
    for to, fro in zip(dst_steps, src_steps, strict=True):
        yield at[0] + sum(to), at[1] + sum(fro)


def _joined(lanes: list[Lane]) -> list[Lane]:
    """Join neighbours that touch on both sides and repeat alike; a joined lane names each of its slots once."""
    if len(lanes) == 1:
        return lanes
    joined: list[Lane] = []
    slots: list[dict[int, None]] = []  # of each: thousands may become one
    for lane in lanes:
        both = _join(joined[-1], lane) if joined else None
        if both is None:
            joined.append(lane)
            slots.append(dict.fromkeys(lane.slots))
        else:
            joined[-1] = both
            slots[-1].update(dict.fromkeys(lane.slots))
    return [lane._replace(slots=tuple(named)) for lane, named in zip(joined, slots, strict=True)]


def _join(a: Lane, b: Lane) -> Lane | None:
    """Return two lanes as one of a's slots, None where they are not: b goes on where a ends, in each run or at last."""
    if a.length + a.dst == b.dst and a.length + a.src == b.src and a.runs == b.runs:
        whole = a.length + b.length
        if a.runs == 1:
            return Lane(a.dst, a.src, whole, 1, whole, whole, a.slots)
        if (a.dst_step, a.src_step) == (b.dst_step, b.src_step) and whole <= min(a.dst_step, a.src_step):
            if a.dst_step == a.src_step == whole:  # the runs touch, too
                whole *= a.runs
                return Lane(a.dst, a.src, whole, 1, whole, whole, a.slots)
            return a._replace(length=whole)
    alike = (a.length, a.dst_step, a.src_step) == (b.length, b.dst_step, b.src_step) and min(a.runs, b.runs) > 1
    if alike and a.dst + a.runs * a.dst_step == b.dst and a.src + a.runs * a.src_step == b.src:
        return a._replace(runs=a.runs + b.runs)
    return None
