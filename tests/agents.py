"""Agents for tests: a real one of NIXL, and buffers that either kind can register."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def real_agent(name: str, *backends: str, plugins: Sequence[str] = ("UCX",)) -> Any:
    """A nixl_agent with telemetry and `backends`, or else `plugins`; skips where nixl is not installed."""
    api = pytest.importorskip("nixl._api", reason="nixl is not installed: no real transfers")
    return api.nixl_agent(name, api.nixl_agent_config(capture_telemetry=True, backends=list(backends or plugins)))


def takes_strided(agent: Any) -> bool:
    """Whether this agent's NIXL knows N x 5 lists (nixl >= 1.5)."""
    buffer = np.zeros(64, np.uint8)
    registered = agent.register_memory([(buffer.ctypes.data, 64, 0, "")], "DRAM")
    try:
        row = np.array([[buffer.ctypes.data, 64, 0, 64, 1]], np.uint64)
        agent.release_dlist_handle(agent.prep_xfer_dlist("NIXL_INIT_AGENT", row, "DRAM"))
    except TypeError:
        return False
    finally:
        agent.deregister_memory(registered)
    return True


def run(agent: Any, handle: Any, *, seconds: float = 20) -> str:
    """Post a handle and poll it to its end."""
    state = agent.transfer(handle)
    deadline = time.monotonic() + seconds
    while state == "PROC" and time.monotonic() < deadline:
        state = agent.check_xfer_state(handle)
    return str(state)


def notifs(agent: Any, count: int, *, seconds: float = 20) -> dict[str, list[bytes]]:
    """All notifications, once `count` have come (or time is up); then a moment more, in case there are too many."""
    found: dict[str, list[bytes]] = {}

    def collect() -> bool:
        for sender, messages in agent.get_new_notifs().items():
            found.setdefault(sender, []).extend(messages)
        return sum(map(len, found.values())) >= count

    until(collect, seconds)
    time.sleep(0.01)
    collect()
    return found


def until(happens: Callable[[], bool], seconds: float = 20) -> bool:
    """Ask again and again; False when time is up."""
    deadline = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def painted(size: int, seed: int) -> Bytes:
    """Bytes that are all over the place."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
