"""``python -m nixldesc show, locate``, wrong words and files, screens: what a person, a pipe and a script get.

Expected texts and figures are worked out by hand or byte by byte, never by the planner.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cli_world
import pytest
from cli_world import engine_rank, save
from hypothesis import given
from hypothesis import strategies as st

from nixldesc import Axis, Layout, Region, Section
from nixldesc._cli.main import main
from nixldesc._cli.picture import SOURCE_STYLES, STYLES, Patch, Picture, Strip, cells_of
from nixldesc._cli.screen import Screen, Styled, open_screen, say, table
from nixldesc._cli.show import show
from nixldesc._cli.svg import _COLOURS, _fill, svg

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    return partial(cli_world.run, capsys)


# ------------------------------------------------------------------------------------------------------------ show


def test_show_says_what_is_registered(run: Any) -> None:
    regions = [
        Region("k", 0x1000, 24, 10, block_stride=32, groups=(0, 3), mem_type="DRAM", device_id=2),
        Region("s", 0x9000, 16, 5, sections=[Section("s.x", [Axis("head", 2, 4)], 4), Section("s.y", (), 8, offset=8)]),
        Region("cut", 0x20000, 16, 3, sub_blocks=4, block_stride=100),
    ]
    save(layout=Layout(regions, cp_rank=1, cp_size=3))
    code, out, err = run("show", "layout.json")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["region", "memory", "first", "byte", "end", "blocks", "block", "stride", "pad", "groups"],
        ["k", "DRAM:2", "0x1000", "0x1138", "10", "24", "32", "8", "0,", "3"],
        ["s", "VRAM:0", "0x9000", "0x9050", "5", "16", "16", "-", "all"],
        ["cut", "VRAM:0", "0x20000", "0x20108", "3", "4x16", "100", "36", "all"],
    ]
    # 10 + 5 + 12 descriptors; k and s are a row each, cut a row for each sub-block; 240 + 80 + 192 bytes.
    assert lines[5] == (
        "layout.json: 3 regions, 27 descriptors in 6 rows, 512 bytes in blocks, 656 bytes in 3 ranges to register, "
        "context-parallel rank 1 of 3"
    )
    at = lines.index("k: a block is 24 bytes, then 8 bytes of padding")
    assert lines[at - 1] == "" and lines[at + 1] != ""  # a picture stands apart
    assert "    a  s.x  bytes 0 to 8  head[2:4] of 4 bytes" in lines
    assert "    b  s.y  bytes 8 to 16" in lines


def test_show_draws_to_scale_and_once_for_pages_that_are_alike(run: Any) -> None:
    def layer(name: str, at: int) -> Region:
        sections = [Section(f"{name}.k", (), 30), Section(f"{name}.v", (), 10, offset=30)]
        return Region(name, at, 40, 4, block_stride=80, sections=sections)

    save(layout=Layout([layer(f"l{i}", i * 320) for i in range(7)]))
    _, out, _ = run("show", "layout.json")
    (bar,) = re.findall(r"^ +\|(.*)\|$", out, re.M)
    counted = Counter(bar)
    assert bar == "a" * counted["a"] + "b" * counted["b"] + "." * counted["."]
    assert [round(8 * counted[key] / len(bar)) for key in "ab."] == [3, 1, 4]
    assert "l0 and 6 more alike: a block is 40 bytes, then 40 bytes of padding" in out


def test_show_shortens_what_is_long(run: Any) -> None:
    sections = [Section(f"s{i}", (), 1, offset=i) for i in range(70)]
    save(layout=Layout([Region("packed", 0, 70, 4, sections=sections)]))
    _, out, _ = run("show", "layout.json")
    assert out.count("  bytes ") == 24
    assert "and 46 more sections" in out


def test_names_of_strangers_do_not_move_the_cursor(run: Any) -> None:
    save(layout=Layout([Region("\x1b[2J\u202egone", 0, 16, 4)]))
    code, out, _ = run("show", "layout.json")
    assert code == 0
    assert out.isascii() and "\x1b" not in out
    assert "\\x1b[2J\\u202egone" in out


@given(st.data())
def test_a_cell_shows_who_holds_most_of_it(data: st.DataObject) -> None:
    """Against a count of single bytes, in cells of a whole number of them."""
    cells, each = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 9))
    owners = data.draw(st.lists(st.sampled_from("abc."), min_size=cells * each, max_size=cells * each))
    held = [Counter(owners[i * each : (i + 1) * each]) for i in range(cells)]
    places = {key: tuple(i for i, owner in enumerate(owners) if owner == key) for key in "abc"}
    patches = tuple(Patch(key, "", at, 1) for key, at in places.items() if at)
    shown = [patch.key if patch else "." for patch in cells_of(Strip("", cells * each, patches), cells)]
    for key, inside in zip(shown, held, strict=True):
        assert inside[key] > 0
        # A key that is seen nowhere else may stand in for whoever has more of the cell.
        assert inside[key] == max(inside.values()) or shown.count(key) == 1
    hidden = set(owners) - set(shown) - {"."}
    assert all(shown.count(shown[i // each]) == 1 for i, owner in enumerate(owners) if owner in hidden)


def test_a_loop_of_runs_is_where_it_says() -> None:
    """head 0 and 1 of eight bytes, 32 apart, beside a patch behind each."""
    strip = Strip("", 64, (Patch("a", "", (0,), 8, ((2, 32),)), Patch("b", "", (8, 40), 16)))
    assert "".join(patch.key if patch else "." for patch in cells_of(strip, 8)) == "abb.abb."


# ---------------------------------------------------------------------------------------------------------- locate


def test_locate_inverts_every_id(run: Any) -> None:
    regions = [
        Region("k", 0x1000, 24, 3, block_stride=32, groups=(0,)),
        Region("cut", 0x20000, 16, 2, sub_blocks=2, block_stride=100, sub_stride=20),
    ]
    save(layout=Layout(regions))
    expected = [("k", f"{block} of 3", "", 0x1000 + 32 * block, 24) for block in range(3)]
    # Unevenly spaced sub-blocks: all blocks' first sub-blocks, then all blocks' second ones.
    for k in range(2):
        expected += [("cut", f"{block} of 2", f"{k} of 2", 0x20000 + 100 * block + 20 * k, 16) for block in range(2)]
    for desc_id, (name, block, sub_block, addr, length) in enumerate(expected):
        code, out, _ = run("locate", "layout.json", hex(desc_id))
        facts = dict(line.split(None, 1) for line in out.splitlines() if not line.startswith(" "))
        assert code == 0
        assert facts["desc"].startswith(f"id    {desc_id} of 7 (0 to 6)")
        assert facts["region"].startswith(f"{name} (regions[{int(name == 'cut')}] of 2)")
        assert (facts["block"], facts.get("sub-block", "")) == (block, sub_block)
        assert facts["address"] == f"{addr:#x} to {addr + length:#x} ({addr}), {length} bytes"


def test_locate_knows_runs_and_whose_memory_a_segment_is(run: Any) -> None:
    """It counted runs as blocks (block 5 of 3), and named the memory of the region's first segment for all."""
    cut = Region("cut", 0x20000, 16, 3, sub_blocks=4, sub_stride=64, runs=2, run_stride=32)
    save(layout=Layout([Region.segmented("pool", 64, [(0x1000, 10, 0), (0x9000, 10, 5)]), cut]))
    _, out, _ = run("locate", "layout.json", "12")
    assert "pool (regions[0] of 2), VRAM:5\n" in out and "block      12 of 20\n" in out
    places = set()
    for desc_id in range(20, 20 + 3 * 4 * 2):
        _, out, _ = run("locate", "layout.json", str(desc_id))
        facts = {line[:9].strip(): line[11:] for line in out.splitlines()}
        block, k, j = (int(facts[name].split()[0]) for name in ("block", "sub-block", "run"))
        assert facts["address"].startswith(f"{0x20000 + 256 * block + 64 * k + 32 * j:#x} to ")
        places.add((block, k, j))
    assert places == {(block, k, j) for block in range(3) for k in range(4) for j in range(2)}


