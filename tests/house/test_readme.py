"""README.md's page runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nixldesc

README = Path(__file__).resolve().parents[2] / "README.md"


def blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_the_page_from_two_layouts_to_a_transfer_runs() -> None:
    pytest.importorskip("nixl", reason="README.md's page needs nixl")
    (page,) = blocks(README.read_text())
    lines = [line for line in page.splitlines() if line.strip()]
    assert len(lines) <= 35, "the page is to be short"
    exec(compile(page, str(README), "exec"), {"__name__": "readme"})


def test_names_in_the_readme_exist() -> None:
    text = README.read_text()
    for owner, names in {
        "pair": nixldesc.DlistPair,
        "plan": nixldesc.Plan,
        "Layout": nixldesc.Layout,
    }.items():
        for name in re.findall(rf"\b{owner}\.([a-z_]+)\(", text):
            assert hasattr(names, name), f"README.md names {owner}.{name}"
