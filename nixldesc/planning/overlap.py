"""The overlap of two pages as runs of bytes: pure arithmetic, done once per distinct pair of page shapes.

Two sections of one name overlap where all their ranges overlap. The box of common items is walked in the
destination's order; where both sides lie contiguously the walk takes long steps, and steps that touch on both sides
are joined, across sections too::

    src page (heads 0..4)   [k0 | k1 | k2 | k3][v0 | v1 | v2 | v3]
                                       \\   \\            \\   \\
    dst page (heads 2..4)             [k2 | k3][v2 | v3]            two runs: (dst 0, src 2h, 2h), (dst 2h, src 6h, 2h)

With unequal block_tokens both sides are cut into sub-blocks of gcd(src, dst) tokens; a run is then one sub-block's,
repeated `sub_blocks` times, `sub_stride` apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc.errors import PeerMismatchError
from nixldesc.memory.sections import MAX_RUNS, TOKEN, Section

__all__ = ["Cut", "Piece", "Run", "Split", "page_runs"]


class Cut(NamedTuple):
    """Into how many sub-blocks each side's block is cut; (1, 1) moves whole blocks."""

    src: int
    dst: int

    @classmethod
    def of(cls, src: Section, dst: Section) -> Cut:
        """Return the cut for two sections of one name: sub-blocks of gcd(src, dst) tokens.

        >>> from nixldesc.memory.sections import Axis
        >>> Cut.of(Section("k", [Axis("token", 0, 48)], 2), Section("k", [Axis("token", 0, 32)], 2))
        Cut(src=3, dst=2)
        """
        if not src.block_tokens:
            return cls(1, 1)
        common = gcd(src.block_tokens, dst.block_tokens)
        return cls(src.block_tokens // common, dst.block_tokens // common)


class Split(NamedTuple):
    """The range of one axis, in global indices, that is moved; all other axes are moved whole."""

    axis: str
    start: int
    stop: int


class Piece(NamedTuple):
    """A part of a destination section and the source section it comes from."""

    src: Section
    dst: Section
    split: Split


class Run(NamedTuple):
    """Contiguous bytes on both sides, in bytes from the block's (or first sub-block's) start."""

    dst: int
    src: int
    length: int
    dst_sub_stride: int  # 0 where the block is not cut
    src_sub_stride: int
    pieces: tuple[int, ...]


def page_runs(pieces: Sequence[Piece]) -> list[Run]:
    """Return the longest runs that the pieces of one region pair (of one cut) amount to, ascending on dst.

    >>> from nixldesc.memory.pages import attention_sections
    >>> make = dict(num_kv_heads=4, block_tokens=2, token_head_bytes=4, kv="blocks_first")
    >>> src = attention_sections("l", tp_size=1, tp_rank=0, **make)
    >>> dst = attention_sections("l", tp_size=2, tp_rank=1, **make)
    >>> [run[:3] for run in page_runs([Piece(s, d, Split("head", 2, 4)) for s, d in zip(src, dst)])]
    [(0, 16, 16), (16, 48, 16)]
    """
    found: list[Run] = []
    room = MAX_RUNS
    for number, piece in enumerate(pieces):
        runs = _piece_runs(piece, number, room)
        room -= len(runs)
        found += runs
    found.sort(key=lambda run: run.dst)
    return _join(found)


def _piece_runs(piece: Piece, number: int, room: int) -> list[Run]:
    src, dst = piece.src, piece.dst
    tokens = gcd(src.block_tokens, dst.block_tokens)
    src_axes = {axis.name: (axis, step) for axis, step in zip(src.axes, src.strides, strict=True)}
    src_at, dst_at, src_token, dst_token = src.offset, dst.offset, 0, 0
    loops: list[tuple[int, int, int]] = []
    for axis, dst_step in zip(dst.axes, dst.strides, strict=True):
        src_axis, src_step = src_axes[axis.name]
        start, stop = piece.split[1:] if axis.name == piece.split.axis else (axis.start, axis.stop)
        if axis.name == TOKEN:
            start, stop, src_token, dst_token = 0, tokens, src_step, dst_step
        src_at += (start - src_axis.start) * src_step
        dst_at += (start - axis.start) * dst_step
        if stop - start > 1:
            loops.append((dst_step, src_step, stop - start))
    loops.sort()
    length = dst.itemsize
    while loops and loops[0][0] == loops[0][1] == length:
        length *= loops.pop(0)[2]
    _check_room(piece, loops, room)
    cut = Cut.of(src, dst)
    strides = dst_token * tokens if cut.dst > 1 else 0, src_token * tokens if cut.src > 1 else 0
    at = zip(_walk(dst_at, [(d, n) for d, _, n in loops]), _walk(src_at, [(s, n) for _, s, n in loops]), strict=True)
    return [Run(to, fro, length, *strides, (number,)) for to, fro in at]


def _check_room(piece: Piece, loops: list[tuple[int, int, int]], room: int) -> None:
    count = 1
    for _, _, size in loops:
        count *= size
    if count > room:
        raise PeerMismatchError(
            f"section {piece.dst.name!r}: the two sides order its bytes so differently that a block is {count} "
            f"separate runs; at most {MAX_RUNS} are supported"
        )


def _walk(start: int, loops: list[tuple[int, int]]) -> list[int]:
    at: NDArray[np.uint64] = np.array([start], dtype=np.uint64)
    for step, size in reversed(loops):
        at = np.add.outer(at, np.arange(size, dtype=np.uint64) * np.uint64(step)).ravel()
    offsets: list[int] = at.tolist()
    return offsets


def _join(runs: list[Run]) -> list[Run]:
    """Join neighbours that touch on both sides and repeat alike; a joined run names each of its pieces once."""
    joined: list[Run] = []
    pieces: dict[int, None] = {}
    for run in runs:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.dst + last.length == run.dst
            and last.src + last.length == run.src
            and last[3:5] == run[3:5]
        ):
            pieces.update(dict.fromkeys(run.pieces))
            joined[-1] = last._replace(length=last.length + run.length)
            continue
        if last is not None:
            joined[-1] = last._replace(pieces=tuple(pieces))
        pieces = dict.fromkeys(run.pieces)
        joined.append(run)
    if joined:
        joined[-1] = joined[-1]._replace(pieces=tuple(pieces))
    return joined
