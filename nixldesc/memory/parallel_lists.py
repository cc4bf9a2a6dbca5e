"""From the parallel lists that connectors exchange today to regions, once, at the door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nixldesc._check import as_int, brief, is_many
from nixldesc.errors import GeometryError
from nixldesc.memory.region import Region

__all__ = ["regions_from_columns"]

#: Column -> the field of a Region.
_FIELDS = {
    "block_lens": "block_len",
    "num_blocks": "num_blocks",
    "block_strides": "block_stride",
    "group_ids": "groups",
    "names": "name",
    "mem_types": "mem_type",
    "device_ids": "device_id",
    "sections": "sections",
    "sub_blocks": "sub_blocks",
}
_REQUIRED = {"block_lens", "num_blocks"}
#: Columns that may be one value for all regions.
_SHARED = {"num_blocks", "mem_types", "device_ids", "sub_blocks"}


def regions_from_columns(**columns: Any) -> list[Region]:
    """Return one region per entry; a column is None (the region's default), a sequence, or one shared value."""
    addresses = _column("base_addrs", columns.pop("base_addrs"), 0)
    size = len(addresses)
    lists = {
        _FIELDS[name]: _column(name, column, size)
        for name, column in columns.items()
        if column is not None or name in _REQUIRED
    }
    lists.setdefault("name", [f"region{i}" for i in range(size)])
    if "groups" in lists:
        lists["groups"] = [_groups(entry, i) for i, entry in enumerate(lists["groups"])]
    return [
        Region(base_addr=address, **{name: column[i] for name, column in lists.items()})
        for i, address in enumerate(addresses)
    ]


def _column(name: str, column: Any, size: int) -> Sequence[Any]:
    many = is_many(column) and not (isinstance(column, np.ndarray) and column.ndim == 0)
    if name in _SHARED and not many and column is not None:
        return [column] * size
    if not many:
        wanted = "one value or a sequence" if name in _SHARED else "a sequence"
        raise TypeError(f"from_columns: {name} must be {wanted} with one entry per region, got {brief(column)}")
    # Python objects from the start: an address in a NumPy scalar would do arithmetic in its own width.
    entries = column.tolist() if isinstance(column, np.ndarray) else list(column)
    if name != "base_addrs" and len(entries) != size:
        raise GeometryError(f"from_columns: {len(entries)} entries in {name}, but {size} in base_addrs")
    return entries


def _groups(entry: Any, index: int) -> tuple[int, ...] | None:
    if is_many(entry):
        return tuple(entry)
    group = as_int(entry, f"from_columns: group_ids[{index}]")
    return None if group == -1 else (group,)
