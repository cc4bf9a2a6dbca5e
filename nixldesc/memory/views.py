"""What an array says of its own memory: where it begins, how it steps, what an item is.

::

    a tensor                data_ptr(), stride(), ...    what its `device` says; none of torch is imported
    CuPy, Numba, ...        __cuda_array_interface__     VRAM; which device it does not say
    NumPy, ...              __array_interface__          DRAM, device 0

Nothing here touches the memory itself: a view of an array on another machine, or of none at all ("meta"), is as good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nixldesc._check import as_int, as_name, brief
from nixldesc.errors import GeometryError

__all__ = ["View", "read_view"]

_TENSOR = ("data_ptr", "shape", "stride", "element_size", "dtype", "device")
_INTERFACES = (("__cuda_array_interface__", "VRAM"), ("__array_interface__", "DRAM"))


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """An array's geometry: first address, sizes, strides and item size in bytes, dtype label, memory and device."""

    base_addr: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    itemsize: int
    dtype: str
    mem_type: str
    device_id: int


def read_view(what: str, array: Any, *, mem_type: str | None, device_id: int | None, base_addr: int | None) -> View:
    """Return the geometry of `array`; what the caller gives goes before what the array says.

    `what` begins every error. Raises :class:`TypeError` for what is no array, :class:`GeometryError` where neither
    the array nor the caller says an address or a device.
    """
    if base_addr is not None:
        base_addr = as_int(base_addr, f"{what}: base_addr")
    view = _read(what, array, base_addr)
    if base_addr is None and not view.base_addr:
        raise GeometryError(f"{what}: the array has no memory of its own (a meta tensor has none); give base_addr")
    if mem_type is not None:
        view = replace(view, mem_type=as_name(mem_type, f"{what}: mem_type"))
    if device_id is not None:
        view = replace(view, device_id=as_int(device_id, f"{what}: device_id"))
    elif view.device_id < 0:
        raise GeometryError(f"{what}: the array does not say which {view.mem_type} device it is on; give device_id")
    return view


def _read(what: str, array: Any, base_addr: int | None) -> View:
    """Return the array's words; a base_addr of 0 and a device_id of -1 are what it does not say."""
    # A tensor first: it knows its device, and one on a GPU has the interface too (or raises when asked for it).
    if all(hasattr(array, word) for word in _TENSOR):
        return _read_tensor(array, base_addr)
    for interface, mem_type in _INTERFACES:
        words = getattr(array, interface, None)
        if isinstance(words, dict):
            return _read_interface(array, words, mem_type, base_addr)
    raise TypeError(
        f"{what}: expected an array with __cuda_array_interface__ or __array_interface__, or a tensor with "
        f"{', '.join(_TENSOR)}; got {brief(array)}"
    )


def _read_tensor(tensor: Any, base_addr: int | None) -> View:
    kind, _, index = str(tensor.device).partition(":")
    if base_addr is None:
        base_addr = 0 if kind == "meta" else as_int(tensor.data_ptr(), "data_ptr()")
    itemsize = as_int(tensor.element_size(), "element_size()")
    return View(
        base_addr,
        tuple(as_int(size, "shape") for size in tensor.shape),
        tuple(as_int(step, "stride()") * itemsize for step in tensor.stride()),
        itemsize,
        str(tensor.dtype).removeprefix("torch."),
        "DRAM" if kind == "cpu" else "VRAM",
        int(index) if index else 0 if kind in ("cpu", "meta") else -1,
    )


def _read_interface(array: Any, words: dict[str, Any], mem_type: str, base_addr: int | None) -> View:
    if not isinstance(words.get("data"), tuple):  # The protocol lets it be a buffer with an offset; NumPy knows how.
        array = np.asarray(array)
        words = array.__array_interface__
    dtype = np.dtype(words["typestr"])
    shape = tuple(as_int(size, "shape") for size in words["shape"])
    strides = words.get("strides")
    if strides is None:
        strides, step = [], dtype.itemsize
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
    return View(
        as_int(words["data"][0] or 0, "data") if base_addr is None else base_addr,
        shape,
        tuple(as_int(step, "strides") for step in strides),
        dtype.itemsize,
        str(getattr(array, "dtype", dtype)),  # ml_dtypes' bfloat16 has a name, but no type string of its own
        mem_type,
        0 if mem_type == "DRAM" else -1,
    )
