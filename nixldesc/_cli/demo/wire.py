"""How the two engines talk: JSON messages over a local socket; every wait has an end."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["PATIENCE", "Channel", "Gone"]

#: Seconds that an engine waits for the other one, for a transfer or for a notification.
PATIENCE = 30.0


class Gone(Exception):
    """The other engine has closed the socket or says nothing: what went wrong is for it to tell."""


class Channel:
    """One end of the socket.

    >>> from multiprocessing import Pipe
    >>> mine, yours = map(Channel, Pipe())
    >>> mine.send({"step": "hello"}), yours.ready(0.0), yours.receive("hello")
    (None, True, {'step': 'hello'})
    >>> mine.close()
    >>> yours.receive("anything")
    Traceback (most recent call last):
        ...
    nixldesc._cli.demo.wire.Gone: the other engine has gone
    >>> yours.close()
    """

    def __init__(self, end: Connection) -> None:
        self._end = end

    def send(self, message: dict[str, Any]) -> None:
        """Send one message, whose key ``"step"`` says which it is."""
        try:
            self._end.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise Gone(f"the other engine has gone ({error})") from error

    def receive(self, step: str = "") -> dict[str, Any]:
        """Return the next message, of the step that is due ("": any)."""
        try:
            if not self.ready(PATIENCE):
                raise Gone(f"the other engine says nothing for {PATIENCE:.0f} s")
            message: dict[str, Any] = json.loads(self._end.recv_bytes())
        except EOFError:
            raise Gone("the other engine has gone") from None
        except OSError as error:
            raise Gone(f"the other engine has gone ({error})") from error
        if step and message["step"] != step:
            raise ValueError(f"the other engine says {message['step']!r}, but {step!r} is due")
        return message

    def ready(self, seconds: float) -> bool:
        """Whether a message (or the end) has come; waits so long for one."""
        return self._end.poll(seconds)

    def close(self) -> None:
        """Close this end; the other one sees it."""
        self._end.close()
