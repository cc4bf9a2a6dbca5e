"""Every refusal of a pair by its class and its words: Blocks, block lists of two sides, `out`, raw ids."""

from __future__ import annotations

import numpy as np
from refusals import (
    Blocks,
    Case,
    DlistPair,
    Layout,
    check,
    frozen,
    ints,
    layout,
    no,
    pair_of,
    refusals,
    region,
)

from nixldesc import BlockIdError, PeerMismatchError

# group 0 is a's and c's, group 1 is b's, group 2 nobody's
ABC = Layout(
    [
        region("a", 0x1000, blocks=8, groups=(0,)),
        region("b", 0x2000, blocks=20, groups=(1,)),
        region("c", 0x3000, blocks=4, groups=(0,)),
    ]
)


TAKEN = ints(2)
MEMORY = np.zeros(64, np.uint64)

BLOCKS = {
    "ids is None": no(lambda: Blocks(None), TypeError, "Blocks: ids must be a list", "None"),
    "ids is an int": no(lambda: Blocks(7), TypeError, "Blocks: ids must be a sequence of block ids, got 7 (int)"),
    "ids are Blocks": no(lambda: Blocks(Blocks([1])), TypeError, "Blocks: ids: Blocks say"),
    "ids are floats": no(lambda: Blocks(np.zeros(2)), TypeError, "Blocks: ids must hold integers", "float64"),
    "skip is None": no(lambda: Blocks([1], None), TypeError, "Blocks: skip must be an int, got None"),
    "skip is float": no(lambda: Blocks([1], 2.0), TypeError, "Blocks: skip must be an int, got 2.0"),
    "skip below 0": no(lambda: Blocks([1], -1), BlockIdError, "Blocks: skip must be a number of entries", "got -1"),
    "skip without end": no(lambda: Blocks([1], 2**62), BlockIdError, "Blocks: skip", "got 4611686018427387904"),
    "tail of too few": no(
        lambda: Blocks.tail([1, 2, 3], 2), BlockIdError, "Blocks.tail: 3 ids cannot be the tail of 2 entries"
    ),
    "tail of None": no(lambda: Blocks.tail(None, 2), TypeError, "Blocks.tail: ids must be a list", "None"),
    "tail of a generator": no(lambda: Blocks.tail(iter([1]), 2), TypeError, "Blocks.tail: ids must be a list"),
    "tail of a str": no(lambda: Blocks.tail([1], "2"), TypeError, "Blocks.tail: total must be an int, got '2'"),
}


@refusals(BLOCKS)
def test_blocks(case: Case) -> None:
    check(case)


# ------------------------------------------------------------------------------------------------------- pairs

# 8 blocks each; destination blocks are three of the source's, so "sub-blocks" 1 to 3
PAIR = pair_of(region("p"), region("d", 0x9000))
CUT = pair_of(region("p", length=8, sub_blocks=1, blocks=60), region("d", 0x9000, length=8, sub_blocks=3))

