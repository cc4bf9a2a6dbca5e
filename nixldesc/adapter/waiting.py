"""Waiting for transfers: with a limit, in an asyncio loop, at the end of the interpreter.

NIXL calls nobody back: whoever waits asks, again and again, at growing intervals.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any, Protocol

from nixldesc.adapter.agent import Status

__all__ = ["EXIT_SECONDS", "LAST_SECONDS", "Polled", "settle", "wait_while"]

#: How long a ``with`` block that ends well waits for what is still in flight.
EXIT_SECONDS = 30.0

#: How long the interpreter's end does: its next step frees memory that NIXL may be writing to.
LAST_SECONDS = 5.0

_FIRST_PAUSE, _LONGEST_PAUSE = 1e-5, 1e-3


class Polled(Protocol):
    """Something that tells its state when asked."""

    def poll(self) -> Status:
        """Return the state, after a look."""
        ...


def wait_while(busy: Callable[[], int], timeout: float | None) -> int:
    """Ask until `busy()` is 0, at most `timeout` seconds (None: for ever); return its last answer.

    >>> answers = iter([2, 1, 0])
    >>> wait_while(lambda: next(answers), timeout=10), wait_while(lambda: 3, timeout=0)
    (0, 3)
    """
    left = busy()
    if not left:
        return 0
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = 0.0
    while left and (deadline is None or time.monotonic() < deadline):
        time.sleep(pause)
        pause = min(pause * 2 or _FIRST_PAUSE, _LONGEST_PAUSE)
        left = busy()
    return left


class _Poller:
    """All that one event loop awaits, asked in one go: a loop with many transfers has one timer, not many.

    The pause grows while nothing happens and is always several times what the asking took, so the loop stays free.
    """

    __slots__ = ("_awaited", "_pause")

    def __init__(self) -> None:
        self._awaited: dict[asyncio.Future[Status], Polled] = {}
        self._pause = 0.0

    def add(self, loop: asyncio.AbstractEventLoop, polled: Polled) -> asyncio.Future[Status]:
        future: asyncio.Future[Status] = loop.create_future()
        future.add_done_callback(lambda future: self._awaited.pop(future, None))  # also where the loop ends before us
        if not self._awaited:
            loop.call_soon(self._ask)
        self._awaited[future] = polled
        self._pause = 0.0
        return future

    def _ask(self) -> None:
        began = time.monotonic()
        for future, polled in tuple(self._awaited.items()):
            if not future.done():  # cancelled, and nobody else's business
                try:
                    state = polled.poll()
                except Exception as e:
                    future.set_exception(e)
                else:
                    if state == "PROC":
                        continue
                    future.set_result(state)
            del self._awaited[future]
        if self._awaited:
            loop = next(iter(self._awaited)).get_loop()
            self._pause = min(self._pause * 2 or _FIRST_PAUSE, _LONGEST_PAUSE)
            loop.call_later(max(self._pause, 4 * (time.monotonic() - began)), self._ask)


# A loop is gone when its owner drops it; futures know their loop, so an entry with some is kept by the loop's timer.
_pollers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Poller] = weakref.WeakKeyDictionary()


def settle(polled: Polled) -> Generator[Any, None, Status]:
    """Suspend the running task until `polled` is no longer "PROC"; returns that state. For ``__await__``."""
    state = polled.poll()
    if state != "PROC":
        return state
    loop = asyncio.get_running_loop()
    return (yield from _pollers.setdefault(loop, _Poller()).add(loop, polled))
