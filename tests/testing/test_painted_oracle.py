"""The painted-memory oracle itself: it finds planted errors and says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from drawn import check, plans_of, request_copies
from hypothesis.errors import UnsatisfiedAssumption

from nixldesc import (
    Axis,
    Blocks,
    Layout,
    Region,
    Section,
    plan,
)
from nixldesc.testing.geometry import random_pair
from nixldesc.testing.painted import (
    Copies,
    DeliveryError,
    Memory,
    check_delivery,
    nixl_copies,
)
from nixldesc.testing.strategies import Transfer
from nixldesc.testing.tables import random_request

# -- the oracle finds what is wrong ------------------------------------------------------------
#
# Errors planted into right copies. Each must be found, whatever the geometry.


def swap_blocks(copies: list[Copies], rnd: Random) -> None:
    """Of two sources: one may go to several places, where dst holds the same indices twice."""
    one = rnd.choice([one for one in copies if len(set(one.rows[:, 0].tolist())) > 1] or [copies[0]])
    i = rnd.randrange(len(one.rows))
    others = np.flatnonzero(one.rows[:, 0] != one.rows[i, 0]).tolist()
    if others:
        j = rnd.choice(others)
        one.rows[[i, j], 0] = one.rows[[j, i], 0]
    else:
        shift_source(copies, rnd)


def shift_source(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    one.rows[rnd.randrange(len(one.rows)), 0] += np.uint64(rnd.choice((1, 4, 32)))


def shift_destination(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    one.rows[rnd.randrange(len(one.rows)), 1] += np.uint64(rnd.choice((1, 4, 32)))


def drop_pair(copies: list[Copies], rnd: Random) -> None:
    number = rnd.randrange(len(copies))
    keep = np.delete(copies[number].rows, rnd.randrange(len(copies[number].rows)), axis=0)
    copies[number] = replace(copies[number], rows=keep)


def double_pair(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    at = rnd.randrange(len(one.rows))
    copies.append(replace(one, rows=one.rows[at : at + 1]))


def one_byte_more(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    one.rows[rnd.randrange(len(one.rows)), 2] += np.uint64(1)


def one_byte_less(copies: list[Copies], rnd: Random) -> None:
    one = rnd.choice(copies)
    one.rows[rnd.randrange(len(one.rows)), 2] -= np.uint64(1)


def wrong_rank(copies: list[Copies], rnd: Random) -> None:
    number = rnd.randrange(len(copies))
    one = copies[number]
    copies[number] = replace(one, dst=one.dst._replace(rank=one.dst.rank + 1000))


PLANTED = [
    swap_blocks,
    shift_source,
    shift_destination,
    drop_pair,
    double_pair,
    one_byte_more,
    one_byte_less,
    wrong_rank,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_error_is_found(plant: Callable[[list[Copies], Random], None]) -> None:
    found = 0
    for seed in range(60):
        rnd = Random(seed)
        pair = random_pair(rnd)
        transfer = Transfer(pair, random_request(rnd, pair.srcs, pair.dsts, totals=False, senders=pair.senders))
        try:
            copies = request_copies(transfer, plans_of(transfer))
        except UnsatisfiedAssumption:
            continue
        if not any(len(one.rows) > 1 for one in copies):
            continue
        large = [one for one in copies if len(one.rows) > 1]
        small = [one for one in copies if len(one.rows) <= 1]
        check(transfer, large + small)
        plant(large, rnd)
        with pytest.raises(DeliveryError):
            check(transfer, large + small)
        found += 1
    assert found >= 20


def planted_ids(shift: Callable[[Any, Any], tuple[Any, Any]]) -> list[Copies]:
    """Two heads in two blocks from engines of one rank, with the ids tampered with."""
    srcs, dst = {0: two_heads(0x1000)}, two_heads(0x8000, stride=20)
    [[pair]] = plan(dst, srcs).values()
    ids = shift(*pair.desc_ids([[3, 4]], [[5, 6]]))
    return nixl_copies(0, 7, pair.src.table(), pair.dst.table(), *ids)


@pytest.mark.parametrize(
    "shift",
    [
        lambda src, dst: (src + 1, dst),
        lambda src, dst: (src, dst + 1),
        lambda src, dst: (src[::-1], dst),
        lambda src, dst: (src[:1], dst[:1]),
        lambda src, dst: (src[:0], dst[:0]),
        lambda src, dst: (np.append(src, src[0]), np.append(dst, dst[0])),
        lambda src, dst: (np.append(src, 0), np.append(dst, 0)),
    ],
    ids=["src id", "dst id", "swapped", "dropped", "none", "doubled", "one more"],
)
def test_planted_ids_are_found(shift: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    engines = {0: two_heads(0x1000)}, {7: two_heads(0x8000, stride=20)}
    blocks: Any = {0: [[3, 4]]}, {7: [[5, 6]]}
    right = planted_ids(lambda src, dst: (src, dst))
    assert check_delivery(*engines, blocks[0], blocks[1], right).delivered == 32
    with pytest.raises(DeliveryError):
        check_delivery(*engines, blocks[0], blocks[1], planted_ids(shift))


# -- the words of the oracle -------------------------------------------------------------------


def two_heads(base: int, *, stride: int = 16) -> Layout:
    section = Section("K", (Axis("head", 0, 2), Axis("token", 0, 2)), 4)
    return Layout([Region("K", base, 16, 8, block_stride=stride, sections=[section])])


def words(*rows: tuple[int, int, int], src: Any = ((3, 4),), dst: Any = ((5, 6),), **how: Any) -> str:
    """What the oracle says of copies from blocks at 0x1000 to blocks at 0x8000, 20 bytes apart."""
    copies = Copies(Memory(0), Memory(7), np.array(rows, np.uint64).reshape(-1, 3))
    srcs, dsts = {0: two_heads(0x1000)}, {7: two_heads(0x8000, stride=20)}
    with pytest.raises(DeliveryError) as caught:
        check_delivery(srcs, dsts, {0: src}, {7: dst}, [copies], **how)
    return str(caught.value)


RIGHT = (0x1030, 0x8064, 16), (0x1040, 0x8078, 16)


def test_right_copies_pass() -> None:
    copies = Copies(Memory(0), Memory(7), np.array(RIGHT, np.uint64))
    srcs, dsts = {0: two_heads(0x1000)}, {7: two_heads(0x8000, stride=20)}
    done = check_delivery(srcs, dsts, {0: [[3, 4]]}, {7: [[5, 6]]}, [copies])
    assert (done.delivered, done.uncovered, done.by_source) == (32, 0, {0: 32})


def test_words_for_a_missing_byte() -> None:
    assert words(RIGHT[0]) == (
        "dst rank 7, region 'K', block 6: section 'K', head 0, token 2, byte 0 of the item"
        " (address 0x8078) was not delivered. Wrong bytes in all: 16"
    )


def test_words_for_a_byte_in_the_wrong_place() -> None:
    assert words((0x1038, 0x8064, 8), (0x1030, 0x806C, 8), RIGHT[1]) == (
        "dst rank 7, region 'K', block 5: section 'K', head 0, token 0, byte 0 of the item"
        " (address 0x8064) holds section 'K', head 1, token 0, byte 0 of the item"
        " (src rank 0, address 0x1038); it must hold itself. Wrong bytes in all: 16"
    )


def test_words_for_a_byte_written_twice() -> None:
    assert "section 'K', head 1, token 1, byte 3 of the item (address 0x8073) was written 2 times" in (
        words(*RIGHT, (0x103F, 0x8073, 1))
    )


def test_behind_the_last_token_bytes_may_arrive_in_a_block_that_has_one() -> None:
    """Three tokens in blocks of two: the second half of the last block is nobody's business, but right if it comes."""
    srcs, dsts = {0: two_heads(0x1000)}, {7: two_heads(0x8000, stride=20)}
    half = [RIGHT[0], (0x1040, 0x8078, 4), (0x1048, 0x8080, 4)]
    for rows, delivered in ((RIGHT, 32), (half, 24)):
        copies = Copies(Memory(0), Memory(7), np.array(rows, np.uint64))
        done = check_delivery(srcs, dsts, {0: [[3, 4]]}, {7: [[5, 6]]}, [copies], tokens=3)
        assert (done.delivered, done.uncovered) == (delivered, 0)
    assert "head 0, token 2, byte 0 of the item (address 0x8078) was not delivered" in words(RIGHT[0], tokens=3)
    wrong = words(*half, (0x1040, 0x807C, 4), tokens=3)
    assert "head 0, token 3, byte 0 of the item (address 0x807c) holds section 'K', head 0, token 2" in wrong
    assert "was written (section 'K', head 0, token 2, byte 0 of the item (src rank 0, address 0x1040))" in (
        words(*RIGHT, tokens=2)
    )
    assert "although the request ends before token 2" in words(*RIGHT, tokens=2)


