"""What the callers of a plan give: layouts, ranks, rules, names; refused at the door, in their words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nixldesc._check import as_int, as_names, brief
from nixldesc.errors import PeerMismatchError
from nixldesc.memory.layout import Layout
from nixldesc.planning.families import Allowed, Source
from nixldesc.planning.sources import Rule, Seat

__all__ = ["as_allowed", "as_layout", "as_rule", "as_sources"]


def as_layout(layout: Any, *what: object) -> Layout:
    """Return a layout that says what its blocks mean; `what` it is, in words."""
    if not isinstance(layout, Layout):
        swapped = "; the destination comes first, then the sources by rank" if isinstance(layout, Mapping) else ""
        raise TypeError(f"{_words(what)} must be a Layout, got {brief(layout)}{swapped}")
    if () in layout.pages.kinds:
        bare = layout.pages.of.index(layout.pages.kinds.index(()))
        raise PeerMismatchError(
            f"{_words(what)}: region {layout.names[bare]!r} has no sections (it is cut into sub-blocks or derived by a "
            f"plan); a plan needs the layout that says what the blocks mean"
        )
    return layout


def _words(what: Iterable[object]) -> str:
    return " ".join(map(str, what))


def as_sources(srcs: Any) -> tuple[Source, ...]:
    """Return the sources by rank, ascending."""
    if type(srcs) is not dict and not isinstance(srcs, Mapping):
        raise TypeError(f"srcs must map source ranks to layouts, got {brief(srcs)}; a single source is {{0: layout}}")
    found = {as_int(rank, "source rank"): as_layout(layout, "source", rank) for rank, layout in srcs.items()}
    least = min(found, default=0)
    if least < 0:
        raise PeerMismatchError(f"source ranks must not be negative, got {least}")
    return tuple([Source(rank, found[rank]) for rank in sorted(found)])


_NONE: frozenset[str] = frozenset()


def as_allowed(allow_missing: Any) -> Allowed:
    """Return the names of sections that may have no source; True: any."""
    if type(allow_missing) is tuple and not allow_missing:  # mostly; an array would compare entry by entry
        return _NONE
    return True if allow_missing is True else frozenset(as_names(allow_missing, "allow_missing"))


def as_rule(senders: Any, dst_rank: Any, dst_size: Any, src_size: Any, sources: Sequence[Source]) -> Rule:
    """Return how the senders of a section are found."""
    if senders not in ("one", "all"):
        raise ValueError(f"senders must be 'one' or 'all', got {brief(senders)}")
    return Rule(_seat(dst_rank, dst_size, src_size, sources), senders == "all")


def _seat(dst_rank: Any, dst_size: Any, src_size: Any, sources: Sequence[Source]) -> Seat:
    given = dst_rank is not None or dst_size is not None
    rank = as_int(0 if dst_rank is None else dst_rank, "dst_rank")
    size = as_int(1 if dst_size is None else dst_size, "dst_size")
    if not 0 <= rank < size:
        raise PeerMismatchError(f"dst_rank must be in 0 to dst_size - 1, got rank {rank} of {size}")
    if src_size is None:
        return Seat(rank, size, 0, given)
    src_size = as_int(src_size, "src_size")
    keys = [source.key for source in sources]
    top = max(keys, default=0)
    if src_size <= top:
        raise PeerMismatchError(f"src_size is {src_size}, but source rank {top} is given")
    first = rank * src_size // size
    if first not in keys:
        raise PeerMismatchError(
            f"dst_rank {rank} of {size} begins its choice among {src_size} sources at rank {first}, whose layout is "
            f"not given (given are {', '.join(map(str, keys)) or 'none'}): who sends what holders share cannot be "
            f"known without it; describe rank {first} with its own tp_rank, addresses do not matter"
        )
    return Seat(rank, size, src_size, given)
