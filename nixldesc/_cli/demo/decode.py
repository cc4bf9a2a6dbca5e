"""The decode engine: plans, prepares, pulls each request in both orders, and verifies every byte of its memory."""

from __future__ import annotations

import itertools
import timeit
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc import Blocks, DlistPair
from nixldesc._cli.demo.model import DECODE, KINDS, REQUESTS, Order, Request, Tables, draw_tables
from nixldesc._cli.demo.rank import Moved, Peer, Rank, Told, hear_all, meet, move, open_ranks, prepare_peers
from nixldesc._cli.demo.truth import write_request
from nixldesc._cli.demo.wire import Channel
from nixldesc._cli.screen import count
from nixldesc.request.lists import BlockTables

__all__ = ["ID_REPEATS", "decode"]

_UNTOUCHED = 0x55
_ORDERS: tuple[Order, ...] = ("given", "merge")
#: Ids are computed this often, and the quickest time is shown: the first time also warms caches.
ID_REPEATS = 20


class _Decode:
    """The engine after the handshake."""

    def __init__(self, ranks: list[Rank], peers: list[Peer], src_tables: Tables) -> None:
        self.ranks, self.peers = ranks, peers
        self.src_tables, self.dst_tables = src_tables, draw_tables(DECODE)
        self.pairs = [pair for peer in peers for pair in peer.planned]
        self.told: Told = Counter()

    def lists(self, request: Request) -> tuple[BlockTables, BlockTables]:
        return self.src_tables[request.number], request.given(DECODE, self.dst_tables[request.number])

    def pull(self, request: Request, order: Order) -> Moved:
        """Read a request from all sources to all ranks; each source hears of it from each of its readers."""
        return move(self.peers, request, order, *self.lists(request))

    def take_push(self, request: Request, order: str, channel: Channel) -> Moved:
        """Have prefill write a request, and wait until each of our ranks has heard from each of its writers."""
        given = [item if isinstance(item, Blocks) else Blocks(item) for item in self.lists(request)[1]]
        blocks = [[list(item.ids), item.skip] for item in given]
        channel.send({"step": "push", "request": request.number, "order": order, "blocks": blocks})
        told = channel.receive("pushed")
        hear_all(self.ranks, self.told, request.note(order), Counter(peer.mine.tp_rank for peer in self.peers))
        return Moved(*told["moved"])

    def facts(self, request: Request) -> dict[str, Any]:
        """Return what a request is, how many descriptor ids (both sides), and the seconds that computing them takes."""
        lists = self.lists(request)

        def ids() -> list[Any]:
            return [pair.desc_ids(*lists, tokens=request.tokens) for pair in self.pairs]

        seconds = min(timeit.repeat(ids, number=1, repeat=ID_REPEATS))
        return asdict(request) | {"ids": sum(len(a) + len(b) for a, b in ids()), "id_seconds": seconds}

    def ops_by_kind(self) -> list[dict[str, Any]]:
        """Return, for each kind of layer, its rows, ids and wire operations over all requests, by the merge rule."""
        found = {kind: dict.fromkeys(("rows", "ids", *_ORDERS), 0) for kind in KINDS}
        for pair in self.pairs:
            for kind, part in _parts(pair).items():
                found[kind]["rows"] += part.stop - part.start
                for request, order in itertools.product(REQUESTS, _ORDERS):
                    how: Any = {"order": order, "tokens": request.tokens, "regions": part}
                    src_ids, dst_ids = pair.desc_ids(*self.lists(request), **how)
                    found[kind][order] += pair.merged_ops(src_ids, dst_ids)
                    found[kind]["ids"] += len(src_ids) + len(dst_ids) if order == "merge" else 0
        return [{"kind": kind, **figures} for kind, figures in found.items()]


