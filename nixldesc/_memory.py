"""What was worked out once and may be asked for again: a bounded memory that forgets its oldest entries."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet

__all__ = ["Memory", "forget", "remembered"]

K = TypeVar("K")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])


class Memory(Generic[K, V]):
    """A dictionary of at most `size` entries; the oldest goes first. Threads may share it.

    >>> squares = Memory(2)
    >>> for number in (1, 2, 3):
    ...     squares.put(number, number * number)
    >>> squares.get(1), squares.get(2), squares.get(3)
    (None, 4, 9)
    """

    __slots__ = ("__weakref__", "_entries", "_size")

    def __init__(self, size: int) -> None:
        self._entries: dict[K, V] = {}
        self._size = size
        _ALL.add(self)

    def get(self, key: K) -> V | None:
        """Return what was put under `key`, None if it is not there."""
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Remember `value` and forget what is too old."""
        self._entries[key] = value
        if len(self._entries) > self._size:
            with suppress(StopIteration, RuntimeError):  # another thread forgets, too
                self._entries.pop(next(iter(self._entries)), None)

    def forget(self) -> None:
        """Forget everything: what is asked for next is worked out anew."""
        self._entries.clear()


_ALL: WeakSet[Memory[Any, Any]] = WeakSet()
_CACHED: list[Any] = []


def remembered(size: int) -> Callable[[F], F]:
    """Return a decorator for functions of what can be hashed, that keeps the last `size` results until :func:`forget`.

    >>> @remembered(2)
    ... def square(number):
    ...     return number * number
    >>> square(3), square(3)
    (9, 9)
    """

    def keep(function: F) -> F:
        cached = lru_cache(size)(function)
        _CACHED.append(cached)
        return cast("F", cached)

    return keep


def forget() -> None:
    """Let every memory forget everything: the next peer is met as if it were the first of its kind.

    >>> known = Memory(2)
    >>> known.put("a", 1)
    >>> forget()
    >>> known.get("a") is None
    True
    """
    for memory in list(_ALL):
        memory.forget()
    for cached in _CACHED:
        cached.cache_clear()
