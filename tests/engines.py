"""Two engines on LoopbackAgents, with DRAM and pretended VRAM, and the lists of one prepared as the other's peer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from agents import painted

import nixldesc
from nixldesc import Layout, Region
from nixldesc.adapter import prepare, register
from nixldesc.testing import LoopbackAgent

L = 16  # bytes of a block
N = 8  # blocks of a region
SIDES = ("dst", "src")


class Engine:
    """An agent with region "k" in DRAM and region "v" in (pretended) VRAM of device 1, N blocks each."""

    def __init__(self, name: str, seed: int, *, strided: bool = True) -> None:
        self.agent = LoopbackAgent(name, strided=strided)
        self.k, self.v = painted(N * L, seed), painted(N * L, seed + 1)
        self.layout = Layout(
            [
                Region("k", self.k.ctypes.data, L, N, mem_type="DRAM"),
                Region("v", self.v.ctypes.data, L, N, mem_type="VRAM", device_id=1),
            ]
        )
        self.registration = register(self.agent, self.layout)

    def blocks(self, *blocks: int) -> list[Any]:
        return [buffer.reshape(N, L)[list(blocks)].tolist() for buffer in (self.k, self.v)]


class Pair:
    """Source engine "p" and destination engine "d"; `mine` is the agent that posts."""

    def __init__(self, local: Any = "dst", *, strided: bool = True, dense_limit: int = 1 << 30) -> None:
        self.p, self.d = Engine("p", 1, strided=strided), Engine("d", 3, strided=strided)
        self.local = local
        here, there = (self.d, self.p) if local == "dst" else (self.p, self.d)
        self.mine, self.theirs = here.agent, there.agent
        name = self.mine.add_remote_agent(self.theirs.get_agent_metadata())
        self.plan = nixldesc.plan(self.d.layout, {0: self.p.layout})
        self.peer = prepare(self.mine, name, self.plan[0], local=local, dense_limit=dense_limit)

    def steps(self, *names: str) -> list[tuple[str, str]]:
        return [entry for entry in self.mine.journal if entry[0] in names]

    def close(self) -> None:
        """Release all, in order, and show that nothing is left."""
        self.peer.release()
        self.leave()

    def leave(self) -> None:
        """Deregister, and show that nothing is left."""
        for engine in (self.p, self.d):
            engine.registration.release()
            assert engine.agent.live() == {"ranges": 0, "dlists": 0, "xfers": 0}


def moved(pair: Pair, src: Sequence[int], dst: Sequence[int]) -> bool:
    return pair.d.blocks(*dst) == pair.p.blocks(*src)


def land(pair: Pair) -> None:
    """Let what is in flight be done at the next poll, and what starts next at once."""
    pair.mine.polls = 0
    for handle in pair.mine._xfers.values():
        handle.polls_left = 1


def shifted(layout: Layout) -> Layout:
    """The same layout without its first block."""
    return Layout(
        [Region(r.name, r.base_addr + L, L, N - 1, mem_type=r.mem_type, device_id=r.device_id) for r in layout.regions]
    )


def local_preps(pair: Pair) -> int:
    return pair.steps("prep").count(("prep", "NIXL_INIT_AGENT"))


def in_threads(work: Callable[[], object], count: int) -> None:
    """Run `work` in several threads; what fails there fails here."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
