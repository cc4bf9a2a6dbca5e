"""Pages drawn to scale: strips of bytes, each byte belonging to one patch or to none (padding).

::

    Strip("dst", size=128, patches)          |aaaaaaaaaaaabbbbbbbbbbbb........|
    Strip("from", size=128, patches)         |000000111111000000xxxxxx........|

A strip is reduced to cells once, whoever draws it: a character here, a pixel column in :mod:`nixldesc._cli.svg`.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from string import ascii_letters, ascii_uppercase, digits

import numpy as np
from numpy.typing import NDArray

from nixldesc import Region, Section
from nixldesc._cli.screen import Screen, Styled

__all__ = [
    "MISSING",
    "PADDING",
    "Patch",
    "Picture",
    "Strip",
    "cells_of",
    "draw",
    "key_of",
    "keys_of",
    "page_strip",
    "patch_of",
    "source_key",
]

#: Bytes that nobody sends.
MISSING = Styled("x", "bold red")
PADDING = Styled(".", "dim")
#: Of which styles the keys a, b, c, ... of sections take turns, and 0, 1, 2, ... of sources: none is in both.
STYLES = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")
SOURCE_STYLES = ("orange3", "orchid", "steel_blue", "dark_sea_green", "tan", "slate_blue1", "indian_red", "grey62")
#: A source's section that the destination does not have.
OTHER = Styled("-", "dim")

Loops = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """Bytes that belong together: runs of `length` bytes from each of `offsets`, repeated by (size, stride) loops."""

    key: str
    style: str
    offsets: tuple[int, ...]
    length: int
    loops: Loops = ()

    def starts(self) -> NDArray[np.float64]:
        """Where the runs begin, ascending; in floats, for a drawing need not tell bytes apart beyond 2**53."""
        at = np.array(self.offsets, dtype=np.float64)
        for number, stride in self.loops:
            at = np.add.outer(at, np.arange(number) * float(stride)).ravel()
        return np.sort(at)


@dataclass(frozen=True, slots=True)
class Strip:
    """`size` bytes in a row, and what they are."""

    label: str
    size: int
    patches: tuple[Patch, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Strips on one scale, with words above and, for each key, below them."""

    title: str
    strips: tuple[Strip, ...]
    legend: tuple[tuple[Styled, str], ...] = ()

    def drawn(self, room: int) -> Iterator[tuple[Strip, list[tuple[Styled, int]]]]:
        """Yield each strip with its marks and how many cells each one takes; the longest strip has `room` of them."""
        longest = max(strip.size for strip in self.strips)
        for strip in self.strips:
            cells = cells_of(strip, max(1, round(room * strip.size / longest)))
            marks = [Styled(patch.key, patch.style) if patch else PADDING for patch in cells]
            yield strip, [(mark, len(list(same))) for mark, same in groupby(marks)]


def key_of(number: int) -> Styled:
    """Return the character and style of the section of this number.

    >>> key_of(0), key_of(1000).text
    (Styled(text='a', style='cyan'), '*')
    """
    return Styled(ascii_letters[number] if number < len(ascii_letters) else "*", STYLES[number % len(STYLES)])


def keys_of(sections: Iterable[Section]) -> dict[str, Styled]:
    """Return the key of each section of a page, by its name: parts of one section have one key."""
    return {section.name: key_of(i) for i, section in enumerate(sections)}


def source_key(rank: int) -> Styled:
    """Return the character and style of a source.

    >>> source_key(0), source_key(10).text
    (Styled(text='0', style='orange3'), 'A')
    """
    keys = digits + ascii_uppercase
    return Styled(keys[rank] if rank < len(keys) else "*", SOURCE_STYLES[rank % len(SOURCE_STYLES)])


def patch_of(section: Section, key: Styled) -> Patch:
    """Return the bytes of a section inside its block.

    >>> from nixldesc import Axis
    >>> patch_of(Section("s", (Axis("head", 0, 2), Axis("token", 0, 4)), 8, strides=[64, 8]), key_of(0))
    Patch(key='a', style='cyan', offsets=(0,), length=32, loops=((2, 64),))
    """
    length, loops = section.runs()
    return Patch(key.text, key.style, (section.offset,), length, tuple(loops))


def page_strip(region: Region, label: str, keys: Mapping[str, Styled] | None = None) -> Strip:
    """Return the page of a region's block with the padding behind it, if that is not too long.

    `keys`: by section name, "-" for any other; without them the sections are keyed a, b, c, ...
    """
    if keys is None:
        keys = keys_of(region.sections)
    patches = tuple(patch_of(section, keys.get(section.name, OTHER)) for section in region.sections)
    whole = region.block_stride if region.block_stride <= 2 * region.block_len else region.block_len
    return Strip(label, whole, patches)


def cells_of(strip: Strip, number: int) -> list[Patch | None]:
    """Return which patch holds the most bytes of each of `number` equal cells; None: none does.

    A key that wins no cell takes the one in which it has the most bytes, unless that would hide another key.

    >>> strip = Strip("", 100, (Patch("a", "", (0,), 50), Patch("b", "", (50,), 1), Patch("c", "", (51,), 29)))
    >>> "".join(patch.key if patch else "." for patch in cells_of(strip, 10))
    'aaaaabcc..'
    """
    edges = np.linspace(0, strip.size, number + 1)
    room = np.diff(edges)
    held = np.zeros((len(strip.patches) + 1, number))
    for i, patch in enumerate(strip.patches):
        held[i] = np.diff(_bytes_below(patch, edges))
    held[-1] = room - held.sum(axis=0) - 1e-6 * room  # padding loses where it is even
    winner: list[int] = held.argmax(axis=0).tolist()
    keys = [patch.key for patch in strip.patches] + [PADDING.text]
    seen = Counter(keys[i] for i in winner)
    for i, key in enumerate(keys[:-1]):
        spare = [cell for cell, owner in enumerate(winner) if keys[owner] == PADDING.text or seen[keys[owner]] > 1]
        best = max((cell for cell in spare if held[i, cell] > 0), key=lambda cell: float(held[i, cell]), default=None)
        if not seen[key] and best is not None:
            seen.subtract([keys[winner[best]]])
            seen[key] = 1
            winner[best] = i
    return [strip.patches[i] if i < len(strip.patches) else None for i in winner]


def _bytes_below(patch: Patch, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    starts = patch.starts()
    begun = np.searchsorted(starts, edges, side="right")
    last = starts[np.maximum(begun - 1, 0)]
    inside = np.minimum(edges - last, patch.length)
    below: NDArray[np.float64] = np.where(begun > 0, (begun - 1) * patch.length + inside, 0.0)
    return below


def draw(screen: Screen, picture: Picture) -> None:
    """Write a picture in characters, the longest strip as wide as the screen allows (40 to 80)."""
    labels = max(len(strip.label) for strip in picture.strips)
    width = max(40, min(80, screen.width or 80))
    for line in textwrap.wrap(picture.title, width, break_long_words=False):
        screen.line(Styled(line, "bold"))
    for strip, spans in picture.drawn(width - labels - 6):
        bar = [Styled(mark.text * cells, mark.style) for mark, cells in spans]
        screen.line("  ", strip.label.ljust(labels), " |", *bar, "|")
    margin = labels + 7
    for key, words in picture.legend:
        first, *more = textwrap.wrap(words, width - margin, break_long_words=False) or [""]
        screen.line("  ", " " * labels, "  ", key, "  ", first)
        for line in more:
            screen.line(" " * (margin + 2), line)
