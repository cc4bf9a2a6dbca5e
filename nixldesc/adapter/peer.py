"""All prepared lists of one peer, and the transfers that start from them; see :mod:`nixldesc.adapter`."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc import BlockIdError, Blocks, DlistPair, Layout, PeerMismatchError, Plan, TransferError
from nixldesc._check import as_int, as_name
from nixldesc.adapter.lists import PeerLists, drop
from nixldesc.adapter.transfer import EXIT_SECONDS, Agent, Flight, Leg, Route, Transfer, wait_until
from nixldesc.memory.ids import BlockIds
from nixldesc.request.moves import id_ops, pair_ids

__all__ = ["PreparedPeer", "prepare"]

BlockTables: TypeAlias = Sequence[BlockIds | Blocks]
LayoutPair: TypeAlias = tuple[Layout, Layout]
Pairs: TypeAlias = Plan | DlistPair | LayoutPair | Sequence[DlistPair | LayoutPair]


class _Ready(NamedTuple):
    """One pair of layouts with both lists prepared; `pair` is None where the two are of unlike structure."""

    pair: DlistPair | None
    src: Layout
    dst: Layout
    route: Route
    local_list: Any
    remote_list: Any


class PreparedPeer:
    """All prepared lists of one peer, made by ``prepare``; a context manager, at whose end they are released.

    `name` is the peer's agent name, `operation` "READ" or "WRITE". Dropped unreleased it costs a ResourceWarning; its
    lists go when nothing of it is in flight.

    >>> from nixldesc import Region
    >>> from nixldesc.adapter import register
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

    __slots__ = ("__weakref__", "_abandoned", "_agent", "_closed", "_finalizer", "_flights", "_lists", "_local_is_dst",
                 "_lock", "_ready", "name", "operation")  # fmt: skip

    def __init__(self, agent: Agent, name: str, local: str, lists: PeerLists, ready: Sequence[_Ready]) -> None:
        self.name = name
        self.operation = "READ" if local == "dst" else "WRITE"
        self._agent = agent
        self._local_is_dst = local == "dst"
        self._lists = lists
        self._ready = tuple(ready)
        self._lock = Lock()
        self._closed = False
        self._flights: dict[Flight, None] = {}
        self._abandoned: deque[Flight] = deque()
        self._finalizer = weakref.finalize(self, _drop_peer, name, lists, self._flights)

    def __repr__(self) -> str:
        state = f"{len(self._flights)} transfers" if self._finalizer.alive else "released"
        return f"<PreparedPeer {self.name!r}, {self.operation}, {len(self._ready)} list pairs, {state}>"

    @property
    def pairs(self) -> tuple[LayoutPair, ...]:
        """The ``(src, dst)`` layouts whose lists are prepared, in the order that ``start_ids`` counts them."""
        return tuple((ready.src, ready.dst) for ready in self._ready)

    def start(
        self,
        src_blocks: BlockTables,
        dst_blocks: BlockTables,
        *,
        notify: bytes = b"",
        order: Literal["merge", "given"] = "merge",
        null_block: int | None = None,
        regions: slice = slice(None),
    ) -> Transfer:
        """Start moving one request's blocks; the tables and options are those of ``DlistPair.desc_ids``.

        Every handle is made before the first is posted. The peer gets `notify` once, when all bytes are there, and
        never after a failure; a request with nothing to move needs no handle and notifies at once.

        BlockIdError: the tables do not fit. TransferError: a handle could not be made (nothing has moved), or the peer
        is released. What fails later is for the Transfer to tell, which never raises for it: ``poll()`` is "ERR".
        """
        legs = []
        for ready in self._ready:
            if ready.pair is None:
                raise TransferError(
                    f"peer {self.name!r} was prepared from layouts of unlike structure, which block tables cannot "
                    "address; use start_ids"
                )
            src_ids, dst_ids = ready.pair.desc_ids(
                src_blocks, dst_blocks, order=order, null_block=null_block, regions=regions
            )
            if len(src_ids):
                legs.append(self._leg(ready, src_ids, dst_ids))
        return self._launch(legs, notify)

    def start_ids(self, pair_index: int, src_ids: BlockIds, dst_ids: BlockIds, *, notify: bytes = b"") -> Transfer:
        """Start moving descriptors by their ids in ``pairs[pair_index]``, in the order given.

        The ids are integers in one dimension, an int32 array at best. They are checked: as many on both sides, in
        range, equal lengths at each position (BlockIdError).
        """
        pair_index = as_int(pair_index, "pair_index", TypeError)
        if not 0 <= pair_index < len(self._ready):
            raise BlockIdError(f"pair_index is {pair_index}, peer {self.name!r} has {len(self._ready)} list pairs")
        ready = self._ready[pair_index]
        # Copies, so that what is checked is what NIXL gets, whatever another thread does to the caller's arrays.
        src, dst = (ids.copy() for ids in pair_ids(src_ids, dst_ids))
        id_ops(ready.src, ready.dst, (src, dst))
        return self._launch([self._leg(ready, src, dst)] if len(src) else [], notify)

    def _leg(self, ready: _Ready, src_ids: NDArray[np.int32], dst_ids: NDArray[np.int32]) -> Leg:
        mine, theirs = (dst_ids, src_ids) if self._local_is_dst else (src_ids, dst_ids)
        return Leg(ready.route, ready.local_list, mine, ready.remote_list, theirs)

    def _launch(self, legs: Sequence[Leg], notify: bytes) -> Transfer:
        if not isinstance(notify, bytes):
            raise TypeError(f"notify must be bytes, got {notify!r:.80} ({type(notify).__name__})")
        if self._abandoned:
            self._reap()
        flight = Flight(self._agent, self.name, self.operation)
        try:
            flight.launch(legs, notify, self._admit)
        except BaseException:
            self._retire(flight, flight.try_release())
            raise
        return Transfer(flight, self._retire)

    def _admit(self, flight: Flight) -> None:
        with self._lock:
            if self._closed:
                raise TransferError(f"peer {self.name!r} was released; nothing can be started any more")
            self._flights[flight] = None

    def _retire(self, flight: Flight, released: bool) -> None:
        """A transfer has been released, or dropped while that was not possible yet."""
        if released:
            self._flights.pop(flight, None)
        else:
            self._abandoned.append(flight)

    def _reap(self) -> None:
        for _ in range(len(self._abandoned)):
            try:
                flight = self._abandoned.popleft()
            except IndexError:  # another thread is at it too
                return
            self._retire(flight, flight.try_release())

    def release(self, timeout: float = 0.0) -> None:
        """Release all lists, and what is left of settled transfers, the last made first; again does nothing.

        Waits up to `timeout` seconds for transfers in flight, then refuses (TransferError) and leaves everything as it
        was: a list is never released under a transfer.
        """
        if not self._finalizer.alive:
            return
        with self._lock:
            self._closed = True
        if not wait_until(self._settled, timeout):
            with self._lock:
                self._closed = False
            count = sum(not flight.settled() for flight in tuple(self._flights))
            raise TransferError(f"peer {self.name!r}: {count} transfers are still in flight; wait() for them first")
        refused = self._release_all()
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # a frame that holds its own exception is a cycle
        self._finalizer.detach()

    def _release_all(self) -> TransferError | None:
        refused: TransferError | None = None
        for flight in reversed(tuple(self._flights)):
            problem = flight.release()
            refused = refused or problem
            if problem is None:
                self._flights.pop(flight, None)
        return refused or self._lists.release()

    def _settled(self) -> bool:
        return not sum(not flight.settled() for flight in tuple(self._flights))  # asks them all: that moves them on

    def __enter__(self) -> PreparedPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(EXIT_SECONDS)


