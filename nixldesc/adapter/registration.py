"""Memory registered with NIXL, and deregistered only when no prepared list names it any more."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from nixldesc import GeometryError, Layout, Region, TransferError
from nixldesc._check import as_int, as_name
from nixldesc.adapter.agent import Agent, check_mem_type, log, refused
from nixldesc.adapter.doubt import in_doubt as doubted
from nixldesc.adapter.lists import drop, unless_named
from nixldesc.adapter.ranges import Range, Spans

__all__ = ["Registration", "register"]


class Registration:
    """Memory that an agent has registered, made by ``register``; a context manager.

    Keep it as long as the memory is to be reachable. A ``with`` block that ends well raises TransferError while
    prepared lists name the memory; with an exception on its way it is deregistered when they are gone, by whoever
    prepares or releases next. Dropped unreleased it goes the same way and costs a ResourceWarning. Memory in doubt
    stays registered until the agent is gone.

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

    def __init__(self, agent: Agent, ranges: Sequence[Range], keys: Mapping[int, str]) -> None:
        self._agent = agent
        self.ranges: tuple[Range, ...] = tuple(ranges)
        self._handles: list[Any] = []
        self._finalizer = weakref.finalize(self, _drop_registration, agent, self.ranges, self._handles)
        self._finalizer.atexit = False
        try:
            for mem_type in dict.fromkeys(mem_type for *_, mem_type in self.ranges):
                descs = [
                    (addr, size, device, keys.get(device, "") if mem_type == "OBJ" else "")
                    for addr, size, device, mem in self.ranges
                    if mem == mem_type
                ]
                self._handles.append(_register(agent, descs, mem_type))
        except BaseException:
            self._finalizer.detach()
            _deregister(agent, self._handles, [])
            raise

    def __repr__(self) -> str:
        return f"<Registration of {len(self.ranges)} ranges{'' if self._finalizer.alive else ', released'}>"

    def release(self, *, in_doubt: bool = False) -> None:
        """Deregister, the last registered first; again does nothing.

        TransferError while prepared lists name the memory, and while memory of it is in doubt (a transfer's
        ``error.in_doubt``): NIXL may still write there. ``in_doubt=True`` deregisters all the same, for who keeps that
        memory allocated and out of use until the agent is gone.
        """
        if not self._finalizer.alive:
            return
        problems: list[Exception] = []

        def act() -> None:
            found = [] if in_doubt else doubted(self._agent, self.ranges)
            if found:
                size = sum(item[1] for item in found)
                raise refused(
                    TransferError(
                        f"{self!r}: {size:,} bytes of this memory are in doubt, NIXL may still use them; keep it until "
                        "the agent is gone, or release(in_doubt=True) and keep those bytes out of use"
                    )
                )
            _deregister(self._agent, self._handles, problems)

        lists = unless_named(self._agent, self.ranges, act, wait=True)
        if lists:
            raise refused(
                TransferError(f"{self!r}: {lists} prepared lists still name this memory; release their peers first")
            )
        if problems:
            raise refused(TransferError(f"{self!r}: deregister failed with {problems[0]}")) from problems[0]
        self._finalizer.detach()

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release()
        elif self._finalizer.detach() and not _let_go(self._agent, self.ranges, self._handles):
            log.warning("%s was left by %s; it goes after the lists that name it", repr(self), kind.__name__)


def _register(agent: Agent, descs: list[tuple[int, int, int, str]], mem_type: str) -> Any:
    try:
        return agent.register_memory(descs, mem_type)
    except Exception as e:
        advice = ""
        if mem_type in ("VRAM", "cuda"):
            advice = "; is this host memory? that is mem_type='DRAM', a Region's default is 'VRAM'"
        elif mem_type not in ("DRAM", "cpu"):
            have = ", ".join(getattr(agent, "backends", ())) or "none"
            advice = f"; has the agent a backend for {mem_type}? it has {have}"
        raise refused(TransferError(f"register of {len(descs)} {mem_type} ranges failed with {e}{advice}")) from e


def _deregister(agent: Agent, handles: list[Any], problems: list[Exception]) -> None:
    """Deregister what can be, from the end; what cannot stays in `handles`, with the reasons in `problems`."""
    kept = []
    while handles:
        try:
            agent.deregister_memory(handles[-1])
        except Exception as e:
            problems.append(e.with_traceback(None))
            kept.append(handles[-1])
        handles.pop()
    handles.extend(reversed(kept))


def _let_go(agent: Agent, ranges: Sequence[Range], handles: list[Any]) -> bool:
    """Deregister now, or later when no list names it; say whether it is done. Memory in doubt is left to the agent."""

    def act() -> None:
        if doubted(agent, ranges):
            log.warning("memory in doubt stays registered: %s", _memory(agent, ranges))
            handles.clear()
        else:
            _deregister(agent, handles, [])

    def try_release() -> bool:
        unless_named(agent, ranges, act, wait=False)
        return not handles

    drop(try_release)
    return not handles


