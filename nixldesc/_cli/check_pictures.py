"""The two pages of a check, drawn to scale: the destination's, who sends what of it, and the sources'."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from nixldesc import Layout, Region
from nixldesc._cli.picture import MISSING, Patch, Picture, Strip, keys_of, page_strip, patch_of, source_key
from nixldesc._cli.regions import alike, legend_of, page_words
from nixldesc._cli.screen import Styled, printable
from nixldesc._cli.verdict import Fault, Run, Verdict

__all__ = ["pictures_of"]

#: Source pages and sections beyond these are not drawn, for a picture is to be taken in at a glance.
_MOST_PAGES, _MOST_SECTIONS = 8, 12


class _Page(NamedTuple):
    """One destination region with all that is sent to it and all that is missing."""

    region: Region
    runs: Sequence[Run]
    faults: Sequence[Fault]

    def key(self) -> Hashable:
        shapes = tuple(section.shape for section in self.region.sections)
        missing = tuple((part.axes, part.offset) for fault in self.faults for part in fault.missing)
        return shapes, self.region.block_len, tuple(run.figures for run in self.runs), missing

    def sources(self) -> list[tuple[int, Region]]:
        """The pages that send something; of what nobody sends any part of, those that have something of that name."""
        found = {(run.rank, run.src.name): (run.rank, run.src) for run in self.runs}
        sent = {name for run in self.runs for name in run.sections}
        for fault in self.faults:
            if fault.section.name not in sent:
                found |= {(rank, src.name): (rank, src) for rank, src in fault.holders}
        return list(found.values())


def pictures_of(dst: Layout, verdict: Verdict, names: Mapping[int, str]) -> list[tuple[Picture, tuple[Run, ...]]]:
    """Return a picture of each distinct page of the destination, with its runs; of a refused one the faulty pages."""
    pages = []
    for region in dst.regions:
        runs = [run for run in verdict.runs if run.dst is region]
        faults = [fault for fault in verdict.faults if fault.region is region]
        if faults or (verdict.made is not None and runs):
            page = _Page(region, runs, faults)
            pages.append((page.key(), page))
    return [(_picture(same, names), tuple(same[0].runs)) for same in alike(pages)]


def _picture(same: Sequence[_Page], names: Mapping[int, str]) -> Picture:
    page = same[0]
    keys = keys_of(page.region.sections)
    whole = page_strip(page.region, "dst", keys)
    strips = [whole, Strip("from", whole.size, tuple(_senders(page)))]
    for rank, src in page.sources()[:_MOST_PAGES]:
        runs = [run for run in page.runs if run.rank == rank and run.src is src]
        strips += _source_strips(rank, src, runs, keys)
    return Picture(page_words([one.region for one in same]), tuple(strips), tuple(_legend(page, names)))


def _senders(page: _Page) -> list[Patch]:
    patches = _run_patches((run.rank, run.dst_at, run.length, run.dst_subs) for run in page.runs)
    return patches + [patch_of(part, MISSING) for fault in page.faults for part in fault.missing]


def _run_patches(runs: Iterable[tuple[int, int, int, tuple[int, int]]]) -> list[Patch]:
    """Runs (source, offset, length, sub-blocks), those of one kind as one patch: there may be very many."""
    kinds: dict[tuple[int, int, tuple[int, int]], list[int]] = {}
    for rank, at, length, subs in runs:
        kinds.setdefault((rank, length, subs), []).append(at)
    patches = []
    for (rank, length, subs), offsets in kinds.items():
        key, loops = source_key(rank), (subs,) if subs[0] > 1 else ()
        patches.append(Patch(key.text, key.style, tuple(offsets), length, loops))
    return patches


def _source_strips(rank: int, src: Region, runs: Sequence[Run], keys: Mapping[str, Styled]) -> list[Strip]:
    """The source's page in the letters of the destination's sections, and below it what is sent if that is not all."""
    whole = page_strip(src, f"src {rank}", keys)
    if not runs or sum(run.length * run.src_subs[0] for run in runs) == sum(section.nbytes for section in src.sections):
        return [whole]
    sent = _run_patches((rank, run.src_at, run.length, run.src_subs) for run in runs)
    return [whole, Strip("sends", whole.size, tuple(sent))]


def _legend(page: _Page, names: Mapping[int, str]) -> list[tuple[Styled, str]]:
    legend = legend_of(page.region.sections, _MOST_SECTIONS)
    for rank, src in page.sources():
        words = f"source {rank}, {printable(names[rank])}, region {printable(src.name)}"
        legend.append((source_key(rank), words))
    if page.faults:
        legend.append((MISSING, "nobody sends it"))
    return legend
