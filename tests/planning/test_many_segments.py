"""A plan's lists have a row for each segment and piece of a block: bounded, with words that say what to do."""

from __future__ import annotations

import numpy as np
import pytest

from nixldesc import Layout, PeerMismatchError, Region, Section, plan


def tier(objects: int, layers: int) -> Layout:
    segments = np.zeros((objects, 3), np.int64)
    segments[:, 1], segments[:, 2] = 1, np.arange(objects)
    row = [Section(f"l{n}", (), 64, offset=64 * n) for n in range(layers)]
    return Layout([Region.segmented("blocks", 64 * layers, segments, mem_type="OBJ", sections=row)])


def pool(layers: int) -> Layout:
    return Layout([Region(f"l{n}", n << 32, 64, 500) for n in range(layers)])


def test_layers_of_many_objects() -> None:
    [[pair]] = plan(pool(40), {0: tier(2_000, 40)}).values()
    assert len(pair.src.table()) == 80_000
    ids = pair.desc_ids([[1_999, 0]], [[3, 4]], sections=["l39"])
    assert [pair.src.address(int(i)) for i in ids[0]] == [(39 * 64, 64, 1_999), (39 * 64, 64, 0)]


def test_layers_of_too_many_objects() -> None:
    with pytest.raises(
        PeerMismatchError, match=r"rows: .* from many segments \(plan for the files or objects of a job"
    ):
        plan(pool(60), {0: tier(10_000, 60)})
