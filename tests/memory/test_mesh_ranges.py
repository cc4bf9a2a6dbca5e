"""What a rank of a device mesh holds, against cutting a list of indices in two, three, ... as torch.chunk documents.

tests/peers/test_mesh_ranges.py asks DTensor itself.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nixldesc import mesh_ranges, shard_range


def chunk(indices: list[int], number: int) -> list[list[int]]:
    """Equal chunks but for the last one; fewer than asked for where they do not fill, then empty ones."""
    longest = next(size for size in itertools.count() if size * number >= len(indices))
    chunks: list[list[int]] = [[] for _ in range(number)]
    for place, index in enumerate(indices):
        chunks[place // longest].append(index)
    return chunks


@st.composite
def meshes(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(0, 17), min_size=1, max_size=3))
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    dims = st.none() | st.integers(-len(shape), len(shape) - 1)
    return shape, mesh, [draw(dims) for _ in mesh]


@given(meshes())
def test_every_rank_holds_what_cutting_leaves_it(drawn: Any) -> None:
    shape, mesh, placements = drawn
    coordinates = itertools.product(*(range(number) for number in mesh))
    for rank, coordinate in enumerate(coordinates):
        held = [list(range(size)) for size in shape]
        for number, dim, mine in zip(mesh, placements, coordinate, strict=True):
            if dim is not None:
                held[dim] = chunk(held[dim], number)[mine]
        expected = tuple((indices[0], indices[-1] + 1) for indices in held if indices)
        found = mesh_ranges(shape, mesh, placements, rank)
        assert found == (expected if len(expected) == len(shape) else None)


def test_an_even_cut_is_the_one_of_tensor_parallelism() -> None:
    for rank in range(4):
        assert mesh_ranges((8, 3), (4,), (0,), rank) == (shard_range(8, 4, rank), (0, 3))


def test_a_tensor_of_no_dimensions_is_whole_everywhere() -> None:
    assert mesh_ranges((), (2, 2), (None, None), 3) == ()
