"""What it costs to describe memory: pages, regions, layouts, tables, passports. Once per engine or peer."""

import json

import numpy as np
import workloads

from nixldesc import (
    Axis,
    DlistPair,
    Layout,
    Region,
    Section,
    array_regions,
    attention_sections,
    expand_table,
    mesh_ranges,
    mla_sections,
    state_sections,
)
from nixldesc._memory import forget


class Pages:
    """One page each."""

    def time_axis(self) -> None:
        Axis("head", 4, 8)

    def time_section(self) -> None:
        Section("k", [Axis("head", 4, 8), Axis("token", 0, 16), Axis("byte", 0, 256)], 1)

    def time_attention_sections(self) -> None:
        attention_sections("l0", num_kv_heads=8, tp_size=4, tp_rank=1, block_tokens=16, token_head_bytes=256)

    def time_mla_sections(self) -> None:
        mla_sections("l0", block_tokens=64, token_bytes=1152)

    def time_state_sections(self) -> None:
        state_sections(
            "l0",
            projections={"x": 8192, "B": 1024, "C": 1024},
            conv_rows=3,
            conv_itemsize=2,
            ssm_shape=(128, 64, 128),
            ssm_itemsize=2,
            tp_size=4,
            tp_rank=1,
        )

    def time_region(self) -> None:
        Region("l0", 1 << 40, 4096, 1000)


class Layouts:
    """A layout of each workload: to make it, to hand it on, to take it apart."""

    params = (list(workloads.WORKLOADS),)
    param_names = ("workload",)

    def setup(self, workload: str) -> None:
        self.layout = workloads.WORKLOADS[workload]().dst
        self.regions = self.layout.regions
        self.names = [region.name for region in self.regions[::2]]
        self.passport = self.layout.to_dict()
        self.text = json.dumps(self.passport)
        self.last = self.layout.num_descs - 1

    def time_layout(self, _workload: str) -> None:
        Layout(self.regions)

    def time_dlist_pair(self, _workload: str) -> None:
        DlistPair(self.layout, self.layout)

    def time_table(self, _workload: str) -> None:
        layout = Layout(self.regions)
        layout.table()

    def time_to_dict(self, _workload: str) -> None:
        self.layout.to_dict()

    def time_from_dict(self, _workload: str) -> None:
        Layout.from_dict(self.passport)

    def time_from_dict_met_first(self, _workload: str) -> None:
        forget()
        Layout.from_dict(self.passport)

    def time_from_json(self, _workload: str) -> None:
        Layout.from_dict(json.loads(self.text))

    def time_signature(self, _workload: str) -> None:
        self.layout.signature()

    def time_by_mem_type(self, _workload: str) -> None:
        self.layout.by_mem_type()

    def time_select(self, _workload: str) -> None:
        self.layout.select(self.names)

    def time_memory_ranges(self, _workload: str) -> None:
        self.layout.memory_ranges()

    def time_row_index(self, _workload: str) -> None:
        layout = Layout(self.regions)
        layout.row_index()

    def time_locate(self, _workload: str) -> None:
        self.layout.locate(self.last)

    def time_address(self, _workload: str) -> None:
        self.layout.address(self.last)

    def time_skip_before(self, _workload: str) -> None:
        self.layout.skip_before(100)


class Arrays:
    """Regions from an array, shards of a mesh."""

    def setup(self) -> None:
        self.cache = np.zeros((64, 2, 8, 16, 64), dtype=np.uint16)
        (self.region,) = array_regions("l0", self.cache, "block kv head token value", names={"kv": ("k", "v")})

    def time_array_regions(self) -> None:
        array_regions("l0", self.cache, "block kv head token value", names={"kv": ("k", "v")})

    def time_with_sections(self) -> None:
        self.region.with_sections(self.region.sections)

    def time_mesh_ranges(self) -> None:
        mesh_ranges((4096, 11008), (4, 2), (0, 1), 5)


class Segments:
    """One space of block ids over many memories: pieces of a pool, files, objects."""

    params = ([100, 100_000],)
    param_names = ("segments",)

    def setup(self, segments: int) -> None:
        self.rows = np.array([[i << 20, 64, i] for i in range(segments)])
        self.layout = Layout([Region.segmented("pool", 4096, self.rows)])
        self.passport = self.layout.to_dict()
        self.ranges = self.layout.memory_ranges()

    def time_segmented(self, _segments: int) -> None:
        Region.segmented("pool", 4096, self.rows)

    def time_layout_and_table(self, _segments: int) -> None:
        Layout([Region.segmented("pool", 4096, self.rows)]).table()

    def time_from_dict(self, _segments: int) -> None:
        Layout.from_dict(self.passport)

    def time_split_at(self, _segments: int) -> None:
        self.layout.split_at(self.ranges)


class Columns:
    """The parallel lists that connectors exchange."""

    params = ([1, 160],)
    param_names = ("regions",)

    def setup(self, regions: int) -> None:
        self.base_addrs = [(1 << 40) + i * (1 << 30) for i in range(regions)]
        self.block_lens = [4096] * regions

    def time_from_columns(self, _regions: int) -> None:
        Layout.from_columns(base_addrs=self.base_addrs, block_lens=self.block_lens, num_blocks=1000)


class DenseTables:
    """Every descriptor as a row of its own; 80 regions of 81,250 blocks are 6.5 million."""

    params = ([100, 81_250],)
    param_names = ("blocks",)

    def setup(self, blocks: int) -> None:
        self.layout = workloads.dense(80, blocks).dst
        self.table = self.layout.table()
        self.out = np.empty((self.layout.num_descs, 3), dtype=np.uint64)

    def time_dense_table(self, _blocks: int) -> None:
        self.layout.dense_table()

    def time_dense_table_out(self, _blocks: int) -> None:
        self.layout.dense_table(self.out)

    def time_expand_table(self, _blocks: int) -> None:
        expand_table(self.table)

    def peakmem_dense_table(self, _blocks: int) -> None:
        self.layout.dense_table(self.out)
