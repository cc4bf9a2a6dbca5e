"""Random pairs of engines: what the two sides of a transfer may look like, within given limits.

A model (caches and the request state they belong to) is drawn once; then each engine draws its own
width, pipeline stages, context parallelism, group structure, block size, page order and memories
for it. All draws come from one ``random.Random``, so the same code serves hypothesis (see
``strategies``) and plain seeds. What does not change the shape of a pair (paddings, addresses,
orders) is drawn from a second one, seeded by the first, which keeps hypothesis quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Literal, NamedTuple

from nixldesc import Axis, Layout, Region, Section, shard_range

from .models import KINDS, Limits, Model, Part, random_model

__all__ = ["KINDS", "EnginePair", "Limits", "random_pair"]


@dataclass(frozen=True, slots=True)
class EnginePair:
    """Two engines with the same model: rank -> ``Layout`` on each side.

    ``places``: dst rank -> ``(dst_rank, dst_size)`` as ``plan`` takes them: its number among the
    dst ranks of its pipeline stage. ``senders``: as ``plan`` takes it.

    >>> from nixldesc import plan
    >>> pair = random_pair(Random(1))
    >>> rank, (dst_rank, dst_size) = next(iter(pair.places.items()))
    >>> found = plan(pair.dsts[rank], pair.srcs, dst_rank=dst_rank, dst_size=dst_size, senders=pair.senders)
    >>> found.keys() <= pair.srcs.keys()
    True
    """

    srcs: dict[int, Layout]
    dsts: dict[int, Layout]
    places: dict[int, tuple[int, int]]
    senders: Literal["one", "all"] = "one"


_LIMITS = Limits()


def random_pair(rnd: Random, limits: Limits = _LIMITS) -> EnginePair:
    """Two engines for one model.

    >>> pair = random_pair(Random(1), Limits(tp=2))
    >>> names = {s.name for layout in pair.dsts.values() for r in layout.regions for s in r.sections}
    >>> names <= {s.name for layout in pair.srcs.values() for r in layout.regions for s in r.sections}
    True
    """
    widths = [_widths(rnd, limits, 0.35)]
    # Two context-parallel engines are rarer, and harder, than one.
    widths.append(_widths(rnd, limits, 0.5 if widths[0][1] > 1 else 0.2))
    model = random_model(rnd, limits, sharded=any(cp > 1 for _, cp, _ in widths))
    detail = Random(rnd.getrandbits(32))
    src = _engine(rnd, detail, limits, model, *widths[0])
    dst = _engine(rnd, detail, limits, model, *widths[1])
    places: dict[int, tuple[int, int]] = {}
    for stage in {stage for stage, _ in dst.values()}:
        ranks = [rank for rank in dst if dst[rank][0] == stage]
        places |= {rank: (number, len(ranks)) for number, rank in enumerate(ranks)}
    srcs, dsts = ({rank: layout for rank, (_, layout) in side.items()} for side in (src, dst))
    return EnginePair(srcs, dsts, places, rnd.choice(limits.senders))


# -- an engine ---------------------------------------------------------------------------------

_Box = dict[str, tuple[int, int]]  # axis -> the range that is held


class _Style(NamedTuple):
    """How an engine lays one section in a block."""

    part: Part
    order: tuple[tuple[str, int], ...]  # (axis, which of its parts), outermost first, the token axis included
    pads: tuple[int, ...]  # bytes left free after each step of an axis
    gap: int  # bytes left free before it
    boxes: list[list[_Box]]  # what each TP rank holds, in so many sections
    units: dict[str, tuple[int, ...]]  # axis -> in what steps it is stored, where the range allows


class _Served(NamedTuple):
    """How an engine serves the caches of one life."""

    group: int
    block_tokens: int
    dealt: bool  # to the context-parallel ranks


class _Chunk(NamedTuple):
    """Sections that lie together, of the same groups."""

    styles: tuple[_Style, ...]
    groups: tuple[int, ...]
    block_tokens: int
    dealt: bool
    stage: int
    spread: bool  # a region for each of its sections


class _Place(NamedTuple):
    """A region of an engine, before its ranks differ."""

    chunks: tuple[_Chunk, ...]
    mem_type: str
    gap: int  # bytes left free after each block
    onto: int  # the number of the region whose memory it shares, or its own

    @property
    def groups(self) -> tuple[int, ...]:
        return self.chunks[0].groups

    @property
    def stage(self) -> int:
        return self.chunks[0].stage

    @property
    def spread(self) -> bool:
        return any(chunk.spread for chunk in self.chunks)


def _widths(rnd: Random, limits: Limits, some_cp: float) -> tuple[int, int, int]:
    """TP, CP and PP sizes."""
    cp = rnd.randint(min(2, limits.cp), limits.cp) if rnd.random() < some_cp else 1
    pp = rnd.randint(1, limits.pp) if rnd.random() < 0.25 else 1
    while cp * pp > limits.ranks:
        cp, pp = max(1, cp - 1), 1
    return rnd.randint(1, min(limits.tp, limits.ranks // (cp * pp))), cp, pp


def _engine(
    rnd: Random, detail: Random, limits: Limits, model: Model, tp: int, cp: int, pp: int
) -> dict[int, tuple[int, Layout]]:
    """Rank -> its pipeline stage and its layout."""
    served = _served(rnd, model, cp)
    chunks = _chunks(rnd, detail, limits, model, served, tp, pp)
    pp = 1 + max(chunk.stage for chunk in chunks)
    places = _regions(rnd, limits, chunks)
    grain = rnd.choice(limits.cp_tokens) if cp > 1 and model.exact else None
    keys = list(range(tp * cp * pp))
    if detail.random() < 0.2:
        keys = sorted(detail.sample(range(3 * len(keys)), len(keys)))
    ranks = [(t, c, p) for p in range(pp) for c in range(cp) for t in range(tp)]
    if detail.random() < 0.3:
        ranks.sort()
    anonymous = {one.group for one in served} == {0} and detail.random() < 0.3  # the only group needs no name
    found = {}
    for key, (t, c, p) in zip(keys, ranks, strict=True):
        mine = [place for place in places if place.stage == p]
        if regions := _rank(detail, limits, mine, t, anonymous):
            found[key] = p, Layout(regions, cp_rank=c, cp_size=cp, cp_tokens=grain)
    return found


def _served(rnd: Random, model: Model, cp: int) -> list[_Served]:
    """For each life, how this engine serves it; lives may share a group."""
    tied = {life for cache in model.caches if len(cache.lives) > 1 for life in cache.lives}
    members: list[list[int]] = []
    for life, what in enumerate(model.lives):
        alone = what.mixed or life in tied
        same = [g for g in members if model.lives[g[0]] == what and g[0] not in tied]
        if same and not alone and rnd.random() < 0.4:
            rnd.choice(same).append(life)
        else:
            members.append([life])
    rnd.shuffle(members)
    first = int(rnd.random() < 0.1)  # before it, a group that no region serves
    shared = {what: rnd.choice(what.block_tokens) for what in model.lives}
    found: dict[int, _Served] = {}
    for number, group in enumerate(members, first):
        what = model.lives[group[0]]
        size = shared[what] if tied & set(group) else rnd.choice(what.block_tokens)
        # An engine may keep whole on every rank what the other one deals out.
        dealt = what.kind != "whole" and (cp == 1 or bool(tied) or rnd.random() < 0.85)
        found |= dict.fromkeys(group, _Served(number, size, dealt))
    return [found[life] for life in range(len(model.lives))]


def _chunks(
    rnd: Random, detail: Random, limits: Limits, model: Model, served: list[_Served], tp: int, pp: int
) -> list[_Chunk]:
    chunks = []
    stages = sorted(rnd.randrange(pp) for _ in model.caches)
    stages = [sorted(set(stages)).index(stage) for stage in stages]
    for cache, stage in zip(model.caches, stages, strict=True):
        styles = [_style(rnd, detail, limits, part, tp) for part in cache.parts]
        if limits.any_order and rnd.random() < 0.5:  # the same axis first in all of them: rows can interleave
            first = styles[0].order[:1]
            styles = [one._replace(order=tuple(sorted(one.order, key=lambda a: a not in first))) for one in styles]
        detail.shuffle(styles)
        of = [served[life] for life in cache.lives]
        groups = tuple(one.group for one in of)
        apart = len(styles) > 1 and rnd.random() < 0.3
        for some in [(style,) for style in styles] if apart else [tuple(styles)]:
            spread = any(len(held) > 1 for style in some for held in style.boxes) and rnd.random() < 0.4
            chunks.append(_Chunk(some, groups, of[0].block_tokens, of[0].dealt, stage, spread))
    return chunks


def _style(rnd: Random, detail: Random, limits: Limits, part: Part, tp: int) -> _Style:
    units = {axis: tuple(unit for unit in steps if rnd.random() < 0.7) for axis, steps in part.units.items()}
    names = [axis.name for axis in part.axes] + ["token"] * bool(part.tokens)
    order = [(name, level) for name in names for level in range(len(units.get(name, ())) + 1)]
    last = [key for key in order if key == ("byte", len(units.get("byte", ())))]
    order = [key for key in order if key not in last]
    detail.shuffle(order)
    order += last
    loose = limits.any_order and detail.random() < 0.2
    if loose and detail.random() < 0.3:
        detail.shuffle(order)
    pads = tuple(detail.choice((0, 0, 1, 2)) if loose else 0 for _ in order)
    gap = detail.choice((0, 0, 0, 1, 4)) if limits.any_order else 0
    return _Style(part, tuple(order), pads, gap, _boxes(rnd, limits, part, tp), units)


def _boxes(rnd: Random, limits: Limits, part: Part, tp: int) -> list[list[_Box]]:
    """What each TP rank holds; together they hold all of it."""
    whole = {axis.name: (axis.start, axis.stop) for axis in part.axes if axis.name in part.split}
    if not whole or rnd.random() < 0.12:
        return [[whole]] * tp
    if limits.boxes and rnd.random() < 0.3:
        return _pieces(rnd, whole, tp)
    axis = rnd.choice(part.split)
    if limits.boxes and len(whole) > 1 and rnd.random() < 0.5:
        other = rnd.choice([name for name in part.split if name != axis])
        outer = rnd.choice([n for n in range(1, tp + 1) if tp % n == 0])
        rows, columns = _shares(rnd, limits, whole[axis][1], outer), _shares(rnd, limits, whole[other][1], tp // outer)
        return [[whole | {axis: row, other: column}] for row in rows for column in columns]
    return [[whole | {axis: share}] for share in _shares(rnd, limits, whole[axis][1], tp)]


def _pieces(rnd: Random, whole: _Box, tp: int) -> list[list[_Box]]:
    """The whole cut up anyhow; a rank may hold several pieces or none, and some that others hold too."""
    pieces = [whole]
    for _ in range(rnd.randint(1, 2 * tp)):
        at, axis = rnd.randrange(len(pieces)), rnd.choice(sorted(whole))
        start, stop = pieces[at][axis]
        if stop - start > 1:
            cut = rnd.randint(start + 1, stop - 1)
            pieces[at : at + 1] = [pieces[at] | {axis: (start, cut)}, pieces[at] | {axis: (cut, stop)}]
    held: list[list[_Box]] = [[] for _ in range(tp)]
    for piece in pieces:
        held[rnd.randrange(tp)].append(piece)
    for boxes in held:
        if rnd.random() < 0.3:  # a replica of any box, inside another piece or across several
            boxes.append({axis: _some(rnd, *ends) for axis, ends in whole.items()})
    return held


def _some(rnd: Random, start: int, stop: int) -> tuple[int, int]:
    """A range inside a range."""
    low = rnd.randint(start, stop - 1)
    return low, rnd.randint(low + 1, stop)


def _shares(rnd: Random, limits: Limits, size: int, tp: int) -> list[tuple[int, int]]:
    """The range of an axis that each TP rank holds; together they hold all of it."""
    whole = rnd.random() < 0.12
    if not whole and (size % tp == 0 or tp % size == 0) and rnd.random() < 0.8:
        return [shard_range(size, tp, rank) for rank in range(tp)]
    if whole or not limits.ragged:
        return [(0, size)] * tp
    parts = rnd.randint(1, min(tp, size))
    cuts = [0, *sorted(rnd.sample(range(1, size), parts - 1)), size]
    which = sorted([*range(parts), *(rnd.randrange(parts) for _ in range(tp - parts))])
    if rnd.random() < 0.3:
        rnd.shuffle(which)
    shares = [(cuts[part], cuts[part + 1]) for part in which]
    if rnd.random() < 0.3:  # ranges that overlap without being equal
        shares = [(max(0, a - rnd.randint(0, 1)), min(size, b + rnd.randint(0, 1))) for a, b in shares]
    return shares


# -- regions and ranks -------------------------------------------------------------------------


def _regions(rnd: Random, limits: Limits, chunks: list[_Chunk]) -> list[_Place]:
    packed: list[list[_Chunk]] = []
    for chunk in chunks:
        fitting = [some for some in packed if (some[0].groups, some[0].stage) == (chunk.groups, chunk.stage)]
        if fitting and rnd.random() < 0.4:
            rnd.choice(fitting).append(chunk)
        else:
            packed.append([chunk])
    places: list[_Place] = []
    for number, some in enumerate(packed):
        gap = rnd.choice((0, 0, 0, 5, 32)) if limits.any_order else 0
        hosts = _hosts(some, places) if limits.aliased and not any(chunk.spread for chunk in some) else []
        onto = rnd.choice(hosts) if hosts and rnd.random() < 0.3 else number
        mem_type = rnd.choice(limits.mem_types) if onto == number else places[onto].mem_type
        places.append(_Place(tuple(some), mem_type, gap, onto))
    return places


def _hosts(chunks: list[_Chunk], places: list[_Place]) -> list[int]:
    """The places in whose memory the chunks may lie, too: no group may have two regions there."""
    there: dict[int, set[int]] = {n: set() for n, place in enumerate(places) if place.onto == n and not place.spread}
    for place in places:
        there.get(place.onto, set()).update(place.groups)
    groups, stage = set(chunks[0].groups), chunks[0].stage
    return [n for n, taken in there.items() if places[n].stage == stage and not taken & groups]


class _Page(NamedTuple):
    place: _Place
    name: str
    sections: tuple[Section, ...]
    length: int


def _rank(rnd: Random, limits: Limits, places: Sequence[_Place], tp_rank: int, anonymous: bool) -> list[Region]:
    lying: dict[object, list[_Page]] = {}  # in the same memory
    for place in places:
        for page in _pages(rnd, place, tp_rank):
            lying.setdefault(page.name if place.spread else place.onto, []).append(page)
    cursors: dict[tuple[str, int], int] = {}
    regions = []
    for shared in lying.values():
        stride = max(page.length + page.place.gap for page in shared)
        num_blocks = rnd.randint(10, 60)
        most_cuts = limits.segments - 1 if len(shared) == 1 and rnd.random() < 0.3 else 0
        cuts = sorted(rnd.sample(range(1, num_blocks), rnd.randint(0, most_cuts)))
        segments = []
        for count in [stop - start for start, stop in pairwise([0, *cuts, num_blocks])]:
            memory = shared[0].place.mem_type, rnd.choice((0, 0, 1, 3))
            base = 0 if memory[0] == "FILE" else rnd.choice((0x1000, 0x7F00_0000_0000, 0xFFFF_8000_0000_0000))
            start = cursors.get(memory, base) + rnd.choice((0, 0, 16, 100))
            cursors[memory] = start + stride * count
            segments.append((start, count, memory[1]))
        for page in shared:
            own = page.length + page.place.gap
            apart = len(shared) == 1 or rnd.random() < 0.3
            regions.append(_region(page, segments, own if apart else stride, anonymous))
    rnd.shuffle(regions)
    return regions


def _pages(rnd: Random, place: _Place, tp_rank: int) -> list[_Page]:
    """What a block of each of the place's regions is on this rank: one, one a part, or none."""
    sections: list[Section] = []
    for chunk in place.chunks:
        sections += _chunk_sections(chunk, tp_rank, max((section.end for section in sections), default=0))
    name = "+".join(dict.fromkeys(section.name for section in sections))
    pages = [(name, tuple(sections))] if sections else []
    if place.spread:
        pages = [(f"{name}#{number}", (section,)) for number, section in enumerate(sections)]
    ends = [max(section.end for section in some) + rnd.choice((0, 0, 0, 3)) for _, some in pages]
    return [_Page(place, name, some, end) for (name, some), end in zip(pages, ends, strict=True)]


