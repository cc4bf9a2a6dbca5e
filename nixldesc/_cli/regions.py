"""Regions and sections in words and figures: what show, locate and check have in common."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from nixldesc import Axis, Region, Section
from nixldesc._cli.picture import keys_of
from nixldesc._cli.screen import Styled, count, printable, size

__all__ = ["alike", "axis_words", "group_words", "legend_of", "page_words", "section_words"]

T = TypeVar("T")


def axis_words(axes: Iterable[Axis]) -> str:
    """Return axes with the ranges that this rank holds, outermost first.

    >>> axis_words((Axis("token", 0, 4, unit=4), Axis("head", 2, 4), Axis("token", 0, 4)))
    'token[0:4]*4 head[2:4] token[0:4]'
    """
    return " ".join(
        f"{printable(axis.name)}[{axis.start}:{axis.stop}]" + (f"*{axis.unit}" if axis.unit > 1 else "")
        for axis in axes
    )


def section_words(section: Section) -> str:
    """Return a section's place in the block, its axes and its format.

    >>> section_words(Section("l0.ssm", (Axis("head", 2, 4), Axis("state", 0, 16)), 4, offset=64, dtype="f32"))
    'l0.ssm  bytes 64 to 192  head[2:4] state[0:16] of 4 bytes, f32'
    """
    words = f"{printable(section.name)}  bytes {section.offset:,} to {section.end:,}"
    if section.axes:
        words += f"  {axis_words(section.axes)}" + (f" of {section.itemsize} bytes" if section.itemsize > 1 else "")
    if section.dtype:
        words += f", {printable(section.dtype)}"
    if section.nbytes < section.end - section.offset:
        words += f", {size(section.nbytes)} in pieces"
    return words + ("" if section.cp else ", whole on every context-parallel rank")


def legend_of(sections: Sequence[Section], most: int | None = None) -> list[tuple[Styled, str]]:
    """Return the key and the words of each section of a page; those beyond `most` are counted."""
    keys = keys_of(sections)
    legend = [(keys[section.name], section_words(section)) for section in sections[:most]]
    if len(legend) < len(sections):
        legend.append((Styled(" ", ""), f"and {len(sections) - len(legend)} more sections"))
    return legend


def group_words(region: Region) -> str:
    """Return the groups whose block lists address a region.

    >>> group_words(Region("k", 0, 16, 4)), group_words(Region("k", 0, 16, 4, groups=(0, 3)))
    ('all', '0, 3')
    """
    return "all" if region.groups is None else ", ".join(map(str, region.groups))


def page_words(regions: Sequence[Region]) -> str:
    """Return whose page it is: the first region's name, and how many more have the same."""
    first, tokens = regions[0], next((s.block_tokens for s in regions[0].sections if s.block_tokens), 0)
    more = f" and {len(regions) - 1} more alike" if len(regions) > 1 else ""
    held = f" of {count(tokens, 'token')}" if tokens else ""
    return f"{printable(first.name)}{more}: a block{held} is {count(first.block_len, 'byte')}"


def alike(items: Iterable[tuple[Hashable, T]]) -> list[list[T]]:
    """Return the items in groups of one key, in order of first appearance.

    >>> alike([(1, "a"), (2, "b"), (1, "c")])
    [['a', 'c'], ['b']]
    """
    groups: dict[Hashable, list[T]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return list(groups.values())
