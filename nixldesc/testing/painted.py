"""Painted memory: an oracle that says whether copies deliver a request, byte by byte.

Every byte of every source section is given an identity: its section, the global index along each axis, its token
position in the sequence, its place inside the item. The copies are then made on these identities, and each destination
byte that the request covers must have received its own identity, exactly once, while no other byte may have changed.

The oracle knows only what a rank says about its memory (``Region``, ``Section``, ``Axis``, block
tables with their positions, context-parallel rank and size) and computes every address itself. It
has no part in planning, so it judges any connector, not only one built on ``nixldesc.plan``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ._memory import first_at
from .copies import Copies, DeliveryError, Memory, nixl_copies, planned_copies
from .identities import MUST, NEVER, Held, Identities, all_held, ascending, find

if TYPE_CHECKING:
    from nixldesc import Layout

    from .copies import Addresses, Tables
    from .identities import Numbers

__all__ = ["Copies", "Delivery", "DeliveryError", "Memory", "check_delivery", "nixl_copies", "planned_copies"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a checked request moved, so that a test can show that it was not about nothing.

    ``delivered``: bytes of dst that hold their own identity. ``uncovered``: bytes of listed dst
    blocks that no source lists. ``by_source``: src rank -> bytes taken from it.

    >>> Delivery(delivered=48, uncovered=16, by_source={0: 48, 1: 0}).by_source[1]
    0
    """

    delivered: int
    uncovered: int
    by_source: dict[int, int]


def check_delivery(
    srcs: Mapping[int, Layout],
    dsts: Mapping[int, Layout],
    src_blocks: Mapping[int, Tables],
    dst_blocks: Mapping[int, Tables],
    copies: Iterable[Copies],
    *,
    null_block: int | None = None,
    tokens: int | None = None,
    allow_missing: Collection[str] | bool = (),
) -> Delivery:
    """Prove that ``copies`` deliver one request: every covered byte, exactly once, nothing else.

    ``srcs``, ``dsts``: rank -> ``Layout``. ``src_blocks``, ``dst_blocks``: rank -> one entry per group, each a sequence
    of block ids or ``Blocks``; entries equal to ``null_block`` stand for nothing. ``copies``: all copies of the
    request, to all dst ranks (see ``nixl_copies`` for descriptor ids, ``planned_copies`` for plans).

    A dst byte is covered when some source lists a block that holds the same byte: the same section, global indices and
    position in the sequence. With ``tokens`` (the request's tokens) a byte of a later token need not arrive, and only
    may in a block that also holds one of them. Sections in ``allow_missing`` (``True``: any) may have no source. Where
    sources divide a request among them (``senders="all"``), list for each what it sends: nothing is elected here.

    Every listed byte is looked at (about 90 bytes of memory for each byte delivered): describe
    small blocks, and list a few of them.

    Raises ``DeliveryError`` for a wrong copy and for a dst section that the sources do not hold
    whole; ``ValueError`` for a request that cannot be judged, because its tables put two things
    in one place or its two sides describe a section differently.

    >>> import numpy as np
    >>> from nixldesc import Layout, Region
    >>> srcs = {0: Layout([Region("K", 0x1000, 16, 8)])}
    >>> dsts = {0: Layout([Region("K", 0x8000, 16, 8)])}
    >>> right = Copies(Memory(0), Memory(0), np.array([[0x1030, 0x8050, 16]], np.uint64))
    >>> check_delivery(srcs, dsts, {0: [[3]]}, {0: [[5]]}, [right]).delivered
    16
    >>> wrong = Copies(Memory(0), Memory(0), np.array([[0x1040, 0x8050, 16]], np.uint64))
    >>> check_delivery(srcs, dsts, {0: [[3]]}, {0: [[5]]}, [wrong])
    Traceback (most recent call last):
    nixldesc.testing.copies.DeliveryError: dst rank 0, region 'K', block 5: section 'K', \
position 0, byte 0 of the item (address 0x8050) holds block 4 of region 'K', which is not listed \
(src rank 0, address 0x1040); it must hold itself. Wrong bytes in all: 16
    """
    held = list(all_held(srcs, src_blocks, null_block)), list(all_held(dsts, dst_blocks, null_block))
    names = Identities(srcs, dsts, held[0] + held[1])
    names.check_sources(srcs, dsts, allow_missing)
    return _Oracle(names, (srcs, dsts), held, list(copies), tokens).judge()


