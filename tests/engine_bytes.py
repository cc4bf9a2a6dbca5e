"""The bytes of a block, as an engine's own list names them and as a layout would move them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nixldesc import Layout, plan

Bytes = list[tuple[int, int]]


def joined(pieces: Iterable[tuple[int, int]]) -> Bytes:
    """Ranges ``(first address, one past the last)``, touching ones joined; an address twice is an error."""
    found: Bytes = []
    for start, stop in sorted(pieces):
        assert not found or start >= found[-1][1], f"byte {start:#x} is named twice"
        if found and start == found[-1][1]:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def moved(layout: Layout, tables: Sequence[Sequence[int]]) -> Bytes:
    """What a request of these blocks reads when a rank of the very same geometry asks for all of it."""
    pieces = []
    for pair in plan(layout, {0: layout})[0]:
        for src_addr, dst_addr, length in pair.moves(*pair.desc_ids(tables, tables)).tolist():
            assert src_addr == dst_addr
            pieces.append((src_addr, src_addr + length))
    return joined(pieces)
