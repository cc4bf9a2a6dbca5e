"""The overlap of one destination layout and all sources' layouts: every byte exactly once.

::

    Layout (dst rank) ----\\
                           plan()  ->  for each source rank: DlistPair(src: Layout, dst: Layout), equal rows and lengths
    Layout (src ranks) ---/

Down one flight of stairs, each step a function of what the step before returned::

    families_of     dst regions that look alike to all sources          families.py
    template_of     who sends what, in which lanes, once per family     template.py (sources.py, overlap.py)
    sendings_of     the lanes of each source and memory type            pairs.py
    lists_of        what both lists are, whatever the addresses         lists.py
    pairs_of        their columns, when somebody looks                  pairs.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nixldesc._check import as_int, as_names, brief, is_many
from nixldesc._memory import Memory
from nixldesc.errors import BlockIdError, PeerMismatchError
from nixldesc.memory.layout import Layout
from nixldesc.memory.sections import Section
from nixldesc.planning.binding import prove_same_shape
from nixldesc.planning.block_tables import BlockTables, Side, Stand
from nixldesc.planning.families import Allowed, Source, families_of
from nixldesc.planning.limits import Limits
from nixldesc.planning.meeting import Deal
from nixldesc.planning.pairs import Room, Sending, is_small, pair_of, pairs_of, sendings_of
from nixldesc.planning.sources import Rule, Rules, Seat
from nixldesc.planning.template import Template, template_of
from nixldesc.request.lists import BlockTables as Lists
from nixldesc.request.moves import IdPair
from nixldesc.request.pair import DlistPair
from nixldesc.request.sources import OverSources

if TYPE_CHECKING:
    from nixldesc.planning.costs import Cost
    from nixldesc.planning.delivery import Judge

__all__ = ["Plan", "plan", "reader_counts"]

Senders = Literal["one", "all"]


class Plan(Mapping[int, "tuple[DlistPair, ...]"]):
    """What each source rank sends: a read-only mapping from source rank (ascending) to its pairs.

    `missing`: names of dst sections without any source (allowed by `allow_missing`). `unused`: names of source
    sections that dst does not have.

    >>> from nixldesc import Region
    >>> made = plan(Layout([Region("k", 0, 16, 4)]), {3: Layout([Region("k", 0, 16, 9), Region("v", 144, 16, 9)])})
    >>> list(made), made.missing, made.unused
    ([3], (), ('v',))
    """

    __slots__ = ("__weakref__", "_dst", "_made", "_over", "_sendings", "_sources", "_templates", "missing", "unused")

    missing: tuple[str, ...]
    unused: tuple[str, ...]
    _dst: Layout
    _sources: Sequence[Source]
    _templates: Sequence[Template]
    _sendings: Mapping[int, Sequence[Sending]]
    _made: dict[int, tuple[DlistPair, ...]]
    _over: OverSources | None

    def __init__(
        self,
        dst: Layout,
        sources: Sequence[Source],
        templates: Sequence[Template],
        sendings: Mapping[int, Sequence[Sending]],
        missing: tuple[str, ...],
        unused: tuple[str, ...],
    ) -> None:
        made: dict[int, tuple[DlistPair, ...]] = {}
        values = (dst, sources, templates, sendings, made, None, missing, unused)
        for put, value in zip(_SETTERS, values):  # noqa: B905 (as many as slots; made for each peer)
            put(self, value)
        room = Room()
        for rank, found in sendings.items():
            # What may be refused is built at once, the rest when somebody looks.
            if not all(is_small(dst, sources, sending) for sending in found):
                made[rank] = tuple([pair for sending in found for pair in pairs_of(dst, sources, sending, room)])

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Plan is read-only: {name!r} cannot be set")

    def __getitem__(self, rank: int) -> tuple[DlistPair, ...]:
        made = self._made.get(rank)
        if made is None:
            found = [pair_of(self._dst, self._sources, sending) for sending in self._sendings[rank]]
            made = self._made.setdefault(rank, tuple(found))
        return made

    def __iter__(self) -> Iterator[int]:
        return iter(self._sendings)

    def __len__(self) -> int:
        return len(self._sendings)

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self._dst, self._sources, self._templates, self._sendings, self.missing, self.unused)

    def __repr__(self) -> str:
        sends = ", ".join(f"{rank}: {len(pairs)} pair{'s' * (len(pairs) != 1)}" for rank, pairs in self.items())
        return f"Plan({{{sends}}}, missing={self.missing!r}, unused={self.unused!r})"

    def bind(self, dst: Layout, srcs: Mapping[int, Layout]) -> Plan:
        """Return the same plan for layouts that differ from its own only in addresses, devices, block counts, segments.

        The second engine of a fleet, a peer that has restarted. Anything else is a :class:`PeerMismatchError` that
        names the first difference; a tenth of the cost of :func:`plan`.

        >>> from nixldesc import Region
        >>> made = plan(Layout([Region("k", 0, 16, 4)]), {0: Layout([Region("k", 0, 16, 4)])})
        >>> again = made.bind(Layout([Region("k", 0, 16, 4)]), {0: Layout([Region("k", 4096, 16, 9)])})
        >>> again[0][0].src.table().tolist()
        [[4096, 16, 0, 16, 9]]
        """
        dst, layouts = _check_layout(dst, "dst"), _check_srcs(srcs)
        prove_same_shape(self._dst, dst, {source.key: source.layout for source in self._sources}, layouts)
        sources = tuple([Source(source.key, layouts[source.key]) for source in self._sources])
        return Plan(dst, sources, self._templates, self._sendings, self.missing, self.unused)

    def costs(self) -> tuple[Cost, ...]:
        """Return what each section costs: a record per source, section and pair of regions.

        What a connector logs, alerts on, or decides by whether to stage.

        >>> from nixldesc import Region
        >>> cost, = plan(Layout([Region("k", 0, 16, 4)]), {0: Layout([Region("k", 0, 16, 4)])}).costs()
        >>> cost.source, cost.section, cost.runs, cost.nbytes, cost.run_len, cost.rows
        (0, 'k', 1, 16, 16, 1)
        """
        from nixldesc.planning.costs import costs_of  # here, not above: who plans and moves imports none of it

        return costs_of(self._templates, self._dst, self._sources, self)

    def desc_ids(
        self,
        src_blocks: Mapping[int, Lists],
        dst_blocks: Lists,
        *,
        order: Literal["merge", "given"] = "merge",
        null_block: int | None = None,
        tokens: int | None = None,
        sections: Iterable[str] | None = None,
        complete: bool = False,
    ) -> dict[int, tuple[IdPair, ...]]:
        """Return ``{source rank: ((src_ids, dst_ids), ...)}``, one for each pair: the whole request over its sources.

        Every list is read once. Options as of :meth:`DlistPair.desc_ids`; of `sections` each pair takes those that it
        moves; ``complete=True`` refuses a request in which some named dst entry, or a part of it, has no source at
        all. Arrays may be shared between sources: they are to be read, not written to.

        Raises as :meth:`DlistPair.desc_ids` does, naming the source.

        >>> from nixldesc import Region
        >>> made = plan(Layout([Region("k", 0, 16, 64)]), {0: Layout([Region("k", 0, 16, 64)])})
        >>> (src_ids, dst_ids), = made.desc_ids({0: [[5, 6]]}, [[41, 40]], complete=True)[0]
        >>> src_ids.tolist(), dst_ids.tolist()
        ([6, 5], [40, 41])
        """
        if not isinstance(complete, bool):
            raise TypeError(f"complete must be True or False, got {brief(complete)}")
        over = self._over
        if over is None:
            over = OverSources(dict(self), [source.key for source in self._sources])
            object.__setattr__(self, "_over", over)
        names = None if sections is None else as_names(sections, "sections")
        how: dict[str, Any] = {"order": order, "null_block": null_block, "tokens": tokens, "sections": names}
        found = over.ids(src_blocks, dst_blocks, **how)
        if complete:
            holes = self.undelivered(src_blocks, dst_blocks, null_block=null_block, tokens=tokens)
            _prove_whole([hole for hole in holes if names is None or hole[0] in names])
        return found

    def undelivered(
        self,
        src_blocks: Mapping[int, Lists],
        dst_blocks: Lists,
        *,
        null_block: int | None = None,
        tokens: int | None = None,
    ) -> list[tuple[str, int, int, int]]:
        """Return what the dst lists name and no source fills: ``(section, dst block id, first token, last token + 1)``.

        `src_blocks` maps a source rank to its block lists (a rank that is left out fills nothing). A section without
        a token axis counts as one token a block. Null entries of dst are not named, those of a source fill nothing.
        `tokens`: the request's tokens; what lies beyond is not named. Sections in `missing` are not repeated here.

        >>> from nixldesc import Blocks, Region
        >>> made = plan(Layout([Region("k", 0, 16, 64)]), {0: Layout([Region("k", 0, 16, 64)])})
        >>> made.undelivered({0: [Blocks([10, 11])]}, [Blocks([40, 41, 42])])
        [('k', 42, 0, 1)]
        """
        from nixldesc.planning.delivery import unfilled  # here, as in `costs`

        return self._holes(unfilled, src_blocks, dst_blocks, null_block, tokens)

    def repeated(
        self,
        src_blocks: Mapping[int, Lists],
        dst_blocks: Lists,
        *,
        null_block: int | None = None,
        tokens: int | None = None,
    ) -> list[tuple[str, int, int, int]]:
        """Return what more than one source would fill, in the form of :meth:`undelivered` (``senders="all"`` only).

        >>> from nixldesc import Blocks, Region
        >>> layout = Layout([Region("k", 0, 16, 64)])
        >>> made = plan(layout, {0: layout, 1: layout}, senders="all")
        >>> made.repeated({0: [[10, 11]], 1: [Blocks([7], skip=1)]}, [[40, 41]])
        [('k', 41, 0, 1)]
        """
        from nixldesc.planning.delivery import shared

        return self._holes(shared, src_blocks, dst_blocks, null_block, tokens)

    def _holes(self, wrong: Judge, *request: Any) -> list[tuple[str, int, int, int]]:
        from nixldesc.planning.delivery import holes_of

        return holes_of(self._templates, self._dst, self._sources, wrong, *request)


#: The slots' own setters, as of a Layout.
_SETTERS = tuple(
    getattr(Plan, slot).__set__
    for slot in ("_dst", "_sources", "_templates", "_sendings", "_made", "_over", "missing", "unused")
)


def plan(
    dst: Layout,
    srcs: Mapping[int, Layout],
    *,
    dst_rank: int | None = None,
    dst_size: int | None = None,
    src_size: int | None = None,
    allow_missing: Allowed = (),
    senders: Senders = "one",
) -> Plan:
    """Return how every byte of `dst` gets here from `srcs` (source rank -> layout), each exactly once.

    `dst_rank` of `dst_size` counts the destination ranks that hold the same sections: it spreads the load over
    sources with the same bytes, and must be said where there are any (0 of 1 for an only reader). Give all ranks of
    the source engine; who knows only some of them passes ``src_size=P``, the number of TP ranks, and the keys are TP
    ranks, among them rank ``dst_rank * P // dst_size``, at which the count begins. A writer plans for its reader and
    takes its own entry. Sections named in `allow_missing` (True: any) may have no source. ``senders="all"``: no choice
    among holders, every source gets rows for all that it shares with dst, and each request's lists say who sends what.

    Raises :class:`PeerMismatchError` for anything that cannot be delivered exactly, naming the section, the box, what
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
    dst, layouts = _check_layout(dst, "dst"), _check_srcs(srcs)
    if senders not in ("one", "all"):
        raise ValueError(f"senders must be 'one' or 'all', got {brief(senders)}")
    rule = Rule(_seat(dst_rank, dst_size, src_size, layouts), senders == "all")
    sources = tuple([Source(*item) for item in layouts.items()])
    allowed = _check_allowed(allow_missing)
    kinds = tuple([(source.key, source.layout.kind) for source in sources])
    recipe = _KNOWN.get((dst.kind, kinds, rule, allowed))
    if recipe is None:
        templates, missing, unused = _templates(dst, sources, Rules(rule, {}), allowed)
        recipe = Recipe(templates, sendings_of(dst, sources, templates), missing, unused)
        lanes = sum([sending.num_lanes for found in recipe.sendings.values() for sending in found])
        size = lanes + len(missing) + len(unused)
        if max(size, *[len(layout.columns) for layout in (dst, *layouts.values())]) <= MAX_KNOWN:
            _KNOWN.put((dst.kind, kinds, rule, allowed), recipe)
    return Plan(dst, sources, *recipe)


