"""Memory in doubt: NIXL has not confirmed the end of a transfer that used it, and may still write there.

Only the end of the agent ends that (nixl 1.5.1, UCX over tcp: after ``remove_remote_agent``, and after the release of
transfer, lists and registration, a peer that came back to life still had its bytes written). So what is noted here
lives as long as its agent.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from nixldesc.adapter.agent import Agent
from nixldesc.adapter.ranges import Range, Spans

__all__ = ["in_doubt", "note_doubt"]

# By the agent's id. The reference is weak: who noted a doubt must not be who keeps it alive.
_doubts: dict[int, tuple[weakref.ref[Agent], list[Range]]] = {}


def note_doubt(agent: Agent, ranges: Iterable[Range]) -> None:
    """Remember that NIXL may still use these ranges of the agent's memory."""
    number = id(agent)
    if number not in _doubts:
        _doubts[number] = weakref.ref(agent, lambda _: _doubts.pop(number, None)), []
    _doubts[number][1].extend(ranges)


def in_doubt(agent: Agent, ranges: Iterable[Range]) -> list[Range]:
    """Return what of the agent's memory in doubt shares bytes with `ranges`."""
    _, noted = _doubts.get(id(agent), (None, []))
    mine = Spans(ranges)
    return [item for item in noted if mine.meet(Spans([item]))]
