"""Who sends which part of one destination section: holders, their turn, boxes.

Two steps of narrowing, then the rule of :func:`nixldesc.planning.boxes.choose`::

    holders of section "l0"          src ranks 0..7
      -> position classes            cp_rank 0: ranks 0 2 4 6      cp_rank 1: ranks 1 3 5 7     (src cp_size 2)
           each class that meets the destination's tokens delivers its own, all of them
      -> in turn, from number        dst_rank * n // dst_size of the class's ranks on, each sends what it holds of the
                                     box that is still missing

    4 KV heads, 8 source ranks (each head twice), dst rank 1 of 2: wants heads [2, 4), begins at 1 * 8 // 2 = 4

    source   0    1    2    3    4    5    6    7
    head     0    0    1    1   >2<   2   >3<   3          -> takes head 2 from source 4, head 3 from source 6

So the load spreads over the replicas, and both sides can compute the choice without talking to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nixldesc.errors import PeerMismatchError
from nixldesc.memory.sections import BYTE, Section
from nixldesc.planning.boxes import MAX_PIECES, Box, choose, held_of, volume
from nixldesc.planning.limits import MAX_STEPS, Limits
from nixldesc.planning.meeting import Deal, share_tokens
from nixldesc.planning.overlap import axes_of

__all__ = ["Holder", "Rank", "Rule", "Rules", "Seat", "Take", "Want", "box_of", "takes_of", "too_entangled"]


class Want(NamedTuple):
    """A destination section: what it is, where, and which tokens of it."""

    section: Section
    name: str
    region: str
    deal: Deal


class Holder(NamedTuple):
    """A source's section of the wanted name; `rank` counts the sources in ascending order."""

    rank: int
    section: Section
    region: str
    deal: Deal


class Rank(NamedTuple):
    """A source that holds the section, in any part: its number among the sources, its key, which tokens it has."""

    number: int
    key: int
    deal: Deal


class Seat(NamedTuple):
    """The destination's place among its peers: rank d of D ranks that hold the section.

    `src_size` is the number of source ranks where only some of them are known, 0 where all are. `given` says whether
    the caller named the place; where the choice depends on it, it must be.
    """

    rank: int = 0
    size: int = 1
    src_size: int = 0
    given: bool = False

    def begin(self, keys: Sequence[int]) -> int:
        """Return the number, among the known source ranks (ascending), at which the walk begins."""
        if not self.src_size:
            return self.rank * len(keys) // self.size
        first = self.rank * self.src_size // self.size
        return sum(key < first for key in keys) % len(keys)


class Rule(NamedTuple):
    """How the senders of a section are found: every holder, or one in turn as the seat says."""

    seat: Seat
    everyone: bool = False


class Rules(NamedTuple):
    """The rule of each section: one for all, and those of sections that other numbers of ranks hold."""

    default: Rule
    named: Mapping[str, Rule]

    def of(self, name: str) -> Rule:
        """Return the rule of the section of that name."""
        return self.named.get(name, self.default)


class Take(NamedTuple):
    """What one holder (a number) sends: a box, in the order of the destination's axes."""

    holder: int
    box: Box


def box_of(section: Section, like: Section) -> Box:
    """Return the indices that a section holds, its axes in the order of `like`'s; tokens are not in a box."""
    ranges = {name: (start, stop) for name, start, stop in section.geometry.box}
    return tuple([ranges[name] for name, _, _ in axes_of(like)])


def takes_of(
    want: Want, holders: Sequence[Holder], ranks: Sequence[Rank], rule: Rule, limits: Limits | None = None
) -> list[Take]:
    """Return who delivers `want` exactly once, or raise :class:`PeerMismatchError` saying what is missing.

    `holders` meet the wanted box or may not, in the order of sources and of their layouts; `ranks` are all sources that
    hold the section at all.
    """
    for holder in holders:
        _prove_alike(want, holder, ranks)
    takes: list[Take] = []
    try:
        for members in _classes(want, ranks):
            takes += _share(want, holders, members, rule, limits)
    except OverflowError:
        raise too_entangled(want.name, want.region) from None
    return takes


def too_entangled(name: str, region: str) -> PeerMismatchError:
    """Return the error for a section whose holders overlap so much that nobody should look through them."""
    return PeerMismatchError(
        f"section {name!r} (region {region!r}): its holders overlap in more than {MAX_PIECES} pieces, or in so many "
        f"parts that telling them apart takes more than {MAX_STEPS} steps a source"
    )


def _prove_alike(want: Want, holder: Holder, ranks: Sequence[Rank]) -> None:
    dst, src = want.section, holder.section
    unlike = None if src.shape == dst.shape else _unlike(dst, src)
    if unlike:
        here, there = unlike
        key = next(rank.key for rank in ranks if rank.number == holder.rank)
        raise PeerMismatchError(
            f"section {want.name!r} (region {want.region!r}): {here}, source {key} (region {holder.region!r}) {there}"
        )


def _unlike(dst: Section, src: Section) -> tuple[str, str] | None:
    """Return what is unlike on either side, in words, of sections that cannot be boxes of one whole."""
    here, there = dst.geometry.box, src.geometry.box
    mine, theirs = [axis[0] for axis in here], [axis[0] for axis in there]
    if mine != theirs and sorted(mine) != sorted(theirs):
        hint = (
            "a region without sections is opaque and pairs only with one of its kind"
            if not mine or not theirs
            else "axes are matched by name, and both sides must have the same ones"
        )
        return f"its axes are {_words(sorted(mine))}", f"has {_words(sorted(theirs))}; {hint}"
    if src.itemsize != dst.itemsize:
        of = "itemsize is" if mine else "an opaque block is"
        return f"{of} {dst.itemsize} bytes", f"has {src.itemsize}"
    if src.dtype != dst.dtype:
        return f"dtype is {dst.dtype!r}", f"has {src.dtype!r}"
    if BYTE in mine and here[mine.index(BYTE)] != there[theirs.index(BYTE)]:
        why = "the items are of different formats (axis 'byte' is the inside of an item and never split)"
        inside, inside_there = here[mine.index(BYTE)][1:], there[theirs.index(BYTE)][1:]
        return f"axis 'byte' is {_range(inside)}", f"holds {_range(inside_there)}: {why}"
    return None


