"""What a connector holds of a request under way."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable
from sys import is_finalizing
from types import TracebackType
from typing import Any

from nixldesc import TransferError
from nixldesc.adapter.agent import Status, log, refused
from nixldesc.adapter.flight import Flight
from nixldesc.adapter.ranges import named_bytes
from nixldesc.adapter.waiting import EXIT_SECONDS, settle, wait_while
from nixldesc.request.moves import id_ops

__all__ = ["Transfer", "settled"]


class Transfer:
    """One request under way, made by ``start``; a context manager, at whose end it is released.

    Poll it, wait for it or await it, then release it. A ``with`` block that ends well waits up to 30 seconds for what
    is in flight, then raises TransferError; with an exception on its way nothing waits, and what is in flight is
    released when it has landed, by whoever starts or releases next. A Transfer that is dropped unreleased goes the
    same way and costs a ResourceWarning. At the interpreter's end nothing is released; what is in flight then has five
    seconds to land, for the memory that it writes to is freed next.

    Any thread may call its methods, several at once too, if the agent's sync mode allows threads (see
    :mod:`nixldesc.adapter`). So may a signal handler: ``poll()`` says "PROC" there when it came in the middle of
    another call, ``wait()`` and ``release()`` raise TransferError then, at once.

    >>> import numpy as np
    >>> from nixldesc import DlistPair, Layout, Region
    >>> from nixldesc.adapter import prepare, register
    >>> from nixldesc.testing import LoopbackAgent
    >>> memory, agent = np.arange(64, dtype=np.uint8), LoopbackAgent("a")
    >>> layout = Layout([Region("k", memory.ctypes.data, 8, 8, mem_type="DRAM")])
    >>> registration, peer = register(agent, layout), prepare(agent, "a", DlistPair(layout, layout), local="dst")
    >>> agent.polls = 1  # how often the next transfers answer "PROC"
    >>> transfer = peer.start([[4, 5]], [[0, 1]])
    >>> transfer.poll(), transfer.peer, transfer.operation, transfer.nbytes, transfer.num_descs, transfer.wire_ops
    ('DONE', 'a', 'READ', 16, 2, 1)
    >>> 0 < transfer.seconds < 60, len(transfer.handles)
    (True, 1)
    >>> transfer.release()
    >>> agent.fail("poll", "NIXL_ERR_REMOTE_DISCONNECT")
    >>> with peer.start([[4, 5]], [[2, 3]], notify=b"never sent") as transfer:
    ...     transfer.wait(timeout=10), str(transfer.error)
    ('ERR', "peer 'a', READ DRAM to DRAM: poll failed with NIXL_ERR_REMOTE_DISCONNECT: told to fail at poll")

    In a coroutine:

    >>> import asyncio
    >>> async def pull() -> str:
    ...     with peer.start([[4, 5]], [[2, 3]]) as transfer:
    ...         return await transfer
    >>> asyncio.run(pull())
    'DONE'
    >>> peer.release(), registration.release()
    (None, None)
    """

    __slots__ = ("__weakref__", "_flight", "_owner")

    def __init__(self, flight: Flight, owner: object) -> None:
        self._flight = flight
        self._owner: object | None = owner  # so the prepared lists outlive the transfer; None: released

    def __repr__(self) -> str:
        return f"<Transfer: {self._flight!r}>"

    # ------------------------------------------------------------------------------------------- for metrics and logs

    @property
    def peer(self) -> str:
        """The peer's agent name; of a request over several sources all names, in the order of the plan."""
        return self._flight.peer

    @property
    def operation(self) -> str:
        """NIXL's word for it: "READ" where this agent's memory is the destination, else "WRITE"."""
        return self._flight.operation

    @property
    def nbytes(self) -> int:
        """Bytes that the request moves."""
        return sum(named_bytes(leg.ready.dst, leg.dst_ids) for share in self._flight.shares for leg in share.legs)

    @property
    def num_descs(self) -> int:
        """Pairs of descriptors that the request names."""
        return sum(len(leg.dst_ids) for share in self._flight.shares for leg in share.legs)

    @property
    def wire_ops(self) -> int:
        """Operations after NIXL's merging of neighbours, as its telemetry counts them (``descCount``)."""
        legs = (leg for share in self._flight.shares for leg in share.legs)
        return sum(id_ops(leg.ready.src, leg.ready.dst, (leg.src_ids, leg.dst_ids)) for leg in legs)

    @property
    def seconds(self) -> float:
        """Time from its start to the poll that found its end; until then, to now."""
        return self._flight.seconds

    @property
    def handles(self) -> tuple[Any, ...]:
        """NIXL's handles, in the order of the pairs, for ``agent.get_xfer_telemetry``; none after release or "ERR"."""
        return self._flight.handles

    @property
    def error(self) -> TransferError | None:
        """What went wrong first: the peer, the memory types, the step, NIXL's own status; None unless "ERR".

        Its `in_doubt` is empty, except where NIXL has not confirmed the end of what it began (the peer's metadata was
        removed under the transfer, or the peer was abandoned): then the ranges of this agent's memory,
        ``(addr, len, device_id, mem_type)``, that it may still use. Keep them out of use until the agent is gone.
        """
        return self._flight.error if self._flight.state == "ERR" else None

    # ---------------------------------------------------------------------------------------------------- its progress

    def poll(self) -> Status:
        """Return "PROC", "DONE" (and the peer is notified) or "ERR" (and it never will be).

        "ERR" comes when no handle of the request is in flight any more, and all are released.
        """
        return self._flight.poll()

    def wait(self, timeout: float | None = None) -> Status:
        """Poll until the request has settled, at most `timeout` seconds (None: no limit); return the last poll."""
        flight = self._flight
        flight.refuse_when_busy("wait")
        wait_while(lambda: flight.poll() == "PROC", timeout)
        return flight.state

    def __await__(self) -> Generator[Any, None, Status]:
        """Give the final status in any asyncio loop, without blocking it; as often as one likes.

        A cancelled await leaves the transfer alive: poll it, await it again, or release it.
        """
        return settle(self._flight)

    # --------------------------------------------------------------------------------------------------------- its end

    def release(self, timeout: float = 0.0) -> None:
        """Release the handles; again does nothing.

        Waits up to `timeout` seconds for what is in flight, then refuses (TransferError): NIXL would cancel, and what
        is under way may still be written into memory that has been given to another request by then. For a peer that
        never answers again there is ``peer.abandon()``.
        """
        if self._owner is None:
            return
        flight = self._flight
        if flight.state == "PROC":
            flight.refuse_when_busy("release")
            if wait_while(lambda: flight.poll() == "PROC", timeout):
                raise refused(TransferError(f"{self!r} is still in flight; wait() for its end before release()"))
        problem = flight.release()
        if problem is not None:
            try:
                raise refused(problem)
            finally:
                del problem  # a frame that holds its own exception is a cycle
        self._owner = None
        flight.retire(True)

    def _leave(self) -> bool:
        """Give it up to the peer, which releases it now or when it has landed; say whether that is done."""
        released = self._flight.try_release()
        self._flight.retire(released)
        self._owner = None
        return released

    def __enter__(self) -> Transfer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release(EXIT_SECONDS)
        elif self._owner is not None and not self._leave():
            log.warning("%s was left in flight by %s; it is released when it has landed", repr(self), kind.__name__)

    def __del__(self) -> None:
        if getattr(self, "_owner", None) is not None and not is_finalizing():
            words = f"{self!r} was never released"
            owner, _ = self._owner, self._leave()
            warnings.warn(words, ResourceWarning, stacklevel=2)  # last: it may be an error, which ends this method
            del owner


def settled(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Return those that are no longer "PROC", in the order given: what a connector's ``get_finished`` wants.

    >>> settled([])
    []
    """
    return [transfer for transfer in transfers if transfer.poll() != "PROC"]
