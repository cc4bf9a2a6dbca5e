"""A mutation fuzzer for `Layout.from_dict`: valid dicts, changed a little, a million times.

    python tests/hard/fuzz_stranger.py [INPUTS [SEED]]

Each input must become a sound layout, which survives its own dict, or a GeometryError. Ends with status 1 after
anything else; the first few inputs that did it are printed. The same INPUTS and SEED give the same inputs.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import strangers

from nixldesc import Layout


class Clock:
    """`Layout.from_dict` and the longest that it took, in seconds of the processor."""

    def __init__(self) -> None:
        self.longest = 0.0

    def read(self, given: Any) -> Layout:
        began = time.process_time()
        try:
            return Layout.from_dict(given)
        finally:
            self.longest = max(self.longest, time.process_time() - began)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def say(line: str, to: TextIO = sys.stdout) -> None:
    print(line, file=to, flush=True)


def run(inputs: int, seed: int) -> int:
    rng = random.Random(seed)
    seeds = strangers.messages()
    tally, clock = strangers.Tally(), Clock()
    before, began = peak_megabytes(), time.perf_counter()
    while tally.inputs < inputs:
        tally.take(strangers.mutate(rng, rng.choice(seeds)), clock.read)
        if tally.inputs % 100_000 == 0:
            say(f"{tally.inputs:,} inputs", sys.stderr)
    for crash in tally.crashes[:5]:
        say(f"CRASH {crash}")
    figures = {
        "inputs": tally.inputs,
        "valid": tally.valid,
        "refused": tally.refused,
        "crashes": len(tally.crashes),
        "seconds": round(time.perf_counter() - began, 1),
        "longest_cpu_ms": round(clock.longest * 1e3, 1),
        "peak_growth_mb": round(peak_megabytes() - before, 1),
        "seed": seed,
    }
    say(" ".join(f"{name}={value}" for name, value in figures.items()))
    return 1 if tally.crashes else 0


if __name__ == "__main__":
    faulthandler.enable()
    words = [int(word) for word in sys.argv[1:]]
    sys.exit(run(words[0] if words else 1_000_000, words[1] if words[1:] else 1))
