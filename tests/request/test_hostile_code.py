"""Ids whose ``__index__`` runs code: it fails, it resizes what is being read, it pulls away what will be written."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from doors import GOOD, LAYOUT, PAIR, Door, Indexed, every_door, refused
from refusals import DlistPair, Layout, ints, region

from nixldesc import BlockIdError


class OwnError(Exception):
    pass


@every_door
@pytest.mark.parametrize("error", [OwnError, ValueError, ZeroDivisionError, KeyboardInterrupt, MemoryError])
def test_an_error_of_an_id_is_the_callers(door: Door, error: type[BaseException]) -> None:
    def fail() -> int:
        raise error("mine")

    with pytest.raises(error, match=r"^mine$"):
        door.call([5, Indexed(fail), 63])
    assert door.call(GOOD) == door.good


@every_door
@pytest.mark.parametrize("length", [0, 1, 2, 4, 10_000])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_id_that_resizes_its_list(door: Door, length: int, at: int) -> None:
    def resize() -> int:
        ids[:] = [0] * length
        return 5

    ids: list[Any] = [5, 0, 63]
    ids[at] = Indexed(resize)
    refused(door, ids, BlockIdError, f"{door.where}: the list changed from 3 to {length} ids while it was read")


@every_door
def test_what_a_list_grew_by_is_not_looked_at(door: Door) -> None:
    """There is room for as many ids as it had, and not for one more."""
    looked: list[int] = []

    def look() -> int:
        looked.append(5)
        return 5

    def grow() -> int:
        ids.append(Indexed(look))
        return 5

    ids: list[Any] = [5, 0, Indexed(grow)]
    refused(door, ids, BlockIdError, f"{door.where}: the list changed from 3 to 4 ids while it was read")
    assert looked == []


@every_door
def test_an_id_that_only_its_list_held(door: Door) -> None:
    def vanish() -> int:
        ids[:] = [5, 0, 63]
        return 5

    ids: list[Any] = [Indexed(vanish), 1, 2]
    assert door.call(ids) == door.good  # each is read after what stands before it


@pytest.mark.parametrize("left", [0, 1])
def test_an_id_that_shortens_the_list_of_lists(left: int) -> None:
    def shorten() -> int:
        del lists[left:]
        return 5

    both = Layout([region("a", groups=(0,)), region("b", 0x9000, groups=(1,))])
    pair = DlistPair(both, both)
    lists: list[Any] = []
    for _ in range(2):  # with nothing prepared, and with all
        lists[:] = [Indexed(shorten)], [2]
        with pytest.raises(BlockIdError, match=r"_blocks has . lists, but region '.' takes group"):
            pair.desc_ids(lists, [[1], [2]])
        lists[:] = [Indexed(shorten)], [2]
        with pytest.raises(BlockIdError, match=r"_blocks has . lists, but region '.' takes group"):
            pair.desc_ids([[1], [2]], lists)
        assert [ids.tolist() for ids in pair.desc_ids([[1], [2]], [[1], [2]])] == [[1, 10]] * 2


def test_one_layout_and_an_id_that_shortens_the_list_of_lists() -> None:
    def shorten() -> int:
        lists.clear()
        return 5

    both = Layout([region("a", groups=(0,)), region("b", 0x9000, groups=(1,))])
    lists: list[Any] = [[Indexed(shorten)], [2]]
    assert both.desc_ids(lists).tolist() == [5, 10]  # the first call reads a copy
    lists[:] = [[Indexed(shorten), None], [2]]
    with pytest.raises(TypeError, match="group 0, position 1: a block id must be an int"):
        both.desc_ids(lists)
    lists[:] = [[Indexed(shorten)], [2]]
    with pytest.raises(BlockIdError, match="block_ids has 0 lists"):
        both.desc_ids(lists)
    assert both.desc_ids([[5], [2]]).tolist() == [5, 10]


def test_an_id_that_resizes_another_list() -> None:
    def resize() -> int:
        second[:] = [1] * 5_000
        return 5

    both = Layout([region("a", groups=(0,), blocks=5000), region("b", 0x90000, groups=(1,), blocks=5000)])
    for _ in range(2):
        second: list[int] = [1]
        assert len(both.desc_ids([[Indexed(resize)], second])) == 5_001  # the second list is read after the first


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("dtype", np.int16), ("dtype", np.int8), ("dtype", np.int64), ("shape", (1, -1)), ("shape", (-1, 1))],
)
@pytest.mark.filterwarnings("ignore:Setting the (dtype|shape) on a NumPy array:DeprecationWarning")
def test_an_id_that_reshapes_out(attribute: str, value: Any) -> None:
    """Whatever the door saw before the lists were read, no byte is written outside the array."""

    def reshape() -> int:
        setattr(out, attribute, value)
        return 5

    count = 4096
    for size in (count // 8, count // 2, count, count * 2):
        memory = np.full(size + 1024, -7, np.int32)
        out = memory[512 : 512 + size]
        try:
            LAYOUT.desc_ids([[Indexed(reshape)] + [0] * (count - 1)], out=out)
        except ValueError as error:
            assert "ids, the request has" in str(error)
        assert (memory[:512] == -7).all()
        assert (memory[512 + size :] == -7).all()


def test_an_id_that_locks_out() -> None:
    def lock() -> int:
        out.flags.writeable = False
        return 5

    out, other = ints(1), ints(1)
    with pytest.raises(ValueError, match="read-only"):
        LAYOUT.desc_ids([[Indexed(lock)]], out=out)
    for outs in ((other, out), (out, other)):
        out.flags.writeable = True
        holders = sys.getrefcount(other)
        with pytest.raises(ValueError, match="read-only"):
            PAIR.desc_ids([[Indexed(lock)]], [[5]], out=outs)
        assert (out.tolist(), other.tolist()) == ([0], [0])
        assert sys.getrefcount(other) == holders  # its buffer was given back
