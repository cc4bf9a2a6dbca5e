"""The benchmarks run, measure what they say, and leave no public call out. No test looks at a time."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import nixldesc
from nixldesc import DlistPair, Layout, Region

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

# The folder is no package: its modules are scripts beside one another.
baseline: Any = importlib.import_module("baseline")
measure: Any = importlib.import_module("measure")
ratios: Any = importlib.import_module("ratios")
segments: Any = importlib.import_module("segments")
targets: Any = importlib.import_module("targets")
transfers: Any = importlib.import_module("transfers")
workloads: Any = importlib.import_module("workloads")
SUITES: dict[str, Any] = {
    path.stem: importlib.import_module(f"benchmarks.{path.stem}") for path in sorted(BENCH.glob("benchmarks/[a-z]*.py"))
}

TINY = targets.Scale(
    regions=3,
    blocks=(2, 5, 8, 16),
    pool=64,
    dense_regions=3,
    dense_blocks=50,
    layers=16,
    sources=2,
    imports=1,
    objects=(10, 300),
    tensors=(2,),
    peers=(1, 2),
    nhd_layers=2,
    weight_layers=1,
    seconds=0.0,
)

# ------------------------------------------------------------------------------------------------- every benchmark


def cases(suite: type) -> Iterator[tuple[Any, ...]]:
    """A suite's parameters: the first (smallest) of each list of sizes, every one of each list of names."""
    lists = getattr(suite, "params", ())
    yield from itertools.product(*[values[:1] if isinstance(values[0], int) else values for values in lists])


def benchmarks() -> Iterator[Any]:
    """Every benchmark of every suite with small parameters: (suite class or None, function name or function, case)."""
    for module in SUITES.values():
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                for case in cases(value):
                    yield pytest.param(value, case, id="-".join([name, *map(str, case)]))


KINDS = ("time_", "track_", "peakmem_")


def run_suite(suite: type, case: tuple[Any, ...]) -> list[str]:
    """Set one suite up, call each of its benchmarks once, take it down; return the names of what ran."""
    made = suite()
    try:
        getattr(made, "setup", lambda *_: None)(*case)
    except NotImplementedError as e:  # asv's word for "not here"
        pytest.skip(f"{suite.__name__}: {e}")
    try:
        names = [name for name in dir(suite) if name.startswith(KINDS)]
        for name in names:
            getattr(made, name)(*case)
    finally:
        getattr(made, "teardown", lambda *_: None)(*case)
    return names


@pytest.mark.parametrize(("suite", "case"), list(benchmarks()))
def test_every_benchmark_runs(suite: type, case: tuple[Any, ...]) -> None:
    assert run_suite(suite, case)


def test_asv_finds_the_suites() -> None:
    text = re.sub(r"^\s*//.*$", "", (BENCH / "asv.conf.json").read_text(), flags=re.MULTILINE)
    conf = json.loads(text)
    assert (BENCH / conf["benchmark_dir"] / "__init__.py").exists()
    assert (BENCH / conf["repo"]).resolve() == BENCH.parent
    assert set(SUITES) == {"layouts", "peers", "per_request", "plans"}


def test_raw_benchmarks_are_programs() -> None:
    programs = [value() for name, value in vars(SUITES["plans"]).items() if name.startswith("timeraw_")]
    assert programs == ["import nixldesc", "import numpy"]
    for program in programs:
        compile(program, "<benchmark>", "exec")


# ------------------------------------------------------------------------------------------------ no call left out

EXEMPT = {
    "NixldescError": "an error is raised when nothing is to be fast any more",
    "GeometryError": "an error",
    "BlockIdError": "an error",
    "PeerMismatchError": "an error",
    "TransferError": "an error",
    "Plan": "only plan() makes one",
    "Layout.shape": "Layout.signature calls it, and is timed",
    "Layout.local_tokens": "a division",
    "Blocks.with_ids": "Blocks is timed",
    "DlistPair.kin": "Plan.desc_ids asks for it, and is timed",
    "Section.runs": "Layout calls it to prove a page, and is timed",
}


def functions_of(value: Any) -> Iterator[Callable[..., Any]]:
    value = getattr(value, "__func__", value)
    if inspect.isfunction(value):
        yield value


