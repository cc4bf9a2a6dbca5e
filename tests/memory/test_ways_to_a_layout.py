"""However a layout came to be (a part, a message, a copy, a side of a pair), it does what one made of its regions does.

The parts of a layout once kept columns that no kernel could read: every way has to show its table and its ids.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from drawn import all_pairs, fewer, plans_of
from hypothesis import given

from nixldesc import DlistPair, Layout, Region
from nixldesc._memory import forget
from nixldesc.testing.strategies import Transfer, layouts, transfers


def made_anew(layout: Layout) -> Layout:
    regions = [copy.copy(region) for region in layout.regions]
    for i, region in enumerate(regions):  # a plan's regions may share a name
        object.__setattr__(region, "name", f"region {i}")
    return Layout(regions)


def does_the_same(layout: Layout) -> None:
    other = made_anew(layout)
    assert layout.table().tolist() == other.table().tolist()
    assert layout.starts.tolist() == other.starts.tolist()
    assert [part.tolist() for part in layout.row_index()] == [part.tolist() for part in other.row_index()]
    assert (layout.num_descs, layout.num_rows) == (other.num_descs, other.num_rows)
    lists = [[0]] * (1 + max(group for region in layout.regions for group in region.groups or (0,)))
    taken = {group for region in layout.regions for group in region.groups or range(len(lists))}
    asked = [ids if group in taken else [] for group, ids in enumerate(lists)]
    for order in ("region", "group"):
        ids = layout.desc_ids(asked, order=order)
        assert ids.tolist() == other.desc_ids(asked, order=order).tolist()
        assert [layout.address(i) for i in ids.tolist()] == [other.address(i) for i in ids.tolist()]


def parts_of(layout: Layout) -> Iterator[Layout]:
    yield from layout.by_mem_type().values()
    names = [region.name for region in layout.regions]
    yield layout.select(names)
    yield layout.select(names[::-1])
    yield layout.select(names[::2])


def copies_of(layout: Layout) -> Iterator[Layout]:
    message = layout.to_dict()
    forget()
    yield Layout.from_dict(message)  # the first of its shape
    yield Layout.from_dict(message)  # and the next
    yield pickle.loads(pickle.dumps(layout))
    yield copy.deepcopy(layout)


@fewer
@given(layouts())
def test_parts_and_copies(layout: Layout) -> None:
    for part in parts_of(layout):
        does_the_same(part)
    for other in copies_of(layout):
        assert other == layout
        does_the_same(other)


@fewer
@given(transfers())
def test_sides_of_pairs(transfer: Transfer) -> None:
    for _, _, pair in all_pairs(plans_of(transfer)):
        does_the_same(pair.src)
        does_the_same(pair.dst)


@pytest.mark.parametrize("regions", [2, 5, 64])
def test_the_parts_of_two_memories(regions: int) -> None:
    """The smallest that failed: two regions of one memory beside another."""
    memories = ("VRAM", "DRAM")
    layout = Layout([Region(f"{mem}{i}", 64 * i, 16, 4, mem_type=mem) for i in range(regions) for mem in memories])
    for part in layout.by_mem_type().values():
        assert part.table().tolist() == [[64 * i, 16, 0, 16, 4] for i in range(regions)]
        assert part.desc_ids([[1]]).tolist() == [4 * i + 1 for i in range(regions)]
        src_ids, _ = DlistPair(part, part).desc_ids([[1, 2]], [[2, 3]])
        assert np.array_equal(np.sort(src_ids), np.sort([4 * i + b for i in range(regions) for b in (1, 2)]))
