"""Every refusal of a geometry by its class and its words: axes, sections, pages, regions, layouts, a stranger's dict.

A case holds the exact class and parts that the message must have: where it is, what was got, what is expected.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from refusals import (
    Axis,
    Case,
    Layout,
    Section,
    attention_sections,
    check,
    layout,
    mla_sections,
    no,
    refusals,
    region,
    shard_range,
    source_ranks,
    state_sections,
)

import nixldesc
from nixldesc import BlockIdError, GeometryError, NixldescError, PeerMismatchError, TransferError


def test_an_error_is_what_a_caller_would_have_guessed() -> None:
    assert issubclass(NixldescError, Exception)
    for error, builtin in {
        GeometryError: ValueError,
        BlockIdError: IndexError,
        PeerMismatchError: ValueError,
        TransferError: RuntimeError,
    }.items():
        assert issubclass(error, NixldescError)
        assert issubclass(error, builtin)
    assert set(nixldesc.errors.__all__) <= set(nixldesc.__all__)


# ------------------------------------------------------------------------------------------ what a block is

AXES = {
    "name is None": no(lambda: Axis(None, 0, 1), TypeError, "axis name must be a str", "None (NoneType)"),
    "name is empty": no(lambda: Axis("", 0, 1), GeometryError, "axis name must not be empty"),
    "start is float": no(lambda: Axis("head", 0.0, 1), TypeError, "axis 'head': start must be an int", "0.0 (float)"),
    "stop is bool": no(lambda: Axis("head", 0, True), TypeError, "axis 'head': stop must be an int", "True (bool)"),
    "empty range": no(lambda: Axis("head", 2, 2), GeometryError, "'head'", "[2, 2)", "expected 0 <= start < stop"),
    "negative start": no(lambda: Axis("head", -1, 2), GeometryError, "'head'", "[-1, 2)", "negative"),
    "stop beyond 64 bits": no(lambda: Axis("head", 0, 2**64), GeometryError, "'head'", "beyond 2**64"),
    "endless number": no(lambda: Axis("head", 0, 1 << 3000), GeometryError, "'head': stop", "3001 bits", "64 are"),
    "token from 16": no(lambda: Axis("token", 16, 32), GeometryError, "'token'", "starts at 0", "got start 16"),
}

HEAD, TOKEN = Axis("head", 0, 2), Axis("token", 0, 4)

SECTIONS = {
    "name is None": no(lambda: Section(None, [HEAD], 1), TypeError, "section name must be a str"),
    "axes is an Axis": no(lambda: Section("k", HEAD, 1), TypeError, "section 'k': axes must be a sequence of Axis"),
    "axes are tuples": no(
        lambda: Section("k", [("head", 0, 2)], 1),
        TypeError,
        "section 'k': axes must be Axis objects, got ('head', 0, 2) (tuple)",
    ),
    "an axis twice": no(lambda: Section("k", [HEAD, HEAD], 1), GeometryError, "section 'k'", "'head' is named twice"),
    "many axes": no(
        lambda: Section("k", [Axis(f"a{i}", 0, 1) for i in range(17)], 1),
        GeometryError,
        "section 'k': 17 axes, at most 16",
    ),
    "itemsize is float": no(
        lambda: Section("k", [HEAD], 2.0),
        TypeError,
        "section 'k': itemsize must be an int, got 2.0 (float)",
    ),
    "itemsize is 0": no(lambda: Section("k", [HEAD], 0), GeometryError, "section 'k': itemsize must be positive", "0"),
    "offset below 0": no(lambda: Section("k", [HEAD], 1, offset=-4), GeometryError, "section 'k'", "offset >= 0", "-4"),
    "dtype is a type": no(
        lambda: Section("k", [HEAD], 2, dtype=np.float16),
        TypeError,
        "section 'k': dtype must be a str label",
        "(type)",
    ),
    "cp is 1": no(lambda: Section("k", [HEAD], 1, cp=None), TypeError, "section 'k': cp must be True or False"),
    "strides is an int": no(
        lambda: Section("k", [HEAD], 1, strides=1),
        TypeError,
        "section 'k': strides must be a sequence of ints (bytes), got 1 (int)",
    ),
    "a stride is float": no(
        lambda: Section("k", [HEAD], 1, strides=[1.5]),
        TypeError,
        "section 'k': strides[0] must be an int, got 1.5 (float)",
    ),
    "strides of other axes": no(
        lambda: Section("k", [HEAD], 1, strides=[8, 1]), GeometryError, "section 'k': 2 strides for 1 axes"
    ),
    "negative stride": no(
        lambda: Section("k", [HEAD], 1, strides=[-8]), GeometryError, "section 'k': axis 'head'", "-8 bytes"
    ),
    "stride beyond 64 bits": no(
        lambda: Section("k", [Axis("a", 0, 1)], 1, strides=[2**64]), GeometryError, "section 'k'", "beyond 2**64"
    ),
    "ends beyond 64 bits": no(
        lambda: Section("k", [HEAD], 1, strides=[2**64 - 1], offset=9), GeometryError, "section 'k'", "beyond 2**64"
    ),
}


@refusals(AXES)
def test_axis(case: Case) -> None:
    check(case)


@refusals(SECTIONS)
def test_section(case: Case) -> None:
    check(case)


HEADS: dict[str, Any] = {"num_kv_heads": 8, "tp_size": 2, "tp_rank": 0, "block_tokens": 4, "token_head_bytes": 2}
STATE: dict[str, Any] = {
    "projections": {"x": 8},
    "conv_rows": 3,
    "conv_itemsize": 2,
    "ssm_shape": (4, 2),
    "ssm_itemsize": 4,
    "tp_size": 2,
    "tp_rank": 0,
}

PAGES = {
    "order": no(
        lambda: attention_sections("l0", **{**HEADS, "order": "NDH"}),
        GeometryError,
        "order must be one of 'HND', 'NHD', got 'NDH'",
    ),
    "kv": no(
        lambda: attention_sections("l0", **{**HEADS, "kv": None}),
        GeometryError,
        "kv must be one of 'packed', 'blocks_first', got None",
    ),
    "heads that do not divide": no(
        lambda: attention_sections("l0", **{**HEADS, "tp_size": 3}),
        GeometryError,
        "tp_size 3 does not divide size 8",
        "unequal",
    ),
    "blocks first without a name": no(
        lambda: attention_sections("", **{**HEADS, "kv": "blocks_first"}), GeometryError, "name must not be empty"
    ),
    "latent of no bytes": no(
        lambda: mla_sections("l0", block_tokens=16, token_bytes=0), GeometryError, "axis 'byte'", "[0, 0)", "empty"
    ),
    "projections is a list": no(
        lambda: state_sections("l1", **{**STATE, "projections": ["x"]}),
        TypeError,
        "projections must map names to global widths, got ['x'] (list)",
    ),
    "unknown replicated": no(
        lambda: state_sections("l1", **STATE, replicated=["B"]),
        GeometryError,
        "l1: 'B' is no projection",
        "['x']",
    ),
    "replicated is a str": no(
        lambda: state_sections("l1", **STATE, replicated="x"),
        TypeError,
        "replicated must be several names, got 'x' (str)",
        "written in a list",
    ),
    "a projection named ssm": no(
        lambda: state_sections("l1", **{**STATE, "projections": {"ssm": 8}}), GeometryError, "l1: 'ssm'"
    ),
    "conv_order": no(
        lambda: state_sections("l1", **{**STATE, "conv_order": "sd"}),
        GeometryError,
        "conv_order must be one of 'DS', 'SD', got 'sd'",
    ),
    "rank out of range": no(lambda: shard_range(8, 2, 2), GeometryError, "tp_rank 2 is out of range, tp_size is 2"),
    "no ranks": no(lambda: shard_range(8, 0, 0), GeometryError, "size and tp_size must be positive, got 8 and 0"),
    "replicas that do not divide": no(
        lambda: shard_range(4, 6, 0), GeometryError, "size 4 does not divide tp_size 6", "unequal"
    ),
    "size is float": no(lambda: shard_range(8.0, 2, 0), TypeError, "size must be an int, got 8.0 (float)"),
    "no source ranks": no(lambda: source_ranks(8, 2, 0, 0), GeometryError, "got src_tp 0"),
}


@refusals(PAGES)
def test_ready_made_pages(case: Case) -> None:
    check(case)


# -------------------------------------------------------------------------------------- regions and layouts

REGIONS = {
    "name is None": no(lambda: region(None), TypeError, "region name must be a str, got None"),
    "name is empty": no(lambda: region(""), GeometryError, "region name must not be empty"),
    "base_addr is float": no(lambda: region(base=None), TypeError, "region 'k': base_addr must be an int, got None"),
    "block_len is bool": no(lambda: region(length=True), TypeError, "region 'k': block_len must be an int, got True"),
    "block_len is a str": no(
        lambda: region(length="16"),
        TypeError,
        "region 'k': block_len must be an int, got '16' (str)",
    ),
    "num_blocks is float": no(
        lambda: region(blocks=8.0),
        TypeError,
        "region 'k': num_blocks must be an int, got 8.0 (float)",
    ),
    "num_blocks is endless": no(
        lambda: region(blocks=10**5000), GeometryError, "region 'k': num_blocks is a number of 16610 bits"
    ),
    "block_stride is float": no(
        lambda: region(block_stride=np.float64(32)), TypeError, "region 'k': block_stride must be an int", "float64"
    ),
    "device_id is None": no(lambda: region(device_id=None), TypeError, "region 'k': device_id must be an int"),
    "sub_blocks is None": no(lambda: region(sub_blocks=None), TypeError, "region 'k': sub_blocks must be an int"),
    "sub_stride is a str": no(lambda: region(sub_stride="8"), TypeError, "region 'k': sub_stride must be an int"),
    "mem_type is None": no(lambda: region(mem_type=None), TypeError, "region 'k': mem_type must be a str, got None"),
    "mem_type is empty": no(lambda: region(mem_type=""), GeometryError, "region 'k': mem_type must not be empty"),
    "groups is an int": no(
        lambda: region(groups=0), TypeError, "region 'k': groups must be a tuple of group indices or None, got 0 (int)"
    ),
    "groups is a str": no(lambda: region(groups="01"), TypeError, "region 'k': groups must be a tuple", "'01' (str)"),
    "a group is a str": no(lambda: region(groups=["0"]), TypeError, "region 'k': groups[0] must be an int, got '0'"),
    "sections is a Section": no(
        lambda: region(sections=Section("k", [], 16)), TypeError, "region 'k': sections must be a sequence of Section"
    ),
    "sections are names": no(
        lambda: region(sections=["k"]), TypeError, "region 'k': sections must be Section objects, got 'k' (str)"
    ),
}


@refusals(REGIONS)
def test_region(case: Case) -> None:
    check(case)


def woven(count: int, step: int, offset: int) -> Any:
    return Section(f"at{offset}", [Axis("row", 0, count)], 1, offset=offset, strides=[step])


LAYOUTS = {
    "a Region": no(lambda: Layout(region()), TypeError, "regions must be a sequence of Region, got Region("),
    "a str": no(lambda: Layout("kv"), TypeError, "regions must be a sequence of Region, got 'kv' (str)"),
    "None": no(lambda: Layout(None), TypeError, "regions must be a sequence of Region, got None"),
    "no Region in it": no(
        lambda: Layout([region(), None]), TypeError, "regions[1] must be a Region, got None (NoneType)"
    ),
    "block_len 0": no(lambda: layout(length=0), GeometryError, "region 'k': block_len must be positive, got 0"),
    "num_blocks 0": no(lambda: layout(blocks=0), GeometryError, "region 'k': num_blocks must be positive, got 0"),
    "num_blocks -1": no(lambda: layout(blocks=-1), GeometryError, "region 'k': num_blocks must be positive, got -1"),
    "sub_blocks 0": no(lambda: layout(sub_blocks=0), GeometryError, "region 'k': sub_blocks must be positive, got 0"),
    "sub_stride 0": no(
        lambda: layout(sub_blocks=2, sub_stride=0, block_stride=64),
        GeometryError,
        "region 'k': sub_stride must be positive, got 0",
    ),
    "base_addr below 0": no(lambda: layout(base=-1), GeometryError, "region 'k': base_addr", "negative", "got -1"),
    "device_id below 0": no(lambda: layout(device_id=-1), GeometryError, "region 'k'", "device_id", "and -1"),
    "device_id of 65 bits": no(lambda: layout(device_id=2**64), GeometryError, "region 'k'", "device_id", "64 bits"),
    "block_len of 65 bits": no(
        lambda: layout(length=2**64, base=0, blocks=1), GeometryError, "region 'k': block_len", "beyond the 64 bits"
    ),
    "block_stride of 65 bits": no(
        lambda: layout(block_stride=2**64, blocks=1), GeometryError, "region 'k': block_stride", "beyond the 64 bits"
    ),
    "sub_stride of 65 bits": no(
        lambda: layout(sub_stride=2**64), GeometryError, "region 'k': sub_stride", "beyond the 64 bits"
    ),
    "blocks overlap": no(
        lambda: layout(block_stride=8), GeometryError, "region 'k': block_stride is 8 bytes, less than block_len 16"
    ),
    "sub-blocks overlap": no(
        lambda: layout(sub_blocks=2, sub_stride=8),
        GeometryError,
        "region 'k': sub_stride is 8 bytes, less than block_len 16",
    ),
    "sub-blocks leave the block": no(
        lambda: layout(sub_blocks=3, sub_stride=32, block_stride=64),
        GeometryError,
        "region 'k': 3 sub-blocks of 16 bytes, 32 apart, reach byte 80, but block_stride is 64",
    ),
    "sub-blocks with sections": no(
        lambda: layout(sub_blocks=2, sections=[Section("k", [], 16)]),
        GeometryError,
        "region 'k': a region cut into sub_blocks has no sections, got 1",
    ),
    "wraps around 2**64": no(
        lambda: layout(base=2**64 - 100),
        GeometryError,
        "region 'k': ends at address 0x1000000000000001c, beyond 2**64",
        "base_addr 0xffffffffffffff9c, 8 blocks, 16 bytes apart",
    ),
    "a group twice": no(
        lambda: layout(groups=(1, 1)), GeometryError, "region 'k': groups must be distinct indices from 0, got (1, 1)"
    ),
    "negative group": no(lambda: layout(groups=(-1,)), GeometryError, "region 'k': groups", "from 0, got (-1,)"),
    "no groups": no(lambda: layout(groups=()), GeometryError, "region 'k': groups is empty", "None means every group"),
    "section outside the block": no(
        lambda: layout(sections=[Section("l0", [], 8, offset=12)]),
        GeometryError,
        "region 'k': section 'l0' ends at byte 20, outside the block of 16 bytes",
    ),
    "sections share a byte": no(
        lambda: layout(sections=[Section("a", [], 8), Section("b", [], 8, offset=7)]),
        GeometryError,
        "region 'k': sections 'a' and 'b' share byte 7 of the block",
    ),
    "woven sections share a byte": no(
        lambda: layout(sections=[woven(4, 4, 0), woven(2, 4, 8)]),
        GeometryError,
        "region 'k': sections 'at0' and 'at8' share byte 8 of the block",
    ),
    "woven too finely": no(
        lambda: layout(length=2**20, sections=[woven(2**16, 2, 0), woven(2**16, 2, 1)]),
        GeometryError,
        "region 'k': its sections interleave in more than 65536 separate runs of bytes",
    ),
    "more runs than anybody can name": no(
        lambda: layout(length=2**22, sections=[woven(2**21, 2, 0)]),
        GeometryError,
        "region 'k'",
        "more than 1048576 separate runs of bytes",
    ),
    "a region twice": no(
        lambda: Layout([region(), region(base=0x9000)]), GeometryError, "region 'k': there are two regions of that name"
    ),
    "a section twice": no(
        lambda: Layout([region("a", sections=[Section("l0", [], 16)]), region("b", sections=[Section("l0", [], 8)])]),
        GeometryError,
        "region 'b': section 'l0' is also in region 'a'",
        "parts of one array, but their itemsize are 8 here and 16 there",
    ),
    "a section twice in one region": no(
        lambda: layout(sections=[Section("l0", [], 8), Section("l0", [], 8, offset=8, dtype="int8")]),
        GeometryError,
        "section 'l0' is also in region 'k'",
    ),
    "an id too many": no(
        lambda: Layout([region("a", length=1, blocks=2**31 - 1), region("b", length=1, blocks=1)]),
        GeometryError,
        "2147483648 descriptors, more than the 2147483647 that int32 ids can name",
    ),
    "cp_rank is cp_size": no(
        lambda: Layout([region()], cp_rank=2, cp_size=2), GeometryError, "cp_rank", "0 to cp_size - 1", "rank 2 of 2"
    ),
    "cp_size 0": no(lambda: Layout([region()], cp_size=0), GeometryError, "cp_rank", "rank 0 of 0"),
    "cp_size is None": no(lambda: Layout([region()], cp_size=None), TypeError, "cp_size must be an int, got None"),
    "cp_rank is bool": no(lambda: Layout([region()], cp_rank=True, cp_size=2), TypeError, "cp_rank must be an int"),
}


@refusals(LAYOUTS)
def test_layout(case: Case) -> None:
    check(case)


def columns(**how: Any) -> Any:
    return Layout.from_columns(**{"base_addrs": [0x1000, 0x2000], "block_lens": [16, 16], "num_blocks": 8, **how})


COLUMNS = {
    "base_addrs is None": no(
        lambda: columns(base_addrs=None), TypeError, "from_columns: base_addrs must be a sequence", "None (NoneType)"
    ),
    "base_addrs is an int": no(lambda: columns(base_addrs=0x1000), TypeError, "base_addrs must be a sequence", "4096"),
    "base_addrs is 0-d": no(lambda: columns(base_addrs=np.array(1)), TypeError, "base_addrs must be a sequence"),
    "base_addrs are floats": no(
        lambda: columns(base_addrs=np.array([4096.0, 0.0])), TypeError, "base_addr must be an int, got 4096.0 (float)"
    ),
    "block_lens is None": no(
        lambda: columns(block_lens=None), TypeError, "from_columns: block_lens must be a sequence"
    ),
    "block_lens is an int": no(lambda: columns(block_lens=16), TypeError, "block_lens must be a sequence", "16 (int)"),
    "num_blocks is None": no(
        lambda: columns(num_blocks=None), TypeError, "from_columns: num_blocks must be one value or a sequence"
    ),
    "a column too short": no(
        lambda: columns(block_lens=[16]), GeometryError, "from_columns: 1 entries in block_lens, but 2 in base_addrs"
    ),
    "a column too long": no(
        lambda: columns(names=["a", "b", "c"]), GeometryError, "from_columns: 3 entries in names, but 2 in base_addrs"
    ),
    "names is a str": no(lambda: columns(names="kv"), TypeError, "from_columns: names must be a sequence", "'kv'"),
    "a group is a str": no(
        lambda: columns(group_ids=[0, "1"]), TypeError, "from_columns: group_ids[1] must be an int, got '1' (str)"
    ),
    "a group below -1": no(lambda: columns(group_ids=[0, -2]), GeometryError, "region 'region1': groups", "(-2,)"),
    "a name twice": no(lambda: columns(names=["a", "a"]), GeometryError, "region 'a': there are two regions"),
    "the geometry": no(
        lambda: columns(block_strides=[16, 8]), GeometryError, "region 'region1': block_stride is 8 bytes"
    ),
}


@refusals(COLUMNS)
def test_from_columns(case: Case) -> None:
    check(case)


# ------------------------------------------------------------------------------------------ a stranger's dict

REGION: dict[str, Any] = {"name": "k", "base_addr": 4096, "block_len": 16, "num_blocks": 8}
SECTION: dict[str, Any] = {"name": "l0", "itemsize": 1, "axes": [["token", 0, 16]]}


def wire(**how: Any) -> Any:
    return Layout.from_dict({"version": 1, "regions": [REGION], **how})


def wire_region(**how: Any) -> Any:
    return wire(regions=[{**REGION, **how}])


def wire_section(**how: Any) -> Any:
    return wire_region(sections=[{**SECTION, **how}])


def without(d: dict[str, Any], key: str) -> Any:
    return {k: v for k, v in d.items() if k != key}


WIRE = {
    "None": no(lambda: Layout.from_dict(None), GeometryError, "layout must be a dict, got None (NoneType)"),
    "a list": no(lambda: Layout.from_dict([REGION]), GeometryError, "layout must be a dict", "(list)"),
    "no version": no(lambda: Layout.from_dict({}), GeometryError, "layout: has no version", "reads versions 2 and 1"),
    "a version to come": no(lambda: wire(version=3), GeometryError, "version 3 is not understood", "reads versions"),
    "version is a str": no(lambda: wire(version="1"), GeometryError, "version '1' is not understood"),
    "version is True": no(lambda: wire(version=True), GeometryError, "version True is not understood"),
    "version is 1.0": no(lambda: wire(version=1.0), GeometryError, "version 1.0 is not understood"),
    "unknown key": no(
        lambda: wire(block_size=16), GeometryError, "layout: unknown key 'block_size'", "known keys are", "'regions'"
    ),
    "no regions": no(lambda: Layout.from_dict({"version": 1}), GeometryError, "layout: key 'regions' is missing"),
    "regions is a dict": no(lambda: wire(regions={"k": REGION}), GeometryError, "layout: regions must be a list"),
    "a region is a list": no(lambda: wire(regions=[[]]), GeometryError, "layout: regions[0] must be a dict, got []"),
    "unknown key of a region": no(
        lambda: wire_region(block_size=16), GeometryError, "layout: regions[0]: unknown key 'block_size'", "'block_len'"
    ),
    "a key that is no str": no(
        lambda: wire(regions=[{**REGION, 7: 1}]), GeometryError, "layout: regions[0]: unknown key 7 (int)"
    ),
    "key missing in a region": no(
        lambda: wire(regions=[REGION, without(REGION, "base_addr")]),
        GeometryError,
        "layout: regions[1]: key 'base_addr' is missing",
    ),
    "name is None": no(lambda: wire_region(name=None), GeometryError, "layout: regions[0]: name must be a str"),
    "base_addr is float": no(
        lambda: wire_region(base_addr=4096.0), GeometryError, "layout: regions[0]: base_addr must be an int", "4096.0"
    ),
    "num_blocks is bool": no(
        lambda: wire_region(num_blocks=True), GeometryError, "layout: regions[0]: num_blocks must be an int, got True"
    ),
    "block_len is NaN": no(
        lambda: wire_region(block_len=float("nan")), GeometryError, "regions[0]: block_len must be an int, got nan"
    ),
    "device_id of 65 bits": no(
        lambda: wire_region(device_id=2**64), GeometryError, "layout: regions[0]: device_id must be in 0 to 2**64 - 1"
    ),
    "negative size": no(
        lambda: wire_region(block_len=-16), GeometryError, "layout: regions[0]: block_len must be in 0", "got -16"
    ),
    "groups is an int": no(lambda: wire_region(groups=0), GeometryError, "layout: regions[0]: groups must be a list"),
    "a group is None": no(
        lambda: wire_region(groups=[None]), GeometryError, "layout: regions[0]: groups[0] must be an int, got None"
    ),
    "mem_type is a list": no(
        lambda: wire_region(mem_type=["VRAM"]), GeometryError, "layout: regions[0]: mem_type must be a str"
    ),
    "sections is a str": no(
        lambda: wire_region(sections="l0"), GeometryError, "layout: regions[0]: sections must be a list, got 'l0'"
    ),
    "unknown key of a section": no(
        lambda: wire_section(shape=[1]), GeometryError, "layout: regions[0]: sections[0]: unknown key 'shape'", "'axes'"
    ),
    "key missing in a section": no(
        lambda: wire_region(sections=[without(SECTION, "axes")]),
        GeometryError,
        "layout: regions[0]: sections[0]: key 'axes' is missing",
    ),
    "an axis of two": no(
        lambda: wire_section(axes=[["token", 16]]),
        GeometryError,
        "layout: regions[0]: sections[0]: axes[0] must be [name, start, stop], got ['token', 16]",
    ),
    "an axis without a name": no(
        lambda: wire_section(axes=[[0, 0, 16]]), GeometryError, "sections[0]: axes[0]: name must be a str, got 0 (int)"
    ),
    "a float in an axis": no(
        lambda: wire_section(axes=[["token", 0, 16.0]]), GeometryError, "axes[0]: stop must be an int, got 16.0"
    ),
    "a million axes": no(
        lambda: wire_section(axes=[["a", 0, 1]] * 10**6), GeometryError, "sections[0]: 1000000 axes, at most 16"
    ),
    "strides is an int": no(
        lambda: wire_section(strides=1), GeometryError, "regions[0]: sections[0]: strides must be a list, got 1"
    ),
    "a stride is a str": no(
        lambda: wire_section(strides=["1"]), GeometryError, "sections[0]: strides[0] must be an int, got '1' (str)"
    ),
    "dtype is None": no(lambda: wire_section(dtype=None), GeometryError, "section 'l0': dtype must be a str label"),
    "cp is 1": no(lambda: wire_section(cp=1), GeometryError, "section 'l0': cp must be True or False, got 1 (int)"),
    "the geometry": no(lambda: wire_region(block_stride=8), GeometryError, "region 'k': block_stride is 8 bytes"),
    "cp_rank is None": no(lambda: wire(cp_rank=None), GeometryError, "layout: cp_rank must be an int, got None"),
    "cp_rank of no rank": no(lambda: wire(cp_rank=3, cp_size=2), GeometryError, "cp_rank", "rank 3 of 2"),
}


@refusals(WIRE)
def test_from_dict(case: Case) -> None:
    check(case)
