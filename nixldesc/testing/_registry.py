"""What a LoopbackAgent has registered, whom it knows, and which lists it has prepared."""

from __future__ import annotations

import json
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ._faults import Faults, Mailbox
from ._handles import (
    Handle,
    LoopbackDlist,
    LoopbackRegistration,
    Remote,
    as_dense_rows,
    as_mem_type,
    as_message,
    as_name,
    as_table_rows,
    check_range,
)
from ._memory import MEM_TYPES, STORAGE, LoopbackError, Range, Rows, find_outside

__all__ = ["Registry", "check_live", "check_registered"]

H = TypeVar("H", bound=Handle)

_agents: weakref.WeakValueDictionary[str, Registry] = weakref.WeakValueDictionary()


class Registry(Faults, Mailbox):
    """The half of LoopbackAgent that is set up before any transfer: memory, peers, prepared lists."""

    #: What a memory may be called, as NIXL's agent says it: "cpu" and "cuda" too.
    nixl_mems = MEM_TYPES

    def __init__(self, name: str, strided: bool) -> None:
        super().__init__()
        self.name = name
        self.strided = strided
        self.backends = {"UCX": 1, "POSIX": 2, "OBJ": 3}
        self.bucket: dict[str, bytes] = {}
        self._lock = threading.RLock()
        self._token = uuid.uuid4().hex
        self._ranges: list[Range] = []
        self._remotes: dict[str, Remote] = {}
        self._dlists: dict[int, LoopbackDlist] = {}
        self._made = 0
        _agents[self._token] = self

    # Memory.

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> LoopbackRegistration:
        """Take `(addr, len, device_id, meta)` tuples or an N x 3 array."""
        if isinstance(descs, LoopbackRegistration):
            return descs
        kind = as_mem_type(mem_type)
        rows = as_dense_rows(descs, tuple_width=4)
        metas = [""] * len(rows) if isinstance(descs, np.ndarray) else [as_message(item[3]).decode() for item in descs]
        given = zip(rows, metas, strict=True)
        return LoopbackRegistration(tuple(Range(kind, addr, size, dev, meta) for (addr, size, dev), meta in given))

    def register_memory(
        self, reg_list: Any, mem_type: str | None = None, backends: Sequence[str] = ()
    ) -> LoopbackRegistration:
        """Register ranges; they must be real memory, nothing here can prove that."""
        registration = self.get_reg_descs(reg_list, mem_type)
        with self._lock:
            self._step("register", registration)
            for have in registration.ranges:
                check_range(have)
                self._check_key(have)
            self._ranges = [*self._ranges, *registration.ranges]
        return registration

    def _check_key(self, have: Range) -> None:
        """Refuse a second key for one object's device id; NIXL would take it for the first one's too."""
        for known in self._ranges:
            if have.mem_type == known.mem_type == "OBJ" and have.device_id == known.device_id and have.key != known.key:
                why = f"device {have.device_id} is object {known.key!r} already, not {have.key!r}"
                raise LoopbackError("NIXL_ERR_NOT_ALLOWED", why)

    def deregister_memory(self, dereg_list: LoopbackRegistration, backends: Sequence[str] = ()) -> None:
        """Forget ranges; refused while a prepared list of this agent still names them."""
        with self._lock:
            self._step("deregister", dereg_list)
            left = list(self._ranges)
            for gone in dereg_list.ranges:
                if gone not in left:
                    raise LoopbackError("NIXL_ERR_NOT_FOUND", f"{gone} is not registered")
                left.remove(gone)
            self._check_unused(left)
            self._ranges = left

    def _check_unused(self, left: list[Range]) -> None:
        """Refuse to be left with ranges that do not hold every prepared list of this agent."""
        for dlist in self._dlists.values():
            if dlist.remote is not None and dlist.remote.token != self._token:
                continue
            if outside := find_outside(dlist.rows, left):
                why = f"prepared list {dlist.number} still names {outside[1]}; NIXL would free it and crash at the "
                raise LoopbackError("NIXL_ERR_NOT_ALLOWED", f"{why}next transfer: release the list first")

    # Peers.

    def get_agent_metadata(self) -> bytes:
        """Return who this agent is and what it has registered so far (storage is never shared)."""
        ranges = [list(have) for have in self._ranges if have.mem_type not in STORAGE]
        return json.dumps({"loopback": self._token, "name": self.name, "ranges": ranges}).encode()

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Learn of a peer, or learn its newer registrations; return its name."""
        try:
            told = json.loads(metadata)
            token, name = told["loopback"], told["name"]
            ranges = [Range(*item) for item in told["ranges"]]
        except (ValueError, TypeError, KeyError) as e:
            raise LoopbackError("NIXL_ERR_MISMATCH", f"this is no metadata of a LoopbackAgent: {e}") from e
        if token == self._token:
            raise LoopbackError("NIXL_ERR_INVALID_PARAM", "this is this agent's own metadata")
        if token not in _agents:
            raise LoopbackError("NIXL_ERR_BACKEND", f"agent {name!r} does not live in this process")
        with self._lock:
            known = self._remotes.setdefault(name, Remote(token, name, ranges))
            if known.token != token:
                why = f"another agent {name!r} is known; remove_remote_agent it first"
                raise LoopbackError("NIXL_ERR_NOT_ALLOWED", why)
            known.ranges = ranges
        return str(name).encode()

    def remove_remote_agent(self, agent: str | bytes) -> None:
        """Forget a peer: its prepared lists and unposted transfers become stale."""
        with self._lock:
            self._remotes.pop(as_name(agent), None)

    def _find_remote(self, name: str) -> Remote:
        if name == self.name:
            return Remote(self._token, name, self._ranges)
        remote = self._remotes.get(name)
        if remote is None:
            raise LoopbackError("NIXL_ERR_NOT_FOUND", f"no agent {name!r} was added")
        return remote

    def _find_agent(self, remote: Remote) -> Registry:
        peer = self if remote.token == self._token else _agents.get(remote.token)
        if peer is None:
            raise LoopbackError("NIXL_ERR_REMOTE_DISCONNECT", f"agent {remote.name!r} is gone")
        return peer

    def _check_current(self, remote: Remote) -> None:
        if remote.token != self._token and self._remotes.get(remote.name) is not remote:
            raise LoopbackError("NIXL_ERR_NOT_FOUND", f"agent {remote.name!r} was removed; prepare its lists again")

    # Lists.

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> Rows:
        """Take `(addr, len, device_id)` tuples or an N x 3 array."""
        if isinstance(descs, Rows):
            return descs
        return Rows.of_dense(as_mem_type(mem_type), as_dense_rows(descs, tuple_width=3))

    def prep_xfer_dlist(
        self, agent_name: str | bytes, xfer_list: Any, mem_type: str | None = None, backends: Sequence[str] = ()
    ) -> LoopbackDlist:
        """Prepare a list: of "NIXL_INIT_AGENT" (or ""), of a peer, or of itself as a peer."""
        name = as_name(agent_name)
        if isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5:
            if not self.strided:
                raise TypeError("incompatible function arguments: an N x 5 list (strided=False)")
            if mem_type is None:
                raise ValueError("an N x 5 list needs mem_type")
            rows = Rows.of(as_mem_type(mem_type), as_table_rows(xfer_list))
        else:
            rows = self.get_xfer_descs(xfer_list, mem_type)
        with self._lock:
            self._step("prep", name or "NIXL_INIT_AGENT")
            remote = None if name in ("", "NIXL_INIT_AGENT") else self._find_remote(name)
            check_registered(rows, self._ranges if remote is None else remote.ranges)
            self._made += 1
            dlist = LoopbackDlist(self.release_dlist_handle, self._made, remote, rows)
            self._dlists[dlist.number] = dlist
            return dlist

    def release_dlist_handle(self, handle: LoopbackDlist) -> None:
        """Release a prepared list; a second time is an error here, and nothing in NIXL."""
        self._release("release_dlist", handle, self._dlists)

    def _release(self, step: str, handle: H, live: dict[int, H]) -> None:
        with self._lock:
            self._step(step, handle.number)
            check_live(handle, live)
            del live[handle.number]


def check_live(handle: H, live: Mapping[int, H]) -> None:
    """Refuse a handle that was released."""
    if live.get(handle.number) is not handle:
        raise LoopbackError("NIXL_ERR_INVALID_PARAM", f"{handle} was released before")


def check_registered(rows: Rows, ranges: Sequence[Range]) -> None:
    """Refuse rows of which one is not inside a single registered range."""
    if outside := find_outside(rows, ranges):
        row, span = outside
        raise LoopbackError("NIXL_ERR_NOT_FOUND", f"row {row}: {span} is not inside one registered range")
