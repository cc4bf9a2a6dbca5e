"""Regions of a destination that look alike to all sources: one choice and one template for all of them.

::

    dst region      l0   l1   l2  ...  l79          80 layers of one page
    source 0        l0   l1   l2  ...  l79          whose sections lie in regions of one page there, too
    source 1        l0   l1   l2  ...  l79
    family          one template (who sends what, lanes)  x  its regions here, and those of each member that they meet

What two regions must share to be alike is their key: the shapes of their pages without the global index, and for each
section its holders: which source, which of its regions (counted anew for each destination region), which page, and how
far its box lies from the destination's. So the experts of a layer, an allocation each, are one family too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc._check import few
from nixldesc.errors import PeerMismatchError
from nixldesc.memory.columns import Groups, Page
from nixldesc.memory.layout import Layout
from nixldesc.memory.sections import Section, renamed
from nixldesc.planning.boxes import PartIndex
from nixldesc.planning.limits import MAX_FAMILIES, Limits
from nixldesc.planning.meeting import Deal
from nixldesc.planning.sources import Holder, Rank, Rule, Rules, Want, box_of, too_entangled

__all__ = ["Alike", "Allowed", "Family", "Member", "Slot", "Source", "families_of"]

#: True: any section may lack a source.
Allowed = Literal[True] | Collection[str]


class Source(NamedTuple):
    """A source rank and its layout."""

    key: int
    layout: Layout


class Held(NamedTuple):
    """Where a section of some name lies: the source's number, its region, the slot in that region's page."""

    source: int
    region: int
    slot: int


class Slot(NamedTuple):
    """A destination section of a family, as its first region has it; `of[h]`: which member holder h lies in."""

    want: Want
    rule: Rule
    holders: tuple[Holder, ...]
    of: tuple[int, ...]
    ranks: tuple[Rank, ...]


class Alike(NamedTuple):
    """Alike regions of one layout: their numbers, and what all of them share."""

    regions: NDArray[np.int64]
    groups: Groups
    mem_type: str


class Member(NamedTuple):
    """Alike regions of one source (its number among the sources, its key), each of which meets one of a family's."""

    source: int
    key: int
    alike: Alike


class Family(NamedTuple):
    """Alike destination regions: ``dst.regions[m]`` meets ``member.alike.regions[m]`` of each member.

    `name` is the first region's, for words. What later steps ask of layouts is in here, but for addresses.
    """

    name: str
    slots: tuple[Slot, ...]
    dst: Alike
    members: tuple[Member, ...]


def families_of(
    dst: Layout, sources: Sequence[Source], rules: Rules, allowed: Any, limits: Limits
) -> tuple[list[Family], tuple[str, ...], tuple[str, ...]]:
    """Return the families, the names of dst sections without a source, and those of source sections unknown to dst."""
    finder = _aligned(dst, sources, rules) or _Names(dst, sources, limits)
    met = list(finder.met(rules))
    missing = finder.missing(allowed)
    return [finder.family(here, there, rules) for here, there in met], missing, finder.unused()


def _prove_few(families: int) -> None:
    if families > MAX_FAMILIES:
        raise PeerMismatchError(
            f"the two sides' regions meet in more than {MAX_FAMILIES:,} different ways, each planned apart; "
            "alike are regions whose pages have one shape, that take the same groups and lie in one type of memory, "
            "and whose sections the sources hold alike: plan for a part of them at a time (Layout.select)"
        )


def _deal_of(layout: Layout, section: Section) -> Deal:
    """Return which tokens of `section` the layout's rank holds."""
    if layout.cp_size == 1 or not section.cp or not section.block_tokens:
        return Deal()
    return Deal(layout.cp_rank, layout.cp_size, layout.cp_tokens or section.block_tokens)


def _ranks(sources: Sequence[Source], held: Sequence[Held]) -> tuple[Rank, ...]:
    """Return the sources that hold a section, ascending, with the tokens that each has of it."""
    found: dict[int, Rank] = {}
    for source, region, slot in held:
        if source not in found:
            key, layout = sources[source]
            section = layout.pages.kinds[layout.pages.of[region]][slot]
            found[source] = Rank(source, key, _deal_of(layout, section))
    return tuple([found[number] for number in sorted(found)])


def _alike(layout: Layout, regions: NDArray[np.int64]) -> Alike:
    columns, first = layout.columns, int(regions[0])
    return Alike(regions, columns.groups[first], columns.mem_types[first])


#: Numbers of alike destination regions, and for each of their members the source regions that they meet.
Met = tuple[NDArray[np.int64], tuple[NDArray[np.int64], ...]]


