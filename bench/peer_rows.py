"""Rows of what a peer costs before its first request: plans, binding, handshakes, weights, the wire.

"Met first" is a peer of a shape that this process has not seen: everything is proven and planned anew. "Met again" is
another of a shape that it knows, the second engine of a fleet or a peer that has restarted: it owes its addresses. The
first engine is still connected then, so this side's lists are there, as the baseline's local table is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from math import nan
from time import thread_time
from typing import Any

import handshake
import measure
import numpy as np
import weights
import workloads
from measure import Race
from targets import NO_TARGET, Row, Scale, at_least, same, under_ms, within

from nixldesc import Layout, attention_sections, plan
from nixldesc._memory import forget


@dataclass(frozen=True, slots=True)
class Eleven:
    """A frozen, slotted dataclass of eleven fields: what a region was as an object."""

    name: str
    base_addr: int
    block_len: int
    num_blocks: int
    block_stride: int
    groups: tuple[int, ...] | None
    mem_type: str
    device_id: int
    sections: tuple[Any, ...]
    sub_blocks: int
    sub_stride: int


#: Processor time of this thread: calls are as long as a busy machine's turns, which would be charged to either side.
race = partial(measure.race, clock=thread_time)


def objects(count: int) -> list[Eleven]:
    return [Eleven("l", i, 64, 1000, 64, None, "VRAM", 0, (), 1, 64) for i in range(count)]


def planned(workload: workloads.Workload) -> int:
    """Plan, and every pair looked at."""
    made = plan(workload.dst, workload.srcs, dst_rank=0, dst_size=workload.dst_size)
    return sum(len(pairs) for pairs in made.values())


def first(call: Callable[[], object]) -> Callable[[], object]:
    """The call as of a process that knows nothing."""

    def anew() -> object:
        forget()
        return call()

    return anew


def plan_rows(scale: Scale) -> Iterator[Row]:
    workload = workloads.wide_tp(scale.layers, scale.sources)
    count = 2 * scale.layers * scale.sources
    what = f"plan {scale.layers} regions x {scale.sources} sources with all pairs"
    found = race(lambda: objects(count), first(lambda: planned(workload)), seconds=scale.seconds)
    yield Row(f"{what}, against making {count:,} dataclasses", found, at_least(4))
    yield bind_row(scale, workload)
    pages = {order: nhd_pages(scale, order) for order in ("HND", "NHD")}
    sizes = {order: sum(len(t) for t in tables(pages[order])) for order in pages}
    if len(set(sizes.values())) > 1:
        raise RuntimeError(f"NHD and HND have unequal rows: {sizes}")
    found = race(first(lambda: tables(pages["HND"])), first(lambda: tables(pages["NHD"])), seconds=scale.seconds)
    yield Row(f"plan and tables, {scale.nhd_layers} layers of NHD, TP 8 to 1, against HND", found, within(2))


def bind_row(scale: Scale, workload: workloads.Workload) -> Row:
    """Engines that were read from the wire one by one, and a plan for the first of them."""
    messages = {rank: src.to_dict() for rank, src in workload.srcs.items()}
    fleet = [{rank: Layout.from_dict(message) for rank, message in messages.items()} for _ in range(8)]
    made = plan(workload.dst, fleet[0], dst_rank=0, dst_size=workload.dst_size)
    turn = cycle(fleet)

    def bind() -> object:
        return made.bind(workload.dst, next(turn))

    anew = first(lambda: plan(workload.dst, workload.srcs, dst_rank=0, dst_size=workload.dst_size))
    return Row(
        "made.bind of the same, pairs made when looked at, against plan",
        race(anew, bind, seconds=scale.seconds),
        at_least(10),
    )


def nhd_pages(scale: Scale, order: Any) -> workloads.Workload:
    def side(tp_size: int, tp_rank: int, base: int) -> Layout:
        pages = [
            attention_sections(
                f"l{i}",
                num_kv_heads=8,
                tp_size=tp_size,
                tp_rank=tp_rank,
                block_tokens=128,
                token_head_bytes=256,
                order=order,
            )
            for i in range(scale.nhd_layers)
        ]
        return workloads.layout_of([(page, None) for page in pages], 1000, base)

    return workloads.Workload(order, side(1, 0, 1 << 44), {rank: side(8, rank, 1 << 40) for rank in range(8)}, ())


def tables(workload: workloads.Workload) -> list[Any]:
    made = plan(workload.dst, workload.srcs, dst_rank=0, dst_size=1)
    return [table for pairs in made.values() for pair in pairs for table in (pair.src.table(), pair.dst.table())]


# -------------------------------------------------------------------------------------------------------- handshakes


def codec() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any], Callable[[bytes], Any]]:
    """Encoder, decoder to plain data, decoder to the connector's dataclass: msgpack as vLLM has it, else JSON."""
    if find_spec("msgspec") is None:
        return (
            lambda item: json.dumps(item if isinstance(item, dict) else asdict(item)).encode(),
            json.loads,
            lambda message: handshake.Metadata(**json.loads(message)),
        )
    import msgspec

    return (
        msgspec.msgpack.Encoder().encode,
        msgspec.msgpack.Decoder().decode,
        msgspec.msgpack.Decoder(handshake.Metadata).decode,
    )


