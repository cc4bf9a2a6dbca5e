"""Whether a destination can be filled from some sources: what each sends, or what is missing and why.

A plan is made or refused as a whole. For a human in a hurry a refused one is taken apart: each section is planned
alone, and of one that cannot be delivered the part that can, so that exactly the rest is shown as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from nixldesc import Axis, DlistPair, Layout, NixldescError, PeerMismatchError, Plan, Region, Section, plan
from nixldesc.memory.sections import BYTE, TOKEN
from nixldesc.planning.boxes import choose

__all__ = ["Fault", "Run", "Verdict", "judge"]


#: In so many regions of a source the nearest name is looked for.
_NEAR = 256


class Run(NamedTuple):
    """Contiguous bytes of each block that one source sends: where they lie in both pages, in bytes."""

    rank: int
    src: Region
    dst: Region
    src_at: int
    dst_at: int
    length: int
    src_subs: tuple[int, int]  # how many of them, how far apart
    dst_subs: tuple[int, int]
    sections: tuple[str, ...]

    @property
    def figures(self) -> tuple[Any, ...]:
        """The run without names: equal for layers that are alike."""
        page = tuple(section.shape for section in self.src.sections)
        return (self.rank, page, self.src_at, self.dst_at, self.length, self.src_subs, self.dst_subs)


@dataclass(frozen=True, slots=True)
class Fault:
    """A section that cannot be delivered: why, in the planner's words, and the parts of it that nobody sends.

    `kept`: the other parts. `holders`: the (rank, region) of sources that have a section of the name, whatever is wrong
    with it; where none has, of each source the page with the nearest name.
    """

    region: Region
    section: Section
    words: str
    missing: tuple[Section, ...]
    kept: tuple[Section, ...]
    holders: tuple[tuple[int, Region], ...]
    key: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`made` is None where there is no plan; then `words` say why, and `faults` for which sections, where they do."""

    made: Plan | None
    words: str
    runs: tuple[Run, ...]
    faults: tuple[Fault, ...]


def judge(dst: Layout, srcs: Mapping[int, Layout], **options: Any) -> Verdict:
    """Plan `dst` from `srcs` (with the options of ``plan``), or find out what is wrong; an only reader by default."""
    options = {"dst_rank": 0, "dst_size": 1, **options}
    try:
        made = plan(dst, srcs, **options)
    except NixldescError as error:
        return _refused(dst, srcs, str(error), options)
    return Verdict(made, "", _runs(made, dst, srcs), ())


def _runs(made: Plan, dst: Layout, srcs: Mapping[int, Layout]) -> tuple[Run, ...]:
    mine = {region.name: region for region in dst.regions}
    found: list[Run] = []
    for rank, pairs in made.items():
        theirs = {region.name: region for region in srcs[rank].regions}
        for pair in pairs:
            found += _pair_runs(rank, pair, theirs, mine)
    return tuple(found)


def _pair_runs(rank: int, pair: DlistPair, theirs: Mapping[str, Region], mine: Mapping[str, Region]) -> Iterable[Run]:
    for src, dst, (src_name, dst_name, sections) in zip(pair.src.regions, pair.dst.regions, pair.origin, strict=True):
        src_page, dst_page = theirs[src_name], mine[dst_name]
        src_at, dst_at = src.base_addr - src_page.base_addr, dst.base_addr - dst_page.base_addr
        subs = (src.sub_blocks, src.sub_stride), (dst.sub_blocks, dst.sub_stride)
        for j in range(src.runs):
            places = src_at + j * src.run_stride, dst_at + j * dst.run_stride
            yield Run(rank, src_page, dst_page, *places, src.block_len, *subs, sections)


