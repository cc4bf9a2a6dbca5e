"""All prepared lists of one peer, and the transfers that start from them; see :mod:`nixldesc.adapter`."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeAlias

from nixldesc import BlockIdError, Blocks, Layout, NixldescError, PeerMismatchError, TransferError
from nixldesc._check import as_int, as_names, few
from nixldesc.adapter.agent import Agent, log, refused, silent_backends
from nixldesc.adapter.flight import Flight, Share, Traffic
from nixldesc.adapter.legs import Leg, Ready
from nixldesc.adapter.lists import PeerLists, drop
from nixldesc.adapter.ranges import Range, joined
from nixldesc.adapter.transfer import Transfer
from nixldesc.adapter.waiting import EXIT_SECONDS, wait_while
from nixldesc.memory.ids import BlockIds
from nixldesc.request.moves import id_ops, pair_ids

__all__ = ["BlockTables", "LayoutPair", "PreparedPeer", "launched", "release_peers"]

BlockTables: TypeAlias = Sequence[BlockIds | Blocks]
LayoutPair: TypeAlias = tuple[Layout, Layout]


class PreparedPeer:
    """All prepared lists of one peer, made by ``prepare``; a context manager, at whose end they are released.

    `name` is the peer's agent name, `operation` "READ" or "WRITE". A ``with`` block that ends well waits up to 30
    seconds for transfers in flight, then raises TransferError; with an exception on its way nothing waits, and the
    lists go when nothing of the peer is in flight any more, by whoever prepares or releases next. Dropped unreleased
    it goes the same way and costs a ResourceWarning.

    >>> import numpy as np
    >>> from nixldesc import DlistPair, Region
    >>> from nixldesc.adapter import prepare, register
    >>> from nixldesc.testing import LoopbackAgent
    >>> memory, agent = np.arange(64, dtype=np.uint8), LoopbackAgent("a")
    >>> here = Layout([Region("here", memory.ctypes.data, 8, 4, mem_type="DRAM")])
    >>> there = Layout([Region("there", memory.ctypes.data + 32, 8, 4, mem_type="DRAM")])
    >>> registration = register(agent, Layout([*here.regions, *there.regions]))
    >>> peer = prepare(agent, "a", DlistPair(here, there), local="src")
    >>> peer, peer.pairs == ((here, there),)
    (<PreparedPeer 'a', WRITE, 1 list pairs, 0 transfers>, True)
    >>> with peer.start([[0, 1]], [[3, 2]]) as by_blocks, peer.start_ids(0, [2], [0]) as by_ids:
    ...     by_blocks.wait(), by_ids.wait(), memory[32::8].tolist()
    ('DONE', 'DONE', [16, 40, 8, 0])
    >>> peer.release()
    >>> registration.release()
    """

    __slots__ = ("__weakref__", "_agent", "_finalizer", "_lists", "_ready", "_traffic", "name", "operation")

    def __init__(self, agent: Agent, name: str, local: str, lists: PeerLists, ready: Sequence[Ready]) -> None:
        self.name = name
        self.operation = "READ" if local == "dst" else "WRITE"
        self._agent = agent
        self._lists = lists
        self._ready = tuple(ready)
        self._traffic = Traffic(name)
        self._finalizer = weakref.finalize(self, _drop_peer, self._traffic, lists)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        state = f"{len(self._traffic.flights)} transfers" if self._lists.open else self._traffic.closed or "released"
        return f"<PreparedPeer {self.name!r}, {self.operation}, {len(self._ready)} list pairs, {state}>"

    @property
    def pairs(self) -> tuple[LayoutPair, ...]:
        """The ``(src, dst)`` layouts whose lists are prepared, in the order that ``start_ids`` counts them."""
        return tuple((ready.src, ready.dst) for ready in self._ready)

    @property
    def in_doubt(self) -> tuple[Range, ...]:
        """Ranges of this agent's memory that transfers with this peer may still use: NIXL has not confirmed their end.

        ``(addr, len, device_id, mem_type)``; empty as long as no transfer's ``error.in_doubt`` says otherwise, and
        never shorter again.
        """
        return tuple(joined(self._traffic.in_doubt))

    # ------------------------------------------------------------------------------------------------------- requests

    def start(
        self, src_blocks: BlockTables, dst_blocks: BlockTables, *, notify: bytes = b"", **options: Any
    ) -> Transfer:
        """Start moving one request's blocks; the tables and `options` are those of ``DlistPair.desc_ids``.

        Every handle is made before the first is posted. The peer gets `notify` once, when all bytes are there, and
        never after a failure; a request with nothing to move needs no handle and notifies at once. Transfers know
        nothing of one another: where one request is several of them (a layer at a time, say), notify with the last
        one only when the others are "DONE".

        BlockIdError: the tables do not fit. PeerMismatchError: ``regions=`` for a peer of several list pairs, which
        count their regions apart. TransferError: a handle could not be made (nothing has moved), the peer is released,
        or the agent has backends for storage alone, which cannot notify. What fails later is for the Transfer to tell,
        which never raises for it: ``poll()`` is "ERR".
        """
        if "sections" in options:
            known_sections([self], options)
        share = Share(self._traffic, self._legs(src_blocks, dst_blocks, options))
        return launched(self._agent, self.operation, [share], notify, self)

    def _legs(self, src_blocks: BlockTables, dst_blocks: BlockTables, options: dict[str, Any]) -> list[Leg]:
        """Return what a request takes of each pair of lists, without the empty ones."""
        if len(self._ready) > 1 and options.get("regions", _ALL) != _ALL:
            raise refused(
                PeerMismatchError(
                    f"peer {self.name!r} has {len(self._ready)} list pairs, which count their regions apart: a slice "
                    "would mean another thing in each; sections=[names] means the same"
                )
            )
        if "out" in options:
            raise TypeError("start takes no out=: its ids are NIXL's until the transfer is over")
        sections = options.get("sections")
        legs = []
        try:
            for ready in self._ready:
                pair = ready.pair
                if pair is None:
                    raise TransferError(
                        f"peer {self.name!r} was prepared from layouts of unlike structure, which block tables cannot "
                        "address; use start_ids"
                    )
                how = (
                    options
                    if sections is None
                    else {**options, "sections": [name for name in sections if name in pair.sections]}
                )
                src_ids, dst_ids = pair.desc_ids(src_blocks, dst_blocks, **how)
                if len(src_ids):
                    legs.append(Leg(ready, src_ids, dst_ids))
        except NixldescError as e:
            log.warning("peer %r, %s: %s", self.name, self.operation, str(e))
            raise
        return legs

    def start_ids(self, pair_index: int, src_ids: BlockIds, dst_ids: BlockIds, *, notify: bytes = b"") -> Transfer:
        """Start moving descriptors by their ids in ``pairs[pair_index]``, in the order given.

        The ids are integers in one dimension, an int32 array at best. They are checked: as many on both sides, in
        range, equal lengths at each position (BlockIdError).
        """
        pair_index = as_int(pair_index, "pair_index", TypeError)
        try:
            if not 0 <= pair_index < len(self._ready):
                raise BlockIdError(f"pair_index is {pair_index}, peer {self.name!r} has {len(self._ready)} list pairs")
            ready = self._ready[pair_index]
            # Copies, so that what is checked is what NIXL gets, whatever another thread does to the caller's arrays.
            src, dst = (ids.copy() for ids in pair_ids(src_ids, dst_ids))
            id_ops(ready.src, ready.dst, (src, dst))
        except NixldescError as e:
            log.warning("peer %r, %s: %s", self.name, self.operation, str(e))
            raise
        legs = [Leg(ready, src, dst)] if len(src) else []
        return launched(self._agent, self.operation, [Share(self._traffic, legs)], notify, self)

    # -------------------------------------------------------------------------------------------------------- its end

    def release(self, timeout: float = 0.0) -> None:
        """Release all lists, and what is left of settled transfers, the last made first; again does nothing.

        Waits up to `timeout` seconds for transfers in flight, then refuses (TransferError) and leaves everything as it
        was: a list is never released under a transfer. For a peer that never answers again there is ``abandon()``.
        """
        release_peers([self], timeout)

    def abandon(self) -> None:
        """Give up on a peer that does not answer; again, or after release, does nothing. Never waits.

        Its transfers in flight end as "ERR", in doubt: their ``error.in_doubt``, and `in_doubt` here, say which memory
        NIXL may still use; nobody is notified. Its lists are released and its metadata is removed from the agent,
        which goes on with all other peers. (What else was prepared for the same peer ends in doubt too, when it is
        polled.) When the peer is back, add its metadata again and ``prepare`` anew.

        >>> import numpy as np
        >>> from nixldesc import Region
        >>> from nixldesc.adapter import prepare, register
        >>> from nixldesc.testing import LoopbackAgent
        >>> memory, agent = np.zeros(64, np.uint8), LoopbackAgent("a")
        >>> layout = Layout([Region("k", memory.ctypes.data, 8, 8, mem_type="DRAM")])
        >>> registration, peer = register(agent, layout), prepare(agent, "a", (layout, layout))
        >>> agent.polls = float("inf")  # from now on nothing is ever done
        >>> with peer.start_ids(0, [5], [2]) as transfer:
        ...     if transfer.wait(timeout=0.1) == "PROC":
        ...         peer.abandon()
        ...     transfer.poll(), peer.in_doubt == ((memory.ctypes.data + 16, 8, 0, "DRAM"),)
        ('ERR', True)
        >>> registration.release(in_doubt=True)  # `memory` stays allocated, and out of use until the agent is gone
        """
        if not self._lists.open:
            return
        self._traffic.closed = "abandoned"
        for flight in tuple(self._traffic.flights):
            flight.give_up(self._traffic)
            if flight.state == "PROC":  # with other peers: this one has no part in it any more
                self._traffic.retire(flight, True)
        if self.name != getattr(self._agent, "name", None):
            try:
                self._agent.remove_remote_agent(self.name)
            except Exception as e:
                log.warning("peer %r: its metadata could not be removed: %s", self.name, str(e))
        self._finalizer.detach()
        problem = self._give_back()
        if problem is not None:
            log.warning("%s; it is tried again later", str(problem))
            _let_go(self._traffic, self._lists)

    def _close(self, why: str) -> None:
        """Let nothing start any more; an empty `why` opens it again."""
        self._traffic.closed = why

    def _give_back(self) -> TransferError | None:
        """Release what is left of settled transfers, then the lists; return what NIXL refused."""
        problem = None
        for flight in reversed(tuple(self._traffic.flights)):
            refusal = flight.release()
            problem = problem or refusal
            if refusal is None:
                flight.retire(True)
        problem = problem or self._lists.release()
        if problem is None:
            self._traffic.end()
            self._finalizer.detach()
        return problem

    def __enter__(self) -> PreparedPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release(EXIT_SECONDS)
        else:
            self._leave(kind.__name__)

    def _leave(self, why: str) -> None:
        """Let nothing start any more, and release what can be, now or later; never waits, never raises."""
        if self._lists.open:
            self._traffic.closed = self._traffic.closed or "released"
            self._finalizer.detach()
            _let_go(self._traffic, self._lists)
            if self._lists.open:
                count = len(self._traffic.flights)
                log.warning(
                    "%s was left by %s with %d transfers; its lists go when these are over", repr(self), why, count
                )


_ALL = slice(None)


def known_sections(peers: Sequence[PreparedPeer], options: dict[str, Any]) -> None:
    """Make names of ``sections=``, if given, and refuse those that no pair of these peers moves."""
    if options.get("sections") is None:
        return
    options["sections"] = as_names(options["sections"], "sections")
    known = {name for peer in peers for ready in peer._ready if ready.pair for name in ready.pair.sections}
    for name in options["sections"]:
        if name not in known:
            names = ", ".join(repr(peer.name) for peer in peers)
            raise refused(
                PeerMismatchError(f"peer {names}: no section {name!r} is moved; sections are {few(sorted(known))}")
            )


def launched(agent: Agent, operation: str, shares: Sequence[Share], notify: bytes, owner: object) -> Transfer:
    """Start a request and return its Transfer, which keeps `owner` alive."""
    if not isinstance(notify, bytes):
        raise TypeError(f"notify must be bytes, got {notify!r:.80} ({type(notify).__name__})")
    for share in shares:
        if share.traffic.left:
            share.traffic.reap()
    silent = silent_backends(agent) if notify else ""
    if silent:
        raise refused(
            TransferError(
                f"notify= needs a backend that can notify, and this agent has {silent} alone: make it with "
                f'backends=["UCX", ...] too, or start without notify; "DONE" says that the bytes are there'
            )
        )
    flight = Flight(agent, operation, shares)
    try:
        flight.launch(notify)
    except BaseException:
        flight.retire(flight.try_release())
        raise
    return Transfer(flight, owner)


def release_peers(peers: Sequence[PreparedPeer], timeout: float) -> None:
    """Release peers, the last first, or refuse and leave all as it was."""
    peers = [peer for peer in peers if peer._lists.open]
    closed = [peer._traffic.closed for peer in peers]
    for peer in peers:
        peer._close("released")
    left = wait_while(lambda: len(set().union(*(peer._traffic.in_flight() for peer in peers))), timeout)
    if left:
        for peer, why in zip(peers, closed, strict=True):
            peer._close(why)
        names = ", ".join(repr(peer.name) for peer in peers)
        raise refused(TransferError(f"peer {names}: {left} transfers are still in flight; wait() for them first"))
    for peer in reversed(peers):
        problem = peer._give_back()
        if problem is not None:
            try:
                raise refused(problem)
            finally:
                del problem  # a frame that holds its own exception is a cycle


def _let_go(traffic: Traffic, lists: PeerLists) -> None:
    def try_release() -> bool:
        done = traffic.try_release() and lists.try_release()
        if done:
            traffic.end()
        return done

    drop(try_release)


def _drop_peer(traffic: Traffic, lists: PeerLists) -> None:
    _let_go(traffic, lists)
    warnings.warn(f"the prepared lists of peer {traffic.name!r} were never released", ResourceWarning, stacklevel=2)
