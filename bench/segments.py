"""Tiers of objects: segments against the lists of tuples that an object tier builds today.

The baselines are written from what vLLM's object tier and LMCache's storage backend are described to do: a tuple
``(address, length, device)`` per object and per block of the memory beside it, in a list; a request's lists are built
for the request, with ids that count through. Nothing is checked there. Ours proves every segment apart from the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import measure
import numpy as np
from numpy.typing import NDArray
from targets import Row, Scale, at_least, same, within

from nixldesc import Layout, Region, plan

#: Bytes of an object: a block of all layers.
LENGTH = 2**21
#: Blocks of one request.
REQUEST = 256
FIRST = 1000

Tuples = list[tuple[int, int, int]]


def rows(scale: Scale) -> Iterator[Row]:
    """Every step of a tier's life, for each number of objects."""
    for count in scale.objects:
        yield from objects(scale, count)


def objects(scale: Scale, count: int) -> Iterator[Row]:
    race = partial(measure.race, seconds=scale.seconds / 2)
    devices = np.arange(FIRST, FIRST + count)
    shuffled = np.random.default_rng(0).permutation(devices)
    segments = of_objects(shuffled)
    layout, near = tier(segments), pool(count)
    tuples, names = object_tuples(shuffled.tolist()), f"{count:,} objects"
    same(layout.dense_table(), np.array(tuples, dtype=np.uint64))

    yield Row(
        f"{names}: Layout, to tuples", race(lambda: object_tuples(shuffled.tolist()), lambda: tier(segments)), within(2)
    )
    stacked = column_stack(segments)
    same(stacked, layout.table())
    yield Row(
        f"{names}: Layout and table, to np.column_stack",
        race(lambda: column_stack(segments), lambda: tier(segments).table()),
        within(5),
    )
    yield Row(
        f"{names}: plan for a pool, tables of both sides, to tuples of both",
        race(lambda: (object_tuples(shuffled.tolist()), pool_tuples(range(count))), lambda: both_tables(near, layout)),
        at_least(1),
    )
    yield request(scale, near, layout, shuffled)
    yield Row(
        f"{names}, not in order: to_dict and from_dict, to lists and tuples again",
        race(
            lambda: [tuple(item) for item in [list(item) for item in tuples]],
            lambda: Layout.from_dict(layout.to_dict()),
        ),
        within(3),
    )
    numbered = tier(of_objects(devices))
    told = numbered.to_dict()
    yield Row(
        f"{names}, numbered through: from_dict, to tuples",
        race(lambda: object_tuples(devices.tolist()), lambda: Layout.from_dict(told)),
        at_least(1),
    )


def request(scale: Scale, near: Layout, layout: Layout, devices: NDArray[np.int64]) -> Row:
    """A request of some blocks: lists of tuples and their ids, against ids of lists that are prepared."""
    count = len(devices)
    rng = np.random.default_rng(1)
    blocks = min(REQUEST, count)
    src, dst = (rng.choice(count, blocks, replace=False).tolist() for _ in range(2))
    [[pair]] = plan(near, {0: layout}).values()
    of = devices.tolist()

    def lists() -> tuple[Tuples, Tuples, NDArray[np.int32]]:
        return object_tuples([of[i] for i in src]), pool_tuples(dst), np.arange(blocks, dtype=np.int32)

    src_ids, dst_ids = pair.desc_ids([src], [dst])
    same(np.sort(layout.dense_table()[src_ids, 2]), np.sort(np.array(lists()[0])[:, 2]))
    same(np.sort(near.dense_table()[dst_ids, 0]), np.sort(np.array(lists()[1])[:, 0]))
    found = measure.race(lists, lambda: pair.desc_ids([src], [dst]), seconds=scale.seconds / 2)
    return Row(f"a request of {blocks} of {count:,} objects: pair.desc_ids, to tuples", found, at_least(5))


def of_objects(devices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Segments of one block, from offset 0 of each object."""
    return np.column_stack((np.zeros_like(devices), np.ones_like(devices), devices))


def tier(segments: NDArray[np.int64]) -> Layout:
    return Layout([Region.segmented("blocks", LENGTH, segments, mem_type="OBJ")])


def pool(blocks: int) -> Layout:
    return Layout([Region("blocks", 0x1000_0000, LENGTH, blocks, mem_type="DRAM")])


def both_tables(near: Layout, far: Layout) -> int:
    [[pair]] = plan(near, {0: far}).values()
    return len(pair.src.table()) + len(pair.dst.table())


def object_tuples(devices: Sequence[int]) -> Tuples:
    return [(0, LENGTH, device) for device in devices]


def pool_tuples(blocks: Sequence[int]) -> Tuples:
    return [(0x1000_0000 + block * LENGTH, LENGTH, 0) for block in blocks]


def column_stack(segments: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The table in one line of NumPy."""
    lengths = np.full(len(segments), LENGTH)
    return np.column_stack((segments[:, 0], lengths, segments[:, 2], lengths, segments[:, 1])).astype(np.uint64)


def main() -> None:
    print(f"{'work':<75} {'tuples us':>12} {'ours us':>12} {'ratio':>8}")
    for work, race, target in rows(Scale()):
        if race is not None:
            met = "met" if target.met(race) else "NOT MET"
            print(f"{work:<75} {race.baseline * 1e6:>12,.1f} {race.ours * 1e6:>12,.1f} {race.ratio:>8.2f} {met}")


if __name__ == "__main__":
    main()
