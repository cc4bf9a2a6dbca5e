"""Random models: the caches of two engines, before either lays them out."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from nixldesc import Axis

__all__ = ["KINDS", "Cache", "Life", "Limits", "Model", "Part", "random_model"]

KINDS = ("attention", "kv", "scaled", "mla", "stacked", "state", "weight", "opaque")


@dataclass(frozen=True, slots=True)
class Limits:
    """What random engines may be like; narrow it to what the connector under test can do.

    ``tp``, ``cp``, ``pp``: largest sizes; ``ranks``: most ranks of one engine. ``kinds``: of caches (``KINDS``: K and V
    packed, K and V apart, data with scales, a replicated latent, layers and heads in one array, recurrent state, a
    matrix of up to four axes, an opaque region). ``block_tokens``, ``cp_tokens``: what either side may choose from.
    ``segments``: most memories of one region. ``senders``: what ``plan`` may be told.

    ``ragged``: also head counts that the width does not divide, with any replication. ``boxes``: ranks hold boxes cut
    along several axes, in any number of parts, some twice. ``swizzled``: axes stored in parts. ``aliased``: regions
    that share memory, and regions of several groups. ``any_order``: axes and padding anywhere in a page.

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
    cp_tokens: tuple[int | None, ...] = (None, 1, 2, 3, 4, 8)
    segments: int = 3
    senders: tuple[Literal["one", "all"], ...] = ("one", "one", "one", "all")
    ragged: bool = True
    boxes: bool = True
    swizzled: bool = True
    aliased: bool = True
    any_order: bool = True


class Part(NamedTuple):
    """One section of a cache with its whole global ranges, before any rank takes its share."""

    name: str
    axes: tuple[Axis, ...]  # without the token axis
    split: tuple[str, ...]  # the axes that a rank may hold a range of
    itemsize: int
    tokens: int  # entries per token of the sequence, 0 for state
    units: dict[str, tuple[int, ...]]  # axis -> in what steps it may be stored in parts, the largest first


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
    exact: bool  # every token has one entry in each section of it: a grain in tokens means the same to all


_TOKEN_KINDS = ("attention", "kv", "scaled", "mla", "stacked")


def random_model(rnd: Random, limits: Limits, *, sharded: bool) -> Model:
    """``sharded``: some engine of the pair has context parallelism."""
    tokens = tuple(kind for kind in limits.kinds if kind in _TOKEN_KINDS)
    states = tuple(kind for kind in limits.kinds if kind not in _TOKEN_KINDS)
    kinds = ["token"] * 3 * bool(tokens) + ["state"] * bool(states) + ["whole"] * bool(tokens and sharded)
    lives = []
    for _ in range(rnd.choice((1, 1, 2, 3))):
        kind = rnd.choice(kinds)
        mixed = kind == "token" and bool(states) and not sharded and rnd.random() < 0.3
        sizes = (1,) if kind == "state" else limits.block_tokens
        lives.append(Life(kind, (rnd.choice(sizes),) if mixed else sizes, mixed))
    exact = rnd.random() < 0.7
    caches = []
    for number in range(max(len(lives), rnd.randint(1, limits.caches))):
        life = number if number < len(lives) else rnd.randrange(len(lives))
        what = lives[life]
        allowed = states if what.kind == "state" else tokens + states * (what.mixed and number >= len(lives))
        also = [n for n, other in enumerate(lives) if other == what and n != life]
        shared = limits.aliased and also and rnd.random() < 0.3
        parts = _parts(rnd, f"L{number}", rnd.choice(allowed), 1 if exact else rnd.choice((1, 1, 2)))
        if limits.swizzled:
            parts = tuple(part._replace(units=_units(rnd, part)) for part in parts)
        caches.append(Cache(parts, (life, rnd.choice(also)) if shared else (life,)))
    return Model(tuple(lives), tuple(caches), exact)


def _parts(rnd: Random, name: str, kind: str, per_token: int) -> tuple[Part, ...]:
    if kind == "opaque":
        return (Part(name, (), (), rnd.choice((1, 4, 12)), 0, {}),)
    if kind == "weight":
        names = rnd.sample(("expert", "row", "column", "plane"), rnd.choice((1, 2, 2, 3, 4)))
        axes = tuple(Axis(axis, 0, rnd.choice((1, 2, 3, 4, 6)[: 7 - len(names)])) for axis in names)
        return (Part(name, axes, tuple(names), rnd.choice((1, 2, 4)), 0, {}),)
    if kind == "state":
        return _state_parts(rnd, name)
    size = rnd.choice((1, 2, 3, 4))
    if kind == "mla":
        return (Part(name, *_bytes(rnd, (), size + 1), per_token, {}),)
    heads: tuple[Axis, ...] = (Axis("head", 0, rnd.choice((1, 2, 3, 4, 6))),)
    if kind == "stacked":
        heads = (Axis("layer", 0, rnd.choice((1, 2, 3, 4))), *heads)
    if kind in ("attention", "stacked"):
        return (Part(name, *_bytes(rnd, heads, size), per_token, {}),)
    sizes = {".k": size, ".v": size} if kind == "kv" else {".data": size, ".scale": 1}
    return tuple(Part(name + end, *_bytes(rnd, heads, own), per_token, {}) for end, own in sizes.items())


def _bytes(rnd: Random, axes: tuple[Axis, ...], size: int) -> tuple[tuple[Axis, ...], tuple[str, ...], int]:
    """Axes, those that may be split, and itemsize: the bytes of an item as an axis or as the item."""
    split = tuple(axis.name for axis in axes)
    if rnd.random() < 0.5:
        return (*axes, Axis("byte", 0, size)), split, 1
    return axes, split, size


def _state_parts(rnd: Random, name: str) -> tuple[Part, ...]:
    rows = Axis("row", 0, rnd.choice((1, 2, 3)))
    item = rnd.choice((1, 2))
    wanted = rnd.choice((("x",), ("x", "B", "C"), ("q", "k", "v")))
    channels = [(part, Axis("channel", 0, rnd.choice((1, 2, 4, 6)))) for part in wanted]
    parts = [Part(f"{name}.{part}", (axis, rows), ("channel",), item, 0, {}) for part, axis in channels]
    if rnd.random() < 0.7:
        lane = rnd.choice((0, 3))
        axes = (Axis("head", 0, rnd.choice((1, 2, 4))), Axis("lane", lane, lane + rnd.choice((1, 2))))
        parts.append(Part(f"{name}.ssm", axes, ("head",), rnd.choice((1, 4)), 0, {}))
    return tuple(parts)


def _units(rnd: Random, part: Part) -> dict[str, tuple[int, ...]]:
    """Steps of which each divides the one before, so that any two choices among them can meet."""
    names = [axis.name for axis in part.axes] + ["token"] * bool(part.tokens)
    some = [name for name in names if rnd.random() < 0.15]
    return {name: rnd.choice(((2,), (2,), (3,), (4, 2), (6, 2), (6, 3))) for name in some}
