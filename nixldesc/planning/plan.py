"""The overlap of one destination layout and all sources' layouts: every byte exactly once.

::

    Layout (dst rank) ----\\
                           plan()  ->  for each source rank: DlistPair(src: Layout, dst: Layout), equal rows and lengths
    Layout (src ranks) ---/

Down one flight of stairs, each step a function of what the step before returned::

    recipe_of       all but the addresses, once for layouts of one kind   recipe.py
      families_of     dst regions that look alike to all sources            families.py
      template_of     who sends what, in which lanes, once per family       template.py (sources.py, overlap.py)
      sendings_of     both lists of each source and memory type             sendings.py (lists.py)
    pair_of         the lists over the layouts, when somebody looks       pairs.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from nixldesc._check import as_names, brief, is_many
from nixldesc.errors import BlockIdError
from nixldesc.memory.layout import Layout
from nixldesc.planning.asked import as_allowed, as_layout, as_rule, as_sources
from nixldesc.planning.families import Allowed, Source
from nixldesc.planning.limits import Limits
from nixldesc.planning.pairs import pair_of, pairs_at_once
from nixldesc.planning.recipe import Recipe, recipe_of, templates_of
from nixldesc.planning.sources import Rule, Rules, Seat
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

    >>> from nixldesc import Region
    >>> made = plan(Layout([Region("k", 0, 16, 4)]), {3: Layout([Region("k", 0, 16, 9), Region("v", 144, 16, 9)])})
    >>> list(made), made.missing, made.unused
    ([3], (), ('v',))
    """

    __slots__ = ("__weakref__", "_dst", "_made", "_over", "_recipe", "_sources")

    _dst: Layout
    _sources: Sequence[Source]
    _recipe: Recipe
    _made: dict[int, tuple[DlistPair, ...]]
    _over: OverSources | None

    def __init__(self, dst: Layout, sources: Sequence[Source], recipe: Recipe) -> None:
        values = (dst, sources, recipe, pairs_at_once(dst, sources, recipe.sendings), None)
        for put, value in zip(_SETTERS, values):  # noqa: B905 (as many as slots; made for each peer)
            put(self, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Plan is read-only: {name!r} cannot be set")

    def __getitem__(self, rank: int) -> tuple[DlistPair, ...]:
        made = self._made.get(rank)
        if made is None:
            sendings = self._recipe.sendings[rank]
            found = [pair_of(lists, self._sources[source].layout, self._dst) for source, lists in sendings]
            made = self._made.setdefault(rank, tuple(found))
        return made

    def __iter__(self) -> Iterator[int]:
        return iter(self._recipe.sendings)

    def __len__(self) -> int:
        return len(self._recipe.sendings)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of dst sections without any source (allowed by `allow_missing`)."""
        return self._recipe.missing

    @property
    def unused(self) -> tuple[str, ...]:
        """Names of source sections that dst does not have."""
        return self._recipe.unused

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan, (self._dst, self._sources, self._recipe)

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
        from nixldesc.planning.binding import prove_same_shape  # here, as in `costs`

        dst, sources = as_layout(dst, "dst"), as_sources(srcs)
        prove_same_shape(self._dst, dst, dict(self._sources), dict(sources))
        return Plan(dst, sources, self._recipe)

    def costs(self) -> tuple[Cost, ...]:
        """Return what each section costs: a record per source, section and pair of regions.

        What a connector logs, alerts on, or decides by whether to stage.

        >>> from nixldesc import Region
        >>> cost, = plan(Layout([Region("k", 0, 16, 4)]), {0: Layout([Region("k", 0, 16, 4)])}).costs()
        >>> cost.source, cost.section, cost.runs, cost.nbytes, cost.run_len, cost.rows
        (0, 'k', 1, 16, 16, 1)
        """
        from nixldesc.planning.costs import costs_of  # here, not above: who plans and moves imports none of it

        return costs_of(self._recipe.templates, self._dst, self._sources, self)

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

        return holes_of(self._recipe.templates, self._dst, self._sources, wrong, *request)


#: The slots' own setters, as of a Layout.
_SETTERS = tuple(getattr(Plan, slot).__set__ for slot in ("_dst", "_sources", "_recipe", "_made", "_over"))


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
    dst, sources = as_layout(dst, "dst"), as_sources(srcs)
    rule = as_rule(senders, dst_rank, dst_size, src_size, sources)
    recipe = recipe_of(dst, sources, rule, as_allowed(allow_missing))
    return Plan(dst, sources, recipe)


def reader_counts(dsts: Sequence[Layout], srcs: Mapping[int, Layout], *, allow_missing: Allowed = ()) -> dict[int, int]:
    """Return how many of the destination ranks `dsts` read from each source rank (zeros included).

    A source frees a request's blocks after so many have read them. Each rank's place is counted among the ranks that
    hold the section, as :func:`plan` wants it.

    >>> from nixldesc import Region
    >>> latent = Layout([Region("c", 0, 16, 4)])
    >>> reader_counts([latent, latent], {rank: latent for rank in range(4)})
    {0: 1, 1: 0, 2: 1, 3: 0}
    """
    sources = as_sources(srcs)
    if not is_many(dsts) or isinstance(dsts, Mapping):
        raise TypeError(f"dsts must be the layouts of all destination ranks, got {brief(dsts)}")
    dsts = tuple(as_layout(dst, f"dsts[{number}]") for number, dst in enumerate(dsts))
    names = [{name for named in dst.pages.names for name in named} for dst in dsts]
    sizes = Counter(name for held in names for name in held)
    turn: Counter[str] = Counter()
    allowed = as_allowed(allow_missing)
    counts = {source.key: 0 for source in sources}
    for dst, held in zip(dsts, names, strict=True):
        rules = {name: Rule(Seat(turn[name], sizes[name], 0, True)) for name in held}
        turn.update(held)
        named = Rules(Rule(Seat()), rules)
        if len(set(rules.values())) == 1:
            named = Rules(next(iter(rules.values())), {})
        templates, _, _ = templates_of(dst, sources, named, allowed, Limits(len(sources)))
        for key in {family.members[take.member].key for family, takes, _ in templates for take in takes}:
            counts[key] += 1
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
