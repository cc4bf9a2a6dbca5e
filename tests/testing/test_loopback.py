"""LoopbackAgent by itself: it copies, counts operations as NIXL does, and fails when told to."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import painted
from hypothesis import given
from hypothesis import strategies as st
from loopbacks import L, N, Two, blocks, table

from nixldesc.testing import LoopbackAgent, LoopbackError


def test_read_and_write_move_the_named_blocks_only() -> None:
    two = Two()
    before = blocks(two.theirs)
    assert two.a.transfer(two.make([6, 0], [1, 3])) == "DONE"
    assert [i for i, block in enumerate(blocks(two.mine)) if any(block)] == [0, 6]
    assert blocks(two.mine)[6] == before[1] and blocks(two.mine)[0] == before[3]
    assert blocks(two.theirs) == before

    two.mine[:L] = 7
    assert two.a.transfer(two.make([0], [7], "WRITE")) == "DONE"
    assert blocks(two.theirs) == [*before[:7], [7] * L]


def naive_count(ids: list[tuple[int, int]], local: list[list[int]], remote: list[list[int]]) -> int:
    """NIXL's rule, counted out: `local` and `remote` list the ids of each dense row."""
    count = 0
    for i, (x, y) in enumerate(ids):
        joined = i > 0 and any(
            x in row and y in other and (x - 1, y - 1) == ids[i - 1] and x - 1 in row and y - 1 in other
            for row in local
            for other in remote
        )
        count += not joined
    return count


@given(st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), min_size=1, max_size=24), st.data())
def test_bytes_and_operations_equal_a_naive_count(ids: list[tuple[int, int]], data: st.DataObject) -> None:
    """Both sides cut into rows anywhere, some of them padded rows of every other block."""
    two = Two()
    rows: list[list[list[int]]] = []
    lists = []
    for name, start in (("", two.at_mine), ("b", two.at_theirs)):
        cuts = sorted(data.draw(st.sets(st.integers(1, N - 1))))
        spans = list(zip([0, *cuts], [*cuts, N], strict=True))
        lists.append(two.a.prep_xfer_dlist(name, table(*((start + L * i, L, 0, L, j - i) for i, j in spans)), "DRAM"))
        rows.append([list(range(i, j)) for i, j in spans])
    before, want = blocks(two.theirs), blocks(two.mine)
    xfer = two.a.make_prepped_xfer(
        "READ", lists[0], np.array([x for x, _ in ids], np.int32), lists[1], [y for _, y in ids]
    )
    two.a.transfer(xfer)
    for x, y in ids:
        want[x] = before[y]
    assert blocks(two.mine) == want
    told = two.a.get_xfer_telemetry(xfer)
    assert told.descCount == naive_count(ids, *rows)
    assert told.totalBytes == len(ids) * L


