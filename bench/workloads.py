"""Named workloads: layouts of two engines as they are met in practice, and block tables of their requests.

Sizes are those of published models; addresses are made up where nothing is moved. Everything is deterministic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Literal

from nixldesc import (
    Blocks,
    DlistPair,
    Layout,
    Region,
    Section,
    attention_sections,
    mla_sections,
    plan,
    state_sections,
)

SRC_BASE, DST_BASE = 1 << 40, 1 << 44

Tables = Literal["fresh", "descending", "random", "churned"]
TABLES: tuple[Tables, ...] = ("fresh", "descending", "random", "churned")


# ---------------------------------------------------------------------------------------------------- block tables


class BlockPool:
    """The free queue of a serving engine: the block that was freed first is handed out first.

    A request's blocks are freed tail first, so that the prefix, which others may share, is evicted last. So a later
    request gets runs of the requests before it, each turned round once more: descending, then ascending, and shorter.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = deque(range(num_blocks))
        self.num_blocks = num_blocks

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        return [self._free.popleft() for _ in range(count)]

    def give_back(self, blocks: Sequence[int]) -> None:
        self._free.extend(reversed(blocks))


def churned_table(num_blocks: int, count: int, *, seed: int, first_in_first_out: bool) -> list[int]:
    """Return `count` blocks of a pool that has been in use for a long time.

    Requests are between 1/256 and 1/16 of the pool, and live until the pool is full: the oldest ends first, as on a
    prefill worker, or any, as on a decode worker.
    """
    random, pool = Random(seed), BlockPool(num_blocks)
    alive: deque[list[int]] = deque()
    least, most = max(1, num_blocks // 256), max(1, num_blocks // 16)
    turned_over = 0
    while turned_over < 8 * num_blocks or len(pool) < count:
        size = random.randint(least, most)
        while alive and (len(pool) < size or (turned_over >= 8 * num_blocks and len(pool) < count)):
            if not first_in_first_out:
                alive.rotate(random.randrange(len(alive)))
            pool.give_back(alive.popleft())
        if turned_over < 8 * num_blocks:
            alive.append(pool.take(size))
            turned_over += size
    return pool.take(count)


@lru_cache(maxsize=256)
def _table(kind: Tables, num_blocks: int, count: int, seed: int, prefill: bool) -> tuple[int, ...]:
    if kind == "fresh":
        return tuple(range(count))
    if kind == "descending":
        return tuple(range(num_blocks - 1, num_blocks - 1 - count, -1))
    if kind == "random":
        return tuple(Random(seed).sample(range(num_blocks), count))
    return tuple(churned_table(num_blocks, count, seed=seed, first_in_first_out=prefill))


def block_table(kind: Tables, num_blocks: int, count: int, *, seed: int = 0, prefill: bool = False) -> list[int]:
    """Return a request's `count` distinct blocks of a pool of `num_blocks`."""
    if count > num_blocks:
        raise ValueError(f"{count} blocks of a pool of {num_blocks}")
    return list(_table(kind, num_blocks, count, seed, prefill))


# ------------------------------------------------------------------------------------------------------- workloads


@dataclass(frozen=True, slots=True)
class Group:
    """A KV cache group: tokens in a block on each side; 0 for a state, of which a request has one block."""

    src_tokens: int
    dst_tokens: int
    window: int = 0  # tokens that are kept; 0: all


@dataclass(frozen=True, slots=True)
class Workload:
    """One destination rank, all its sources, and what a request's block tables look like."""

    name: str
    dst: Layout
    srcs: Mapping[int, Layout]
    groups: tuple[Group, ...]
    dst_size: int = 1

    def pairs(self) -> list[DlistPair]:
        """Return all pairs of the plan."""
        made = plan(self.dst, self.srcs, dst_rank=0, dst_size=self.dst_size)
        return [pair for pairs in made.values() for pair in pairs]

    def request(self, tokens: int, tables: Tables = "churned", seed: int = 0) -> tuple[list[Blocks], list[Blocks]]:
        """Return the block tables of a request of `tokens` tokens: source side, destination side."""
        src_blocks = min(region.num_blocks for region in self.srcs[0].regions)
        dst_blocks = min(region.num_blocks for region in self.dst.regions)
        src = [_list(g.src_tokens, g.window, tokens, src_blocks, tables, seed) for g in self.groups]
        dst = [_list(g.dst_tokens, g.window, tokens, dst_blocks, tables, seed + 1) for g in self.groups]
        return src, dst


def _list(block_tokens: int, window: int, tokens: int, num_blocks: int, tables: Tables, seed: int) -> Blocks:
    total = -(-tokens // block_tokens) if block_tokens else 1
    dead = max(0, tokens - window) // block_tokens if window else 0
    ids = block_table(tables, num_blocks, total - dead, seed=seed, prefill=seed % 2 == 0)
    return Blocks(ids, skip=dead)


Page = tuple[Section, ...]


def layout_of(pages: Sequence[tuple[Page, tuple[int, ...] | None]], num_blocks: int, base: int) -> Layout:
    regions = []
    for i, (page, groups) in enumerate(pages):
        block_len = max(section.end for section in page)
        regions.append(Region(f"layer{i}", base, block_len, num_blocks, groups=groups, sections=page))
        base += block_len * num_blocks
    return Layout(regions)


def dense(
    layers: int = 80,
    blocks: int = 81_250,
    block_len: int = 64,
    *,
    src_base: int = SRC_BASE,
    dst_base: int = DST_BASE,
    mem_type: str = "VRAM",
) -> Workload:
    """Equal engines, one opaque region per layer: 80 regions of 81,250 blocks are 6.5 million descriptors."""

    def side(base: int) -> Layout:
        step = block_len * blocks
        return Layout([Region(f"l{i}", base + i * step, block_len, blocks, mem_type=mem_type) for i in range(layers)])

    return Workload("dense", side(dst_base), {0: side(src_base)}, (Group(16, 16),))


def mla(layers: int = 61, blocks: int = 20_000, sources: int = 8) -> Workload:
    """A latent cache (61 layers, 576 values of 2 bytes a token, replicated): decode TP 1 reads one of them."""

    def side(num_blocks: int, base: int) -> Layout:
        pages = [(mla_sections(f"l{i}", block_tokens=64, token_bytes=1152), None) for i in range(layers)]
        return layout_of(pages, num_blocks, base)

    srcs = {rank: side(blocks // 2, SRC_BASE) for rank in range(sources)}
    return Workload("mla", side(blocks, DST_BASE), srcs, (Group(64, 64),))


def _attention(
    i: int, tp_size: int, tp_rank: int, tokens: int = 16, order: Literal["HND", "NHD"] = "HND", heads: int = 8
) -> Page:
    return attention_sections(
        f"l{i}",
        num_kv_heads=heads,
        tp_size=tp_size,
        tp_rank=tp_rank,
        block_tokens=tokens,
        token_head_bytes=512,
        order=order,
    )


def sliding_window(layers: int = 36, blocks: int = 20_000) -> Workload:
    """Full attention and a window of 1,024 tokens in turns, a group each; prefill TP 4 to decode TP 2."""

    def side(tp_size: int, tp_rank: int, num_blocks: int, base: int) -> Layout:
        return layout_of([(_attention(i, tp_size, tp_rank), (i % 2,)) for i in range(layers)], num_blocks, base)

    srcs = {rank: side(4, rank, blocks // 2, SRC_BASE) for rank in range(4)}
    groups = Group(16, 16), Group(16, 16, window=1024)
    return Workload("sliding_window", side(2, 0, blocks, DST_BASE), srcs, groups, 2)


def hybrid(layers: int = 52, blocks: int = 4_000) -> Workload:
    """One attention layer in eight, the others Mamba2; prefill TP 4, blocks of 64, to decode TP 2, blocks of 16."""

    def state(i: int, tp_size: int, tp_rank: int) -> Page:
        return state_sections(
            f"l{i}",
            projections={"x": 8192, "B": 1024, "C": 1024},
            conv_rows=3,
            conv_itemsize=2,
            ssm_shape=(128, 64, 128),
            ssm_itemsize=2,
            tp_size=tp_size,
            tp_rank=tp_rank,
        )

    def side(tp_size: int, tp_rank: int, tokens: int, num_blocks: int, base: int) -> Layout:
        pages: list[tuple[Page, tuple[int, ...] | None]] = [
            (_attention(i, tp_size, tp_rank, tokens), (0,)) if i % 8 == 4 else (state(i, tp_size, tp_rank), (1,))
            for i in range(layers)
        ]
        return layout_of(pages, num_blocks, base)

    srcs = {rank: side(4, rank, 64, blocks // 2, SRC_BASE) for rank in range(4)}
    return Workload("hybrid", side(2, 0, 16, blocks, DST_BASE), srcs, (Group(64, 16), Group(0, 0)), 2)


def nhd(layers: int = 32, blocks: int = 4_000) -> Workload:
    """[token][head] under unequal TP (2 to 4): each of a block's 64 tokens is a row of its own."""

    def side(tp_size: int, tp_rank: int, num_blocks: int, base: int) -> Layout:
        return layout_of([(_attention(i, tp_size, tp_rank, 64, "NHD"), None) for i in range(layers)], num_blocks, base)

    srcs = {rank: side(2, rank, blocks // 2, SRC_BASE) for rank in range(2)}
    return Workload("nhd", side(4, 0, blocks, DST_BASE), srcs, (Group(64, 64),), 4)


def wide_tp(layers: int = 160, sources: int = 8, blocks: int = 20_000) -> Workload:
    """Many ranks with one head each send to a decode rank that holds all heads: 160 layers of 8 sources."""

    def side(tp_size: int, tp_rank: int, num_blocks: int, base: int) -> Layout:
        pages = [(_attention(i, tp_size, tp_rank, heads=sources), None) for i in range(layers)]
        return layout_of(pages, num_blocks, base)

    srcs = {rank: side(sources, rank, blocks // 2, SRC_BASE) for rank in range(sources)}
    return Workload("wide_tp", side(1, 0, blocks, DST_BASE), srcs, (Group(16, 16),))


#: All workloads by name.
WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    "dense": dense,
    "mla": mla,
    "sliding_window": sliding_window,
    "hybrid": hybrid,
    "nhd": nhd,
    "wide_tp": wide_tp,
}