def test_segments_and_grains_are_read_as_they_are_said() -> None:
    """Rank 1 of 2, dealt by one token: its blocks of two hold tokens 1 and 3, then 5 and 7; a memory for each block."""
    section = Section("K", (Axis("token", 0, 2),), 4)
    src = Region.segmented("K", 8, [(0x1000, 1, 4), (0x2000, 1, 5)], sections=[section])
    dst = Region("K", 0x8000, 4, 8, sections=[Section("K", (Axis("token", 0, 1),), 4)])
    srcs, dsts = {3: Layout([src], cp_rank=1, cp_size=2, cp_tokens=1)}, {0: Layout([dst])}
    right = [
        Copies(Memory(3, device_id=4), Memory(0), np.array([[0x1004, 0x8004, 4]], np.uint64)),
        Copies(Memory(3, device_id=5), Memory(0), np.array([[0x2000, 0x8000, 4]], np.uint64)),
    ]
    blocks = {3: [[0, 1]]}, {0: [Blocks([1, 0], at=[3, 5])]}
    assert check_delivery(srcs, dsts, *blocks, right).delivered == 8
    with pytest.raises(DeliveryError, match=r"block 0: section 'K', token 5, byte 0 .* was not delivered"):
        check_delivery(srcs, dsts, *blocks, right[:1])
    swapped = [replace(one, src=other.src) for one, other in zip(right, right[::-1], strict=True)]
    with pytest.raises(DeliveryError, match="outside every region of rank 3, VRAM of device"):
        check_delivery(srcs, dsts, *blocks, swapped)


