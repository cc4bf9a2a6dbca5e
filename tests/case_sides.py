"""A file of cases as tests, and one case as layouts, tables and byte maps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pytest

from nixldesc import (
    DlistPair,
    Layout,
    Plan,
    Region,
    Section,
    plan,
)
from nixldesc.testing.painted import (
    Copies,
    DeliveryError,
    Memory,
    check_delivery,
    planned_copies,
)

Test = TypeVar("Test", bound=Callable[..., None])
#: What the map of bytes calls a source: a rank, or the device of a file or an object.
Source = tuple[int, str, int]
# Rows of dst rank, dst address, source, src address, length.
ByteMap = list[tuple[int, int, Source, int, int]]


class Cases:
    """All cases of a file; as a decorator it gives a test the inputs of a case and what is expected."""

    def __init__(self, file: str) -> None:
        found = json.loads((Path(__file__).parent / file).read_text())["cases"]
        self.all: dict[str, dict[str, Any]] = {case["id"]: case for case in found}
        self.tested: set[str] = set()

    def __call__(self, name: str) -> Callable[[Test], Test]:
        self.tested.add(name)
        case = self.all[name]
        one = pytest.param(case["inputs"], case["expected"], id=name)
        return pytest.mark.parametrize(("given", "want"), [one])


def region(fields: Mapping[str, Any], sections: Sequence[Section] | None = None) -> Region:
    """A region as the file writes it."""
    group = fields["group"]
    return Region(
        fields["name"],
        fields["base"],
        fields["block_len"],
        fields["num_blocks"],
        block_stride=fields["stride"],
        groups=tuple(group) if isinstance(group, list) else (group,),
        mem_type=fields["mem_type"],
        device_id=fields["device_id"],
        sections=sections,
    )


def layout(fields: Sequence[Mapping[str, Any]], **how: Any) -> Layout:
    return Layout([region(one) for one in fields], **how)


def engine(fields: Sequence[Mapping[str, Any]], tp: int, sections: Callable[[int], Any]) -> dict[int, Layout]:
    """All ranks of an engine of one region each."""
    return {rank: Layout([region(fields[0], sections(rank))]) for rank in range(tp)}


def both(given: Mapping[str, Any], sections: Callable[[int, int], Any]) -> tuple[dict[int, Layout], dict[int, Layout]]:
    """Both engines of a case; ``sections(tp size, tp rank)``."""
    p, d = given["p_tp"], given["d_tp"]
    return (
        engine(given["p_regions"], p, lambda rank: sections(p, rank)),
        engine(given["d_regions"], d, lambda rank: sections(d, rank)),
    )


class Side:
    """What one side of a case is: its ranks, and the tables that they share or have each."""

    def __init__(self, layouts: Layout | Mapping[int, Layout], blocks: Any) -> None:
        self.layouts = {0: layouts} if isinstance(layouts, Layout) else dict(layouts)
        self.blocks: dict[int, Any] = dict(blocks) if isinstance(blocks, dict) else dict.fromkeys(self.layouts, blocks)


def as_copies(moves: Iterable[Sequence[int]], src: Side, dst: Side) -> list[Copies]:
    """Moves of the file; a byte outside every region counts as one of the first region's memory."""
    return [
        Copies(
            _memory(src, src_rank, src_addr),
            _memory(dst, dst_rank, dst_addr),
            np.array([[src_addr, dst_addr, length]], np.uint64),
        )
        for src_rank, src_addr, dst_rank, dst_addr, length in moves
    ]


def _memory(side: Side, rank: int, addr: int) -> Memory:
    if rank not in side.layouts:  # what one rank has stored: the files and objects are called by their devices
        [only] = side.layouts
        return Memory(only, side.layouts[only].regions[0].mem_type, rank)
    regions = side.layouts[rank].regions
    inside = [r for r in regions if 0 <= addr - r.base_addr < r.block_stride * r.num_blocks]
    of = (inside or regions)[0]
    return Memory(rank, of.mem_type, of.device_id)


def byte_map(copies: Iterable[Copies], same: Sequence[Sequence[int]]) -> ByteMap:
    """The copies as the longest possible runs; ranks that hold the same count as one."""
    first = {rank: ranks[0] for ranks in same for rank in ranks}
    rows = sorted(
        (one.dst.rank, dst_addr, (first.get(one.src.rank, one.src.rank), *one.src[1:]), src_addr, length)
        for one in copies
        for src_addr, dst_addr, length in one.rows.tolist()
    )
    runs: ByteMap = []
    for row in rows:
        dst_rank, dst_addr, source, src_addr, length = row
        if runs and runs[-1][0] == dst_rank:
            before = runs[-1]
            assert before[1] + before[4] <= dst_addr, f"{dst_addr:#x} is written twice"
            ends = before[1] + before[4], before[2], before[3] + before[4]
            if ends == (dst_addr, source, src_addr):
                runs[-1] = (*before[:4], before[4] + length)
                continue
        runs.append(row)
    return runs


def check(
    want: Mapping[str, Any],
    src: Side,
    dst: Side,
    *,
    null_block: int | None = None,
    senders: Literal["one", "all"] = "one",
    tokens: int | None = None,
) -> dict[int, Plan]:
    """Our plan makes the moves of the case; the oracle accepts them and refuses the bug."""
    plans = {
        rank: plan(one, src.layouts, dst_rank=number, dst_size=len(dst.layouts), senders=senders)
        for number, (rank, one) in enumerate(dst.layouts.items())
    }
    copies = planned_copies(plans, src.blocks, dst.blocks, null_block=null_block, tokens=tokens)
    right = as_copies(want["moves"], src, dst)
    same = want.get("values", {}).get("equivalent_src_ranks", ())
    same = want.get("equivalent_src_ranks", same)
    assert byte_map(copies, same) == byte_map(right, same)
    for delivered in (copies, right):
        judge(delivered, src, dst, null_block)
    if "must_not_be" in want:
        refused(want["must_not_be"], src, dst, null_block)
    return plans


def judge(copies: list[Copies], src: Side, dst: Side, null_block: int | None = None) -> None:
    done = check_delivery(src.layouts, dst.layouts, src.blocks, dst.blocks, copies, null_block=null_block)
    assert done.delivered == sum(int(one.rows[:, 2].sum()) for one in copies)


def refused(moves: Iterable[Sequence[int]], src: Side, dst: Side, null_block: int | None = None) -> None:
    """The oracle does not take the reported bytes for the right ones."""
    with pytest.raises(DeliveryError):
        judge(as_copies(moves, src, dst), src, dst, null_block)


def only_pair(plans: Mapping[int, Plan]) -> DlistPair:
    [found] = plans.values()
    [pairs] = found.values()
    [pair] = pairs
    return pair
