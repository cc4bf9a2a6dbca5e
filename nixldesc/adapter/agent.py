"""What the adapter asks of an agent, what it knows of NIXL's answers, and the words for those that are refusals."""

from __future__ import annotations

import logging
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from nixldesc import GeometryError, TransferError

__all__ = ["Agent", "Route", "Status", "check_mem_type", "failure", "is_answer", "log", "refused", "silent_backends"]

Status = Literal["PROC", "DONE", "ERR"]

#: Refusals are warnings here and failures are errors, besides being raised or told by the Transfer.
log = logging.getLogger("nixldesc")
log.addHandler(logging.NullHandler())

#: What nixl 1.4 to 1.5.1 calls memory ("cpu" and "cuda" are names of its past, which agents list themselves).
MEM_TYPES = ("DRAM", "VRAM", "FILE", "BLOCK", "OBJ")

# NIXL takes a notification into a handle only when one backend moves both sides and can notify. Backends for storage
# cannot (nixl 1.5.1, POSIX plugin: NIXL_ERR_BACKEND at make_prepped_xfer, or at post).
_MEMORY = ("DRAM", "VRAM")
_STORAGE_PLUGINS = frozenset(("AZURE_BLOB", "CUDA_GDS", "GDS", "GDS_MT", "GPUNETIO", "GUSLI", "HF3FS", "OBJ", "POSIX"))

# With these a backend says that a transfer is at its end, or was never posted. NIXL_ERR_NOT_FOUND is none of them: it
# says that the peer's metadata is gone, and the backend, which was not asked, moves on (nixl 1.5.1, UCX over tcp).
_ENDS = frozenset(("ERR", "NIXL_ERR_BACKEND", "NIXL_ERR_CANCELED", "NIXL_ERR_NOT_POSTED", "NIXL_ERR_REMOTE_DISCONNECT"))
# With these NIXL refuses to post before its backend hears of it.
_UNPOSTED = frozenset(
    ("NIXL_ERR_INVALID_PARAM", "NIXL_ERR_MISMATCH", "NIXL_ERR_NOT_ALLOWED", "NIXL_ERR_NOT_FOUND",
     "NIXL_ERR_NOT_SUPPORTED", "NIXL_ERR_REPOST_ACTIVE")
)  # fmt: skip


class Agent(Protocol):
    """What is used of ``nixl.nixl_agent`` (nixl 1.4 to 1.5.1, also ROCm's ``nixl_rocm``); LoopbackAgent has it too.

    >>> import numpy as np
    >>> from nixldesc.testing import LoopbackAgent
    >>> agent: Agent = LoopbackAgent("a")
    >>> memory = np.arange(16, dtype=np.uint8)
    >>> registered = agent.register_memory([(memory.ctypes.data, 16, 0, "")], "DRAM")
    >>> rows = np.array([[memory.ctypes.data, 8, 0, 8, 2]], np.uint64)
    >>> here, there = (agent.prep_xfer_dlist(name, rows, "DRAM") for name in ("NIXL_INIT_AGENT", "a"))
    >>> xfer = agent.make_prepped_xfer("READ", here, [0], there, [1], b"")
    >>> agent.transfer(xfer), agent.check_xfer_state(xfer), memory[:2].tolist()
    ('DONE', 'DONE', [8, 9])
    >>> agent.send_notif("a", b"to itself")
    >>> agent.release_xfer_handle(xfer)
    >>> [agent.release_dlist_handle(handle) for handle in (there, here)]
    [None, None]
    >>> agent.deregister_memory(registered)
    >>> agent.remove_remote_agent("b")
    """

    def register_memory(self, reg_list: Any, mem_type: str) -> Any:
        """Register ``(addr, len, device_id, key)`` tuples of one memory type."""

    def deregister_memory(self, dereg_list: Any) -> None:
        """Forget what `register_memory` returned."""

    def remove_remote_agent(self, agent: str) -> None:
        """Forget a peer's metadata."""

    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: str) -> Any:
        """Prepare an N x 5 (or N x 3) list of a peer, or of "NIXL_INIT_AGENT"."""

    def release_dlist_handle(self, handle: Any) -> None:
        """Release a prepared list."""

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: Any,
        local_indices: Any,
        remote_xfer_side: Any,
        remote_indices: Any,
        notif_msg: bytes,
    ) -> Any:
        """Make a transfer of ids of two prepared lists."""

    def transfer(self, handle: Any) -> str:
        """Post a transfer: "PROC", "DONE" or "ERR", or an exception whose text is NIXL's status."""

    def check_xfer_state(self, handle: Any) -> str:
        """Move a transfer on and tell its state, as `transfer` does."""

    def release_xfer_handle(self, handle: Any) -> None:
        """Release a transfer; one in flight is cancelled, as far as its backend can."""

    def send_notif(self, remote_agent_name: str, notif_msg: bytes) -> None:
        """Send a message that belongs to no transfer."""


class Route(NamedTuple):
    """The memory types of one pair of lists: in words, and whether NIXL can carry a notification along."""

    words: str
    carries: bool

    @classmethod
    def of(cls, src: str, dst: str) -> Route:
        """Return the route between two memory types."""
        return cls(f"{src} to {dst}", src in _MEMORY and dst in _MEMORY)


_Error = TypeVar("_Error", bound=BaseException)


def refused(error: _Error) -> _Error:
    """Log a refusal and return it, to be raised."""
    log.warning("%s", str(error))  # a handler that keeps records must not keep frames, handles and lists
    return error


def failure(peer_name: str, what: str, step: str, why: BaseException | str, advice: str = "") -> TransferError:
    """Return the TransferError of a step that NIXL refused; its cause is NIXL's exception.

    NIXL raises classes of its own whose text is the status word; whatever else comes keeps its class in the message.
    The cause loses its traceback, which would hold this library's frames, and so handles and lists, in a cycle.
    """
    words = str(why).partition("\n")[0][:200]
    if isinstance(why, BaseException) and not words.startswith("NIXL_"):
        words = f"{type(why).__name__}: {words}" if words else type(why).__name__
    error = TransferError(f"peer {peer_name!r}, {what}: {step} failed with {words}{advice}")
    if isinstance(why, BaseException):
        error.__cause__ = why.with_traceback(None)
    return error


def is_answer(step: str, why: BaseException | str) -> bool:
    """Whether what NIXL said at "poll" or "post" means that nothing of the transfer is under way any more."""
    word = str(why).partition(":")[0]
    return word in _ENDS or (step == "post" and word in _UNPOSTED)


def check_mem_type(agent: Agent, what: str, mem_type: str) -> None:
    """Refuse a memory type that this agent's NIXL has no name for (it would say KeyError)."""
    names = tuple(getattr(agent, "nixl_mems", MEM_TYPES))
    if mem_type not in names:
        known = [name for name in names if name in MEM_TYPES]
        meant = next((f"; is {name!r} meant?" for name in names if name.lower() == mem_type.lower()), "")
        raise refused(
            GeometryError(f"{what}: mem_type {mem_type!r} is none that NIXL knows ({', '.join(known)}){meant}")
        )


def silent_backends(agent: Agent) -> str:
    """Return the agent's backends where none of them can notify anybody, else ""."""
    names = tuple(getattr(agent, "backends", ()))
    return ", ".join(names) if names and _STORAGE_PLUGINS.issuperset(names) else ""
