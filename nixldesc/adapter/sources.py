"""A whole request over all sources of a plan: one peer for each, one Transfer for all.

::

    request's blocks at source 0 ──┐                                     ┌── READ from "p0", who is told when its own
    request's blocks at source 2 ──┼── plan ── one Transfer ─────────────┤   bytes are there
    request's blocks here ─────────┘                                     └── READ from "p2", likewise
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from nixldesc import BlockIdError
from nixldesc.adapter.agent import Agent, refused
from nixldesc.adapter.flight import Share
from nixldesc.adapter.peer import BlockTables, PreparedPeer, known_sections, launched, release_peers
from nixldesc.adapter.ranges import Range, joined
from nixldesc.adapter.transfer import Transfer
from nixldesc.adapter.waiting import EXIT_SECONDS

__all__ = ["PreparedSources"]


class PreparedSources:
    """The prepared lists of all sources of a plan, made by ``prepare(agent, {source rank: peer name}, made)``.

    `peers` holds the :class:`PreparedPeer` of each rank that was named, for what concerns one of them (``start_ids``,
    ``abandon``); a rank that the plan takes nothing from has no lists. A context manager, which ends as a
    PreparedPeer does.

    >>> import numpy as np
    >>> from nixldesc import Layout, Region, plan
    >>> from nixldesc.adapter import prepare, register
    >>> from nixldesc.testing import LoopbackAgent
    >>> k, v, here = (np.arange(i, i + 32, dtype=np.uint8) for i in (0, 100, 200))
    >>> sources = {0: Layout([Region("k", k.ctypes.data, 8, 4, mem_type="DRAM")]),
    ...            1: Layout([Region("v", v.ctypes.data, 8, 4, mem_type="DRAM")])}
    >>> at = {"k": here.ctypes.data, "v": here.ctypes.data + 16}
    >>> mine = Layout([Region(name, addr, 8, 2, mem_type="DRAM") for name, addr in at.items()])
    >>> agents = [LoopbackAgent(name) for name in ("p0", "p1", "d")]
    >>> held = [register(agent, layout) for agent, layout in zip(agents, (*sources.values(), mine))]
    >>> d = agents[2]
    >>> [d.add_remote_agent(agent.get_agent_metadata()) for agent in agents[:2]]
    [b'p0', b'p1']
    >>> with prepare(d, {0: "p0", 1: "p1"}, plan(mine, sources)) as request_peers:
    ...     with request_peers.start({0: [[3]], 1: [[2]]}, [[1]], notify=b"request 7") as transfer:
    ...         transfer.wait(), transfer.peer, transfer.nbytes, here[8:16].tolist() == k[24:].tolist()
    ('DONE', 'p0, p1', 16, True)
    >>> [agent.get_new_notifs() for agent in agents[:2]]
    [{'d': [b'request 7']}, {'d': [b'request 7']}]
    >>> request_peers.abandon()  # after release, or when nothing is in flight, it leaves no doubt
    >>> request_peers.in_doubt
    ()
    >>> for registration in held:
    ...     registration.release()
    """

    __slots__ = ("_agent", "operation", "peers")

    def __init__(self, agent: Agent, peers: dict[int, PreparedPeer]) -> None:
        self._agent = agent
        self.operation = "READ"
        self.peers: Mapping[int, PreparedPeer] = MappingProxyType(peers)

    def __repr__(self) -> str:
        names = ", ".join(f"{rank}: {peer.name!r}" for rank, peer in self.peers.items())
        return f"<PreparedSources {{{names}}}, {self.operation}>"

    @property
    def in_doubt(self) -> tuple[Range, ...]:
        """What ``PreparedPeer.in_doubt`` says, of all sources together."""
        return tuple(joined(item for peer in self.peers.values() for item in peer.in_doubt))

    def start(
        self, src_blocks: Mapping[int, BlockTables], dst_blocks: BlockTables, *, notify: bytes = b"", **options: Any
    ) -> Transfer:
        """Start moving one request's blocks from all sources, as one Transfer.

        `src_blocks` maps each source rank of the plan to its block tables (what it holds for other ranks is not looked
        at); `options` are those of ``DlistPair.desc_ids``. Every handle is made before the first is posted. Each rank
        that was named gets `notify` once, when all bytes that it had to send are there (at once, if it sends none) and
        nothing of the request has failed so far; the Transfer is "DONE" when all of them are.

        Raises as ``PreparedPeer.start`` does, and BlockIdError for a source without tables.
        """
        missing = [rank for rank, peer in self.peers.items() if peer.pairs and rank not in src_blocks]
        if missing:
            ranks = ", ".join(map(str, missing))
            raise refused(BlockIdError(f"src_blocks has no tables of source {ranks}; give the request's own, or []"))
        known_sections(tuple(self.peers.values()), options)
        shares = [
            Share(peer._traffic, peer._legs(src_blocks.get(rank, ()), dst_blocks, options))
            for rank, peer in self.peers.items()
        ]
        return launched(self._agent, self.operation, shares, notify, self)

    def release(self, timeout: float = 0.0) -> None:
        """Release all lists, as ``PreparedPeer.release`` does; those of all sources or none."""
        release_peers(tuple(self.peers.values()), timeout)

    def abandon(self) -> None:
        """Give up on all sources; ``peers[rank].abandon()`` on one, which ends the requests that it takes part in."""
        for peer in self.peers.values():
            peer.abandon()

    def __enter__(self) -> PreparedSources:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release(EXIT_SECONDS)
        else:
            for peer in reversed(tuple(self.peers.values())):
                peer._leave(kind.__name__)