class Recipe(NamedTuple):
    """All of a plan but the addresses: what is worked out once for layouts of one kind."""

    templates: tuple[Template, ...]
    sendings: Mapping[int, Sequence[Sending]]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


#: Recipes of more lanes, names and regions are not remembered.
MAX_KNOWN = 2**13
_KNOWN: Memory[Any, Recipe] = Memory(64)


def _templates(
    dst: Layout, sources: Sequence[Source], rules: Rules, allowed: Any
) -> tuple[tuple[Template, ...], tuple[str, ...], tuple[str, ...]]:
    limits = Limits(len(sources))
    families, missing, unused = families_of(dst, sources, rules, allowed, limits)
    templates = tuple([template_of(family, limits) for family in families])
    tables = BlockTables()
    for template in templates:
        _prove_tables(tables, template, dst, sources)
    return templates, missing, unused


def _prove_tables(tables: BlockTables, template: Template, dst: Layout, sources: Sequence[Source]) -> None:
    """What the block tables of a family's regions mean must agree with what they mean elsewhere."""
    family = template.family
    here = int(family.dst[0])
    mine = [_side(dst, here, slot.want.section, slot.want.deal) for slot in family.slots]
    for take in template.takes:
        slot = family.slots[take.slot]
        held = slot.holders[take.holder]
        source = sources[family.sources[take.member]]
        theirs = _side(source.layout, int(family.src[take.member][0]), held.section, held.deal)
        tables.prove(source.key, theirs, mine[take.slot], slot.want.name)


