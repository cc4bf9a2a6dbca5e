"""Mooncake's weight planner (mooncake-transfer-engine 0.3.13.post1, pure Python part) and ours move the same bytes."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nixldesc import Axis, Layout, Region, Section, plan

weight = pytest.importorskip("mooncake.reshard.weight", reason="mooncake is not in this environment")

ITEM = 2


@st.composite
def shardings(draw: st.DrawFn) -> Any:
    """A tensor whose dimensions are multiples of both sides' cuts, and which dimension each side cuts how often."""
    dims = draw(st.integers(1, 3))
    src, dst = ((draw(st.integers(0, dims - 1)), draw(st.integers(1, 4))) for _ in range(2))
    shape = tuple(draw(st.integers(1, 3)) * (12 if dim in (src[0], dst[0]) else 1) for dim in range(dims))
    return shape, src, dst


def boxes(shape: tuple[int, ...], cut: tuple[int, int]) -> list[tuple[tuple[int, int], ...]]:
    dim, parts = cut
    size = shape[dim] // parts
    return [
        tuple((rank * size, (rank + 1) * size) if d == dim else (0, n) for d, n in enumerate(shape))
        for rank in range(parts)
    ]


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


def theirs(shape: tuple[int, ...], src: tuple[int, int], dst: tuple[int, int]) -> dict[Any, Any]:
    """(target rank, byte) -> (source rank, byte)."""
    made = weight.plan_placement_transfer(placement(shape, src), placement(shape, dst))
    found: dict[Any, Any] = {}
    for operation in made.operations:
        for there, here, length in operation.iter_segments(max_segments=10**6):
            for at in range(length):
                key = operation.target.rank.tp, here + at
                assert key not in found
                found[key] = operation.source.rank.tp, there + at
    return found


def layout(box: tuple[tuple[int, int], ...]) -> Layout:
    section = Section("w", [Axis(f"a{d}", *span) for d, span in enumerate(box)], ITEM)
    return Layout([Region("w", 0, section.nbytes, 1, sections=[section])])


def ours(shape: tuple[int, ...], src: tuple[int, int], dst: tuple[int, int]) -> dict[Any, Any]:
    """The same of our plans."""
    srcs = {rank: layout(box) for rank, box in enumerate(boxes(shape, src))}
    found: dict[Any, Any] = {}
    for target, box in enumerate(boxes(shape, dst)):
        for source, pairs in plan(layout(box), srcs).items():
            for pair in pairs:
                for there, here, length in pair.moves(*pair.desc_ids([[0]], [[0]])).tolist():
                    for at in range(length):
                        assert (target, here + at) not in found
                        found[target, here + at] = source, there + at
    return found


@given(shardings())
def test_the_same_bytes_move(drawn: Any) -> None:
    moved = ours(*drawn)
    assert len(moved) == prod(drawn[0]) * ITEM
    assert moved == theirs(*drawn)
