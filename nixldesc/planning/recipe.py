"""All of a plan but the addresses: worked out once for layouts of one kind, and remembered.

The destination's and the sources' layouts are asked once, for what is alike; from there on each step is a function of
what the step before returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from nixldesc._memory import Memory
from nixldesc.memory.layout import Layout
from nixldesc.planning.block_tables import prove_tables
from nixldesc.planning.families import Allowed, Source, families_of
from nixldesc.planning.limits import Limits
from nixldesc.planning.sendings import Sendings, sendings_of
from nixldesc.planning.sources import Rule, Rules
from nixldesc.planning.template import Template, template_of

__all__ = ["Recipe", "recipe_of", "templates_of"]


class Recipe(NamedTuple):
    """Who sends what in which lanes, the lists of each source, and the names of sections that only one side has."""

    templates: tuple[Template, ...]
    sendings: Sendings
    missing: tuple[str, ...]
    unused: tuple[str, ...]


#: Recipes of more regions and names are not remembered.
MAX_KNOWN = 2**13
_KNOWN: Memory[Any, Recipe] = Memory(64)


def recipe_of(dst: Layout, sources: Sequence[Source], rule: Rule, allowed: Allowed) -> Recipe:
    """Return the recipe of a plan; of layouts of one kind the same one."""
    kinds = tuple([(source.key, source.layout.kind) for source in sources])
    asked = (dst.kind, kinds, rule, allowed)
    recipe = _KNOWN.get(asked)
    if recipe is None:
        limits = Limits(len(sources))
        templates, missing, unused = templates_of(dst, sources, Rules(rule, {}), allowed, limits)
        recipe = Recipe(templates, sendings_of(templates, limits), missing, unused)
        if _size(recipe, dst, sources) <= MAX_KNOWN:
            _KNOWN.put(asked, recipe)
    return recipe


def templates_of(
    dst: Layout, sources: Sequence[Source], rules: Rules, allowed: Allowed, limits: Limits
) -> tuple[tuple[Template, ...], tuple[str, ...], tuple[str, ...]]:
    """Return who sends what in which lanes, the names of dst sections without a source, and of those unknown to dst."""
    families, missing, unused = families_of(dst, sources, rules, allowed, limits)
    templates = tuple([template_of(family, limits) for family in families])
    prove_tables(templates)
    return templates, missing, unused


def _size(recipe: Recipe, dst: Layout, sources: Sequence[Source]) -> int:
    """Return about how much memory keeping a recipe takes: of its own, and of the layouts' that it holds on to."""
    own = sum([len(sending.lists.slots) for found in recipe.sendings.values() for sending in found])
    own += len(recipe.missing) + len(recipe.unused)
    return max(own, len(dst.columns), *[len(source.layout.columns) for source in sources])
