"""From a recipe to pairs: lists over the layouts that they are asked for, bounded before anything is built.

All lanes of one source and one combination of memory types are one pair, made when somebody looks; what may be refused
is made at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from nixldesc.errors import GeometryError, PeerMismatchError
from nixldesc.memory.layout import Layout
from nixldesc.memory.proof import MAX_DESCS
from nixldesc.planning.families import Source
from nixldesc.planning.lists import Lists
from nixldesc.planning.sendings import Sending
from nixldesc.request.origins import Origins
from nixldesc.request.pair import DlistPair, derived_pair

__all__ = ["pair_of", "pairs_at_once"]

#: Rows of all tables of a plan, both sides; bounds what two strangers' layouts can make a plan build.
MAX_ROWS = 2**19
#: Regions of a plan's lists that lie in several memories, each an array of its own: half a kilobyte.
MAX_SEGMENTED = 2**15


def pairs_at_once(
    dst: Layout, sources: Sequence[Source], sendings: Mapping[int, Sequence[Sending]]
) -> dict[int, tuple[DlistPair, ...]]:
    """Return the pairs of source ranks that may be refused, or divided; of all others a look at their lists tells."""
    room = _Room()
    made = {}
    for rank, found in sendings.items():
        if not all(_is_small(sending.lists, sources[sending.source].layout, dst) for sending in found):
            pairs = [_within_limits(sending.lists, sources[sending.source].layout, dst, room) for sending in found]
            made[rank] = tuple([pair for some in pairs for pair in some])
    return made


def pair_of(lists: Lists, src: Layout, dst: Layout) -> DlistPair:
    """Return both lists over the two layouts."""
    there, here = lists.sides
    theirs, mine = there.over(src), here.over(dst)
    return derived_pair(theirs, mine, Origins(src, dst, there.regions, here.regions, lists.slots), lists.places)


def _is_small(lists: Lists, src: Layout, dst: Layout) -> bool:
    """Whether the lists are one pair with a row per region, which their lanes alone show to be within all limits."""
    if dst.columns.pieces or src.columns.pieces:
        return False
    rows = len(lists.slots)
    if not lists.plain or 2 * rows > MAX_ROWS:
        return False
    return dst.most_blocks * rows <= MAX_DESCS and src.most_blocks * rows <= MAX_DESCS


class _Room:
    """How many rows the lists of one plan may still have, and how many regions in several memories."""

    def __init__(self) -> None:
        self._left, self._segmented = MAX_ROWS, MAX_SEGMENTED

    def take_segmented(self, regions: int) -> None:
        """Take regions in several memories of both lists of a pair, or raise :class:`PeerMismatchError`."""
        self._segmented -= regions
        if self._segmented < 0:
            raise PeerMismatchError(
                f"the plan's lists would have more than {MAX_SEGMENTED:,} regions in several segments: a block of "
                f"segments is taken in so many pieces (plan for the files or objects of a job, not for all there are; "
                f"let the axes that step closest in memory be the same on both sides)"
            )

    def take(self, rows: int) -> None:
        """Take the rows of both lists of a pair, or raise :class:`PeerMismatchError`."""
        self._left -= rows
        if self._left < 0:
            raise PeerMismatchError(
                f"the plan's lists would have more than {MAX_ROWS:,} rows: blocks and their pieces nest so unevenly "
                f"that each piece of a block, or each block, is a row of its own, or many pieces of a block are taken "
                f"from many segments (plan for the files or objects of a job, not for all there are)"
            )


def _within_limits(lists: Lists, src: Layout, dst: Layout, room: _Room) -> list[DlistPair]:
    """Return the pairs of two lists: one, or several where it would exceed 2**31 - 1 ids on a side."""
    there, here = lists.sides
    room.take_segmented(there.segmented(src) + here.segmented(dst))
    whole = pair_of(lists, src, dst)
    room.take(whole.src.num_rows + whole.dst.num_rows)
    chunks = list(_chunks(whole))
    return [whole] if len(chunks) == 1 else [pair_of(lists.part(chunk), src, dst) for chunk in chunks]


def _chunks(whole: DlistPair) -> Iterator[slice]:
    """Yield the regions of each pair that is small enough for int32 ids."""
    # What is far too much stays so, and sums of it inside int64.
    counts = [np.minimum(side.columns.num_descs(), 2**40) for side in (whole.src, whole.dst)]
    ends = [np.cumsum(count) for count in counts]
    if max(int(end[-1]) for end in ends) <= MAX_DESCS:
        yield slice(0, len(counts[0]))
        return
    first = 0
    for number, most in enumerate(np.maximum(*counts).tolist()):
        if most > MAX_DESCS:
            src_name, dst_name, _ = whole.origin[number]
            raise GeometryError(
                f"region {dst_name!r} (source region {src_name!r}): alone it needs {most} descriptors, more than the "
                f"{MAX_DESCS} that int32 ids can name"
            )
        if max(int(end[number] - (end[first - 1] if first else 0)) for end in ends) > MAX_DESCS:
            yield slice(first, number)
            first = number
    yield slice(first, len(counts[0]))
