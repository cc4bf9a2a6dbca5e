"""What a LoopbackAgent knows of memory: registered ranges, rows of descriptors, copies.

The rules are NIXL's, measured with nixl 1.5.1 and 1.4.1 (UCX and POSIX plugins, host memory); where
NIXL answers with a bare status, :class:`LoopbackError` also says why.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "MEM_TYPES",
    "STORAGE",
    "Ids",
    "LoopbackError",
    "Op",
    "Range",
    "Resolved",
    "Rows",
    "check_objects",
    "copy_op",
    "find_outside",
    "find_range",
    "first_at",
    "merge",
]

#: As NIXL spells them, its two old words among them, and what they mean.
MEM_TYPES = {kind: kind for kind in ("DRAM", "VRAM", "FILE", "BLOCK", "OBJ")} | {"cpu": "DRAM", "cuda": "VRAM"}
STORAGE = ("FILE", "BLOCK", "OBJ")

Ids = npt.NDArray[np.int64]


class LoopbackError(Exception):
    """A refusal of LoopbackAgent: NIXL's status word, and why, which NIXL does not say.

    >>> print(LoopbackError("NIXL_ERR_NOT_FOUND", "no agent 'P' was added"))
    NIXL_ERR_NOT_FOUND: no agent 'P' was added
    """

    def __init__(self, status: str, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why

    def __str__(self) -> str:
        return f"{self.status}: {self.why}"


class Range(NamedTuple):
    """One registered range of one memory; `meta` is the key of an object, "" for its device id in decimals."""

    mem_type: str
    addr: int
    length: int
    device_id: int
    meta: str = ""

    @property
    def key(self) -> str:
        """Under which key an object lies in the bucket."""
        return self.meta or str(self.device_id)

    @property
    def end(self) -> int:
        """The address behind its last byte."""
        return self.addr + self.length

    def meets(self, other: Range) -> bool:
        """Whether the two share a byte."""
        same = (self.mem_type, self.device_id) == (other.mem_type, other.device_id)
        return same and self.addr < other.end and other.addr < self.end

    def __str__(self) -> str:
        return f"{self.mem_type} {self.addr:#x}..{self.end:#x} of device {self.device_id}"


class Op(NamedTuple):
    """One wire operation: `length` bytes between a local and a remote address."""

    local_addr: int
    local_device: int
    remote_addr: int
    remote_device: int
    length: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Strided rows `(addr, len, device_id, stride, count)` of one memory type.

    `starts[i]` is the id of the first descriptor of row i; one entry more gives their number.
    """

    mem_type: str
    table: npt.NDArray[np.uint64]
    starts: Ids

    @classmethod
    def of(cls, mem_type: str, rows: Sequence[Sequence[int]]) -> Rows:
        """Take rows of five Python ints, refusing what NIXL refuses and what it lets wrap."""
        for i, (addr, length, _, stride, count) in enumerate(rows):
            why = ""
            if length <= 0:
                why = f"len is {length}, it must be positive"
            elif count <= 0:
                why = f"count is {count}, it must be positive"
            elif stride < length:
                why = f"stride {stride} is less than len {length}"
            elif addr < 0 or addr + (count - 1) * stride + length > 1 << 64:
                why = f"{count} blocks of {length} bytes, {stride} apart, from {addr:#x} leave 2**64"
            if why:
                raise LoopbackError("NIXL_ERR_NOT_FOUND", f"row {i}: {why}")
        if not rows:
            raise LoopbackError("NIXL_ERR_NOT_FOUND", "the list is empty")
        total = sum(row[4] for row in rows)
        if total > 2**31 - 1:
            raise LoopbackError("NIXL_ERR_INVALID_PARAM", f"{total} descriptors: ids are int32")
        return cls.counted(mem_type, np.array(rows, dtype=np.uint64))

    @classmethod
    def counted(cls, mem_type: str, table: npt.NDArray[np.uint64]) -> Rows:
        """Take rows that are known to be right."""
        return cls(mem_type, table, np.concatenate(([0], np.cumsum(table[:, 4].astype(np.int64)))))

    @classmethod
    def of_dense(cls, mem_type: str, descs: Sequence[Sequence[int]]) -> Rows:
        """Take rows of three; equal spacing is folded into strided rows, greedily, as NIXL does."""
        rows: list[list[int]] = []
        for addr, length, device in descs:
            last = rows[-1] if rows else None
            if last is not None and last[1:3] == [length, device]:
                step = addr - (last[0] + (last[4] - 1) * last[3])
                if step >= length and (last[4] == 1 or step == last[3]):
                    last[3] = step
                    last[4] += 1
                    continue
            rows.append([addr, length, device, length, 1])
        return cls.of(mem_type, rows)

    @property
    def num_descs(self) -> int:
        return int(self.starts[-1])

    def spans(self) -> Iterable[Range]:
        """Yield what each row reaches over, gaps included: NIXL wants it in one registration."""
        for addr, length, device, stride, count in self.table.tolist():
            yield Range(self.mem_type, addr, (count - 1) * stride + length, device)

    def resolve(self, ids: Ids) -> Resolved:
        """Return what the ids name, and which of them may join the one before."""
        row = np.searchsorted(self.starts, ids, side="right") - 1
        addr, length, device, stride, _ = self.table[row].T
        within = (ids - self.starts[row]).astype(np.uint64)
        follows = np.zeros(len(ids), dtype=np.bool_)
        follows[1:] = (ids[1:] == ids[:-1] + 1) & (row[1:] == row[:-1])
        return Resolved(addr + within * stride, length, device, follows & (stride == length))