def test_padded_rows_never_join_and_may_lie_between_other_bytes() -> None:
    two = Two()
    local = two.a.prep_xfer_dlist("", table((two.at_mine, L, 0, 2 * L, N // 2)), "DRAM")
    xfer = two.a.make_prepped_xfer("READ", local, [0, 1, 2], two.remote, [0, 1, 2])
    two.a.transfer(xfer)
    assert two.a.get_xfer_telemetry(xfer).descCount == 3
    assert [any(block) for block in blocks(two.mine)] == [True, False, True, False, True, False, False, False]


@pytest.mark.parametrize(
    ("offsets", "ids", "count"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], 1),
        ([0, 1, 2, 3], [3, 2, 1, 0], 4),
        ([0, 2, 3, 4], [1, 2], 2),  # 0 and 2 became a row of stride 2, so 3 begins another
        ([2, 0, 1], [1, 2], 1),
        ([0, 5, 6, 7], [1, 2, 3], 2),
        ([0, 0, 1], [1, 2], 1),
    ],
)
def test_dense_lists_are_folded_as_nixl_folds_them(offsets: list[int], ids: list[int], count: int) -> None:
    """Counts measured with nixl 1.5.1 and 1.4.1."""
    two = Two()
    lists = [
        two.a.prep_xfer_dlist(name, table(*((start + L * k, L, 0) for k in offsets)), "DRAM")
        for name, start in (("", two.at_mine), ("b", two.at_theirs))
    ]
    xfer = two.a.make_prepped_xfer("READ", lists[0], ids, lists[1], ids)
    two.a.transfer(xfer)
    assert two.a.get_xfer_telemetry(xfer).descCount == count


def test_bytes_and_message_arrive_with_the_last_poll() -> None:
    two = Two()
    two.a.polls = 2
    xfer = two.make([0], [0], message=b"here")
    assert two.a.transfer(xfer) == "PROC"
    assert two.a.check_xfer_state(xfer) == "PROC"
    assert not two.mine.any() and two.b.get_new_notifs() == {}
    assert two.a.check_xfer_state(xfer) == "DONE"
    assert blocks(two.mine)[0] == blocks(two.theirs)[0]
    assert two.b.get_new_notifs() == {"a": [b"here"]}
    assert two.b.get_new_notifs() == {}


def test_releasing_in_flight_cancels() -> None:
    two = Two()
    two.a.polls = math.inf
    xfer = two.make([0], [0], message=b"never")
    two.a.transfer(xfer)
    two.a.release_xfer_handle(xfer)
    assert two.a.live()["xfers"] == 0
    assert not two.mine.any() and two.b.get_new_notifs() == {}


def test_a_transfer_can_be_posted_again_with_another_message() -> None:
    two = Two()
    xfer = two.make([0], [0], message=b"one")
    two.a.transfer(xfer)
    two.theirs[:] = 9
    two.a.transfer(xfer)
    two.a.transfer(xfer, "two")
    assert blocks(two.mine)[0] == [9] * L
    assert two.b.get_new_notifs() == {"a": [b"one", b"one", b"two"]}


def test_notifications_are_looked_up_and_lost() -> None:
    two = Two()
    for message in (b"req-1:x", b"req-2:y", bytearray(b"z:req-3"), "text"):
        two.a.send_notif(b"b", message)  # type: ignore[arg-type]
    assert not two.b.check_remote_xfer_done("a", b"req-3")
    assert two.b.check_remote_xfer_done("a", b"req-3", tag_is_prefix=False)
    assert two.b.check_remote_xfer_done("a", b"req-1")
    assert not two.b.check_remote_xfer_done("nobody", b"")
    assert two.b.update_notifs() == {"a": [b"req-2:y", b"text"]}

    two.a.lose_notifs = 1
    two.a.send_notif("b", b"lost")
    two.a.send_notif("b", b"kept")
    assert two.b.get_new_notifs() == {"a": [b"kept"]}
    two.a.send_notif("a", b"to myself")
    assert two.a.get_new_notifs() == {"a": [b"to myself"]}


def test_pretended_vram_of_one_device_is_not_that_of_another() -> None:
    two = Two("VRAM")
    assert two.a.transfer(two.make([0], [0])) == "DONE"
    with pytest.raises(LoopbackError, match=r"row 0: VRAM .* of device 1 is not inside one registered range"):
        two.a.prep_xfer_dlist("", table((two.at_mine, L, 1, L, N)), "VRAM")
    with pytest.raises(LoopbackError, match=r"DRAM .* is not inside one registered range"):
        two.a.prep_xfer_dlist("", table((two.at_mine, L, 0, L, N)), "DRAM")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Callable[[int], int]]:
    """Opens one file as often as asked, with the flags given."""
    opened = []

    def opener(flags: int) -> int:
        opened.append(os.open(tmp_path / "blocks", flags | os.O_CREAT))
        return opened[-1]

    yield opener
    for fd in opened:
        os.close(fd)