def test_locate_shows_the_sections_of_the_block(run: Any) -> None:
    save(p=engine_rank(1, 2, 16))
    code, out, _ = run("locate", "p.json", "150")
    assert code == 0
    assert "l1 (regions[1] of 3), DRAM:0" in out
    assert "a  l1.k  bytes 0 to 2,048  head[2:4] token[0:16] byte[0:64]" in out
    assert "b  l1.v  bytes 2,048 to 4,096  head[2:4] token[0:16] byte[0:64]" in out


# ------------------------------------------------------------------------------------------------------------- svg


def test_the_svg_is_well_formed_and_needs_nothing_else(run: Any) -> None:
    evil = Layout([Region('<&"\x00', 0, 16, 4), *engine_rank(1, 2, 32).regions])
    save(p2=engine_rank(2, 4, 16), d=evil)
    code, _, _ = run("check", "d.json", "2=p2.json", "--dst-rank", "1", "--dst-size", "2", "--svg", "page.svg")
    assert code == 1
    text = Path("page.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert re.findall(r"url\((.*?)\)", text) == ["#gone"] * text.count('fill="url(#gone)"')
    assert text.count("http") == 1 and "href" not in text and "@import" not in text
    words = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any('<&"\\x00' in word for word in words)
    assert {"dst", "from", "src 2"} <= set(words)
    # What nobody sends, in the two layers: half of K and of V, drawn once for both; all of the first region.
    stripes = [node for node in root.iter() if node.get("fill") == "url(#gone)" and node.get("height") == "24"]
    assert len(stripes) == 3


def test_the_svg_is_readable_on_light_and_on_dark(run: Any) -> None:
    """Text against every fill it may stand on: a contrast of at least 4.5 to 1 (WCAG AA), in both schemes."""
    save(d=engine_rank(0, 1, 16))
    assert run("show", "d.json", "--svg", "page.svg")[0] == 0
    light, dark = Path("page.svg").read_text().split("@media (prefers-color-scheme: dark)")
    for scheme in (light, dark):
        colours = dict(re.findall(r"\.(\w+) \{ fill: (#\w{6}); \}", scheme))
        assert {"ink", "paper", "void", "k0", "k7"} <= set(colours)
        for name in set(colours) - {"ink"}:
            assert contrast(colours["ink"], colours[name]) >= 4.5, name


def contrast(a: str, b: str) -> float:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


# ------------------------------------------------------------------------------------------ exit codes, wrong files

WRONG_FILES = {
    "is not there": (None, "no.json: No such file or directory"),
    "is no JSON": (b"{", "no.json: no JSON (Expecting property name"),
    "is empty": (b"", "no.json: no JSON (Expecting value, line 1, column 1)"),
    "is no text": (b'{"\xff": 1}', "no.json: no JSON (it is no UTF-8 text)"),
    "is nested too deep": (b"[" * 200_000, "no.json: no JSON that can be read ("),
    "has a huge number": (b'{"version": %s}' % (b"9" * 5000), "no.json: no JSON that can be read (Exceeds the limit"),
    "is another JSON": (b"[1, 2]", "no.json: layout must be a dict, got [1, 2] (list)"),
    "is of another version": (b'{"version": 7}', "no.json: layout: version 7 is not understood"),
    "cannot exist": (
        b'{"version": 1, "regions": [{"name": "k", "base_addr": 0, "block_len": 16, "num_blocks": 0}]}',
        "no.json: region 'k': num_blocks must be positive, got 0",
    ),
}


@pytest.mark.parametrize("name", WRONG_FILES)
@pytest.mark.parametrize("command", ["show", "locate", "check dst", "check src"])
def test_a_wrong_file_is_one_clear_line(run: Any, name: str, command: str) -> None:
    content, words = WRONG_FILES[name]
    save(good=engine_rank(0, 1, 16))
    if content is not None:
        Path("no.json").write_bytes(content)
    line = {
        "show": ["show", "no.json"],
        "locate": ["locate", "no.json", "0"],
        "check dst": ["check", "no.json", "good.json"],
        "check src": ["check", "good.json", "good.json", "7=no.json"],
    }[command]
    code, out, err = run(*line)
    assert (code, out) == (2, "")
    assert err.startswith(f"nixldesc: {words}")
    assert err.count("\n") == 1


WRONG_WORDS = {
    "": "the following arguments are required",
    "tell good.json": "invalid choice: 'tell'",
    "show": "the following arguments are required: LAYOUT.json",
    "locate good.json 1.5": "argument ID: '1.5' is no integer",
    "locate good.json 300": "nixldesc: desc id 300 is out of range, the layout has 300 descriptors",
    "locate good.json -1": "nixldesc: desc id -1 is out of range",
    "check good.json": "the following arguments are required: SRC.json",
    "check good.json 0=good.json good.json 1=good.json": "nixldesc: source rank 1 is given twice",
    "check good.json good.json --dst-rank 2 --dst-size 2": "nixldesc: --dst-rank 2 is none of --dst-size 2",
    "check good.json 3=good.json --src-size 2": "nixldesc: --src-size 2 has no source rank 3",
    "check good.json 2=good.json --src-size 2": "nixldesc: --src-size 2 has no source rank 2",
    "check good.json good.json 3=good.json --src-size 2": "nixldesc: --src-size 2 has no source rank 3",
    "show good.json --svg none/page.svg": "nixldesc: none/page.svg: No such file or directory",
    "show .": "nixldesc: .: Is a directory",
}


@pytest.mark.parametrize("words", WRONG_WORDS)
def test_wrong_words_are_refused(run: Any, words: str) -> None:
    save(good=engine_rank(0, 1, 16))
    code, _, err = run(*words.split())
    assert code == 2
    assert WRONG_WORDS[words] in err
    assert "Traceback" not in err


def test_a_layout_may_come_through_a_pipe(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(engine_rank(0, 1, 16).to_dict()).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    code, out, _ = run("show", "-")
    assert code == 0
    assert "-: 3 regions, 300 descriptors" in out


def test_ctrl_c_ends_it_without_a_word(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    save(p=engine_rank(0, 1, 16))
    monkeypatch.setattr("nixldesc._cli.main.show", stop)
    assert run("show", "p.json") == (130, "", "")


def test_help_is_there_for_each_command(run: Any) -> None:
    for command in ([], ["demo"], ["show"], ["locate"], ["check"]):
        code, out, _ = run(*command, "--help")
        assert code == 0
        assert "exit codes: 0 fine" in out
    assert run("--version")[1].startswith("nixldesc ")


# --------------------------------------------------------------------------------------------------------- screens


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)


def test_a_pipe_gets_neither_colours_nor_an_end_of_line() -> None:
    pipe = io.StringIO()
    screen = open_screen(pipe)
    screen.progress("first")
    screen.progress("second")
    say(screen, "word " * 100)
    screen.line("a ", Styled("b", "bold red"), "  ")
    screen.close()
    assert pipe.getvalue().splitlines() == ["... first", "... second", ("word " * 100).rstrip(), "a b"]


@pytest.mark.usefixtures("no_rich")
def test_a_terminal_without_rich_gets_one_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal()
    screen = open_screen(terminal)
    screen.progress("something that is longer than a line")
    screen.progress("more")
    screen.line("done")
    screen.close()
    text = terminal.getvalue()
    assert "\x1b" not in text
    assert re.sub(r"[^\r\n]*\r(?!\n)", "", text) == "done\n"
    assert max(len(part) for part in re.split("[\r\n]", text)) < 20


def shown_by(terminal: Terminal) -> list[str]:
    return [COLOUR.sub("", line).rstrip() for line in terminal.getvalue().splitlines()]


def test_rich_shows_the_same_lines_in_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    save(p2=engine_rank(2, 4, 16), d=engine_rank(1, 2, 32))
    words = ["check", "d.json", "2=p2.json"]
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        monkeypatch.setattr("sys.stdout", stream)
        assert main(words) == 1
    assert COLOUR.search(terminal.getvalue())
    assert not COLOUR.search(pipe.getvalue())
    assert shown_by(terminal) == pipe.getvalue().splitlines()


def test_rich_clears_its_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    screen = open_screen(terminal)
    screen.progress("making [agents]")
    screen.close()
    screen.line("done")
    assert "making [agents]" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2Kdone\n")


def test_show_stays_inside_80_columns_and_knows_segments_and_runs() -> None:
    name = "model.layers.27.self_attn.attn"
    swizzled = (Axis("token", 0, 4, unit=4), Axis("head", 2, 4), Axis("token", 0, 4), Axis("byte", 0, 128))
    pool = Section(name, swizzled, 1, dtype="bfloat16", cp=False)
    pieces = [(0x7F00_0000_0000 + (i << 32), 10, i) for i in range(9)]
    regions = [
        Region.segmented(name, pool.end, pieces, block_stride=2 * pool.end, sections=[pool]),
        Region("cut", 0x20000, 16, 3, sub_blocks=4, sub_stride=64, runs=2, run_stride=32),
    ]
    page = io.StringIO()
    show(Screen(page, 80), Layout(regions, cp_rank=1, cp_size=3, cp_tokens=8), "layout.json")
    out = page.getvalue()
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    words = [line.split() for line in lines]
    assert ["VRAM:1", "0x7f0100000000", "0x7f0100013000", "10", "4,096", "8,192", "4,096", "all"] in words
    assert "  5 more" in lines and ["50"] in words
    assert ["VRAM:0", "0x20000", "0x202f0", "3", "4x2x16", "256", "128", "all"] in words
    assert "context-parallel rank 1 of 3, 8 tokens at a time" in " ".join(out.split())
    [at] = [i for i, line in enumerate(lines) if "token[0:4]*4" in line]
    assert lines[at + 1].startswith(" " * (lines[at].index("model") - 1))  # the legend goes on below itself


def test_a_section_and_a_source_never_share_a_colour() -> None:
    assert not set(STYLES) & set(SOURCE_STYLES)
    fills = {_COLOURS[_fill(style)] for style in (*STYLES, *SOURCE_STYLES)}
    assert len(fills) == len(STYLES) + len(SOURCE_STYLES)


def test_a_sliver_has_its_letter_above_it() -> None:
    strip = Strip("page", 10_000, (Patch("a", "cyan", (0,), 9_990), Patch("b", "yellow", (9_990,), 10)))
    drawn = svg([Picture("l0", (strip,))], "l0")
    assert re.findall(r'<text class="(ink[ a-z]*)" x="\d+" y="\d+">([ab])</text>', drawn) == [
        ("ink", "a"),
        ("ink sliver", "b"),
    ]


def letters(strip: Strip) -> list[tuple[str, str]]:
    """Each letter of a picture's strip, in its order, and how it is written."""
    drawn = svg([Picture("l0", (strip,))], "l0")
    return [
        (letter, kind) for kind, letter in re.findall(r'<text class="(ink[ a-z]*)" x="\d+" y="\d+">(\w)</text>', drawn)
    ]


def test_of_many_slivers_of_a_key_the_first_has_its_letter() -> None:
    """Planted once: a letter above each of them."""
    slivers = Patch("b", "yellow", (500, 4_500, 8_500), 50)
    assert letters(Strip("page", 10_000, (slivers, Patch("a", "cyan", (600,), 3_800)))) == [
        ("b", "ink sliver"),
        ("a", "ink"),
    ]


def test_a_letter_stands_inside_where_it_has_air_on_both_sides() -> None:
    """Planted once: a letter of 8 points in a run of 11, which it fills."""
    page: tuple[Patch, ...] = (
        Patch("a", "cyan", (0,), 500),
        Patch("b", "yellow", (500,), 11),
        Patch("c", "green", (600,), 17),
    )
    assert letters(Strip("page", 760, page)) == [("a", "ink"), ("b", "ink sliver"), ("c", "ink")]
    # Sixteen are not enough, seventeen are; and whose letter stands inside has none above a sliver of its own.
    page = (
        Patch("a", "cyan", (0,), 17),
        Patch("a", "cyan", (700,), 5),
        Patch("b", "yellow", (500,), 16),
        Patch("c", "green", (600,), 17),
    )
    assert letters(Strip("page", 760, page)) == [("a", "ink"), ("b", "ink sliver"), ("c", "ink")]
    page = (Patch("b", "yellow", (0,), 5), Patch("a", "cyan", (5,), 700))
    assert letters(Strip("page", 760, page)) == [("b", "ink sliver"), ("a", "ink")]


def test_words_of_a_legend_have_a_square_of_their_colour_beside_them() -> None:
    """Planted once: no squares at all."""
    legend = ((Styled("a", STYLES[0]), "first"), (Styled("b", STYLES[1]), "second"))
    drawn = svg([Picture("l0", (Strip("page", 760, ()),), legend)], "l0")
    for style, words in ((STYLES[0], "first"), (STYLES[1], "second")):
        [(left, base)] = re.findall(rf'<text class="ink" x="(\d+)" y="(\d+)">{words}</text>', drawn)
        [square] = re.findall(
            rf'<rect class="{_fill(style)}" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"/>', drawn
        )
        x, y, width, height = map(int, square)
        assert x + width < int(left) and y < int(base) - 8 < int(base) < y + height  # a letter is 8 high or more


def test_letters_above_a_strip_do_not_stand_upon_one_another() -> None:
    """Planted once: a letter that began before the one beside it ended."""
    for at, seen in ((507, "ab"), (508, "abc")):  # b's letter is 8 wide
        page = (Patch("a", "cyan", (0,), 500), Patch("b", "yellow", (500,), 5), Patch("c", "green", (at,), 5))
        assert "".join(letter for letter, _ in letters(Strip("page", 760, page))) == seen


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["l0", "model.layers.27.self_attn.attn"])
def test_tables_and_drawings_stay_inside_the_terminal(width: int, name: str) -> None:
    page = io.StringIO()
    rows = [[name, "DRAM:0", "0x7f0000000000", "4,096"], [name, "VRAM:7", "0x7f0000004000", "4,096"]]
    table(Screen(page, width), "region | memory | >first\nbyte | >block", rows)
    lines = page.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[-1] for line in lines if "0x7f" in line] == ["4,096", "4,096"]
    assert page.getvalue().count(name) == 2


