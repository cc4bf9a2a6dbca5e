"""What the properties of random transfers share: plans, copies, ids of a drawn transfer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import settings

from nixldesc import DlistPair, Plan, plan
from nixldesc.testing.painted import Copies, check_delivery, planned_copies
from nixldesc.testing.strategies import Transfer

# The narrower properties need fewer geometries than the main one.
_all = settings().max_examples
fewer = settings(max_examples=min(_all, max(75, _all // 10)))


def plans_of(transfer: Transfer) -> dict[int, Plan]:
    return {
        rank: plan(layout, transfer.srcs, dst_rank=number, dst_size=size)
        for rank, layout in transfer.dsts.items()
        for number, size in [transfer.pair.places[rank]]
    }


def all_pairs(plans: dict[int, Plan]) -> Iterator[tuple[int, int, DlistPair]]:
    for dst_rank, found in plans.items():
        for src_rank, pairs in found.items():
            for pair in pairs:
                yield src_rank, dst_rank, pair


def check(transfer: Transfer, copies: list[Copies], **how: Any) -> int:
    done = check_delivery(
        transfer.srcs,
        transfer.dsts,
        transfer.src_blocks,
        transfer.dst_blocks,
        copies,
        null_block=transfer.null_block,
        **how,
    )
    return done.delivered


def request_copies(transfer: Transfer, plans: dict[int, Plan], **how: Any) -> list[Copies]:
    blocks = transfer.src_blocks, transfer.dst_blocks
    return planned_copies(plans, *blocks, null_block=transfer.null_block, **how)


def desc_ids(transfer: Transfer, src_rank: int, dst_rank: int, pair: DlistPair, **how: Any) -> Any:
    return pair.desc_ids(
        transfer.src_blocks[src_rank],
        transfer.dst_blocks[dst_rank],
        null_block=transfer.null_block,
        **how,
    )
