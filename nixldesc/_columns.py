"""From the parallel lists that connectors exchange today to regions, once, at the door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nixldesc._check import as_int, brief, is_many
from nixldesc.errors import GeometryError
from nixldesc.region import Region

__all__ = ["regions_from_columns"]

#: Columns that may be one value for all regions.
_SHARED = {"num_blocks", "mem_type", "device_id", "sub_blocks"}


def regions_from_columns(**columns: Any) -> list[Region]:
    """Return one region per entry; a column is None (the region's default), a sequence, or one shared value."""
    given = {name: column for name, column in columns.items() if column is not None}
    addresses = _column("base_addr", given.pop("base_addr"), 0)
    size = len(addresses)
    lists = {name: _column(name, column, size) for name, column in given.items()}
    for name, column in lists.items():
        if len(column) != size:
            raise GeometryError(f"from_columns: {len(column)} entries for {name}, but {size} base addresses")
    lists.setdefault("name", [f"region{i}" for i in range(size)])
    if "groups" in lists:
        lists["groups"] = [_groups(entry, i) for i, entry in enumerate(lists["groups"])]
    return [
        Region(base_addr=address, **{name: column[i] for name, column in lists.items()})
        for i, address in enumerate(addresses)
    ]


def _column(name: str, column: Any, size: int) -> Sequence[Any]:
    if name in _SHARED and (isinstance(column, str) or not is_many(column)):
        return [column] * size
    if not is_many(column):
        raise TypeError(f"from_columns: {name} must be a sequence with one entry per region, got {brief(column)}")
    # Python objects from the start: an address in a NumPy scalar would do arithmetic in its own width.
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def _groups(entry: Any, index: int) -> tuple[int, ...] | None:
    if is_many(entry):
        return tuple(entry)
    group = as_int(entry, f"from_columns: group_ids[{index}]")
    return None if group == -1 else (group,)
