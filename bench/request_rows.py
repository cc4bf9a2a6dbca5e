"""Rows of what a request may say beside its lists: where entries stand, how many tokens, many sources at once.

The baseline is the same request as it is said without: plain lists, one pair's call for each source.
"""

from __future__ import annotations

from collections.abc import Iterator

import measure
import workloads
from targets import NO_TARGET, Row, Scale, Target, at_least, same, within

from nixldesc import Blocks, Plan, plan


def rows(scale: Scale) -> Iterator[Row]:
    """All of them."""
    yield from said_rows(scale)
    yield from over_rows(scale)


def smallest_pool(workload: workloads.Workload) -> int:
    layouts = (workload.dst, *workload.srcs.values())
    return min(region.num_blocks for layout in layouts for region in layout.regions)


def said_rows(scale: Scale) -> Iterator[Row]:
    """`at` of both sides and `tokens`, against plain lists; the Blocks are there, as a connector's own lists are."""
    workload = workloads.mla(scale.regions, scale.pool, sources=1)
    (pair,) = plan(workload.dst, workload.srcs, dst_rank=0, dst_size=1)[0]
    pool = smallest_pool(workload)
    block_tokens = workload.dst.regions[0].sections[0].block_tokens
    for blocks in scale.blocks[:3]:
        src, dst = (workloads.block_table("random", pool, blocks, seed=seed) for seed in (1, 2))
        src_at, dst_at = Blocks(src, at=list(range(blocks))), Blocks(dst, at=list(range(blocks)))
        count = blocks * block_tokens - 3
        for ours in (pair.desc_ids([src_at], [dst_at]), pair.desc_ids([src], [dst], tokens=count)):
            for mine, plain in zip(ours, pair.desc_ids([src], [dst]), strict=True):
                same(plain, mine)
        what = f"pair.desc_ids, {blocks:,} blocks x {scale.regions} regions"
        race = measure.race(
            lambda s=src, d=dst: pair.desc_ids([s], [d]),
            lambda s=src_at, d=dst_at: pair.desc_ids([s], [d]),
            seconds=scale.seconds,
        )
        yield Row(f"{what}, at= on both sides", race, within(1.5))
        race = measure.race(
            lambda s=src, d=dst: pair.desc_ids([s], [d]),
            lambda s=src, d=dst, n=count: pair.desc_ids([s], [d], tokens=n),
            seconds=scale.seconds,
        )
        yield Row(f"{what}, tokens=", race, within(1.5))


def over_rows(scale: Scale) -> Iterator[Row]:
    """A request over many sources, whose lists are the same (ranks of one engine) or each their own."""
    workload = workloads.wide_tp(scale.regions, scale.sources)
    made = plan(workload.dst, workload.srcs, dst_rank=0, dst_size=workload.dst_size)
    pool = smallest_pool(workload)
    for blocks in scale.blocks[:3]:
        dst, shared = ([workloads.block_table("random", pool, blocks, seed=seed)] for seed in (1, 2))
        own = {rank: [workloads.block_table("random", pool, blocks, seed=3 + rank)] for rank in made}
        what = f"made.desc_ids, {scale.sources} sources, {blocks:,} blocks x {scale.regions} regions"
        yield over_row(scale, made, dict.fromkeys(made, shared), dst, f"{what}, the same lists", at_least(2))
        yield over_row(scale, made, own, dst, f"{what}, lists of their own", NO_TARGET)


def over_row(
    scale: Scale, made: Plan, src: dict[int, list[list[int]]], dst: list[list[int]], what: str, target: Target
) -> Row:
    def calls() -> dict[int, tuple[object, ...]]:
        return {rank: tuple([pair.desc_ids(src[rank], dst) for pair in pairs]) for rank, pairs in made.items()}

    for rank, pairs in made.desc_ids(src, dst).items():
        for ours, pair in zip(pairs, made[rank], strict=True):
            for mine, plain in zip(ours, pair.desc_ids(src[rank], dst), strict=True):
                same(plain, mine)
    return Row(what, measure.race(calls, lambda: made.desc_ids(src, dst), seconds=scale.seconds), target)
