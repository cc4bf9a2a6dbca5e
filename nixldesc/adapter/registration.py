"""Memory registered with NIXL, and deregistered only when no prepared list names it any more."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from nixldesc import GeometryError, Layout, TransferError
from nixldesc._check import as_int, as_name
from nixldesc.adapter.lists import Range, drop, unless_named
from nixldesc.adapter.transfer import Agent

__all__ = ["Registration", "register"]


class Registration:
    """Memory that an agent has registered, made by ``register``; a context manager.

    Keep it as long as the memory is to be reachable. Dropped unreleased it costs a ResourceWarning, and the memory is
    deregistered then, unless prepared lists still name it.

    >>> import numpy as np
    >>> from nixldesc import Region
    >>> from nixldesc.testing import LoopbackAgent
    >>> memory, agent = np.zeros(64, np.uint8), LoopbackAgent("a")
    >>> registration = register(agent, Layout([Region("k", memory.ctypes.data, 16, 4, mem_type="DRAM")]))
    >>> registration.ranges == ((memory.ctypes.data, 64, 0, "DRAM"),)
    True
    >>> registration.release()
    >>> agent.live()["ranges"]
    0
    """

    __slots__ = ("__weakref__", "_agent", "_finalizer", "_handles", "ranges")

    def __init__(self, agent: Agent, ranges: Sequence[Range]) -> None:
        self._agent = agent
        self.ranges: tuple[Range, ...] = tuple(ranges)
        self._handles: list[Any] = []
        self._finalizer = weakref.finalize(self, _drop_registration, agent, self.ranges, self._handles)
        try:
            for mem_type in dict.fromkeys(mem_type for *_, mem_type in self.ranges):
                descs = [(addr, size, device, "") for addr, size, device, mem in self.ranges if mem == mem_type]
                self._handles.append(_register(agent, descs, mem_type))
        except BaseException:
            self._finalizer.detach()
            _deregister(agent, self._handles, [])
            raise

    def __repr__(self) -> str:
        return f"<Registration of {len(self.ranges)} ranges{'' if self._finalizer.alive else ', released'}>"

    def release(self) -> None:
        """Deregister, the last registered first; again does nothing. TransferError while prepared lists name it."""
        if not self._finalizer.alive:
            return
        refused: list[Exception] = []
        lists = unless_named(
            self._agent, self.ranges, lambda: _deregister(self._agent, self._handles, refused), wait=True
        )
        if lists:
            raise TransferError(f"{self!r}: {lists} prepared lists still name this memory; release their peers first")
        if refused:
            raise TransferError(f"{self!r}: deregister failed with {refused[0]}") from refused[0]
        self._finalizer.detach()

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _register(agent: Agent, descs: list[tuple[int, int, int, str]], mem_type: str) -> Any:
    try:
        return agent.register_memory(descs, mem_type)
    except Exception as e:
        raise TransferError(f"register of {len(descs)} {mem_type} ranges failed with {e}") from e


def _deregister(agent: Agent, handles: list[Any], refused: list[Exception]) -> None:
    """Deregister what can be, from the end; what cannot stays in `handles`, with the reasons in `refused`."""
    kept = []
    while handles:
        try:
            agent.deregister_memory(handles[-1])
        except Exception as e:
            refused.append(e.with_traceback(None))
            kept.append(handles[-1])
        handles.pop()
    handles.extend(reversed(kept))


def _drop_registration(agent: Agent, ranges: Sequence[Range], handles: list[Any]) -> None:
    def try_release() -> bool:
        unless_named(agent, ranges, lambda: _deregister(agent, handles, []), wait=False)
        return not handles

    drop(try_release)
    warnings.warn(f"a registration of {len(ranges)} ranges was never released", ResourceWarning, stacklevel=2)


def register(agent: Agent, layout: Layout, ranges: Iterable[Range] | None = None) -> Registration:
    """Register a layout's memory with NIXL, or `ranges` that hold it, ``(addr, len, device_id, mem_type)``.

    By default ``layout.memory_ranges()``. Whole allocations are usually better: fewer, and shared by several layouts.
    NIXL wants every row of a prepared list inside one registration, so a region that no single one of `ranges` holds
    is refused here (GeometryError); what NIXL refuses is a TransferError, and then nothing stays registered.

    >>> import numpy as np
    >>> from nixldesc import Region
    >>> from nixldesc.testing import LoopbackAgent
    >>> memory = np.zeros(64, np.uint8)
    >>> layout = Layout([Region("k", memory.ctypes.data + 16, 16, 3, mem_type="DRAM")])
    >>> with register(LoopbackAgent("a"), layout, [(memory.ctypes.data, 64, 0, "DRAM")]) as registration:
    ...     registration
    <Registration of 1 ranges>
    """
    if ranges is None:
        return Registration(agent, layout.memory_ranges())
    wanted = [_as_range(item, i) for i, item in enumerate(ranges)]
    for region in layout.regions:
        start, end = region.base_addr, region.base_addr + region.span
        memory = (region.device_id, region.mem_type)
        if not any(memory == (dev, mem) and addr <= start and end <= addr + size for addr, size, dev, mem in wanted):
            raise GeometryError(
                f"region {region.name!r} ({region.mem_type} of device {region.device_id}, bytes {start:#x} to {end:#x})"
                f" is not inside one of the {len(wanted)} ranges to register"
            )
    return Registration(agent, wanted)


def _as_range(item: Any, i: int) -> Range:
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 4:
        raise TypeError(f"ranges[{i}] must be (addr, len, device_id, mem_type), got {item!r:.80}")
    addr, size, device = (as_int(value, f"ranges[{i}]") for value in item[:3])
    return addr, size, device, as_name(item[3], f"ranges[{i}] mem_type")
