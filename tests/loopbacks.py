"""Two LoopbackAgents that know one another, with a buffer each."""

from __future__ import annotations

from typing import Any

import numpy as np
from agents import Bytes, painted

from nixldesc.testing import LoopbackAgent

L = 16  # bytes of a block
N = 8  # blocks of a buffer


def table(*rows: tuple[int, ...]) -> Any:
    return np.array(rows, dtype=np.uint64)


class Two:
    """Agent "a" has added agent "b"; each has one buffer of N blocks registered."""

    def __init__(self, mem_type: str = "DRAM", *, strided: bool = True) -> None:
        self.a, self.b = LoopbackAgent("a", strided=strided), LoopbackAgent("b")
        self.mine, self.theirs = np.zeros(N * L, np.uint8), painted(N * L, 1)
        self.at_mine, self.at_theirs = self.mine.ctypes.data, self.theirs.ctypes.data
        self.registered = self.a.register_memory([(self.at_mine, N * L, 0, "")], mem_type)
        self.b.register_memory([(self.at_theirs, N * L, 0, "")], mem_type)
        self.a.add_remote_agent(self.b.get_agent_metadata())
        row = (0, L, 0, L, N)
        if strided:
            self.local = self.a.prep_xfer_dlist("", table((self.at_mine, *row[1:])), mem_type)
            self.remote = self.a.prep_xfer_dlist("b", table((self.at_theirs, *row[1:])), mem_type)

    def make(self, local_ids: Any, remote_ids: Any, operation: str = "READ", message: bytes = b"") -> Any:
        return self.a.make_prepped_xfer(operation, self.local, local_ids, self.remote, remote_ids, message)


def blocks(buffer: Bytes) -> list[list[int]]:
    rows: list[list[int]] = buffer.reshape(-1, L).tolist()
    return rows
