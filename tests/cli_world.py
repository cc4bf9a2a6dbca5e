"""What the tests of the command line share: a small model's ranks, its files, and how to run a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nixldesc import Layout, Region, attention_sections, mla_sections
from nixldesc._cli.main import main


def engine_rank(tp_rank: int, tp_size: int, block_tokens: int, **page: Any) -> Layout:
    """Three layers of a small model on one rank: attention twice, then a latent cache."""
    regions, at = [], 0x10000
    for name in ("l0", "l1"):
        sections = attention_sections(
            name,
            num_kv_heads=4,
            tp_size=tp_size,
            tp_rank=tp_rank,
            block_tokens=block_tokens,
            token_head_bytes=64,
            kv="blocks_first",
            **page,
        )
        regions.append(Region(name, at, sections[-1].end, 100, groups=(0,), mem_type="DRAM", sections=sections))
        at += regions[-1].span
    sections = mla_sections("l2", block_tokens=block_tokens, token_bytes=96)
    regions.append(Region("l2", at, sections[-1].end, 100, groups=(1,), mem_type="DRAM", sections=sections))
    return Layout(regions)


def save(**layouts: Layout) -> None:
    """Write layouts as files of the current folder."""
    for name, layout in layouts.items():
        Path(f"{name}.json").write_text(json.dumps(layout.to_dict()))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command line; return exit code, output and error output."""
    try:
        code = main(words)
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err
