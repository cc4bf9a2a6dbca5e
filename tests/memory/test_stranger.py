"""`Layout.from_dict` takes a stranger's word: a sound Layout or a GeometryError, soon and in little memory."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import strangers
from hypothesis import event, given
from hypothesis import strategies as st
from strangers import KEYS, NASTY, NUMBERS, Tally, brief, doubled, nested

from nixldesc import GeometryError, Layout, Region, attention_sections
from nixldesc.testing.strategies import layouts

# -------------------------------------------------------------------------------------------- honest peers

VALID = strangers.layouts()


@pytest.mark.parametrize("layout", VALID, ids=repr)
def test_every_kind_of_layout_survives_its_dict(layout: Layout) -> None:
    for given_dict in (layout.to_dict(), json.loads(json.dumps(layout.to_dict()))):
        again = Layout.from_dict(given_dict)
        assert again == layout
        assert hash(again) == hash(layout)
        assert again.signature() == layout.signature()
        assert again.table().tobytes() == layout.table().tobytes()
        assert again.to_dict() == layout.to_dict()


@given(layouts())
def test_any_layout_survives_its_dict(layout: Layout) -> None:
    assert Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout
    assert not list(strangers.unsound(layout))


def test_what_version_2_looks_like() -> None:
    """Peers of other ages read this: it may not change without a new version."""
    assert VALID[0].to_dict() == {
        "version": 2,
        "names": ["k", "v"],
        "base_addrs": [4096, 8192],
        "block_lens": 16,
        "num_blocks": [4, 3],
        "block_strides": [16, 64],
        "mem_types": ["VRAM", "DRAM"],
    }
    assert VALID[2].to_dict() == {
        "version": 2,
        "cp": [1, 3, None],
        "names": ["l0"],
        "base_addrs": [2**40],
        "block_lens": 64,
        "num_blocks": 100,
        "device_ids": 3,
        "groups": [[0, 2]],
        "group_of": 0,
        "pages": [[{"axes": [["head", 2, 4], ["token", 0, 4], ["byte", 0, 8]], "itemsize": 1}]],
        "page_of": 0,
    }
    assert VALID[5].to_dict()["pages"][0] == [
        {"axes": [["head", 0, 2], ["token", 0, 4]], "itemsize": 3, "strides": [32, 8], "cp": False}
    ]


def test_version_1_is_still_read() -> None:
    """What the releases before wrote, by hand from theirs."""
    axes = [["head", 2, 4], ["token", 0, 4], ["byte", 0, 8]]
    old = {
        "version": 1,
        "cp_rank": 1,
        "cp_size": 3,
        "regions": [
            {
                "name": "l0",
                "mem_type": "VRAM",
                "base_addr": 2**40,
                "block_len": 64,
                "num_blocks": 100,
                "device_id": 3,
                "groups": [0, 2],
                "sections": [{"name": "l0", "axes": axes, "itemsize": 1}],
            }
        ],
    }
    assert Layout.from_dict(old) == VALID[2]
    regions = [
        {"name": "k", "mem_type": "VRAM", "base_addr": 4096, "block_len": 16, "num_blocks": 4},
        {"name": "v", "mem_type": "DRAM", "base_addr": 8192, "block_len": 16, "num_blocks": 3, "block_stride": 64},
    ]
    assert Layout.from_dict({"version": 1, "cp_rank": 0, "cp_size": 1, "regions": regions}) == VALID[0]


def test_layers_are_told_in_few_bytes() -> None:
    """Equal layers cost their addresses: names that count on and pages that repeat are told once."""

    def layers(count: int) -> Layout:
        regions = []
        for layer in range(count):
            name = f"model.layers.{layer}.attn"
            sections = attention_sections(
                name, num_kv_heads=4, tp_size=1, tp_rank=0, block_tokens=4, token_head_bytes=8, kv="blocks_first"
            )
            regions.append(Region(name, layer << 20, sections[-1].end, 100, sections=sections))
        return Layout(regions)

    few, many = (len(json.dumps(layers(count).to_dict())) for count in (2, 80))
    assert many - few < 78 * len(f", {80 << 20}")
    assert Layout.from_dict(json.loads(json.dumps(layers(80).to_dict()))) == layers(80)


def test_size_grows_with_regions_and_never_with_blocks() -> None:
    small, large = (Layout.from_dict(plain(num_blocks=n)).to_dict() for n in (1, 2**31 - 1))
    assert len(json.dumps(large)) - len(json.dumps(small)) == len(str(2**31 - 1)) - 1


@pytest.mark.parametrize("version", [0, 3, 99, -1, "1", 1.0, True, None, [1], {}])
def test_another_version_is_refused_by_name(version: Any) -> None:
    with pytest.raises(GeometryError, match=f"^layout: version {re.escape(repr(version))} is not understood, this"):
        Layout.from_dict({"version": version, "whatever": "it holds"})


def test_what_a_newer_peer_may_add_is_refused_by_name() -> None:
    for told in (plain(pool="a"), {**plain(), "pool": "a"}, plain(sections=[{"pool": "a"}])):
        with pytest.raises(GeometryError, match="unknown key 'pool' "):
            Layout.from_dict(told)


# --------------------------------------------------------------------------------------------------- bombs


def plain(**how: Any) -> dict[str, Any]:
    region = {"name": "k", "base_addr": 0, "block_len": 1, "num_blocks": 1, **how}
    return {"version": 1, "regions": [region]}


def woven(count: int, sections: int) -> dict[str, Any]:
    """Sections that interleave item by item."""
    held = [
        {"name": f"s{i}", "itemsize": 1, "offset": i, "strides": [sections], "axes": [["a", 0, count]]}
        for i in range(sections)
    ]
    return plain(block_len=count * sections, sections=held)


def axes(*ranges: Any) -> dict[str, Any]:
    return plain(block_len=2**64 - 1, sections=[{"name": "s", "itemsize": 1, "axes": list(ranges)}])


def many_pages(count: int) -> dict[str, Any]:
    """Each region another page, each as finely woven as may be."""
    regions = []
    for i in range(count):
        (region,) = woven(2**15, 2)["regions"]
        for section in region["sections"]:
            section.update(name=f"{section['name']}.{i}", offset=section["offset"] + 2 * i)
        regions.append({**region, "name": f"k{i}", "block_len": 2**20})
    return {"version": 1, "regions": regions}


def cyclic_list() -> dict[str, Any]:
    ring: list[Any] = []
    ring.append(ring)
    return plain(groups=ring)


def cyclic_dict() -> dict[str, Any]:
    ring = plain()
    ring["regions"][0]["sections"] = [ring]
    return ring


BOMBS: dict[str, Callable[[], Any]] = {
    "2**62 blocks": lambda: plain(num_blocks=2**62),
    "as many blocks as there may be": lambda: plain(num_blocks=2**31 - 1),
    "2**62 sub-blocks": lambda: plain(sub_blocks=2**62, block_stride=2**63),
    "as many uneven sub-blocks as there may be": lambda: plain(num_blocks=2, sub_blocks=2**30 - 1, block_stride=2**32),
    "a huge axis": lambda: axes(["a", 0, 2**63]),
    "a huge axis far off": lambda: axes(["a", 2**63, 2**64 - 1]),
    "many axes": lambda: axes(*[[f"a{i}", 0, 1] for i in range(16)]),
    "too many axes": lambda: axes(*[[f"a{i}", 0, 1] for i in range(200)]),
    "a million axes": lambda: axes(*[["a", 0, 1]] * 10**6),
    "a million empty axes": lambda: axes(*[[]] * 10**6),
    "axes to overflow": lambda: axes(*[[f"a{i}", 0, 2**63] for i in range(16)]),
    "2**20 runs": lambda: plain(
        block_len=2**21, sections=[{"name": "s", "itemsize": 1, "strides": [2], "axes": [["a", 0, 2**20]]}]
    ),
    "2**21 runs": lambda: plain(
        block_len=2**22, sections=[{"name": "s", "itemsize": 1, "strides": [2], "axes": [["a", 0, 2**21]]}]
    ),
    "woven as finely as may be": lambda: woven(2**15, 2),
    "woven too finely": lambda: woven(2**18, 2),
    "woven of too many": lambda: woven(2**20, 2),
    "woven of many": lambda: woven(2**8, 64),
    "many pages woven as finely as may be": lambda: many_pages(16),
    "more pages than may be": lambda: many_pages(40),
    "many groups": lambda: plain(groups=list(range(1000))),
    "a group many times": lambda: plain(groups=[0] * 1000),
    "many regions of one name": lambda: {"version": 1, "regions": plain()["regions"] * 200},
    "a deep list": lambda: plain(groups=nested(100_000)),
    "a deep list for all": lambda: nested(100_000),
    "a list of 2**60": lambda: plain(sections=doubled(60)),
    "a list that holds itself": cyclic_list,
    "a dict that holds itself": cyclic_dict,
    "a number of a million digits": lambda: plain(base_addr=10**1_000_000),
    "a million digits below zero": lambda: plain(num_blocks=-(10**1_000_000)),
    "a name of a megabyte": lambda: plain(name="k" * 2**20),
    "a key of a megabyte": lambda: {**plain(), "k" * 2**20: 1},
    "many keys": lambda: {**plain(), **{f"key{i}": i for i in range(1000)}},
}


def verdict(bomb: Any) -> str:
    try:
        return repr(Layout.from_dict(bomb))
    except GeometryError as error:
        return str(error)


def memory_of(bomb: Any) -> int:
    """Bytes that were held at once, at most."""
    tracemalloc.start()
    try:
        verdict(bomb)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def work_of(bomb: Any) -> int:
    """Calls of Python and C functions: as good as time, and the same on every machine."""
    calls = 0

    def count(frame: Any, what: str, arg: Any) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        verdict(bomb)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_little(name: str) -> None:
    bomb = BOMBS[name]()
    assert memory_of(bomb) < 6 * 2**20
    assert work_of(bomb) < 20_000
    assert len(verdict(bomb)) < 500


# ------------------------------------------------------------------------------------------------- anything

KNOWN_KEYS = st.sampled_from([key for key in KEYS if isinstance(key, str)])
LEAVES = (
    # without what hypothesis itself could not print
    st.sampled_from([leaf for leaf in NASTY if not isinstance(leaf, int) or leaf < 2**301])
    | st.integers()
    | st.sampled_from(NUMBERS)
    | st.text(max_size=9)
    | st.floats()
    | st.binary(max_size=9)
    | st.sampled_from(["token", "byte", "head", "VRAM"])
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inside: (
        st.lists(inside, max_size=5)
        | st.dictionaries(KNOWN_KEYS, inside, max_size=6)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inside, max_size=3)
    ),
    max_leaves=30,
)


def whole(tally: Tally) -> None:
    """Nothing but layouts and refusals."""
    assert tally.crashes == []
    event("valid" if tally.valid else "refused")


@given(ANYTHING)
def test_anything(value: Any) -> None:
    tally = Tally()
    tally.take(value)
    whole(tally)


@given(st.dictionaries(KNOWN_KEYS, ANYTHING, max_size=8))
def test_anything_in_the_place_of(value: dict[str, Any]) -> None:
    """A layout, a region, a section, an axis: the rest is as it should be."""
    section = {"name": "s", "itemsize": 1, "axes": []}
    for whole_dict in (
        {"version": 1, "regions": []} | value,
        plain(**value),
        plain(sections=[{**section, **value}]),
        plain(sections=[{**section, "axes": [*value.values()]}]),
        plain(sections=[{**section, "axes": [[*value.values()]]}]),
    ):
        tally = Tally()
        tally.take(whole_dict)
        whole(tally)


SIZES = st.sampled_from(NUMBERS) | st.integers(0, 70)
SMALL = st.integers(1, 5)


@st.composite
def likely_sections(draw: st.DrawFn, number: int) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(["token", "head", "byte", "x"]), max_size=3, unique=draw(st.booleans())))
    ranges = [[name, 0 if name == "token" else draw(SMALL), draw(SMALL) + 5] for name in names]
    section = {"name": draw(st.sampled_from([f"s{number}", "s0"])), "itemsize": draw(SMALL), "axes": ranges}
    if draw(st.booleans()):
        section["offset"] = draw(SIZES)
    if draw(st.booleans()):
        section["strides"] = draw(st.lists(SIZES, min_size=len(names), max_size=len(names)))
    return section


@st.composite
def likely_regions(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """Numbers at the edge of what a region may be."""
    base, length, blocks = draw(SIZES), draw(SIZES), draw(SIZES)
    region: dict[str, Any] = {"name": f"r{number}", "base_addr": base, "block_len": length, "num_blocks": blocks}
    for key in ("block_stride", "sub_blocks", "sub_stride", "device_id"):
        if draw(st.booleans()):
            region[key] = draw(SIZES)
    if draw(st.booleans()):
        region["groups"] = draw(st.lists(SMALL, max_size=3))
    if draw(st.booleans()):
        region["sections"] = [draw(likely_sections(i)) for i in range(draw(st.integers(0, 3)))]
    return region


@given(st.data(), st.integers(0, 3), SIZES, SIZES)
def test_likely_layouts(data: st.DataObject, count: int, cp_rank: int, cp_size: int) -> None:
    regions = [data.draw(likely_regions(i)) for i in range(count)]
    tally = Tally()
    tally.take({"version": 1, "regions": regions, "cp_rank": cp_rank, "cp_size": cp_size})
    tally.take({"version": 1, "regions": regions})
    whole(tally)


COUNTS = st.sampled_from([0, 1, 1, 1, 2, 3, 8, 2**31 - 1, 2**31])
COLUMNS = {
    "base_addrs": SIZES,
    "block_lens": SIZES,
    "num_blocks": COUNTS,
    "block_strides": SIZES,
    "device_ids": SIZES,
    "sub_blocks": COUNTS,
    "sub_strides": SIZES,
    "runs": COUNTS,
    "run_strides": SIZES,
}


@st.composite
def likely_columns(draw: st.DrawFn) -> dict[str, Any]:
    """A message of version 2 whose numbers are at the edge of what it may say."""
    count = draw(st.integers(1, 4))
    told: dict[str, Any] = {
        "version": 2,
        "names": draw(st.sampled_from([[f"r{i}" for i in range(count)], [["r", 0, count, ""]]])),
    }
    for key, sizes in COLUMNS.items():
        if key in ("base_addrs", "block_lens", "num_blocks") or draw(st.booleans()):
            told[key] = draw(sizes | st.lists(sizes, min_size=count, max_size=count))
    if draw(st.booleans()):
        told["groups"] = draw(
            st.lists(st.none() | st.lists(SMALL, min_size=1, max_size=3, unique=True), min_size=1, max_size=3)
        )
        told["group_of"] = draw(st.integers(0, 2) | st.lists(st.integers(0, 2), min_size=count, max_size=count))
    if draw(st.booleans()):
        pages = draw(st.lists(st.just("opaque") | st.lists(likely_nameless(), max_size=2), min_size=1, max_size=3))
        told["pages"] = pages
        told["page_of"] = draw(st.integers(0, 2) | st.lists(st.integers(0, 2), min_size=count, max_size=count))
        tails = [[] if page == "opaque" else [f"+{n}" for n in range(len(page))] for page in pages]
        if draw(st.booleans()):
            told["section_names"] = draw(st.sampled_from([{"pages": tails}, {"regions": ["=w"] * count}]))
    if draw(st.booleans()):
        bases = draw(st.lists(SIZES, min_size=2, max_size=3) | st.just({"first": 0, "step": 2**20, "count": 3}))
        told["segments"] = {"0": [bases, draw(COUNTS), draw(st.integers(0, 3))]}
    if draw(st.booleans()):
        told["cp"] = [draw(st.integers(0, 2)), draw(st.integers(1, 4)), draw(st.none() | st.integers(0, 9))]
    return told


@st.composite
def likely_nameless(draw: st.DrawFn) -> dict[str, Any]:
    section = {**draw(likely_sections(0))}
    del section["name"]
    if draw(st.booleans()):  # the last axis in two parts
        inner = draw(st.integers(1, 3))
        section["axes"] = [["x", 0, draw(SMALL), draw(st.sampled_from([inner, inner, 1, 4]))], ["x", 0, inner]]
        section.pop("strides", None)
    return section


@given(likely_columns())
def test_likely_columns(told: dict[str, Any]) -> None:
    tally = Tally()
    tally.take(told)
    whole(tally)


@given(st.dictionaries(KNOWN_KEYS, ANYTHING, max_size=4), st.sampled_from(["", "pages", "axes", "segments"]))
def test_anything_in_the_place_of_columns(value: dict[str, Any], where: str) -> None:
    """A message, its page, an axis, its segments: the rest is as it should be."""
    told = strangers.numbered()
    if where == "":
        told |= value
    elif where == "segments":
        told["segments"] = {"0": [*value.values()], "3": value}
    elif where == "pages":
        told["pages"][0][0] |= value
    else:
        told["pages"][0][0]["axes"] = [[*value.values()]]
    tally = Tally()
    tally.take(told)
    whole(tally)


def test_an_opaque_block_of_no_bytes_is_refused_by_name() -> None:
    """Found by `test_likely_columns`: it came out as a ValueError of zip."""
    told = {"version": 2, "names": ["a", "b"], "base_addrs": 0, "block_lens": [1, 0], "num_blocks": 1}
    with pytest.raises(GeometryError, match=r"^region 'b': block_len must be positive, got 0$"):
        Layout.from_dict(told)


def test_changed_dicts() -> None:
    rng, tally = random.Random(20_000), Tally()
    seeds = strangers.messages()
    for _ in range(5_000):
        tally.take(strangers.mutate(rng, rng.choice(seeds)))
    assert tally.crashes == []
    assert tally.valid > 300, "most mutations should not be too coarse to be accepted"
    assert tally.refused > 3_000


def test_changed_dicts_cost_little() -> None:
    rng = random.Random(7)
    seeds = strangers.messages()
    for _ in range(200):
        given_dict = strangers.mutate(rng, rng.choice(seeds))
        assert memory_of(given_dict) < 6 * 2**20, brief(given_dict)
        assert work_of(given_dict) < 20_000, brief(given_dict)


def test_the_fuzzer_counts() -> None:
    """The script that runs a million of them."""
    script = Path(__file__).parents[1] / "hard" / "fuzz_stranger.py"
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(script), "500", "3"], capture_output=True, text=True, env=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = dict(word.split("=") for word in done.stdout.split())
    assert figures["inputs"] == "500"
    assert figures["crashes"] == "0"
    assert int(figures["valid"]) + int(figures["refused"]) == 500


def test_the_tally_sees_what_is_wrong() -> None:
    """What watches the reader is shown readers that fail."""

    def crash(value: Any) -> Layout:
        raise OverflowError("int too large")

    def mumble(value: Any) -> Layout:
        raise GeometryError("")

    broken = Layout(VALID[0].regions)
    broken._cache["regions"] = VALID[1].regions
    for read in (crash, mumble, lambda value: broken):
        tally = Tally()
        tally.take({}, read)
        assert len(tally.crashes) >= 1