def public_calls() -> dict[str, CodeType | None]:
    """Every public callable of the package and every public method of its classes, with its code if it is Python."""
    found: dict[str, CodeType | None] = {}
    for name in nixldesc.__all__:
        value = getattr(nixldesc, name)
        if inspect.isfunction(value):
            found[name] = value.__code__
        elif inspect.isclass(value):
            found[name] = getattr(vars(value).get("__init__"), "__code__", None)
            for member, method in vars(value).items():
                if not member.startswith("_") and not issubclass(value, Exception):
                    for function in functions_of(method):
                        found[f"{name}.{member}"] = function.__code__
    return found


def called_from_benchmarks() -> set[CodeType]:
    """The code that a `time_` method itself calls: what it is there to measure, not what runs underneath."""
    seen: set[CodeType] = set()
    first = {parameters.values[0]: parameters.values[1] for parameters in reversed(list(benchmarks()))}

    def look(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call" and frame.f_back is not None and frame.f_back.f_code.co_name.startswith("time_"):
            seen.add(frame.f_code)

    for suite, case in first.items():
        if suite.__module__ == "benchmarks.peers":  # may be skipped, and times nothing of the package itself
            continue
        before = sys.getprofile()
        sys.setprofile(look)
        try:
            run_suite(suite, case)
        finally:
            sys.setprofile(before)
    return seen


def test_every_public_call_is_benchmarked_or_exempt() -> None:
    public, seen = public_calls(), called_from_benchmarks()
    assert len(public) > 30
    missing = {name for name, code in public.items() if code not in seen}
    assert missing - set(EXEMPT) == set(), "benchmark these, or say here why not"
    assert set(EXEMPT) - missing == set(), "these are benchmarked: no longer exempt"


# --------------------------------------------------------------------------------- baseline and ours give the same


def uneven() -> tuple[Layout, Layout]:
    """Two layouts of two groups, with padding on one side and different numbers of blocks."""
    src = [Region(f"r{i}", 1000 * i, 8, 20 + i, block_stride=8 + i % 2, groups=(i % 2,), device_id=3) for i in range(5)]
    dst = [Region(f"r{i}", 5000 + 900 * i, 8, 40 - i, groups=(i % 2,)) for i in range(5)]
    return Layout(src), Layout(dst)


def test_ids_of_baseline_and_ours_are_equal() -> None:
    layout, _ = uneven()
    tables = [[7, 3, 19, 0], [5, 6]]
    ours = layout.desc_ids(tables, order="group")
    theirs = baseline.DescIds(layout)(tables)
    assert theirs.tolist() == ours.tolist()
    assert theirs.tolist()[:4] == [7, 3, 19, 0]
    out = np.empty(5 * 3, dtype=np.int32)
    alike = Layout([Region(f"r{i}", 1000 * i, 8, 20) for i in range(5)])
    ids = np.array([4, 2, 9], dtype=np.int32)
    baseline.DescIdsInto(alike)(ids, out)
    assert out.tolist() == alike.desc_ids([ids]).tolist()


def test_pair_ids_of_baseline_and_ours_are_equal() -> None:
    layouts = [Layout([Region(f"r{i}", base + 1000 * i, 8, 50) for i in range(4)]) for base in (0, 10_000)]
    tables = [[[7, 3, 19, 0]], [[44, 2, 3, 1]]]
    theirs = baseline.pair_desc_ids(*map(baseline.DescIds, layouts), *tables)
    ours = DlistPair(*layouts).desc_ids(*tables)
    assert [ids.tolist() for ids in theirs] == [ids.tolist() for ids in ours]
    assert ours[1].tolist()[:4] == [1, 2, 3, 44]


def test_tables_of_baseline_and_ours_are_equal() -> None:
    for layout in uneven():
        assert np.array_equal(baseline.dense_table(layout), layout.dense_table())
        assert baseline.tuples(layout) == [tuple(row) for row in layout.dense_table().tolist()]


def test_questions_of_baseline_and_ours_are_equal() -> None:
    pair = workloads.dense(3, 64).pairs()[0]
    ids = pair.desc_ids([[1, 2, 3, 9, 8, 62, 63]], [[11, 12, 13, 19, 20, 0, 1]])
    assert baseline.merged_ops(pair.src, pair.dst, *ids) == pair.merged_ops(*ids) == 3 * 4
    assert np.array_equal(baseline.moves(pair.src, pair.dst, *ids), pair.moves(*ids))


def test_a_difference_is_refused() -> None:
    with pytest.raises(RuntimeError, match="differ"):
        targets.same(np.arange(3), np.arange(4))


# ----------------------------------------------------------------------------------------------------- workloads


def test_the_named_workloads_are_what_they_say() -> None:
    made = {name: make() for name, make in workloads.WORKLOADS.items()}
    assert made["dense"].dst.num_descs == 6_500_000
    assert len(made["mla"].dst.regions) == 61
    assert {region.groups for region in made["sliding_window"].dst.regions} == {(0,), (1,)}
    names = {section.name for region in made["hybrid"].dst.regions for section in region.sections}
    assert {"l0.ssm", "l0.B", "l4"} <= names
    [pair] = made["nhd"].pairs()
    assert len(pair.dst.regions) == len(made["nhd"].dst.regions)
    assert {region.runs for region in pair.dst.regions} == {64}
    assert len(made["wide_tp"].pairs()) == 8


@pytest.mark.parametrize("kind", workloads.TABLES)
@pytest.mark.parametrize("prefill", [False, True])
def test_a_block_table_names_distinct_blocks_of_the_pool(kind: str, prefill: bool) -> None:
    table = workloads.block_table(kind, 300, 40, seed=5, prefill=prefill)
    assert len(set(table)) == 40 and set(table) <= set(range(300))
    assert table == workloads.block_table(kind, 300, 40, seed=5, prefill=prefill)


def test_a_pool_hands_out_what_was_freed_first_and_tails_come_first() -> None:
    pool = workloads.BlockPool(6)
    first, second = pool.take(3), pool.take(3)
    pool.give_back(second)
    pool.give_back(first)
    assert pool.take(4) == [5, 4, 3, 2]


def test_a_churned_table_has_runs_in_both_directions() -> None:
    table = workloads.block_table("churned", 4096, 512, seed=1)
    steps = [b - a for a, b in itertools.pairwise(table)]
    assert min(steps.count(-1), steps.count(1)) > 50
    assert steps.count(-1) + steps.count(1) < 511


# -------------------------------------------------------------------------------------------------------- the report


def test_steps_counts_calls_and_leaves_the_profiler_as_it_was() -> None:
    before = sys.getprofile()
    three = ratios.steps(lambda: [len(()), len(()), len(())])
    assert three - ratios.steps(lambda: []) == 3
    assert sys.getprofile() is before


def test_a_plan_takes_no_steps_for_regions_and_steps_in_proportion_to_sources() -> None:
    by_regions = [ratios.plan_steps(layers, 2) for layers in (16, 32, 64)]
    by_sources = [ratios.plan_steps(32, sources) for sources in (2, 4, 8)]
    for (_, derived_1), (_, derived_2), (_, derived_4) in (by_regions, by_sources):
        assert (derived_2, derived_4) == (2 * derived_1, 4 * derived_1)
    # Alike regions are one family: what is left for each of them is array arithmetic.
    assert len({calls for calls, _ in by_regions}) == 1
    (calls_1, _), (calls_2, _), (calls_4, _) = by_sources
    # Linear: twice as far, twice as many more calls. Quadratic would be three times.
    assert 1.8 < (calls_4 - calls_2) / (calls_2 - calls_1) < 2.2


def test_calls_are_measured_in_turns() -> None:
    order: list[str] = []
    measure.race(lambda: order.append("a"), lambda: order.append("b"), seconds=0.0, least_rounds=3)
    turns = [name for name, _ in itertools.groupby(order)]
    assert turns == ["a", "b"] * (len(turns) // 2) and len(turns) >= 8


def test_a_summary_is_of_medians_and_of_the_shortest() -> None:
    race = measure.summary([(4.0, 1.0), (6.0, 3.0), (9.0, 2.0)])
    assert race == (6.0, 2.0, 4.0, 4.0)


def test_targets_are_met_or_not() -> None:
    race = measure.Race(baseline=0.010, ours=0.002, ratio=5.0, best=5.0)
    assert targets.at_least(5).met(race) and not targets.at_least(5.1).met(race)
    assert targets.within(1.5).met(race) and not targets.within(1.5).met(race._replace(ratio=0.6))
    assert targets.under_share(0.25).met(race) and not targets.under_share(0.2).met(race)
    assert targets.under_ms(3).met(race) and not targets.under_ms(2).met(race)
    assert targets.adds_ms(15).met(race._replace(ours=0.024)) and not targets.adds_ms(15).met(race._replace(ours=0.026))


ROWS = [
    "ids from lists, 2 blocks x 3 regions",
    "ids from lists, 5 blocks x 3 regions",
    "ids from lists, 8 blocks x 3 regions",
    "ids from lists, 16 blocks x 3 regions",
    "ids from int32 arrays, 2 blocks x 3 regions",
    "ids from int32 arrays, 5 blocks x 3 regions",
    "ids from int32 arrays, 16 blocks, out=, against one np.add",
    "pair sort, 16 pairs (two copies included)",
    *[
        f"pair.desc_ids, {blocks} blocks x 3 regions, {said}"
        for blocks in (2, 5, 8)
        for said in ("at= on both sides", "tokens=")
    ],
    *[
        f"made.desc_ids, 2 sources, {blocks} blocks x 3 regions, {lists}"
        for blocks in (2, 5, 8)
        for lists in ("the same lists", "lists of their own")
    ],
    "dense N x 3 of 150 descriptors, fresh",
    "the same with out=, against out.fill(0)",
    "plan 16 regions x 2 source ranks, mla",
    "plan 16 regions x 2 sources with all pairs, against making 64 dataclasses",
    "made.bind of the same, pairs made when looked at, against plan",
    "plan and tables, 2 layers of NHD, TP 8 to 1, against HND",
    *[
        f"handshake, 2 tensors {kind}, {peers}, met {when}"
        for kind in ("GQA", "MLA", "hybrid")
        for peers in ("1 peer", "2 peers")
        for when in ("again", "first")
    ],
    *[f"bytes on the wire, 2 tensors {kind}, against parallel lists" for kind in ("GQA", "MLA", "hybrid")],
    "weights, 1 layers x 7, 8 shards to TP 2: 72 rows",
    "import numpy, and nixldesc on top",
]


def test_every_row_is_printed_with_its_figures() -> None:
    rows = list(ratios.rows(TINY))
    # What a weight row is held against depends on what is installed.
    assert [row.work.split(", against mooncake")[0].split(" (mooncake")[0] for row in rows] == ROWS
    for row in rows:
        assert row.race.ours > 0
        assert row.target.words in ratios.line(row)
        assert ratios.line(row).endswith((" met", "NOT MET"))


def test_growth_is_printed_point_by_point() -> None:
    points = list(ratios.growth(TINY))
    assert sum("16 blocks x  3 regions" in point for point in points) >= 1
    assert sum("16 blocks x  2 regions" in point for point in points) == 1
    assert len([*ratios.plan_growth(TINY)]) == 1 + 3 + 4


def test_without_nixl_its_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "has_nixl", lambda: False)
    lines = [ratios.line(row) for row in transfers.rows(TINY)]
    assert len(lines) == 2 and all("needs nixl" in line for line in lines)
    for section in (transfers.shares, transfers.wire):
        assert list(section(TINY))[-1] == "  needs nixl"


def test_real_nixl_rows() -> None:
    pytest.importorskip("nixl._api", reason="nixl is not installed")
    rows = list(transfers.rows(TINY))
    assert all(row.race.baseline > 0 and row.race.ours > 0 for row in rows)
    shares = list(transfers.shares(TINY))
    assert sum("share" in line for line in shares[2:]) == len(workloads.TABLES) * len(TINY.blocks)
    moved = list(transfers.wire(TINY))
    # 3 regions of 5 and 8 blocks, descending: one operation a block as given, one a region in merge order.
    assert any("descending" in line and "operations      15 ->       3" in line for line in moved)
    assert sum(line.lstrip().startswith(("READ", "WRITE")) for line in moved) == 2 * 3 * 2


def test_tiers_of_objects() -> None:
    """Every row has been measured, and what is compared has been seen to be the same."""
    found = list(segments.rows(TINY))
    assert len(found) == 6 * len(TINY.objects)
    assert all(row.race is not None and row.race.ours > 0 for row in found)
