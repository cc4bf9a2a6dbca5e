"""The adapter when NIXL fails: what is told, what is drained, what is left."""

from __future__ import annotations

from typing import Any

import pytest
from engines import SIDES, Pair, moved

from nixldesc import (
    TransferError,
)


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def assert_failed(pair: Pair, error: TransferError | None, mems: str, step: str, status: str) -> None:
    """The error's words, and that nothing is left behind."""
    words = f"peer {pair.theirs.name!r}, {pair.peer.operation} {mems}: {step} failed with {status}"
    assert isinstance(error, TransferError)
    assert str(error).startswith(words)
    assert pair.mine.live()["xfers"] == 0
    assert pair.theirs.get_new_notifs() == {}
    # The prepared lists are good for the next request.
    with pair.peer.start([[6]], [[4]], notify=b"next") as transfer:
        assert transfer.wait(10) == "DONE"
    assert moved(pair, [6], [4])
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"next"]}
    pair.close()


@pytest.mark.parametrize(("after", "mems"), [(0, "DRAM to DRAM"), (1, "VRAM to VRAM")])
def test_a_handle_that_cannot_be_made(pair: Pair, after: int, mems: str) -> None:
    pair.mine.fail("make", "NIXL_ERR_UNKNOWN", after=after)
    with pytest.raises(TransferError) as caught:
        pair.peer.start([[3]], [[0]], notify=b"never")
    assert getattr(caught.value.__cause__, "status", "") == "NIXL_ERR_UNKNOWN"
    assert pair.steps("post") == []
    assert_failed(pair, caught.value, mems, "make", "NIXL_ERR_UNKNOWN")


@pytest.mark.parametrize("status", ["NIXL_ERR_REMOTE_DISCONNECT", "ERR"])
@pytest.mark.parametrize(("after", "mems"), [(0, "DRAM to DRAM"), (1, "VRAM to VRAM")])
def test_a_handle_that_cannot_be_posted(pair: Pair, after: int, mems: str, status: str) -> None:
    pair.mine.polls = 2
    pair.mine.fail("post", status, after=after)
    transfer = pair.peer.start([[3]], [[0]], notify=b"never")
    # What was posted before it is drained, and only then is the transfer over.
    assert [transfer.poll() for _ in range(3)] == (["PROC", "ERR", "ERR"] if after else ["ERR"] * 3)
    assert pair.mine.live()["xfers"] == 0
    transfer.release()
    pair.mine.polls = 0
    assert_failed(pair, transfer.error, mems, "post", status)


@pytest.mark.parametrize("status", ["NIXL_ERR_REMOTE_DISCONNECT", "ERR"])
@pytest.mark.parametrize(("after", "mems"), [(0, "DRAM to DRAM"), (1, "VRAM to VRAM")])
def test_a_handle_that_fails_under_way(pair: Pair, after: int, mems: str, status: str) -> None:
    pair.mine.polls = 3
    pair.mine.fail("poll", status, after=after)
    transfer = pair.peer.start([[3]], [[0]], notify=b"never")
    assert [transfer.poll() for _ in range(2)] == ["PROC", "PROC"]
    assert transfer.error is None  # not yet: the other handle still moves bytes
    assert pair.mine.live()["xfers"] == 2
    assert transfer.wait(10) == "ERR"
    assert pair.mine.live()["xfers"] == 0
    with transfer:
        pass
    pair.mine.polls = 0
    assert_failed(pair, transfer.error, mems, "poll", status)


def test_the_first_failure_is_told(pair: Pair) -> None:
    pair.mine.polls = 2
    pair.mine.fail("poll", "NIXL_ERR_CANCELED", after=1)
    pair.mine.fail("poll", "NIXL_ERR_BACKEND", after=0)
    transfer = pair.peer.start([[3]], [[0]], notify=b"never")
    assert transfer.wait(10) == "ERR"
    transfer.release()
    pair.mine.polls = 0
    assert_failed(pair, transfer.error, "DRAM to DRAM", "poll", "NIXL_ERR_BACKEND")


