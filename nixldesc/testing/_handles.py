"""The handles a LoopbackAgent gives out, and how it reads what callers hand in."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._memory import MEM_TYPES, STORAGE, Ids, LoopbackError, Op, Range, Rows, first_at

__all__ = [
    "Handle",
    "LoopbackDlist",
    "LoopbackRegistration",
    "LoopbackTelemetry",
    "LoopbackXfer",
    "Remote",
    "as_dense_rows",
    "as_ids",
    "as_mem_type",
    "as_message",
    "as_name",
    "as_table_rows",
    "check_range",
]


@dataclass(slots=True, eq=False)
class Remote:
    """What one agent knows of another: who it is, and the ranges its metadata named."""

    token: str
    name: str
    ranges: list[Range]


@dataclass(frozen=True, slots=True)
class LoopbackRegistration:
    """What `register_memory` returns and `deregister_memory` takes."""

    ranges: tuple[Range, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.ranges))


@dataclass(slots=True, eq=False)
class Handle:
    """What an agent gives out and takes back."""

    take_back: Callable[[Any], None] = field(repr=False)
    number: int

    def release(self) -> None:
        """Release it, as the agent's own method for such handles does."""
        self.take_back(self)


@dataclass(slots=True, eq=False)
class LoopbackDlist(Handle):
    """A prepared list: `remote` is None for the initiator's own side."""

    remote: Remote | None = field(repr=False)
    rows: Rows = field(repr=False)


@dataclass(slots=True, eq=False)
class LoopbackXfer(Handle):
    """A transfer handle; `ops` are its wire operations."""

    operation: str
    local_mem: str
    remote_mem: str
    remote: Remote = field(repr=False)
    ops: list[Op] = field(repr=False)
    notif_msg: bytes
    state: str = "NOT_POSTED"
    error: str = ""
    polls_left: float = 0


@dataclass(frozen=True, slots=True)
class LoopbackTelemetry:
    """The fields of NIXL's transfer telemetry; the times are zero, there is no wire."""

    descCount: int
    totalBytes: int
    startTime: int = 0
    postDuration: int = 0
    xferDuration: int = 0


def as_name(agent: str | bytes) -> str:
    """Read an agent's name; add_remote_agent returns bytes, and NIXL takes them back."""
    if isinstance(agent, bytes):
        return agent.decode()
    if not isinstance(agent, str):
        raise TypeError(f"an agent's name must be str or bytes, got {agent!r:.40}")
    return agent


def as_message(message: Any) -> bytes:
    """Read a notification: bytes, or what NIXL turns into bytes."""
    if isinstance(message, str):
        return message.encode()
    if isinstance(message, (bytes, bytearray)):
        return bytes(message)
    raise TypeError(f"a notification must be bytes, got {message!r:.40}")


def as_mem_type(mem_type: str | None) -> str:
    """Read a memory type; NIXL looks it up in a dict, so an unknown one is a KeyError."""
    if mem_type is None:
        raise TypeError("a list of numbers needs mem_type")
    if mem_type not in MEM_TYPES:
        raise KeyError(mem_type)
    return MEM_TYPES[mem_type]


def as_dense_rows(descs: Any, tuple_width: int) -> list[list[int]]:
    """Read `(addr, len, device_id)` from an N x 3 array, or a list of tuples of `tuple_width`."""
    if isinstance(descs, np.ndarray):
        if descs.ndim != 2 or descs.shape[1] != 3:
            raise TypeError(f"incompatible function arguments: an array of shape {descs.shape}")
        return as_table_rows(descs)

    def fits(item: Any) -> bool:
        numbers = item[:3] if isinstance(item, tuple) and len(item) == tuple_width else [None]
        return all(isinstance(x, (int, np.integer)) and x >= 0 for x in numbers)

    odd = [item for item in descs if not fits(item)] if isinstance(descs, list) and descs else [descs]
    if odd:
        raise TypeError(f"expected a list of {tuple_width}-tuples (addr, len, device, ...), got {odd[0]!r:.60}")
    return [[int(x) for x in item[:3]] for item in descs]


def as_table_rows(array: Any) -> list[list[int]]:
    """Read an array of descriptors as Python ints."""
    if array.dtype not in (np.dtype(np.uint64), np.dtype(np.int64)):
        raise ValueError(f"descriptors must be uint64 or int64, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ValueError("descriptors must be C-contiguous")
    rows: list[list[int]] = array.tolist()
    return rows


def as_ids(ids: Any, rows: Rows, side: str) -> Ids:
    """Read indices; NIXL would cast them unchecked (2**32+5 to 5, 7.9 to 7, True to 1)."""
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1:
            raise ValueError(f"{side} indices must be one-dimensional, got shape {ids.shape}")
        if ids.dtype.kind not in "iu":
            raise TypeError(f"{side} indices have dtype {ids.dtype}, which NIXL would truncate")
        array = ids
    else:
        values = list(ids)
        for i, value in enumerate(values):
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{side} index {i} is {value!r:.40}, which is not an int")
        array = np.array(values, dtype=object)
    if (at := first_at((array < 0) | (array >= rows.num_descs))) is not None:
        why = f"{side} index {at} is {array[at]}, the list has {rows.num_descs} descriptors"
        raise LoopbackError("NIXL_ERR_INVALID_PARAM", why)
    return array.astype(np.int64)


def check_range(have: Range) -> None:
    """Refuse a range that cannot be memory, or that no backend here knows."""
    if have.length <= 0:
        raise LoopbackError("NIXL_ERR_INVALID_PARAM", f"{have} is empty")
    if have.end > 1 << 64:
        raise LoopbackError("NIXL_ERR_INVALID_PARAM", f"{have} leaves 2**64")
    if have.mem_type == "BLOCK":
        raise LoopbackError("NIXL_ERR_NOT_FOUND", f"no backend for {have.mem_type} here")
    if have.mem_type not in STORAGE and not have.addr:
        raise LoopbackError("NIXL_ERR_BACKEND", f"{have} starts at the null address")
    if have.mem_type == "FILE":
        try:
            os.fstat(have.device_id)
        except OSError as e:
            raise LoopbackError("NIXL_ERR_BACKEND", f"file descriptor {have.device_id} is not open") from e