def test_files_take_blocks_and_give_them_back(file: Callable[[int], int]) -> None:
    two = Two()

    def prepared(fd: int, owner: str) -> Any:
        two.a.register_memory([(0, N * L, fd, "")], "FILE")
        return two.a.prep_xfer_dlist(owner, table((0, L, fd, L, N)), "FILE")

    blob = prepared(file(os.O_RDWR), "a")
    two.mine[:] = painted(N * L, 3)
    before = blocks(two.mine)
    assert two.a.transfer(two.a.make_prepped_xfer("WRITE", two.local, [5, 2], blob, [0, 1])) == "DONE"
    assert os.pread(file(os.O_RDONLY), 99, 0) == bytes(before[5] + before[2])
    assert two.a.transfer(two.a.make_prepped_xfer("READ", two.local, [7], blob, [1])) == "DONE"
    assert blocks(two.mine) == [*before[:7], before[2]]

    for operation, side, words in (
        ("READ", blob, "NIXL_ERR_BACKEND: file descriptor [0-9]+: 16 bytes wanted at 32, 0 there"),
        ("READ", prepared(file(os.O_WRONLY), "a"), "NIXL_ERR_BACKEND: reading file descriptor"),
        ("WRITE", prepared(file(os.O_RDONLY), "a"), "NIXL_ERR_BACKEND: writing file descriptor"),
    ):
        xfer = two.a.make_prepped_xfer(operation, two.local, [0], side, [2])
        with pytest.raises(LoopbackError, match=words):
            two.a.transfer(xfer)
    with pytest.raises(LoopbackError, match="NIXL_ERR_BACKEND: a transfer with FILE carries no notification"):
        two.a.make_prepped_xfer("READ", two.local, [0], blob, [0], b"message")
    local = prepared(file(os.O_RDONLY), "")
    with pytest.raises(LoopbackError, match="NIXL_ERR_INVALID_PARAM: the local side must be memory, not FILE"):
        two.a.make_prepped_xfer("READ", local, [0], blob, [0])
    with pytest.raises(LoopbackError, match="NIXL_ERR_NOT_FOUND: row 0: FILE"):
        two.a.prep_xfer_dlist("b", table((0, L, 0, L, N)), "FILE")


def test_failures_come_when_they_were_told_to() -> None:
    two = Two()
    two.a.fail("make", "NIXL_ERR_UNKNOWN", after=1, times=2)
    two.make([0], [0])
    for _ in range(2):
        with pytest.raises(LoopbackError, match="NIXL_ERR_UNKNOWN: told to fail at make"):
            two.make([0], [0])
    xfer = two.make([0], [0], message=b"never")
    two.a.polls = 1
    two.a.fail("poll", "ERR")
    assert [two.a.transfer(xfer), two.a.check_xfer_state(xfer), two.a.check_xfer_state(xfer)] == ["PROC", "ERR", "ERR"]
    two.a.fail("post")
    with pytest.raises(LoopbackError, match="NIXL_ERR_BACKEND: told to fail at post"):
        two.a.transfer(two.make([0], [0], message=b"never"))
    assert not two.mine.any() and two.b.get_new_notifs() == {}
    with pytest.raises(ValueError, match="step 'nap' is not one of register, "):
        two.a.fail("nap")
    with pytest.raises(ValueError, match="make returns no status"):
        two.a.fail("make", "ERR")


def test_a_refused_release_leaves_the_handle() -> None:
    two = Two()
    xfer = two.make([0], [0])
    for step, release in (("release_xfer", xfer.release), ("release_dlist", two.local.release)):
        two.a.fail(step, "NIXL_ERR_REPOST_ACTIVE")
        before = two.a.live()
        with pytest.raises(LoopbackError, match=f"told to fail at {step}"):
            release()
        assert two.a.live() == before
        release()
        assert two.a.live() != before


def test_the_journal_tells_what_was_asked_in_order() -> None:
    two = Two()
    two.a.transfer(two.make([0], [0]))
    assert [step for step, _ in two.a.journal] == ["register", "prep", "prep", "make", "post"]
    assert two.a.journal[3] == ("make", "READ DRAM DRAM")
    assert repr(two.a) == "LoopbackAgent('a', {'ranges': 1, 'dlists': 2, 'xfers': 1})"