def _side(layout: Layout, region: int, section: Section, deal: Deal) -> Side:
    tokens = section.block_tokens
    return Side(layout.names[region], layout.columns.groups[region], Stand.of(deal, tokens), tokens)


def reader_counts(dsts: Sequence[Layout], srcs: Mapping[int, Layout], *, allow_missing: Allowed = ()) -> dict[int, int]:
    """Return how many of the destination ranks `dsts` read from each source rank (zeros included).

    A source frees a request's blocks after so many have read them. Each rank's place is counted among the ranks that
    hold the section, as :func:`plan` wants it.

    >>> from nixldesc import Region
    >>> latent = Layout([Region("c", 0, 16, 4)])
    >>> reader_counts([latent, latent], {rank: latent for rank in range(4)})
    {0: 1, 1: 0, 2: 1, 3: 0}
    """
    layouts = _check_srcs(srcs)
    if not is_many(dsts) or isinstance(dsts, Mapping):
        raise TypeError(f"dsts must be the layouts of all destination ranks, got {brief(dsts)}")
    dsts = tuple(_check_layout(dst, f"dsts[{number}]") for number, dst in enumerate(dsts))
    names = [{name for named in dst.pages.names for name in named} for dst in dsts]
    sizes = Counter(name for held in names for name in held)
    turn: Counter[str] = Counter()
    sources = tuple([Source(*item) for item in layouts.items()])
    allowed = _check_allowed(allow_missing)
    counts = dict.fromkeys(layouts, 0)
    for dst, held in zip(dsts, names, strict=True):
        rules = {name: Rule(Seat(turn[name], sizes[name], 0, True)) for name in held}
        turn.update(held)
        named = Rules(Rule(Seat()), rules)
        if len(set(rules.values())) == 1:
            named = Rules(next(iter(rules.values())), {})
        templates, _, _ = _templates(dst, sources, named, allowed)
        senders = {template.family.sources[take.member] for template in templates for take in template.takes}
        for number in senders:
            counts[sources[number].key] += 1
    return counts


