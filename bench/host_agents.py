"""Two NIXL agents in one process over host memory (UCX): what transfers really cost, where nixl is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from workloads import Workload, dense

from nixldesc import DlistPair
from nixldesc.adapter import register

Operation = Literal["READ", "WRITE"]
Ids = tuple[NDArray[np.int32], NDArray[np.int32]]


def has_nixl() -> bool:
    return find_spec("nixl") is not None


class Outcome(NamedTuple):
    """What one transfer took: NIXL's own count of operations, and seconds from the post to the end."""

    operations: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TwoAgents:
    """Agents P (source) and D (destination) that know each other, and a dense workload in their memory."""

    p: Any
    d: Any
    workload: Workload
    pair: DlistPair

    @property
    def num_blocks(self) -> int:
        return self.pair.dst.regions[0].num_blocks

    @contextmanager
    def lists(self, operation: Operation) -> Iterator[Lists]:
        """Prepare both lists: for D, which reads, or for P, which writes."""
        agent, peer, mine, theirs = (
            (self.d, "P", self.pair.dst, self.pair.src)
            if operation == "READ"
            else (self.p, "D", self.pair.src, self.pair.dst)
        )
        local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", mine.table(), "DRAM")
        remote = agent.prep_xfer_dlist(peer, theirs.table(), "DRAM")
        try:
            yield Lists(agent, operation, local, remote)
        finally:
            agent.release_dlist_handle(remote)
            agent.release_dlist_handle(local)


@dataclass(frozen=True, slots=True)
class Lists:
    """Both prepared lists of an agent."""

    agent: Any
    operation: Operation
    local: Any
    remote: Any

    def make(self, ids: Ids) -> Any:
        """Make the handle of a request."""
        src, dst = ids
        mine, theirs = (dst, src) if self.operation == "READ" else (src, dst)
        return self.agent.make_prepped_xfer(self.operation, self.local, mine, self.remote, theirs)

    def move(self, ids: Ids) -> Outcome:
        """Move a request's bytes and wait for them."""
        handle = self.make(ids)
        begin = perf_counter()
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        seconds = perf_counter() - begin
        if state != "DONE":
            raise RuntimeError(f"a transfer of {len(ids[0])} descriptors ended as {state}")
        operations = int(self.agent.get_xfer_telemetry(handle).descCount)
        self.agent.release_xfer_handle(handle)
        return Outcome(operations, seconds)


@contextmanager
def two_agents(layers: int, blocks: int, block_len: int) -> Iterator[TwoAgents]:
    """Make both agents, register memory for a dense workload, and exchange metadata."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    from nixl._api import nixl_agent, nixl_agent_config

    size = layers * blocks * block_len
    src_memory, dst_memory = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    workload = dense(
        layers,
        blocks,
        block_len,
        src_base=src_memory.ctypes.data,
        dst_base=dst_memory.ctypes.data,
        mem_type="DRAM",
    )
    config = nixl_agent_config(capture_telemetry=True, backends=["UCX"])
    p, d = nixl_agent("P", config), nixl_agent("D", config)
    # One registration for all layers: every row lies in it.
    whole = [[(memory.ctypes.data, size, 0, "DRAM")] for memory in (src_memory, dst_memory)]
    with register(p, workload.srcs[0], whole[0]), register(d, workload.dst, whole[1]):
        p.add_remote_agent(d.get_agent_metadata())
        d.add_remote_agent(p.get_agent_metadata())
        [pair] = workload.pairs()
        yield TwoAgents(p, d, workload, pair)
