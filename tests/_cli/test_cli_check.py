"""``python -m nixldesc check``: what each source sends, or exactly what is missing and why.

Expected figures are worked out by hand or byte by byte, never by the planner.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import cli_world
import pytest
from cli_world import engine_rank, save
from hypothesis import given
from hypothesis import strategies as st

from nixldesc import Axis, Layout, Region, Section, attention_sections, mla_sections, state_sections
from nixldesc._cli.verdict import judge


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    return partial(cli_world.run, capsys)


def check_table(out: str) -> dict[str, list[str]]:
    """The rows of the first table by source rank: cells, two or more spaces apart."""
    rows = [re.split(r" {2,}", line) for line in out.split("\n\n")[1].splitlines()[2:]]
    return {row[0].split()[0]: row[1:] for row in rows}


def test_check_says_what_each_source_sends(run: Any) -> None:
    """Decode rank 1 of 2 with blocks of 32 tokens reads from prefill ranks 2 and 3 of 4 with blocks of 16."""
    save(**{f"p{r}": engine_rank(r, 4, 16) for r in range(4)}, d=engine_rank(1, 2, 32))
    code, out, err = run("check", "d.json", *(f"p{r}.json" for r in range(4)), "--dst-rank", "1", "--dst-size", "2")
    assert (code, err) == (0, "")
    assert out.startswith("d.json can be filled, every byte from exactly one source.\n")
    # A source holds one head: a run for K and for V of both layers; rank 2 also sends the latent cache. A dst block
    # is two sub-blocks: src rows as runs; dst rows twice as many where heads of the other source lie between.
    assert check_table(out) == {
        "0": ["nothing", "-", "-", "-", "-", "-"],
        "1": ["nothing", "-", "-", "-", "-", "-"],
        "2": ["DRAM to DRAM", "5 + 9", "500 + 1,000", "5", "10", f"{2 * 2 * 32 * 64 + 32 * 96:,}"],
        "3": ["DRAM to DRAM", "4 + 8", "400 + 800", "4", "8", f"{2 * 2 * 32 * 64:,}"],
    }


def test_check_lists_runs_and_draws_both_pages(run: Any) -> None:
    save(p2=engine_rank(2, 4, 16), p3=engine_rank(3, 4, 16), d=engine_rank(1, 2, 32))
    words = ("--dst-rank", "1", "--dst-size", "2", "--src-size", "4")
    code, out, _ = run("check", "d.json", "2=p2.json", "3=p3.json", *words)
    assert code == 0
    page = out[out.index("l0 and 1 more alike: a block of 32 tokens is 8,192 bytes") :].split("\n\nl2")[0]
    # [K head 2][K head 3][V head 2][V head 3] of 2,048 bytes each; a source's page is [K][V] of 1,024.
    rows = [line.split() for line in page.splitlines() if re.match(r"\d+ ", line)]
    assert [row[:5] for row in rows] == [
        ["1", "2", "0", "0", "1,024"],
        ["2", "2", "1,024", "4,096", "1,024"],
        ["3", "3", "0", "2,048", "1,024"],
        ["4", "3", "1,024", "6,144", "1,024"],
    ]
    assert all("2 times, 1,024 apart" in line for line in page.splitlines() if re.match(r"\d+ ", line))
    bars = dict(re.findall(r"^ +(\w[\w ]*?) +\|(.*)\|$", page, re.M))
    assert set(bars) == {"dst", "from", "src 2", "src 3"}
    assert re.fullmatch("a+b+", bars["dst"])
    assert re.fullmatch("2+3+2+3+", bars["from"])
    assert re.fullmatch("a+b+", bars["src 2"])
    assert round(len(bars["dst"]) / len(bars["src 2"])) == 4


def test_check_shows_what_of_a_source_is_sent(run: Any) -> None:
    save(p0=engine_rank(0, 1, 16), d=engine_rank(3, 4, 16))
    code, out, _ = run("check", "d.json", "p0.json", "--dst-rank", "3", "--dst-size", "4")
    assert code == 0
    bars = dict(re.findall(r"^ +(\w[\w ]*?) +\|(.*)\|$", out.split("\n\n")[2], re.M))
    assert re.fullmatch("a+b+", bars["src 0"])
    assert re.fullmatch(r"\.+0+\.+0+", bars["sends"])


def test_check_draws_eight_sources_and_twelve_sections(run: Any) -> None:
    """Planted once: nine; a picture is to be taken in at a glance."""
    names = [f"s{i:02}" for i in range(13)]
    page = [Section(name, (), 8, offset=8 * i) for i, name in enumerate(names)]
    dst = Layout([Region("all", 0, 8 * 13, 4, sections=page)])
    save(
        d=dst,
        **{
            f"p{i:02}": Layout([Region(name, 0, 8, 4, sections=[Section(name, (), 8)])]) for i, name in enumerate(names)
        },
    )
    code, out, _ = run("check", "d.json", *[f"p{i:02}.json" for i in range(13)])
    assert code == 0
    assert re.findall(r"^ +(src \d+) +\|", out, re.M) == [f"src {i}" for i in range(8)]
    assert re.findall(r"^ +\w +(s\d\d)  bytes", out, re.M) == names[:12]
    assert "and 1 more sections" in out and "and 5 more runs" in out


def test_check_marks_the_missing_part(run: Any) -> None:
    """Only prefill rank 2 is there: the second head of each part is missing, the latent cache comes."""
    save(p2=engine_rank(2, 4, 16), d=engine_rank(1, 2, 32))
    code, out, err = run("check", "d.json", "2=p2.json", "--dst-rank", "1", "--dst-size", "2")
    assert (code, err) == (1, "")
    assert out.startswith("d.json cannot be filled from these sources:\n")
    assert "section 'l0.k' (region 'l0'): axis 'head' is [2, 4) here, source 2 holds [2, 3); missing is [3, 4)" in out
    assert "and 3 more alike: l0.v, l1.k, l1.v" in out
    assert f"In all {2 * 2 * 32 * 64:,} bytes of each destination block have no source." in out
    bars = dict(re.findall(r"^ +(\w[\w ]*?) +\|(.*)\|$", out, re.M))
    assert re.fullmatch("2+x+2+x+", bars["from"])
    assert len(set(Counter(bars["from"]).values())) <= 2
    assert "l2" not in out.partition("In all")[2]


def test_check_marks_what_is_missing_of_an_axis_in_parts(run: Any) -> None:
    """A scale cache of 8 rows in parts of 4 (it ended in a traceback): the outer half, 24 bytes, is at the end."""

    def rows(parts: int) -> Layout:
        scales = Section("w", [Axis("row", 0, parts, 4), Axis("scale", 0, 3), Axis("row", 0, 4)], 2)
        return Layout([Region("w", 0, scales.end, 10, sections=[scales])])

    save(d=rows(2), s=rows(1))
    code, out, err = run("check", "d.json", "s.json")
    assert (code, err) == (1, "")
    assert "section 'w' (region 'w'): axis 'row' is [0, 8) here, source 0 holds [0, 4); missing is [4, 8)" in out
    assert "In all 24 bytes of each destination block have no source." in out
    bars = dict(re.findall(r"^ +(\w[\w ]*?) +\|(.*)\|$", out, re.M))
    assert re.fullmatch("0+x+", bars["from"])
    assert abs(bars["from"].count("0") - bars["from"].count("x")) <= 1


FAULTS = {
    "another format": (
        engine_rank(0, 1, 16, dtype="fp8"),
        "section 'l0.k' (region 'l0'): dtype is '', source 0 (region 'l0') has 'fp8'",
    ),
    "another name": (
        Layout([Region("other", 0, 64, 4)]),
        "no source holds a section of that name; sources hold 'other'",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_check_marks_all_of_a_section_that_does_not_fit(run: Any, name: str) -> None:
    src, words = FAULTS[name]
    save(src=src, dst=engine_rank(0, 1, 16))
    code, out, _ = run("check", "dst.json", "src.json")
    assert code == 1
    assert words in out
    bars = dict(re.findall(r"^ +(\w[\w ]*?) +\|(.*)\|$", out.split("\n\n")[-2], re.M) or [("from", "x")])
    assert set(bars["from"]) == {"x"}
    assert "src 0" in out  # of another name: the page whose name is nearest


def test_check_says_so_when_one_block_table_would_mean_two_things(run: Any) -> None:
    """Each section could be delivered alone, the layout cannot: nothing is marked as missing."""

    def side(tokens: int, more: int) -> Layout:
        a = mla_sections("a", block_tokens=tokens, token_bytes=8)
        b = mla_sections("b", block_tokens=more, token_bytes=8)
        return Layout(
            [
                Region("a", 0, a[0].end, 4, groups=(0,), sections=a),
                Region("b", 4096, b[0].end, 4, groups=(0,), sections=b),
            ]
        )

    save(dst=side(16, 16), src=side(16, 8))
    code, out, _ = run("check", "dst.json", "src.json")
    assert code == 1
    assert "'a' and 'b' share the block tables" in out
    assert "|" not in out


def test_check_says_so_when_a_layout_is_no_description(run: Any) -> None:
    save(dst=engine_rank(0, 1, 16), src=Layout([Region("cut", 0, 16, 3, sub_blocks=4)]))
    code, out, _ = run("check", "dst.json", "src.json")
    assert code == 1
    assert out.count("region 'cut' has no sections") == 1


def test_check_names_what_may_be_missing_and_what_is_not_wanted(run: Any) -> None:
    src = Layout([*engine_rank(0, 1, 16).regions[:2], Region("draft", 0, 64, 4)])
    save(src=src, dst=engine_rank(0, 1, 16))
    assert run("check", "dst.json", "src.json")[0] == 1
    code, out, _ = run("check", "dst.json", "src.json", "--allow-missing", "l2")
    assert code == 0
    assert "1 section without a source: l2" in out
    assert "1 section that the destination does not have: draft" in out


@st.composite
def broken_pairs(draw: st.DrawFn) -> tuple[Layout, dict[int, Layout]]:
    """A rank of one engine and some ranks of another, of a layer with heads and a state."""

    def rank(tp_size: int, tp_rank: int, order: Any, conv: Any) -> Layout:
        shard: dict[str, Any] = {"tp_size": tp_size, "tp_rank": tp_rank}
        page = attention_sections(
            "a",
            num_kv_heads=4,
            block_tokens=2,
            token_head_bytes=3,
            order=order,
            kv="blocks_first",
            **shard,
        )
        state = state_sections(
            "s",
            projections={"x": 8, "B": 4},
            conv_rows=2,
            conv_itemsize=2,
            ssm_shape=(4, 2),
            ssm_itemsize=4,
            conv_order=conv,
            replicated=("B",),
            **shard,
        )
        return Layout(
            [
                Region("a", 0, page[-1].end, 4, groups=(0,), sections=page),
                Region("s", 4096, state[-1].end, 4, groups=(1,), sections=state),
            ]
        )

    tp = [draw(st.sampled_from([1, 2, 4])) for _ in range(2)]
    orders = [(draw(st.sampled_from(["HND", "NHD"])), draw(st.sampled_from(["DS", "SD"]))) for _ in range(2)]
    kept = draw(st.sets(st.integers(0, tp[1] - 1)))
    dst = rank(tp[0], draw(st.integers(0, tp[0] - 1)), *orders[0])
    return dst, {r: rank(tp[1], r, *orders[1]) for r in sorted(kept)}


def items_of(section: Section) -> dict[tuple[int, ...], int]:
    """Every item of a section: its global indices by axis name, and where it begins; by nested loops."""
    found: dict[tuple[int, ...], int] = {(): section.offset}
    for axis, stride in sorted(zip(section.axes, section.strides, strict=True), key=lambda pair: pair[0].name):
        steps = [(i, (i - axis.start) * stride) for i in range(axis.start, axis.stop)]
        found = {(*index, i): at + step for index, at in found.items() for i, step in steps}
    return found


@given(broken_pairs())
def test_what_is_missing_is_exactly_what_nobody_holds(pair: tuple[Layout, dict[int, Layout]]) -> None:
    dst, srcs = pair
    verdict = judge(dst, srcs)
    for region in dst.regions:
        sent: Counter[int] = Counter()
        for run in (run for run in verdict.runs if run.dst is region):
            for k in range(run.dst_subs[0]):
                start = run.dst_at + k * run.dst_subs[1]
                sent.update(range(start, start + run.length))
        for section in region.sections:
            held = {
                index
                for layout in srcs.values()
                for theirs in (s for r in layout.regions for s in r.sections)
                if theirs.name == section.name
                for index in items_of(theirs)
            }
            missing = {
                at
                for fault in verdict.faults
                if fault.section is section
                for part in fault.missing
                for at in items_of(part).values()
            }
            for index, at in items_of(section).items():
                assert (at in missing) == (index not in held)
                counts = {sent[at + i] for i in range(section.itemsize)}
                assert counts == ({0} if at in missing else {1})
    assert (verdict.made is None) == bool(verdict.faults)
