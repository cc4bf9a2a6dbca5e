"""What one family of alike regions sends, from whom, in which lanes: worked out for its first region, true for all.

::

    slots of the page      k: head [0, 8)                    v: head [0, 8)
    takes                  source 0: [0, 4)   1: [4, 8)      source 0: [0, 4)   1: [4, 8)
    channel 0 (source 0)   lanes: k 0 -> 0, v 64 -> 128      one for each source region and way of meeting
    channel 1 (source 1)   lanes: k 0 -> 64, v 64 -> 192
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nixldesc.planning.boxes import Box, volume
from nixldesc.planning.families import Family
from nixldesc.planning.limits import Limits
from nixldesc.planning.meeting import Meeting, meeting_of
from nixldesc.planning.overlap import Lane, Piece, page_lanes
from nixldesc.planning.sources import takes_of

__all__ = ["Channel", "Run", "SlotTake", "Template", "template_of"]


class SlotTake(NamedTuple):
    """What one of a slot's holders sends of it: indices of its box, and how their blocks meet; `member`: its region."""

    slot: int
    holder: int
    member: int
    box: Box
    meeting: Meeting


class Run(NamedTuple):
    """A lane, and how far apart its block's sub-blocks are on either side (0: the block is one)."""

    lane: Lane
    dst_sub_stride: int
    src_sub_stride: int


class Channel(NamedTuple):
    """All lanes between a destination region and one member whose blocks meet one way, ascending on dst."""

    member: int
    meeting: Meeting
    runs: tuple[Run, ...]


class Template(NamedTuple):
    """A family with its takes and channels."""

    family: Family
    takes: tuple[SlotTake, ...]
    channels: tuple[Channel, ...]

    def nbytes(self, take: SlotTake) -> int:
        """Return the bytes of one dst block that a take fills."""
        section = self.family.slots[take.slot].want.section
        return volume(take.box) * max(section.block_tokens, 1) * section.itemsize


def template_of(family: Family, limits: Limits) -> Template:
    """Choose who sends what, and find the lanes."""
    takes: list[SlotTake] = []
    parts: dict[tuple[int, Meeting], list[Piece]] = {}
    for number, slot in enumerate(family.slots):
        if not slot.ranks:
            continue
        section = slot.want.section
        for holder, box in takes_of(slot.want, slot.holders, slot.ranks, slot.rule, limits):
            held = slot.holders[holder]
            meeting = meeting_of(held.section, held.deal, section, slot.want.deal)
            takes.append(SlotTake(number, holder, slot.of[holder], box, meeting))
            piece = Piece(number, held.section, section, box)
            parts.setdefault((slot.of[holder], meeting), []).append(piece)
    channels = [Channel(member, meeting, _runs(pieces, meeting, limits)) for (member, meeting), pieces in parts.items()]
    return Template(family, tuple(takes), tuple(channels))


def _runs(pieces: Sequence[Piece], meeting: Meeting, limits: Limits) -> tuple[Run, ...]:
    found = [Run(lane, *page[1:]) for page in page_lanes(pieces, meeting, limits) for lane in page.lanes]
    return tuple(sorted(found, key=lambda run: run.lane.dst))
