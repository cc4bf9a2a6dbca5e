"""Every refusal of a plan by its class and its words, and the likeliest mistakes of a new user."""

from __future__ import annotations

from typing import Any

from refusals import (
    Axis,
    Blocks,
    Case,
    Layout,
    Region,
    Section,
    check,
    heads,
    ints,
    kernel_blocks,
    layout,
    no,
    page,
    pair_of,
    plan,
    reader_counts,
    refusals,
    region,
)

from nixldesc import BlockIdError, GeometryError, PeerMismatchError

# ------------------------------------------------------------------------------------------------------- plans


def channels(start: int, stop: int, rows: int = 3, offset: int = 0) -> Any:
    return Section("s", (Axis("channel", start, stop), Axis("row", 0, rows)), 2, offset=offset)


def many_blocks(tokens: int, name: str) -> Any:
    return Layout([Region(name, 0, tokens, 2**30, sections=[Section("l0", [Axis("token", 0, tokens)], 1)])])


def square(*strides: int) -> Any:
    return page(Section("l0", [Axis(name, 0, 512) for name in "abc"], 1, strides=strides))


DST = page(heads(0, 4))

PLANS = {
    "dst is a Region": no(lambda: plan(region(), {0: DST}), TypeError, "dst must be a Layout, got Region("),
    "srcs is a Layout": no(
        lambda: plan(DST, DST),
        TypeError,
        "srcs must map source ranks to layouts, got Layout(1 regi",
        "{0: layout}",
    ),
    "a source is None": no(lambda: plan(DST, {0: None}), TypeError, "source 0 must be a Layout, got None"),
    "a rank is a str": no(lambda: plan(DST, {"0": DST}), TypeError, "source rank must be an int, got '0' (str)"),
    "a negative rank": no(lambda: plan(DST, {-1: DST}), PeerMismatchError, "source ranks must not be negative, got -1"),
    "a rank beyond src_size behind another": no(
        lambda: plan(DST, {0: DST, 3: DST}, src_size=2), PeerMismatchError, "src_size is 2, but source rank 3 is given"
    ),
    "a derived layout": no(
        lambda: plan(Layout([region("d", sub_blocks=3)]), {0: DST}),
        PeerMismatchError,
        "dst: region 'd' has no sections",
        "needs the layout that says what the blocks mean",
    ),
    "dst_rank out of range": no(
        lambda: plan(DST, {0: DST}, dst_rank=2, dst_size=2), PeerMismatchError, "dst_rank must be in 0", "rank 2 of 2"
    ),
    "dst_size is float": no(
        lambda: plan(DST, {0: DST}, dst_size=2.0),
        TypeError,
        "dst_size must be an int, got 2.0 (float)",
    ),
    "src_size too small": no(
        lambda: plan(DST, {3: DST}, src_size=2), PeerMismatchError, "src_size is 2, but source rank 3 is given"
    ),
    "allow_missing is a str": no(
        lambda: plan(DST, {0: DST}, allow_missing="l0"),
        TypeError,
        "allow_missing must be several names, got 'l0' (str)",
    ),
    "allow_missing is a number": no(
        lambda: plan(DST, {0: DST}, allow_missing=3), TypeError, "allow_missing must be several names, got 3 (int)"
    ),
    "no sources": no(
        lambda: plan(DST, {}), PeerMismatchError, "section 'l0' (region 'r'): no source holds", "sources hold none"
    ),
    "unknown section": no(
        lambda: plan(DST, {0: page(heads(0, 4, name="l1"))}),
        PeerMismatchError,
        "section 'l0' (region 'r'): no source holds a section of that name; sources hold 'l1'",
    ),
    "missing heads": no(
        lambda: plan(DST, {0: page(heads(0, 2)), 1: page(heads(3, 4))}),
        PeerMismatchError,
        "section 'l0' (region 'r'): axis 'head' is [0, 4) here",
        "source 0 holds [0, 2)",
        "source 1 holds [3, 4)",
        "missing is [2, 3)",
    ),
    "missing heads are worded by rank, wherever the count begins": no(
        lambda: plan(DST, {0: page(heads(0, 1)), 1: page(heads(1, 2)), 2: page(heads(3, 4))}, dst_rank=1, dst_size=2),
        PeerMismatchError,
        "source 0 holds [0, 1), source 1 holds [1, 2), source 2 holds [3, 4); missing is [2, 3)",
    ),
    "another item size": no(
        lambda: plan(DST, {0: page(heads(0, 4, itemsize=2))}),
        PeerMismatchError,
        "section 'l0' (region 'r'): itemsize is 1 bytes, source 0 (region 'r') has 2",
    ),
    "another dtype": no(
        lambda: plan(page(heads(0, 4, dtype="fp8")), {0: page(heads(0, 4, dtype="bf16"))}),
        PeerMismatchError,
        "section 'l0' (region 'r'): dtype is 'fp8', source 0 (region 'r') has 'bf16'",
    ),
    "other bytes": no(
        lambda: plan(DST, {0: page(heads(0, 4, size=4))}),
        PeerMismatchError,
        "section 'l0' (region 'r'): axis 'byte' is [0, 2), source 0 (region 'r') holds [0, 4)",
        "different formats",
    ),
    "other axes": no(
        lambda: plan(DST, {0: page(Section("l0", [Axis("byte", 0, 8)], 1))}),
        PeerMismatchError,
        "section 'l0' (region 'r'): its axes are 'byte', 'head', 'token', source 0 (region 'r') has 'byte'",
    ),
    "an opaque region": no(
        lambda: plan(DST, {0: Layout([Region("l0", 0, 32, 8)])}),
        PeerMismatchError,
        "section 'l0'",
        "none (opaque)",
        "a region without sections is opaque and pairs only with one of its kind",
    ),
    "a second split": no(
        lambda: plan(page(channels(0, 8)), {0: page(channels(0, 4, rows=2))}),
        PeerMismatchError,
        "section 's' (region 'r'): the box is channel [0, 8) x row [0, 3) here",
        "source 0 holds channel [0, 4) x row [0, 2)",
        "missing is channel [4, 8) x row [0, 3), channel [0, 4) x row [2, 3)",
    ),
    "sources of other cp_size": no(
        lambda: plan(DST, {0: page(heads(0, 4), cp_size=2), 1: page(heads(0, 4), cp_size=3)}),
        PeerMismatchError,
        "section 'l0' (region 'r'): sources disagree on cp_size, they have [2, 3]",
    ),
    "a missing cp_rank": no(
        lambda: plan(DST, {0: page(heads(0, 4), cp_size=2)}),
        PeerMismatchError,
        "section 'l0' (region 'r'): no source of cp_rank 1 (of 2) is given",
        "cp_ranks [0]",
    ),
    "groups that do not pair": no(
        lambda: plan(page(heads(0, 4), groups=(0, 1)), {0: page(heads(0, 4), groups=(0,))}),
        PeerMismatchError,
        "section 'l0': source 0's region 'r' takes groups (0,), the destination's region 'r' takes (0, 1)",
        "one to one",
    ),
    "a table of two meanings": no(
        lambda: plan(
            page(heads(0, 4, tokens=4), channels(0, 8, offset=32)),
            {0: page(heads(0, 4, tokens=8), channels(0, 8, offset=64))},
        ),
        PeerMismatchError,
        "sections 'l0' and 's' share the block tables",
        "Axis('token', ..., unit=n)",
    ),
    "a region of too many sub-blocks": no(
        lambda: plan(many_blocks(3, "d"), {0: many_blocks(2, "p")}),
        GeometryError,
        "region 'd' (source region 'p'): alone it needs",
        "more than the 2147483647 that int32 ids can name",
    ),
    "another order of every byte": no(
        lambda: plan(square(1, 512, 2**18), {0: square(2**18, 512, 1)}),
        PeerMismatchError,
        "section 'l0': the two sides order its bytes so differently that a block is",
        "separate pieces",
    ),
    "reader_counts of None": no(
        lambda: reader_counts(None, {0: DST}), TypeError, "dsts must be the layouts of all destination ranks, got None"
    ),
    "reader_counts of a Layout": no(lambda: reader_counts(DST, {0: DST}), TypeError, "dsts must be the layouts of all"),
    "reader_counts of a dict": no(lambda: reader_counts({0: DST}, {0: DST}), TypeError, "dsts must be the layouts"),
    "reader_counts of no layout": no(
        lambda: reader_counts([DST, None], {0: DST}), TypeError, "dsts[1] must be a Layout, got None"
    ),
    "reader_counts without sources": no(
        lambda: reader_counts([DST], {}), PeerMismatchError, "section 'l0' (region 'r'): no source holds"
    ),
}


