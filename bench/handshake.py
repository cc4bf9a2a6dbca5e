"""A new peer: what a connector does between its metadata and its prepared lists, ours and vLLM 0.33.0's way.

The baseline is written for this bench from the description of vLLM's ``add_remote_agent``: decode the peer's parallel
lists into a dataclass, map tensor-parallel ranks, and build N x 5 rows as tuples turned into one array: a row per
tensor for attention, one per conv projection and state of each tensor for a hybrid. The local side's table is there
already; where one decode rank reads from several prefill ranks it is copied and cut once per source. It checks nothing,
and it knows equal block sizes only. Ours does the whole way with every check on: decoding, proving what the stranger
sent, planning, both tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nixldesc import DlistPair, Layout, Region, attention_sections, mla_sections, plan, state_sections

Kind = Literal["GQA", "MLA", "hybrid"]
KINDS: tuple[Kind, ...] = ("GQA", "MLA", "hybrid")

SRC_BASE, DST_BASE, TENSOR = 1 << 40, 1 << 44, 1 << 32
KV_HEADS, BLOCK_TOKENS, TOKEN_HEAD_BYTES, TOKEN_BYTES = 8, 16, 512, 1152
PROJECTIONS = {"x": 4096, "B": 1024, "C": 1024}
CONV_ROWS, ITEM, SSM = 3, 2, (64, 64, 128)
BLOCKS = 10_000


def name(i: int) -> str:
    return f"model.layers.{i}.self_attn.attn"


# ------------------------------------------------------------------------------------------------------------- ours


def layout(kind: Kind, tensors: int, tp_size: int, tp_rank: int, base: int, block_tokens: int = BLOCK_TOKENS) -> Layout:
    """One rank's cache: a region per tensor; of a hybrid a second view of it, which the groups of states take."""
    regions = []
    for i in range(tensors):
        if kind == "MLA":
            page = mla_sections(name(i), block_tokens=block_tokens, token_bytes=TOKEN_BYTES)
        else:
            page = attention_sections(
                name(i),
                num_kv_heads=KV_HEADS,
                tp_size=tp_size,
                tp_rank=tp_rank,
                block_tokens=block_tokens,
                token_head_bytes=TOKEN_HEAD_BYTES,
            )
        block_len, at = page[-1].end, base + i * TENSOR
        if kind != "hybrid":
            regions.append(Region(name(i), at, block_len, BLOCKS, groups=(0,), sections=page))
            continue
        state = state_sections(
            f"{name(i)}.state",
            projections=PROJECTIONS,
            conv_rows=CONV_ROWS,
            conv_itemsize=ITEM,
            ssm_shape=SSM,
            ssm_itemsize=ITEM,
            tp_size=tp_size,
            tp_rank=tp_rank,
        )
        stride = max(block_len, state[-1].end)
        regions.append(Region(name(i), at, block_len, BLOCKS, block_stride=stride, groups=(0,), sections=page))
        regions.append(
            Region(f"{name(i)}.state", at, state[-1].end, BLOCKS, block_stride=stride, groups=(1, 2), sections=state)
        )
    return Layout(regions)


Tables = list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]


def planned(dst: Layout, messages: Mapping[int, bytes], decode: Any) -> list[DlistPair]:
    """Decode, prove and plan."""
    srcs = {rank: Layout.from_dict(decode(message)) for rank, message in messages.items()}
    made = plan(dst, srcs, dst_rank=0, dst_size=1)
    return [pair for pairs in made.values() for pair in pairs]


def ours(dst: Layout, messages: Mapping[int, bytes], decode: Any) -> Tables:
    """Decode, prove, plan, and both tables of every pair."""
    return [(pair.src.table(), pair.dst.table()) for pair in planned(dst, messages, decode)]


# --------------------------------------------------------------------------------------------------------- baseline


@dataclass
class Metadata:
    """A peer as a connector's parallel lists; the fields of vLLM's NixlAgentMetadata that describe memory."""

    engine_id: str
    kv_caches_base_addr: list[int]
    device_id: int
    num_blocks: int
    block_lens: list[int]
    block_strides: list[int]
    kv_cache_layout: str
    block_size: int
    ssm_sizes: tuple[int, int]
    attn_backend_name: str
    physical_blocks_per_logical_kv_block: int
    region_num_blocks: list[int]
    region_group_ids: list[int]
    region_names: list[str]
    region_mem_types: list[str]
    region_members: list[list[str]]
    dcp_size: int = 1
    pcp_size: int = 1