def test_a_name_too_long_for_the_line_has_a_line_of_its_own() -> None:
    page = io.StringIO()
    table(Screen(page, 20), "region | >blocks", [["a.very.long.name", "100"]])
    assert page.getvalue().splitlines() == ["region", "  blocks", "a.very.long.name", "     100"]


# ------------------------------------------------------------------------------------------------------- processes


def python(*words: str, code: str = "", **more: Any) -> subprocess.CompletedProcess[bytes]:
    start = ["-c", code] if code else ["-m", "nixldesc"]
    return subprocess.run(
        [sys.executable, "-W", "error", *start, *words], capture_output=True, timeout=120, check=False, **more
    )


def test_the_module_is_a_command() -> None:
    save(p=engine_rank(0, 1, 16))
    done = python("show", "p.json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"p.json: 3 regions" in done.stdout
    assert python("show", "q.json").returncode == 2
    assert python("check", "p.json", "p.json").returncode == 0


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    layers = [Region(f"layer{i}", i << 20, 4096, 100) for i in range(2000)]
    save(many=Layout(layers))
    read, write = os.pipe()
    os.close(read)  # who reads has gone before the first line
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "nixldesc", "show", "many.json"],
            stdout=gone,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_commands_need_neither_rich_nor_nixl() -> None:
    save(p=engine_rank(0, 1, 16))
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['rich', 'nixl', 'torch'])); "
        "from nixldesc._cli.main import main; sys.exit(main())"
    )
    done = python("check", "p.json", "p.json", code=code)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_library_does_not_load_the_command_line() -> None:
    code = "import sys, nixldesc, nixldesc.adapter; print([m for m in sys.modules if '_cli' in m or m == 'rich'])"
    assert python(code=code).stdout == b"[]\n"
