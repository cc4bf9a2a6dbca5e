"""A tensor cut along one dimension on either side, and where plans take every byte of it from, ours or another's."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, TypeAlias

from hypothesis import strategies as st

from nixldesc import Axis, Layout, Region, Section, plan

ITEM = 2

#: (target rank, byte) -> (source rank, byte)
Bytes: TypeAlias = dict[tuple[int, int], tuple[int, int]]


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


def layout(box: tuple[tuple[int, int], ...]) -> Layout:
    section = Section("w", [Axis(f"a{d}", *span) for d, span in enumerate(box)], ITEM)
    return Layout([Region("w", 0, section.nbytes, 1, sections=[section])])


def by_byte(moves: Iterable[tuple[int, int, int, int, int]]) -> Bytes:
    """Take moves (target rank, byte there, source rank, byte there, length) apart; no byte is written twice."""
    found: Bytes = {}
    for target, here, source, there, length in moves:
        for at in range(length):
            assert (target, here + at) not in found
            found[target, here + at] = source, there + at
    return found


def ours(shape: tuple[int, ...], src: tuple[int, int], dst: tuple[int, int]) -> Bytes:
    srcs = {rank: layout(box) for rank, box in enumerate(boxes(shape, src))}
    return by_byte(
        (target, here, source, there, length)
        for target, box in enumerate(boxes(shape, dst))
        for source, pairs in plan(layout(box), srcs).items()
        for pair in pairs
        for there, here, length in pair.moves(*pair.desc_ids([[0]], [[0]])).tolist()
    )


def check_the_same_bytes(drawn: Any, theirs: Bytes) -> None:
    """Another's plan moves all bytes of the tensor, and from where ours does."""
    moved = ours(*drawn)
    assert len(moved) == prod(drawn[0]) * ITEM
    assert moved == theirs
