"""The prefill engine: fills its blocks, lends them until every reader has been heard, pushes when asked to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from zlib import crc32

from nixldesc import Blocks, Layout, reader_counts
from nixldesc._cli.demo.model import PREFILL, REQUESTS, draw_tables
from nixldesc._cli.demo.rank import Peer, Rank, Told, hear_all, listen, meet, move, open_ranks, prepare_peer, time_plan
from nixldesc._cli.demo.truth import write_request
from nixldesc._cli.demo.wire import Channel

__all__ = ["prefill"]

_UNTOUCHED = 0xAA


def prefill(kind: str, channel: Channel, tell: Callable[[str], None]) -> dict[str, Any]:
    """Be the prefill engine until decode says goodbye; `kind` of agents, `tell` what is being done now."""
    with ExitStack() as handles:
        tell(f"making {PREFILL.tp_size} agents and registering memory")
        ranks = open_ranks(kind, PREFILL, _UNTOUCHED, handles)
        tables = draw_tables(PREFILL)
        for request in REQUESTS:
            tell(f"prefilling request {request.number}, {request.tokens:,} tokens")
            for rank in ranks:
                write_request(rank.memory, PREFILL, rank.tp_rank, request, tables[request.number], 0, request.prefilled)
        before = [crc32(rank.memory.data) for rank in ranks]
        channel.send({"step": "hello", "ranks": [rank.hello() for rank in ranks], "tables": tables})
        dsts = meet(ranks, channel.receive("hello")["ranks"])
        tell("planning and preparing the push")
        peers = _prepare(ranks, dsts, handles)
        readers = reader_counts(list(dsts.values()), {rank.tp_rank: rank.layout for rank in ranks})
        heard = _serve(ranks, peers, tables, readers, channel, tell)
        unchanged = before == [crc32(rank.memory.data) for rank in ranks]
        channel.send({"step": "bye", "unchanged": unchanged, "heard": heard, "peers": [p.figures() for p in peers]})
    return {}


def _prepare(ranks: list[Rank], dsts: dict[int, Layout], handles: ExitStack) -> list[Peer]:
    """Plan for each reader, and take what falls to each of our ranks."""
    srcs = {rank.tp_rank: rank.layout for rank in ranks}
    peers = []
    for dst_rank, dst in dsts.items():
        made, seconds = time_plan(dst, srcs, dst_rank, len(dsts))
        for rank in ranks:
            if rank.tp_rank in made:
                name, pairs = f"decode-{dst_rank}", made[rank.tp_rank]
                peers.append(prepare_peer(rank, dst_rank, name, pairs, seconds, handles))
    return peers


def _serve(
    ranks: list[Rank],
    peers: list[Peer],
    tables: list[list[list[int]]],
    readers: dict[int, int],
    channel: Channel,
    tell: Callable[[str], None],
) -> int:
    """Push what decode asks for, tell it when all have read a round's requests; return how many notifications came."""
    told: Told = Counter()
    while True:
        listen(ranks, told)
        if not channel.ready(0.001):
            continue
        message = channel.receive()
        if message["step"] == "bye":
            return told.total()
        if message["step"] == "push":
            request = REQUESTS[message["request"]]
            tell(f"pushing request {request.number}")
            dst_blocks = [Blocks(ids, skip) for ids, skip in message["blocks"]]
            note = f"{message['order']} {request.number}"
            moved = move(peers, tables[request.number], dst_blocks, request.tokens, note, message["order"])
            channel.send({"step": "pushed", **moved._asdict()})
        else:
            for number in message["requests"]:
                hear_all(ranks, told, f"{message['order']} {number}", readers)
            channel.send({"step": "heard"})