class _Finder:
    """What the ways of finding holders share: a destination region's slots as objects, for the first of a family."""

    def __init__(self, dst: Layout, sources: Sequence[Source]) -> None:
        self.dst, self.sources = dst, sources

    def held(self, region: int, slot: int) -> Sequence[Held]:
        """Return the holders of one section that may meet it, in the order of sources and of their layouts."""
        raise NotImplementedError

    def everywhere(self, region: int, slot: int) -> Sequence[Held]:
        """Return all holders of one section's name."""
        return self.held(region, slot)

    def met(self, rules: Rules) -> Iterator[Met]:
        """Yield alike regions: their numbers, and for each member theirs."""
        raise NotImplementedError

    def family(self, here: NDArray[np.int64], there: tuple[NDArray[np.int64], ...], rules: Rules) -> Family:
        """Return a family of regions that :meth:`met` yields: what its first one is, and all that it meets."""
        region = int(here[0])
        slots, met = self._slots(region, rules)
        members = [
            Member(source, self.sources[source].key, _alike(self.sources[source].layout, regions))
            for source, regions in zip(met, there, strict=True)
        ]
        return Family(self.dst.names[region], slots, _alike(self.dst, here), tuple(members))

    def _slots(self, region: int, rules: Rules) -> tuple[tuple[Slot, ...], list[int]]:
        """Return the slots of a region that have holders, and the source of each member."""
        members: dict[tuple[int, int], int] = {}
        slots = []
        page = self.dst.pages.kinds[self.dst.pages.of[region]]
        for number, (section, name) in enumerate(zip(page, self.dst.pages.names[region], strict=True)):
            want = Want(renamed(section, name), name, self.dst.names[region], _deal_of(self.dst, section))
            holders, of = [], []
            for source, there, slot in self.held(region, number):
                of.append(members.setdefault((source, there), len(members)))
                layout = self.sources[source].layout
                held = layout.pages.kinds[layout.pages.of[there]][slot]
                holders.append(Holder(source, held, layout.names[there], _deal_of(layout, held)))
            ranks = _ranks(self.sources, self.everywhere(region, number))
            slots.append(Slot(want, rules.of(name), tuple(holders), tuple(of), ranks))
        return tuple(slots), [source for source, _ in members]


class _Same(_Finder):
    """Every source has the destination's sections in the destination's regions: nothing has to be looked up."""

    def held(self, region: int, slot: int) -> Sequence[Held]:
        return [Held(source, region, slot) for source in range(len(self.sources))]

    def met(self, rules: Rules) -> Iterator[Met]:
        layouts = (self.dst, *[source.layout for source in self.sources])
        columns: list[tuple[Any, ...]] = []
        for layout in layouts:
            columns += layout.pages.of, layout.columns.groups, layout.columns.mem_types
        count = len(self.dst.columns)
        varying = [column for column in columns if column.count(column[0]) < count]
        if not varying:
            every = np.arange(count)
            yield every, (every,) * len(self.sources)
            return
        numbers: dict[Any, int] = {}
        of = np.array([numbers.setdefault(key, len(numbers)) for key in zip(*varying, strict=True)])
        _prove_few(len(numbers))
        for number in range(len(numbers)):
            regions = np.flatnonzero(of == number)
            yield regions, (regions,) * len(self.sources)

    def missing(self, allowed: Any) -> tuple[str, ...]:
        return ()

    def unused(self) -> tuple[str, ...]:
        return ()


def _aligned(dst: Layout, sources: Sequence[Source], rules: Rules) -> _Same | None:
    names = dst.pages.names
    if rules.named or not sources or any(source.layout.pages.names != names for source in sources):
        return None
    return None if dst.pages.have_parts else _Same(dst, sources)


