"""A plan bound to a peer that has restarted: the same lists as a new plan, or the first difference by name."""

from __future__ import annotations

from typing import Any

import pytest

from nixldesc import Axis, Layout, PeerMismatchError, Region, Section, plan


def layout(base: int, blocks: int = 9, *, place: dict[str, Any] | None = None, page: Any = None, **how: Any) -> Layout:
    sections = page or [Section("l", [Axis("token", 0, 4), Axis("head", 0, 2)], 8)]
    regions = [Region("l", base, 64, blocks, sections=sections, **how), Region("other", base + 2**20, 64, blocks)]
    return Layout(regions, **(place or {}))


OLD = layout(0)


def test_addresses_devices_blocks_may_differ_and_the_lists_are_a_new_plans() -> None:
    here, there = layout(2**30, 5), layout(2**40, 7, device_id=3)
    bound, fresh = plan(OLD, {2: OLD}).bind(here, {2: there}), plan(here, {2: there})
    assert list(bound) == [2]
    for mine, other in zip(bound[2], fresh[2], strict=True):
        assert mine == other
        assert mine.src.table()[:, 2].tolist() == [3, 0]
        assert mine.dst.table().tolist() == other.dst.table().tolist()
        assert [ids.tolist() for ids in mine.desc_ids([[6]], [[4]])] == [[6, 13], [4, 9]]


HALF = [Section("l", [Axis("token", 0, 4), Axis("head", 0, 1)], 16)]
MORE = [Section("l", [Axis("token", 0, 4), Axis("head", 0, 1)], 8), Section("m", [Axis("x", 0, 4)], 8, offset=32)]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (layout(0, block_stride=128), "region 'l': block_stride is 128, the plan's is 64"),
        (layout(0, groups=(1,)), r"region 'l': groups is \(1,\), the plan's is None"),
        (layout(0, mem_type="DRAM"), "region 'l': mem_type is 'DRAM', the plan's is 'VRAM'"),
        (layout(0, page=HALF), r"region 'l': section 'l' is Section\("),
        (layout(0, page=MORE), r"region 'l': section 'l' is Section\("),
        (layout(0, place={"cp_rank": 1, "cp_size": 2}), "cp_rank is 1, the plan's is 0"),
        (layout(0, place={"cp_size": 2}), "cp_size is 2, the plan's is 1"),
        (layout(0, place={"cp_tokens": 4}), "cp_tokens is 4, the plan's is None"),
        (OLD.select(["l"]), "it has 1 regions, the plan's has 2"),
        (OLD.select(["other", "l"]), "region 'other': name is 'other', the plan's is 'l'"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_another_shape_is_refused_by_its_first_difference(other: Layout, words: str) -> None:
    made = plan(OLD, {2: OLD})
    with pytest.raises(PeerMismatchError, match=f"^dst: {words}.*; the plan was made for layouts of another shape$"):
        made.bind(other, {2: OLD})
    with pytest.raises(PeerMismatchError, match=f"^source 2: {words}"):
        made.bind(OLD, {2: other})


def test_other_sources_are_refused() -> None:
    with pytest.raises(PeerMismatchError, match=r"^the plan was made for source ranks \[2\], bind got \[1, 2\]$"):
        plan(OLD, {2: OLD}).bind(OLD, {1: OLD, 2: OLD})


def test_regions_that_swap_their_pages_are_another_shape() -> None:
    """Planted once: pages compared without asking which region has which."""

    def pages(*kinds: int) -> Layout:
        made = []
        for number, kind in enumerate(kinds):
            page = [Section(f"l{number}", [Axis("a", 0, 4), Axis("b", 0, 2)], 8, strides=[(16, 8), (8, 32)][kind])]
            made.append(Region(f"l{number}", number << 10, 64, 4, sections=page))
        return Layout(made)

    old = pages(0, 1, 0)
    with pytest.raises(PeerMismatchError, match=r"^source 0: region 'l2': section 'l2' is "):
        plan(old, {0: old}).bind(old, {0: pages(0, 1, 1)})
    assert plan(old, {0: old}).bind(old, {0: pages(0, 1, 0)})[0][0].src.num_descs
