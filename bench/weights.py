"""A trainer's weights to an inference engine: 8 row shards of a 7B-like model to tensor parallelism 2.

The baseline is ``mooncake.reshard`` (wheel mooncake-transfer-engine 0.3.13.post1, its pure Python part) where it can be
imported: planning both targets, and lowering the plan to segments ``(source offset, target offset, bytes)``; another is
ModelExpress 0.7.0's ``plan_pull`` for each target and matrix. Ours plans both targets and makes all tables: a row where
they have a segment for every row of a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nixldesc import Axis, Layout, Region, Section, plan

LAYERS, HIDDEN, FFN, ITEM = 32, 4096, 11008, 2
SOURCES, TARGETS = 8, 2
#: name: rows, columns, the dimension that an inference rank holds a part of (column-parallel: 0, row-parallel: 1)
MATRICES: Mapping[str, tuple[int, int, int]] = {
    "q": (HIDDEN, HIDDEN, 0),
    "k": (HIDDEN, HIDDEN, 0),
    "v": (HIDDEN, HIDDEN, 0),
    "o": (HIDDEN, HIDDEN, 1),
    "gate": (FFN, HIDDEN, 0),
    "up": (FFN, HIDDEN, 0),
    "down": (HIDDEN, FFN, 1),
}


class Case(NamedTuple):
    """Both engines' layouts."""

    dsts: tuple[Layout, ...]
    srcs: Mapping[int, Layout]


def shard(layers: int, parts: int, part: int, row_shards: bool, base: int) -> Layout:
    """One rank's matrices, a region of one block each."""
    regions = []
    for layer in range(layers):
        for name, (rows, columns, dim) in MATRICES.items():
            whole = [[0, rows], [0, columns]]
            cut = 0 if row_shards else dim
            size = whole[cut][1]
            whole[cut] = [size * part // parts, size * (part + 1) // parts]
            axes = (Axis("row", *whole[0]), Axis("column", *whole[1]))
            section = Section(f"{layer}.{name}", axes, ITEM, dtype="bfloat16")
            regions.append(Region(section.name, base, section.nbytes, 1, sections=(section,)))
            base += section.nbytes
    return Layout(regions)


def case(layers: int = LAYERS) -> Case:
    srcs = {rank: shard(layers, SOURCES, rank, True, 1 << 40) for rank in range(SOURCES)}
    return Case(tuple(shard(layers, TARGETS, rank, False, 1 << 44) for rank in range(TARGETS)), srcs)


Tables = list[tuple[NDArray[np.uint64], NDArray[np.uint64]]]


def ours(given: Case) -> Tables:
    """Plan both targets, and all tables."""
    return [
        (pair.src.table(), pair.dst.table())
        for dst in given.dsts
        for pairs in plan(dst, given.srcs).values()
        for pair in pairs
    ]


def num_rows(tables: Tables) -> int:
    """Rows of the destinations' lists."""
    return sum(len(dst) for _, dst in tables)


def moved(tables: Tables) -> int:
    """Bytes that the tables name: of both sides the same."""
    of_sides = [sum(int((table[:, 1] * table[:, 4]).sum()) for table in side) for side in zip(*tables, strict=True)]
    if of_sides[0] != of_sides[1]:
        raise RuntimeError("the two sides' tables name unequally many bytes")
    return of_sides[0]


def total(layers: int) -> int:
    """Bytes of the model: what both targets together hold."""
    return layers * ITEM * sum(rows * columns for rows, columns, _ in MATRICES.values())


# --------------------------------------------------------------------------------------------------------- mooncake


def has_mooncake() -> bool:
    return find_spec("mooncake") is not None and find_spec("mooncake.reshard") is not None


def placements(layers: int = LAYERS) -> tuple[Any, Any]:
    """The same model as mooncake describes it: source and target placement."""
    return placement(layers, SOURCES, True), placement(layers, TARGETS, False)


def placement(layers: int, parts: int, row_shards: bool) -> Any:
    from mooncake.reshard import weight

    ranks = [weight.ParallelRank(tp=rank) for rank in range(parts)]
    topology = weight.ParallelTopology(
        tp_size=parts,
        pp_size=1,
        ep_size=1,
        dp_size=1,
        participants=tuple(weight.TopologyParticipant(f"rank{rank.tp}", rank) for rank in ranks),
    )
    tensors, fragments = [], []
    for layer in range(layers):
        for name, (rows, columns, dim) in MATRICES.items():
            cut, shape = 0 if row_shards else dim, [rows, columns]
            tensor = weight.TensorDescriptor(
                tensor_id=f"{layer}.{name}",
                global_shape=(rows, columns),
                dtype="bfloat16",
                itemsize=ITEM,
                shard_dims=(cut,),
                layout_fingerprint="rows",
                parallel_axes=(weight.SplitAxis("tp", cut),),
            )
            tensors.append(tensor)
            for rank in ranks:
                first, last = (shape[cut] * n // parts for n in (rank.tp, rank.tp + 1))
                local = [last - first if d == cut else shape[d] for d in (0, 1)]
                offset = [first if d == cut else 0 for d in (0, 1)]
                fragments.append(
                    weight.PlacementFragment(
                        tensor.tensor_id, tuple(offset), tuple(local), local[0] * local[1] * ITEM, rank
                    )
                )
    return weight.WeightPlacementManifest.from_fragments(
        resource_id="model",
        revision="1",
        weight_generation=1,
        placement_set_id="set",
        topology=topology,
        tensors=tensors,
        fragments=fragments,
    )


def mooncake(source: Any, target: Any) -> list[tuple[int, int, int]]:
    """Plan both targets and lower the plan to segments."""
    from mooncake.reshard import weight

    made = weight.plan_placement_transfer(source, target)
    return [segment for op in made.operations for segment in op.iter_segments(max_segments=1 << 30)]


# ----------------------------------------------------------------------------------------------------- ModelExpress


def has_model_express() -> bool:
    return all(find_spec(name) is not None for name in ("torch", "modelexpress"))


def model_express(layers: int = LAYERS) -> list[tuple[int, int, int]]:
    """Every matrix of both targets, planned against its eight shards, as segments."""
    import torch
    from modelexpress.refit.reshard import RecordedCopy, Shard, plan_pull

    found = []
    for target in range(TARGETS):
        for layer in range(layers):
            for name, (rows, columns, dim) in MATRICES.items():
                size, part = (rows, columns)[dim] // TARGETS, rows // SOURCES
                shape = [size if d == dim else n for d, n in enumerate((rows, columns))]
                cut = ("narrow", (dim, target * size, size), {})
                copy = RecordedCopy(name, (cut,), f"{layer}.{name}", 0, tuple(shape), (shape[1], 1), torch.bfloat16)
                shards = [Shard((rank * part, 0), (part, columns), str(rank), 0, ITEM) for rank in range(SOURCES)]
                found += plan_pull(copy, (rows, columns), torch.bfloat16, ITEM, shards)
    return [(segment.src_addr, segment.dst_byte, segment.nbytes) for segment in found]