class _Names(_Finder):
    """Sections are looked up by name, and where a name has many parts by their boxes."""

    def __init__(self, dst: Layout, sources: Sequence[Source], limits: Limits) -> None:
        super().__init__(dst, sources)
        self._limits = limits
        self._by_name: dict[str, list[Held]] = {}
        for number, (_, layout) in enumerate(sources):
            for region, names in enumerate(layout.pages.names):
                for slot, name in enumerate(names):
                    self._by_name.setdefault(name, []).append(Held(number, region, slot))
        self._parts: dict[Any, PartIndex | None] = {}
        self._near: dict[tuple[int, int], Sequence[Held]] = {}
        self._apart: dict[Any, Any] = {}
        self._shapes = [_Shapes(layout) for layout in (dst, *[source.layout for source in sources])]
        self._holding: dict[str, Any] = {}

    def everywhere(self, region: int, slot: int) -> Sequence[Held]:
        return self._by_name.get(self.dst.pages.names[region][slot], ())

    def held(self, region: int, slot: int) -> Sequence[Held]:
        found = self.everywhere(region, slot)
        if len(found) <= 8:
            return found
        if (region, slot) not in self._near:
            try:
                met = self._meeting(region, slot, found)
                self._limits.look(8 * len(met))
            except OverflowError:
                raise too_entangled(self.dst.pages.names[region][slot], self.dst.names[region]) from None
            self._near[region, slot] = met
        return self._near[region, slot]

    def _meeting(self, region: int, slot: int, found: Sequence[Held]) -> Sequence[Held]:
        name = self.dst.pages.names[region][slot]
        section = self._section(0, region, slot)
        axes = tuple([axis for axis, _, _ in section.geometry.box])
        if (name, axes) not in self._parts:
            try:
                boxes = [box_of(self._section(h.source + 1, h.region, h.slot), section) for h in found]
                self._parts[name, axes] = PartIndex(boxes, self._limits)
            except KeyError:  # some holder has other axes: all are looked at, and that one is refused by name
                self._parts[name, axes] = None
        index = self._parts[name, axes]
        return found if index is None else [found[i] for i in index.meeting(box_of(section, section))]

    def _section(self, layout: int, region: int, slot: int) -> Section:
        pages = self._shapes[layout].pages
        return pages.kinds[pages.of[region]][slot]

    def met(self, rules: Rules) -> Iterator[Met]:
        groups: dict[Any, tuple[list[int], list[tuple[int, ...]]]] = {}
        for region, key, members in self._regions(rules):
            regions, met = groups.setdefault(key, ([], []))
            regions.append(region)
            met.append(members)
            _prove_few(len(groups))
        for regions, met in groups.values():
            theirs = np.ascontiguousarray(np.array(met, dtype=np.int64).reshape(len(regions), -1).T)
            yield np.array(regions, dtype=np.int64), tuple(theirs)

    def _regions(self, rules: Rules) -> Iterator[tuple[int, Any, tuple[int, ...]]]:
        """Yield each region's number, key and members."""
        mine = self._shapes[0]
        for region, names in enumerate(mine.pages.names):
            members: dict[tuple[int, int], int] = {}
            page = mine.pages.of[region]
            parts: list[Any] = [mine.kinds[region]]
            for slot, name in enumerate(names):
                found = self.held(region, slot)
                rule = rules.of(name)
                all_held = self._by_name.get(name, ())
                # Which sources hold a part at all decides whose turn it is; of few holders the key says it anyway.
                whole = () if len(all_held) <= 8 else self._who(name)
                parts.append((rule, whole))
                for source, there, other in found:
                    theirs = self._shapes[source + 1]
                    member = members.setdefault((source, there), len(members))
                    gap = self._gap(page, slot, source, theirs.pages.of[there], other)
                    parts.append((source, member, theirs.kinds[there], other, gap))
            yield region, tuple(parts), tuple([there for _, there in members])

    def _who(self, name: str) -> Any:
        if name not in self._holding:
            self._holding[name] = tuple(dict.fromkeys([held.source for held in self._by_name[name]]))
        return self._holding[name]

    def _gap(self, page: int, slot: int, source: int, other_page: int, other: int) -> Any:
        """Return how far a holder's box begins from the destination's, per axis; parts of an axis count from 0."""
        key = (page, slot, source, other_page, other)
        if key not in self._apart:
            here = self._shapes[0].pages.kinds[page][slot].geometry
            there = self._shapes[source + 1].pages.kinds[other_page][other].geometry
            if here.box == there.box and not any(len(dims) > 1 for dims in (*here.dims, *there.dims)):
                self._apart[key] = ()
                return ()
            starts = {name: start for name, start, _ in there.box}
            gap: list[tuple[Any, ...]] = [(name, starts.get(name, 0) - start) for name, start, _ in here.box]
            if any(len(dims) > 1 for dims in (*here.dims, *there.dims)):
                gap += list(here.box)
            self._apart[key] = tuple(sorted(gap))
        return self._apart[key]

    def missing(self, allowed: Any) -> tuple[str, ...]:
        missing: dict[str, str] = {}
        for region, names in enumerate(self.dst.pages.names):
            for name in names:
                if name not in self._by_name:
                    missing.setdefault(name, self.dst.names[region])
        for name, where in missing.items():
            if allowed is not True and name not in allowed:
                raise PeerMismatchError(
                    f"section {name!r} (region {where!r}): no source holds a section of that name; sources hold "
                    f"{few(self._by_name) or 'none'}; {_advice(name, self._by_name)}"
                )
        return tuple(missing)

    def unused(self) -> tuple[str, ...]:
        mine = {name for names in self.dst.pages.names for name in names}
        return tuple([name for name in self._by_name if name not in mine])


def _advice(name: str, held: Mapping[str, Any]) -> str:
    """Say what a missing name most likely means."""
    whole = name.rpartition(".")[0]
    if f"{name}.k" in held or f"{name}.v" in held or (name.endswith((".k", ".v")) and whole in held):
        return (
            'one side keeps K and V of a token together (kv="packed"), the other apart (kv="blocks_first"): describe '
            "both sides as they store them, with K and V as sections of their own"
        )
    return "allow_missing names the sections that may have no source"


class _Shapes:
    """A layout's pages, and for each region a number for its kind: page without global starts, groups, memory type."""

    def __init__(self, layout: Layout) -> None:
        self.pages = layout.pages
        shapes = [_without_starts(page) for page in layout.pages.kinds]
        kinds = zip(
            [shapes[of] for of in layout.pages.of], layout.columns.groups, layout.columns.mem_types, strict=True
        )
        numbers: dict[Any, Any] = {}
        self.kinds = [numbers.setdefault(kind, kind) for kind in kinds]


def _without_starts(page: Page) -> Any:
    return _Hashed(tuple([section.geometry.form for section in page]))


class _Hashed:
    """A value whose hash is taken once: pages are long, and each region's key holds one."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value, self._hash = value, hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Hashed) and self.value == other.value)
