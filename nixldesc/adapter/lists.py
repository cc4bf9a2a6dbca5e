"""NIXL's prepared lists: one local list per agent and Layout, shared by all peers; N x 3 where N x 5 is unknown.

What a finaliser finds cannot always be released at once: a transfer may be in flight, or the finaliser may have come
in the middle of this very module (Python runs it wherever it likes). Then it stays in `_dropped`, and the next caller
who leaves here tries again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, NamedTuple

from nixldesc import Layout, TransferError
from nixldesc.adapter.agent import Agent, failure, refused
from nixldesc.adapter.ranges import Range, Spans

__all__ = ["PeerLists", "drop", "unless_named"]

# NIXL says no more than NIXL_ERR_NOT_FOUND for each of these (1.5.1).
_ADVICE = {
    False: "; has this agent registered that memory (register(agent, layout)), and is it the side that local= names?",
    True: "; had the peer registered that memory before its metadata came here (add_remote_agent)?",
}

_lock = RLock()
_at_work = False  # somebody holds the lock: this thread too, where a finaliser or a signal handler came in between
_dropped: deque[Callable[[], bool]] = deque()


@contextmanager
def _exclusive() -> Iterator[None]:
    global _at_work
    try:
        with _lock:
            if _at_work:
                raise refused(TransferError(
                    "prepared lists are busy: this came in the middle of another prepare or release of this thread "
                    "(from a signal handler?), which must end first"
                ))  # fmt: skip
            _at_work = True
            try:
                yield
            finally:
                _at_work = False
    finally:
        _retry_dropped()


@contextmanager
def _if_free() -> Iterator[bool]:
    """Whether nobody is at work here, in any thread; nobody is, then, until the end of the block."""
    global _at_work
    if not _lock.acquire(blocking=False):
        yield False
        return
    try:
        if _at_work:
            yield False
            return
        _at_work = True
        try:
            yield True
        finally:
            _at_work = False
    finally:
        _lock.release()


def drop(try_release: Callable[[], bool]) -> None:
    """Release what a finaliser found, now or later; `try_release` says whether it is done, and never waits."""
    _dropped.append(try_release)
    _retry_dropped()


def _retry_dropped() -> None:
    for _ in range(len(_dropped)):
        try:
            attempt = _dropped.popleft()
        except IndexError:  # another thread is at it too
            return
        if not attempt():
            _dropped.append(attempt)


class _Shared:
    """A prepared local list and the number of its users."""

    __slots__ = ("handle", "users")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.users = 0


class _Book:
    """All lists of one agent over its own memory, and what is known of its NIXL."""

    __slots__ = ("agent", "dense", "named", "peers", "shared")

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.dense = False  # whether this NIXL was seen to refuse N x 5
        self.shared: dict[Layout, _Shared] = {}
        self.named: Counter[Layout] = Counter()  # also by lists of the agent as its own peer (files)
        self.peers = 0


# An entry holds its agent, so the id stays taken as long as the entry is there.
_books: dict[int, _Book] = {}


class _Held(NamedTuple):
    layout: Layout
    remote: Any  # None: the shared local list of the layout


class PeerLists:
    """The prepared lists of one peer, in the order of their preparation; `open` until all are released."""

    def __init__(self, agent: Agent, peer_name: str, dense_limit: int) -> None:
        self._peer_name = peer_name
        self._dense_limit = dense_limit
        self._own = peer_name == getattr(agent, "name", None)
        self._held: list[_Held] = []
        with _exclusive():
            self._book = _books.setdefault(id(agent), _Book(agent))
            self._book.peers += 1
        self.open = True

    def local(self, layout: Layout) -> Any:
        """Return the handle of the agent's own list, preparing it for its first user."""
        with _exclusive():
            shared = self._book.shared.get(layout)
            if shared is None:
                shared = self._book.shared[layout] = _Shared(self._prepare("NIXL_INIT_AGENT", layout))
            shared.users += 1
            self._book.named[layout] += 1
            self._held.append(_Held(layout, None))
        return shared.handle

    def remote(self, layout: Layout) -> Any:
        """Prepare the peer's list and return its handle."""
        with _exclusive():
            handle = self._prepare(self._peer_name, layout)
            if self._own:
                self._book.named[layout] += 1
            self._held.append(_Held(layout, handle))
        return handle

    def _prepare(self, owner: str, layout: Layout) -> Any:
        """Prepare N x 5, or N x 3 where NIXL does not know it: nixl 1.4.1 refuses with a TypeError."""
        agent, mem_type = self._book.agent, layout.regions[0].mem_type
        what = f"list of {layout.num_descs:,} {mem_type} descriptors" + ("" if owner == self._peer_name else ", local")
        unknown: TypeError | None = None
        try:
            if not self._book.dense:
                try:
                    return agent.prep_xfer_dlist(owner, layout.table(), mem_type)
                except TypeError as e:
                    unknown = e.with_traceback(None)
            self._check_dense_limit(what, layout)
            handle = agent.prep_xfer_dlist(owner, layout.dense_table(), mem_type)
        except TransferError as e:
            raise e from unknown
        except Exception as e:
            advice = _ADVICE[owner == self._peer_name] if str(e).startswith("NIXL_ERR_NOT_FOUND") else ""
            raise refused(failure(self._peer_name, what, "prepare", e, advice)) from e
        self._book.dense = True
        return handle

    def _check_dense_limit(self, what: str, layout: Layout) -> None:
        size = layout.num_descs * 24
        if size > self._dense_limit:
            raise refused(
                TransferError(
                    f"peer {self._peer_name!r}, {what}: this NIXL takes no N x 5 lists (nixl >= 1.5 does), and the N x "
                    f"3 list would take {size:,} bytes, more than dense_limit = {self._dense_limit:,}"
                )
            )

    def release(self) -> TransferError | None:
        """Release every list, the last prepared first; return what NIXL refused (a later call tries that again)."""
        with _exclusive():
            return self._release()

    def try_release(self) -> bool:
        """Release unless somebody is at work here; say whether nothing is left."""
        with _if_free() as free:
            return free and self._release() is None

    def _release(self) -> TransferError | None:
        refused: TransferError | None = None
        kept = []
        while self._held:
            held = self._held[-1]
            try:
                self._give_back(held)
            except Exception as e:
                kept.append(held)
                what = f"list of {held.layout.num_descs:,} {held.layout.regions[0].mem_type} descriptors"
                refused = refused or failure(self._peer_name, what, "release", e)
            self._held.pop()
        self._held = kept[::-1]
        if self.open and not kept:
            self.open = False
            self._book.peers -= 1
            if not self._book.peers:
                del _books[id(self._book.agent)]
        return refused

    def _give_back(self, held: _Held) -> None:
        book = self._book
        if held.remote is not None:
            book.agent.release_dlist_handle(held.remote)
        else:
            shared = book.shared[held.layout]
            if shared.users == 1:
                book.agent.release_dlist_handle(shared.handle)
                del book.shared[held.layout]
            shared.users -= 1
        if held.remote is None or self._own:
            book.named[held.layout] -= 1
            if not book.named[held.layout]:
                del book.named[held.layout]


def unless_named(agent: Agent, ranges: Iterable[Range], act: Callable[[], object], *, wait: bool) -> int:
    """Do `act` unless prepared lists of the agent name memory inside `ranges`; return how many do.

    No list can be prepared meanwhile. ``wait=False`` (a finaliser) gives up with -1 when somebody is at work here.
    """
    if wait:
        with _exclusive():
            return _unless_named(agent, ranges, act)
    with _if_free() as free:
        return _unless_named(agent, ranges, act) if free else -1


def _unless_named(agent: Agent, ranges: Iterable[Range], act: Callable[[], object]) -> int:
    book = _books.get(id(agent))
    named = tuple(book.named) if book is not None else ()
    mine = Spans(ranges)
    count = sum(mine.meet(Spans(layout.memory_ranges())) for layout in named)
    if not count:
        act()
    return count