def decode(kind: str, channel: Channel, tell: Callable[[str], None]) -> dict[str, Any]:
    """Be the decode engine and return the figures of the report; `kind` of agents, `tell` what is being done now."""
    with ExitStack() as handles:
        tell(f"making {DECODE.tp_size} agents and registering memory")
        ranks = open_ranks(kind, DECODE, _UNTOUCHED, handles)
        channel.send({"step": "hello", "ranks": [rank.hello() for rank in ranks]})
        hello = channel.receive("hello")
        srcs = meet(ranks, hello["ranks"])
        tell("planning and preparing the pull")
        peers = prepare_peers(ranks, "dst", srcs, handles)
        engine = _Decode(ranks, peers, hello["tables"])
        requests = [engine.facts(request) for request in REQUESTS]
        tell("working out what every byte must be")
        expected = [_expected(rank, engine.dst_tables) for rank in ranks]
        wrong: list[str] = []
        for order in _ORDERS:
            _move_all(engine, requests, order, channel, tell)
            tell(f"verifying every byte, {order} order")
            for rank, truth in zip(ranks, expected, strict=True):
                wrong += _differences(rank, truth, order)
                rank.memory[:] = _UNTOUCHED
        channel.send({"step": "bye"})
        bye = channel.receive("bye")
        if not bye["unchanged"]:
            wrong.append("prefill's memory has changed, and nobody was to write there")
        kinds = engine.ops_by_kind()
        return {
            "peers": [peer.figures() for peer in peers] + bye["peers"],
            "requests": requests,
            "kinds": kinds,
            "compared": sum(rank.memory.nbytes for rank in ranks) * len(_ORDERS),
            "heard": bye["heard"],
            "wrong": wrong + _disagreements(requests, kinds),
        }


def _move_all(
    engine: _Decode, requests: list[dict[str, Any]], order: Order, channel: Channel, tell: Callable[[str], None]
) -> None:
    """Move every request in one order, and note what it took; at the end prefill has heard of every read."""
    for request, facts in zip(REQUESTS, requests, strict=True):
        tell(f"request {request.number}: {request.how} in {order} order")
        pushed = request.how == "WRITE"
        moved = engine.take_push(request, order, channel) if pushed else engine.pull(request, order)
        facts[order] = moved._asdict()
    reads = [request.number for request in REQUESTS if request.how == "READ"]
    channel.send({"step": "read", "order": order, "requests": reads})
    channel.receive("heard")


def _parts(pair: DlistPair) -> dict[str, slice]:
    """Where the regions of each kind of layer stand in a pair; they are neighbours, as in the layout."""
    kinds = [dst.partition(".")[0] for _, dst, _ in pair.origin]
    return {kind: slice(kinds.index(kind), kinds.index(kind) + kinds.count(kind)) for kind in dict.fromkeys(kinds)}


def _expected(rank: Rank, tables: Tables) -> NDArray[np.uint8]:
    """Return what the rank's memory must be: each request's tokens behind its cached prefix, all else untouched."""
    truth = np.full_like(rank.memory, _UNTOUCHED)
    for request in REQUESTS:
        write_request(truth, DECODE, rank.tp_rank, request, tables[request.number], request.cached, request.prefilled)
    return truth


def _differences(rank: Rank, truth: NDArray[np.uint8], order: str) -> list[str]:
    at = np.flatnonzero(rank.memory != truth)
    if not len(at):
        return []
    address = rank.memory.ctypes.data + int(at[0])
    region = [region for region in rank.layout.regions if region.base_addr <= address][-1]
    block, byte = divmod(address - region.base_addr, region.block_stride)
    got, due = int(rank.memory[at[0]]), int(truth[at[0]])
    return [
        f"{order} order, decode rank {rank.tp_rank}: {count(len(at), 'byte')} wrong; the first is byte {byte:,} of "
        f"block {block} of region {region.name!r}: {got:#04x}, must be {due:#04x}"
    ]


def _disagreements(requests: list[dict[str, Any]], kinds: list[dict[str, Any]]) -> list[str]:
    """NIXL's count of wire operations and that of ``merged_ops`` are to be the same."""
    found = []
    for order in _ORDERS:
        nixl, ours = sum(facts[order]["ops"] for facts in requests), sum(facts[order] for facts in kinds)
        if nixl != ours:
            found.append(f"{order} order: NIXL counts {nixl:,} wire operations, merged_ops {ours:,}")
    return found
