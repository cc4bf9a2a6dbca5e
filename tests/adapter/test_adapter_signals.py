"""Signal handlers that come in the middle of a call: they are safe, or are told at once that it is busy."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engines import SIDES, Engine, L, N, Pair, moved, shifted

from nixldesc import TransferError
from nixldesc.adapter import prepare


@pytest.fixture(params=SIDES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


@contextmanager
def in_the_middle_of(agent: Any, call: str, act: Callable[[], object], *, before: bool = True) -> Iterator[list[Any]]:
    """Let a signal come inside a call of the agent, whose handler does `act`; what it gave, or its error."""
    results: list[Any] = []
    come: list[bool] = []

    def handler(number: int, frame: object) -> None:
        try:
            results.append(act())
        except Exception as e:
            results.append(e)

    real = getattr(agent, call)

    def interrupted(*args: Any, **more: Any) -> Any:
        if before and not come:
            come.append(True)
            signal.raise_signal(signal.SIGUSR1)
        result = real(*args, **more)
        if not before and not come:
            come.append(True)
            signal.raise_signal(signal.SIGUSR1)
        return result

    old = signal.signal(signal.SIGUSR1, handler)
    setattr(agent, call, interrupted)
    try:
        yield results
    finally:
        setattr(agent, call, real)
        signal.signal(signal.SIGUSR1, old)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("method", ["poll", "wait", "release", "abandon", "peer release"])
def test_a_handler_in_the_middle_of_a_poll(pair: Pair, method: str, before: bool) -> None:
    pair.mine.polls = 5
    transfer = pair.peer.start([[3]], [[0]], notify=b"done")
    acts: dict[str, Callable[[], object]] = {
        "poll": transfer.poll,
        "wait": transfer.wait,
        "release": transfer.release,
        "abandon": pair.peer.abandon,
        "peer release": pair.peer.release,
    }
    with in_the_middle_of(pair.mine, "check_xfer_state", acts[method], before=before) as results:
        assert transfer.wait(10) == "DONE"
    (result,) = results
    if method == "poll":
        assert result == "PROC"
    else:
        assert isinstance(result, TransferError)
        assert ("1 transfers are still in flight" if method == "peer release" else f"is busy: {method}()") in str(
            result
        )
    assert pair.theirs.get_new_notifs() == {pair.mine.name: [b"done"]}
    transfer.release()
    if method == "abandon":  # what it refused to do, it can be asked again
        pair.peer.abandon()
    else:
        pair.peer.release()
    pair.leave()


@pytest.mark.parametrize("method", ["release", "peer release"])
def test_a_handler_in_the_middle_of_a_release(pair: Pair, method: str) -> None:
    transfer = pair.peer.start([[3]], [[0]])
    act = transfer.release if method == "release" else pair.peer.release
    with in_the_middle_of(pair.mine, "release_xfer_handle", act) as results:
        transfer.release()
    assert isinstance(results[0], TransferError) and "is busy: release()" in str(results[0])
    assert len(pair.steps("release_xfer")) == 2  # each handle once
    pair.close()


def test_a_handler_may_start_another_transfer(pair: Pair) -> None:
    with in_the_middle_of(pair.mine, "transfer", lambda: pair.peer.start([[4]], [[1]])) as results:
        with pair.peer.start([[3]], [[0]]) as transfer:
            assert transfer.wait(10) == "DONE"
    with results[0] as other:
        assert other.wait(10) == "DONE"
    assert moved(pair, [3, 4], [0, 1])
    pair.close()


def test_a_handler_that_releases_the_peer_while_a_transfer_is_made(pair: Pair) -> None:
    with in_the_middle_of(pair.mine, "make_prepped_xfer", pair.peer.release) as results:
        with pair.peer.start([[3]], [[0]]) as transfer:
            assert transfer.wait(10) == "DONE"
    assert "1 transfers are still in flight" in str(results[0])
    pair.close()


def test_a_handler_in_the_middle_of_prepare_and_of_a_peers_release(pair: Pair) -> None:
    third = Engine("third", 5)
    pair.mine.add_remote_agent(third.agent.get_agent_metadata())

    def prepare_another() -> object:
        return prepare(pair.mine, "third", (third.layout.select(["k"]), third.layout.select(["k"])))

    fresh = [
        (shifted(s.select([s.regions[0].name])), shifted(d.select([d.regions[0].name]))) for s, d in pair.peer.pairs
    ]
    for act in prepare_another, (pair.d if pair.local == "dst" else pair.p).registration.release:
        with in_the_middle_of(pair.mine, "prep_xfer_dlist", act) as results:
            prepare(pair.mine, pair.theirs.name, fresh, local=pair.local).release()
        assert "prepared lists are busy" in str(results[0])
    with in_the_middle_of(pair.mine, "release_dlist_handle", prepare_another) as results:
        pair.peer.release()
    assert "prepared lists are busy" in str(results[0])
    third.registration.release()
    pair.leave()
    assert N * L == len(third.k)
