"""How the two engines talk: JSON messages over a local socket, each behind its length; every wait has an end."""

from __future__ import annotations

import json
import select
import socket
from typing import Any

__all__ = ["PATIENCE", "Channel", "Gone"]

#: Seconds that an engine waits for the other one, for a transfer or for a notification.
PATIENCE = 30.0
_LONGEST = 1 << 26


class Gone(Exception):
    """The other engine has closed the socket or says nothing: what went wrong is for it to tell."""


class Channel:
    """One end of the socket.

    >>> mine, yours = map(Channel, socket.socketpair())
    >>> mine.send({"step": "hello"}), yours.ready(0.0), yours.receive("hello")
    (None, True, {'step': 'hello'})
    >>> mine.close()
    >>> yours.receive("anything")
    Traceback (most recent call last):
        ...
    nixldesc._cli.demo.wire.Gone: the other engine has gone
    >>> yours.close()
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.settimeout(PATIENCE)

    def send(self, message: dict[str, Any]) -> None:
        """Send one message, whose key ``"step"`` says which it is."""
        data = json.dumps(message).encode()
        try:
            self._socket.sendall(len(data).to_bytes(8, "big") + data)
        except OSError as error:
            raise Gone(f"the other engine has gone ({error})") from error

    def receive(self, step: str = "") -> dict[str, Any]:
        """Return the next message, of the step that is due ("": any)."""
        size = int.from_bytes(self._read(8), "big")
        if size > _LONGEST:
            raise ValueError(f"a message of {size:,} bytes is none of ours")
        message: dict[str, Any] = json.loads(self._read(size))
        if step and message["step"] != step:
            raise ValueError(f"the other engine says {message['step']!r}, but {step!r} is due")
        return message

    def ready(self, seconds: float) -> bool:
        """Whether a message (or the end) has come; waits so long for one."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def close(self) -> None:
        """Close this end; the other one sees it."""
        self._socket.close()

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self._socket.recv(min(size, 1 << 20))
            except TimeoutError:
                raise Gone(f"the other engine says nothing for {PATIENCE:.0f} s") from None
            except OSError as error:
                raise Gone(f"the other engine has gone ({error})") from error
            if not part:
                raise Gone("the other engine has gone")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
