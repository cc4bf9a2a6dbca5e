"""Random geometries, pulled and pushed, against painted memory.

The nightly profile (tests/conftest.py) runs ``test_every_byte_arrives_once`` over 20,000 of them.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import oracle
import pytest
from drawn import all_pairs, check, desc_ids, fewer, planned, plans_of, request_copies, said
from hypothesis import assume, event, given
from hypothesis import strategies as st

from nixldesc import (
    Axis,
    BlockIdError,
    Blocks,
    DlistPair,
    Layout,
    PeerMismatchError,
    Region,
    Section,
    plan,
)
from nixldesc.testing.geometry import Limits
from nixldesc.testing.painted import (
    Copies,
    check_delivery,
    nixl_copies,
)
from nixldesc.testing.strategies import Transfer, transfers

# -- delivery ----------------------------------------------------------------------------------


@given(transfers())
def test_every_byte_arrives_once(transfer: Transfer) -> None:
    plans = plans_of(transfer)
    delivered = check(transfer, request_copies(transfer, plans))
    event("something to move" if delivered else "nothing to move")


@fewer
@given(transfers())
def test_in_the_order_given(transfer: Transfer) -> None:
    check(transfer, request_copies(transfer, plans_of(transfer), order="given"))


@fewer
@given(transfers())
def test_pushed_by_writers_that_know_no_addresses_of_their_siblings(transfer: Transfer) -> None:
    copies = []
    for writer in transfer.srcs:
        described = {rank: layout if rank == writer else moved_away(layout) for rank, layout in transfer.srcs.items()}
        for rank in transfer.dsts:
            own = planned(transfer, rank, described).get(writer, ())
            copies += request_copies(transfer, {rank: {writer: own}})  # type: ignore[dict-item]
    check(transfer, copies)


def moved_away(layout: Layout) -> Layout:
    """The same layout at other addresses, as a sibling describes it."""
    regions = [
        Region(
            region.name,
            number << 40,
            region.block_len,
            region.num_blocks,
            block_stride=region.block_stride,
            groups=region.groups,
            mem_type=region.mem_type,
            device_id=region.device_id,
            sections=region.sections,
        )
        for number, region in enumerate(layout.regions)
    ]
    return Layout(regions, cp_rank=layout.cp_rank, cp_size=layout.cp_size, cp_tokens=layout.cp_tokens)


@fewer
@given(transfers(Limits(cp=1, pp=1, boxes=False, senders=("one",))))
def test_who_knows_only_the_sources_it_needs_passes_src_size(transfer: Transfer) -> None:
    assume(list(transfer.srcs) == list(range(len(transfer.srcs))))
    for rank in transfer.dsts:
        whole = planned(transfer, rank)
        needed = {source: transfer.srcs[source] for source in whole}
        assume(needed)
        part = planned(transfer, rank, needed, src_size=len(transfer.srcs))
        assert dict(part) == dict(whole)


@fewer
@given(transfers())
def test_any_dst_rank_delivers_whoever_it_says_it_is(transfer: Transfer) -> None:
    check(transfer, request_copies(transfer, plans_of(transfer, dst_rank=2, dst_size=7)))


@fewer
@given(transfers())
def test_region_by_region_delivers_the_same(transfer: Transfer) -> None:
    plans = plans_of(transfer)
    copies = []
    for src_rank, dst_rank, pair in all_pairs(plans):
        count = len(pair.src.regions)
        for part in (slice(0, count // 2), slice(count // 2, count)):
            copies += pair_copies(transfer, src_rank, dst_rank, pair, regions=part)
    check(transfer, copies)


def pair_copies(transfer: Transfer, src_rank: int, dst_rank: int, pair: DlistPair, **how: Any) -> list[Copies]:
    ids = desc_ids(transfer, src_rank, dst_rank, pair, **how)
    tables = pair.src.table(), pair.dst.table()
    return nixl_copies(src_rank, dst_rank, *tables, *ids, mem_types=pair.mem_types)


@fewer
@given(transfers(), st.randoms(use_true_random=False))
def test_with_some_sources_gone_it_still_delivers_or_says_what_is_missing(transfer: Transfer, rnd: Random) -> None:
    left = sorted(rnd.sample(sorted(transfer.srcs), rnd.randint(1, len(transfer.srcs))))
    srcs = {rank: transfer.srcs[rank] for rank in left}
    for rank, layout in transfer.dsts.items():
        lacking = oracle.lacking(srcs, layout)
        if lacking:
            with pytest.raises(PeerMismatchError) as caught:
                planned(transfer, rank, srcs)
            assert any(repr(name) in str(caught.value) for name in lacking)
            continue
        found = planned(transfer, rank, srcs)
        copies = request_copies(transfer, {rank: found})
        check_delivery(
            srcs,
            {rank: layout},
            transfer.src_blocks,
            transfer.dst_blocks,
            copies,
            **said(transfer),
        )


@fewer
@given(transfers(Limits(boxes=False)))  # of a cut along several axes one stage may hold a part only
def test_stages_that_push_their_own_layers_deliver_together(transfer: Transfer) -> None:
    stages: dict[frozenset[str], dict[int, Layout]] = {}
    for rank, layout in transfer.srcs.items():
        names = frozenset(s.name for region in layout.regions for s in region.sections)
        stages.setdefault(names, {})[rank] = layout
    copies = []
    for names, srcs in stages.items():
        for rank, layout in transfer.dsts.items():
            found = planned(transfer, rank, srcs, allow_missing=True)
            mine = {s.name for region in layout.regions for s in region.sections}
            assert set(found.missing) == mine - names
            assert set(found.unused) == names - mine
            copies += request_copies(transfer, {rank: found})
    check(transfer, copies)


# -- which lists fit one another ---------------------------------------------------------------


@pytest.mark.parametrize(("p", "d"), [(1, 1), (2, 2), (1, 3), (3, 1), (2, 3), (3, 2), (4, 6)])
def test_two_plain_lists_fit_or_are_refused(p: int, d: int) -> None:
    def engine(base: int, tokens: int) -> Layout:
        section = Section("K", (Axis("token", 0, tokens),), 2)
        return Layout([Region("K", base, 2 * tokens, 16, sections=[section])])

    [[pair]] = plan(engine(0x8000, d), {0: engine(0x1000, p)}).values()
    for n in range(9):
        for m in range(9):
            lists: Any = [list(range(n))], [list(range(m))]
            if n * p == m * d or not m:  # equally many tokens; a destination that names nothing wants nothing
                src_ids, dst_ids = pair.desc_ids(*lists)
                assert len(src_ids) == len(dst_ids) == m * d // math.gcd(p, d)
                continue
            with pytest.raises(BlockIdError, match=rf"(?s)group 0.*{n} .*{m}.*Blocks\(ids, skip="):
                pair.desc_ids(*lists)
            for side in (0, 1):  # said to start at 0, they are taken as they stand
                said = [list(lists[0]), list(lists[1])]
                said[side] = [Blocks(said[side][0])]
                src_ids, _ = pair.desc_ids(*said)
                unit = math.gcd(p, d)
                assert len(src_ids) == min(n * p, m * d) // unit