def _words(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) if names else "none (opaque)"


def _range(span: Sequence[int]) -> str:
    return f"[{span[0]}, {span[1]})"


def _classes(want: Want, ranks: Sequence[Rank]) -> list[list[Rank]]:
    """Return the ranks that hold the same tokens, for each class that shares any with the destination."""
    what = f"section {want.name!r} (region {want.region!r})"
    sizes = sorted({rank.deal.size for rank in ranks})
    if len(sizes) > 1:
        raise PeerMismatchError(f"{what}: sources disagree on cp_size, they have {sizes}")
    grains = sorted({rank.deal.tokens for rank in ranks})
    if sizes == [1]:
        return [list(ranks)]
    if len(grains) > 1:
        raise PeerMismatchError(f"{what}: sources deal {grains} tokens at a time; all must deal alike")
    met = []
    for first in range(sizes[0]):
        deal = Deal(first, sizes[0], grains[0])
        members = [rank for rank in ranks if rank.deal.rank == first]
        if not share_tokens(want.deal, deal):
            continue
        if not members:
            raise PeerMismatchError(
                f"{what}: no source of cp_rank {first} (of {sizes[0]}) is given, but it holds tokens of destination "
                f"cp_rank {want.deal.rank} (of {want.deal.size}); given are cp_ranks "
                f"{sorted({rank.deal.rank for rank in ranks})}"
            )
        met.append(members)
    return met


def _share(
    want: Want, holders: Sequence[Holder], members: Sequence[Rank], rule: Rule, limits: Limits | None
) -> list[Take]:
    """Choose among the holders of one position class."""
    begin = rule.seat.begin([rank.key for rank in members])
    turn = [*members[begin:], *members[:begin]]
    of_rank: dict[int, list[int]] = {rank.number: [] for rank in turn}
    for i, holder in enumerate(holders):
        if holder.rank in of_rank:
            of_rank[holder.rank].append(i)
    order = [i for rank in turn for i in of_rank[rank.number]]
    wanted = box_of(want.section, want.section)
    boxes = {i: box_of(holders[i].section, want.section) for i in order}
    pieces, missing = choose(wanted, [boxes[i] for i in order], limits)
    if missing:
        raise _word_missing(want, [(rank.key, [boxes[i] for i in of_rank[rank.number]]) for rank in turn], missing)
    if rule.everyone:
        found = []
        for rank in turn:
            own = of_rank[rank.number]
            found += [Take(own[n], box) for n, box in held_of(wanted, [boxes[i] for i in own], limits)]
        return found
    if not rule.seat.given and len(turn) > 1:
        _prove_only_holders(want, turn, of_rank, boxes, limits)
    return [Take(order[n], box) for n, box in pieces]


def _prove_only_holders(
    want: Want, turn: Sequence[Rank], of_rank: dict[int, list[int]], boxes: dict[int, Box], limits: Limits | None
) -> None:
    """Refuse a choice among replicas by who did not say which reader this is: all would take the same source."""
    wanted = box_of(want.section, want.section)
    held = {rank.key: held_of(wanted, [boxes[i] for i in of_rank[rank.number]], limits) for rank in turn}
    if sum(volume(box) for parts in held.values() for _, box in parts) == volume(wanted):
        return
    keys = sorted(key for key, parts in held.items() if parts)
    words = _keys(keys)
    raise PeerMismatchError(
        f"section {want.name!r} (region {want.region!r}): sources {words} hold the same bytes, and which of them sends "
        f"depends on which reader this is: say dst_rank and dst_size, the place among the ranks that hold the section "
        f"(dst_rank=0, dst_size=1 for an only reader)"
    )


def _keys(keys: Sequence[int]) -> str:
    return ", ".join(map(str, keys[:6])) + (f" and {len(keys) - 6} more" if len(keys) > 6 else "")


def _word_missing(want: Want, held: Sequence[tuple[int, Sequence[Box]]], missing: Sequence[Box]) -> PeerMismatchError:
    what = f"section {want.name!r} (region {want.region!r})"
    wanted = box_of(want.section, want.section)
    names = [name for name, _, _ in axes_of(want.section)]
    differ = [
        axis
        for axis in range(len(wanted))
        if any(box[axis] != wanted[axis] for _, boxes in held for box in boxes)
        or any(m[axis] != wanted[axis] for m in missing)
    ] or list(range(len(wanted)))

    def words(box: Box) -> str:
        if len(differ) == 1:
            return _range(box[differ[0]])
        return " x ".join(f"{names[axis]} {_range(box[axis])}" for axis in differ)

    by_key = sorted(held)
    flat = [f"source {key} holds {words(box)}" for key, boxes in by_key for box in boxes]
    flat += [f"source {key} holds nothing of it" for key, boxes in by_key if not boxes]
    shown = ", ".join(flat[:6]) + (f" and {len(flat) - 6} more" if len(flat) > 6 else "")
    gaps = ", ".join(words(box) for box in missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
    axis = f"axis {names[differ[0]]!r} is" if len(differ) == 1 else "the box is"
    return PeerMismatchError(
        f"{what}: {axis} {words(wanted)} here, {shown}; missing is {gaps}; were the source layouts made with their own "
        f"tp_rank?"
    )
