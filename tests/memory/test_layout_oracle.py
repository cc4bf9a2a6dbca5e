"""Ids and tables of random layouts against a nested-loop oracle."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from nixldesc import BlockIdError, GeometryError, Layout, Region, expand_table
from nixldesc.testing.strategies import block_tables, layouts

GROUPS = 3
# Layouts are small and many properties share them: a quarter of the profile's number is enough.
quarter = settings(max_examples=max(25, settings().max_examples // 4))


@st.composite
def layouts_with_tables(draw: st.DrawFn) -> tuple[Layout, tuple[list[int], ...]]:
    layout = draw(layouts(most_groups=GROUPS))
    tables = draw(block_tables(layout, num_groups=GROUPS))
    for group, table in enumerate(tables):
        if not any(oracle.serves(region, group) for region in layout.regions):
            table.clear()
    return layout, tables


@given(layouts())
def test_tables(layout: Layout) -> None:
    want = oracle.descs(layout)
    table = layout.table()
    dense = layout.dense_table()
    assert table.dtype == dense.dtype == np.uint64
    assert table.flags.c_contiguous
    assert not table.flags.writeable
    assert oracle.expand(table) == [desc[:3] for desc in want]
    assert [tuple(row) for row in dense.tolist()] == [desc[:3] for desc in want]
    assert expand_table(table).tolist() == dense.tolist()
    assert layout.num_descs == len(want)
    first = [next(i for i, d in enumerate(want) if d.region == n) for n in range(len(layout.regions))]
    assert layout.starts.tolist() == [*first, len(want)]
    assert layout.starts.dtype == np.int64
    event("uneven sub-blocks" if len(table) > len(layout.regions) else "one row per region")


@quarter
@given(layouts())
def test_one_row_per_region_or_per_sub_block(layout: Layout) -> None:
    rows = [
        1 if region.num_blocks == 1 or oracle.one_even_spacing(region) else region.sub_blocks
        for region in layout.regions
    ]
    assert len(layout.table()) == sum(rows)


@quarter
@given(layouts())
def test_dense_table_into_a_given_array(layout: Layout) -> None:
    out = np.full((layout.num_descs, 3), 7, np.uint64)
    assert layout.dense_table(out=out) is out
    assert [tuple(row) for row in out.tolist()] == [desc[:3] for desc in oracle.descs(layout)]


@quarter
@given(layouts_with_tables(), st.sampled_from(["region", "group"]), st.data())
def test_desc_ids(drawn: tuple[Layout, tuple[list[int], ...]], order: Any, data: st.DataObject) -> None:
    layout, tables = drawn
    spell = data.draw(st.sampled_from([list, tuple, np.int64, np.int32, np.uint16]))
    spelled: list[Any] = [spell(t) if spell in (list, tuple) else np.array(t, spell) for t in tables]
    want = oracle.ids(layout, tables, order)
    got = layout.desc_ids(spelled, order=order)
    assert got.tolist() == want
    assert got.dtype == np.int32
    assert got.ndim == 1
    assert got.flags.c_contiguous
    out = np.full(len(want), -1, np.int32)
    assert layout.desc_ids(spelled, order=order, out=out) is out
    assert out.tolist() == want


@quarter
@given(layouts_with_tables())
def test_both_orders_name_the_same_descriptors(
    drawn: tuple[Layout, tuple[list[int], ...]],
) -> None:
    layout, tables = drawn
    by_region = layout.desc_ids(tables, order="region")
    by_group = layout.desc_ids(tables, order="group")
    assert sorted(by_region.tolist()) == sorted(by_group.tolist())


@quarter
@given(layouts())
def test_locate_and_address(layout: Layout) -> None:
    for desc_id, desc in enumerate(oracle.descs(layout)):
        flat = desc.block * layout.regions[desc.region].sub_blocks + desc.sub
        assert layout.locate(desc_id) == (desc.region, flat)
        assert layout.address(desc_id) == desc[:3]
    for outside in (-1, layout.num_descs):
        with pytest.raises(BlockIdError):
            layout.locate(outside)
        with pytest.raises(BlockIdError):
            layout.address(outside)


@quarter
@given(layouts_with_tables())
def test_locate_inverts_desc_ids(drawn: tuple[Layout, tuple[list[int], ...]]) -> None:
    layout, tables = drawn
    located = [layout.locate(int(i)) for i in layout.desc_ids(tables)]
    want = [
        (number, block * region.sub_blocks + k)
        for number, region in enumerate(layout.regions)
        for group in oracle.groups_of(region, len(tables))
        for block in tables[group]
        for k in range(region.sub_blocks)
    ]
    assert located == want


@quarter
@given(layouts_with_tables(), st.data())
def test_a_block_beyond_the_smallest_region_is_refused(
    drawn: tuple[Layout, tuple[list[int], ...]], data: st.DataObject
) -> None:
    layout, tables = drawn
    served = [g for g in range(GROUPS) if any(oracle.serves(r, g) for r in layout.regions)]
    group = data.draw(st.sampled_from(served))
    smallest = min(r.num_blocks for r in layout.regions if oracle.serves(r, group))
    wrong = [list(t) for t in tables]
    wrong[group].append(data.draw(st.sampled_from([smallest, -1, 2**31, 2**40])))
    with pytest.raises(BlockIdError, match=f"group {group}"):
        layout.desc_ids(wrong)


@quarter
@given(layouts())
def test_by_mem_type_parts_the_regions(layout: Layout) -> None:
    parts = layout.by_mem_type()
    assert set(parts) == {region.mem_type for region in layout.regions}
    for mem_type, part in parts.items():
        assert part.regions == tuple(r for r in layout.regions if r.mem_type == mem_type)


@quarter
@given(layouts(), st.data())
def test_select(layout: Layout, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([r.name for r in layout.regions]), unique=True))
    if not names:
        names = [layout.regions[0].name]
    assert {r.name for r in layout.select(names).regions} == set(names)


@quarter
@given(layouts())
def test_memory_ranges_cover_all_blocks_and_touch_no_other_byte_between_regions(
    layout: Layout,
) -> None:
    ranges = layout.memory_ranges()
    for addr, length, device, mem_type in ranges:
        assert length > 0
        inside = [
            r
            for r in layout.regions
            if (r.device_id, r.mem_type) == (device, mem_type) and addr <= r.base_addr < addr + length
        ]
        assert min(r.base_addr for r in inside) == addr
    for desc in oracle.descs(layout):
        mem_type = layout.regions[desc.region].mem_type
        assert any(
            addr <= desc.addr and desc.addr + desc.length <= addr + length
            for addr, length, device, of in ranges
            if (device, of) == (desc.device, mem_type)
        )
    for (a, a_len, *a_memory), (b, b_len, *b_memory) in itertools.pairwise(ranges):
        # Joined where they overlap, so no two of one memory overlap.
        assert a_memory != b_memory or a + a_len <= b or b + b_len <= a


@quarter
@given(layouts())
def test_a_layout_survives_json(layout: Layout) -> None:
    again = Layout.from_dict(json.loads(json.dumps(layout.to_dict())))
    assert again == layout
    assert hash(again) == hash(layout)
    assert again.table().tolist() == layout.table().tolist()


@quarter
@given(layouts())
def test_the_signature_is_of_the_geometry_alone(layout: Layout) -> None:
    def moved(region: Region, **changed: Any) -> Region:
        fields = {
            "block_stride": region.block_stride,
            "groups": region.groups,
            "mem_type": region.mem_type,
            "sub_blocks": region.sub_blocks,
            "sub_stride": region.sub_stride,
        }
        length = changed.pop("block_len", region.block_len)
        return Region(
            region.name,
            region.base_addr + 64,
            length,
            region.num_blocks + 1,
            device_id=5,
            **(fields | changed),
        )

    elsewhere = Layout([moved(region) for region in layout.regions])
    assert elsewhere.signature() == layout.signature()
    other = [moved(region) for region in layout.regions]
    other[0] = moved(layout.regions[0], groups=(7,))
    assert Layout(other).signature() != layout.signature()


def test_the_largest_layout_is_not_enumerated() -> None:
    most = 2**31 - 1
    layout = Layout([Region("a", 0, 1, most - 5), Region("b", 1 << 40, 8, 5)])
    assert layout.num_descs == most
    assert layout.table().nbytes == 80
    assert layout.desc_ids([[4]]).tolist() == [4, most - 1]
    assert layout.locate(most - 1) == (1, 4)
    with pytest.raises(GeometryError):
        Layout([Region("a", 0, 1, most - 5), Region("b", 1 << 40, 8, 6)])