def _drop_registration(agent: Agent, ranges: Sequence[Range], handles: list[Any]) -> None:
    words = f"a registration of {len(ranges)} ranges was never released: {_memory(agent, ranges)}"
    _let_go(agent, ranges, handles)
    warnings.warn(words, ResourceWarning, stacklevel=2)


def _memory(agent: Agent, ranges: Sequence[Range]) -> str:
    shown = [f"{size:,} bytes of {mem_type} at {addr:#x}" for addr, size, _, mem_type in ranges[:3]]
    more = [f"{len(ranges) - 3} more"] if len(ranges) > 3 else []
    return f"agent {getattr(agent, 'name', agent)!r}, {', '.join(shown + more)}"


def register(
    agent: Agent, layout: Layout, ranges: Iterable[Range] | None = None, keys: Mapping[int, str] | None = None
) -> Registration:
    """Register a layout's memory with NIXL, or `ranges` that hold it, ``(addr, len, device_id, mem_type)``.

    By default ``layout.memory_ranges()``. Whole allocations are usually better: fewer, and shared by several layouts.
    NIXL wants every row of a prepared list inside one registration, so a region (of a segmented one: a segment) that
    no single one of `ranges` holds is refused here (GeometryError); what NIXL refuses is a TransferError, and then
    nothing stays registered. `keys` are the objects' keys by device id for ``mem_type="OBJ"``; an object without one
    is named by its decimal device id.

    >>> import numpy as np
    >>> from nixldesc import Region
    >>> from nixldesc.testing import LoopbackAgent
    >>> memory = np.zeros(64, np.uint8)
    >>> layout = Layout([Region("k", memory.ctypes.data + 16, 16, 3, mem_type="DRAM")])
    >>> with register(LoopbackAgent("a"), layout, [(memory.ctypes.data, 64, 0, "DRAM")]) as registration:
    ...     registration
    <Registration of 1 ranges>
    """
    for region in layout.regions:
        check_mem_type(agent, f"region {region.name!r}", region.mem_type)
    wanted = layout.memory_ranges() if ranges is None else [_as_range(item, i) for i, item in enumerate(ranges)]
    if ranges is not None:
        for i, (*_, mem_type) in enumerate(wanted):
            check_mem_type(agent, f"ranges[{i}]", mem_type)
        held = Spans(wanted)
        for region in layout.regions:
            _check_held(region, held, len(wanted))
    return Registration(agent, wanted, _as_keys(keys, wanted))


def _check_held(region: Region, held: Spans, count: int) -> None:
    """Refuse a region of which a segment is not inside a single range."""
    segments, block = region.segments, region.reach
    firsts = segments[:, 0]
    lasts = firsts + (segments[:, 1] - np.uint64(1)) * np.uint64(region.block_stride) + np.uint64(block - 1)
    for device in np.unique(segments[:, 2]).tolist():
        of_device = np.flatnonzero(segments[:, 2] == device)
        bad = of_device[~held.hold(device, region.mem_type, firsts[of_device], lasts[of_device])]
        if len(bad):
            at = int(bad[0])
            which = f", segment {at}" if len(segments) > 1 else ""
            raise refused(
                GeometryError(
                    f"region {region.name!r}{which} ({region.mem_type} of device {device}, bytes {int(firsts[at]):#x} "
                    f"to {int(lasts[at]) + 1:#x}) is not inside one of the {count} ranges to register"
                )
            )


def _as_keys(keys: Any, wanted: Sequence[Range]) -> Mapping[int, str]:
    if keys is None:
        return {}
    if not isinstance(keys, Mapping):
        raise TypeError(f"keys must map device ids to object keys, got {keys!r:.80}")
    objects = {device for _, _, device, mem_type in wanted if mem_type == "OBJ"}
    found = {as_int(device, "keys: device id"): as_name(key, f"keys[{device!r}]") for device, key in keys.items()}
    stray = sorted(set(found) - objects)
    if stray:
        raise refused(GeometryError(f"keys name device {stray[0]}, which is no object (mem_type 'OBJ') to register"))
    return found


def _as_range(item: Any, i: int) -> Range:
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 4:
        raise TypeError(f"ranges[{i}] must be (addr, len, device_id, mem_type), got {item!r:.80}")
    addr, size, device = (as_int(value, f"ranges[{i}]") for value in item[:3])
    if addr < 0 or size <= 0 or device < 0 or addr + size > 1 << 64:
        raise GeometryError(f"ranges[{i}] must lie inside 2**64 bytes and not be empty, got {tuple(item)!r:.80}")
    return addr, size, device, as_name(item[3], f"ranges[{i}] mem_type")
