"""Which source sends which part of a destination section: holders, position classes, the split axis.

Two steps of narrowing, then the rule of :mod:`nixldesc.planning.replicas`::

    holders of section "l0"          src ranks 0..7
      -> position classes            cp_rank 0: ranks 0 2 4 6      cp_rank 1: ranks 1 3 5 7     (src cp_size 2)
           each class that meets the destination's positions delivers its own tokens, all of them
      -> one axis is split           head: dst [2, 4), src [0, 1) [1, 2) [2, 3) [3, 4)
           choose() walks the class from number dst_rank * n // dst_size
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

from nixldesc.errors import PeerMismatchError
from nixldesc.memory.layout import Layout
from nixldesc.memory.region import Region
from nixldesc.memory.sections import BYTE, TOKEN, Axis, Section
from nixldesc.planning.overlap import Cut, Split
from nixldesc.planning.replicas import choose
from nixldesc.request.blocks import Place, Places

__all__ = ["Holder", "Meeting", "Seat", "Share", "Take", "place_of", "shares_of"]


class Holder(NamedTuple):
    """A source's section of the wanted name."""

    rank: int
    region: Region
    section: Section
    place: Place


class Seat(NamedTuple):
    """The destination's place among its peers: rank d of D ranks that hold the section.

    `src_size` is the number of source ranks where only some of them are known, 0 where all are.
    """

    rank: int
    size: int
    src_size: int

    def begin(self, ranks: Sequence[int]) -> int:
        """Return the number, among the known source `ranks` (ascending), at which the walk begins."""
        if not self.src_size:
            return self.rank * len(ranks) // self.size
        first = self.rank * self.src_size // self.size
        return sum(rank < first for rank in ranks) % len(ranks)


class Share(NamedTuple):
    """What one holder was chosen to send."""

    holder: Holder
    split: Split


class Meeting(NamedTuple):
    """How the blocks of two regions meet: what one block table must mean for all sections that share it."""

    cut: Cut
    places: Places


class Take(NamedTuple):
    """One source's share of a destination section: all of it, or a range of one axis.

    Takes of one `kind` (a number within one plan) differ in names and regions only: their arithmetic is the same.
    """

    holder: Holder
    section: Section
    split: Split
    meeting: Meeting
    kind: int


_WHOLE = Place()


def place_of(layout: Layout, section: Section) -> Place:
    """Return where the lists of `section` stand: interleaved over the context-parallel ranks, or whole."""
    if layout.cp_size == 1 or not section.cp or not section.block_tokens:
        return _WHOLE
    return Place(layout.cp_rank, layout.cp_size)


def shares_of(dst: Section, region: str, place: Place, holders: Sequence[Holder], seat: Seat) -> list[Share]:
    """Return the shares that deliver `dst` exactly once, or raise :class:`PeerMismatchError` saying what is missing."""
    for holder in holders:
        _prove_alike(dst, region, holder)
    shares: list[Share] = []
    for members in _classes(dst, region, place, holders):
        shares += _share(dst, region, members, seat)
    return shares


def _prove_alike(dst: Section, region: str, holder: Holder) -> None:
    src = holder.section
    if src.shape == dst.shape:
        return
    what = f"section {dst.name!r} (region {region!r}): "
    against = f"source {holder.rank} (region {holder.region.name!r})"
    mine, theirs = sorted(axis.name for axis in dst.axes), sorted(axis.name for axis in src.axes)
    if mine != theirs:
        raise PeerMismatchError(
            f"{what}its axes are {_words(mine)}, {against} has {_words(theirs)}; a region without sections is opaque "
            f"and pairs only with one of its kind"
        )
    if src.itemsize != dst.itemsize:
        raise PeerMismatchError(f"{what}itemsize is {dst.itemsize} bytes, {against} has {src.itemsize}")
    if src.dtype != dst.dtype:
        raise PeerMismatchError(f"{what}dtype is {dst.dtype!r}, {against} has {src.dtype!r}")
    for axis, other in _both_axes(dst, src):
        if axis.name == BYTE and axis != other:
            raise PeerMismatchError(
                f"{what}axis 'byte' is {_range(axis)}, {against} holds {_range(other)}: the items are of different "
                f"formats (axis 'byte' is the inside of an item and never split)"
            )


def _words(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) if names else "none (opaque)"


def _range(axis: Axis) -> str:
    return f"[{axis.start}, {axis.stop})"


def _both_axes(dst: Section, src: Section) -> list[tuple[Axis, Axis]]:
    by_name = {axis.name: axis for axis in src.axes}
    return [(axis, by_name[axis.name]) for axis in dst.axes if axis.name != TOKEN]


