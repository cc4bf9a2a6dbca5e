"""What was wrong once: one example each, so that it stays right."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nixldesc import (
    Axis,
    BlockIdError,
    Blocks,
    DlistPair,
    GeometryError,
    Layout,
    PeerMismatchError,
    Plan,
    Region,
    Section,
    kernel_blocks,
    plan,
    state_sections,
)

TOKENS = (Axis("token", 0, 4), Axis("byte", 0, 8))


def mixed(cp_rank: int, **second: Any) -> Layout:
    """One region, one group: a sharded token section and another that stands elsewhere."""
    sections = (Section("a", TOKENS, 1), Section("s", second.pop("axes", TOKENS), 1, offset=32, **second))
    return Layout([Region("x", 0, 64, 8, groups=(0,), sections=sections)], cp_rank=cp_rank, cp_size=2)


@pytest.mark.parametrize("cp_rank", [0, 1])
@pytest.mark.parametrize("second", [{"axes": (Axis("c", 0, 4),)}, {"cp": False}], ids=["state", "cp=False"])
def test_one_destination_table_has_one_meaning_whoever_sends(cp_rank: int, second: dict[str, Any]) -> None:
    # Destination rank 1 takes "a" from source 1 and "s" from source 0: no source alone sees both.
    sources = {rank: mixed(rank, **second) for rank in (0, 1)}
    words = r"sections 'a' and 's' share .*'s table of group 0.*groups, of their own"
    with pytest.raises(PeerMismatchError, match=words):
        plan(mixed(cp_rank, **second), sources, dst_rank=0, dst_size=1)


def test_one_source_table_has_one_meaning_for_all_destination_groups() -> None:
    whole = (Section("a", TOKENS, 1), Section("s", TOKENS, 1))

    def regions(groups: tuple[int, int]) -> list[Region]:
        return [
            Region(section.name, 100 * i, 32, 8, groups=(group,), sections=(section,))
            for i, (section, group) in enumerate(zip(whole, groups, strict=True))
        ]

    src = [
        Region("a", 0, 32, 8, groups=(0,), sections=(whole[0],)),
        Region("s", 500, 32, 8, groups=(0,), sections=(Section("s", TOKENS, 1, cp=False),)),
    ]
    sources = {rank: Layout(src, cp_rank=rank, cp_size=2) for rank in (0, 1)}
    with pytest.raises(PeerMismatchError, match=r"source [01]'s table of group 0"):
        plan(Layout(regions((0, 1))), sources, dst_rank=0, dst_size=1)


def test_a_joined_run_names_each_section_once() -> None:
    page = state_sections(
        "l", projections={"x": 8, "B": 2, "C": 2}, conv_rows=3, conv_itemsize=2, ssm_shape=(4, 8), ssm_itemsize=4,
        tp_size=1, tp_rank=0, conv_order="SD",
    )  # fmt: skip
    layout = Layout([Region("l", 0, page[-1].end, 4, sections=page)])
    (pair,) = plan(layout, {0: layout})[0]
    assert pair.origin == (("l", "l", ("l.x", "l.B", "l.C", "l.ssm")),)


def test_woven_sections_are_named_once_however_many_runs_they_are() -> None:
    def names(tokens: int) -> int:
        axes = (Axis("token", 0, tokens), Axis("byte", 0, 1))
        page = [Section(name, axes, 1, offset=i, strides=(2, 1)) for i, name in enumerate("kv")]
        layout = Layout([Region("kv", 0, 2 * tokens, 2, sections=page)])
        (run,) = plan(layout, {0: layout})[0][0].origin
        return len(run[2])

    assert [names(tokens) for tokens in (64, 4096)] == [2, 2]


def test_lists_and_skips_are_of_one_moment() -> None:
    layout = Layout([Region(f"r{i}", i * 1000, 16, 8, groups=(i,)) for i in range(6)])
    pair, block = DlistPair(layout, layout), Blocks([1])
    outer, stop = [block] * 6, threading.Event()

    def shorten_and_restore() -> None:
        while not stop.is_set():
            outer.pop()
            outer.append(block)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=shorten_and_restore)
    sys.setswitchinterval(1e-6)
    thread.start()
    got = set()
    try:
        for _ in range(20_000):
            with contextlib.suppress(BlockIdError):  # five lists at that moment
                got.add(tuple(pair.desc_ids(outer, [block] * 6)[0].tolist()))
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert got <= {(1, 9, 17, 25, 33, 41)}


def test_an_out_of_a_subclass_is_a_result(tmp_path: Path) -> None:
    layout = Layout([Region("k", 0, 16, 8), Region("v", 200, 16, 8)])
    out = np.memmap(tmp_path / "ids", dtype=np.int32, mode="w+", shape=(4,))
    for _ in range(2):
        assert layout.desc_ids([[3, 4]], out=out) is out
        assert out.tolist() == [3, 4, 11, 12]
    assert kernel_blocks([1, 2], 2, out=out) is out
    assert out.tolist() == [2, 3, 4, 5]


def test_lists_of_unused_groups_are_never_looked_at() -> None:
    layout = Layout([Region("k", 0, 16, 8, groups=(0,))])
    pair = DlistPair(layout, layout)
    for ids in ([1], range(1, 2), np.array([1], np.uint8)):
        src_ids, dst_ids = pair.desc_ids([ids, None], [ids, "no list"])  # type: ignore[list-item]
        assert src_ids.tolist() == dst_ids.tolist() == [1]


def test_row_index_is_read_only() -> None:
    for part in Layout([Region("k", 0, 16, 8)]).row_index():
        assert not part.flags.writeable


def test_undelivered_needs_no_array_of_all_tokens() -> None:
    tokens = 2**33
    section = Section("k", (Axis("token", 0, tokens),), 1)
    layout = Layout([Region("k", 0, tokens, 2, sections=[section])])
    made: Plan = plan(layout, {0: layout})
    assert made.undelivered({0: [Blocks([0])]}, [Blocks([0, 1])]) == [("k", 1, 0, tokens)]


def test_a_report_on_holes_takes_the_lists_that_have_them() -> None:
    layout = Layout([Region("k", 0, 16, 64)])
    made = plan(layout, {0: layout})
    assert made[0][0].uncovered([[10, 11]], [[40, 41, 42]]).tolist() == [42]
    assert made.undelivered({0: [[10, 11]]}, [[40, 41, 42]]) == [("k", 42, 0, 1)]


def test_a_plan_says_which_argument_is_no_layout() -> None:
    layout = Layout([Region("k", 0, 16, 8)])
    with pytest.raises(TypeError, match="srcs must map source ranks to layouts"):
        plan(layout, [layout], src_size=4)  # type: ignore[arg-type]


def test_a_plan_of_strangers_is_bounded_in_all() -> None:
    def engine(*strides: int) -> Layout:
        # Two loops that nest in another order on either side: one of them is not a row but many.
        axes = (Axis("a", 0, 64), Axis("b", 0, 64), Axis("x", 0, 1))
        regions = [
            Region(f"l{i}", i << 20, 1 << 16, 2, sections=[Section(f"l{i}", axes, 1, strides=(*strides, 1))])
            for i in range(2100)
        ]
        return Layout(regions)

    with pytest.raises(PeerMismatchError, match="more than 65536 rows"):
        plan(engine(2, 130), {0: engine(130, 2)})


def test_a_layout_of_countless_rows_is_refused() -> None:
    with pytest.raises(GeometryError, match="536870912 table rows"):
        Layout([Region("r", 0, 1, 2, sub_blocks=2**29, block_stride=2**30)])


def test_a_range_is_bounded_before_it_becomes_memory() -> None:
    with pytest.raises(BlockIdError, match="2147483647 blocks"):
        Layout([Region("k", 0, 16, 8)]).desc_ids([range(2**31 - 1)])


@pytest.mark.parametrize("turn", [1, -1])
def test_a_table_of_every_group_is_held_against_each_group(turn: int) -> None:
    def engine(tokens: int) -> Layout:
        a = Section("a", (Axis("token", 0, tokens),), 1)
        b = Section("b", (Axis("token", 0, 8),), 1)
        regions = [
            Region("a", 0, tokens, 4, sections=[a]),
            Region("b", 100, 8, 4, groups=(0,), sections=[b]),
        ]
        return Layout(regions[::turn])

    assert list(plan(engine(8), {0: engine(8)})) == [0]
    with pytest.raises(PeerMismatchError, match="share the block tables of source 0 and destination"):
        plan(engine(8), {0: engine(4)})


def test_a_strangers_many_groups_are_looked_up_not_searched() -> None:
    # Searching them all for each of them would take minutes.
    groups = range(20_000)
    section = Section("a", TOKENS, 1)
    src = Layout([Region("a", 0, 32, 2, groups=groups, sections=[section])])
    dst = Layout([Region("a", 0, 32, 2, sections=[section])])
    (pair,) = plan(dst, {0: src})[0]
    assert pair.src.regions[0].groups == tuple(groups)


def test_a_list_is_not_read_beyond_the_regions_of_its_layout() -> None:
    """Columns of a list are taken by a kernel, which looks at every region's number."""
    two = Layout([Region("a", 0, 16, 4), Region("b", 64, 16, 4)])
    lists = plan(two, {0: two})._recipe.sendings[0][0].lists
    assert lists.sides[0].columns(two).base_addrs.tolist() == [0, 64]
    with pytest.raises(IndexError, match="of a layout with more regions"):
        lists.sides[0].columns(two.select(["a"]))


def test_the_sections_that_may_be_missing_come_in_an_array_too() -> None:
    """An array was compared with an empty tuple, entry by entry, and the question of its truth was a ValueError."""
    here, there = Layout([Region("a", 0, 16, 4), Region("b", 64, 16, 4)]), Layout([Region("c", 0, 16, 4)])
    assert plan(here, {0: there}, allow_missing=np.array(["a", "b"])).missing == ("a", "b")
