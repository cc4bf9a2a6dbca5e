"""The rows and sections of `ratios.py` that need real NIXL; without it each says so."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter

import baseline
import measure
import numpy as np
import workloads
from host_agents import Lists, Operation, Outcome, TwoAgents, has_nixl, two_agents
from measure import Race
from targets import Row, Scale, at_least, same, under_share

from nixldesc import plan
from nixldesc.adapter import prepare

#: Bytes of a block where bytes are really moved: small, so that operations and not bytes decide.
BLOCK_LEN = 1024
OPERATIONS: tuple[Operation, ...] = ("READ", "WRITE")


def rows(scale: Scale) -> Iterator[Row]:
    """The rows of the table of targets that need NIXL."""
    yield pair_against_make(scale, min(1024, scale.blocks[-1]))
    yield new_peer(scale)


def pair_against_make(scale: Scale, blocks: int) -> Row:
    work = f"whole pair.desc_ids, {blocks:,} blocks x {scale.regions}, to make_prepped_xfer"
    if not has_nixl():
        return Row(work, None, under_share(0.1))
    with two_agents(scale.regions, scale.pool, BLOCK_LEN) as two, two.lists("READ") as lists:
        return Row(work, share(two, lists, blocks, "random", scale.seconds), under_share(0.1))


def share(two: TwoAgents, lists: Lists, blocks: int, tables: workloads.Tables, seconds: float) -> Race:
    """Measure NIXL's make_prepped_xfer against the pair.desc_ids that it needs."""
    src, dst = ([blocks.ids for blocks in side] for side in two.workload.request(16 * blocks, tables))
    ids = two.pair.desc_ids(src, dst)
    plain = baseline.DescIds(two.pair.src), baseline.DescIds(two.pair.dst)
    for ours, theirs in zip(ids, baseline.pair_desc_ids(*plain, src, dst), strict=True):
        same(theirs, ours)
    made = []
    try:
        return measure.race(
            lambda: made.append(lists.make(ids)),
            lambda: two.pair.desc_ids(src, dst),
            between=lambda: release(lists, made),
            seconds=seconds,
        )
    finally:
        release(lists, made)


def release(lists: Lists, made: list[object]) -> None:
    while made:
        lists.agent.release_xfer_handle(made.pop())


def new_peer(scale: Scale) -> Row:
    """A new peer: its list of tuples against planning and preparing both sides' lists."""
    total = scale.dense_regions * scale.dense_blocks
    work = f"plan + prepare a peer of {scale.dense_regions} x {scale.dense_blocks:,} = {total:,} descriptors"
    if not has_nixl():
        return Row(work, None, at_least(1000))
    with two_agents(scale.dense_regions, scale.dense_blocks, 64) as two, measure.no_collector():
        src = two.workload.srcs[0]
        same(np.array(baseline.tuples(src), dtype=np.uint64), src.dense_table())
        rounds = [(tuples_peer(two), median(ours_peer(two) for _ in range(5))) for _ in range(3)]
        return Row(work, measure.summary(rounds), at_least(1000))


def tuples_peer(two: TwoAgents) -> float:
    """Seconds for the peer's list alone; the connector has prepared its own before."""
    begin = perf_counter()
    handle = two.d.prep_xfer_dlist("P", baseline.tuples(two.workload.srcs[0]), "DRAM")
    seconds = perf_counter() - begin
    two.d.release_dlist_handle(handle)
    return seconds


def ours_peer(two: TwoAgents) -> float:
    """Seconds for the plan and the lists of both sides."""
    begin = perf_counter()
    peer = prepare(two.d, "P", plan(two.workload.dst, two.workload.srcs, dst_rank=0, dst_size=1), local="dst")
    seconds = perf_counter() - begin
    peer.release()
    return seconds


def shares(scale: Scale) -> Iterator[str]:
    """The part of a request that is ours: from the start of pair.desc_ids to the return of make_prepped_xfer."""
    yield "share of pair.desc_ids (from lists, merge order) in the request, up to the return of make_prepped_xfer;"
    yield "in brackets what make_prepped_xfer takes in the order given"
    if not has_nixl():
        yield "  needs nixl"
        return
    with two_agents(scale.regions, scale.pool, BLOCK_LEN) as two, two.lists("READ") as lists:
        for tables in workloads.TABLES:
            for blocks in scale.blocks:
                race = share(two, lists, blocks, tables, scale.seconds / 2)
                given = make_given(two, lists, blocks, tables, scale.seconds / 4)
                yield (
                    f"  {tables:>10} {blocks:>6,} blocks x {scale.regions} regions"
                    f"   pair.desc_ids {race.ours * 1e6:>9,.1f} us"
                    f"   make_prepped_xfer {race.baseline * 1e6:>10,.1f} us ({given * 1e6:>10,.1f})"
                    f"   share {1 / (1 + race.ratio):>6.1%}"
                )


def make_given(two: TwoAgents, lists: Lists, blocks: int, tables: workloads.Tables, seconds: float) -> float:
    ids = two.pair.desc_ids(*two.workload.request(16 * blocks, tables), order="given")
    return measure.time_of(lambda: lists.agent.release_xfer_handle(lists.make(ids)), seconds=seconds)


def wire(scale: Scale) -> Iterator[str]:
    """Operations on the wire and time from post to end, in the order given and in merge order."""
    yield f"wire operations and transfer time, {scale.regions} regions, blocks of {BLOCK_LEN} bytes, host memory, UCX"
    if not has_nixl():
        yield "  needs nixl"
        return
    with two_agents(scale.regions, scale.pool, BLOCK_LEN) as two:
        for operation in OPERATIONS:
            with two.lists(operation) as lists:
                for tables in ("descending", "churned", "random"):
                    for blocks in scale.blocks[1:-1]:
                        yield wire_line(two, lists, blocks, tables, scale.seconds)


def wire_line(two: TwoAgents, lists: Lists, blocks: int, tables: workloads.Tables, seconds: float) -> str:
    request = two.workload.request(16 * blocks, tables)
    given, merge = (two.pair.desc_ids(*request, order=order) for order in ("given", "merge"))
    rounds: list[tuple[Outcome, Outcome]] = [(lists.move(given), lists.move(merge))]  # the first connects: not counted
    end = perf_counter() + seconds
    while len(rounds) < 6 or perf_counter() < end:
        rounds.append((lists.move(given), lists.move(merge)))
    operations = [outcome.operations for outcome in rounds[0]]
    for ids, counted in zip((given, merge), operations, strict=True):
        if two.pair.merged_ops(*ids) != counted:
            raise RuntimeError(f"merged_ops says {two.pair.merged_ops(*ids)}, NIXL {counted}")
    race = measure.summary([(a.seconds, b.seconds) for a, b in rounds[1:]])
    return (
        f"  {lists.operation:>5} {tables:>10} {blocks:>6,} blocks"
        f"   operations {operations[0]:>7,} -> {operations[1]:>7,}"
        f"   time {race.baseline * 1e3:>8.2f} -> {race.ours * 1e3:>8.2f} ms: {race.ratio:>6.2f}x"
    )
