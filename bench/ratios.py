"""Every speed target, measured in one run: ``python bench/ratios.py`` (or ``make bench``).

The baseline and ours take turns (A B A B ...), so that a busy machine slows both; a ratio is the median of the rounds'
ratios, `best` the ratio of the two shortest times; us are medians. Targets in ms have no second contestant: they are
held against the shortest processor time, which is what is printed. Each pair of contestants is first shown to give
equal results. Rows that need NIXL say so where it is not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from math import nan
from tempfile import TemporaryDirectory

import baseline
import measure
import numpy as np
import peer_rows
import request_rows
import segments
import transfers
import workloads
from measure import Race
from targets import Row, Scale, adds_ms, at_least, same, under_ms, within

from nixldesc import DlistPair, Layout, Region, plan
from nixldesc._memory import forget
from nixldesc.kernels import _kernels

# ------------------------------------------------------------------------------------------------- without NIXL


def ids_layout(scale: Scale) -> Layout:
    """Equal regions; a pool large enough for the largest request."""
    size = 4096 * scale.pool
    return Layout([Region(f"l{i}", (1 << 40) + i * size, 4096, scale.pool) for i in range(scale.regions)])


def random_ids(scale: Scale, count: int, seed: int = 0) -> list[int]:
    return workloads.block_table("random", scale.pool, count, seed=seed)


def ids_from_lists(scale: Scale, blocks: int) -> Row:
    layout, ids = ids_layout(scale), random_ids(scale, blocks)
    plain = baseline.DescIds(layout)
    same(plain([ids]), layout.desc_ids([ids]))
    race = measure.race(lambda: plain([ids]), lambda: layout.desc_ids([ids]), seconds=scale.seconds)
    return Row(f"ids from lists, {blocks:,} blocks x {scale.regions} regions", race, at_least(5))


def ids_from_arrays(scale: Scale, blocks: int) -> Row:
    layout, ids = ids_layout(scale), np.array(random_ids(scale, blocks), dtype=np.int32)
    plain = baseline.DescIds(layout)
    same(plain([ids]), layout.desc_ids([ids]))
    race = measure.race(lambda: plain([ids]), lambda: layout.desc_ids([ids]), seconds=scale.seconds)
    return Row(f"ids from int32 arrays, {blocks:,} blocks x {scale.regions} regions", race, at_least(3))


def ids_into_out(scale: Scale, blocks: int) -> Row:
    layout, ids = ids_layout(scale), np.array(random_ids(scale, blocks), dtype=np.int32)
    plain = baseline.DescIdsInto(layout)
    out, ours = np.empty((2, blocks * scale.regions), dtype=np.int32)
    plain(ids, out)
    same(out, layout.desc_ids([ids], out=ours))
    # Both write to one memory: two buffers may share their cache lines unequally.
    race = measure.race(lambda: plain(ids, out), lambda: layout.desc_ids([ids], out=out), seconds=scale.seconds)
    return Row(f"ids from int32 arrays, {blocks:,} blocks, out=, against one np.add", race, at_least(1))


def pair_sort(scale: Scale, pairs: int) -> Row:
    src, dst = (np.array(random_ids(scale, pairs, seed), dtype=np.int32) for seed in (1, 2))
    mine = src.copy(), dst.copy()

    def sort() -> None:  # it sorts in place, so each call starts with a fresh copy
        np.copyto(mine[0], src)
        np.copyto(mine[1], dst)
        _kernels.sort_pairs(*mine)

    sort()
    for plain, ours in zip(baseline.sort_pairs(src, dst), mine, strict=True):
        same(plain, ours)
    race = measure.race(lambda: baseline.sort_pairs(src, dst), sort, seconds=scale.seconds)
    return Row(f"pair sort, {pairs:,} pairs (two copies included)", race, at_least(10))


def dense_fresh(scale: Scale) -> Row:
    layout = workloads.dense(scale.dense_regions, scale.dense_blocks).dst
    same(baseline.dense_table(layout), layout.dense_table())
    race = measure.race(lambda: baseline.dense_table(layout), layout.dense_table, seconds=scale.seconds, least_rounds=7)
    return Row(f"dense N x 3 of {layout.num_descs:,} descriptors, fresh", race, at_least(5))


def dense_into_out(scale: Scale) -> Row:
    layout = workloads.dense(scale.dense_regions, scale.dense_blocks).dst
    out = np.empty((layout.num_descs, 3), dtype=np.uint64)
    same(baseline.dense_table(layout), layout.dense_table(out))
    race = measure.race(lambda: out.fill(0), lambda: layout.dense_table(out), seconds=scale.seconds, least_rounds=7)
    return Row("the same with out=, against out.fill(0)", race, within(1.5))


def plan_time(scale: Scale, workload: workloads.Workload) -> Row:
    def made() -> object:
        return plan(workload.dst, workload.srcs, dst_rank=0, dst_size=workload.dst_size)

    seconds = measure.processor_time(made, seconds=scale.seconds)
    what = f"plan {len(workload.dst.regions)} regions x {len(workload.srcs)} source ranks, {workload.name}"
    return Row(what, Race(nan, seconds, nan, nan), under_ms(10))


IMPORT = """
from time import thread_time
a = thread_time()
import numpy
b = thread_time()
import nixldesc
c = thread_time()
import sys
print(b - a, c - a, "nixl" in sys.modules or "torch" in sys.modules)
"""


def import_time(scale: Scale) -> Row:
    """Fresh interpreters, both packages compiled to bytecode beforehand, as an installation does."""
    with TemporaryDirectory() as compiled:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = compiled
        rounds = [_import_once(env) for _ in range(scale.imports + 1)][1:]
    numpy_alone, both = (min(times) for times in zip(*rounds, strict=True))
    return Row("import numpy, and nixldesc on top", Race(numpy_alone, both, nan, nan), adds_ms(15))


def _import_once(env: dict[str, str]) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, env=env)
    numpy_alone, both, loads_more = done.stdout.split()
    if loads_more == "True":
        raise RuntimeError("import nixldesc loads nixl or torch")
    return float(numpy_alone), float(both)


def rows(scale: Scale) -> Iterator[Row]:
    """All rows of the table of targets that need no NIXL."""
    for blocks in scale.blocks:
        yield ids_from_lists(scale, blocks)
    for blocks in scale.blocks[:2]:
        yield ids_from_arrays(scale, blocks)
    yield ids_into_out(scale, scale.blocks[-1])
    yield pair_sort(scale, scale.blocks[-1])
    yield from request_rows.rows(scale)
    yield dense_fresh(scale)
    yield dense_into_out(scale)
    yield plan_time(scale, workloads.mla(scale.layers, sources=scale.sources))
    yield from peer_rows.rows(scale)
    yield import_time(scale)


# ------------------------------------------------------------------------------------------- growth, not targets


def growth(scale: Scale) -> Iterator[str]:
    """Time of the ids against blocks and against regions: ns for one id should fall to a constant."""
    yield "time of desc_ids, from lists (random blocks): us, and ns for each id"
    largest, most = scale.blocks[-1], scale.regions
    points = [(2**k, most) for k in range(0, largest.bit_length(), 2)] + [(largest, most)]
    points += [(min(1024, largest), 2**k) for k in range(most.bit_length())]
    for blocks, regions in points:
        layout = Layout(ids_layout(scale).regions[:regions])
        pair, ids = DlistPair(layout, layout), random_ids(scale, blocks)
        tables = random_ids(scale, blocks, 1), random_ids(scale, blocks, 2)
        one = measure.time_of(lambda: layout.desc_ids([ids]), seconds=scale.seconds / 10)
        two = measure.time_of(lambda: pair.desc_ids([tables[0]], [tables[1]]), seconds=scale.seconds / 10)
        n = blocks * regions
        yield (
            f"  {blocks:>6,} blocks x {regions:>2} regions   layout {one * 1e6:>9.2f} us {one * 1e9 / n:>8.3f} ns"
            f"   pair, merge order {two * 1e6:>9.2f} us {two * 1e9 / n / 2:>8.3f} ns"
        )


def steps(call: Callable[[], object]) -> int:
    """Count the function calls, Python's and C's, that `call` makes: the same on any machine."""
    count = 0

    def tally(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(tally)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


def plan_steps(layers: int, sources: int) -> tuple[int, int]:
    """Return function calls of a plan of heads spread over `sources` ranks, and the regions it derives."""
    workload = workloads.wide_tp(layers, sources)
    forget()
    count = steps(lambda: plan(workload.dst, workload.srcs, dst_rank=0, dst_size=workload.dst_size))
    return count, sum(len(pair.dst.regions) for pair in workload.pairs())


def plan_growth(scale: Scale) -> Iterator[str]:
    """Steps of a plan against regions and against sources."""
    yield "steps of plan (function calls; heads of every layer spread over the sources)"
    for layers, sources in (
        *((scale.layers // part, scale.sources) for part in (8, 4, 2)),
        *((scale.layers, max(1, scale.sources // part)) for part in (8, 4, 2, 1)),
    ):
        count, derived = plan_steps(layers, sources)
        yield (
            f"  {layers:>3} regions x {sources} sources   {count:>7,} calls, {derived:>5,} regions derived: "
            f"{count / (layers * sources):.1f} calls for each region and source"
        )


# ------------------------------------------------------------------------------------------------------ the report


def line(row: Row) -> str:
    if row.race is None:
        return f"{row.work:<66} {'needs nixl':>46} {row.target.words:>17}"
    race = row.race
    figures = [f"{seconds * 1e6:>13,.2f}" if seconds == seconds else f"{'-':>13}" for seconds in race[:2]]
    ratios = [f"{ratio:>9,.2f}" if ratio == ratio else f"{'-':>9}" for ratio in race[2:]]
    met = "met" if row.target.met(race) else "NOT MET"
    return f"{row.work:<66} {' '.join(figures + ratios)} {row.target.words:>17}  {met}"


HEAD = f"{'work':<66} {'baseline us':>13} {'ours us':>13} {'ratio':>9} {'best':>9} {'target':>17}"


def report(scale: Scale) -> Iterator[str]:
    """All of it, line by line as it is measured."""
    yield from (HEAD, "-" * len(HEAD))
    missed = 0
    for part in (rows(scale), segments.rows(scale), transfers.rows(scale)):
        for row in part:
            yield line(row)
            missed += row.race is not None and not row.target.met(row.race)
    yield ""
    yield f"{missed} targets NOT MET" if missed else "all targets measured are met"
    for section in (growth, plan_growth, transfers.shares, transfers.wire):
        yield ""
        yield from section(scale)


def main() -> None:
    for text in report(Scale()):
        print(text, flush=True)


if __name__ == "__main__":
    main()
