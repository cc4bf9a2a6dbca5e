"""Whatever comes in as ids is read as what it is, or refused by class and words.

Every door that takes block ids or desc ids is tried with everything here. After each refusal the same door must serve
a good request.
"""

from __future__ import annotations

import array
import collections
import decimal
import enum
import fractions
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from doors import DOORS, ENDLESS, GOOD, LAYOUT, PAIR, PLAN, Door, Indexed, every_door, misaligned, refused
from refusals import frozen, ints, kernel_blocks

from nixldesc import BlockIdError

# ------------------------------------------------------------------------------------------------ one bad id


class Card(enum.IntEnum):
    FIVE = 5


class Int(int):
    """An int that is none to everybody who looks closely."""

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0

    def __lt__(self, other: object) -> bool:
        return False


NO_INTS: list[Any] = [
    None,
    1.0,
    float("nan"),
    float("inf"),
    1 + 0j,
    True,
    False,
    "1",
    b"1",
    bytearray(b"1"),
    [1],
    (1,),
    {1},
    {1: 1},
    object(),
    int,
    iter([1]),
    range(3),
    decimal.Decimal(1),
    fractions.Fraction(1),
    np.True_,
    np.float32(1),
    np.float64(1),
    np.float64("nan"),
    np.complex64(1),
    np.str_("1"),
    np.datetime64(1, "s"),
    np.timedelta64(1, "s"),
    np.array(1.0),
    np.array(True),
    np.array([1]),
    np.array([1, 2]),
    np.array(None),
    Indexed(lambda: 1.0),
    Indexed(lambda: "1"),
    Indexed(lambda: None),
]


@every_door
@pytest.mark.parametrize("item", NO_INTS, ids=lambda item: f"{type(item).__name__}-{item}"[:40])
def test_no_int(door: Door, item: Any) -> None:
    refused(door, [5, item, 63], TypeError, f"{door.where}, position 1: a {door.noun} must be an int, got ")
    refused(door, (5, 0, item), TypeError, f"{door.where}, position 2: a {door.noun} must be an int, got ")


@every_door
@pytest.mark.parametrize(
    "number",
    [-1, 64, 2**31 - 1, 2**31, 2**32 + 5, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 5, -(2**31), -(2**63), -(2**64)],
)
def test_out_of_range(door: Door, number: int) -> None:
    if door is DOORS["kernel_blocks"] and number == 64:
        number = 2**30  # no layout bounds it, but the kernel blocks' own 32 bits do
    lists: list[Any] = [[5, number, 63], (5, number, 63), collections.UserList([5, number, 63])]
    for dtype in (np.int64, np.uint64, np.int32, np.uint32, np.int8, ">i8", "<u4"):
        if np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
            lists.append(np.array([5, number, 63], dtype))
    for ids in lists:
        refused(door, ids, BlockIdError, "position 1: ", f" id {number} is out")


@every_door
@pytest.mark.parametrize("number", [ENDLESS, -ENDLESS, 1 << 300], ids=["million", "minus a million", "300 bits"])
def test_a_number_too_long_to_print(door: Door, number: int) -> None:
    refused(
        door, [5, 0, number], BlockIdError, f"{door.where}, position 2: ", f" id of {number.bit_length()} bits is out"
    )


@every_door
@pytest.mark.parametrize(
    "five",
    [Card.FIVE, Int(5), np.int8(5), np.uint64(5), np.array(5), Indexed(lambda: 5), Indexed(lambda: Card.FIVE)],
    ids=lambda five: type(five).__name__,
)
@pytest.mark.filterwarnings("ignore:__index__ returned non-int:DeprecationWarning")
def test_other_kinds_of_int(door: Door, five: Any) -> None:
    assert door.call([five, 0, 63]) == door.good
    assert door.call((five, 0, 63)) == door.good


# --------------------------------------------------------------------------------------------------- no list


def generated() -> Iterator[int]:
    yield from GOOD


NO_LISTS: list[Any] = [
    None,
    5,
    1.5,
    True,
    "503",
    b"503",
    bytearray(b"503"),
    {5, 0, 63},
    frozenset(GOOD),
    {5: 0},
    {5: 0}.keys(),
    collections.Counter(GOOD),
    generated(),
    iter(GOOD),
    map(int, GOOD),
    zip(GOOD, GOOD, strict=True),
    object(),
    list,
    np.int64(5),
    np.array(5),
    np.array([GOOD]),
    np.array(GOOD).reshape(3, 1),
    np.array(GOOD, float),
    np.array([], float),
    np.array([np.nan]),
    np.array(GOOD, complex),
    np.array([True, False]),
    np.array(GOOD, object),
    np.array([None, {}]),
    np.array(["5", "0"]),
    np.array([b"5", b""]),
    np.array(GOOD, "datetime64[s]"),
    np.array(GOOD, "timedelta64[s]"),
    np.array([(5, 0)], "i4,i4"),
    np.array([(5,)], [("block", "i4")]),
    np.array([], "S0"),
    np.array(GOOD, np.float16),
    array.array("d", GOOD),
    memoryview(array.array("f", GOOD)),
    np.array([GOOD]).data,
]


@every_door
@pytest.mark.parametrize("ids", NO_LISTS, ids=lambda ids: f"{type(ids).__name__}-{ids}"[:40])
def test_no_list(door: Door, ids: Any) -> None:
    refused(door, ids, TypeError, "must ")


