"""What a plan costs, per section: runs and bytes of a block, rows of the prepared list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nixldesc.memory.layout import Layout
from nixldesc.planning.families import Source
from nixldesc.planning.template import SlotTake, Template
from nixldesc.request.pair import DlistPair

__all__ = ["Cost", "costs_of"]


class Cost(NamedTuple):
    """One section between one source region and one dst region.

    `runs` and `nbytes`: contiguous pieces and bytes of one dst block; `run_len`: bytes of the shortest piece. `rows`:
    rows of the prepared list that carry the section (a row may carry its neighbours too).
    """

    source: int
    section: str
    src_region: str
    dst_region: str
    runs: int
    nbytes: int
    run_len: int
    rows: int


def costs_of(
    templates: Sequence[Template],
    dst: Layout,
    sources: Sequence[Source],
    pairs: Mapping[int, tuple[DlistPair, ...]],
) -> tuple[Cost, ...]:
    """Return a record per source, section and pair of regions, by source, then in the order of dst's regions."""
    rows = _rows(pairs)
    found: list[tuple[tuple[int, int, int], Cost]] = []
    for template in templates:
        family = template.family
        # A part of a section may be several boxes: they are one record.
        boxes: dict[tuple[int, int], list[SlotTake]] = {}
        for take in template.takes:
            boxes.setdefault((take.slot, take.member), []).append(take)
        for (slot, member), takes in boxes.items():
            source = sources[family.members[member].source]
            name = family.slots[slot].want.name
            number = [s.want.name for s in family.slots].index(name)
            nbytes = sum(template.nbytes(take) for take in takes)
            lanes = [
                (run.lane, channel.meeting.dst_sub)
                for channel in template.channels
                if channel.member == member
                for run in channel.runs
                if slot in run.lane.slots
            ]
            runs, length = sum(lane.runs * subs for lane, subs in lanes), min(lane.length for lane, _ in lanes)
            regions = family.dst.regions, family.members[member].alike.regions
            for here, there in zip(*(numbers.tolist() for numbers in regions), strict=True):
                section = dst.pages.names[here][number]
                src_region, dst_region = source.layout.names[there], dst.names[here]
                row_count = rows.get((source.key, src_region, dst_region, section), 0)
                cost = Cost(source.key, section, src_region, dst_region, runs, nbytes, length, row_count)
                found.append(((source.key, here, slot), cost))
    return tuple([cost for _, cost in sorted(found, key=lambda item: item[0])])


def _rows(pairs: Mapping[int, tuple[DlistPair, ...]]) -> dict[tuple[int, str, str, str], int]:
    """Count the dst list's rows by source, regions and section."""
    counts: dict[tuple[int, str, str, str], int] = {}
    for source, made in pairs.items():
        for pair in made:
            of_region = np.bincount(pair.dst.row_index()[1], minlength=len(pair.origin)).tolist()
            for (src_region, dst_region, sections), count in zip(pair.origin, of_region, strict=True):
                for section in sections:
                    key = (source, src_region, dst_region, section)
                    counts[key] = counts.get(key, 0) + count
    return counts
