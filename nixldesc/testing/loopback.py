"""LoopbackAgent: an in-process stand-in for `nixl_agent`, for tests without NIXL or a GPU.

It has the calls of `nixl_agent` (nixl 1.5.1) that connectors use, with the same arguments and results, and really
copies bytes between registered host buffers; a buffer may be registered as "VRAM" of any device, which is how mixed
memory is tested without a GPU. It refuses all that NIXL refuses, with the same status word and the reason behind it,
and also what NIXL lets pass in silence:

- indices that are not integers, or do not fit (NIXL casts them to int32);
- a row that wraps around 2**64, an empty or null range, a file descriptor that is not open;
- a transfer over memory deregistered meanwhile, and deregistering memory that a prepared list
  still names (NIXL frees it: the next `make_prepped_xfer` crashes the process);
- a second release of one handle;
- writing an object in pieces (a WRITE replaces it), reading one that is not there or too short.

Bytes move when a transfer becomes DONE, not before: who reads early reads the old bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._handles import LoopbackDlist, LoopbackTelemetry, LoopbackXfer, Remote, as_ids, as_message, as_name
from ._memory import STORAGE, LoopbackError, Op, Range, Rows, check_objects, copy_op, find_range, merge
from ._registry import Registry, check_live, check_registered

__all__ = ["LoopbackAgent", "LoopbackError"]


class LoopbackAgent(Registry):
    """An agent whose peers live in the same process.

    Args:
        agent_name: as for `nixl_agent`; peers know this agent by it.
        nixl_conf: ignored, as is `instantiate_all`; here so that the call looks the same.
        strided: False behaves as nixl before 1.5, which takes no N x 5 lists.

    `polls` (default 0) is how many times a transfer posted from now on answers "PROC" before it
    is done; ``math.inf`` leaves it in flight. `lose_notifs` is how many of the next notifications
    are dropped on the way. `bucket` holds the objects of "OBJ" by key (give two agents one dict, and
    they share it): the key is what the registration's fourth entry says, or the device id in decimals;
    an address is an offset. `journal` lists every call that changed something, as (step, what).

    >>> import numpy as np
    >>> a, b = LoopbackAgent("a"), LoopbackAgent("b")
    >>> mine, theirs = np.zeros(64, np.uint8), np.arange(64, dtype=np.uint8)
    >>> [registered] = [a.register_memory([(mine.ctypes.data, 64, 0, "")], "DRAM")]
    >>> _ = b.register_memory(b.get_reg_descs([(theirs.ctypes.data, 64, 0, "")], "DRAM"))
    >>> a.add_remote_agent(b.get_agent_metadata())
    b'b'
    >>> row = lambda buffer: np.array([[buffer.ctypes.data, 8, 0, 8, 8]], np.uint64)
    >>> local = a.prep_xfer_dlist("NIXL_INIT_AGENT", row(mine), "DRAM")
    >>> remote = a.prep_xfer_dlist("b", row(theirs), "DRAM")
    >>> xfer = a.make_prepped_xfer("READ", local, [0, 1], remote, [6, 7], b"two blocks")
    >>> a.transfer(xfer), a.check_xfer_state(xfer), mine[:16].tolist() == theirs[48:].tolist()
    ('DONE', 'DONE', True)
    >>> a.get_xfer_telemetry(xfer).descCount  # 0-1 and 6-7 are neighbours: one operation
    1
    >>> b.get_new_notifs()
    {'a': [b'two blocks']}
    >>> a.make_prepped_xfer("READ", local, [8], remote, [0])
    Traceback (most recent call last):
        ...
    nixldesc.testing._memory.LoopbackError: NIXL_ERR_INVALID_PARAM: local index 0 is 8, \