@every_door
def test_lists_in_a_list(door: Door) -> None:
    refused(door, [GOOD], TypeError, f"position 0: a {door.noun} must be an int, got [5, 0, 63] (list)")
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    refused(door, nested, TypeError, f"position 0: a {door.noun} must be an int, got [[")
    refused(door, [np.array(GOOD)], TypeError, f"position 0: a {door.noun} must be an int, got array(")


# ---------------------------------------------------------------------------------- other spellings of a list


class LyingList(list[int]):
    """A list that shows other ids than it holds."""

    def __len__(self) -> int:
        return 10**9

    def __iter__(self) -> Any:
        return iter([999])

    def __getitem__(self, at: Any) -> Any:
        return 999


class Array(np.ndarray[Any, Any]):
    """An array that shows other ids than it holds."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, at: Any) -> Any:
        return 999

    def tolist(self) -> Any:
        return [999]


class Given:
    """What has an array inside, as tensors do."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(GOOD)


INTEGERS = ["i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8", "l", "q", "L", "Q"]

LISTS: dict[str, Any] = {
    "tuple": tuple(GOOD),
    "deque": collections.deque(GOOD),
    "UserList": collections.UserList(GOOD),
    "array.array": array.array("i", GOOD),
    "array.array of longs": array.array("q", GOOD),
    "memoryview": memoryview(array.array("H", GOOD)),
    "memoryview with gaps": memoryview(array.array("i", [5, 9, 0, 9, 63, 9]))[::2],
    "lying list": LyingList(GOOD),
    "lying array": np.array(GOOD, np.int32).view(Array),
    "__array__": Given(),
    "masked array": np.ma.array(GOOD),
    "read-only": frozen(np.array(GOOD, np.int32)),
    "read-only int64": frozen(np.array(GOOD)),
    "with gaps": np.array([5, 9, 0, 9, 63, 9], np.int32)[::2],
    "backwards": np.array(GOOD[::-1], np.int32)[::-1],
    "a column": np.array([GOOD, GOOD], order="F")[1],
    "misaligned int32": misaligned(GOOD, np.int32),
    "misaligned int64": misaligned(GOOD, np.int64),
    "misaligned uint16": misaligned(GOOD, np.uint16),
    "a field": np.array([(1, 5), (1, 0), (1, 63)], "i1,i4")["f1"],
    **{f"dtype {dtype}": np.array(GOOD, dtype) for dtype in INTEGERS},
}


@every_door
@pytest.mark.parametrize("spelling", LISTS)
def test_another_spelling_is_read_for_what_it_holds(door: Door, spelling: str) -> None:
    assert door.call(LISTS[spelling]) == door.good


@every_door
def test_a_range(door: Door) -> None:
    assert door.call(range(7, 10)) == door.call([7, 8, 9])
    assert door.call(range(9, 6, -1)) == door.call([9, 8, 7])
    for ids in (range(-1, 2), range(1, -2, -1), range(2**31 - 2, 2**31 + 1), range(0, 2**70, 2**69), range(ENDLESS)):
        refused(door, ids, BlockIdError)


@pytest.mark.parametrize("empty", [[], (), range(0), np.array([], np.int32), np.array([], ">u8"), array.array("i")])
def test_nothing(empty: Any) -> None:
    """Of any integer type; what it is empty of counts."""
    assert LAYOUT.desc_ids([empty]).tolist() == []
    assert [ids.tolist() for ids in PAIR.desc_ids([empty], [empty])] == [[], []]
    assert kernel_blocks(empty, 3).tolist() == []
    assert PAIR.merged_ops(empty, empty) == 0
    assert PAIR.moves(empty, empty).shape == (0, 3)
    assert LAYOUT.desc_ids([empty]).dtype == kernel_blocks(empty, 3).dtype == np.int32


@pytest.mark.parametrize(
    "lists", [None, 5, "5", b"5", {0: [5]}, {5}, iter([[5]]), object(), np.array([5]), np.array([5.0]), range(5)]
)
def test_no_lists(lists: Any) -> None:
    doors: list[Callable[[], object]] = [
        lambda: LAYOUT.desc_ids(lists),
        lambda: LAYOUT.desc_ids(lists, out=ints(1)),
        lambda: PAIR.desc_ids(lists, [[5]]),
        lambda: PAIR.desc_ids([[5]], lists),
        lambda: PAIR.desc_ids([[5]], lists, out=(ints(1), ints(1))),
        lambda: PAIR.uncovered(lists, [[5]]),
        lambda: PLAN.undelivered({0: [[5]]}, lists),
        lambda: PLAN.undelivered({0: lists}, [[5]]),
    ]
    for do in doors:
        with pytest.raises(TypeError, match="must be a list with one list of block ids per KV cache group"):
            do()


def test_rows_of_an_array_are_lists() -> None:
    tables = np.array([GOOD, GOOD[::-1]])
    assert LAYOUT.desc_ids(tables).tolist() == [5, 0, 63, 63, 0, 5]
    apart = np.array([GOOD, [7, 8, 9]])  # one region takes both lists, and no block of it twice
    assert [ids.tolist() for ids in PAIR.desc_ids(apart, apart)] == [[0, 5, 7, 8, 9, 63]] * 2
