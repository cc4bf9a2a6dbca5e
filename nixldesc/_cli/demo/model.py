"""A small hybrid model, two engines that keep its cache differently, and the requests that move between them.

::

                        prefill, TP 4                     decode, TP 2
    attention (GQA)     2 of 8 KV heads, 16 tokens        4 of 8 KV heads, 32 tokens      HND, K before V
    latent (MLA)        whole on every rank, 16 tokens    whole on every rank, 16 tokens
    state (Mamba2)      a quarter, padded blocks          a half, padded blocks           conv x, B, C, then the SSM
    KV cache groups     0 attention and latent, 1 state   0 state, 1 attention, 2 latent
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from nixldesc import Blocks, Layout, Region, Section, attention_sections, mla_sections, state_sections

__all__ = ["DECODE", "KINDS", "MODEL", "PREFILL", "REQUESTS", "Engine", "Order", "Request", "Tables", "draw_tables"]

KINDS = ("attention", "latent", "state")

#: The block lists of each request, one for each group, and the order in which its ids are asked for.
Tables: TypeAlias = "list[list[list[int]]]"
Order: TypeAlias = Literal["given", "merge"]


@dataclass(frozen=True, slots=True)
class Model:
    """What both engines run; sizes in bytes are of one item."""

    attention_layers: int = 3
    kv_heads: int = 8
    head_bytes: int = 128
    latent_layers: int = 6
    latent_bytes: int = 576
    state_layers: int = 2
    conv_channels: tuple[tuple[str, int], ...] = (("x", 512), ("B", 64), ("C", 64))
    conv_rows: int = 3
    conv_bytes: int = 2
    ssm_shape: tuple[int, ...] = (16, 32, 64)
    ssm_bytes: int = 4

    def layers(self, kind: str) -> list[str]:
        """Return the names of the layers of one kind."""
        return [f"{kind}.{number}" for number in range(getattr(self, f"{kind}_layers"))]


MODEL = Model()


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine keeps the cache; the three tuples are in the order of KINDS (a state block has no tokens).

    `state_stride` is in bytes, with padding; `seed` is of the chances that wore its free lists.
    """

    name: str
    tp_size: int
    block_tokens: tuple[int, int, int]
    num_blocks: tuple[int, int, int]
    groups: tuple[int, int, int]
    state_stride: int
    seed: int

    def of(self, kind: str) -> tuple[int, int, int]:
        """Return block_tokens, num_blocks and the group of one kind of layers."""
        at = KINDS.index(kind)
        return self.block_tokens[at], self.num_blocks[at], self.groups[at]

    def page(self, kind: str, layer: str, tp_rank: int) -> tuple[Section, ...]:
        """Return what a block of a layer means on one rank."""
        tokens = self.of(kind)[0]
        if kind == "attention":
            return attention_sections(
                layer,
                num_kv_heads=MODEL.kv_heads,
                tp_size=self.tp_size,
                tp_rank=tp_rank,
                block_tokens=tokens,
                token_head_bytes=MODEL.head_bytes,
                kv="blocks_first",
            )
        if kind == "latent":
            return mla_sections(layer, block_tokens=tokens, token_bytes=MODEL.latent_bytes)
        return state_sections(
            layer,
            projections=dict(MODEL.conv_channels),
            conv_rows=MODEL.conv_rows,
            conv_itemsize=MODEL.conv_bytes,
            ssm_shape=MODEL.ssm_shape,
            ssm_itemsize=MODEL.ssm_bytes,
            tp_size=self.tp_size,
            tp_rank=tp_rank,
        )

    def layout(self, tp_rank: int, base_addr: int) -> Layout:
        """Return one rank's memory from `base_addr` on: layer after layer."""
        regions: list[Region] = []
        for kind in KINDS:
            _, num_blocks, group = self.of(kind)
            for layer in MODEL.layers(kind):
                page = self.page(kind, layer, tp_rank)
                stride = self.state_stride if kind == "state" else page[-1].end
                regions.append(
                    Region(
                        layer,
                        base_addr,
                        page[-1].end,
                        num_blocks,
                        block_stride=stride,
                        groups=(group,),
                        mem_type="DRAM",
                        sections=page,
                    )
                )
                base_addr += num_blocks * stride
        return Layout(regions)


PREFILL = Engine("prefill", 4, (16, 16, 0), (320, 320, 16), (0, 0, 1), state_stride=40_960, seed=4)
DECODE = Engine("decode", 2, (32, 16, 0), (160, 320, 16), (1, 2, 0), state_stride=73_728, seed=2)


@dataclass(frozen=True, slots=True)
class Request:
    """`tokens` were prefilled; decode has the first `cached` of them already. `how` names who posts the transfer."""

    number: int
    tokens: int
    cached: int = 0
    how: str = "READ"

    @property
    def prefilled(self) -> int:
        """Tokens of whole prefill blocks: what lies behind the last token of the last block moves along."""
        tokens = PREFILL.block_tokens[0]
        return -(-self.tokens // tokens) * tokens

    def note(self, order: str) -> str:
        """Return what a transfer of it in this order tells the peer."""
        return f"{order} {self.number}"

    def given(self, engine: Engine, tables: Sequence[Sequence[int]]) -> list[Blocks | Sequence[int]]:
        """Return the block lists that decode names: without the cached prefix, and saying so."""
        tokens = dict(zip(engine.groups, engine.block_tokens, strict=True))
        skips = [self.cached // tokens[group] if tokens[group] else 0 for group in range(len(tables))]
        return [Blocks(ids[skip:], skip) if skip else ids for ids, skip in zip(tables, skips, strict=True)]


REQUESTS = (
    Request(0, 1_000),
    Request(1, 37),
    Request(2, 1_536, cached=1_024),
    Request(3, 700, cached=64),
    Request(4, 450),
    Request(5, 600, cached=256, how="WRITE"),
)


def draw_tables(engine: Engine) -> Tables:
    """Return a block list per request and group, out of free lists as a long-running engine has them."""
    chance = random.Random(engine.seed)
    free = {group: _worn(engine.num_blocks[at], chance) for at, group in enumerate(engine.groups)}
    tokens = {group: engine.block_tokens[at] for at, group in enumerate(engine.groups)}
    tables = []
    for request in REQUESTS:
        needs = [-(-request.tokens // tokens[group]) if tokens[group] else 1 for group in sorted(free)]
        tables.append([[free[group].pop() for _ in range(need)] for group, need in enumerate(needs)])
    return tables


def _worn(num_blocks: int, chance: random.Random) -> list[int]:
    """All blocks, in runs that earlier requests gave back: runs out of order, most of them descending."""
    runs, at = [], 0
    while at < num_blocks:
        stop = min(at + chance.randint(4, 48), num_blocks)
        runs.append(list(range(at, stop)))
        at = stop
    chance.shuffle(runs)
    return [block for run in runs for block in (run if chance.random() < 0.7 else run[::-1])]