@dataclass(slots=True)
class _Canvas:
    """The listed bytes of one memory, by ascending address."""

    addr: Addresses
    identity: Addresses
    due: Numbers
    holds: Addresses
    writes: Numbers


class _Oracle:
    """One request in painted memory; what is of both sides is ``(of src, of dst)``."""

    def __init__(
        self,
        names: Identities,
        layouts: tuple[Mapping[int, Layout], Mapping[int, Layout]],
        held: tuple[list[Held], list[Held]],
        copies: list[Copies],
        tokens: int | None,
    ) -> None:
        self.names, self.layouts, self.held, self.copies, self.tokens = names, layouts, held, copies, tokens
        self.painted = self._paint("src", held[0], None)
        self.targets = self._paint("dst", held[1], tokens)
        self.known = ascending(canvas.identity for canvas in self.painted.values())
        self.by_source = dict.fromkeys(layouts[0], 0)

    def judge(self) -> Delivery:
        """Make the copies on the identities, and look at every listed byte of dst."""
        wrong = [(one.dst, addr) for one in self.copies for addr in self._copy(one)]
        delivered = uncovered = 0
        for memory, canvas in self.targets.items():
            due = np.where(find(self.known, canvas.identity) >= 0, canvas.due, NEVER)
            own = (canvas.holds == canvas.identity) & (canvas.writes == 1) & (due != NEVER)
            delivered += int(own.sum())
            uncovered += int(((due == NEVER) & (canvas.due == MUST)).sum())
            wrong += [(memory, addr) for addr in canvas.addr[~own & ((canvas.writes > 0) | (due == MUST))].tolist()]
        if wrong:
            raise DeliveryError(f"{self._say(*min(wrong))}. Wrong bytes in all: {len(set(wrong))}")
        return Delivery(delivered, uncovered, self.by_source)

    def _paint(self, side: str, held: list[Held], tokens: int | None) -> dict[Memory, _Canvas]:
        pieces: dict[Memory, list[tuple[Addresses, Addresses, Numbers]]] = {}
        for one in held:
            found = self.names.paint(one)
            columns = found.addr.ravel(), found.identity.ravel(), found.due(tokens).ravel()
            pieces.setdefault(one.memory, []).append(columns)
        canvases = {}
        for memory, parts in pieces.items():
            addr, identity, due = map(np.concatenate, zip(*parts, strict=True))
            order = np.argsort(addr, kind="stable")
            addr, identity, due = addr[order], identity[order], due[order]
            if (at := first_at(addr[1:] == addr[:-1])) is not None:
                raise ValueError(
                    f"{side} {memory}: the tables put two things at address {int(addr[at]):#x}:"
                    f" {self.names.say(int(identity[at]))}, and {self.names.say(int(identity[at + 1]))}"
                    " (a placeholder id is named by null_block)"
                )
            canvases[memory] = _Canvas(addr, identity, due, np.zeros_like(identity), np.zeros(addr.size, np.int64))
        return canvases

    def _copy(self, copies: Copies) -> list[int]:
        """Make the copies on the identities; returns the addresses written that nobody listed."""
        target = self.targets.get(copies.dst)
        listed = 0 if target is None else target.addr.size
        for src, dst, length in copies.rows.tolist():
            if length > listed:  # wrong, and maybe too long to be walked by bytes
                raise DeliveryError(
                    f"{length} bytes are copied from {src:#x} to {dst:#x} in dst"
                    f" {copies.dst}, where the request lists {listed} bytes in all"
                )
        if target is None:
            return []
        src_addr, dst_addr = _bytes(copies.rows)
        value = np.zeros_like(src_addr)
        if source := self.painted.get(copies.src):
            found = find(source.addr, src_addr)
            value = np.where(found >= 0, source.identity[found], np.uint64(0))
        at = find(target.addr, dst_addr)
        inside = at >= 0
        target.holds[at[inside]] = value[inside]
        np.add.at(target.writes, at[inside], 1)
        self.by_source[copies.src.rank] = self.by_source.get(copies.src.rank, 0) + int(inside.sum())
        outside: list[int] = dst_addr[~inside].tolist()
        return outside

    # Words; only ever asked for when something is wrong.

    def _say(self, memory: Memory, addr: int) -> str:
        """What is wrong with one byte."""
        writers = list(self._writers(memory, addr))
        contents = self._contents(*writers[0]) if writers else ""
        found = self._look(1, memory, addr)
        if found is None:
            return (
                f"dst rank {memory.rank}, address {addr:#x}: {self._place(1, memory, addr)}, was written"
                f" ({contents}) although the request does not cover it"
            )
        place, number, due = found
        what = f"dst {place}: {self.names.say(number)} (address {addr:#x})"
        if not writers:
            return f"{what} was not delivered"
        if np.uint64(number) not in self.known:
            return f"{what} was written ({contents}) although no source lists it"
        if due == NEVER:
            return f"{what} was written ({contents}) although the request ends before token {self.tokens}"
        if len(writers) > 1:
            return f"{what} was written {len(writers)} times"
        return f"{what} holds {contents}; it must hold itself"

    def _writers(self, memory: Memory, addr: int) -> Iterator[tuple[Memory, int]]:
        for one in self.copies:
            if one.dst == memory:
                for src, dst, length in one.rows.tolist():
                    if dst <= addr < dst + length:
                        yield one.src, src + addr - dst

    def _contents(self, memory: Memory, addr: int) -> str:
        found = self._look(0, memory, addr)
        what = self._place(0, memory, addr) if found is None else self.names.say(found[1])
        return f"{what} (src rank {memory.rank}, address {addr:#x})"

    def _look(self, side: int, memory: Memory, addr: int) -> tuple[str, int, int] | None:
        """Where a listed byte lies, what it is, and whether it may be written."""
        for one in self.held[side]:
            if one.memory == memory:
                painted = self.names.paint(one)
                for i, byte in np.argwhere(painted.addr == np.uint64(addr)).tolist():
                    place = f"rank {memory.rank}, region {one.region.name!r}, block {one.blocks[i]}"
                    return place, int(painted.identity[i, byte]), int(painted.due(self.tokens)[i, byte])
        return None

    def _place(self, side: int, memory: Memory, addr: int) -> str:
        """An unpainted address in words."""
        layout = self.layouts[side].get(memory.rank)
        for region in layout.regions if layout else ():
            first = 0
            for base, count, device in region.segments.tolist():
                block, inside = divmod(addr - base, region.block_stride)
                if (region.mem_type, device) == memory[1:] and 0 <= block < count:
                    name = f"block {first + block} of region {region.name!r}"
                    own = [one for one in self.held[side] if (one.memory.rank, one.region) == (memory.rank, region)]
                    listed = any(first + block in one.blocks for one in own)
                    return f"byte {inside} of {name}, padding" if listed else f"{name}, which is not listed"
                first += count
        return f"outside every region of {memory}"


def _bytes(rows: Addresses) -> tuple[Addresses, Addresses]:
    """The src and dst address of every byte of ``(src_addr, dst_addr, len)`` rows."""
    lens = rows[:, 2].astype(np.int64)
    within = np.arange(lens.sum()) - np.repeat(np.cumsum(lens) - lens, lens)
    step = within.astype(np.uint64)
    return np.repeat(rows[:, 0], lens) + step, np.repeat(rows[:, 1], lens) + step
