"""`mesh_ranges` is DTensor's own arithmetic, and examples/weights_layout.py reads DTensors: asked of torch itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cached_arrays import deliver
from examples_here import weights_layout
from hypothesis import given, settings
from hypothesis import strategies as st

from nixldesc import array_regions, mesh_ranges

torch = pytest.importorskip("torch", reason="DTensor is torch's; make test-peers has it")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402


@st.composite
def placed(draw: st.DrawFn, largest: int = 40) -> Any:
    shape = draw(st.lists(st.integers(1, largest), min_size=1, max_size=4))
    mesh = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dims = st.none() | st.integers(0, len(shape) - 1)
    return tuple(shape), tuple(mesh), [draw(dims) for _ in mesh]


def words(placements: list[int | None]) -> list[Any]:
    return [Replicate() if dim is None else Shard(dim) for dim in placements]


@given(placed())
def test_every_rank_of_every_mesh_holds_what_dtensor_says(drawn: Any) -> None:
    shape, mesh, placements = drawn
    for rank, coordinate in enumerate(itertools.product(*map(range, mesh))):
        local, offset = _compute_local_shape_and_global_offset(shape, mesh, coordinate, words(placements))
        expected = tuple((begin, begin + size) for begin, size in zip(offset, local, strict=True))
        assert mesh_ranges(shape, mesh, placements, rank) == (expected if all(local) else None)


@contextmanager
def rank_of(mesh: tuple[int, ...], rank: int) -> Iterator[Any]:
    """A device mesh as this rank of it sees it, over a process group that talks to nobody."""
    dist.init_process_group("fake", rank=rank, world_size=int(np.prod(mesh)), store=FakeStore())
    try:
        yield init_device_mesh("cpu", mesh)
    finally:
        dist.destroy_process_group()


def shard(whole: Any, mesh: tuple[int, ...], placements: list[int | None], rank: int) -> Any:
    with rank_of(mesh, rank) as device_mesh:
        return distribute_tensor(whole, device_mesh, words(placements), src_data_rank=None)


@given(placed(largest=9), st.data())
@settings(max_examples=50)
def test_the_local_tensor_is_the_range_of_the_whole(drawn: Any, data: Any) -> None:
    """By a real DTensor's bytes: ranks are row-major, cuts go from left to right."""
    shape, mesh, placements = drawn
    rank = data.draw(st.integers(0, int(np.prod(mesh)) - 1))
    whole = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)
    local = shard(whole, mesh, placements, rank).to_local()
    held = mesh_ranges(shape, mesh, placements, rank)
    if held is None:
        assert local.numel() == 0
    else:
        assert torch.equal(local, whole[tuple(slice(start, stop) for start, stop in held)])


def test_a_trainers_rows_fill_an_engines_columns_from_dtensors() -> None:
    whole = {"up.weight": torch.randn(37, 24).to(torch.bfloat16), "norm.weight": torch.randn(24)}
    trainer: dict[str, list[int | None]] = {"up.weight": [0, 0], "norm.weight": [None, 0]}
    engine: dict[str, list[int | None]] = {"up.weight": [1], "norm.weight": [None]}
    srcs, alive = {}, []
    for rank in range(6):
        tensors = {name: shard(tensor, (2, 3), trainer[name], rank) for name, tensor in whole.items()}
        parameters = {name: weights_layout.Parameter.of(tensor) for name, tensor in tensors.items()}
        assert parameters["up.weight"] == weights_layout.Parameter((37, 24), (0, 0))
        local = {name: tensor.to_local() for name, tensor in tensors.items()}
        alive.append(local)
        srcs[rank] = weights_layout.weights_layout(local, parameters, mesh=(2, 3), rank=rank)
    for rank in range(5):
        expected = {name: shard(tensor, (5,), engine[name], rank) for name, tensor in whole.items()}
        parameters = {name: weights_layout.Parameter.of(tensor) for name, tensor in expected.items()}
        local = {name: torch.zeros_like(tensor.to_local()) for name, tensor in expected.items()}
        dst = weights_layout.weights_layout(local, parameters, mesh=(5,), rank=rank)
        deliver(srcs, dst, [[0]], [[0]], dst_rank=rank, dst_size=5)
        for name, tensor in expected.items():
            assert torch.equal(local[name], tensor.to_local()), name


def test_meta_tensors_are_planned_before_there_is_memory() -> None:
    parameters = {"up.weight": weights_layout.Parameter((8, 6), (0,))}
    with torch.device("meta"):
        tensors = {"up.weight": torch.empty(4, 6, dtype=torch.bfloat16)}
    layout = weights_layout.weights_layout(tensors, parameters, mesh=(2,), rank=1, base_addrs={"up.weight": 0x1000})
    (region,) = layout.regions
    assert (region.base_addr, region.block_len, region.mem_type) == (0x1000, 48, "VRAM")
    assert region.sections[0].axes[0].start == 4


# ------------------------------------------------------------------------------------------ tensors of torch


def test_tensors_say_what_arrays_of_numpy_do() -> None:
    memory = torch.zeros(2, 7, 4, 8, 6, dtype=torch.float16)
    for view in (memory, memory.permute(1, 0, 3, 2, 4), memory[:, 1::2, 1:3], memory.transpose(0, 1)[:5]):
        axes = ["a", "block", "b", "c", "d"]
        names = {"a": [f"n{i}" for i in range(view.shape[0])]}
        by_tensor = array_regions("l0", view, axes, names=names)
        assert by_tensor == array_regions("l0", view.numpy(), axes, names=names)
        assert by_tensor[0].base_addr == view.data_ptr() and by_tensor[0].mem_type == "DRAM"


def test_a_tensor_on_a_gpu_says_which() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty(6, 4, 8, device="cuda:1", dtype=torch.bfloat16)
    (region,) = array_regions("l0", fake, "block token byte", base_addr=0x7F00_0000)
    assert (region.mem_type, region.device_id, region.sections[0].dtype) == ("VRAM", 1, "bfloat16")


def test_a_parameter_that_wants_a_gradient_is_an_array_too() -> None:
    weight = torch.nn.Linear(4, 3).weight
    (region,) = array_regions("w", weight, "row column")
    assert region.block_len == 48 and region.sections[0].dtype == "float32"
