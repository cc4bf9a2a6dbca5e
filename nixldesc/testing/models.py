"""Random models: the caches of two engines, before either lays them out."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from nixldesc import Axis

__all__ = ["KINDS", "Cache", "Life", "Limits", "Model", "Part", "random_model"]

KINDS = ("attention", "kv", "scaled", "mla", "state", "opaque")


@dataclass(frozen=True, slots=True)
class Limits:
    """What random engines may be like; narrow it to what the connector under test can do.

    ``tp``, ``cp``, ``pp``: largest sizes; ``ranks``: most ranks of one engine. ``kinds``: of caches
    (``KINDS``: K and V packed, K and V apart, data with scales, a replicated latent, recurrent
    state, an opaque region). ``block_tokens``: what either side may choose from. ``ragged``: also
    head counts that the width does not divide, with any replication. ``aliased``: regions that
    share memory, and regions of several groups. ``any_order``: axes and padding anywhere in a page.

    >>> Limits(cp=1, block_tokens=(4,), mem_types=("DRAM",)).pp
    2
    """

    tp: int = 4
    cp: int = 3
    pp: int = 2
    ranks: int = 6
    caches: int = 4
    kinds: tuple[str, ...] = KINDS
    mem_types: tuple[str, ...] = ("VRAM", "DRAM", "FILE")
    block_tokens: tuple[int, ...] = (1, 2, 3, 4, 6)
    ragged: bool = True
    aliased: bool = True
    any_order: bool = True


class Part(NamedTuple):
    """One section of a cache with its whole global ranges, before any rank takes its share."""

    name: str
    axes: tuple[Axis, ...]  # without the token axis
    split: str  # the axis that tensor parallelism may cut, "" for none
    itemsize: int
    tokens: int  # entries per token of the sequence, 0 for state


class Life(NamedTuple):
    """What one block table stands for: the caches that come and go together."""

    kind: str  # "token", "whole" (not sharded by context parallelism) or "state"
    block_tokens: tuple[int, ...]  # what an engine may choose
    mixed: bool  # state may be in the same table as token caches


class Cache(NamedTuple):
    """What one layer keeps."""

    parts: tuple[Part, ...]
    lives: tuple[int, ...]  # several: one tensor that several groups share


class Model(NamedTuple):
    """What both engines have."""

    lives: tuple[Life, ...]
    caches: tuple[Cache, ...]


_TOKEN_KINDS = ("attention", "kv", "scaled", "mla")


def random_model(rnd: Random, limits: Limits, *, sharded: bool) -> Model:
    """``sharded``: some engine of the pair has context parallelism."""
    tokens = tuple(kind for kind in limits.kinds if kind in _TOKEN_KINDS)
    states = tuple(kind for kind in limits.kinds if kind not in _TOKEN_KINDS)
    kinds = ["token"] * 3 * bool(tokens) + ["state"] * bool(states)
    kinds += ["whole"] * bool(tokens and sharded)
    lives = []
    for _ in range(rnd.choice((1, 1, 2, 3))):
        kind = rnd.choice(kinds)
        mixed = kind == "token" and bool(states) and not sharded and rnd.random() < 0.3
        sizes = (1,) if kind == "state" else limits.block_tokens
        lives.append(Life(kind, (rnd.choice(sizes),) if mixed else sizes, mixed))
    caches = []
    for number in range(max(len(lives), rnd.randint(1, limits.caches))):
        life = number if number < len(lives) else rnd.randrange(len(lives))
        what = lives[life]
        allowed = states if what.kind == "state" else tokens
        if what.mixed and number >= len(lives):
            allowed = tokens + states
        also = [n for n, other in enumerate(lives) if other == what and n != life]
        shared = limits.aliased and also and rnd.random() < 0.3
        parts = _parts(rnd, f"L{number}", rnd.choice(allowed))
        caches.append(Cache(parts, (life, rnd.choice(also)) if shared else (life,)))
    return Model(tuple(lives), tuple(caches))


def _parts(rnd: Random, name: str, kind: str) -> tuple[Part, ...]:
    if kind == "opaque":
        return (Part(name, (), "", rnd.choice((1, 4, 12)), 0),)
    if kind == "state":
        return _state_parts(rnd, name)
    per_token = rnd.choice((1, 1, 1, 2))
    size = rnd.choice((1, 2, 3))
    if kind == "mla":
        return (Part(name, *_bytes(rnd, (), size + 1), per_token),)
    heads = (Axis("head", 0, rnd.choice((1, 2, 3, 4, 6))),)
    if kind == "attention":
        return (Part(name, *_bytes(rnd, heads, size), per_token),)
    names = (".k", ".v") if kind == "kv" else (".data", ".scale")
    sizes = (size, size) if kind == "kv" else (size, 1)
    return tuple(Part(name + end, *_bytes(rnd, heads, size), per_token) for end, size in zip(names, sizes, strict=True))


def _bytes(rnd: Random, axes: tuple[Axis, ...], size: int) -> tuple[tuple[Axis, ...], str, int]:
    """Axes, split axis and itemsize: the bytes of an item as an axis or as the item."""
    split = axes[0].name if axes else ""
    if rnd.random() < 0.5:
        return (*axes, Axis("byte", 0, size)), split, 1
    return axes, split, size


def _state_parts(rnd: Random, name: str) -> tuple[Part, ...]:
    rows = Axis("row", 0, rnd.choice((1, 2, 3)))
    item = rnd.choice((1, 2))
    wanted = rnd.choice((("x",), ("x", "B", "C"), ("q", "k", "v")))
    parts = [
        Part(f"{name}.{part}", (Axis("channel", 0, rnd.choice((1, 2, 4, 6))), rows), "channel", item, 0)
        for part in wanted
    ]
    if rnd.random() < 0.7:
        lane = rnd.choice((0, 3))
        axes = (Axis("head", 0, rnd.choice((1, 2, 4))), Axis("lane", lane, lane + rnd.choice((1, 2))))
        parts.append(Part(f"{name}.ssm", axes, "head", rnd.choice((1, 4)), 0))
    return tuple(parts)
