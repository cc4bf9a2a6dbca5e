"""One request under way: one or several NIXL handles, one progress, one notification.

A request needs several handles when it touches several pairs of memory types (a list of NIXL has one memory type).
They are all made before the first is posted, so that what NIXL refuses is refused before any byte moves; and the
request is over only when the last of them is, also when one has failed: after "ERR" as after "DONE" nothing writes to
the request's memory any more.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from threading import Lock
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol

from nixldesc.errors import TransferError

__all__ = ["Agent", "Flight", "Leg", "Route", "Status", "Transfer", "failure", "wait_until"]

Status = Literal["PROC", "DONE", "ERR"]

#: How long a ``with`` block waits at its end for what is still in flight.
EXIT_SECONDS = 30.0

# NIXL takes a notification into a handle only when one backend moves both sides and can notify. Backends for storage
# cannot (nixl 1.5.1, POSIX plugin: NIXL_ERR_BACKEND at make_prepped_xfer).
_MEMORY = ("DRAM", "VRAM")


class Agent(Protocol):
    """What is used of ``nixl.nixl_agent`` (nixl 1.4 and 1.5); LoopbackAgent has it too."""

    def register_memory(self, reg_list: Any, mem_type: str) -> Any: ...
    def deregister_memory(self, dereg_list: Any) -> None: ...
    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: str) -> Any: ...
    def release_dlist_handle(self, handle: Any) -> None: ...
    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: Any,
        local_indices: Any,
        remote_xfer_side: Any,
        remote_indices: Any,
        notif_msg: bytes,
    ) -> Any: ...
    def transfer(self, handle: Any) -> str: ...
    def check_xfer_state(self, handle: Any) -> str: ...
    def release_xfer_handle(self, handle: Any) -> None: ...
    def send_notif(self, remote_agent_name: str, notif_msg: bytes) -> None: ...


class Leg(NamedTuple):
    """One pair of prepared lists and the ids that a request takes of them."""

    route: Route
    local_list: Any
    local_ids: Any
    remote_list: Any
    remote_ids: Any


class Route(NamedTuple):
    """The memory types of one pair of lists: in words, and whether NIXL can carry a notification along."""

    words: str
    carries: bool

    @classmethod
    def of(cls, src: str, dst: str) -> Route:
        return cls(f"{src} to {dst}", src in _MEMORY and dst in _MEMORY)


def failure(peer_name: str, what: str, step: str, why: BaseException | str, advice: str = "") -> TransferError:
    """Return the TransferError of a step that NIXL refused; its cause is NIXL's exception.

    NIXL raises classes of its own whose text is the status word; whatever else comes keeps its class in the message.
    The cause loses its traceback, which would hold this library's frames, and so handles and lists, in a cycle.
    """
    words = str(why).partition("\n")[0][:200]
    if isinstance(why, BaseException) and not words.startswith("NIXL_"):
        words = f"{type(why).__name__}: {words}" if words else type(why).__name__
    error = TransferError(f"peer {peer_name!r}, {what}: {step} failed with {words}{advice}")
    if isinstance(why, BaseException):
        error.__cause__ = why.with_traceback(None)
    return error


def wait_until(settled: Callable[[], bool], timeout: float | None) -> bool:
    """Ask until `settled()`, at most `timeout` seconds (None: for ever); asking moves NIXL's transfers on."""
    if settled():
        return True
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = 0.0
    while not settled():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2 or 1e-5, 1e-3)
    return True