@pytest.mark.parametrize("blocks", [[3], []])
def test_a_notification_that_cannot_be_sent(pair: Pair, blocks: list[int]) -> None:
    pair.mine.fail("notify", "NIXL_ERR_REMOTE_DISCONNECT")
    with pair.peer.start([blocks], [blocks], notify=b"never") as transfer:
        assert transfer.poll() == "ERR"
    words = f"peer {pair.theirs.name!r}, {pair.peer.operation}"
    mems = " DRAM to DRAM, VRAM to VRAM" if blocks else ""
    assert str(transfer.error).startswith(f"{words}{mems}: notify failed with NIXL_ERR_REMOTE_DISCONNECT")
    assert pair.mine.live()["xfers"] == 0
    assert pair.theirs.get_new_notifs() == {}
    pair.close()


def test_a_handle_that_nixl_will_not_release_is_tried_again(pair: Pair) -> None:
    transfer = pair.peer.start([[3]], [[0]])
    pair.mine.fail("release_xfer", "NIXL_ERR_REPOST_ACTIVE")
    with pytest.raises(TransferError, match="VRAM to VRAM: release failed with NIXL_ERR_REPOST_ACTIVE"):
        transfer.release()
    assert pair.mine.live()["xfers"] == 1  # the other is released all the same
    transfer.release()
    assert pair.mine.live()["xfers"] == 0
    pair.close()


@pytest.mark.parametrize("step", ["make", "post"])
def test_what_a_failure_could_not_release_is_left_to_the_peer(pair: Pair, step: str) -> None:
    pair.mine.fail(step, after=1)
    pair.mine.fail("release_xfer", "NIXL_ERR_REPOST_ACTIVE", times=1)
    if step == "make":
        with pytest.raises(TransferError, match="make failed with NIXL_ERR_BACKEND"):
            pair.peer.start([[3]], [[0]])
    else:
        transfer = pair.peer.start([[3]], [[0]])
        assert transfer.poll() == "ERR"
        assert len(transfer.handles) == 1
        transfer.release()
    pair.close()


def test_an_interrupt_while_making_leaves_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    make = pair.mine.make_prepped_xfer

    def interrupted(operation: str, *args: Any) -> Any:
        if pair.mine.live()["xfers"]:
            raise KeyboardInterrupt
        return make(operation, *args)

    with monkeypatch.context() as patch:
        patch.setattr(pair.mine, "make_prepped_xfer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.peer.start([[3]], [[0]], notify=b"never")
    assert pair.mine.live()["xfers"] == 0
    pair.close()


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_while_posting_is_drained(pair: Pair, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    post = pair.mine.transfer

    def interrupted(handle: Any) -> str:
        if len(pair.steps("post")) == 1:
            if begun:
                post(handle)
            raise KeyboardInterrupt
        return post(handle)

    pair.mine.polls = 2
    with monkeypatch.context() as patch:
        patch.setattr(pair.mine, "transfer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.peer.start([[3]], [[0]], notify=b"never")
    assert pair.mine.live()["xfers"] == 2  # NIXL may be moving their bytes
    pair.peer.release(timeout=10)
    if begun:
        assert moved(pair, [3], [0])  # it was waited for, not cancelled
    assert pair.theirs.get_new_notifs() == {}
    pair.close()


def test_an_interrupt_while_notifying_is_not_repeated(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    send = pair.mine.send_notif

    def interrupted(name: str, message: bytes) -> None:
        send(name, message)
        raise KeyboardInterrupt

    pair.mine.polls = 1
    transfer = pair.peer.start([[3]], [[0]], notify=b"once")
    with monkeypatch.context() as patch:
        patch.setattr(pair.mine, "send_notif", interrupted)
        with pytest.raises(KeyboardInterrupt):
            transfer.wait(10)
    assert transfer.wait(10) == "ERR"
    assert str(transfer.error).endswith("DRAM to DRAM, VRAM to VRAM: notify failed with KeyboardInterrupt")
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"once"]}
    transfer.release()
    pair.close()
