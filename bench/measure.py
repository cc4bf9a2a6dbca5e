"""Two contestants, measured in turns: on a machine that others use too only their ratio means something."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter, thread_time
from typing import NamedTuple

Call = Callable[[], object]
Clock = Callable[[], float]

#: A sample is so many calls that it takes at least this long: far more than the clock's own cost.
SAMPLE_SECONDS = 1e-4


class Race(NamedTuple):
    """Seconds for one call (medians), and how many times faster ours is."""

    baseline: float
    ours: float
    ratio: float  # median of the rounds' ratios
    best: float  # ratio of the two shortest times


@contextmanager
def no_collector() -> Iterator[None]:
    """No garbage collection meanwhile: it would be charged to whoever happens to allocate."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def once(call: Call, calls: int = 1, clock: Clock = perf_counter) -> float:
    """Return seconds for one call."""
    begin = clock()
    for _ in range(calls):
        call()
    return (clock() - begin) / calls


def calls_per_sample(call: Call) -> int:
    """Return how many calls make a sample; the first call also warms up."""
    if once(call) > 10 * SAMPLE_SECONDS:
        return 1
    return max(1, round(SAMPLE_SECONDS / max(once(call), 1e-8)))


def nothing() -> None:
    pass


def race(
    baseline: Call,
    ours: Call,
    *,
    seconds: float,
    least_rounds: int = 5,
    between: Callable[[], None] = nothing,
    clock: Clock = perf_counter,
) -> Race:
    """Measure A B A B ... for so many seconds; `between` clears up after each round, unmeasured."""
    with no_collector():
        calls = calls_per_sample(baseline), calls_per_sample(ours)
        end = perf_counter() + seconds
        rounds: list[tuple[float, float]] = []
        while len(rounds) < least_rounds or perf_counter() < end:
            rounds.append((once(baseline, calls[0], clock), once(ours, calls[1], clock)))
            between()
    return summary(rounds)


def summary(rounds: list[tuple[float, float]]) -> Race:
    """Sum up rounds of (baseline, ours)."""
    first, second = zip(*rounds, strict=True)
    return Race(median(first), median(second), median(a / b for a, b in rounds), min(first) / min(second))


def time_of(call: Call, *, seconds: float) -> float:
    """Return the median of seconds for one call."""
    return median(_samples(call, seconds, perf_counter))


def processor_time(call: Call, *, seconds: float) -> float:
    """Return the least of seconds of processor time for one call: for figures that stand alone on a busy machine."""
    return min(_samples(call, seconds, thread_time))


def _samples(call: Call, seconds: float, clock: Clock) -> list[float]:
    calls = calls_per_sample(call)
    end = perf_counter() + seconds
    samples: list[float] = []
    while len(samples) < 5 or perf_counter() < end:
        samples.append(once(call, calls, clock))
    return samples
