"""From a plan to prepared lists: what `prepare` takes, and who gets which lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload

from nixldesc import DlistPair, Layout, PeerMismatchError, Plan
from nixldesc._check import as_int, as_name, brief
from nixldesc.adapter.agent import Agent, Route, check_mem_type, refused
from nixldesc.adapter.legs import Ready
from nixldesc.adapter.lists import PeerLists, drop
from nixldesc.adapter.peer import LayoutPair, PreparedPeer
from nixldesc.adapter.sources import PreparedSources

__all__ = ["prepare"]

Pairs: TypeAlias = Plan | DlistPair | LayoutPair | Sequence[DlistPair | LayoutPair]


@overload
def prepare(
    agent: Agent,
    peer_name: str | bytes,
    plan_or_pairs: Pairs,
    *,
    local: Literal["dst", "src"] = "dst",
    dense_limit: int = 1 << 30,
) -> PreparedPeer: ...


@overload
def prepare(
    agent: Agent,
    peer_name: Mapping[int, str] | Mapping[int, bytes],
    plan_or_pairs: Plan,
    *,
    local: Literal["dst", "src"] = "dst",
    dense_limit: int = 1 << 30,
) -> PreparedSources: ...


def prepare(
    agent: Agent,
    peer_name: str | bytes | Mapping[int, str] | Mapping[int, bytes],
    plan_or_pairs: Pairs,
    *,
    local: Literal["dst", "src"] = "dst",
    dense_limit: int = 1 << 30,
) -> PreparedPeer | PreparedSources:
    """Prepare all lists of one peer, or of all sources of a plan, on both sides; once per peer, not per request.

    `plan_or_pairs`: ``plan[rank]`` (the DlistPairs with the rank whose agent is `peer_name`; empty where there is
    nothing to send), a Plan of one rank, one DlistPair, or layouts of unlike structure as ``(src, dst)`` for
    ``start_ids`` alone. `local` says which side is this agent's: "dst" posts READ, "src" posts WRITE.

    With ``{source rank: peer name}`` and a whole Plan the result is a :class:`PreparedSources`, whose ``start`` moves
    a request from all sources as one Transfer. Ranks that the plan takes nothing from may be named too: they only get
    the message of each request, for a sender that frees its blocks when all readers have said so. This agent is the
    destination then; a writer prepares its own entry of each destination's plan.

    The agent's own list is prepared once per distinct Layout and shared by all its peers. Where NIXL takes no N x 5
    list (before 1.5), N x 3 is prepared instead, of at most `dense_limit` bytes (24 per descriptor).

    TransferError: NIXL refused a list (memory not registered, metadata of the peer not added or older than its
    registration), or the limit; then no list is left. PeerMismatchError: a Plan of several ranks for one peer, a
    source rank without a name, or a layout with several memory types.

    >>> import numpy as np
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
    if local not in ("dst", "src"):
        raise ValueError(f"local must be 'dst' or 'src' (whose memory is this agent's), got {local!r:.40}")
    dense_limit = as_int(dense_limit, "dense_limit", TypeError)
    if isinstance(peer_name, Mapping):
        return _prepare_sources(agent, peer_name, plan_or_pairs, local, dense_limit)
    return _prepare_peer(agent, _as_peer_name(peer_name, "peer_name"), _as_pairs(plan_or_pairs), local, dense_limit)


def _prepare_sources(
    agent: Agent, names: Mapping[int, Any], made: Any, local: str, dense_limit: int
) -> PreparedSources:
    if local != "dst":
        raise ValueError("several sources have one reader, local='dst'; a writer prepares its own entry of each plan")
    if not isinstance(made, Mapping):
        raise TypeError(f"with peers by source rank a whole Plan is expected, got {brief(made)}")
    named = {rank: _as_peer_name(name, f"peer name of source {rank}") for rank, name in names.items()}
    missing = [rank for rank in made if rank not in named]
    if missing:
        ranks = ", ".join(map(str, missing))
        raise refused(
            PeerMismatchError(f"no peer name for source {ranks}; the plan takes from {', '.join(map(str, made))}")
        )
    peers: dict[int, PreparedPeer] = {}
    try:
        for rank, name in named.items():
            peers[rank] = _prepare_peer(agent, name, made.get(rank, ()), local, dense_limit)
    except BaseException:
        for peer in reversed(tuple(peers.values())):
            peer._leave("a failed prepare")
        raise
    return PreparedSources(agent, peers)


def _prepare_peer(agent: Agent, name: str, given: Sequence[Any], local: str, dense_limit: int) -> PreparedPeer:
    pairs = [(item, *_layouts(item)) for item in given]
    routes = [Route.of(_mem_type(agent, "src", src), _mem_type(agent, "dst", dst)) for _, src, dst in pairs]
    lists = PeerLists(agent, name, dense_limit)
    ready = []
    try:
        for (item, src, dst), route in zip(pairs, routes, strict=True):
            mine, theirs = (dst, src) if local == "dst" else (src, dst)
            handles = lists.local(mine), lists.remote(theirs)
            ready.append(Ready(item if isinstance(item, DlistPair) else None, src, dst, route, *handles))
    except BaseException:
        if lists.release() is not None:
            drop(lists.try_release)
        raise
    return PreparedPeer(agent, name, local, lists, ready)


def _as_peer_name(name: Any, what: str) -> str:
    return as_name(name.decode() if isinstance(name, bytes) else name, what)


def _as_pairs(given: Any) -> Sequence[Any]:
    """Read what `prepare` takes as a sequence of DlistPair or (src, dst)."""
    if isinstance(given, DlistPair):
        return (given,)
    if isinstance(given, Mapping):
        if not given:
            return ()
        if len(given) != 1:
            ranks = ", ".join(map(str, given))
            raise refused(
                PeerMismatchError(
                    f"a peer is one agent, and the plan has {len(given)} source ranks ({ranks}): prepare each with "
                    "plan[rank], or plan.get(rank, ()), or all of them with {rank: peer name, ...}"
                )
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


def _mem_type(agent: Agent, side: str, layout: Layout) -> str:
    """A list of NIXL has one memory type and at least one descriptor."""
    mems = list(dict.fromkeys(region.mem_type for region in layout.regions))
    if not mems:
        raise refused(PeerMismatchError(f"the {side} layout has no regions, there is nothing to prepare"))
    if len(mems) > 1:
        raise refused(
            PeerMismatchError(
                f"the {side} layout has regions in {' and '.join(mems)}, a list has one memory type: prepare a plan, "
                "or the parts that layout.by_mem_type() gives"
            )
        )
    check_mem_type(agent, f"the {side} layout", mems[0])
    return mems[0]