# ---------------------------------------------------------------------- objects


class Objects:
    """An agent with a buffer of four blocks, and objects 7 (key "alpha") and 8 of four blocks."""

    def __init__(self) -> None:
        self.agent = LoopbackAgent("o")
        self.memory = painted(4 * L, 3)
        self.agent.register_memory([(self.memory.ctypes.data, 4 * L, 0, "")], "DRAM")
        self.agent.register_memory([(0, 4 * L, 7, "alpha"), (0, 4 * L, 8, "")], "OBJ")

    def run(self, operation: str, rows: Any, ids: list[int], object_ids: list[int]) -> Any:
        local = self.agent.prep_xfer_dlist("", table((self.memory.ctypes.data, L, 0, L, 4)), "DRAM")
        remote = self.agent.prep_xfer_dlist("o", table(*rows), "OBJ")
        xfer = self.agent.make_prepped_xfer(operation, local, ids, remote, object_ids)
        return self.agent.transfer(xfer)


def test_objects_are_written_whole_and_read_in_ranges() -> None:
    world = Objects()
    before = bytes(world.memory)
    assert world.run("WRITE", [(0, L, 7, L, 4)], [0, 1, 2, 3], [0, 1, 2, 3]) == "DONE"  # neighbours: one operation
    assert world.run("WRITE", [(0, L, 8, L, 4)], [2], [0]) == "DONE"
    assert world.agent.bucket == {"alpha": before, "8": before[2 * L : 3 * L]}
    world.memory[:] = 0
    assert world.run("READ", [(0, L, 7, 2 * L, 2), (0, L, 8, L, 4)], [3, 0, 1], [1, 0, 2]) == "DONE"
    assert bytes(world.memory) == before[:L] + before[2 * L : 3 * L] + bytes(L) + before[2 * L : 3 * L]


def test_agents_share_a_bucket() -> None:
    world, other = Objects(), Objects()
    other.agent.bucket = world.agent.bucket
    world.run("WRITE", [(0, L, 8, L, 4)], [1], [0])
    assert other.run("READ", [(0, L, 8, L, 4)], [0], [0]) == "DONE"


@pytest.mark.parametrize(
    ("operation", "ids", "words"),
    [
        ("WRITE", [1], "object 7 is written at offset 16; a WRITE replaces an object whole"),
        ("WRITE", [0, 2], "object 7 is written at offset 32"),
        ("WRITE", [0, 0], "object 7 is written twice in one transfer"),
        ("READ", [1], "object 'alpha': 16 bytes wanted at 16, it has 16"),
    ],
)
def test_objects_in_pieces_are_refused(operation: str, ids: list[int], words: str) -> None:
    world = Objects()
    with pytest.raises(LoopbackError, match="NIXL_ERR_BACKEND: there is no object 'alpha'"):
        world.run("READ", [(0, L, 7, L, 4)], [0], [0])
    world.run("WRITE", [(0, L, 7, L, 4)], [0], [0])
    with pytest.raises(LoopbackError, match=f"NIXL_ERR_BACKEND: {words}"):
        world.run(operation, [(0, L, 7, L, 4)], ids, ids)


def test_one_object_has_one_key() -> None:
    world = Objects()
    with pytest.raises(LoopbackError, match="NIXL_ERR_NOT_ALLOWED: device 7 is object 'alpha' already, not 'beta'"):
        world.agent.register_memory([(0, L, 7, "beta")], "OBJ")
    assert world.agent.live()["ranges"] == 3


def test_memory_is_spelled_as_nixl_spells_it() -> None:
    two = Two("cpu")
    assert two.a.transfer(two.make([0], [1])) == "DONE"
    assert two.a.prep_xfer_dlist("", table((two.at_mine, L, 0, L, 1)), "DRAM").rows.mem_type == "DRAM"
    assert Two("cuda").local.rows.mem_type == "VRAM"