def test_axes_in_parts_are_put_together() -> None:
    """[t // 2][head][t % 2] against [head][t]: four runs of two tokens."""
    parts = Section("K", (Axis("token", 0, 2, unit=2), Axis("head", 0, 2), Axis("token", 0, 2)), 1)
    plain = Section("K", (Axis("head", 0, 2), Axis("token", 0, 4)), 1)
    srcs, dsts = ({0: Layout([Region("K", base, 8, 4, sections=[one])])} for base, one in ((0, parts), (64, plain)))
    rows = [[0, 64, 2], [2, 68, 2], [4, 66, 2], [6, 70, 2]]
    assert check_delivery(srcs, dsts, {0: [[0]]}, {0: [[0]]}, [copied(rows)]).delivered == 8
    with pytest.raises(DeliveryError, match=r"head 0, token 2 .* holds section 'K', head 1, token 0"):
        check_delivery(srcs, dsts, {0: [[0]]}, {0: [[0]]}, [copied([[0, 64, 8]])])


def copied(rows: list[list[int]]) -> Copies:
    return Copies(Memory(0), Memory(0), np.array(rows, np.uint64))


def test_what_dst_holds_twice_is_filled_twice() -> None:
    box = Section("W", (Axis("expert", 0, 1),), 4)
    slots = [Region(f"slot{n}", 64 + 8 * n, 4, 1, sections=[box]) for n in range(2)]
    srcs, dsts = {0: Layout([Region("W", 0, 4, 1, sections=[box])])}, {0: Layout(slots)}
    both = copied([[0, 64, 4], [0, 72, 4]])
    assert check_delivery(srcs, dsts, {0: [[0]]}, {0: [[0]]}, [both]).delivered == 8
    with pytest.raises(DeliveryError, match=r"region 'slot1', block 0: section 'W', expert 0, .*was not delivered"):
        check_delivery(srcs, dsts, {0: [[0]]}, {0: [[0]]}, [copied([[0, 64, 4]])])


def test_words_for_padding() -> None:
    assert (
        "dst rank 7, address 0x8074: byte 16 of block 5 of region 'K', padding, was written"
        " (section 'K', head 0, token 2, byte 0 of the item (src rank 0, address 0x1040))"
        " although the request does not cover it"
    ) in words((0x1030, 0x8064, 17), RIGHT[1])


def test_words_for_a_block_that_nobody_listed() -> None:
    assert "block 1 of region 'K', which is not listed, was written" in (words(*RIGHT, (0x1030, 0x8014, 1)))


def test_words_for_memory_outside_every_region() -> None:
    assert "address 0x100: outside every region of rank 7" in words(*RIGHT, (0x1030, 0x100, 1))


