"""Two strangers' messages of a megabyte cost at most 64 MiB and a second until the first request, or are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import spending
from spending import NAMED, spent

from nixldesc import Layout
from nixldesc._memory import forget
from nixldesc.memory import wire_pages

#: Those that take a blink; `tests/hard/search_cost.py` measures all of them.
QUICK = (
    *("sub-blocks, unevenly spaced", "sub-blocks of one row", "a name of 309 kB", "a transposed page"),
    *("three axes turned round", "too many regions", "too many sections"),
    *("names of sections", "many runs", "many runs of many regions", "tokens", "tokens of no common size"),
    *("memory types", "as many memory types as are read"),
    *("tokens against one", "dealt tokens", "groups", "deep lists", "an axis in many parts"),
)


@pytest.mark.parametrize("name", QUICK)
def test_a_pair_of_messages_costs_little(name: str) -> None:
    cost = spent(*NAMED[name]())
    assert cost.nbytes <= spending.BYTES, cost.words()
    assert cost.seconds <= spending.SECONDS or spent(*NAMED[name]()).seconds <= spending.SECONDS, cost.words()


def test_what_is_refused_says_what_would_be_spent() -> None:
    """Each bound in the words of who meets it."""
    for name, words in {
        "sub-blocks, unevenly spaced": "the layout has 4194304 table rows, for its blocks' pieces lie at no even",
        "a name of 309 kB": "layout: names[0] must have at most 1024 characters, got 309008: ",
        "a transposed page": "a block is more than 65536 separate pieces",
        "many runs of many regions": "one block of each region would be",
        "too many regions": "65536 (int) names numbered from 0 (int) on are no names of regions",
        "too many sections": "more than 49152 sections",
        "sections of one page, one too many": "more than 12288 pages, their sections and axes, counted together",
        "names of sections": "layout: the names of its sections are more than 8388608 bytes",
        "memory types": "layout: its regions lie in 49152 types of memory, at most 16 are read",
        "many groups": "the two sides' regions meet in more than 8,192 different ways, each planned apart",
        "pages of which no two are alike": "the two sides' regions meet in more than 8,192 different ways",
        "segments in pieces": "the plan's lists would have more than 32,768 regions in several segments",
        "groups": "its regions take more than 131072 lists of blocks",
        "sub-blocks of one row": "pieces, counted together, which one block id would stand for; at most 4,194,304",
    }.items():
        assert words in spending.first_use(*NAMED[name]()), name


def test_what_a_message_leaves_behind_is_small() -> None:
    """Pages are kept for the next engine of a fleet; a stranger's thousand sections are not."""
    forget()
    for count in (2, 17, 1000):
        page = [spending.section(["a", 0, 2], offset=2 * i) for i in range(count)]
        Layout.from_dict(spending.columns(1, page, length=2 * count))
    kept: Any = wire_pages._kept_page
    assert kept.cache_info().currsize == 1
    forget()
    assert kept.cache_info().currsize == 0


def test_the_search_counts() -> None:
    """The script that searches for minutes."""
    script = Path(__file__).parents[1] / "hard" / "search_cost.py"
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, str(script), "2", "7", "quick"]
    done = subprocess.run(words, capture_output=True, text=True, env=paths)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = dict(word.split("=") for word in done.stdout.splitlines()[-1].split())
    assert int(figures["pairs"]) >= 1
    assert figures["seed"] == "7"