def _refused(dst: Layout, srcs: Mapping[int, Layout], words: str, options: Mapping[str, Any]) -> Verdict:
    runs: list[Run] = []
    faults: list[Fault] = []
    for region in dst.regions:
        for section in region.sections:
            alone = _alone(dst, region, [section])
            try:
                runs += _runs(plan(alone, srcs, **options), dst, srcs)
            except PeerMismatchError as error:
                if repr(section.name) not in str(error):
                    return Verdict(None, words, (), ())  # of a layout as a whole
                fault = _fault(region, section, str(error), srcs)
                faults.append(fault)
                runs += _partly(dst, fault, srcs, options)
            except NixldescError:
                continue  # too many ids, which `words` say
    return Verdict(None, words, tuple(runs), tuple(faults))


def _alone(dst: Layout, region: Region, sections: Sequence[Section]) -> Layout:
    only = region.with_sections(sections)
    return Layout([only], cp_rank=dst.cp_rank, cp_size=dst.cp_size, cp_tokens=dst.cp_tokens)


def _fault(region: Region, section: Section, words: str, srcs: Mapping[int, Layout]) -> Fault:
    held = [
        (rank, page, theirs)
        for rank, layout in srcs.items()
        for page in layout.regions
        for theirs in page.sections
        if theirs.name == section.name
    ]
    missing, kept = _split(section, [theirs for _, _, theirs in held])
    key = _figures(section), tuple((rank, _figures(theirs)) for rank, _, theirs in held)
    holders = [(rank, page) for rank, page, _ in held] or [(rank, _nearest(section, srcs[rank])) for rank in srcs]
    return Fault(region, section, words, missing, kept, tuple(holders), key)


def _nearest(section: Section, layout: Layout) -> Region:
    """The page that a reader would hold against one whose name no source has: of the nearest name."""
    names = {theirs.name: page for page in layout.regions[:_NEAR] for theirs in page.sections}
    close = get_close_matches(section.name, names, n=1, cutoff=0.0)
    return names[close[0]] if close else layout.regions[0]


def _figures(section: Section) -> tuple[Any, ...]:
    return section.axes, section.itemsize, section.dtype, section.cp


def _split(section: Section, holders: Sequence[Section]) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
    """The parts of `section` that no holder has, and the others; all and none, unless they hold parts of one axis."""
    parts = [axis for holder in holders if (axis := _split_axis(section, holder))]
    if len({(axis.name, axis.unit) for axis in parts}) != 1:
        return (section,), ()
    at = [(axis.name, axis.unit) for axis in section.axes].index((parts[0].name, parts[0].unit))
    whole = ((section.axes[at].start, section.axes[at].stop),)
    _, missing = choose(whole, [((axis.start, axis.stop),) for axis in parts])
    _, kept = choose(whole, missing)
    if not missing:
        return (section,), ()
    return tuple(_part(section, at, *box[0]) for box in missing), tuple(_part(section, at, *box[0]) for box in kept)


def _split_axis(section: Section, holder: Section) -> Axis | None:
    """The only axis of a holder of the same format that has another range than the section's; None: not one alone."""
    ours, theirs = ({(axis.name, axis.unit): axis for axis in one.axes} for one in (section, holder))
    if (section.itemsize, section.dtype, ours.keys()) != (holder.itemsize, holder.dtype, theirs.keys()):
        return None
    others = [axis for step, axis in theirs.items() if axis.name != TOKEN and axis != ours[step]]
    return others[0] if len(others) == 1 and others[0].name != BYTE else None


def _part(section: Section, at: int, start: int, stop: int) -> Section:
    """The section's bytes between two steps of one of its axes."""
    axis, stride = section.axes[at], section.strides[at]
    return Section(
        section.name,
        [*section.axes[:at], Axis(axis.name, start, stop, axis.unit), *section.axes[at + 1 :]],
        section.itemsize,
        offset=section.offset + (start - axis.start) * stride,
        strides=section.strides,
        dtype=section.dtype,
        cp=section.cp,
    )


def _partly(dst: Layout, fault: Fault, srcs: Mapping[int, Layout], options: Mapping[str, Any]) -> tuple[Run, ...]:
    """The runs of what can be delivered of a section that cannot be as a whole."""
    try:
        return _runs(plan(_alone(dst, fault.region, fault.kept), srcs, **options), dst, srcs)
    except NixldescError:  # also where there is no such part
        return ()