PAIRS = {
    "src is a Region": no(lambda: DlistPair(region(), ABC), TypeError, "src must be a Layout, got Region("),
    "dst is None": no(lambda: DlistPair(ABC, None), TypeError, "dst must be a Layout, got None"),
    "other numbers of regions": no(
        lambda: DlistPair(ABC, layout()), PeerMismatchError, "same regions on both sides", "got 3 and 1"
    ),
    "other lengths": no(
        lambda: pair_of(region("p"), region("d", length=32)),
        PeerMismatchError,
        "region 0 (source 'p', destination 'd'): block_len is 16 and 32 bytes",
    ),
    "other numbers of groups": no(
        lambda: pair_of(region("p", groups=(0,)), region("d", groups=(0, 1))),
        PeerMismatchError,
        "region 0 (source 'p', destination 'd'): takes 1 and 2 groups",
    ),
    "mixed memory": no(
        lambda: DlistPair(
            Layout([region("a"), region("b", mem_type="DRAM")]), Layout([region("a"), region("b", 0x9000)])
        ),
        PeerMismatchError,
        "the source mixes memory types ['DRAM', 'VRAM']",
        "has one",
    ),
    "origin of another number": no(
        lambda: DlistPair(ABC, ABC, origin=[("a", "a", ())]), PeerMismatchError, "1 entries in origin for 3 regions"
    ),
    "places are ints": no(
        lambda: DlistPair(ABC, ABC, places=[1, 2, 3]),
        TypeError,
        "places[0] must be a Places, got 1 (int)",
    ),
    "null_block is bool": no(
        lambda: PAIR.desc_ids([[1]], [[1]], null_block=False), TypeError, "null_block must be an int, got False (bool)"
    ),
    "null_block of 65 bits": no(
        lambda: PAIR.desc_ids([[1]], [[1]], null_block=2**64),
        BlockIdError,
        "null_block 18446744073709551616",
        "32 bits",
    ),
    "tokens below 0": no(
        lambda: PAIR.desc_ids([[1]], [[1]], tokens=-1), BlockIdError, "tokens must be the number of tokens", "got -1"
    ),
    "tokens without end": no(
        lambda: PAIR.desc_ids([[1]], [[1]], tokens=2**62), BlockIdError, "tokens must be the number", "got 46116860"
    ),
    "src_blocks is None": no(
        lambda: PAIR.desc_ids(None, [[1]]), TypeError, "src_blocks must be a list with one list of block ids per KV"
    ),
    "one Blocks": no(
        lambda: PAIR.desc_ids([[1]], Blocks([1])),
        TypeError,
        "dst_blocks must be a list with one entry per group, got a single Blocks: write [Blocks(...)]",
    ),
    "a missing list": no(
        lambda: DlistPair(ABC, ABC).desc_ids([[1], [1]], [[1]]),
        BlockIdError,
        "dst_blocks has 1 lists, but region 'b' takes group 1",
        "give one list per group",
    ),
    "lists that do not meet": no(
        lambda: PAIR.desc_ids([[1], [2]], [[1]]),
        BlockIdError,
        "source region 'p' takes 2 groups and destination region 'd' 1: they meet one to one",
    ),
    "lists without end": no(
        lambda: PAIR.desc_ids([[1]], [()] * 70_000), BlockIdError, "dst_blocks has 70000 lists; one list per KV cache"
    ),
    "source id out of range": no(
        lambda: PAIR.desc_ids([[1, 8]], [[1, 2]]),
        BlockIdError,
        "source group 0, position 1: block id 8 is out of range, region 'p' has 8 blocks (0 to 7)",
    ),
    "destination id out of range": no(
        lambda: PAIR.desc_ids([[1]], [[-3]]),
        BlockIdError,
        "destination group 0, position 0: block id -3 is out of range, region 'd' has 8 blocks",
    ),
    "id out of range opposite no null": no(
        lambda: PAIR.desc_ids([[0, 8]], [[0, 1]], null_block=0),
        BlockIdError,
        "source group 0, position 1: block id 8 is out of range",
    ),
    "id out of range opposite nothing": no(
        lambda: PAIR.desc_ids([Blocks([1, 9])], [Blocks([1])], null_block=0),
        BlockIdError,
        "source group 0, position 1: block id 9 is out of range",
    ),
    "a str in it": no(
        lambda: PAIR.desc_ids([[1]], [["1"]]),
        TypeError,
        "destination group 0, position 0: a block id must be an int, got '1' (str)",
    ),
    "lists that do not fit": no(
        lambda: PAIR.desc_ids([[1, 2, 3]], [[1, 2]]),
        BlockIdError,
        "source group 0 has 3 blocks and destination group 0 has 2: no number of tokens needs exactly so many",
        "Blocks(ids, skip=...) says where a list starts",
    ),
    "blocks that do not fit": no(
        lambda: CUT.desc_ids([[1, 2, 3, 4]], [[1]]),
        BlockIdError,
        "source group 0 has 4 blocks and destination group 0 has 1",
        "Blocks(ids, skip=...)",
    ),
    "a skip that cannot be counted": no(
        lambda: CUT.desc_ids([Blocks([1], 2**62 - 1)], [Blocks([1])]),
        BlockIdError,
        "source group 0: skip 4611686018427387903 is beyond any sequence",
    ),
    "order": no(lambda: PAIR.desc_ids([[1]], [[1]], order="region"), ValueError, "order must be 'merge' or 'given'"),
    "regions is an int": no(
        lambda: PAIR.desc_ids([[1]], [[1]], regions=0),
        TypeError,
        "regions must be a slice of the pair's regions, got 0 (int)",
    ),
    "regions backwards": no(
        lambda: PAIR.desc_ids([[1]], [[1]], regions=slice(None, None, -1)), ValueError, "slice of step 1, got step -1"
    ),
    "one out": no(
        lambda: PAIR.desc_ids([[1]], [[1]], out=ints(1)), TypeError, "out must be a tuple of two int32 arrays"
    ),
    "out too short": no(
        lambda: PAIR.desc_ids([[1, 2]], [[1, 2]], out=(ints(1), ints(2))),
        ValueError,
        "out holds 1 and 2 ids, the request has 2 pairs",
    ),
    "out twice the same": no(
        lambda: PAIR.desc_ids([[1]], [[1]], out=(TAKEN[:1], TAKEN[:1])), ValueError, "out shares memory with an input"
    ),
    "out is an input": no(
        lambda: PAIR.desc_ids([[1]], [TAKEN[:1]], out=(ints(1), TAKEN[:1])), ValueError, "out shares memory"
    ),
    "out of int64": no(
        lambda: PAIR.desc_ids([[1]], [[1]], out=(ints(1), ints(1, np.int64))),
        TypeError,
        "out must be an int32 NumPy array, got dtype int64",
    ),
}


