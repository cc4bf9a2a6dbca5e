"""The prefill engine: fills its blocks, lends them until every reader has been heard, pushes when asked to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from zlib import crc32

from nixldesc import Blocks, reader_counts
from nixldesc._cli.demo.model import PREFILL, REQUESTS, Tables, draw_tables
from nixldesc._cli.demo.rank import Peer, Rank, Told, hear_all, listen, meet, move, open_ranks, prepare_peers
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
        peers = prepare_peers(ranks, "src", dsts, handles)
        readers = reader_counts(list(dsts.values()), {rank.tp_rank: rank.layout for rank in ranks})
        heard = _serve(ranks, peers, tables, readers, channel, tell)
        unchanged = before == [crc32(rank.memory.data) for rank in ranks]
        channel.send({"step": "bye", "unchanged": unchanged, "heard": heard, "peers": [p.figures() for p in peers]})
    return {}


def _serve(
    ranks: list[Rank],
    peers: list[Peer],
    tables: Tables,
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
            moved = move(peers, request, message["order"], tables[request.number], dst_blocks)
            channel.send({"step": "pushed", "moved": moved})
        else:
            for number in message["requests"]:
                hear_all(ranks, told, REQUESTS[number].note(message["order"]), readers)
            channel.send({"step": "heard"})