def _drop_peer(name: str, lists: PeerLists, flights: dict[Flight, None]) -> None:
    drop(lambda: not _in_use(flights) and lists.try_release())
    warnings.warn(f"the prepared lists of peer {name!r} were never released", ResourceWarning, stacklevel=2)


def _in_use(flights: dict[Flight, None]) -> int:
    return sum(not flight.try_release() for flight in reversed(tuple(flights)))


def prepare(
    agent: Agent,
    peer_name: str | bytes,
    plan_or_pairs: Pairs,
    *,
    local: Literal["dst", "src"] = "dst",
    dense_limit: int = 1 << 30,
) -> PreparedPeer:
    """Prepare all lists of one peer, on both sides; once per peer, not per request.

    `plan_or_pairs`: ``plan[rank]`` (the DlistPairs with the rank whose agent is `peer_name`; empty where there is
    nothing to send), a Plan of one rank, one DlistPair, or layouts of unlike structure as ``(src, dst)`` for
    ``start_ids`` alone. `local` says which side is this agent's: "dst" posts READ, "src" posts WRITE.

    The agent's own list is prepared once per distinct Layout and shared by all its peers. Where NIXL takes no N x 5
    list (before 1.5), N x 3 is prepared instead, of at most `dense_limit` bytes (24 per descriptor).

    TransferError: NIXL refused a list (memory not registered, metadata of the peer not added or older than its
    registration), or the limit; then no list is left. PeerMismatchError: a Plan of several ranks, or a layout with
    several memory types.

    >>> from nixldesc import Region
    >>> from nixldesc.adapter import register
    >>> from nixldesc.testing import LoopbackAgent
    >>> buffer, rows = np.arange(64, dtype=np.uint8), np.zeros(8, np.uint8)
    >>> experts = Layout([Region("experts", buffer.ctypes.data, 8, 8, mem_type="DRAM")])
    >>> slot = Layout([Region("slot", rows.ctypes.data, 8, 1, mem_type="DRAM")])
    >>> agent = LoopbackAgent("a")
    >>> with register(agent, experts), register(agent, slot):
    ...     with prepare(agent, "a", (experts, slot), local="dst") as peer:
    ...         with peer.start_ids(0, np.array([5]), np.array([0])) as transfer:
    ...             transfer.wait(), rows.tolist()
    ('DONE', [40, 41, 42, 43, 44, 45, 46, 47])
    """
    name = as_name(peer_name.decode() if isinstance(peer_name, bytes) else peer_name, "peer_name")
    if local not in ("dst", "src"):
        raise ValueError(f"local must be 'dst' or 'src' (whose memory is this agent's), got {local!r:.40}")
    dense_limit = as_int(dense_limit, "dense_limit", TypeError)
    pairs = [(item, *_layouts(item)) for item in _as_pairs(plan_or_pairs)]
    routes = [Route.of(_mem_type("src", src), _mem_type("dst", dst)) for _, src, dst in pairs]
    lists = PeerLists(agent, name, dense_limit)
    ready = []
    try:
        for (item, src, dst), route in zip(pairs, routes, strict=True):
            mine, theirs = (dst, src) if local == "dst" else (src, dst)
            handles = lists.local(mine), lists.remote(theirs)
            ready.append(_Ready(item if isinstance(item, DlistPair) else None, src, dst, route, *handles))
    except BaseException:
        if lists.release() is not None:
            drop(lists.try_release)
        raise
    return PreparedPeer(agent, name, local, lists, ready)


