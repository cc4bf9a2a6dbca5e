"""PORTING.md tells the truth: its code runs, and the calls that it names exist."""

import re
from pathlib import Path

import pytest

from nixldesc import Blocks, DlistPair, Layout, Plan, Region
from nixldesc.adapter import PreparedPeer, Transfer

TEXT = (Path(__file__).parents[2] / "PORTING.md").read_text()


def _blocks() -> dict[str, str]:
    """Every python block by line and heading; padded, so that its line numbers are the file's."""
    blocks: dict[str, str] = {}
    for found in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.M | re.S):
        headings = re.findall(r"^#+ (.*)$", TEXT[: found.start()], re.M)
        line = TEXT[: found.start(1)].count("\n")
        blocks[f"line {line + 1}: {headings[-1]}"] = "\n" * line + found.group(1)
    return blocks


BLOCKS = _blocks()


def test_every_page_has_code() -> None:
    pages = re.findall(r"^## (.*)$", TEXT, re.M)
    assert (pages[0], pages[-1]) == ("Before you start", "What stays yours")
    for page in pages[:-1]:
        body = TEXT.split(f"\n## {page}\n")[1].split("\n## ")[0]
        assert "```python\n" in body, f"no python block under {page!r}"


@pytest.mark.parametrize("name", BLOCKS)
def test_block_runs(name: str) -> None:
    code = BLOCKS[name]
    assert code.lstrip().startswith(("from ", "import ")), "a block starts with its imports"
    assert "\nassert " in code or "    assert " in code, "a block that shows no result"
    exec(compile(code, f"PORTING.md, {name}", "exec"), {"__name__": "porting"})


def test_links_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^## (.*)$", TEXT, re.M)
    }
    assert set(re.findall(r"\]\(#(.*?)\)", TEXT)) == anchors


# The words that the tables and the prose use for objects, and what these objects are.
OWNERS = {
    "Layout": Layout,
    "layout": Layout,
    "Region": Region,
    "Blocks": Blocks,
    "pair": DlistPair,
    "plan": Plan,
    "peer": PreparedPeer,
    "transfer": Transfer,
}


def test_named_calls_exist() -> None:
    prose = re.sub(r"^```python\n.*?^```$", "", TEXT, flags=re.M | re.S)
    spans = re.findall(r"`([^`]+)`", prose)
    named = {m for span in spans for m in re.findall(r"\b(\w+)\.(\w+)\b", span) if m[0] in OWNERS}
    assert len(named) > 15
    missing = [f"{owner}.{name}" for owner, name in named if not hasattr(OWNERS[owner], name)]
    assert missing == []
