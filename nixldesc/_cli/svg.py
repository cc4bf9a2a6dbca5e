"""Pictures as one SVG file: well formed, self-contained, readable on light and on dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from nixldesc._cli.picture import MISSING, PADDING, SOURCE_STYLES, STYLES, Picture
from nixldesc._cli.screen import Styled

__all__ = ["svg"]

# Pixels.
_LEFT, _BAR, _RIGHT, _LINE, _TALL = 84, 760, 16, 20, 24
_WIDTH = _LEFT + _BAR
#: A text this wide for each character fits, in any monospaced font.
_CHARACTER = 8

# Colours by class, on light and on dark. Text on a key's fill is in the page's own ink.
_COLOURS = {
    "paper": ("fill", "#ffffff", "#0d1117"),
    "void": ("fill", "#eaeef2", "#21262d"),
    "ink": ("fill", "#1b1f24", "#e6edf3"),
    "frame": ("stroke", "#8c959f", "#6e7681"),
    "stripe": ("stroke", "#cf222e", "#ff7b72"),
    "k0": ("fill", "#8fd3e8", "#1d6478"),
    "k1": ("fill", "#f3d97a", "#7a6210"),
    "k2": ("fill", "#a6dba0", "#2f6b2b"),
    "k3": ("fill", "#dcb4e6", "#6e3d7c"),
    "k4": ("fill", "#a9c1f5", "#31508f"),
    "k5": ("fill", "#f5bd9a", "#85481f"),
    "k6": ("fill", "#c9c9a3", "#5d5d35"),
    "k7": ("fill", "#b9d8cd", "#34665a"),
    "s0": ("fill", "#ff9e4a", "#a65200"),
    "s1": ("fill", "#ee82c3", "#93306c"),
    "s2": ("fill", "#5f9ecf", "#1f4f78"),
    "s3": ("fill", "#63b56f", "#1e5a28"),
    "s4": ("fill", "#cfa56b", "#6b4a19"),
    "s5": ("fill", "#8f86e8", "#463da6"),
    "s6": ("fill", "#e07a70", "#8d2f27"),
    "s7": ("fill", "#a3abb3", "#4a525a"),
}

_FONT = """
text { font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; }
.title { font-weight: bold; }
.stripe { stroke-width: 3; }
.sliver { font-size: 10px; }
"""
#: What nobody sends is striped, so that it shows without colours too.
_STRIPES = """\
<defs><pattern id="gone" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<line class="stripe" x1="0" y1="0" x2="0" y2="8"/></pattern></defs>"""


def svg(pictures: Iterable[Picture], title: str) -> str:
    """Return an SVG document with the pictures one below the other.

    >>> from nixldesc._cli.picture import Patch, Strip
    >>> strip = Strip("page", 64, (Patch("a", "cyan", (0,), 48),))
    >>> svg([Picture("l0", (strip,))], "l0").startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    True
    """
    pictures = tuple(pictures)
    body: list[str] = []
    y, width = 12, max(map(_width, pictures), default=_WIDTH)
    for picture in pictures:
        y = _picture(body, picture, y) + _LINE
    size = f'width="{width}" height="{y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" {size} role="img">'
    paper = f'<rect class="paper" {size}/>'
    style = f"<style>{_FONT}{_rules(1)}\n@media (prefers-color-scheme: dark) {{\n{_rules(2)}\n}}\n</style>"
    return "\n".join([head, f"<title>{escape(title)}</title>", style, _STRIPES, paper, *body, "</svg>\n"])


def _rules(scheme: int) -> str:
    return "\n".join(f".{name} {{ {rule[0]}: {rule[scheme]}; }}" for name, rule in _COLOURS.items())


def _width(picture: Picture) -> int:
    """Wide enough for the longest text."""
    longest = max((len(words) for _, words in picture.legend), default=0)
    return max(_WIDTH, _LEFT + 26 + longest * _CHARACTER, len(picture.title) * (_CHARACTER + 1)) + _RIGHT


def _picture(body: list[str], picture: Picture, y: int) -> int:
    y += _LINE
    body.append(_text(_RIGHT, y, picture.title, "ink title"))
    for strip, spans in picture.drawn(_BAR):
        y += 12
        body.append(_text(_RIGHT, y + 16, strip.label))
        _strip(body, spans, y)
        y += _TALL
    for key, words in picture.legend:
        y += _LINE
        body.append(_rect(_fill(key.style), _LEFT, y - 13, 16, 16))
        body.append(_text(_LEFT + 4, y, key.text))
        body.append(_text(_LEFT + 26, y, words))
    return y


def _strip(body: list[str], spans: Sequence[tuple[Styled, int]], y: int) -> None:
    width = sum(wide for _, wide in spans)
    body.append(_rect("void", _LEFT, y, width, _TALL))
    inside = {mark.text for mark, wide in spans if _holds_a_letter(wide)}
    x = free = _LEFT  # free: above the strip, where the next label of a sliver may begin
    for mark, wide in spans:
        if mark != PADDING:
            body.append(_rect(_fill(mark.style), x, y, wide, _TALL))
            if _holds_a_letter(wide):
                body.append(_text(x + wide // 2 - _CHARACTER // 2, y + 16, mark.text))
            elif mark.text not in inside and x >= free:
                body.append(_text(x, y - 2, mark.text, "ink sliver"))
                inside.add(mark.text)
                free = x + _CHARACTER
        x += wide
    body.append(_rect("frame", _LEFT, y, width, _TALL, ' fill="none"'))


def _holds_a_letter(wide: int) -> bool:
    """Whether a run is as wide as its letter and has air on both sides."""
    return wide > 2 * _CHARACTER


def _rect(kind: str, x: int, y: int, width: int, height: int, more: str = "") -> str:
    colour = 'fill="url(#gone)"' if kind == "gone" else f'class="{kind}"'
    return f'<rect {colour} x="{x}" y="{y}" width="{width}" height="{height}"{more}/>'


def _text(x: int, y: int, words: str, kind: str = "ink") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>'


def _fill(style: str) -> str:
    if style == MISSING.style:
        return "gone"
    if style in SOURCE_STYLES:
        return f"s{SOURCE_STYLES.index(style)}"
    return f"k{STYLES.index(style)}" if style in STYLES else "void"
