"""One request under way: NIXL handles of one or several peers, one progress, one notification for each peer.

::

    Flight ── Share of peer "p0" ── Leg: DRAM to DRAM ── handle         a peer is told when its own share is there
           │                     └─ Leg: VRAM to VRAM ── handle         and nothing of the request has failed
           └─ Share of peer "p1" ── Leg: VRAM to VRAM ── handle

A list of NIXL has one memory type, so a request needs several handles when it touches several pairs of them. They are
all made before the first is posted, so that what NIXL refuses is refused before any byte moves; and the request is
over only when the last of them is, also when one has failed: after "ERR" as after "DONE" nothing writes to the
request's memory any more, except what is in doubt, and that is said.
"""

from __future__ import annotations

import atexit
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, NamedTuple, TypeVar

from nixldesc import TransferError
from nixldesc.adapter.agent import Agent, Status, failure, is_answer, log, refused
from nixldesc.adapter.doubt import note_doubt
from nixldesc.adapter.legs import Leg
from nixldesc.adapter.ranges import Range, joined, named_ranges
from nixldesc.adapter.waiting import LAST_SECONDS, wait_while

__all__ = ["Flight", "Share", "Traffic"]

_T = TypeVar("_T")


class Traffic:
    """The transfers of one peer: what is under way, what was left by its owner, whether more may start."""

    __slots__ = ("closed", "flights", "in_doubt", "left", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = ""  # why nothing can be started any more
        self.flights: dict[Flight, None] = {}
        self.left: deque[Flight] = deque()
        self.in_doubt: list[Range] = []
        _all[self] = None

    def admit(self, flight: Flight) -> None:
        """Note a flight before its first handle is made, unless the peer is closed.

        In this order: who closes the peer looks at the flights afterwards, so one of the two sees the other, whatever
        thread or signal handler they are in.
        """
        self.flights[flight] = None
        if self.closed:
            del self.flights[flight]
            raise refused(TransferError(f"peer {self.name!r} was {self.closed}; nothing can be started any more"))

    def retire(self, flight: Flight, released: bool) -> None:
        """A transfer has been released, or left by its owner while that was not possible yet."""
        if released:
            self.flights.pop(flight, None)
        else:
            self.left.append(flight)

    def reap(self) -> None:
        """Release what was left, as far as it has landed."""
        for _ in range(len(self.left)):
            try:
                flight = self.left.popleft()
            except IndexError:  # another thread is at it too
                return
            if flight.try_release():
                flight.retire(True)
            else:
                self.left.append(flight)

    def in_flight(self) -> set[Flight]:
        """Return what is not at its end; asks all, for that moves them on."""
        return {flight for flight in tuple(self.flights) if flight.poll() == "PROC"}

    def try_release(self) -> bool:
        """Release what has landed; say whether nothing is left. Never waits."""
        for flight in reversed(tuple(self.flights)):
            if flight.try_release():
                self.flights.pop(flight, None)
        return not self.flights

    def end(self) -> None:
        """Its lists are gone."""
        _all.pop(self, None)


_all: dict[Traffic, None] = {}


@atexit.register
def _land() -> None:
    """Give what is in flight a moment to land before the interpreter frees its memory, which would crash."""
    wait_while(lambda: sum(len(traffic.in_flight()) for traffic in tuple(_all)), LAST_SECONDS)


class Share:
    """One peer's part of a request: its legs, and the message that it gets when they are done."""

    __slots__ = ("legs", "message", "traffic")

    def __init__(self, traffic: Traffic, legs: Sequence[Leg]) -> None:
        self.traffic = traffic
        self.legs = legs
        self.message = b""


class _Posted(NamedTuple):
    handle: Any
    leg: Leg
    share: Share


class Flight:
    """The handles of one request, from the first made to the last released.

    Its lock is held while it calls NIXL, so no handle is ever used by two threads at once, and a notification is sent
    by the one thread that finds the last handle done. A signal handler may come in the middle of such a call, in the
    same thread: the lock lets it in, and `_busy` tells it so.
    """

    __slots__ = ("_agent", "_began", "_busy", "_ended", "_handles", "_in_doubt", "_lock", "_waiting", "error",
                 "operation", "shares", "state")  # fmt: skip

    def __init__(self, agent: Agent, operation: str, shares: Sequence[Share]) -> None:
        self._agent = agent
        self._handles: list[_Posted] = []
        self._waiting: list[_Posted] = []
        self._in_doubt: list[Range] = []
        self._lock = RLock()
        self._busy = False
        self._began = self._ended = 0.0
        self.operation = operation
        self.shares = shares
        self.error: TransferError | None = None
        self.state: Status = "PROC"

    @property
    def handles(self) -> tuple[Any, ...]:
        """NIXL's handles that are not released."""
        return tuple(posted.handle for posted in self._handles)

    @property
    def peer(self) -> str:
        """The peers' names in words."""
        return ", ".join(share.traffic.name for share in self.shares)

    @property
    def seconds(self) -> float:
        """Time from the first post to the end, or until now."""
        return (self._ended or time.monotonic()) - self._began if self._began else 0.0

    def _words(self) -> str:
        return ", ".join(dict.fromkeys(posted.leg.ready.route.words for posted in self._handles))

    def __repr__(self) -> str:
        return f"{self.operation} {self._words()}".rstrip() + f" with peer {self.peer!r}, {self.state}"

    # ------------------------------------------------------------------------------------------------ one at a time

    def _alone(self, act: Callable[[], _T], busy: _T) -> _T:
        """Do `act` when no other thread is at it; return `busy` when this very thread is, further up its stack."""
        with self._lock:
            if self._busy:
                return busy
            self._busy = True
            try:
                return act()
            finally:
                self._busy = False

    def refuse_when_busy(self, what: str) -> None:
        """Raise TransferError in a signal handler that came in the middle of another method of this transfer."""
        with self._lock:
            if self._busy:
                raise self._busy_error(what)

    def _busy_error(self, what: str) -> TransferError:
        return TransferError(
            f"{self!r} is busy: {what}() came in the middle of another call of this thread (from a signal handler?), "
            "which must end first; poll() can be called here"
        )

    # ------------------------------------------------------------------------------------------------------- begin

    def launch(self, notify: bytes) -> None:
        """Make every handle, then post every handle; TransferError when one cannot be made.

        A handle that cannot be posted is no exception: others may be on their way, so that is for poll() to tell. The
        peers are told first, under the lock: nobody who learns of the flight can look at it half made.
        """
        with self._lock:
            self._busy = True  # nobody knows of it yet
            try:
                for share in self.shares:
                    share.traffic.admit(self)
                for share in self.shares:
                    self._make(share, notify)
                self._began = time.monotonic()
                self._post()
            except BaseException as e:
                if self.error is None:  # for nobody to read, but now it cannot end well
                    self.error = failure(self.peer, self.operation, "start", type(e).__name__)
                raise
            finally:
                self._busy = False

    def _make(self, share: Share, notify: bytes) -> None:
        # Where one handle is all there is, NIXL sends the message with it, in the order that its backend guarantees;
        # several handles have no common end but the one that is seen here.
        carried = len(share.legs) == 1 and share.legs[0].ready.route.carries
        message = notify if carried else b""
        make, operation = self._agent.make_prepped_xfer, self.operation
        for leg in share.legs:
            ready, src_ids, dst_ids = leg
            mine, theirs = (dst_ids, src_ids) if operation == "READ" else (src_ids, dst_ids)
            try:
                handle = make(operation, ready.local_list, mine, ready.remote_list, theirs, message)
            except Exception as e:
                raise refused(failure(share.traffic.name, f"{operation} {ready.route.words}", "make", e)) from e
            self._handles.append(_Posted(handle, leg, share))
        if not carried:
            share.message = notify

    def _post(self) -> None:
        for posted in self._handles:
            try:
                if self._in_flight(posted, "post", self._agent.transfer):
                    self._waiting.append(posted)
            except BaseException:  # interrupted: nobody knows what NIXL has begun
                self._waiting.append(posted)
                raise
            if self.error is not None:
                break  # the rest stays unposted
        self._settle()

    # ---------------------------------------------------------------------------------------------------- progress

    def poll(self) -> Status:
        """Return "PROC" until every handle is at its end; then "DONE", or "ERR" with `error` set."""
        if self.state == "PROC":
            self._alone(self._advance, None)
        return self.state

    def _advance(self) -> None:
        if self.state == "PROC":
            check = self._agent.check_xfer_state
            self._waiting = [posted for posted in self._waiting if self._in_flight(posted, "poll", check)]
            self._settle()

    def _in_flight(self, posted: _Posted, step: str, ask: Callable[[Any], str]) -> bool:
        """Ask NIXL about one handle; note its failure."""
        try:
            status = ask(posted.handle)
        except Exception as e:
            self._failed(posted, step, e)
            return False
        if status == "PROC":
            return True
        if status != "DONE":
            self._failed(posted, step, status)
        return False

    def _failed(self, posted: _Posted, step: str, why: BaseException | str) -> None:
        doubt = "" if is_answer(step, why) else self._doubt([posted])
        self._note(posted.share, posted.leg.ready.route.words, step, why, doubt)

    def _note(self, share: Share, words: str, step: str, why: BaseException | str, advice: str = "") -> None:
        """Note the first failure; what follows from it is no news."""
        if self.error is None:
            self.error = failure(share.traffic.name, f"{self.operation} {words}".rstrip(), step, why, advice)

    def _doubt(self, lost: Sequence[_Posted]) -> str:
        """Note that NIXL has not confirmed the end of some handles; return what to do, in words."""
        ranges: list[Range] = []
        for _, leg, share in lost:
            mine = leg.ready.dst, leg.dst_ids
            named = named_ranges(*(mine if self.operation == "READ" else (leg.ready.src, leg.src_ids)))
            share.traffic.in_doubt.extend(named)
            ranges += named
        self._in_doubt = joined(self._in_doubt + ranges)
        note_doubt(self._agent, ranges)
        size = sum(item[1] for item in joined(ranges))
        may = "still write" if self.operation == "READ" else "still read (and the peer's blocks still write)"
        return (
            f"; NIXL has not confirmed its end: it may {may} {size:,} bytes of this agent's memory (error.in_doubt); "
            "keep these blocks out of use until the agent is gone"
        )

    def _settle(self) -> None:
        """Tell the peers whose share is there; when all is at its end, that is the end."""
        waiting = self._waiting
        for share in self.shares:
            if share.message and self.error is None and not any(posted.share is share for posted in waiting):
                self._tell(share)
        if waiting:
            return
        self._ended = time.monotonic()
        if self.error is None:
            self.state = "DONE"
        else:
            self.error.in_doubt = tuple(self._in_doubt)
            log.error("%s", str(self.error))
            self._drop_handles()
            self.state = "ERR"

    def _tell(self, share: Share) -> None:
        message, share.message = share.message, b""
        try:
            self._agent.send_notif(share.traffic.name, message)
        except BaseException as e:
            words = ", ".join(dict.fromkeys(leg.ready.route.words for leg in share.legs))
            self._note(share, words, "notify", e if isinstance(e, Exception) else type(e).__name__)
            if not isinstance(e, Exception):  # interrupted: it may have been sent, so it is not sent again
                raise

    # --------------------------------------------------------------------------------------------------------- end

    def give_up(self, traffic: Traffic) -> None:
        """End what is in flight with this peer as in doubt, whatever NIXL says; the rest goes on."""
        if not self._alone(lambda: self._give_up(traffic), False):
            raise self._busy_error("abandon")

    def _give_up(self, traffic: Traffic) -> bool:
        self._advance()
        lost = [posted for posted in self._waiting if posted.share.traffic is traffic]
        if lost:
            self._waiting = [posted for posted in self._waiting if posted.share.traffic is not traffic]
            words = ", ".join(dict.fromkeys(posted.leg.ready.route.words for posted in lost))
            doubt = self._doubt(lost)
            if self.error is None:
                self.error = TransferError(f"peer {traffic.name!r}, {self.operation} {words}: abandoned{doubt}")
            self._drop_handles(traffic)
            self._settle()
        return True

    def release(self) -> TransferError | None:
        """Release the handles of a settled request, once, the last made first; return what NIXL refused."""
        if not self._handles:
            return None
        with self._lock:
            if self._busy:
                return self._busy_error("release")
            self._busy = True
            try:
                return self._drop_handles()
            finally:
                self._busy = False

    def retire(self, released: bool) -> None:
        """Tell the peers that the owner is done with it."""
        for share in self.shares:
            share.traffic.retire(self, released)

    def try_release(self) -> bool:
        """Release if the request has settled and no other thread is at it; never waits."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._alone(self._land, False)
        finally:
            self._lock.release()

    def _land(self) -> bool:
        self._advance()
        if self.state != "PROC":
            self._drop_handles()
        return not self._handles and self.state != "PROC"

    def _drop_handles(self, only: Traffic | None = None) -> TransferError | None:
        problem: TransferError | None = None
        kept = []
        while self._handles:
            posted = self._handles[-1]
            try:
                if only is None or posted.share.traffic is only:
                    self._agent.release_xfer_handle(posted.handle)
                else:
                    kept.append(posted)
            except Exception as e:
                # NIXL keeps a handle that it cannot cancel; a later release tries again.
                kept.append(posted)
                what = f"{self.operation} {posted.leg.ready.route.words}"
                problem = problem or failure(posted.share.traffic.name, what, "release", e)
            self._handles.pop()
        self._handles = kept[::-1]
        return problem