def metadata(given: Layout) -> Metadata:
    """The same cache as parallel lists, an entry per tensor."""
    tensors = [region for region in given.regions if not region.name.endswith(".state")]
    conv, ssm = state_sizes(given)
    return Metadata(
        engine_id="1c1c6d2e-6a5e-4b7c-9a53-4d1f3f5ad6a1",
        kv_caches_base_addr=[region.base_addr for region in tensors],
        device_id=0,
        num_blocks=BLOCKS,
        block_lens=[region.block_len for region in tensors],
        block_strides=[region.block_stride for region in tensors],
        kv_cache_layout="HND",
        block_size=BLOCK_TOKENS,
        ssm_sizes=(conv, ssm),
        attn_backend_name="FLASH_ATTN",
        physical_blocks_per_logical_kv_block=1,
        region_num_blocks=[BLOCKS] * len(tensors),
        region_group_ids=[0] * len(tensors),
        region_names=[region.name for region in tensors],
        region_mem_types=["VRAM"] * len(tensors),
        region_members=[[region.name] for region in tensors],
    )


def state_sizes(given: Layout) -> tuple[int, int]:
    """Bytes of a block's conv state and SSM state; 0 without states."""
    states = [region for region in given.regions if region.name.endswith(".state")]
    if not states:
        return 0, 0
    ssm = states[0].sections[-1]
    return ssm.offset, ssm.nbytes


class Worker:
    """The decode rank: its lists and its own table, made when its caches were registered."""

    def __init__(self, kind: Kind, dst: Layout) -> None:
        self.kind, self.mine = kind, metadata(dst)
        self.conv = conv_parts(dst)
        self.attention = len(self.mine.block_lens)
        self.table = rows_of(self.mine, self.mine.block_lens, 0, self.conv, 0)

    def add_remote_agents(self, tp_size: int, remotes: Mapping[int, Metadata]) -> Tables:
        """Map ranks and build the tables of both sides for every rank that is read from."""
        ratio = len(remotes) if self.kind != "MLA" else 1
        ranks = np.arange(ratio) * KV_HEADS // max(ratio, 1)
        attention = np.unique(ranks, return_index=True)[1].tolist()
        slots = {rank: i for i, rank in enumerate(attention)}
        tables = []
        for number, (rank, remote) in enumerate(remotes.items()):
            local = self.table if ratio == 1 else self._split(slots.get(rank, 0), number, len(attention), ratio)
            lens = [length // len(attention) if ratio > 1 else length for length in self.mine.block_lens]
            conv = [(offset // ratio, size // ratio) for offset, size in self.conv]
            tables.append((rows_of(remote, lens, 0, conv, remote.ssm_sizes[0]), local))
        return tables

    def _split(self, slot: int, number: int, attention: int, states: int) -> NDArray[np.uint64]:
        table = self.table.copy()
        table[: self.attention, 1] //= attention
        table[: self.attention, 0] += slot * table[: self.attention, 1]
        table[self.attention :, 1] //= states
        table[self.attention :, 0] += number * table[self.attention :, 1]
        return table


def conv_parts(given: Layout) -> list[tuple[int, int]]:
    """Offset and bytes of each conv projection and of the state after them."""
    states = [region for region in given.regions if region.name.endswith(".state")]
    return [(section.offset, section.nbytes) for section in states[0].sections] if states else []


def rows_of(
    meta: Metadata, lens: Sequence[int], offset: int, conv: Sequence[tuple[int, int]], _conv_size: int
) -> NDArray[np.uint64]:
    """Rows as tuples, then one array: attention first, then every tensor's states."""
    rows = []
    for i, base in enumerate(meta.kv_caches_base_addr):
        rows.append((base + offset, lens[i], meta.device_id, meta.block_strides[i], meta.region_num_blocks[i]))
    if conv:
        for i, base in enumerate(meta.kv_caches_base_addr):
            for at, size in conv:
                rows.append((base + at, size, meta.device_id, meta.block_strides[i], meta.num_blocks))
    return np.array(rows, dtype=np.uint64).reshape(-1, 5)


def baseline(worker: Worker, messages: Mapping[int, bytes], decode: Any) -> Tables:
    """Decode into the dataclass, then the arithmetic."""
    return worker.add_remote_agents(1, {rank: decode(message) for rank, message in messages.items()})


# ------------------------------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """One decode rank and its peers, as both ways send them. `ranks` keys are the peers' TP ranks."""

    kind: Kind
    tensors: int
    peers: int
    dst: Layout
    worker: Worker
    ours: Mapping[int, bytes]
    theirs: Mapping[int, bytes]


def case(kind: Kind, tensors: int, peers: int, encode: Any) -> Case:
    """Equal TP for one peer; for eight TP 8 to TP 1 (eight engines of TP 1 where the cache is replicated)."""
    tp = 1 if kind == "MLA" else peers
    dst = layout(kind, tensors, 1, 0, DST_BASE)
    srcs = {rank: layout(kind, tensors, tp, rank % tp, SRC_BASE + rank) for rank in range(peers)}
    return Case(
        kind,
        tensors,
        peers,
        dst,
        Worker(kind, dst),
        {rank: encode(src.to_dict()) for rank, src in srcs.items()},
        {rank: encode(metadata(src)) for rank, src in srcs.items()},
    )
