"""One request over all its sources: the destination's lists are read once, equal work is done once.

::

    source 0   lists A   heads 0-3  \\
    source 1   lists A   heads 4-7   }  to the same dst lists: pairs whose regions are numbered alike give equal ids,
    source 2   lists B   heads 8-11 /   so source 1 takes source 0's; source 2 has blocks of its own
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from nixldesc._check import as_names, brief, few
from nixldesc.errors import NixldescError, PeerMismatchError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import as_null
from nixldesc.request.blocks import Blocks
from nixldesc.request.lists import BlockTables, split_lists
from nixldesc.request.moves import IdPair
from nixldesc.request.pair import DlistPair

__all__ = ["OverSources"]

#: Which sources name the same lists hardly varies; of what varies so much nothing is remembered.
_MOST_WORKS = 64


class _Call(NamedTuple):
    """One call of a pair, for all that are alike."""

    rank: int
    pair: DlistPair
    sections: tuple[str, ...] | None


class _Work(NamedTuple):
    """What sources with the same lists have to call, and which ranks take which calls' ids, one for each pair."""

    calls: tuple[_Call, ...]
    taken: Mapping[tuple[int, ...], Sequence[int]]


class OverSources:
    """The pairs of all sources, and which of them give equal ids for equal lists; `known`: also who sends nothing.

    >>> from nixldesc import Layout, Region
    >>> pair = DlistPair(Layout([Region("k", 0, 16, 64)]), Layout([Region("k", 0, 16, 64)]))
    >>> found = OverSources({0: (pair,), 2: (pair,)}).ids({0: [[5, 6]], 2: [[7, 8]]}, [[41, 40]])
    >>> {source: [ids.tolist() for ids in of[0]] for source, of in found.items()}
    {0: [[6, 5], [40, 41]], 2: [[8, 7], [40, 41]]}
    """

    __slots__ = ("_known", "_pairs", "_works")

    def __init__(self, pairs: Mapping[int, Sequence[DlistPair]], known: Iterable[int] = ()) -> None:
        self._pairs, self._known = pairs, frozenset((*pairs, *known))
        self._works: dict[Any, _Work] = {}

    def ids(
        self,
        src_blocks: Mapping[int, BlockTables],
        dst_blocks: BlockTables,
        *,
        order: Literal["merge", "given"] = "merge",
        null_block: int | None = None,
        tokens: int | None = None,
        sections: Iterable[str] | None = None,
    ) -> dict[int, tuple[IdPair, ...]]:
        """Return ``{source rank: ((src_ids, dst_ids), ...)}``, one for each pair, of sources that `src_blocks` names.

        Options as of :meth:`DlistPair.desc_ids`; of `sections` each pair takes those that it moves. Sources whose ids
        are equal share the arrays: they are to be read, not written to. An error names the source.
        """
        null_block = as_null(null_block)
        self._check_sources(src_blocks)
        wanted = None if sections is None else self._check_sections(as_names(sections, "sections"))
        how: dict[str, Any] = {"order": order, "null_block": null_block, "tokens": tokens}
        dst = _snapshot(dst_blocks, "dst_blocks", null_block)
        sides = self._sides(src_blocks, null_block)
        works = [self._work(tuple(ranks), len(src), len(dst), wanted) for src, ranks in sides]
        if sum([len(work.calls) for work in works]) > 1:  # what several calls read is read for all of them
            dst = _read_once(dst, "dst_blocks", null_block)
        found: dict[int, tuple[IdPair, ...]] = {}
        for (src, _), work in zip(sides, works, strict=True):
            lists = src if len(work.calls) == 1 else _read_once(src, "src_blocks", null_block)
            done = [_ids(call, lists, dst, how) for call in work.calls]
            for calls, ranks in work.taken.items():
                found.update(dict.fromkeys(ranks, tuple([done[call] for call in calls])))
        return found if len(works) == 1 == len(works[0].taken) else {r: found[r] for r in self._pairs if r in found}

    def _check_sources(self, src_blocks: Any) -> None:
        if type(src_blocks) is not dict and not isinstance(src_blocks, Mapping):
            raise TypeError(f"src_blocks must map source ranks to block lists, got {brief(src_blocks)}")
        strangers = [rank for rank in src_blocks if rank not in self._known]
        if strangers:
            raise PeerMismatchError(
                f"src_blocks names source {few(map(str, strangers))}, which sends nothing here; sources are "
                f"{', '.join(map(str, self._pairs)) or 'none'}"
            )

    def _check_sections(self, wanted: tuple[str, ...]) -> frozenset[str]:
        known = {name for own in self._pairs.values() for pair in own for name in pair.sections}
        for name in wanted:
            if name not in known:
                raise PeerMismatchError(f"no source sends a section {name!r}; sections are {few(sorted(known))}")
        return frozenset(wanted)

    def _sides(self, src_blocks: Mapping[int, Any], null_block: int | None) -> list[tuple[Any, list[int]]]:
        """Return each different lists of sources, as many as there are now, and who has them."""
        sides: list[tuple[Any, list[int]]] = []
        # By identity, which only what is kept alive has: a mapping may make its lists when it is asked.
        given = [(rank, src_blocks[rank]) for rank in self._pairs if rank in src_blocks]
        numbers: dict[int, int] = {}
        last: Any = None
        for rank, blocks in given:
            number = numbers.get(id(blocks))
            if number is None:
                if sides and _alike(blocks, last):  # copies come in a row; looking at all would be a square
                    number = len(sides) - 1
                else:
                    number = len(sides)
                    sides.append((_snapshot(blocks, f"src_blocks[{rank}]", null_block), []))
                numbers[id(blocks)] = number
                last = blocks
            sides[number][1].append(rank)
        return sides

    def _work(self, ranks: tuple[int, ...], num_src: int, num_dst: int, wanted: frozenset[str] | None) -> _Work:
        """Return what these sources have to call: pairs of equal `kin` once."""
        key = (ranks, num_src, num_dst, wanted)
        work = self._works.get(key)
        if work is None:
            if len(self._works) >= _MOST_WORKS:
                self._works.clear()
            work = self._works[key] = self._make_work(*key)
        return work

    def _make_work(self, ranks: tuple[int, ...], num_src: int, num_dst: int, wanted: frozenset[str] | None) -> _Work:
        calls: list[_Call] = []
        known: dict[Any, int] = {}
        taken: dict[tuple[int, ...], list[int]] = {}
        for rank in ranks:
            own = []
            for pair in self._pairs[rank]:
                sections = None if wanted is None else tuple([name for name in pair.sections if name in wanted])
                kin = pair.kin(num_src, num_dst, sections)
                # Lists that do not fit have none, which the call says.
                call = known.setdefault((len(calls),) if kin is None else kin, len(calls))
                if call == len(calls):
                    calls.append(_Call(rank, pair, sections))
                own.append(call)
            taken.setdefault(tuple(own), []).append(rank)
        return _Work(tuple(calls), taken)