def test_words_for_a_block_that_no_source_lists() -> None:
    said = words(*RIGHT, src=([3],), dst=([5, 6],))
    assert "block 6: section 'K', head 0, token 2, byte 0 of the item (address 0x8078)" in said
    assert "although no source lists it" in said
    assert "block 4 of region 'K', which is not listed (src rank 0, address 0x1040)" in said


def test_words_for_placeholders() -> None:
    said = words(*RIGHT, src=([3, 4],), dst=([5, 6],), null_block=4)
    assert "although no source lists it" in said


def test_words_for_a_length_that_cannot_be() -> None:
    assert words((0x1030, 0x8064, 1 << 50)) == (
        f"{1 << 50} bytes are copied from 0x1030 to 0x8064 in dst rank 7, VRAM of device 0,"
        " where the request lists 32 bytes in all"
    )


def test_a_section_that_no_source_holds_whole_is_named() -> None:
    src = Layout([Region("K", 0, 8, 8, sections=[Section("K", (Axis("head", 0, 1),), 8)])])
    dst = Layout([Region("K", 0, 16, 8, sections=[Section("K", (Axis("head", 0, 2),), 8)])])
    with pytest.raises(DeliveryError, match="no source holds section 'K', head 1"):
        check_delivery({0: src}, {0: dst}, {0: [[1]]}, {0: [[2]]}, [])
    copies = Copies(Memory(0), Memory(0), np.array([[8, 32, 8]], np.uint64))
    blocks = {0: [[1]]}, {0: [[2]]}
    done = check_delivery({0: src}, {0: dst}, *blocks, [copies], allow_missing=["K"])
    assert (done.delivered, done.uncovered) == (8, 8)


def test_two_things_in_one_place_cannot_be_judged() -> None:
    srcs, dsts = {0: two_heads(0x1000)}, {0: two_heads(0x8000)}
    with pytest.raises(ValueError, match=r"src rank 0, VRAM of device 0: .* two things .*null_block"):
        check_delivery(srcs, dsts, {0: [[0, 0]]}, {0: [[1, 2]]}, [])
    with pytest.raises(ValueError, match=r"dst rank 0.* two things at address 0x8010"):
        check_delivery(srcs, dsts, {0: [[0, 3]]}, {0: [[1, 1]]}, [])


def test_a_section_described_in_two_ways_cannot_be_judged() -> None:
    other = Layout([Region("K", 0, 16, 8)])
    with pytest.raises(ValueError, match="section 'K' is described in two ways"):
        check_delivery({0: two_heads(0)}, {0: other}, {0: [[0]]}, {0: [[1]]}, [])


def test_positions_are_counted_with_context_parallelism_and_skip() -> None:
    section = Section("K", (Axis("token", 0, 1),), 4)
    srcs = {rank: Layout([Region("K", 0, 4, 8, sections=[section])], cp_rank=rank, cp_size=2) for rank in (0, 1)}
    dsts = {0: Layout([Region("K", 0, 4, 8, sections=[section])])}
    blocks: Any = {0: [Blocks([6], 1)], 1: [[7, 5]]}, {0: [Blocks([1, 2, 3], 1)]}
    # dst positions 1, 2, 3 are entry 0 of source 1, entry 1 of source 0, entry 1 of source 1.
    right = [
        Copies(Memory(1), Memory(0), np.array([[28, 4, 4], [20, 12, 4]], np.uint64)),
        Copies(Memory(0), Memory(0), np.array([[24, 8, 4]], np.uint64)),
    ]
    done = check_delivery(srcs, dsts, blocks[0], blocks[1], right)
    assert (done.delivered, done.by_source) == (12, {0: 4, 1: 8})


def test_nixl_copies_refuses_what_nixl_would() -> None:
    table = np.array([[0, 4, 0], [4, 8, 0]], np.uint64)
    with pytest.raises(DeliveryError, match="src id 2 at position 1 is outside a list of 2"):
        nixl_copies(0, 0, table, table, [0, 2], [0, 1])
    with pytest.raises(DeliveryError, match="position 0: src id 0 has 4 bytes, dst id 1 has 8"):
        nixl_copies(0, 0, table, table, [0], [1])
    with pytest.raises(DeliveryError, match="1 src ids against 2 dst ids"):
        nixl_copies(0, 0, table, table, [0], [0, 1])
