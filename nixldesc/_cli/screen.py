"""What a command writes on: coloured by rich on a terminal, plain text everywhere else.

A table is laid out here and not by rich, so that a terminal, a pipe and a terminal without rich show the same lines.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TextIO, TypeAlias

__all__ = [
    "Screen",
    "Styled",
    "Words",
    "count",
    "open_screen",
    "printable",
    "say",
    "size",
    "table",
]


class Styled(NamedTuple):
    """Text in a style of rich (``"bold"``, ``"red"``); plain screens show the text."""

    text: str
    style: str


Words: TypeAlias = "str | Styled"


class Screen:
    """Lines, and one progress line below them; text without colours, on any stream.

    `width`: characters in a line; None: nobody looks at the end of it (a pipe, a file).
    """

    def __init__(self, stream: TextIO, width: int | None) -> None:
        self.width = width
        self._stream = stream
        self._shown = 0  # characters of the progress line that is to be wiped out

    def line(self, *words: Words) -> None:
        """Write one line."""
        self._wipe()
        text = "".join(word.text if isinstance(word, Styled) else word for word in words)
        self._stream.write(text.rstrip() + "\n")

    def progress(self, text: str) -> None:
        """Say what is being done now; on a terminal it replaces what was said before."""
        if self.width is None:
            self._stream.write(f"... {text}\n")
        else:
            self._wipe()
            self._shown = self._stream.write(f"... {text}"[: self.width - 1])
        self._stream.flush()

    def close(self) -> None:
        """Take the progress line away and flush."""
        self._wipe()
        self._stream.flush()

    def _wipe(self) -> None:
        if self._shown:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._shown = 0


class RichScreen(Screen):
    """Colours and a live progress line; ImportError where rich is not installed."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.text import Text

        self._console = Console(file=stream, highlight=False, emoji=False, markup=False)
        super().__init__(stream, self._console.width)
        self._text = Text
        self._status = self._console.status("")

    def line(self, *words: Words) -> None:
        text = self._text.assemble(*words)
        text.rstrip()
        self._console.print(text, soft_wrap=True)

    def progress(self, text: str) -> None:
        self._status.update(self._text(text))
        self._status.start()

    def close(self) -> None:
        self._status.stop()
        self._stream.flush()


def open_screen(stream: TextIO | None = None) -> Screen:
    """Return the screen for `stream` (standard output): rich on a terminal where it is installed, else plain.

    >>> import io
    >>> page = io.StringIO()
    >>> open_screen(page).line("plain in a ", Styled("pipe", "red"))
    >>> page.getvalue()
    'plain in a pipe\\n'
    """
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        return Screen(stream, None)
    try:
        return RichScreen(stream)
    except ImportError:
        return Screen(stream, shutil.get_terminal_size().columns)


def say(screen: Screen, text: str) -> None:
    """Write plain text, broken between words where the terminal ends; in one line where nobody looks at its end."""
    for line in textwrap.wrap(text, screen.width, break_long_words=False) if screen.width else [text]:
        screen.line(line)


def printable(name: str) -> str:
    r"""Return a name that a stranger chose, with whatever would move a terminal's cursor spelled out.

    >>> printable("layers.0"), printable("\x1b[2Jgone")
    ('layers.0', '\\x1b[2Jgone')
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def count(number: int, noun: str) -> str:
    """Return a number and its noun.

    >>> count(1, "region"), count(4096, "region")
    ('1 region', '4,096 regions')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def size(nbytes: int) -> str:
    """Return a number of bytes to be read at a glance.

    >>> size(4096), size(1_500_000), size(3 * 2**30)
    ('4,096 bytes', '1,464.8 KiB', '3,072.0 MiB')
    """
    scale = 0
    while nbytes >= 10_000 * 1024**scale and scale < 4:
        scale += 1
    unit = ("bytes", "KiB", "MiB", "GiB", "TiB")[scale]
    return f"{nbytes / 1024**scale:,.1f} {unit}" if scale else count(nbytes, "byte")


def table(screen: Screen, headings: str, rows: Iterable[Sequence[Words]]) -> None:
    """Write a table; where it is wider than the terminal (80 in a pipe) a row's first cell has a line of its own.

    `headings`: of one or several lines each; one that begins with ">" is of figures, which stand at the right.

    >>> table(Screen(sys.stdout, None), "region | >blocks", [("layer0", "100")])
    region  blocks
    layer0     100
    """
    columns = headings.split(" | ")
    heads = [column.removeprefix(">").split("\n") for column in columns]
    lines = max(map(len, heads))
    levels = zip(*[[""] * (lines - len(head)) + head for head in heads], strict=True)
    cells = [[Styled(head, "bold") for head in level] for level in levels]
    cells += [[cell if isinstance(cell, Styled) else Styled(cell, "") for cell in row] for row in rows]
    widths = [max(len(cell.text) for cell in column) for column in zip(*cells, strict=True)]
    split = sum(widths) + 2 * (len(widths) - 1) > (screen.width or 80)
    if split:
        widths[0] = 0
    for row in cells:
        if split and row[0].text:
            screen.line(row[0])
            row = [Styled("", ""), *row[1:]]
        screen.line(*_padded(columns, widths, row))


def _padded(columns: Sequence[str], widths: Sequence[int], row: Sequence[Styled]) -> list[Words]:
    words: list[Words] = []
    for column, width, cell in zip(columns, widths, row, strict=True):
        pad = " " * (width - len(cell.text))
        words += [pad, cell, "  "] if column.startswith(">") else [cell, pad, "  "]
    return words[:-1]