def _classes(dst: Section, region: str, place: Place, holders: Sequence[Holder]) -> list[list[Holder]]:
    """Return the holders by context-parallel rank, for each rank whose positions meet the destination's."""
    sizes = {holder.place.every for holder in holders}
    if len(sizes) > 1:
        raise PeerMismatchError(
            f"section {dst.name!r} (region {region!r}): sources disagree on cp_size, they have {sorted(sizes)}"
        )
    every = sizes.pop()
    if every == 1:
        return [list(holders)]
    by_rank: dict[int, list[Holder]] = {}
    for holder in holders:
        by_rank.setdefault(holder.place.first, []).append(holder)
    cut = Cut.of(holders[0].section, dst)
    met = []
    for first in range(every):
        members = [h for h in by_rank.get(first, ()) if _meet(place, h.place, Cut.of(h.section, dst))]
        if members:
            met.append(members)
        elif first not in by_rank and _meet(place, Place(first, every), cut):
            raise PeerMismatchError(
                f"section {dst.name!r} (region {region!r}): no source of cp_rank {first} (of {every}) is given, but it "
                f"holds tokens of destination cp_rank {place.first} (of {place.every}); given are cp_ranks "
                f"{sorted(by_rank)}"
            )
    return met


def _meet(dst: Place, src: Place, cut: Cut) -> bool:
    """Whether the two ranks share any token position, counted in common sub-blocks.

    The destination holds [d, d + n) modulo its period, the source [s, s + m) modulo its own; two such combs meet
    exactly if the intervals meet modulo the gcd of the periods.
    """
    period = gcd(dst.every * cut.dst, src.every * cut.src)
    ahead = (src.first * cut.src - dst.first * cut.dst) % period
    return ahead < cut.dst or period - ahead < cut.src


def _share(dst: Section, region: str, members: Sequence[Holder], seat: Seat) -> list[Share]:
    """Choose among holders of one position class so that each index of the one split axis has one sender."""
    begin = seat.begin([holder.rank for holder in members])
    turn = [*members[begin:], *members[:begin]]
    splits = [_differing(dst, holder.section) for holder in turn]
    overlapping = [axes for axes in splits if all(max(a.start, b.start) < min(a.stop, b.stop) for a, b in axes)]
    single = next((axes[0][0] for axes in overlapping if len(axes) == 1), None)
    axis = single or next((a for a in dst.axes if a.name != TOKEN), Axis("block", 0, 1))
    ranges = []
    for axes in splits:
        if not axes:
            ranges.append((axis.start, axis.stop))
        elif len(axes) == 1 and axes[0][0].name == axis.name:
            ranges.append((axes[0][1].start, axes[0][1].stop))
        else:
            ranges.append((0, 0))
    pieces, missing = choose((axis.start, axis.stop), ranges, 0)
    if missing:
        raise _word_missing(dst, region, axis, missing, turn, overlapping)
    return [Share(turn[n], Split(axis.name, *span)) for n, span in pieces]


def _differing(dst: Section, src: Section) -> list[tuple[Axis, Axis]]:
    return [(axis, other) for axis, other in _both_axes(dst, src) if axis != other]


def _word_missing(
    dst: Section,
    region: str,
    axis: Axis,
    missing: Sequence[tuple[int, int]],
    turn: Sequence[Holder],
    overlapping: Sequence[Sequence[tuple[Axis, Axis]]],
) -> PeerMismatchError:
    what = f"section {dst.name!r} (region {region!r})"
    for axes in overlapping:
        if len(axes) > 1:
            words = " and ".join(f"axis {a.name!r} is {_range(a)} here and {_range(b)} there" for a, b in axes)
            return PeerMismatchError(f"{what}: {words}; at most one axis besides 'token' may be split differently")
    differing = {a.name: a for holder in turn for a, _ in _differing(dst, holder.section)}
    axis = axis if axis.name in differing else next(iter(differing.values()), axis)
    by_rank = sorted(turn, key=lambda holder: holder.rank)
    held = ", ".join(
        f"source {h.rank} holds {_range(next(a for a in h.section.axes if a.name == axis.name))}" for h in by_rank[:6]
    )
    if len(by_rank) > 6:
        held += f" and {len(by_rank) - 6} more"
    gaps = ", ".join(f"[{start}, {stop})" for start, stop in missing)
    return PeerMismatchError(
        f"{what}: axis {axis.name!r} is {_range(axis)} here, {held}; missing is {gaps}; were the source layouts made "
        f"with their own tp_rank?"
    )