def _prove_whole(holes: Sequence[tuple[str, int, int, int]]) -> None:
    if not holes:
        return
    words = [f"section {name!r}, block {block}, tokens {first} to {last - 1}" for name, block, first, last in holes[:4]]
    raise BlockIdError(
        f"the request is not complete: no source fills {'; '.join(words)}"
        + (f" and {len(holes) - 4} more" if len(holes) > 4 else "")
        + "; undelivered() names all of it"
    )


# ------------------------------------------------------------------------------------------------------- the door


def _check_layout(layout: Any, *what: object) -> Layout:
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


_NONE: frozenset[str] = frozenset()


def _words(what: Iterable[object]) -> str:
    return " ".join(map(str, what))


def _check_allowed(allow_missing: Any) -> Any:
    if type(allow_missing) is tuple and not allow_missing:  # mostly; an array would compare entry by entry
        return _NONE
    return True if allow_missing is True else frozenset(as_names(allow_missing, "allow_missing"))


def _check_srcs(srcs: Any) -> dict[int, Layout]:
    if type(srcs) is not dict and not isinstance(srcs, Mapping):
        raise TypeError(f"srcs must map source ranks to layouts, got {brief(srcs)}; a single source is {{0: layout}}")
    found = {as_int(rank, "source rank"): _check_layout(layout, "source", rank) for rank, layout in srcs.items()}
    least = min(found, default=0)
    if least < 0:
        raise PeerMismatchError(f"source ranks must not be negative, got {least}")
    return found if len(found) == 1 else {rank: found[rank] for rank in sorted(found)}


def _seat(dst_rank: Any, dst_size: Any, src_size: Any, srcs: Mapping[int, Layout]) -> Seat:
    given = dst_rank is not None or dst_size is not None
    rank = as_int(0 if dst_rank is None else dst_rank, "dst_rank")
    size = as_int(1 if dst_size is None else dst_size, "dst_size")
    if not 0 <= rank < size:
        raise PeerMismatchError(f"dst_rank must be in 0 to dst_size - 1, got rank {rank} of {size}")
    if src_size is None:
        return Seat(rank, size, 0, given)
    src_size = as_int(src_size, "src_size")
    top = max(srcs, default=0)
    if src_size <= top:
        raise PeerMismatchError(f"src_size is {src_size}, but source rank {top} is given")
    first = rank * src_size // size
    if first not in srcs:
        raise PeerMismatchError(
            f"dst_rank {rank} of {size} begins its choice among {src_size} sources at rank {first}, whose layout is "
            f"not given (given are {', '.join(map(str, srcs)) or 'none'}): who sends what holders share cannot be "
            f"known without it; describe rank {first} with its own tp_rank, addresses do not matter"
        )
    return Seat(rank, size, src_size, given)
