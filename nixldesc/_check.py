"""The door's checks: what a number, a name and an ``out=`` must be, in one wording for the whole library."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nixldesc.errors import GeometryError

__all__ = [
    "MAX_NAME",
    "MAX_WORD",
    "as_int",
    "as_name",
    "as_names",
    "brief",
    "check_ids_out",
    "check_rows_out",
    "few",
    "is_many",
    "is_plain",
]


#: Characters of a region's or section's name: errors repeat it. Of an axis or a dtype: kept with their pages.
MAX_NAME = 2**10
MAX_WORD = 2**7


def brief(value: Any) -> str:
    """Return a short ``repr`` with the type's name; a value that cannot be shown costs its text, never the error.

    >>> brief(1.5), brief([1] * 100)
    ('1.5 (float)', '[1, 1, 1, 1, 1, 1, ...] (list)')
    """
    try:
        text = reprlib.repr(value)
    except Exception:  # a broken __repr__, an int of a million digits
        text = "a value"
    return f"{text:.80} ({type(value).__name__})"


def few(names: Iterable[str], limit: int = 6) -> str:
    """Return the first names, quoted, and how many more there are.

    >>> few(["k", "v", "s"], 2)
    "'k', 'v' and 1 more"
    """
    names = list(names)
    shown = ", ".join(map(repr, names[:limit]))
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def as_int(value: Any, what: str, error: type[Exception] = GeometryError) -> int:
    """Return `value` as an exact ``int``; floats, bools, strings and None are :class:`TypeError`.

    A bool is an int to Python but never a size or an address that somebody meant. `error` is for numbers so long
    that arithmetic with them would be the attack.
    """
    if type(value) is not int:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{what} must be an int, got {brief(value)}")
        try:
            value = operator.index(value)
        except Exception:  # whatever an object's own __index__ says
            raise TypeError(f"{what} must be an int, got {brief(value)}") from None
    if value.bit_length() > 256:
        raise error(f"{what} is a number of {value.bit_length()} bits; 64 are the most that mean anything")
    return int(value)


_PLAIN = (str, int, float, bool, bytes, type(None))


def is_plain(value: Any) -> bool:
    """Whether `value` is what a decoder makes of bytes: lists, dicts, numbers and strings, of no classes of their own.

    >>> is_plain({"a": [1, None]}), is_plain([object()])
    (True, False)
    """
    todo, seen = [value], set()
    while todo:
        item = todo.pop()
        if type(item) in _PLAIN:
            continue
        if type(item) not in (dict, list, tuple):
            return False
        if id(item) not in seen:
            seen.add(id(item))
            todo += [*item, *item.values()] if type(item) is dict else item
    return True


def as_name(value: Any, what: str, most: int = MAX_NAME) -> str:
    """Return `value`, a ``str`` of 1 to `most` characters: :class:`TypeError` or :class:`GeometryError` otherwise."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, got {brief(value)}")
    name: str = str.__str__(value)  # without what a class of its own may say of it
    if not name:
        raise GeometryError(f"{what} must not be empty")
    if len(name) > most:
        raise GeometryError(f"{what} must have at most {most} characters, got {len(name)}: {brief(name)}")
    return name


def is_many(value: Any) -> bool:
    """Whether `value` can stand for several items: iterable, and no text that would be read letter by letter."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray))


def as_names(value: Any, what: str) -> tuple[str, ...]:
    """Return an iterable of names as a tuple; a bare ``str`` is :class:`TypeError`."""
    if not is_many(value):
        raise TypeError(f"{what} must be several names, got {brief(value)}; a single name is written in a list")
    return tuple(as_name(item, f"{what}[{i}]") for i, item in enumerate(value))


_INT32 = np.dtype(np.int32)


def _own_shape(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that a subclass is, whatever shape it claims."""
    return array if type(array) is np.ndarray else np.ndarray.view(array, np.ndarray)


def check_ids_out(out: Any, *inputs: Any) -> None:
    """Refuse an `out` that is no writable, contiguous int32 vector of its own memory; its size is checked later."""
    if type(out) is np.ndarray and out.dtype is _INT32 and out.ndim == 1 and out.flags.carray:
        _check_shared(out, inputs)
        return
    if not isinstance(out, np.ndarray) or out.dtype != np.int32 or not out.dtype.isnative:
        got = f"dtype {out.dtype}" if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"out must be an int32 NumPy array, got {got}")
    _check_memory(_own_shape(out), 1, *inputs)


def _check_memory(out: NDArray[Any], ndim: int, *inputs: Any) -> None:
    """Refuse an `out` of another rank, not C-contiguous, read-only, or that shares memory with an input."""
    if out.ndim != ndim:
        raise ValueError(f"out must have {ndim} dimension{'s' * (ndim > 1)}, got shape {out.shape}")
    if not out.flags.c_contiguous or not out.flags.aligned:
        raise ValueError(f"out must be C-contiguous and aligned, got strides {out.strides} for shape {out.shape}")
    if not out.flags.writeable:
        raise ValueError("out must be writable, got a read-only array")
    _check_shared(out, inputs)


def check_rows_out(out: Any, shape: tuple[int, int], *inputs: Any) -> None:
    """Refuse an `out` that is no writable, C-contiguous uint64 array of exactly `shape` in its own memory."""
    if not isinstance(out, np.ndarray) or out.dtype != np.uint64 or not out.dtype.isnative:
        got = f"dtype {out.dtype}" if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"out must be a uint64 NumPy array, got {got}")
    own = _own_shape(out)
    _check_memory(own, 2, *inputs)
    if own.shape != shape:
        raise ValueError(f"out has shape {own.shape}, the result {shape}")


def _check_shared(out: NDArray[Any], inputs: tuple[Any, ...]) -> None:
    for item in inputs:
        if isinstance(item, (list, tuple, range)):
            continue
        if not isinstance(item, np.ndarray):
            try:
                item = np.asarray(item)  # a memoryview, an array.array, a tensor: whose memory is it?
            except Exception:  # what cannot be read is refused where it is read
                continue
        if np.may_share_memory(out, item):
            raise ValueError("out shares memory with an input")