@refusals(PAIRS)
def test_pairs(case: Case) -> None:
    check(case)


# "p" and "q" of 16 and 32 bytes: an id of one can never pair with an id of the other
UNLIKE = DlistPair(
    Layout([region("p", 0x1000), region("q", 0x2000, 32)]), Layout([region("p", 0x3000), region("q", 0x4000, 32)])
)

IDS = {
    "unequal counts": no(
        lambda: UNLIKE.merged_ops([1, 2], [1]), BlockIdError, "2 src_ids and 1 dst_ids: they pair one to one"
    ),
    "source beyond": no(
        lambda: UNLIKE.merged_ops([1, 16], [1, 2]),
        BlockIdError,
        "src_ids, position 1: desc id 16 is out of",
        "has 16",
    ),
    "destination beyond": no(
        lambda: UNLIKE.moves([1, 2], [1, 99]), BlockIdError, "dst_ids, position 1: desc id 99 is out of range"
    ),
    "negative": no(lambda: UNLIKE.moves([-1], [1]), BlockIdError, "src_ids, position 0: desc id -1 is outside 0 to"),
    "negative int32": no(lambda: UNLIKE.moves(ints(1) - 5, ints(1)), BlockIdError, "src_ids, position 0: desc id -5"),
    "of 33 bits": no(
        lambda: UNLIKE.merged_ops([1], np.array([2**32 + 5])), BlockIdError, "dst_ids, position 0: desc id 4294967301"
    ),
    "unequal lengths": no(
        lambda: UNLIKE.moves([1, 2], [1, 8]),
        BlockIdError,
        "position 1: src id 2 is 16 bytes, dst id 8 is 32 bytes",
    ),
    "floats": no(lambda: UNLIKE.moves([1.0], [1]), TypeError, "src_ids, position 0: a desc id must be an int, got 1.0"),
    "an array of floats": no(
        lambda: UNLIKE.merged_ops(np.zeros(1), [1]),
        TypeError,
        "src_ids must hold integers, got an array of dtype float64",
    ),
    "None": no(lambda: UNLIKE.merged_ops([1], None), TypeError, "dst_ids must be a list", "None"),
    "out of another shape": no(
        lambda: UNLIKE.moves([1], [1], out=np.zeros((2, 3), np.uint64)), ValueError, "out has shape (2, 3)", "(1, 3)"
    ),
    "out of int64": no(
        lambda: UNLIKE.moves([1], [1], out=np.zeros((1, 3), np.int64)),
        TypeError,
        "out must be a uint64 NumPy array, got dtype int64",
    ),
    "out read-only": no(
        lambda: UNLIKE.moves([1], [1], out=frozen(np.zeros((1, 3), np.uint64))), ValueError, "out must be writable"
    ),
    "out is an input": no(
        lambda: UNLIKE.moves(MEMORY.view(np.int32)[20:21], [1], out=MEMORY[9:12].reshape(1, 3)),
        ValueError,
        "out shares memory with an input",
    ),
    "uncovered": no(
        lambda: PAIR.uncovered([[1]], [[1, 99]]), BlockIdError, "destination group 0, position 1: block id 99"
    ),
}


@refusals(IDS)
def test_raw_ids(case: Case) -> None:
    check(case)
