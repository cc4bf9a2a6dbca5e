"""Random geometries in real memory, READ and WRITE, through NIXL and through the LoopbackAgent.

The layouts are moved into host buffers, every listed source byte is painted with a byte of its
identity, and after the transfers every destination buffer must be exactly what painted memory
says: covered bytes with their own paint, all others as they were.
"""

from __future__ import annotations

from contextlib import ExitStack
from random import Random
from typing import Any, Literal

import numpy as np
import pytest
from agents import real_agent
from drawn import plans_of
from hypothesis.errors import UnsatisfiedAssumption
from numpy.typing import NDArray

from nixldesc import Layout, Region
from nixldesc.adapter import prepare, register
from nixldesc.testing import EnginePair, Limits, LoopbackAgent, Request, Transfer, random_pair, random_request
from nixldesc.testing.identities import Identities, Painted, all_held, find

Bytes = NDArray[np.uint8]
GEOMETRIES = range(40)


class Engine:
    """One side in host memory: each rank's regions in buffers, one per memory of the rank."""

    def __init__(self, layouts: dict[int, Layout], rng: np.random.Generator, *, plain: bool) -> None:
        self.buffers: list[Bytes] = []
        self.layouts = {rank: self._placed(one, rng, plain) for rank, one in layouts.items()}

    def _placed(self, layout: Layout, rng: np.random.Generator, plain: bool) -> Layout:
        spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for region in layout.regions:
            for base, count, device in region.segments.tolist():
                spans.setdefault((region.mem_type, device), []).append((base, base + region.block_stride * count))
        moved: dict[tuple[str, int], int] = {}
        for memory, ends in sorted(spans.items()):
            low, high = min(start for start, _ in ends), max(end for _, end in ends)
            self.buffers.append(rng.integers(0, 256, high - low, np.uint8))
            moved[memory] = self.buffers[-1].ctypes.data - low
        regions = [
            Region.segmented(
                r.name,
                r.block_len,
                [
                    (base + moved[r.mem_type, device], count, 0 if plain else device)
                    for base, count, device in r.segments.tolist()
                ],
                block_stride=r.block_stride,
                groups=r.groups,
                mem_type=r.mem_type,
                sections=r.sections,
            )
            for r in layout.regions
        ]
        return Layout(regions, cp_rank=layout.cp_rank, cp_size=layout.cp_size, cp_tokens=layout.cp_tokens)

    def put(self, buffers: list[Bytes], addr: NDArray[np.uint64], value: Bytes) -> None:
        """Write at these addresses, into copies of the buffers or the buffers themselves."""
        for own, buffer in zip(self.buffers, buffers, strict=True):
            start = own.ctypes.data
            here = (addr >= np.uint64(start)) & (addr < np.uint64(start + own.size))
            buffer[addr[here] - np.uint64(start)] = value[here]


def paint(src: Engine, dst: Engine, request: Request) -> list[Bytes]:
    """Paint the sources; returns what the destination's buffers must become."""
    held_src = list(all_held(src.layouts, request.src_blocks, request.null_block))
    held_dst = list(all_held(dst.layouts, request.dst_blocks, request.null_block))
    numbers = Identities(src.layouts, dst.layouts, held_src + held_dst)
    known = []
    for one in held_src:
        addr, identity = flat(numbers.paint(one))
        src.put(src.buffers, addr, colour(identity))
        known.append(identity)
    all_known = np.sort(np.concatenate(known))
    expected = [buffer.copy() for buffer in dst.buffers]
    for one in held_dst:
        addr, identity = flat(numbers.paint(one))
        covered = find(all_known, identity) >= 0
        dst.put(expected, addr[covered], colour(identity[covered]))
    return expected


def flat(painted: Painted) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return painted.addr.ravel(), painted.identity.ravel()


def colour(identity: NDArray[np.uint64]) -> Bytes:
    """A byte of an identity: neighbours differ, and so do blocks, heads and layers."""
    return (identity * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype(np.uint8)


Agents = tuple[Any, Any]


@pytest.fixture(scope="module", params=["nixl", "loopback"])
def agents(request: pytest.FixtureRequest) -> Agents:
    make = real_agent if request.param == "nixl" else LoopbackAgent
    return make("painted-prefill"), make("painted-decode")


@pytest.mark.parametrize("local", ["dst", "src"], ids=["READ", "WRITE"])
def test_random_geometries(agents: Agents, local: Literal["dst", "src"]) -> None:
    loopback = isinstance(agents[0], LoopbackAgent)
    limits = Limits(mem_types=("VRAM", "DRAM") if loopback else ("DRAM",))
    changed = 0
    for seed in GEOMETRIES:
        rnd, rng = Random(seed), np.random.default_rng(seed)
        pair = random_pair(rnd, limits)
        request = random_request(rnd, pair.srcs, pair.dsts, totals=False, senders=pair.senders)
        src = Engine(pair.srcs, rng, plain=not loopback)
        dst = Engine(pair.dsts, rng, plain=not loopback)
        expected = paint(src, dst, request)
        moved = any((a != b).any() for a, b in zip(expected, dst.buffers, strict=True))
        if not transfer(agents, local, src, dst, pair, request):
            continue
        changed += moved
        for number, (got, want) in enumerate(zip(dst.buffers, expected, strict=True)):
            wrong = np.flatnonzero(got != want)
            assert not wrong.size, f"seed {seed}, dst buffer {number}: byte {wrong[0]} is wrong"
    assert changed > len(GEOMETRIES) // 2


def transfer(
    agents: Agents, local: Literal["dst", "src"], src: Engine, dst: Engine, pair: EnginePair, request: Request
) -> bool:
    """Every dst rank plans; the pairs are posted by one side or the other. False for a pair that no plan serves."""
    prefill, decode = agents
    mine, theirs = (decode, prefill) if local == "dst" else (prefill, decode)
    with ExitStack() as held:
        for agent, engine in ((prefill, src), (decode, dst)):
            for layout in engine.layouts.values():
                held.enter_context(register(agent, layout))
        mine.add_remote_agent(theirs.get_agent_metadata())
        peer_name = "painted-prefill" if local == "dst" else "painted-decode"
        held.callback(mine.remove_remote_agent, peer_name)
        moving = Transfer(EnginePair(src.layouts, dst.layouts, pair.places, pair.senders), request)
        try:
            plans = plans_of(moving)
        except UnsatisfiedAssumption:
            return False
        for rank, found in plans.items():
            for src_rank, pairs in found.items():
                blocks = request.src_blocks[src_rank], request.dst_blocks[rank]
                with (
                    prepare(mine, peer_name, pairs, local=local) as peer,
                    peer.start(*blocks, null_block=request.null_block) as running,
                ):
                    assert running.wait(20) == "DONE"
    return True
