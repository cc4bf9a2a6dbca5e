"""Mooncake's weight planner (mooncake-transfer-engine 0.3.13.post1, pure Python part) and ours move the same bytes."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from weight_shards import ITEM, Bytes, boxes, by_byte, check_the_same_bytes, shardings

weight = pytest.importorskip("mooncake.reshard.weight", reason="mooncake is not in this environment")


def placement(shape: tuple[int, ...], cut: tuple[int, int]) -> Any:
    ranks = [weight.ParallelRank(tp=rank) for rank in range(cut[1])]
    participants = tuple(weight.TopologyParticipant(f"rank{rank.tp}", rank) for rank in ranks)
    tensor = weight.TensorDescriptor(
        tensor_id="w",
        global_shape=shape,
        dtype="bfloat16",
        itemsize=ITEM,
        shard_dims=(cut[0],),
        layout_fingerprint="rows",
        parallel_axes=(weight.SplitAxis("tp", cut[0]),),
    )
    fragments = []
    for rank, box in zip(ranks, boxes(shape, cut), strict=True):
        offset, local = tuple(start for start, _ in box), tuple(stop - start for start, stop in box)
        fragments.append(weight.PlacementFragment("w", offset, local, prod(local) * ITEM, rank))
    return weight.WeightPlacementManifest.from_fragments(
        resource_id="model",
        revision="1",
        weight_generation=1,
        placement_set_id="set",
        topology=weight.ParallelTopology(tp_size=cut[1], pp_size=1, ep_size=1, dp_size=1, participants=participants),
        tensors=[tensor],
        fragments=fragments,
    )


def theirs(shape: tuple[int, ...], src: tuple[int, int], dst: tuple[int, int]) -> Bytes:
    made = weight.plan_placement_transfer(placement(shape, src), placement(shape, dst))
    return by_byte(
        (operation.target.rank.tp, here, operation.source.rank.tp, there, length)
        for operation in made.operations
        for there, here, length in operation.iter_segments(max_segments=10**6)
    )


@given(shardings())
def test_the_same_bytes_move(drawn: Any) -> None:
    check_the_same_bytes(drawn, theirs(*drawn))
