"""What is checked of every value of a stranger's message, whichever key it stands under: lists, numbers, names.

Classes of their own may say anything of themselves, so a list is read by `list`'s own methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nixldesc._check import MAX_NAME, as_int, as_name, brief, few
from nixldesc.errors import GeometryError
from nixldesc.memory.sections import MAX_AXES

__all__ = [
    "MAX_MEM_TYPES",
    "MAX_NAME_BYTES",
    "MAX_REGIONS",
    "as_axes",
    "as_list",
    "as_plain",
    "as_size",
    "integers",
    "names_of",
    "prove_keys",
    "prove_mem_types",
    "weight",
]

#: More than any rank has. Numbered names are few bytes, so what they stand for is bounded here, before it is memory:
#: regions, and the bytes of all names.
MAX_REGIONS = 3 * 2**14
MAX_NAME_BYTES = 2**23
#: NIXL 1.5.1 has five; each two that meet are lists of their own.
MAX_MEM_TYPES = 16


def prove_mem_types(mem_types: Iterable[str]) -> None:
    """Refuse more kinds of memory than there can be."""
    kinds = set(mem_types)
    if len(kinds) > MAX_MEM_TYPES:
        raise GeometryError(
            f"layout: its regions lie in {len(kinds)} types of memory, at most {MAX_MEM_TYPES} are read"
        )


def prove_keys(d: Any, known: Sequence[str], needed: Sequence[str], what: str) -> None:
    """Refuse what is no dict, has a key that is not known, or lacks one that is needed."""
    if not isinstance(d, dict):
        raise GeometryError(f"{what} must be a dict, got {brief(d)}")
    odd = [key for key in d if key not in known]
    if odd:
        raise GeometryError(f"{what}: unknown key {brief(odd[0])}; known keys are {few(known, len(known))}")
    for key in needed:
        if key not in d:
            raise GeometryError(f"{what}: key {key!r} is missing")


def as_list(value: Any, what: str) -> Sequence[Any]:
    """Return a list or tuple of a stranger's as one that has no words of its own."""
    if type(value) is list or type(value) is tuple:
        return value
    if isinstance(value, list):
        return list(list.__iter__(value))
    if isinstance(value, tuple):
        return list(tuple.__iter__(value))
    raise GeometryError(f"{what} must be a list, got {brief(value)}")


def as_axes(value: Any, what: str) -> Sequence[Any]:
    """Return a section's list of axes, before a million of them are made."""
    axes = as_list(value, f"{what}: axes")
    if len(axes) > MAX_AXES:
        raise GeometryError(f"{what}: {len(axes)} axes, at most {MAX_AXES} are supported")
    return axes


def integers(value: Any, what: str) -> Sequence[int]:
    """Return a list of integers."""
    items = as_list(value, what)
    if set(map(type, items)) - {int}:
        return [as_int(item, f"{what}[{i}]") for i, item in enumerate(items)]
    return items


def as_size(value: Any, what: str) -> int:
    """Return an integer that fits uint64."""
    number = value if type(value) is int else as_int(value, what)
    if not 0 <= number < 2**64:
        raise GeometryError(f"{what} must be in 0 to 2**64 - 1, got {brief(number)}")
    return number


def as_plain(value: Any, kind: type, what: str) -> Any:
    """Return a value of that very type."""
    if type(value) is not kind:
        raise GeometryError(f"{what} must be a {kind.__name__}, got {brief(value)}")
    return value


def names_of(value: Any, what: str, limit: int = MAX_REGIONS) -> tuple[str, ...]:
    """Return names, numbered ones written out, at most `limit` of them."""
    names: list[str] = []
    numbered = 0
    for i, item in enumerate(as_list(value, what)):
        if type(item) is str and 0 < len(item) <= MAX_NAME:
            names.append(item)
        elif isinstance(item, (list, tuple)):
            if len(item) != 4 or not isinstance(item[0], str) or not isinstance(item[3], str):
                raise GeometryError(f"{what}[{i}] must be a name or [prefix, first, count, suffix], got {brief(item)}")
            first, count = as_int(item[1], f"{what}[{i}]: first"), as_int(item[2], f"{what}[{i}]: count")
            length = weight(item[0]) + weight(item[3]) + 10
            numbered += max(count, 0) * length
            as_name(item[0] + "0" + item[3], f"{what}[{i}]")
            if not 0 <= first < 2**31 or not 0 < count <= limit or numbered > MAX_NAME_BYTES:
                raise GeometryError(
                    f"{what}[{i}]: {brief(count)} names numbered from {brief(first)} on are no names of regions"
                )
            names += [f"{item[0]}{number}{item[3]}" for number in range(first, first + count)]
        else:
            names.append(as_name(item, f"{what}[{i}]"))
        if len(names) > limit:
            raise GeometryError(f"{what}: more than {limit} names")
    return tuple(names)


def weight(name: str) -> int:
    """Return the bytes of a name's characters in memory, at most."""
    return len(name) if name.isascii() else 4 * len(name)
