"""Starts the two engines, shows what they do, and ends them whatever happens: nothing here waits for ever."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, TypeAlias

from nixldesc._cli.demo.wire import PATIENCE, Channel, Gone
from nixldesc._cli.screen import Screen
from nixldesc.errors import TransferError

__all__ = ["DemoError", "EngineMain", "run_engines"]

#: (kind of agents, channel to the other engine, tell) -> the engine's figures.
EngineMain: TypeAlias = Callable[[str, Channel, Callable[[str], None]], "dict[str, Any]"]
#: An engine that says nothing for so long (a NIXL call that does not return) is ended.
SILENCE = 2 * PATIENCE


class DemoError(Exception):
    """An engine that failed, crashed or fell silent."""


class _Event(NamedTuple):
    """What an engine says: "doing" something, or, as its last word, "done", "gone" (the peer) or "failed"."""

    kind: str
    what: Any
    at: float  # time.monotonic(), which all processes of a machine share


@dataclass(slots=True)
class _Worker:
    name: str
    events: Connection
    process: BaseProcess | None
    last: str = "starting"
    result: dict[str, Any] | None = None

    def next_event(self) -> _Event:
        """Return the next event; "failed" where the worker ended without a last one, and before any other failed."""
        try:
            return _Event(*self.events.recv())
        except EOFError:
            return _Event("failed", self.end_words(), 0.0)

    def end_words(self) -> str:
        """Return how the worker ended."""
        if self.process is None:
            return "its thread ended"
        self.process.join(5.0)
        code = self.process.exitcode
        if code is None:
            return "it says no more and goes on"
        return f"its process was ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"


def run_engines(screen: Screen, kind: str, mains: Mapping[str, EngineMain], *, processes: bool) -> dict[str, Any]:
    """Run both engines, in processes or in threads, and return the last one's figures; DemoError if one fails."""
    workers = [_start(*of, kind, end, processes) for of, end in zip(mains.items(), Pipe(), strict=True)]
    try:
        _watch(workers, screen)
        _see_off(workers)
    finally:
        for worker in workers:
            if worker.process is not None and worker.process.is_alive():
                worker.process.kill()
                worker.process.join(5.0)
            worker.events.close()
        screen.close()
    return workers[-1].result or {}


def _start(name: str, main: EngineMain, kind: str, end: Connection, process_of_its_own: bool) -> _Worker:
    events, far = Pipe(duplex=False)
    args = main, kind, end, far
    if not process_of_its_own:
        threading.Thread(target=_work, args=args, name=name, daemon=True).start()
        return _Worker(name, events, None)
    # Spawn: a fork would copy NIXL's and UCX's threads half dead.
    process = multiprocessing.get_context("spawn").Process(target=_in_process, args=args, name=name, daemon=True)
    process.start()
    end.close()
    far.close()  # so that the end of the process is the end of its events
    return _Worker(name, events, process)


def _in_process(main: EngineMain, kind: str, end: Connection, events: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who watches decides
    _work(main, kind, end, events)


def _work(main: EngineMain, kind: str, end: Connection, events: Connection) -> None:
    """Run an engine; its last event is its result or its failure."""
    channel = Channel(end)

    def tell(kind: str, what: Any) -> None:
        with suppress(OSError):  # nobody watches any more
            events.send((kind, what, time.monotonic()))

    try:
        tell("done", main(kind, channel, lambda text: tell("doing", text)))
    except (Gone, TransferError) as error:
        # A transfer fails, too, when the peer's agent goes; the peer may not have said why yet.
        tell("gone", str(error))
    except BaseException as error:
        # Told while the traceback holds the engine's agents: once they go, the peer fails too.
        where = traceback.extract_tb(error.__traceback__)[-1]
        tell("failed", f"{type(error).__name__}: {error} (in {where.name}, line {where.lineno})")
    channel.close()
    events.close()


def _watch(workers: list[_Worker], screen: Screen) -> None:
    """Show events until both engines are at their end; DemoError if one failed.

    Who lost its peer is believed last: the peer, or the end of its process, says why. Of two that failed the first is
    believed: the end of its agents may be all that is wrong with the other.
    """
    at_work = list(workers)
    lost: list[str] = []
    heard = time.monotonic()
    while at_work:
        ends = [worker.events for worker in at_work]
        wait(ends, timeout=1.0)
        ready = wait(ends, timeout=0)  # again: an event sent before the one that woke this is there by now
        told = [(worker, worker.next_event()) for worker in at_work if worker.events in ready]
        for worker, event in sorted(told, key=lambda one: one[1].at):
            heard = time.monotonic()
            if event.kind == "failed":
                raise DemoError(f"{worker.name}: {event.what} (while {worker.last})")
            if event.kind == "doing":
                worker.last = event.what
                screen.progress(f"{worker.name}: {event.what}")
                continue
            if event.kind == "done":
                worker.result = event.what
            else:
                lost.append(f"{worker.name}: {event.what} (while {worker.last})")
            at_work.remove(worker)
        if time.monotonic() - heard > SILENCE:
            silent = ", ".join(f"{worker.name} (while {worker.last})" for worker in at_work)
            raise DemoError(f"nothing happens for {SILENCE:.0f} s: {silent}")
    if lost:
        raise DemoError("; ".join(lost))


def _see_off(workers: list[_Worker]) -> None:
    """A process whose work is done must also end well."""
    for worker in workers:
        if worker.process is not None:
            worker.process.join(PATIENCE)
            if worker.process.exitcode != 0:
                raise DemoError(f"{worker.name}: its work was done, but {worker.end_words()}")