def handshake_rows(scale: Scale) -> Iterator[Row]:
    for kind in handshake.KINDS:
        for tensors in scale.tensors:
            for peers in scale.peers:
                what = f"handshake, {tensors} tensors {kind}, {peers} peer{'s' * (peers > 1)}"
                yield from handshake_row(scale, what, handshake.case(kind, tensors, peers, codec()[0]))


def handshake_row(scale: Scale, what: str, case: handshake.Case) -> Iterator[Row]:
    _, decode, decode_to = codec()
    # Eight engines of one replicated cache are eight handshakes, eight ranks of one engine are one.
    apart = case.kind == "MLA"
    mine = [{0: message} for message in case.ours.values()] if apart else [case.ours]
    theirs = [{0: message} for message in case.theirs.values()] if apart else [case.theirs]

    def ours() -> list[handshake.Tables]:
        return [handshake.ours(case.dst, messages, decode) for messages in mine]

    def baseline() -> list[handshake.Tables]:
        return [handshake.baseline(case.worker, messages, decode_to) for messages in theirs]

    for a, b in zip(ours(), baseline(), strict=True):
        same_bytes(a, b)
    connected = [handshake.planned(case.dst, messages, decode) for messages in mine]
    yield Row(f"{what}, met again", race(baseline, ours, seconds=scale.seconds / 2), at_least(1))
    del connected
    yield Row(f"{what}, met first", race(baseline, first(ours), seconds=scale.seconds / 2), NO_TARGET)


def same_bytes(ours: handshake.Tables, theirs: handshake.Tables) -> None:
    """Both ways move the same bytes from the same addresses to the same addresses."""
    same(moved(ours), moved(theirs))


def moved(tables_: handshake.Tables) -> Any:
    """Rows ``(src addr, dst addr, len)`` of every peer's first blocks, joined where they touch."""
    rows = [
        (src[0], dst[0], src[1])
        for src_table, dst_table in tables_
        for src, dst in zip(src_table.tolist(), dst_table.tolist(), strict=True)
    ]
    # A hybrid's views lie over one another: a stretch goes on where one ends on both sides, whatever lies between.
    stretches: dict[tuple[int, int], tuple[int, int, int]] = {}
    for src, dst, length in sorted(rows):
        first_src, first_dst, before = stretches.pop((src, dst), (src, dst, 0))
        stretches[src + length, dst + length] = first_src, first_dst, before + length
    return np.array(sorted(stretches.values()), dtype=np.uint64)


def wire_rows(scale: Scale) -> Iterator[Row]:
    """Bytes as msgpack (JSON without msgspec); a ratio of sizes, not of times."""
    for kind in handshake.KINDS:
        what = f"bytes on the wire, {scale.tensors[-1]} tensors {kind}, against parallel lists"
        case = handshake.case(kind, scale.tensors[-1], 1, codec()[0])
        lists, mine = len(case.theirs[0]), len(case.ours[0])
        yield Row(what, Race(lists / 1e6, mine / 1e6, lists / mine, lists / mine), within(1.5))


# ----------------------------------------------------------------------------------------------------------- weights


def weight_rows(scale: Scale) -> Iterator[Row]:
    case = weights.case(scale.weight_layers)
    made = weights.ours(case)
    if weights.moved(made) != weights.total(scale.weight_layers) or weights.num_rows(made) > 2500:
        raise RuntimeError("the weights' plan is not what it should be")
    what = f"weights, {scale.weight_layers} layers x 7, 8 shards to TP 2: {weights.num_rows(made):,} rows"
    if weights.has_model_express():
        yield planner_row(
            scale, case, what, "ModelExpress's plan_pull", partial(weights.model_express, scale.weight_layers)
        )
    if not weights.has_mooncake():
        seconds = measure.processor_time(first(lambda: weights.ours(case)), seconds=scale.seconds)
        yield Row(f"{what} (mooncake.reshard is not here)", Race(nan, seconds, nan, nan), under_ms(50))
        return
    placements = weights.placements(scale.weight_layers)
    yield planner_row(scale, case, what, "mooncake.reshard", partial(weights.mooncake, *placements))


def planner_row(
    scale: Scale, case: weights.Case, what: str, who: str, theirs: Callable[[], list[tuple[int, int, int]]]
) -> Row:
    """Another's planner, which gives segments (source offset, target offset, bytes), against ours."""
    segments = theirs()
    if sum(length for _, _, length in segments) != weights.total(scale.weight_layers):
        raise RuntimeError(f"the segments of {who} are not the model")
    found = race(theirs, first(lambda: weights.ours(case)), seconds=scale.seconds, least_rounds=2)
    return Row(f"{what}, against {who}, {len(segments):,} segments", found, at_least(20))


def rows(scale: Scale) -> Iterator[Row]:
    """All of them."""
    yield from plan_rows(scale)
    yield from handshake_rows(scale)
    yield from wire_rows(scale)
    yield from weight_rows(scale)