def _region(page: _Page, segments: Sequence[tuple[int, int, int]], stride: int, anonymous: bool) -> Region:
    whole = page.sections[0]
    opaque = len(page.sections) == 1 and not whole.axes and not whole.offset and whole.name == page.name
    return Region.segmented(
        page.name,
        whole.itemsize if opaque else page.length,
        segments,
        block_stride=stride,
        groups=None if anonymous else page.place.groups,
        mem_type=page.place.mem_type,
        sections=None if opaque else page.sections,
    )


def _chunk_sections(chunk: _Chunk, tp_rank: int, at: int) -> list[Section]:
    """One after another, or, when all have the same outermost range, row beside row."""
    held = [(style, _axes(style, chunk.block_tokens, box)) for style in chunk.styles for box in style.boxes[tp_rank]]
    outer = {axes[:1] for _, axes in held}
    beside = len(held) > 1 and len(outer) == 1 and () not in outer and chunk.styles[0].gap != 1
    laid = [_steps(axes[beside:], style.part.itemsize, style.pads) for style, axes in held]
    row = [sum(extent for _, extent in laid)] * beside
    sections = []
    for (style, axes), (strides, extent) in zip(held, laid, strict=True):
        at += 0 if beside else style.gap
        name, itemsize = style.part.name, style.part.itemsize
        sections.append(Section(name, axes, itemsize, offset=at, strides=row + strides, cp=chunk.dealt))
        at += extent
    return sections


