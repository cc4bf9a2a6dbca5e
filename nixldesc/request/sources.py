"""One request over all its sources: the destination's lists are read once, equal work is done once.

::

    source 0   lists A   heads 0-3  \\
    source 1   lists A   heads 4-7   }  to the same dst lists: pairs whose regions are numbered alike give equal ids,
    source 2   lists B   heads 8-11 /   so source 1 takes source 0's; source 2 has blocks of its own
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from nixldesc._check import as_names, brief, few
from nixldesc.errors import NixldescError, PeerMismatchError
from nixldesc.kernels import _kernels
from nixldesc.memory.ids import as_null
from nixldesc.request.blocks import Blocks
from nixldesc.request.lists import BlockTables, split_lists
from nixldesc.request.moves import IdPair
from nixldesc.request.pair import DlistPair

__all__ = ["ids_over_sources"]


def ids_over_sources(
    pairs: Mapping[int, Sequence[DlistPair]],
    src_blocks: Mapping[int, BlockTables],
    dst_blocks: BlockTables,
    *,
    order: Literal["merge", "given"] = "merge",
    null_block: int | None = None,
    tokens: int | None = None,
    sections: Iterable[str] | None = None,
) -> dict[int, tuple[IdPair, ...]]:
    """Return ``{source rank: ((src_ids, dst_ids), ...)}``, one for each pair of each source that `src_blocks` names.

    Options as of :meth:`DlistPair.desc_ids`; of `sections` each pair takes those that it moves. Sources whose ids are
    equal share the arrays: they are to be read, not written to. An error names the source.

    >>> from nixldesc import Layout, Region
    >>> pair = DlistPair(Layout([Region("k", 0, 16, 64)]), Layout([Region("k", 0, 16, 64)]))
    >>> found = ids_over_sources({0: (pair,), 2: (pair,)}, {0: [[5, 6]], 2: [[7, 8]]}, [[41, 40]])
    >>> {source: [ids.tolist() for ids in of[0]] for source, of in found.items()}
    {0: [[6, 5], [40, 41]], 2: [[8, 7], [40, 41]]}
    """
    null_block = as_null(null_block)
    _check_sources(pairs, src_blocks)
    wanted = None if sections is None else _check_sections(pairs, as_names(sections, "sections"))
    dst = _read_once(dst_blocks, "dst_blocks", null_block)
    how: dict[str, Any] = {"order": order, "null_block": null_block, "tokens": tokens}
    distinct: list[Any] = []
    done: dict[Any, IdPair] = {}
    found: dict[int, tuple[IdPair, ...]] = {}
    for rank, own in pairs.items():
        if rank not in src_blocks:
            continue
        try:
            number = _number(src_blocks[rank], distinct, f"src_blocks[{rank}]", null_block)
            src = distinct[number][1]
            ids = []
            for pair in own:
                chosen = None if wanted is None else tuple([name for name in pair.sections if name in wanted])
                kin = pair.kin(len(src), len(dst), chosen)
                known = done.get((kin, number)) if kin is not None else None
                if known is None:
                    known = done[kin, number] = pair.desc_ids(src, dst, sections=chosen, **how)
                ids.append(known)
            found[rank] = tuple(ids)
        except NixldescError as error:
            raise type(error)(f"source {rank}: {error}") from None
    return found


def _check_sources(pairs: Mapping[int, Any], src_blocks: Any) -> None:
    if not isinstance(src_blocks, Mapping):
        raise TypeError(f"src_blocks must map source ranks to block lists, got {brief(src_blocks)}")
    strangers = [rank for rank in src_blocks if rank not in pairs]
    if strangers:
        raise PeerMismatchError(
            f"src_blocks names source {few(map(str, strangers))}, which sends nothing here; sources are "
            f"{', '.join(map(str, pairs)) or 'none'}"
        )


def _check_sections(pairs: Mapping[int, Sequence[DlistPair]], wanted: tuple[str, ...]) -> frozenset[str]:
    known = {name for own in pairs.values() for pair in own for name in pair.sections}
    for name in wanted:
        if name not in known:
            raise PeerMismatchError(f"no source sends a section {name!r}; sections are {few(sorted(known))}")
    return frozenset(wanted)


def _number(blocks: Any, distinct: list[Any], what: str, null_block: int | None) -> int:
    """Return which of the `distinct` lists these are, read once; equal ones are the same."""
    for number, (given, _) in enumerate(distinct):
        if blocks is given:
            return number
    if distinct and _alike(blocks, distinct[-1][0]):  # copies come in a row; looking at all would be a square
        return len(distinct) - 1
    distinct.append((blocks, _read_once(blocks, what, null_block)))
    return len(distinct) - 1


def _alike(one: Any, other: Any) -> bool:
    """Whether two sides of a request are plainly equal: the same lists, or lists of equal ids."""
    kinds = (list, tuple)
    if type(one) not in kinds or type(other) not in kinds or len(one) != len(other):
        return False
    return all(a is b or (type(a) is type(b) is list and a == b) for a, b in zip(one, other, strict=True))


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
