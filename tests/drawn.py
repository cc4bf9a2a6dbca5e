"""What the properties of random transfers share: plans, copies, ids of a drawn transfer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import oracle
from hypothesis import settings
from hypothesis.errors import UnsatisfiedAssumption

from nixldesc import DlistPair, Layout, PeerMismatchError, Plan, plan
from nixldesc.testing.painted import Copies, check_delivery, planned_copies
from nixldesc.testing.strategies import Transfer

# The narrower properties need fewer geometries than the main one.
_all = settings().max_examples
fewer = settings(max_examples=min(_all, max(75, _all // 10)))


def planned(transfer: Transfer, rank: int, srcs: Mapping[int, Layout] | None = None, **how: Any) -> Plan:
    """The plan of one dst rank."""
    number, size = transfer.pair.places[rank]
    how = {"dst_rank": number, "dst_size": size, "senders": transfer.pair.senders, **how}
    try:
        return plan(transfer.dsts[rank], transfer.srcs if srcs is None else srcs, **how)
    except PeerMismatchError as refusal:
        if "inside which a sub-block would end" in str(refusal) and oracle.cuts_a_part(transfer.srcs, transfer.dsts):
            raise UnsatisfiedAssumption from None
        raise


def plans_of(transfer: Transfer, **how: Any) -> dict[int, Plan]:
    return {rank: planned(transfer, rank, **how) for rank in transfer.dsts}


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
        **said(transfer),
        **how,
    )
    return done.delivered


def request_copies(transfer: Transfer, plans: dict[int, Plan], **how: Any) -> list[Copies]:
    return planned_copies(plans, transfer.src_blocks, transfer.dst_blocks, **said(transfer), **how)


def said(transfer: Transfer) -> dict[str, Any]:
    """What a request says beside its lists."""
    given = {"null_block": transfer.null_block, "tokens": transfer.tokens}
    return {key: value for key, value in given.items() if value is not None}


def desc_ids(transfer: Transfer, src_rank: int, dst_rank: int, pair: DlistPair, **how: Any) -> Any:
    return pair.desc_ids(
        transfer.src_blocks[src_rank],
        transfer.dst_blocks[dst_rank],
        **said(transfer),
        **how,
    )