@refusals(PLANS)
def test_plans(case: Case) -> None:
    check(case)


MADE = plan(DST, {0: DST})

UNDELIVERED = {
    "src_blocks is a list": no(
        lambda: MADE.undelivered([[[1]]], [[1]]),
        TypeError,
        "src_blocks must map source ranks to block lists, got [[[1]]] (list)",
    ),
    "a source's lists are None": no(
        lambda: MADE.undelivered({0: None}, [[1]]), TypeError, "src_blocks[0] must be a list with one list", "None"
    ),
    "dst_blocks is None": no(lambda: MADE.undelivered({}, None), TypeError, "dst_blocks must be a list with one list"),
    "a float": no(
        lambda: MADE.undelivered({0: [[1]]}, [[1.0]]),
        TypeError,
        "dst_blocks[0], position 0: a block id must be an int, got 1.0 (float)",
    ),
    "a str": no(
        lambda: MADE.undelivered({0: [["1"]]}, [[1]]),
        TypeError,
        "src_blocks[0][0], position 0: a block id must be an int, got '1' (str)",
    ),
    "negative": no(
        lambda: MADE.undelivered({0: [[1]]}, [[-1]]), BlockIdError, "dst_blocks[0], position 0: block id -1 is outside"
    ),
    "out of range": no(
        lambda: MADE.undelivered({0: [[1, 8]]}, [[1, 2]]),
        BlockIdError,
        "src_blocks[0][0], position 1: block id 8 is out of range, region 'r' has 8 blocks (0 to 7)",
    ),
    "a skip without end": no(
        lambda: MADE.undelivered({0: [[1]]}, [Blocks([1], 2**61)]),
        BlockIdError,
        "dst_blocks[0]: skip 2305843009213693952",
    ),
    "a missing list": no(
        lambda: plan(page(heads(0, 4), groups=(1,)), {0: DST}).undelivered({0: [[1]]}, [[1]]),
        BlockIdError,
        "dst_blocks has 1 lists, but group 1 is used; give one list per group",
    ),
    "null_block is a str": no(
        lambda: MADE.undelivered({0: [[1]]}, [[1]], null_block="0"),
        TypeError,
        "null_block must be an int, got '0' (str)",
    ),
}


