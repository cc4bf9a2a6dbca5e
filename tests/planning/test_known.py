"""What is known of a shape saves work and nothing else: every check of what differs is made again."""

from __future__ import annotations

from typing import Any

import pytest

from nixldesc import GeometryError, Layout, Region, attention_sections, plan
from nixldesc._memory import forget
from nixldesc.planning.recipe import MAX_KNOWN


def rank(tp_size: int, tp_rank: int, base: int, blocks: int = 10) -> Layout:
    pages = [
        attention_sections(
            f"l{i}", num_kv_heads=4, tp_size=tp_size, tp_rank=tp_rank, block_tokens=16, token_head_bytes=8
        )
        for i in range(3)
    ]
    length = pages[0][-1].end
    return Layout([Region(f"l{i}", base + i * 2**20, length, blocks, sections=page) for i, page in enumerate(pages)])


def tables(dst: Layout, srcs: dict[int, Layout]) -> Any:
    made = plan(dst, srcs, dst_rank=0, dst_size=1)
    return {
        key: [(pair.src.table().tolist(), pair.dst.table().tolist(), tuple(pair.origin)) for pair in pairs]
        for key, pairs in made.items()
    }


def test_a_known_shape_elsewhere_is_planned_as_if_it_were_the_first() -> None:
    dst = rank(1, 0, 1 << 40)
    for base, blocks in ((1 << 30, 10), (1 << 31, 7), (2**64 - 2**22, 3)):
        messages = {r: rank(2, r, base, blocks).to_dict() for r in range(2)}
        known = tables(dst, {r: Layout.from_dict(message) for r, message in messages.items()})
        forget()
        assert tables(dst, {r: Layout.from_dict(message) for r, message in messages.items()}) == known
        assert tables(dst, {r: rank(2, r, base, blocks) for r in range(2)}) == known


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("base_addrs", [0, 0, 2**64 - 1], "beyond 2\\*\\*64"),
        ("base_addrs", [0, 0], "2 entries in base_addrs"),
        ("base_addrs", [0, -1, 0], "base_addrs must be in 0"),
        ("base_addrs", [0, 1.0, 0], "must be an int"),
        ("num_blocks", 0, "num_blocks must be positive"),
        ("num_blocks", 2**30, "descriptors"),
        ("num_blocks", True, "num_blocks must be a list"),
        ("device_ids", "0", "device_ids must be a list"),
    ],
)
def test_what_a_known_shape_says_of_its_blocks_is_proven_each_time(key: str, value: Any, words: str) -> None:
    message = rank(2, 0, 1 << 30).to_dict()
    Layout.from_dict(message)
    with pytest.raises(GeometryError, match=words) as known:
        Layout.from_dict({**message, key: value})
    forget()
    with pytest.raises(GeometryError, match=words) as first:
        Layout.from_dict({**message, key: value})
    assert str(known.value) == str(first.value)


@pytest.mark.parametrize("key", ["base_addrs", "num_blocks"])
def test_a_known_shape_without_its_blocks_misses_them(key: str) -> None:
    message = rank(2, 0, 1 << 30).to_dict()
    Layout.from_dict(message)
    del message[key]
    with pytest.raises(GeometryError, match=f"key '{key}' is missing"):
        Layout.from_dict(message)


def test_equal_to_python_is_not_the_same_shape() -> None:
    message = Layout([Region("k", 0, 1, 4)]).to_dict()
    Layout.from_dict(message)
    with pytest.raises(GeometryError, match="must be"):
        Layout.from_dict({**message, "block_lens": True})
    with pytest.raises(GeometryError, match="version"):
        Layout.from_dict({**message, "version": 2.0})


@pytest.mark.parametrize(("of_dst", "of_src"), [(5, 5), (5, MAX_KNOWN + 1), (MAX_KNOWN + 1, 5)])
def test_recipes_are_kept_unless_they_or_their_layouts_are_large(of_dst: int, of_src: int) -> None:
    """A recipe holds on to its layouts' shapes: one region that meets of very many is not a small one."""

    def message(regions: int) -> dict[str, Any]:
        names = [f"r{number}" for number in range(regions)]
        return Layout.from_columns(
            base_addrs=[4096 * n for n in range(regions)], block_lens=[16] * regions, num_blocks=4, names=names
        ).to_dict()

    dst, src = Layout.from_dict(message(of_dst)), Layout.from_dict(message(of_src))
    first, again = (plan(dst, {0: src}, allow_missing=True) for _ in range(2))
    assert (first._recipe is again._recipe) == (max(of_dst, of_src) <= MAX_KNOWN)
