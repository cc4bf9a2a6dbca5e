"""Every refusal of a layout's request by its class and its words: block lists, `out`, tables, kernel blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from refusals import (
    Blocks,
    Case,
    Layout,
    check,
    expand_table,
    frozen,
    ints,
    kernel_blocks,
    no,
    refusals,
    region,
)

from nixldesc import BlockIdError, GeometryError

# --------------------------------------------------------------------------------------- one layout's requests

# group 0 is a's and c's, group 1 is b's, group 2 nobody's
ABC = Layout(
    [
        region("a", 0x1000, blocks=8, groups=(0,)),
        region("b", 0x2000, blocks=20, groups=(1,)),
        region("c", 0x3000, blocks=4, groups=(0,)),
    ]
)


TAKEN = ints(2)

REQUESTS = {
    "None": no(lambda: ABC.desc_ids(None), TypeError, "block_ids must be a list with one list of block ids per KV"),
    "None and out": no(lambda: ABC.desc_ids(None, out=ints(1)), TypeError, "block_ids must be a list", "None"),
    "a dict": no(lambda: ABC.desc_ids({0: [1]}), TypeError, "block_ids must be a list", "{0: [1]} (dict)"),
    "a group is None": no(lambda: ABC.desc_ids([[1], None]), TypeError, "block_ids[1] must be a list", "None"),
    "a group is a str": no(lambda: ABC.desc_ids([[1], "23"]), TypeError, "block_ids[1]", "'23' (str)"),
    "a group of floats": no(
        lambda: ABC.desc_ids([np.zeros(2), []]),
        TypeError,
        "block_ids[0] must hold integers, got an array of dtype float64",
    ),
    "a matrix": no(
        lambda: ABC.desc_ids([np.zeros((2, 2), np.int32), []]),
        TypeError,
        "block_ids[0] must be one-dimensional, got an array of shape (2, 2)",
    ),
    "Blocks": no(lambda: ABC.desc_ids([Blocks([1]), []]), TypeError, "block_ids[0]", "Blocks", "takes plain ids"),
    "a float": no(
        lambda: ABC.desc_ids([[1], [2, 3.0]]),
        TypeError,
        "group 1, position 1: a block id must be an int, got 3.0 (float)",
    ),
    "a missing list": no(
        lambda: ABC.desc_ids([[1]]),
        BlockIdError,
        "block_ids has 1 lists, but region 'b' takes group 1",
        "give one list per group, an empty one where there is nothing",
    ),
    "a list that nobody takes": no(
        lambda: ABC.desc_ids([[1], [2], [3, 4]]),
        BlockIdError,
        "group 2 has 2 block ids, but no region takes that group",
        "regions take groups [0, 1]",
    ),
    "out of range": no(
        lambda: ABC.desc_ids([[1, 2], [7, 20]]),
        BlockIdError,
        "group 1, position 1: block id 20 is out of range, region 'b' has 20 blocks (0 to 19)",
    ),
    "out of the smallest": no(
        lambda: ABC.desc_ids([[3, 5], []]),
        BlockIdError,
        "group 0, position 1: block id 5 is out of range, region 'c' has 4 blocks (0 to 3)",
    ),
    "negative": no(lambda: ABC.desc_ids([[-1], []]), BlockIdError, "group 0, position 0: block id -1 is out of range"),
    "endless": no(
        lambda: ABC.desc_ids([[], [10**5000]]), BlockIdError, "group 1, position 0: block id of 16610 bits is out of"
    ),
    "a range beyond": no(
        lambda: ABC.desc_ids([range(2**31, 2**31 + 2), []]), BlockIdError, "block_ids[0]: range(2147483648", "2**31"
    ),
    "lists without end": no(
        lambda: ABC.desc_ids([()] * 70_000), BlockIdError, "block_ids has 70000 lists; one list per KV cache group"
    ),
    "order": no(
        lambda: ABC.desc_ids([[1], []], order="block"),
        ValueError,
        "order must be 'region' or 'group', got 'block'",
    ),
    "order is a list": no(
        lambda: ABC.desc_ids([[1], []], order=["region"]),
        ValueError,
        "order must be 'region' or 'group', got ['region']",
    ),
    "out is a list": no(lambda: ABC.desc_ids([[1], []], out=[0, 0]), TypeError, "out must be an int32", "got list"),
    "out of int64": no(
        lambda: ABC.desc_ids([[1], []], out=ints(2, np.int64)), TypeError, "out must be an int32", "dtype int64"
    ),
    "out of swapped bytes": no(
        lambda: ABC.desc_ids([[1], []], out=ints(2, ">i4")), TypeError, "out must be an int32", "dtype >i4"
    ),
    "out too short": no(lambda: ABC.desc_ids([[1], []], out=ints(1)), ValueError, "out holds 1 ids, the request has 2"),
    "out too long": no(lambda: ABC.desc_ids([[1], []], out=ints(3)), ValueError, "out holds 3 ids, the request has 2"),
    "out of two dimensions": no(
        lambda: ABC.desc_ids([[1], []], out=ints(2).reshape(1, 2)), ValueError, "out must have 1 dimension", "(1, 2)"
    ),
    "out with gaps": no(
        lambda: ABC.desc_ids([[1], []], out=ints(4)[::2]), ValueError, "out must be C-contiguous", "strides (8,)"
    ),
    "out read-only": no(
        lambda: ABC.desc_ids([[1], []], out=frozen(ints(2))), ValueError, "out must be writable, got a read-only array"
    ),
    "out is an input": no(
        lambda: ABC.desc_ids([TAKEN[:1], []], out=TAKEN), ValueError, "out shares memory with an input"
    ),
    "locate beyond": no(
        lambda: ABC.locate(32), BlockIdError, "desc id 32 is out of range, the layout has 32 descriptors"
    ),
    "locate below": no(lambda: ABC.locate(-1), BlockIdError, "desc id -1 is out of range"),
    "locate a float": no(lambda: ABC.locate(1.0), TypeError, "desc_id must be an int, got 1.0 (float)"),
    "locate without end": no(lambda: ABC.locate(10**5000), BlockIdError, "desc_id is a number of 16610 bits"),
    "address beyond": no(lambda: ABC.address(2**32 + 5), BlockIdError, "desc id 4294967301 is out of range", "32"),
    "address of True": no(lambda: ABC.address(True), TypeError, "desc_id must be an int, got True (bool)"),
    "skip_before a str": no(lambda: ABC.skip_before("4"), TypeError, "position must be an int, got '4' (str)"),
    "select a str": no(
        lambda: ABC.select("a"), TypeError, "names must be several names, got 'a' (str)", "written in a list"
    ),
    "select a region": no(lambda: ABC.select([region()]), TypeError, "names[0] must be a str, got Region("),
    "select an unknown": no(
        lambda: ABC.select(["a", "v"]), GeometryError, "select: there is no region 'v'; regions are 'a', 'b', 'c'"
    ),
    "select twice": no(lambda: ABC.select(["a", "a"]), GeometryError, "select: region 'a' is named twice"),
}


@refusals(REQUESTS)
def test_one_layout(case: Case) -> None:
    check(case)


def rows(*table: tuple[int, ...]) -> Any:
    return np.array(table, np.uint64).reshape(-1, 5)


ROW = (0x1000, 16, 0, 32, 2)
MEMORY = np.zeros(64, np.uint64)
MEMORY[:5] = ROW

TABLES = {
    "a list": no(lambda: expand_table([ROW]), TypeError, "table must be a uint64 NumPy array, got list"),
    "int64": no(lambda: expand_table(rows(ROW).astype(np.int64)), TypeError, "table must be a uint64", "dtype int64"),
    "N x 3": no(
        lambda: expand_table(np.zeros((2, 3), np.uint64)),
        ValueError,
        "table must be C-contiguous",
        "(rows, 5), got (2, 3)",
    ),
    "with gaps": no(lambda: expand_table(rows(ROW, ROW)[::2][:, ::-1]), ValueError, "table must be C-contiguous"),
    "len 0": no(
        lambda: expand_table(rows(ROW, (0, 0, 0, 8, 1))),
        GeometryError,
        "table row 1: len 0, stride 8, count 1",
        "expected",
    ),
    "count 0": no(lambda: expand_table(rows((0, 8, 0, 8, 0))), GeometryError, "table row 0", "count 0", "positive"),
    "stride below len": no(
        lambda: expand_table(rows((0, 8, 0, 4, 2))), GeometryError, "table row 0: len 8, stride 4", "stride >= len"
    ),
    "wraps around": no(
        lambda: expand_table(rows((2**64 - 8, 8, 0, 8, 2))),
        GeometryError,
        "table row 0: 2 blocks",
        "beyond address 2**64",
    ),
    "an id too many": no(
        lambda: expand_table(rows((0, 1, 0, 1, 2**31))), GeometryError, "2147483648 descriptors", "2**31 - 1"
    ),
    "as many ids as there may be": no(
        lambda: expand_table(rows((0, 1, 0, 1, 2**31 - 1)), np.zeros((1, 3), np.uint64)), ValueError, "out has shape"
    ),
    "out too short": no(
        lambda: expand_table(rows(ROW), np.zeros((1, 3), np.uint64)), ValueError, "out has shape (1, 3)", "(2, 3)"
    ),
    "out of one dimension": no(
        lambda: expand_table(rows(ROW), np.zeros(6, np.uint64)), ValueError, "out must have 2 dimensions", "(6,)"
    ),
    "out of int64": no(
        lambda: expand_table(rows(ROW), np.zeros((2, 3), np.int64)),
        TypeError,
        "out must be a uint64 NumPy array, got dtype int64",
    ),
    "out read-only": no(
        lambda: expand_table(rows(ROW), frozen(np.zeros((2, 3), np.uint64))), ValueError, "out must be writable"
    ),
    "out is the table": no(
        lambda: expand_table(MEMORY[:5].reshape(1, 5), MEMORY[4:10].reshape(2, 3)), ValueError, "out shares memory"
    ),
    "dense_table's out": no(
        lambda: ABC.dense_table(np.zeros((31, 3), np.uint64)), ValueError, "out has shape (31, 3), the result (32, 3)"
    ),
}


@refusals(TABLES)
def test_tables(case: Case) -> None:
    check(case)


KERNEL_BLOCKS = {
    "ratio is float": no(lambda: kernel_blocks([1], 2.0), TypeError, "ratio must be an int, got 2.0 (float)"),
    "ratio 0": no(lambda: kernel_blocks([1], 0), GeometryError, "ratio must be a positive number", "got 0"),
    "ratio without end": no(lambda: kernel_blocks([1], 2**31), GeometryError, "ratio must be a positive", "2147483648"),
    "a generator": no(lambda: kernel_blocks((i for i in [1]), 2), TypeError, "ids must be a list, tuple", "generator"),
    "Blocks": no(lambda: kernel_blocks(Blocks([1]), 2), TypeError, "ids: Blocks say where a list"),
    "negative": no(lambda: kernel_blocks([3, -1], 2), BlockIdError, "ids, position 1: block id -1 is out of range"),
    "beyond": no(
        lambda: kernel_blocks([2**30], 2), BlockIdError, "block id 1073741824 is out of range for ratio 2", "1073741823"
    ),
    "a str in it": no(
        lambda: kernel_blocks(["1"], 2), TypeError, "ids, position 0: a block id must be an int, got '1'"
    ),
    "null_block is float": no(
        lambda: kernel_blocks([1], 2, null_block=0.0),
        TypeError,
        "null_block must be an int, got 0.0 (float)",
    ),
    "null_block of 33 bits": no(
        lambda: kernel_blocks([1], 2, null_block=2**32), BlockIdError, "null_block 4294967296 is no block id", "32 bits"
    ),
    "out too short": no(lambda: kernel_blocks([1, 2], 2, out=ints(3)), ValueError, "out holds 3 ids, the result 4"),
    "out is an input": no(lambda: kernel_blocks(TAKEN, 1, out=TAKEN), ValueError, "out shares memory with an input"),
    "more than memory": no(lambda: kernel_blocks([0, 0], 2**30), MemoryError, "ids: no memory for its block ids"),
}


@refusals(KERNEL_BLOCKS)
def test_kernel_blocks(case: Case) -> None:
    check(case)
