"""What a request costs: ids of one layout, ids of a pair, and what is asked about them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import workloads

from nixldesc import Blocks, Layout, Region, align_blocks, kernel_blocks

POOL = 16_384
FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "range": lambda ids: range(len(ids)),
    "int32": lambda ids: np.array(ids, dtype=np.int32),
    "int64": lambda ids: np.array(ids, dtype=np.int64),
    "uint16": lambda ids: np.array(ids, dtype=np.uint16),
}


class LayoutIds:
    """Ids of one layout: every form that block ids come in."""

    params = ([1, 16, 128, 1024, 8192], [1, 64], list(FORMS))
    param_names = ("blocks", "regions", "form")

    def setup(self, blocks: int, regions: int, form: str) -> None:
        size = 4096 * POOL
        self.layout = Layout([Region(f"l{i}", (1 << 40) + i * size, 4096, POOL) for i in range(regions)])
        self.ids = [FORMS[form](workloads.block_table("random", POOL, blocks))]
        self.out = self.layout.desc_ids(self.ids)

    def time_desc_ids(self, *_: object) -> None:
        self.layout.desc_ids(self.ids)

    def time_desc_ids_out(self, *_: object) -> None:
        self.layout.desc_ids(self.ids, out=self.out)


class LayoutIdsOfGroups:
    """Two groups, each in every second region."""

    params = ([16, 1024], ["region", "group"])
    param_names = ("blocks", "order")

    def setup(self, blocks: int, order: str) -> None:
        workload = workloads.sliding_window()
        self.layout = workload.dst
        self.ids = [workloads.block_table("random", POOL, blocks, seed=seed) for seed in (1, 2)]

    def time_desc_ids(self, _blocks: int, order: str) -> None:
        self.layout.desc_ids(self.ids, order=order)  # type: ignore[arg-type]


class PairIds:
    """A request with the first of its sources, for each workload and kind of block table."""

    params = ([1024, 16_384, 131_072], list(workloads.WORKLOADS), list(workloads.TABLES))
    param_names = ("tokens", "workload", "tables")
    timeout = 120

    def setup(self, tokens: int, workload: str, tables: workloads.Tables) -> None:
        made = workloads.WORKLOADS[workload]()
        try:
            self.src, self.dst = made.request(tokens, tables)
        except ValueError as e:  # longer than the pool of this workload
            raise NotImplementedError(str(e)) from e
        self.pair = made.pairs()[0]
        self.out = self.pair.desc_ids(self.src, self.dst)

    def time_desc_ids_merge(self, *_: object) -> None:
        self.pair.desc_ids(self.src, self.dst)

    def time_desc_ids_given(self, *_: object) -> None:
        self.pair.desc_ids(self.src, self.dst, order="given")

    def time_desc_ids_null_block(self, *_: object) -> None:
        self.pair.desc_ids(self.src, self.dst, null_block=0)

    def time_desc_ids_out(self, *_: object) -> None:
        self.pair.desc_ids(self.src, self.dst, out=self.out)

    def time_desc_ids_one_region(self, *_: object) -> None:
        self.pair.desc_ids(self.src, self.dst, regions=slice(0, 1))


class PairQuestions:
    """What ids stand for: operations, moves, holes."""

    params = ([1024, 16_384], ["dense", "hybrid", "nhd"])
    param_names = ("tokens", "workload")

    def setup(self, tokens: int, workload: str) -> None:
        made = workloads.WORKLOADS[workload]()
        self.src, self.dst = made.request(tokens, "churned")
        self.pair = made.pairs()[0]
        self.ids = self.pair.desc_ids(self.src, self.dst)
        self.out = self.pair.moves(*self.ids)

    def time_merged_ops(self, *_: object) -> None:
        self.pair.merged_ops(*self.ids)

    def time_moves(self, *_: object) -> None:
        self.pair.moves(*self.ids)

    def time_moves_merge(self, *_: object) -> None:
        self.pair.moves(*self.ids, merge=True)

    def time_moves_out(self, *_: object) -> None:
        self.pair.moves(*self.ids, out=self.out)

    def time_uncovered(self, *_: object) -> None:
        self.pair.uncovered(self.src, self.dst)


class BlockLists:
    """Block lists on their way to a request."""

    params = ([16, 8192],)
    param_names = ("blocks",)

    def setup(self, blocks: int) -> None:
        self.ids = workloads.block_table("random", POOL, blocks)
        self.array = np.array(self.ids, dtype=np.int32)

    def time_blocks(self, _blocks: int) -> None:
        Blocks(self.ids, skip=3)

    def time_tail(self, blocks: int) -> None:
        Blocks.tail(self.ids, blocks + 3)

    def time_align_blocks(self, _blocks: int) -> None:
        align_blocks(self.ids, self.ids[::-1])

    def time_kernel_blocks(self, _blocks: int) -> None:
        kernel_blocks(self.ids, 4)

    def time_kernel_blocks_array(self, _blocks: int) -> None:
        kernel_blocks(self.array, 4, null_block=0)