@refusals(UNDELIVERED)
def test_undelivered(case: Case) -> None:
    check(case)


# --------------------------------------------------------------------------- the likeliest mistakes of a newcomer

BF16 = 2
ROWS = (Axis("head", 0, 4), Axis("token", 0, 16), Axis("byte", 0, 64 * BF16))
WHOLE, HALF = page(heads(0, 4)), page(heads(0, 2))

MISTAKES = {
    "strides in elements": no(
        # what tensor.stride() says
        lambda: Section("l0", ROWS, 1, strides=(16 * 64, 64, 1)),
        GeometryError,
        "axis 'token' has a stride of 64 bytes, but one step of it covers 128 bytes",
        "strides are in bytes (not elements)",
    ),
    "block stride in elements": no(
        lambda: Layout([Region("l0", 0, 16384, 8, block_stride=8192)]),
        GeometryError,
        "region 'l0': block_stride is 8192 bytes, less than block_len 16384",
    ),
    "a suffix taken for a prefix": no(
        lambda: pair_of(region("p"), region("d", 0x9000)).desc_ids([[1, 2, 3, 4]], [[7]]),
        BlockIdError,
        "source group 0 has 4 blocks and destination group 0 has 1",
        "Blocks(ids, skip=...) says where a list starts, Blocks.tail(ids, total) that it is the end",
    ),
    "another rank's TP": no(
        lambda: plan(WHOLE, {0: HALF, 1: HALF}),
        PeerMismatchError,
        "axis 'head' is [0, 4) here, source 0 holds [0, 2), source 1 holds [0, 2); missing is [2, 4)",
    ),
    "a missing section": no(
        lambda: plan(page(heads(0, 4), heads(0, 4, name="draft", offset=32)), {0: WHOLE}),
        PeerMismatchError,
        "section 'draft' (region 'r'): no source holds a section of that name; sources hold 'l0'",
        "allow_missing",
    ),
    "sources and destination swapped": no(
        lambda: plan({0: WHOLE}, WHOLE),
        TypeError,
        "dst must be a Layout, got {0: Layout(",
        "the destination comes first, then the sources by rank",
    ),
    "the other side's ids": no(
        lambda: pair_of(region("p", blocks=100), region("d", 0x9000)).merged_ops([1, 2], [40, 41]),
        BlockIdError,
        "dst_ids, position 0: desc id 40 is out of range, the dst list has 8",
    ),
    "the other side's blocks": no(
        lambda: pair_of(region("p", blocks=100), region("d", 0x9000)).desc_ids([[1, 2]], [[40, 41]]),
        BlockIdError,
        "destination group 0, position 0: block id 40 is out of range, region 'd' has 8 blocks (0 to 7)",
        "the other side's ids, or logical ones for kernel_blocks()",
    ),
    "forgotten groups": no(
        lambda: layout().desc_ids([1, 2, 3]),
        TypeError,
        "block_ids[0] must be a sequence of block ids, got 1 (int)",
        "one list per KV cache group is expected: [[...], ...]",
    ),
    "forgotten groups of a pair": no(
        lambda: pair_of(region("p"), region("d", 0x9000)).desc_ids(ints(3), ints(3)),
        TypeError,
        "src_blocks must be a list with one list of block ids per KV cache group, got array([0, 0, 0], dtype=int32)",
    ),
    "a quotient with /": no(
        lambda: kernel_blocks([1, 2], 64 / 16),
        TypeError,
        "ratio must be an int, got 4.0 (float)",
    ),
}


@refusals(MISTAKES)
def test_a_likely_mistake_is_told_what_to_change(case: Case) -> None:
    check(case)