def _axes(style: _Style, block_tokens: int, box: _Box) -> tuple[Axis, ...]:
    """The axes of one section from outermost to innermost, in parts where the range is one of whole steps."""
    ranges = {axis.name: (axis.start, axis.stop) for axis in style.part.axes}
    ranges |= {"token": (0, max(1, block_tokens * style.part.tokens)), **box}
    found: dict[tuple[str, int], Axis] = {}
    for name, (start, stop) in ranges.items():
        steps = [unit for unit in style.units.get(name, ()) if start % unit == stop % unit == 0]
        for level, (above, unit) in enumerate(pairwise([0, *steps, 1])):
            low, high = (0, above // unit) if above else (start // unit, stop // unit)
            found[name, level] = Axis(name, low, high, unit)
    return tuple(found[key] for key in style.order if key in found)


def _steps(axes: Sequence[Axis], itemsize: int, pads: tuple[int, ...]) -> tuple[list[int], int]:
    """Strides in bytes, and the bytes from the first to the last item's end."""
    strides: list[int] = []
    extent = itemsize
    for axis, pad in zip(reversed(axes), reversed(pads[len(pads) - len(axes) :]), strict=True):
        step = extent + pad
        strides.append(step)
        extent += step * (axis.stop - axis.start - 1)
    return strides[::-1], extent