class Flight:
    """The handles of one request, from the first made to the last released.

    Its lock is held while it calls NIXL, so no handle is ever used by two threads at once, and the notification is
    sent by the one thread that finds the last handle done.
    """

    __slots__ = ("_agent", "_handles", "_lock", "_notify", "_operation", "_peer_name", "_waiting", "error", "state")

    def __init__(self, agent: Agent, peer_name: str, operation: str) -> None:
        self._agent = agent
        self._peer_name = peer_name
        self._operation = operation
        self._handles: list[tuple[Any, str]] = []
        self._waiting: list[tuple[Any, str]] = []
        self._notify = b""
        self._lock = Lock()
        self.error: TransferError | None = None
        self.state: Status = "PROC"

    @property
    def handles(self) -> tuple[Any, ...]:
        return tuple(handle for handle, _ in self._handles)

    def _words(self) -> str:
        return ", ".join(dict.fromkeys(words for _, words in self._handles))

    def __repr__(self) -> str:
        return f"{self._operation} {self._words()}".rstrip() + f" with peer {self._peer_name!r}, {self.state}"

    def launch(self, legs: Sequence[Leg], notify: bytes, admit: Callable[[Flight], None]) -> None:
        """Make every handle, then post every handle; TransferError when one cannot be made.

        A handle that cannot be posted is no exception: others may be on their way, so that is for poll() to tell.
        `admit` is told first, under the lock: nobody who learns of the flight can look at it half made.
        """
        # Where one handle is all there is, NIXL sends the message with it, in the order that its backend guarantees;
        # several handles have no common end but the one that is seen here.
        carried = len(legs) == 1 and legs[0].route.carries
        with self._lock:
            try:
                admit(self)
                self._make(legs, notify if carried else b"")
                self._notify = b"" if carried else notify
                self._post()
            except BaseException as e:
                self._fail("", "start", type(e).__name__)  # for nobody to read, but now it cannot end well
                raise

    def _make(self, legs: Sequence[Leg], message: bytes) -> None:
        make, operation = self._agent.make_prepped_xfer, self._operation
        for route, local_list, local_ids, remote_list, remote_ids in legs:
            try:
                handle = make(operation, local_list, local_ids, remote_list, remote_ids, message)
            except Exception as e:
                raise failure(self._peer_name, f"{operation} {route.words}", "make", e) from e
            self._handles.append((handle, route.words))

    def _post(self) -> None:
        for item in self._handles:
            try:
                if self._in_flight(item, "post", self._agent.transfer):
                    self._waiting.append(item)
            except BaseException:  # interrupted: nobody knows what NIXL has begun
                self._waiting.append(item)
                raise
            if self.error is not None:
                break  # the rest stays unposted
        if not self._waiting:
            self._settle()

    def _in_flight(self, item: tuple[Any, str], step: str, ask: Callable[[Any], str]) -> bool:
        """Ask NIXL about one handle; note its failure."""
        handle, words = item
        try:
            status = ask(handle)
        except Exception as e:
            self._fail(words, step, e)
            return False
        if status == "PROC":
            return True
        if status != "DONE":
            self._fail(words, step, status)
        return False

    def _fail(self, words: str, step: str, why: BaseException | str) -> None:
        """Note the first failure; what follows from it is no news."""
        if self.error is None:
            self.error = failure(self._peer_name, f"{self._operation} {words}".rstrip(), step, why)

    def _settle(self) -> None:
        """All handles are at their end: notify the peer, or give the handles back."""
        if self._notify and self.error is None:
            try:
                self._agent.send_notif(self._peer_name, self._notify)
            except BaseException as e:
                self._fail(self._words(), "notify", e if isinstance(e, Exception) else type(e).__name__)
                if not isinstance(e, Exception):  # interrupted: it may have been sent, so it is not sent again
                    raise
        if self.error is None:
            self.state = "DONE"
        else:
            self._drop_handles()
            self.state = "ERR"

    def poll(self) -> Status:
        """Return "PROC" until every handle is at its end; then "DONE", or "ERR" with `error` set."""
        if self.state == "PROC":
            with self._lock:
                self._advance()
        return self.state

    def _advance(self) -> None:
        if self.state == "PROC":
            check = self._agent.check_xfer_state
            self._waiting = [item for item in self._waiting if self._in_flight(item, "poll", check)]
            if not self._waiting:
                self._settle()

    def settled(self) -> bool:
        return self.poll() != "PROC"

    def release(self) -> TransferError | None:
        """Release the handles of a settled request, once, the last made first; return what NIXL refused."""
        with self._lock:
            return self._drop_handles()

    def try_release(self) -> bool:
        """Release if the request has settled and no other thread is at it; never waits."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._advance()
            if self.state != "PROC":
                self._drop_handles()
            return not self._handles and self.state != "PROC"
        finally:
            self._lock.release()

    def _drop_handles(self) -> TransferError | None:
        refused: TransferError | None = None
        kept = []
        while self._handles:
            handle, words = self._handles[-1]
            try:
                self._agent.release_xfer_handle(handle)
            except Exception as e:
                # NIXL keeps a handle that it cannot cancel; a later release tries again.
                kept.append((handle, words))
                refused = refused or failure(self._peer_name, f"{self._operation} {words}", "release", e)
            self._handles.pop()
        self._handles = kept[::-1]
        return refused


class Transfer:
    """One request under way, made by ``PreparedPeer.start``; a context manager, at whose end it is released.

    Poll it, or wait for it, then release it. A Transfer that is dropped unreleased costs a ResourceWarning; what it
    holds is released as soon as it is no longer in flight.

    Any thread may call its methods, several at once too, if the agent's sync mode allows threads (see
    :mod:`nixldesc.adapter`).

    >>> import numpy as np
    >>> from nixldesc import DlistPair, Layout, Region
    >>> from nixldesc.adapter import prepare, register
    >>> from nixldesc.testing import LoopbackAgent
    >>> memory, agent = np.arange(64, dtype=np.uint8), LoopbackAgent("a")
    >>> layout = Layout([Region("k", memory.ctypes.data, 8, 8, mem_type="DRAM")])
    >>> registration, peer = register(agent, layout), prepare(agent, "a", DlistPair(layout, layout), local="dst")
    >>> agent.polls = 1  # how often the next transfers answer "PROC"
    >>> transfer = peer.start([[4, 5]], [[0, 1]])
    >>> transfer.poll(), [agent.get_xfer_telemetry(handle).descCount for handle in transfer.handles]
    ('DONE', [1])
    >>> transfer.release()
    >>> agent.fail("poll", "NIXL_ERR_REMOTE_DISCONNECT")
    >>> with peer.start([[4, 5]], [[2, 3]], notify=b"never sent") as transfer:
    ...     transfer.wait(timeout=10), str(transfer.error)
    ('ERR', "peer 'a', READ DRAM to DRAM: poll failed with NIXL_ERR_REMOTE_DISCONNECT: told to fail at poll")
    >>> peer.release(), registration.release()
    (None, None)
    """

    __slots__ = ("__weakref__", "_flight", "_retire")

    def __init__(self, flight: Flight, retire: Callable[[Flight, bool], None]) -> None:
        self._flight = flight
        # A method of the PreparedPeer: so the prepared lists outlive the transfer.
        self._retire: Callable[[Flight, bool], None] | None = retire

    def __repr__(self) -> str:
        return f"<Transfer: {self._flight!r}>"

    @property
    def handles(self) -> tuple[Any, ...]:
        """NIXL's handles, in the order of the pairs, for ``agent.get_xfer_telemetry``; none after release or "ERR"."""
        return self._flight.handles

    @property
    def error(self) -> TransferError | None:
        """What went wrong first: the peer, the memory types, the step, NIXL's own status; None unless "ERR"."""
        return self._flight.error if self._flight.state == "ERR" else None

    def poll(self) -> Status:
        """Return "PROC", "DONE" (and the peer is notified) or "ERR" (and it never will be).

        "ERR" comes when no handle of the request is in flight any more, and all are released.
        """
        return self._flight.poll()

    def wait(self, timeout: float | None = None) -> Status:
        """Poll until the request has settled, at most `timeout` seconds (None: no limit); return the last poll."""
        wait_until(self._flight.settled, timeout)
        return self._flight.state

    def release(self, timeout: float = 0.0) -> None:
        """Release the handles; again does nothing.

        Waits up to `timeout` seconds for what is in flight, then refuses (TransferError): NIXL would cancel, and what
        is under way may still be written into memory that has been given to another request by then.
        """
        retire = self._retire
        if retire is None:
            return
        if not wait_until(self._flight.settled, timeout):
            raise TransferError(f"{self!r} is still in flight; wait() for its end before release()")
        refused = self._flight.release()
        if refused is not None:
            try:
                raise refused
            finally:
                del refused  # a frame that holds its own exception is a cycle
        self._retire = None
        retire(self._flight, True)

    def __enter__(self) -> Transfer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(EXIT_SECONDS)

    def __del__(self) -> None:
        retire = getattr(self, "_retire", None)
        if retire is not None:
            words = f"{self!r} was never released"
            retire(self._flight, self._flight.try_release())
            warnings.warn(words, ResourceWarning, stacklevel=2)  # last: it may be an error, which ends this method
