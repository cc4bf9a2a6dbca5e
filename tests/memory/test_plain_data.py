"""How a stranger's plain data is measured and read before anything is made of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nixldesc.kernels._kernels import is_short, read_numbers


@pytest.mark.parametrize(
    ("item", "room"),
    [
        (7, 1),
        ("abc", 5),
        ([1, 2, 3], 4),
        ((1, "ab"), 6),
        ({"k": [None, True, 1.5]}, 8),
    ],
)
def test_entries_and_letters_take_room(item: Any, room: int) -> None:
    assert is_short(item, room, 8)
    assert not is_short(item, room - 2, 8)


@pytest.mark.parametrize("item", [2**63, -(2**63) - 1, b"b", {1}, object(), np.int64(1), type("S", (str,), {})("s")])
def test_nothing_else_is_plain(item: Any) -> None:
    assert not is_short(item, 100, 100)
    assert not is_short([item], 100, 100)
    assert not is_short({"k": item}, 100, 100)


def test_one_list_many_times_is_long() -> None:
    bomb: list[Any] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    assert not is_short(bomb, 2**16, 2**10)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert not is_short(deep, 2**16, 2**10)
    assert is_short([[], []], 3, 3)
    assert not is_short([[], []], 3, 2)


def test_a_list_of_numbers_is_read_with_its_bounds() -> None:
    out = np.zeros(3, dtype=np.uint64)
    assert read_numbers([5, 0, 2**63 - 1], out) == (0, 2**63 - 1)
    assert out.tolist() == [5, 0, 2**63 - 1]


def test_one_number_is_read_for_all() -> None:
    out = np.zeros(3, dtype=np.uint64)
    assert read_numbers(2**63 - 1, out) == (2**63 - 1, 2**63 - 1)
    assert out.tolist() == [2**63 - 1] * 3


@pytest.mark.parametrize("items", [[1], [1, 2, 3, 4], [1, 2, -1], [1, 2, 2**63], [1, True, 2], [1, 2.0, 3], []])
def test_what_is_anything_else_is_left_to_a_closer_look(items: list[Any]) -> None:
    assert read_numbers(items, np.zeros(3, dtype=np.uint64)) is None


@pytest.mark.parametrize("one", [-1, 2**63, True, 2.0, "7", (1, 2, 3), None])
def test_one_for_all_is_an_exact_int(one: Any) -> None:
    out = np.zeros(3, dtype=np.uint64)
    assert read_numbers(one, out) is None
    assert not out.any()
