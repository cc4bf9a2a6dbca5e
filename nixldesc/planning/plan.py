"""The overlap of one destination layout and all sources' layouts: every byte exactly once.

::

    Layout (dst rank) ----\\
                           plan()  ->  for each source rank: DlistPair(src: Layout, dst: Layout), equal rows and lengths
    Layout (src ranks) ---/

Sections meet by name, wherever they lie; ``sources`` chooses who sends what, ``overlap`` finds the runs of bytes; here
they become regions of derived layouts. The arithmetic is done once per distinct pair of page shapes, whatever the
number of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from nixldesc._check import as_int, as_names, brief, few, is_many
from nixldesc.errors import PeerMismatchError
from nixldesc.memory.ids import BlockIds
from nixldesc.memory.layout import Layout
from nixldesc.memory.sections import Section
from nixldesc.planning.delivery import Delivery, undelivered
from nixldesc.planning.lanes import pairs_of
from nixldesc.planning.overlap import Cut, Split
from nixldesc.planning.sources import Holder, Meeting, Seat, Take, place_of, shares_of
from nixldesc.request.blocks import Blocks, Place, Places
from nixldesc.request.pair import DlistPair

__all__ = ["Plan", "plan", "reader_counts"]

#: True: any section may lack a source.
AllowMissing = Literal[True] | Collection[str]


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class Plan(Mapping[int, "tuple[DlistPair, ...]"]):
    """What each source rank sends: a read-only mapping from source rank (ascending) to its pairs.

    `missing`: names of dst sections without any source (allowed by `allow_missing`). `unused`: names of source
    sections that dst does not have.

    >>> from nixldesc import Region
    >>> made = plan(Layout([Region("k", 0, 16, 4)]), {3: Layout([Region("k", 0, 16, 9), Region("v", 144, 16, 9)])})
    >>> list(made), made.missing, made.unused
    ([3], (), ('v',))
    """

    _pairs: Mapping[int, tuple[DlistPair, ...]]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    _deliveries: tuple[Delivery, ...] = field(repr=False)

    def __init__(
        self,
        pairs: Mapping[int, tuple[DlistPair, ...]],
        missing: tuple[str, ...],
        unused: tuple[str, ...],
        deliveries: tuple[Delivery, ...],
    ) -> None:
        object.__setattr__(self, "_pairs", MappingProxyType(dict(pairs)))
        object.__setattr__(self, "missing", missing)
        object.__setattr__(self, "unused", unused)
        object.__setattr__(self, "_deliveries", deliveries)

    def __getitem__(self, rank: int) -> tuple[DlistPair, ...]:
        return self._pairs[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (dict(self._pairs), self.missing, self.unused, self._deliveries)

    def __repr__(self) -> str:
        sends = ", ".join(f"{rank}: {len(pairs)} pair{'s' * (len(pairs) != 1)}" for rank, pairs in self.items())
        return f"Plan({{{sends}}}, missing={self.missing!r}, unused={self.unused!r})"

    def undelivered(
        self,
        src_blocks: Mapping[int, Sequence[BlockIds | Blocks]],
        dst_blocks: Sequence[BlockIds | Blocks],
        *,
        null_block: int | None = None,
    ) -> list[tuple[str, int, int, int]]:
        """Return what the dst lists name and no source fills: ``(section, dst block id, first token, last token + 1)``.

        `src_blocks` maps a source rank to its block lists (a rank that is left out fills nothing). A section without
        a token axis counts as one token a block. Null entries of dst are not named, those of a source fill nothing.
        Sections in `missing` are not repeated here.

        >>> from nixldesc import Region
        >>> made = plan(Layout([Region("k", 0, 16, 64)]), {0: Layout([Region("k", 0, 16, 64)])})
        >>> made.undelivered({0: [Blocks([10, 11])]}, [Blocks([40, 41, 42])])
        [('k', 42, 0, 1)]
        """
        return undelivered(self._deliveries, src_blocks, dst_blocks, null_block)


def plan(
    dst: Layout,
    srcs: Mapping[int, Layout],
    *,
    dst_rank: int = 0,
    dst_size: int = 1,
    src_size: int | None = None,
    allow_missing: AllowMissing = (),
) -> Plan:
    """Return how every byte of `dst` gets here from `srcs` (source rank -> layout), each exactly once.

    `dst_rank` of `dst_size` counts the destination ranks that hold the same sections: it spreads the load over
    sources with the same bytes. Give all ranks of the source engine; who knows only some of them passes
    ``src_size=P``, the number of TP ranks, and the keys are TP ranks. A writer plans for its reader and takes its own
    entry. Sections named in `allow_missing` (True: any) may have no source.

    Raises :class:`PeerMismatchError` for anything that cannot be delivered exactly, naming the section, the axis, what
    each side holds and what is missing; :class:`GeometryError` where one region alone exceeds 2**31 - 1 ids.

    >>> from nixldesc import Region, attention_sections
    >>> def rank(tp_rank, tp_size):
    ...     page = attention_sections("l0", num_kv_heads=4, tp_size=tp_size, tp_rank=tp_rank, block_tokens=16,
    ...                               token_head_bytes=8)
    ...     return Layout([Region("l0", 0, page[-1].end, 100, sections=page)])
    >>> made = plan(rank(1, 2), {r: rank(r, 4) for r in range(4)}, dst_rank=1, dst_size=2)
    >>> {source: [pair.dst.table().tolist() for pair in pairs] for source, pairs in made.items()}
    {2: [[[0, 128, 0, 256, 100]]], 3: [[[128, 128, 0, 256, 100]]]}
    """
    dst, srcs = _check_layout(dst, "dst"), _check_srcs(srcs)
    seat = _seat(dst_rank, dst_size, src_size, srcs)
    deliveries, missing, unused = _assign(dst, _holders(srcs), lambda name: seat, allow_missing)
    return Plan(pairs_of(dst, srcs, deliveries), missing, unused, tuple(deliveries))


def reader_counts(
    dsts: Sequence[Layout], srcs: Mapping[int, Layout], *, allow_missing: AllowMissing = ()
) -> dict[int, int]:
    """Return how many of the destination ranks `dsts` read from each source rank (zeros included).

    A source frees a request's blocks after so many have read them. Each rank's place is counted among the ranks that
    hold the section, as :func:`plan` wants it.

    >>> from nixldesc import Region
    >>> latent = Layout([Region("c", 0, 16, 4)])
    >>> reader_counts([latent, latent], {rank: latent for rank in range(4)})
    {0: 1, 1: 0, 2: 1, 3: 0}
    """
    srcs = _check_srcs(srcs)
    if not is_many(dsts) or isinstance(dsts, Mapping):
        raise TypeError(f"dsts must be the layouts of all destination ranks, got {brief(dsts)}")
    dsts = tuple(_check_layout(dst, f"dsts[{number}]") for number, dst in enumerate(dsts))
    names = [[section.name for region in dst.regions for section in region.sections] for dst in dsts]
    sizes = Counter(name for held in names for name in held)
    turn: Counter[str] = Counter()
    holders = _holders(srcs)
    counts = dict.fromkeys(srcs, 0)
    for dst, held in zip(dsts, names, strict=True):
        seats = {name: Seat(turn[name], sizes[name], 0) for name in held}
        turn.update(held)
        deliveries, _, _ = _assign(dst, holders, seats.__getitem__, allow_missing)
        for rank in {take.holder.rank for delivery in deliveries for take in delivery.takes}:
            counts[rank] += 1
    return counts


# ------------------------------------------------------------------------------------------------------- the door


def _check_layout(layout: Any, what: str) -> Layout:
    if not isinstance(layout, Layout):
        swapped = "; the destination comes first, then the sources by rank" if isinstance(layout, Mapping) else ""
        raise TypeError(f"{what} must be a Layout, got {brief(layout)}{swapped}")
    for region in layout.regions:
        if not region.sections:
            raise PeerMismatchError(
                f"{what}: region {region.name!r} has no sections (it is cut into sub-blocks or derived by a plan); "
                f"a plan needs the layout that says what the blocks mean"
            )
    return layout


def _check_srcs(srcs: Any) -> dict[int, Layout]:
    if not isinstance(srcs, Mapping):
        raise TypeError(f"srcs must map source ranks to layouts, got {brief(srcs)}; a single source is {{0: layout}}")
    found = {as_int(rank, "source rank"): _check_layout(layout, f"source {rank}") for rank, layout in srcs.items()}
    if any(rank < 0 for rank in found):
        raise PeerMismatchError(f"source ranks must not be negative, got {min(found)}")
    return dict(sorted(found.items()))


def _seat(dst_rank: Any, dst_size: Any, src_size: Any, srcs: Mapping[int, Layout]) -> Seat:
    rank, size = as_int(dst_rank, "dst_rank"), as_int(dst_size, "dst_size")
    if not 0 <= rank < size:
        raise PeerMismatchError(f"dst_rank must be in 0 to dst_size - 1, got rank {rank} of {size}")
    if src_size is None:
        return Seat(rank, size, 0)
    src_size = as_int(src_size, "src_size")
    top = max(srcs, default=0)
    if src_size <= top:
        raise PeerMismatchError(f"src_size is {src_size}, but source rank {top} is given")
    return Seat(rank, size, src_size)


def _assign(
    dst: Layout, holders: Mapping[str, Sequence[Holder]], seat_of: Callable[[str], Seat], allow_missing: Any
) -> tuple[list[Delivery], tuple[str, ...], tuple[str, ...]]:
    """Choose the sources of every dst section; also the names that have no source and those that dst lacks."""
    allowed: Any = allow_missing if allow_missing is True else set(as_names(allow_missing, "allow_missing"))
    unused = dict.fromkeys(holders)
    chosen = _Chosen()
    deliveries, missing = [], []
    for region in dst.regions:
        for section in region.sections:
            found = holders.get(section.name)
            unused.pop(section.name, None)
            if found is not None:
                place = place_of(dst, section)
                takes = chosen.takes(section, region.name, place, found, seat_of(section.name))
                deliveries.append(Delivery(region, section, place, takes))
            elif allowed is True or section.name in allowed:
                missing.append(section.name)
            else:
                raise PeerMismatchError(
                    f"section {section.name!r} (region {region.name!r}): no source holds a section of that name; "
                    f"sources hold {few(holders) or 'none'}; allow_missing names the sections that may have no source"
                )
    return deliveries, tuple(missing), tuple(unused)


def _holders(srcs: Mapping[int, Layout]) -> dict[str, list[Holder]]:
    holders: dict[str, list[Holder]] = {}
    for rank, layout in srcs.items():
        for region in layout.regions:
            for section in region.sections:
                holders.setdefault(section.name, []).append(Holder(rank, region, section, place_of(layout, section)))
    return holders


class _Chosen:
    """Choices made, by shape: layers of one shape choose once, and only names and regions are new."""

    def __init__(self) -> None:
        self._known: dict[Any, list[tuple[int, Split, Meeting, int]]] = {}
        self._kinds = 0

    def takes(
        self, section: Section, region: str, place: Place, holders: Sequence[Holder], seat: Seat
    ) -> tuple[Take, ...]:
        """Return what each chosen holder sends of `section`."""
        key = (section.shape, place, seat, *[(holder.rank, holder.place, holder.section.shape) for holder in holders])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._choose(section, region, place, holders, seat)
        return tuple([Take(holders[i], section, split, meeting, kind) for i, split, meeting, kind in known])

    def _choose(
        self, section: Section, region: str, place: Place, holders: Sequence[Holder], seat: Seat
    ) -> list[tuple[int, Split, Meeting, int]]:
        number = {holder.rank: i for i, holder in enumerate(holders)}
        known = []
        for share in shares_of(section, region, place, holders, seat):
            self._kinds += 1
            meeting = Meeting(Cut.of(share.holder.section, section), Places(share.holder.place, place))
            known.append((number[share.holder.rank], share.split, meeting, self._kinds))
        return known
