"""Byte copies between memories, and what NIXL copies for descriptor ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ._memory import Resolved, Rows, first_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nixldesc import Blocks, Plan

    Addresses = NDArray[np.uint64]
    Ids = Sequence[int] | NDArray[np.integer[Any]]
    Table = Blocks | Ids
    Tables = Sequence[Table]

__all__ = ["Copies", "DeliveryError", "Memory", "nixl_copies", "planned_copies"]


class DeliveryError(AssertionError):
    """The copies do not deliver the request; the message names the first wrong byte in words.

    An ``AssertionError``, so that test runners report it as a failure and not as an accident.

    >>> raise DeliveryError("dst rank 0: nothing arrived")
    Traceback (most recent call last):
    nixldesc.testing.copies.DeliveryError: dst rank 0: nothing arrived
    """


class Memory(NamedTuple):
    """One address space: what ``device_id`` of ``mem_type`` is on one rank.

    >>> print(Memory(3, "DRAM"))
    rank 3, DRAM of device 0
    """

    rank: int
    mem_type: str = "VRAM"
    device_id: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank}, {self.mem_type} of device {self.device_id}"


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Byte copies from one memory to another.

    ``rows``: uint64[n, 3] of ``(src_addr, dst_addr, len)`` in bytes, as ``pair.moves`` gives them.

    >>> import numpy as np
    >>> Copies(Memory(0), Memory(1), np.array([[0x1000, 0x8000, 16]], np.uint64)).rows.shape
    (1, 3)
    """

    src: Memory
    dst: Memory
    rows: Addresses


def nixl_copies(
    src_rank: int,
    dst_rank: int,
    src_table: Addresses,
    dst_table: Addresses,
    src_ids: Ids,
    dst_ids: Ids,
    *,
    mem_types: tuple[str, str] = ("VRAM", "VRAM"),
) -> list[Copies]:
    """What NIXL copies for two descriptor lists and two lists of descriptor ids.

    The tables are N x 3 ``(addr, len, dev)`` or N x 5 ``(addr, len, dev, stride, count)``. An id outside its list, or
    two descriptors of unequal length at one position, is a ``DeliveryError``.

    >>> import numpy as np
    >>> src = np.array([[0x1000, 16, 0, 16, 8]], np.uint64)
    >>> dst = np.array([[0x8000, 16, 3, 32, 4]], np.uint64)
    >>> [copies] = nixl_copies(0, 1, src, dst, [5], [2])
    >>> copies.dst.device_id, copies.rows.tolist() == [[0x1050, 0x8040, 16]]
    (3, True)
    """
    if len(src_ids) != len(dst_ids):
        raise DeliveryError(f"{len(src_ids)} src ids against {len(dst_ids)} dst ids")
    src = _descriptors("src", src_table, src_ids)
    dst = _descriptors("dst", dst_table, dst_ids)
    if (at := first_at(src.length != dst.length)) is not None:
        raise DeliveryError(
            f"position {at}: src id {int(src_ids[at])} has {src.length[at]} bytes,"
            f" dst id {int(dst_ids[at])} has {dst.length[at]}"
        )
    rows = np.column_stack((src.addr, dst.addr, src.length))
    return [
        Copies(
            Memory(src_rank, mem_types[0], src_device),
            Memory(dst_rank, mem_types[1], dst_device),
            rows[(src.device == src_device) & (dst.device == dst_device)],
        )
        for src_device, dst_device in sorted(set(zip(src.device.tolist(), dst.device.tolist(), strict=True)))
    ]


def planned_copies(
    plans: Mapping[int, Plan], src_blocks: Mapping[int, Tables], dst_blocks: Mapping[int, Tables], **how: Any
) -> list[Copies]:
    """What NIXL copies for one request when every dst rank follows its plan.

    ``plans``: dst rank -> its ``Plan``; the tables are by rank, one entry per group. ``how`` goes
    to ``pair.desc_ids`` (``order``, ``null_block``, ``regions``).

    >>> from nixldesc import Layout, Region, plan
    >>> src = Layout([Region("K", 0x1000, 16, 8)])
    >>> dst = Layout([Region("K", 0x8000, 16, 8)])
    >>> [copies] = planned_copies({0: plan(dst, {0: src})}, {0: [[3]]}, {0: [[5]]})
    >>> copies.rows.tolist() == [[0x1030, 0x8050, 16]]
    True
    """
    found: list[Copies] = []
    for dst_rank, plan in plans.items():
        for src_rank, pairs in plan.items():
            for pair in pairs:
                ids = pair.desc_ids(src_blocks[src_rank], dst_blocks[dst_rank], **how)
                tables = (pair.src.table(), pair.dst.table())
                found += nixl_copies(src_rank, dst_rank, *tables, *ids, mem_types=pair.mem_types)
    return found


def _descriptors(side: str, table: Addresses, ids: Ids) -> Resolved:
    """Where the descriptors are that the ids name."""
    if table.shape[1] == 3:
        table = np.column_stack((table, table[:, 1], np.ones(len(table), np.uint64)))
    rows = Rows.counted("", table)
    wanted = np.asarray(ids, np.int64)
    if (at := first_at((wanted < 0) | (wanted >= rows.num_descs))) is not None:
        raise DeliveryError(
            f"{side} id {wanted[at]} at position {at} is outside a list of {rows.num_descs} descriptors"
        )
    return rows.resolve(wanted)