def _ids(call: _Call, src: Any, dst: Any, how: Mapping[str, Any]) -> IdPair:
    try:
        return call.pair.desc_ids(src, dst, sections=call.sections, **how)
    except NixldescError as error:
        raise type(error)(f"source {call.rank}: {error}") from None


def _alike(one: Any, other: Any) -> bool:
    """Whether two sides of a request are plainly equal: the same lists, or lists of equal ids."""
    kinds = (list, tuple)
    if type(one) not in kinds or type(other) not in kinds or len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if a is not b and not (type(a) is type(b) is list and a == b):
            return False
    return True


def _snapshot(blocks: Any, what: str, null_block: int | None) -> Any:
    """Return one side's lists, as many as there are now: another thread may give or take one."""
    if type(blocks) is list or type(blocks) is tuple:
        return tuple(blocks)
    return _read_once(blocks, what, null_block)


def _read_once(blocks: Any, what: str, null_block: int | None) -> list[Any]:
    """Return the lists as int32 arrays; one that cannot be read so stays, to be refused in the words of its pair."""
    lists, skips = split_lists(blocks, what)
    taken: list[Any] = []
    for group, ids in enumerate(lists):
        array = ids
        if type(ids) is list or type(ids) is tuple:
            read = _kernels.expand_kernel_blocks(ids, 1, null_block, None)
            array = read if isinstance(read, np.ndarray) else ids
        skip = None if skips is None else skips[group]
        if isinstance(skip, np.ndarray):
            taken.append(Blocks(array, at=skip))
        else:
            taken.append(array if skip is None or skip < 0 else Blocks(array, skip))
    return taken
