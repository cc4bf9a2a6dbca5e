"""Whether a plan made for some layouts holds for others: alike but for addresses, devices, block counts, segments."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nixldesc.errors import PeerMismatchError
from nixldesc.memory.layout import Layout

__all__ = ["prove_same_shape"]

_NUMBERS = ("block_lens", "block_strides", "sub_blocks", "sub_strides", "runs", "run_strides")


def prove_same_shape(dst: Layout, new_dst: Layout, srcs: Mapping[int, Layout], new_srcs: Mapping[int, Layout]) -> None:
    """Raise :class:`PeerMismatchError` naming the first difference in shape."""
    if srcs.keys() != new_srcs.keys():
        raise PeerMismatchError(f"the plan was made for source ranks {sorted(srcs)}, bind got {sorted(new_srcs)}")
    for what, old, new in (("dst", dst, new_dst), *((f"source {key}", srcs[key], new_srcs[key]) for key in srcs)):
        if old.kind is not new.kind and not _same_shape(old, new):
            raise PeerMismatchError(f"{what}: {_difference(old, new)}; the plan was made for layouts of another shape")


def _same_shape(a: Layout, b: Layout) -> bool:
    if (a.cp_rank, a.cp_size, a.cp_tokens) != (b.cp_rank, b.cp_size, b.cp_tokens) or len(a.columns) != len(b.columns):
        return False
    # The names last: they are the longest.
    return (
        all(np.array_equal(getattr(a.columns, key), getattr(b.columns, key)) for key in _NUMBERS)
        and a.columns.groups == b.columns.groups
        and a.columns.mem_types == b.columns.mem_types
        and _same_pages(a, b)
        and a.pages.names == b.pages.names
        and tuple(a.names) == tuple(b.names)
    )


def _same_pages(a: Layout, b: Layout) -> bool:
    if len(a.pages.kinds) == len(b.pages.kinds) and a.pages.of == b.pages.of:
        pages = zip(a.pages.kinds, b.pages.kinds, strict=True)
        return all(x is y or [s.shape for s in x] == [s.shape for s in y] for x, y in pages)
    return a.shape() == b.shape()


def _difference(old: Layout, new: Layout) -> str:
    """Say what differs first, as a reader of the layouts would look for it."""
    for key in ("cp_rank", "cp_size", "cp_tokens"):
        if getattr(old, key) != getattr(new, key):
            return f"{key} is {getattr(new, key)}, the plan's is {getattr(old, key)}"
    if len(old.columns) != len(new.columns):
        return f"it has {len(new.columns)} regions, the plan's has {len(old.columns)}"
    for there, here in zip(old.regions, new.regions, strict=True):
        fields = (
            "name",
            "block_len",
            "block_stride",
            "groups",
            "mem_type",
            "sub_blocks",
            "sub_stride",
            "runs",
            "run_stride",
        )
        for key in fields:
            if getattr(there, key) != getattr(here, key):
                return f"region {here.name!r}: {key} is {getattr(here, key)!r}, the plan's is {getattr(there, key)!r}"
        for a, b in zip(there.sections, here.sections, strict=False):
            if a != b:
                return f"region {here.name!r}: section {b.name!r} is {b!r}, the plan's is {a!r}"
        if len(there.sections) != len(here.sections):
            return f"region {here.name!r} has {len(here.sections)} sections, the plan's has {len(there.sections)}"
    return "its shape differs"
