"""ModelExpress 0.7.0's `plan_pull` and our plans read the same bytes of the same shards."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from weight_shards import ITEM, Bytes, boxes, by_byte, check_the_same_bytes, shardings

torch = pytest.importorskip("torch", reason="plan_pull reads slices off torch's meta tensors; make test-peers has it")
reshard = pytest.importorskip("modelexpress.refit.reshard", reason="ModelExpress is not in this environment")


def theirs(shape: tuple[int, ...], src: tuple[int, int], dst: tuple[int, int]) -> Bytes:
    shards = []
    for rank, box in enumerate(boxes(shape, src)):
        start, size = tuple(a for a, _ in box), tuple(b - a for a, b in box)
        shards.append(reshard.Shard(start, size, str(rank), 0, ITEM))
    moves = []
    for target, box in enumerate(boxes(shape, dst)):
        local = tuple(stop - start for start, stop in box)
        steps = tuple(prod(local[dim + 1 :]) for dim in range(len(local)))
        ops: Any = tuple(("narrow", (dim, start, stop - start), {}) for dim, (start, stop) in enumerate(box))
        copy = reshard.RecordedCopy("w", ops, "w", 0, local, steps, torch.bfloat16)
        for segment in reshard.plan_pull(copy, shape, torch.bfloat16, ITEM, shards):
            moves.append((target, segment.dst_byte, int(segment.session), segment.src_addr, segment.nbytes))
    return by_byte(moves)


@given(shardings())
def test_the_same_bytes_move(drawn: Any) -> None:
    check_the_same_bytes(drawn, theirs(*drawn))
