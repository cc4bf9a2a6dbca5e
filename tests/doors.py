"""Every door that takes block ids or desc ids, for the tests that send nonsense through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from refusals import Blocks, DlistPair, Layout, kernel_blocks, plan, region

# 64 blocks of 16 bytes on every side; the plan's names tell nothing apart.
LAYOUT = Layout([region("k", 0x1000, blocks=64)])
OTHER = Layout([region("k", 0x9000, blocks=64)])
PAIR = DlistPair(LAYOUT, OTHER)
PLAN = plan(OTHER, {0: LAYOUT})

GOOD = [5, 0, 63]


class Door(NamedTuple):
    """A call that takes one list of ids; what it gives for GOOD; how its messages call the list."""

    call: Callable[[Any], Any]
    good: Any
    where: str
    noun: str = "block id"


def desc_ids(ids: Any) -> Any:
    return LAYOUT.desc_ids([ids]).tolist()


def src_ids(ids: Any) -> Any:
    return PAIR.desc_ids([ids], [[1, 2, 3]], order="given")[0].tolist()


def dst_ids(ids: Any) -> Any:
    return PAIR.desc_ids([[1, 2, 3]], [ids], order="given")[1].tolist()


def skipped(ids: Any) -> Any:
    return PAIR.desc_ids([Blocks(ids, skip=1)], [Blocks([1, 2, 3], skip=1)], order="given")[0].tolist()


def with_null(ids: Any) -> Any:
    return PAIR.desc_ids([ids], [[1, 2, 3]], order="given", null_block=-7)[0].tolist()


def uncovered(ids: Any) -> Any:
    return PAIR.uncovered([Blocks([1])], [Blocks(ids)]).tolist()


def undelivered(ids: Any) -> Any:
    return [block for _, block, _, _ in PLAN.undelivered({0: [Blocks([1])]}, [ids])]


def delivered(ids: Any) -> Any:
    return len(PLAN.undelivered({0: [ids]}, [[1, 2, 3, 4]]))


DOORS = {
    "Layout.desc_ids": Door(desc_ids, [5, 0, 63], "group 0"),
    "pair.desc_ids src": Door(src_ids, [5, 0, 63], "source group 0"),
    "pair.desc_ids dst": Door(dst_ids, [5, 0, 63], "destination group 0"),
    "pair.desc_ids Blocks": Door(skipped, [5, 0, 63], "source group 0"),
    "pair.desc_ids null_block": Door(with_null, [5, 0, 63], "source group 0"),
    "pair.uncovered": Door(uncovered, [0, 63], "destination group 0"),
    "plan.undelivered dst": Door(undelivered, [0, 63], "dst_blocks[0]"),
    "plan.undelivered src": Door(delivered, 1, "src_blocks[0][0]"),
    "kernel_blocks": Door(lambda ids: kernel_blocks(ids, 2).tolist(), [10, 11, 0, 1, 126, 127], "ids"),
    "pair.merged_ops": Door(lambda ids: PAIR.merged_ops(ids, [1, 2, 3]), 3, "src_ids", "desc id"),
    "pair.moves": Door(
        lambda ids: PAIR.moves([1, 2, 3], ids)[:, 1].tolist(), [0x9050, 0x9000, 0x93F0], "dst_ids", "desc id"
    ),
}

every_door = pytest.mark.parametrize("door", [pytest.param(door, id=title) for title, door in DOORS.items()])


def refused(door: Door, ids: Any, error: type[Exception], *words: str) -> None:
    with pytest.raises(error) as caught:
        door.call(ids)
    assert type(caught.value) is error
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert len(message) < 400
    assert door.call(GOOD) == door.good


class Indexed:
    """A block id of a kind of its own."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self.do = do

    def __index__(self) -> Any:
        return self.do()


#: A number that Python itself refuses to print.
ENDLESS = 10**1_000_000


def misaligned(ids: list[int], dtype: Any) -> Any:
    """The ids at an odd address."""
    raw = np.zeros(len(ids) * np.dtype(dtype).itemsize + 1, np.uint8)[1:].view(dtype)
    raw[:] = ids
    return raw
