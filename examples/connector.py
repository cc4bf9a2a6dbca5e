"""A KV connector in one file: pull and push between two engines of any two TP sizes.

Bring your agents (`nixl_agent`, or `nixldesc.testing.LoopbackAgent`) and a way to carry bytes:

    hello    every rank sends `hello()` to every rank of the other engine, which calls `meet()`
    pull     prefill: `lend()`; decode: `pull()`, `wait()`; prefill: `poll()` names what is free
    push     decode: `expect()`; prefill: `push()`, `wait()`; decode: `poll()` names what is in
"""

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from nixldesc import Blocks, Layout, Region, attention_sections, plan, reader_counts
from nixldesc.adapter import PreparedPeer, Transfer, prepare, register

LAYERS, HEADS, HEAD_BYTES = 3, 4, 32  # of the model; K and V of a token and head together
BlockIds = Sequence[int] | Blocks  # a cached prefix of n blocks: Blocks(ids, skip=n)


@dataclass(frozen=True, slots=True)
class Engine:
    """What all ranks of one engine have in common."""

    tp_size: int
    block_tokens: int
    num_blocks: int

    def layout(self, tp_rank: int, base_addr: int = 0) -> Layout:
        """One rank's memory: its heads of every layer, [layer][block][head][token][bytes]."""
        model: dict[str, Any] = {"num_kv_heads": HEADS, "token_head_bytes": HEAD_BYTES}
        shard: dict[str, Any] = {"tp_size": self.tp_size, "tp_rank": tp_rank}
        regions = []
        for name in (f"layers.{layer}" for layer in range(LAYERS)):
            page = attention_sections(name, block_tokens=self.block_tokens, **model, **shard)
            where = (base_addr, page[-1].end, self.num_blocks)
            regions.append(Region(name, *where, mem_type="DRAM", sections=page))
            base_addr += regions[-1].span
        return Layout(regions)


class Rank:
    """What both sides do: register memory, introduce themselves, count notifications."""

    def __init__(self, agent: Any, engine: Engine, tp_rank: int, base_addr: int) -> None:
        self.agent, self.engine, self.tp_rank = agent, engine, tp_rank
        self.layout = engine.layout(tp_rank, base_addr)
        self.handles = ExitStack()
        self.handles.enter_context(register(agent, self.layout))
        self.peers: dict[int, PreparedPeer] = {}
        self.transfers: list[Transfer] = []
        self.awaited: Counter[str] = Counter()  # request -> notifications still to come

    def hello(self) -> bytes:
        agent = base64.b64encode(self.agent.get_agent_metadata()).decode()
        hello = {"name": self.agent.name, "agent": agent, "layout": self.layout.to_dict()}
        return json.dumps(hello).encode()

    def introduce(self, hellos: Sequence[bytes]) -> tuple[list[str], dict[int, Layout]]:
        told = [json.loads(hello) for hello in hellos]
        for peer in told:
            self.agent.add_remote_agent(base64.b64decode(peer["agent"]))
        layouts = {rank: Layout.from_dict(peer["layout"]) for rank, peer in enumerate(told)}
        return [peer["name"] for peer in told], layouts

    def poll(self) -> list[str]:
        """The requests whose last notification has come."""
        for messages in self.agent.get_new_notifs().values():
            self.awaited.subtract(message.decode() for message in messages)
        done = [request for request, left in self.awaited.items() if left == 0]
        for request in done:
            del self.awaited[request]
        return done

    def wait(self, timeout: float = 10.0) -> None:
        while self.transfers:
            with self.transfers.pop() as transfer:
                if transfer.wait(timeout) != "DONE":
                    raise transfer.error or TimeoutError(f"{transfer} after {timeout} s")


class Prefill(Rank):
    def meet(self, hellos: Sequence[bytes]) -> None:
        names, dsts = self.introduce(hellos)
        srcs = {rank: self.engine.layout(rank) for rank in range(self.engine.tp_size)}
        srcs[self.tp_rank] = self.layout  # of the siblings' memory only the geometry matters
        self.num_readers = reader_counts(list(dsts.values()), srcs)[self.tp_rank]
        for rank, dst in dsts.items():
            push = plan(dst, srcs, dst_rank=rank, dst_size=len(dsts))
            if self.tp_rank in push:
                peer = prepare(self.agent, names[rank], push[self.tp_rank], local="src")
                self.peers[rank] = self.handles.enter_context(peer)

    def lend(self, request: str) -> None:
        self.awaited[request] += self.num_readers  # the blocks stay until each reader is done

    def push(self, request: str, src_ids: BlockIds, dst_ids: Mapping[int, BlockIds]) -> None:
        for rank, peer in self.peers.items():
            self.transfers.append(peer.start([src_ids], [dst_ids[rank]], notify=request.encode()))


class Decode(Rank):
    def meet(self, hellos: Sequence[bytes]) -> None:
        names, srcs = self.introduce(hellos)
        pull = plan(self.layout, srcs, dst_rank=self.tp_rank, dst_size=self.engine.tp_size)
        for rank, pairs in pull.items():
            peer = prepare(self.agent, names[rank], pairs, local="dst")
            self.peers[rank] = self.handles.enter_context(peer)

    def expect(self, request: str) -> None:
        self.awaited[request] += len(self.peers)  # each writer notifies once

    def pull(self, request: str, src_ids: Mapping[int, BlockIds], dst_ids: BlockIds) -> None:
        for rank, peer in self.peers.items():
            self.transfers.append(peer.start([src_ids[rank]], [dst_ids], notify=request.encode()))


def main() -> None:
    """One request of four blocks, from prefill TP 2 to decode TP 1 with blocks of twice as many tokens."""
    import numpy as np

    from nixldesc.testing import LoopbackAgent

    def ranks(kind: type[Rank], engine: Engine, byte: int) -> list[Any]:
        found = []
        for rank in range(engine.tp_size):
            size = sum(region.span for region in engine.layout(rank).regions)
            memories.append(np.full(size, byte + rank, dtype=np.uint8))
            agent = LoopbackAgent(f"{kind.__name__} {rank}")
            found.append(kind(agent, engine, rank, memories[-1].ctypes.data))
        return found

    memories: list[Any] = []  # of prefill rank 0 full of 1, of rank 1 full of 2, of decode empty
    prefill, (decode,) = ranks(Prefill, Engine(2, 8, 16), 1), ranks(Decode, Engine(1, 16, 16), 0)
    hellos = [rank.hello() for rank in prefill]
    for rank in prefill:
        rank.meet([decode.hello()])
        rank.lend("request 1")
    decode.meet(hellos)
    decode.pull("request 1", {0: [7, 3, 4, 9], 1: [2, 11, 5, 8]}, [6, 1])
    decode.wait()
    for byte, rank in enumerate(prefill, 1):
        got = int((memories[-1] == byte).sum())
        print(f"{rank.agent.name}: {got:,} bytes are in decode's blocks 6 and 1; free again: {rank.poll()}")
    for rank in (decode, *prefill):
        rank.handles.close()


if __name__ == "__main__":
    main()