the list has 8 descriptors

    It fails when it is told to:

    >>> a.fail("notify", "NIXL_ERR_REMOTE_DISCONNECT")
    >>> a.send_notif("b", b"hello")
    Traceback (most recent call last):
        ...
    nixldesc.testing._memory.LoopbackError: NIXL_ERR_REMOTE_DISCONNECT: told to fail at notify

    Without prepared lists, as NIXL allows too:

    >>> whole = [a.get_xfer_descs([(buffer.ctypes.data, 64, 0)], "DRAM") for buffer in (mine, theirs)]
    >>> again = a.initialize_xfer("WRITE", *whole, "b")
    >>> a.transfer(again), theirs[:4].tolist()
    ('DONE', [48, 49, 50, 51])

    What is left over shows, and what is still needed stays:

    >>> a.release_xfer_handle(again), a.release_xfer_handle(xfer), a.live()
    (None, None, {'ranges': 1, 'dlists': 2, 'xfers': 0})
    >>> a.deregister_memory(registered)
    Traceback (most recent call last):
        ...
    nixldesc.testing._memory.LoopbackError: NIXL_ERR_NOT_ALLOWED: prepared list 1 still names DRAM ...
    >>> for handle in remote, local:
    ...     a.release_dlist_handle(handle)
    >>> a.deregister_memory(registered)
    >>> a.remove_remote_agent("b")
    >>> [step for step, _ in a.journal][:4]
    ['register', 'prep', 'prep', 'make']
    """

    def __init__(
        self, agent_name: str, nixl_conf: object | None = None, instantiate_all: bool = False, *, strided: bool = True
    ) -> None:
        super().__init__(agent_name, strided)
        self.polls: float = 0
        self.lose_notifs = 0
        self._xfers: dict[int, LoopbackXfer] = {}

    def __repr__(self) -> str:
        return f"LoopbackAgent({self.name!r}, {self.live()})"

    def live(self) -> dict[str, int]:
        """Return how many registered ranges, prepared lists and transfer handles exist now."""
        return {"ranges": len(self._ranges), "dlists": len(self._dlists), "xfers": len(self._xfers)}

    # Transfers.

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: LoopbackDlist,
        local_indices: Any,
        remote_xfer_side: LoopbackDlist,
        remote_indices: Any,
        notif_msg: bytes | str = b"",
        backends: Sequence[str] = (),
        skip_desc_merge: bool = False,
    ) -> LoopbackXfer:
        """Make a transfer of two prepared lists from ids, which are checked."""
        check_live(local_xfer_side, self._dlists)
        check_live(remote_xfer_side, self._dlists)
        if local_xfer_side.remote is not None or remote_xfer_side.remote is None:
            raise LoopbackError("NIXL_ERR_INVALID_PARAM", "the local side must be local, the remote side remote")
        local, remote = local_xfer_side.rows, remote_xfer_side.rows
        local_ids = as_ids(local_indices, local, "local")
        remote_ids = as_ids(remote_indices, remote, "remote")
        ops = merge(local, local_ids, remote, remote_ids, join=not skip_desc_merge)
        return self._make(operation, local, remote, remote_xfer_side.remote, ops, notif_msg)

    def initialize_xfer(
        self,
        operation: str,
        local_descs: Rows,
        remote_descs: Rows,
        remote_agent: str | bytes,
        notif_msg: bytes | str = b"",
        backends: Sequence[str] = (),
    ) -> LoopbackXfer:
        """Make a transfer of two whole lists; NIXL joins no neighbours here."""
        ids = np.arange(local_descs.num_descs), np.arange(remote_descs.num_descs)
        ops = merge(local_descs, ids[0], remote_descs, ids[1], join=False)
        known = self._find_remote(as_name(remote_agent))
        check_registered(local_descs, self._ranges)
        check_registered(remote_descs, known.ranges)
        return self._make(operation, local_descs, remote_descs, known, ops, notif_msg)

    def _make(
        self, operation: str, local: Rows, remote: Rows, known: Remote, ops: list[Op], notif_msg: bytes | str
    ) -> LoopbackXfer:
        message = as_message(notif_msg)
        if operation not in ("READ", "WRITE"):
            raise KeyError(operation)
        if local.mem_type in STORAGE:
            raise LoopbackError("NIXL_ERR_INVALID_PARAM", f"the local side must be memory, not {local.mem_type}")
        if remote.mem_type in STORAGE and message:
            raise LoopbackError("NIXL_ERR_BACKEND", f"a transfer with {remote.mem_type} carries no notification")
        if remote.mem_type == "OBJ" and operation == "WRITE":
            check_objects(ops)
        mems = local.mem_type, remote.mem_type
        with self._lock:
            self._step("make", f"{operation} {mems[0]} {mems[1]}")
            self._check_current(known)
            self._made += 1
            xfer = LoopbackXfer(self.release_xfer_handle, self._made, operation, *mems, known, ops, message)
            self._xfers[xfer.number] = xfer
        return xfer

    def transfer(self, handle: LoopbackXfer, notif_msg: bytes | str = b"") -> str:
        """Post a transfer: "DONE" at once when `polls` is 0, else "PROC"."""
        with self._lock:
            check_live(handle, self._xfers)
            if handle.state == "PROC":
                raise LoopbackError("NIXL_ERR_REPOST_ACTIVE", f"{handle} is still in flight")
            self._check_current(handle.remote)
            handle.notif_msg = as_message(notif_msg) or handle.notif_msg
            handle.polls_left = self.polls
            return self._advance(handle, "post")

    def check_xfer_state(self, handle: LoopbackXfer) -> str:
        """Return "PROC" or "DONE"; a failed transfer raises its status, each time it is asked."""
        with self._lock:
            check_live(handle, self._xfers)
            if handle.state == "NOT_POSTED":
                raise LoopbackError("NIXL_ERR_NOT_POSTED", f"{handle} was not posted")
            if handle.state == "PROC":
                self._check_current(handle.remote)  # refused, but not ended: its bytes may still come
                handle.polls_left -= 1
                return self._advance(handle, "poll")
            if handle.error:
                raise LoopbackError(handle.error, "this transfer has failed before")
            return handle.state

    def _advance(self, handle: LoopbackXfer, step: str) -> str:
        """Move a posted transfer on: fail as told, stay in flight, or copy and notify."""
        try:
            told = self._step(step, handle.number)
            if not told and handle.polls_left <= 0:
                self._complete(handle)
                told = "DONE"
        except LoopbackError as e:
            handle.state, handle.error = "ERR", e.status
            raise
        handle.state, handle.error = told or "PROC", ""
        return handle.state

    def _complete(self, handle: LoopbackXfer) -> None:
        """Check that both sides are still registered, copy every operation, send the message."""
        peer = self._find_agent(handle.remote)
        for op in handle.ops:
            _registered(self, Range(handle.local_mem, op.local_addr, op.length, op.local_device))
            there = Range(handle.remote_mem, op.remote_addr, op.length, op.remote_device)
            copy_op(handle.operation, op, _registered(peer, there), self.bucket)
        if handle.notif_msg:
            self._deliver(peer, handle.notif_msg)

    def get_xfer_telemetry(self, handle: LoopbackXfer) -> LoopbackTelemetry:
        """Return the number of wire operations and bytes of a transfer that is done."""
        check_live(handle, self._xfers)
        if handle.state != "DONE":
            raise LoopbackError("NIXL_ERR_NOT_POSTED", f"{handle} is not done")
        return LoopbackTelemetry(len(handle.ops), sum(op.length for op in handle.ops))

    def release_xfer_handle(self, handle: LoopbackXfer) -> None:
        """Release a transfer; one in flight is cancelled, its bytes never arrive."""
        self._release("release_xfer", handle, self._xfers)

    # Notifications; what came in is the Mailbox's.

    def send_notif(self, remote_agent_name: str | bytes, notif_msg: bytes | str, backend: str | None = None) -> None:
        """Send a message that belongs to no transfer."""
        name, message = as_name(remote_agent_name), as_message(notif_msg)
        with self._lock:
            self._step("notify", name)
            self._deliver(self._find_agent(self._find_remote(name)), message)

    def _deliver(self, peer: Registry, message: bytes) -> None:
        if self.lose_notifs:
            self.lose_notifs -= 1
        else:
            peer._receive(self.name, message)


def _registered(agent: Registry, span: Range) -> Range:
    """The registration that holds all of `span`."""
    have = find_range(span, agent._ranges)
    if have is None:
        raise LoopbackError("NIXL_ERR_BACKEND", f"{span} of {agent.name!r} is registered no more")
    return have
