"""Failures on demand, the journal of calls, and the mailbox of a LoopbackAgent."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ._memory import LoopbackError

__all__ = ["STEPS", "Faults", "Mailbox"]

STEPS = ("register", "deregister", "prep", "make", "post", "poll", "notify", "release_xfer", "release_dlist")


@dataclass(slots=True)
class _Fault:
    step: str
    status: str
    after: int
    times: int


class Faults:
    """What an agent was told to fail at, and what it was asked to do so far."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[tuple[str, str]] = []
        self._faults: list[_Fault] = []

    def fail(self, step: str, status: str = "NIXL_ERR_BACKEND", *, after: int = 0, times: int = 1) -> None:
        """Let `step` fail `times` times, after `after` more calls that succeed.

        `step` is one of "register", "deregister", "prep", "make", "post", "poll", "notify",
        "release_xfer", "release_dlist". `status` is the word of the error raised; "ERR" lets post
        and poll return it instead, which the Python API of NIXL documents too.
        """
        if step not in STEPS:
            raise ValueError(f"step {step!r} is not one of {', '.join(STEPS)}")
        if status == "ERR" and step not in ("post", "poll"):
            raise ValueError(f"{step} returns no status; only post and poll can return 'ERR'")
        self._faults.append(_Fault(step, status, after, times))

    def _step(self, step: str, what: object) -> str:
        """Note a call in the journal; raise the failure it was told to have, or return "ERR"."""
        self.journal.append((step, str(what)))
        for fault in self._faults:
            if fault.step != step or not fault.times:
                continue
            if fault.after:
                fault.after -= 1
                continue
            fault.times -= 1
            if fault.status == "ERR":
                return "ERR"
            raise LoopbackError(fault.status, f"told to fail at {step}")
        return ""


class Mailbox:
    """The notifications that have come to an agent."""

    def __init__(self) -> None:
        self.notifs: dict[str, list[bytes]] = {}
        self._inbox: dict[str, list[bytes]] = defaultdict(list)
        self._inbox_lock = threading.Lock()

    def _receive(self, sender: str, message: bytes) -> None:
        with self._inbox_lock:
            self._inbox[sender].append(message)

    def get_new_notifs(self, backends: Sequence[str] = ()) -> dict[str, list[bytes]]:
        """Return what has come since the last call: sender -> messages."""
        with self._inbox_lock:
            new = dict(self._inbox)
            self._inbox.clear()
        return new

    def update_notifs(self, backends: Sequence[str] = ()) -> dict[str, list[bytes]]:
        """Move what has come into `notifs`, and return all of that."""
        for sender, messages in self.get_new_notifs().items():
            self.notifs.setdefault(sender, []).extend(messages)
        return self.notifs

    def check_remote_xfer_done(
        self, remote_agent_name: str, lookup_tag: bytes, backends: Sequence[str] = (), tag_is_prefix: bool = True
    ) -> bool:
        """Look for one message of a peer by its beginning (or any part), and take it out."""
        messages = self.update_notifs().get(remote_agent_name, [])
        for i, message in enumerate(messages):
            if message.startswith(lookup_tag) if tag_is_prefix else lookup_tag in message:
                del messages[i]
                return True
        return False
