"""What one rank holds of a model's weights, from its state dict and the placements of its parameters.

Weights move like caches: a tensor is one block, an expert a block of its own or an axis, a shard a range of the whole.
A trainer sharded by rows and an inference engine sharded by columns describe what each of their ranks has, and `plan`
finds who sends what:

    layout = weights_layout(model.state_dict(), parameters, mesh=(2, 4), rank=rank)

`parameters` names a parameter's whole shape and, for each dimension of the mesh, the tensor dimension that it shards
or None (DTensor's ``Shard(dim)`` and ``Replicate()``). All tensors are block 0 of group 0: ``desc_ids([[0]], [[0]])``
moves everything, ``sections=[names]`` some of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nixldesc import Layout, Region, array_regions, mesh_ranges


@dataclass(frozen=True)
class Parameter:
    """A parameter of the whole model, and how a mesh of ranks shares it."""

    shape: tuple[int, ...]
    placements: tuple[int | None, ...]

    @classmethod
    def of(cls, tensor: Any) -> Parameter:
        """Read a DTensor: what is not ``Shard(dim)`` is whole on every rank (a ``Partial`` has no bytes to send)."""
        dims = []
        for placement in tensor.placements:
            if not (placement.is_shard() or placement.is_replicate()):
                raise ValueError(f"{placement} is neither sharded nor whole: reduce it first")
            dims.append(placement.dim if placement.is_shard() else None)
        return cls(tuple(tensor.shape), tuple(dims))


def weights_layout(
    tensors: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
    *,
    mesh: Sequence[int],
    rank: int,
    base_addrs: Mapping[str, int] | None = None,
) -> Layout:
    """Describe the local tensors of `rank`; `base_addrs` says where meta tensors will be, for planning beforehand."""
    regions: list[Region] = []
    for name, parameter in parameters.items():
        held = mesh_ranges(parameter.shape, mesh, parameter.placements, rank)
        if held is None:  # an empty shard: this rank has nothing of it
            continue
        axes = [f"d{i}" for i in range(len(held))]
        regions += array_regions(
            name,
            tensors[name],
            axes,
            ranges=dict(zip(axes, held, strict=True)),
            base_addr=None if base_addrs is None else base_addrs[name],
        )
    return Layout(regions)


def experts_layout(experts: Mapping[str, Mapping[int, Any]]) -> Layout:
    """Describe experts that live in allocations of their own: ``experts[name][expert]`` is that expert's matrix.

    Each is a part of one section whose first axis is the expert. A rank that has them in one tensor describes
    ``array_regions(name, stacked, "expert d0 d1", ranges={"expert": (first, last + 1)})``: the two pair.
    """
    return Layout(
        region
        for name, of_expert in experts.items()
        for expert, matrix in of_expert.items()
        for region in array_regions(
            name,
            matrix[None],
            ["expert", *(f"d{i}" for i in range(matrix.ndim))],
            ranges={"expert": (expert, expert + 1)},
        )
    )