class Resolved(NamedTuple):
    """Per id: where it is, and whether it continues its predecessor in a dense row."""

    addr: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint64]
    device: npt.NDArray[np.uint64]
    follows: npt.NDArray[np.bool_]


def first_at(wrong: npt.NDArray[np.bool_]) -> int | None:
    """Return where the first fault is; None where there is none."""
    return int(wrong.argmax()) if wrong.any() else None


def find_range(span: Range, ranges: Iterable[Range]) -> Range | None:
    """Return a registered range that holds all of `span`; two that touch are still two."""
    held = (have for have in ranges if have.meets(span) and have.addr <= span.addr and span.end <= have.end)
    return next(held, None)


def find_outside(rows: Rows, ranges: Sequence[Range]) -> tuple[int, Range] | None:
    """Return the first row that is not inside a single registered range, and what it reaches over."""
    return next(((i, span) for i, span in enumerate(rows.spans()) if find_range(span, ranges) is None), None)


def merge(local: Rows, local_ids: Ids, remote: Rows, remote_ids: Ids, join: bool) -> list[Op]:
    """Pair descriptors and join neighbours by NIXL's rule; unequal lengths are refused.

    Two neighbouring pairs join when both ids step by one, neither leaves its row, and both rows are
    dense (stride == len). The order is never changed.
    """
    if len(local_ids) != len(remote_ids) or not len(local_ids):
        why = f"{len(local_ids)} local and {len(remote_ids)} remote indices; they must be equally many and at least one"
        raise LoopbackError("NIXL_ERR_INVALID_PARAM", why)
    here, there = local.resolve(local_ids), remote.resolve(remote_ids)
    if (at := first_at(here.length != there.length)) is not None:
        why = f"position {at}: local descriptor {local_ids[at]} has {here.length[at]} bytes, "
        why += f"remote descriptor {remote_ids[at]} has {there.length[at]}"
        raise LoopbackError("NIXL_ERR_INVALID_PARAM", why)
    first = np.flatnonzero(~(here.follows & there.follows)) if join else np.arange(len(local_ids))
    lengths = np.add.reduceat(here.length, first)
    columns = here.addr[first], here.device[first], there.addr[first], there.device[first], lengths
    return [Op(*op) for op in zip(*(column.tolist() for column in columns), strict=True)]


def copy_op(operation: str, op: Op, remote: Range, bucket: dict[str, bytes]) -> None:
    """Move the bytes of one operation between local memory and the registered range `remote`."""
    if operation == "READ":
        read = {"OBJ": _read_object, "FILE": _read_file}.get(remote.mem_type)
        ctypes.memmove(op.local_addr, read(op, remote, bucket) if read else op.remote_addr, op.length)
    elif remote.mem_type == "OBJ":
        bucket[remote.key] = ctypes.string_at(op.local_addr, op.length)
    elif remote.mem_type == "FILE":
        _write_file(op)
    else:
        ctypes.memmove(op.remote_addr, op.local_addr, op.length)


def check_objects(ops: Iterable[Op]) -> None:
    """Refuse to write an object in pieces: a WRITE replaces all of it, so only the last one would be left."""
    written = set()
    for op in ops:
        wrong = "twice in one transfer" if op.remote_device in written else ""
        if wrong := f"at offset {op.remote_addr}" if op.remote_addr else wrong:
            why = f"object {op.remote_device} is written {wrong}; a WRITE replaces an object whole"
            raise LoopbackError("NIXL_ERR_BACKEND", why)
        written.add(op.remote_device)


def _read_object(op: Op, remote: Range, bucket: dict[str, bytes]) -> bytes:
    data = bucket.get(remote.key)
    if data is None:
        raise LoopbackError("NIXL_ERR_BACKEND", f"there is no object {remote.key!r}")
    end = op.remote_addr + op.length
    if end > len(data):
        why = f"object {remote.key!r}: {op.length} bytes wanted at {op.remote_addr}, it has {len(data)}"
        raise LoopbackError("NIXL_ERR_BACKEND", why)
    return data[op.remote_addr : end]


def _read_file(op: Op, remote: Range, bucket: dict[str, bytes]) -> bytes:
    fd, offset = op.remote_device, op.remote_addr
    with _of_file(f"reading file descriptor {fd}"):
        data = os.pread(fd, op.length, offset)
    if len(data) != op.length:
        why = f"file descriptor {fd}: {op.length} bytes wanted at {offset}, {len(data)} there"
        raise LoopbackError("NIXL_ERR_BACKEND", why)
    return data


def _write_file(op: Op) -> None:
    fd = op.remote_device
    with _of_file(f"writing file descriptor {fd}"):
        written = os.pwrite(fd, ctypes.string_at(op.local_addr, op.length), op.remote_addr)
    if written != op.length:
        raise LoopbackError("NIXL_ERR_BACKEND", f"file descriptor {fd}: {written} of {op.length} bytes written")


@contextmanager
def _of_file(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise LoopbackError("NIXL_ERR_BACKEND", f"{what}: {e}") from e
