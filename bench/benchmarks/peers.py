"""The adapter over real NIXL, two agents in one process. Left out where nixl is not installed."""

from contextlib import ExitStack
from typing import Any

import host_agents
import numpy as np
import workloads

from nixldesc import Layout, Region, plan
from nixldesc.adapter import prepare, register


class Peer:
    """One peer: register, prepare, and requests of some blocks of 64 layers."""

    params = ([16, 1024], ["descending", "churned"])
    param_names = ("blocks", "tables")
    timeout = 300

    def setup(self, blocks: int, tables: workloads.Tables) -> None:
        if not host_agents.has_nixl():
            raise NotImplementedError("needs nixl")
        self.stack = ExitStack()
        self.two = self.stack.enter_context(host_agents.two_agents(64, 4096, 1024))
        self.peer = self.stack.enter_context(prepare(self.two.d, "P", self.two.pair, local="dst"))
        self.request: Any = self.two.workload.request(16 * blocks, tables)
        self.ids = self.two.pair.desc_ids(*self.request)
        self.memory = np.zeros(1 << 20, np.uint8)
        self.more = Layout([Region("more", self.memory.ctypes.data, 1 << 10, 1 << 10, mem_type="DRAM")])
        self.lists = self.stack.enter_context(self.two.lists("READ"))

    def teardown(self, *_: object) -> None:
        self.stack.close()

    def time_plan_and_prepare(self, *_: object) -> None:
        made = plan(self.two.workload.dst, self.two.workload.srcs, dst_rank=0, dst_size=1)
        prepare(self.two.d, "P", made, local="dst").release()

    def time_register(self, *_: object) -> None:
        register(self.two.d, self.more).release()

    def time_start_and_wait(self, *_: object) -> None:
        with self.peer.start(*self.request) as transfer:
            transfer.wait()

    def time_start_ids_and_wait(self, *_: object) -> None:
        with self.peer.start_ids(0, *self.ids) as transfer:
            transfer.wait()

    def time_bare_make_and_move(self, *_: object) -> None:
        self.lists.move(self.ids)
