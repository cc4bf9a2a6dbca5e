"""From templates to lists: all that one source sends in one combination of memory types, bounded before it is built.

::

    template    family    dst regions     channels: source 0      source 1       memory types
    A           layers    0 .. 79         2 lanes                 2 lanes        DRAM -> VRAM
    B           states    80 .. 89        3 lanes                 -              DRAM -> VRAM

    sending     source 0, DRAM -> VRAM:   part A, 80 x 2 regions, and part B, 10 x 3 regions
                source 1, DRAM -> VRAM:   part A, 80 x 2 regions
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from nixldesc.errors import PeerMismatchError
from nixldesc.memory.proof import MAX_BLOCK_PIECES
from nixldesc.planning.limits import MAX_LANES, Limits
from nixldesc.planning.lists import Lists, Part, lists_of
from nixldesc.planning.meeting import Meeting
from nixldesc.planning.template import Run, Template

__all__ = ["Sending", "Sendings", "sendings_of"]


class Sending(NamedTuple):
    """What one source (its number) sends in one combination of memory types, whatever the addresses."""

    source: int
    lists: Lists


#: What each source rank sends, ascending.
Sendings: TypeAlias = Mapping[int, Sequence[Sending]]


def sendings_of(templates: Iterable[Template], limits: Limits) -> Sendings:
    """Return what each source rank sends, ascending; bounded before anything is built."""
    parts: dict[tuple[int, int, str, str], list[Part]] = {}
    pieces: dict[tuple[int, int, str, str], int] = {}
    for template in templates:
        for key, part in _parts_of(template):
            parts.setdefault(key, []).append(part)
            pieces[key] = pieces.get(key, 0) + part.pieces
            limits.regions -= part.regions
            _prove_few(template.family.name, limits.regions, pieces[key])
    sendings: dict[int, tuple[Sending, ...]] = {}
    for (source, rank, _, _), found in sorted(parts.items(), key=lambda item: item[0][0]):
        sendings[rank] = (*sendings.get(rank, ()), Sending(source, lists_of(found)))
    return sendings


def _parts_of(template: Template) -> Iterable[tuple[tuple[int, int, str, str], Part]]:
    """Yield the runs of each source (its number and rank) and combination of memory types, ascending on dst."""
    family = template.family
    runs: dict[tuple[int, int, str, str], list[tuple[Run, int, Meeting]]] = {}
    for channel in template.channels:
        member = family.members[channel.member]
        key = member.source, member.key, member.alike.mem_type, family.dst.mem_type
        runs.setdefault(key, []).extend([(run, channel.member, channel.meeting) for run in channel.runs])
    for key, found in runs.items():
        found.sort(key=lambda item: item[0].lane.dst)
        yield key, Part(family, *zip(*found, strict=True))


def _prove_few(region: str, regions_left: int, pieces: int) -> None:
    if regions_left < 0:
        raise PeerMismatchError(
            f"region {region!r}: the two sides' pages touch in so many separate places that the plan has more than "
            f"{MAX_LANES} rows a source; a piece that steps evenly through a block is one row, so let the axes that "
            f"step closest in memory be the same on both sides"
        )
    if pieces > MAX_BLOCK_PIECES:
        raise PeerMismatchError(
            f"region {region!r}: one block of each region would be {pieces:,} separate pieces; at most "
            f"{MAX_BLOCK_PIECES:,} are supported"
        )
