"""Layouts from JSON files: what ``json.dumps(layout.to_dict())`` wrote. A wrong file is one clear line."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext

from nixldesc import GeometryError, Layout
from nixldesc._cli.screen import printable

__all__ = ["UsageError", "read_layout"]

_EXPECTED = "expected is what json.dumps(layout.to_dict()) writes"


class UsageError(Exception):
    """Words or files that the command cannot work with; its text is the line to show."""


def read_layout(path: str) -> Layout:
    """Return the layout in a JSON file (``-``: standard input), or raise UsageError naming the file and the fault."""
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
            return Layout.from_dict(json.load(file))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{printable(path)}: {_words(error)}") from None


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, GeometryError):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON ({error.msg}, line {error.lineno}, column {error.colno}); {_EXPECTED}"
    if isinstance(error, UnicodeDecodeError):
        return f"no JSON (it is no UTF-8 text); {_EXPECTED}"
    return f"no JSON that can be read ({str(error) or type(error).__name__}); {_EXPECTED}"
