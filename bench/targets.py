"""What a row of the table of targets is: the work, its race, what it must reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from measure import Race
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Scale:
    """How large and how long; the tests take a small one."""

    regions: int = 64
    blocks: tuple[int, ...] = (16, 128, 1024, 8192)
    pool: int = 16_384
    dense_regions: int = 80
    dense_blocks: int = 81_250
    layers: int = 160
    sources: int = 8
    imports: int = 15
    objects: tuple[int, ...] = (10_000, 100_000)
    tensors: tuple[int, ...] = (32, 80)
    peers: tuple[int, ...] = (1, 8)
    nhd_layers: int = 92
    weight_layers: int = 32
    seconds: float = 1.0


class Target(NamedTuple):
    """What a row must reach, in words and as a test of its race."""

    words: str
    met: Callable[[Race], bool]


class Row(NamedTuple):
    """A line of the table; `race` is None where NIXL is needed and not there."""

    work: str
    race: Race | None
    target: Target


def at_least(ratio: float) -> Target:
    return Target(f">= {ratio:,g}x", lambda race: race.ratio >= ratio)


def within(times: float) -> Target:
    return Target(f"<= {times:g}x the time", lambda race: race.ratio >= 1 / times)


def under_share(share: float) -> Target:
    return Target(f"< {share:.0%} of it", lambda race: race.ratio > 1 / share)


def under_ms(milliseconds: float) -> Target:
    return Target(f"< {milliseconds:g} ms", lambda race: race.ours < milliseconds / 1e3)


def adds_ms(milliseconds: float) -> Target:
    return Target(f"+ <= {milliseconds:g} ms", lambda race: race.ours - race.baseline <= milliseconds / 1e3)


#: For a row that is there to be seen.
NO_TARGET = within(20)._replace(words="(no target)")


def same(a: NDArray[Any], b: NDArray[Any]) -> None:
    """Refuse to compare the speed of two that do not do the same."""
    if not np.array_equal(a, b):
        raise RuntimeError("baseline and nixldesc differ: there is nothing to measure")
