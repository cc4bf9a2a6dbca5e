"""What the house promises to run on is what it is tested on; its tools come in one version each."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def made(variable: str) -> str:
    found = re.search(rf"^{variable} :?= (.*)$", MAKEFILE, re.MULTILINE)
    assert found, variable
    return found[1]


def test_each_python_of_the_classifiers_is_tested() -> None:
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert named == made("PYTHONS").split()
    assert f'requires-python = ">= {named[0]}"' in PROJECT
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert matrix
    assert set(named) <= set(re.findall(r'"([\d.]+)"', matrix[1]))


def test_the_oldest_numpy_that_is_promised_is_tested() -> None:
    promised = re.search(r'dependencies = \["numpy >= ([\d.]+)"\]', PROJECT)
    assert promised
    assert made("OLD_NUMPY").rsplit(".", 1)[0] == promised[1]


def test_each_tool_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    pinned = re.findall(r"^([\w-]+)==[\d.]+(?:; python_version >= .*)?$", pins, re.MULTILINE)
    extras = dict(re.findall(r"^(test|lint|docs) = \[(.*)\]$", PROJECT, re.MULTILINE))
    assert set(extras) == {"test", "lint", "docs"}
    tools = {re.split(r"[ \[>=]", tool)[0] for tools in extras.values() for tool in re.findall(r'"(.+?)"', tools)}
    assert tools <= set(pinned)
    assert "export PIP_CONSTRAINT := $(CURDIR)/constraints.txt" in MAKEFILE
