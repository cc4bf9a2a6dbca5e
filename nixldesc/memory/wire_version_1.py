"""The previous version of a layout as plain data, an object per region, read so that a fleet can be upgraded in turn.

Version 1::

    {"version": 1, "cp_rank": 0, "cp_size": 1, "regions": [
        {"name": "layer0", "base_addr": 4096, "block_len": 4096, "num_blocks": 100, "groups": [0],
         "sections": [{"name": "layer0", "itemsize": 1,
                       "axes": [["head", 0, 2], ["token", 0, 16], ["byte", 0, 128]]}]}]}

What has its default value is left out. Everything that comes in is a stranger's word: types, keys and sizes are
checked here, geometry where a Layout is made.
"""

from __future__ import annotations

from typing import Any

from nixldesc._check import as_name, brief
from nixldesc.errors import GeometryError
from nixldesc.memory.region import Region
from nixldesc.memory.sections import Axis, Section
from nixldesc.memory.wire_checks import as_axes, as_list, as_size, prove_keys, prove_mem_types

__all__ = ["layout_from_version_1"]

_LAYOUT_KEYS = ("version", "cp_rank", "cp_size", "regions")
_REGION_INTS = ("base_addr", "block_len", "num_blocks", "block_stride", "device_id", "sub_blocks", "sub_stride")
_REGION_KEYS = ("name", "mem_type", "groups", "sections", *_REGION_INTS)
_SECTION_INTS = ("itemsize", "offset")
_SECTION_KEYS = ("name", "axes", "strides", "dtype", "cp", *_SECTION_INTS)


def layout_from_version_1(d: Any) -> tuple[list[Region], tuple[int, int]]:
    """Return the regions and ``(cp_rank, cp_size)``; :class:`GeometryError` or :class:`TypeError` for anything else."""
    prove_keys(d, _LAYOUT_KEYS, ("regions",), "layout")
    regions = [
        _region(item, f"layout: regions[{i}]") for i, item in enumerate(as_list(d["regions"], "layout: regions"))
    ]
    prove_mem_types([region.mem_type for region in regions])
    return regions, (as_size(d.get("cp_rank", 0), "layout: cp_rank"), as_size(d.get("cp_size", 1), "layout: cp_size"))


def _region(d: Any, what: str) -> Region:
    prove_keys(d, _REGION_KEYS, ("name", "base_addr", "block_len", "num_blocks"), what)
    fields: dict[str, Any] = {key: as_size(d[key], f"{what}: {key}") for key in _REGION_INTS if key in d}
    if "mem_type" in d:
        fields["mem_type"] = as_name(d["mem_type"], f"{what}: mem_type")
    if d.get("groups") is not None:
        groups = as_list(d["groups"], f"{what}: groups")
        fields["groups"] = [as_size(group, f"{what}: groups[{i}]") for i, group in enumerate(groups)]
    if d.get("sections") is not None:
        sections = as_list(d["sections"], f"{what}: sections")
        fields["sections"] = [_section(item, f"{what}: sections[{i}]") for i, item in enumerate(sections)]
    return Region(as_name(d["name"], f"{what}: name"), **fields)


def _section(d: Any, what: str) -> Section:
    prove_keys(d, _SECTION_KEYS, ("name", "axes", "itemsize"), what)
    fields: dict[str, Any] = {key: as_size(d[key], f"{what}: {key}") for key in _SECTION_INTS if key in d}
    if "strides" in d:
        strides = as_list(d["strides"], f"{what}: strides")
        fields["strides"] = [as_size(step, f"{what}: strides[{i}]") for i, step in enumerate(strides)]
    fields.update({key: d[key] for key in ("dtype", "cp") if key in d})
    axes = [_axis(item, f"{what}: axes[{i}]") for i, item in enumerate(as_axes(d["axes"], what))]
    return Section(as_name(d["name"], f"{what}: name"), axes, **fields)


def _axis(item: Any, what: str) -> Axis:
    if not isinstance(item, (list, tuple)) or len(item) != 3:
        raise GeometryError(f"{what} must be [name, start, stop], got {brief(item)}")
    return Axis(
        as_name(item[0], f"{what}: name"), as_size(item[1], f"{what}: start"), as_size(item[2], f"{what}: stop")
    )
