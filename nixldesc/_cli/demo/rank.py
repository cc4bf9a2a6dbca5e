"""What one TP rank of either engine is: an agent, registered memory, and what it tells the other engine."""

from __future__ import annotations

import base64
import os
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nixldesc import DlistPair, Layout, plan
from nixldesc._cli.demo.model import Engine, Order, Request
from nixldesc._cli.demo.wire import PATIENCE
from nixldesc._memory import forget
from nixldesc.adapter import PreparedPeer, Transfer, prepare, register
from nixldesc.adapter.waiting import wait_while
from nixldesc.request.lists import BlockTables

__all__ = [
    "REPEATS",
    "Moved",
    "Peer",
    "Rank",
    "Told",
    "hear_all",
    "listen",
    "meet",
    "move",
    "open_ranks",
    "prepare_peers",
    "why_no_nixl",
]


def why_no_nixl() -> str:
    """Return why nixl cannot be used here; "" where it can."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    try:
        import nixl._api  # noqa: F401
    except Exception as error:  # a wheel for another CUDA fails with more than ImportError
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def _make_agent(kind: str, name: str) -> Any:
    """Return an agent: of real NIXL (UCX, with telemetry) or, of `kind` "loopback", the stand-in."""
    if kind == "loopback":
        from nixldesc.testing import LoopbackAgent

        return LoopbackAgent(name)
    from nixl._api import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(backends=["UCX"], capture_telemetry=True))


@dataclass(frozen=True, slots=True, eq=False)
class Rank:
    """A TP rank: its memory in host DRAM, and the layout that says what it means."""

    tp_rank: int
    agent: Any
    memory: NDArray[np.uint8]
    layout: Layout

    def hello(self) -> dict[str, Any]:
        """Return what the other engine must know: the agent's metadata and the layout, as plain data."""
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "layout": self.layout.to_dict()}


def open_ranks(kind: str, engine: Engine, untouched: int, handles: ExitStack) -> list[Rank]:
    """Return the engine's ranks, memory filled with `untouched` and registered until `handles` close."""
    ranks = []
    for tp_rank in range(engine.tp_size):
        last = engine.layout(tp_rank, 0).regions[-1]
        size = last.base_addr + last.num_blocks * last.block_stride
        memory = np.full(size, untouched, np.uint8)
        layout = engine.layout(tp_rank, memory.ctypes.data)
        agent = _make_agent(kind, f"{engine.name}-{tp_rank}")
        handles.enter_context(register(agent, layout, [(memory.ctypes.data, size, 0, "DRAM")]))
        ranks.append(Rank(tp_rank, agent, memory, layout))
    return ranks


def meet(ranks: list[Rank], hellos: list[dict[str, Any]]) -> dict[int, Layout]:
    """Introduce the other engine's agents to ours; return its layouts by TP rank."""
    for rank in ranks:
        for hello in hellos:
            rank.agent.add_remote_agent(base64.b64decode(hello["metadata"]))
    return {tp_rank: Layout.from_dict(hello["layout"]) for tp_rank, hello in enumerate(hellos)}


class Peer(NamedTuple):
    """What one of our ranks has prepared with one of theirs, and what it took."""

    mine: Rank
    theirs: int
    planned: Sequence[DlistPair]
    prepared: PreparedPeer
    plan_seconds: float
    prepare_seconds: float

    def figures(self) -> dict[str, Any]:
        """Return what the report shows of it."""
        pairs = self.prepared.pairs
        return {
            "posts": self.prepared.operation,
            "mine": self.mine.tp_rank,
            "theirs": self.theirs,
            "rows": [sum(len(pair[side].table()) for pair in pairs) for side in (0, 1)],
            "descs": [sum(pair[side].num_descs for pair in pairs) for side in (0, 1)],
            "plan": self.plan_seconds,
            "prepare": self.prepare_seconds,
        }


def prepare_peers(
    ranks: Sequence[Rank], local: Literal["dst", "src"], others: dict[int, Layout], handles: ExitStack
) -> list[Peer]:
    """Plan for each destination rank, prepare what falls to each of our ranks, the `local` side, until `handles` close.

    A plan takes as long as for a first peer of its kind, which nothing is remembered of.
    """
    ours = {rank.tp_rank: rank.layout for rank in ranks}
    dsts, srcs, name = (ours, others, "prefill") if local == "dst" else (others, ours, "decode")
    peers = []
    for dst_rank, dst in dsts.items():
        make = partial(plan, dst, srcs, dst_rank=dst_rank, dst_size=len(dsts))
        made, seconds = make(), min(timeit.repeat(make, forget, number=1, repeat=REPEATS))
        for src_rank, pairs in made.items():
            mine, theirs = (dst_rank, src_rank) if local == "dst" else (src_rank, dst_rank)
            began = time.perf_counter()
            prepared = handles.enter_context(prepare(ranks[mine].agent, f"{name}-{theirs}", pairs, local=local))
            peers.append(Peer(ranks[mine], theirs, pairs, prepared, seconds, time.perf_counter() - began))
    return peers


#: Notifications, by our TP rank and text.
Told: TypeAlias = "Counter[tuple[int, str]]"


def listen(ranks: Iterable[Rank], told: Told) -> None:
    """Count the notifications that have come."""
    for rank in ranks:
        for messages in rank.agent.get_new_notifs().values():
            told.update((rank.tp_rank, message.decode()) for message in messages)


def hear_all(ranks: Iterable[Rank], told: Told, note: str, peers: Mapping[int, int]) -> None:
    """Wait until each of our ranks has been told `note` by so many peers: only then is a move over for it."""
    due = {rank: number * REPEATS for rank, number in peers.items()}

    def silent() -> int:
        listen(ranks, told)
        return sum(told[rank, note] < number for rank, number in due.items())

    if wait_while(silent, PATIENCE):
        got = {rank: told[rank, note] for rank in due}
        raise TimeoutError(f"notification {note!r}: {due} are due by TP rank, {got} came")


#: A busy machine may interrupt any one transfer or plan; times are those of the quickest of so many.
REPEATS = 3


class Moved(NamedTuple):
    """What NIXL's telemetry says of one request: wire operations and bytes; and the seconds it took."""

    ops: int
    nbytes: int
    seconds: float


def move(
    peers: Sequence[Peer], request: Request, order: Order, src_blocks: BlockTables, dst_blocks: BlockTables
) -> Moved:
    """Move a request between all `peers`, which are told so each time; return the quickest of REPEATS."""
    note = request.note(order).encode()

    def start(peer: Peer) -> Transfer:
        return peer.prepared.start(src_blocks, dst_blocks, tokens=request.tokens, notify=note, order=order)

    return min((_run(start, peers) for _ in range(REPEATS)), key=lambda moved: moved.seconds)


def _run(start: Callable[[Peer], Transfer], peers: Sequence[Peer]) -> Moved:
    """Start a transfer with each peer, and wait for all of them."""
    ops = nbytes = 0
    began = time.perf_counter()
    with ExitStack() as handles:
        started = [(peer.mine.agent, handles.enter_context(start(peer))) for peer in peers]
        for _, transfer in started:
            if transfer.wait(PATIENCE) != "DONE":
                raise transfer.error or TimeoutError(f"{transfer!r} after {PATIENCE:.0f} s")
        seconds = time.perf_counter() - began
        for agent, transfer in started:
            for told in map(agent.get_xfer_telemetry, transfer.handles):
                ops, nbytes = ops + told.descCount, nbytes + told.totalBytes
    return Moved(ops, nbytes, seconds)