def _as_pairs(given: Any) -> Sequence[Any]:
    """Read what `prepare` takes as a sequence of DlistPair or (src, dst)."""
    if isinstance(given, DlistPair):
        return (given,)
    if isinstance(given, Mapping):
        if not given:
            return ()
        if len(given) != 1:
            ranks = ", ".join(map(str, given))
            raise PeerMismatchError(
                f"a peer is one agent, and the plan has {len(given)} source ranks ({ranks}): prepare each with "
                "plan[rank], or plan.get(rank, ())"
            )
        (given,) = given.values()
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise TypeError(f"expected a Plan, DlistPairs or (src, dst) layouts, got {given!r:.80}")
    if len(given) == 2 and isinstance(given[0], Layout):
        return (given,)
    return given


def _layouts(item: Any) -> LayoutPair:
    if isinstance(item, DlistPair):
        return item.src, item.dst
    if isinstance(item, Sequence) and len(item) == 2 and all(isinstance(side, Layout) for side in item):
        return item[0], item[1]
    raise TypeError(f"expected a DlistPair or (src Layout, dst Layout), got {item!r:.80} ({type(item).__name__})")


def _mem_type(side: str, layout: Layout) -> str:
    """A list of NIXL has one memory type and at least one descriptor."""
    mems = list(dict.fromkeys(region.mem_type for region in layout.regions))
    if not mems:
        raise PeerMismatchError(f"the {side} layout has no regions, there is nothing to prepare")
    if len(mems) > 1:
        raise PeerMismatchError(
            f"the {side} layout has regions in {' and '.join(mems)}, a list has one memory type: prepare a plan, or "
            "the parts that layout.by_mem_type() gives"
        )
    return mems[0]
