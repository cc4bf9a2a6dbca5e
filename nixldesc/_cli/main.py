"""Words on the command line -> one of the four commands, and the exit codes that a script can use."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

from nixldesc import Layout, __version__
from nixldesc._cli.check import check
from nixldesc._cli.files import UsageError, read_layout
from nixldesc._cli.locate import locate
from nixldesc._cli.picture import Picture
from nixldesc._cli.screen import Screen, open_screen, printable
from nixldesc._cli.show import page_pictures, show
from nixldesc._cli.svg import svg
from nixldesc._cli.verdict import judge

__all__ = ["main"]

OK, UNDELIVERED, USAGE = 0, 1, 2
INTERRUPTED = 130

_EPILOG = """\
LAYOUT.json is what json.dumps(layout.to_dict()) writes; - is standard input.

exit codes: 0 fine, 1 cannot be delivered (check) or a byte was wrong (demo), 2 wrong words or a wrong file
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (the process's own words) names and return its exit code."""
    words = _parser().parse_args(argv)
    command: Callable[[Screen, argparse.Namespace], int] = words.command
    try:
        with closing(open_screen()) as screen:
            return command(screen, words)
    except UsageError as error:
        sys.stderr.write(f"nixldesc: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads has seen enough (`| head`). Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m nixldesc",
        description="What a layout is, what moves between two of them, and a demonstration that it arrives.",
        epilog=_EPILOG,
        formatter_class=plain,
    )
    parser.add_argument("--version", action="version", version=f"nixldesc {__version__}")
    commands = parser.add_subparsers(required=True, metavar="demo | show | locate | check")

    def add(name: str, run: Callable[[Screen, argparse.Namespace], int], does: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=does, description=does, epilog=_EPILOG, formatter_class=plain)
        one.set_defaults(command=run)
        return one

    add("demo", _demo, "move a hybrid model's cache between two engines on this machine and verify every byte")
    one = add("show", _show, "the regions of a layout, its totals, and its pages drawn to scale")
    one.add_argument("layout", metavar="LAYOUT.json")
    one.add_argument("--svg", metavar="FILE", help="write the drawing to FILE as well")
    one = add("locate", _locate, "what a descriptor id stands for: region, block, sections, address")
    one.add_argument("layout", metavar="LAYOUT.json")
    one.add_argument("id", metavar="ID", type=_number, help="decimal or 0x...")
    _check_words(add("check", _check, "what each source sends to the destination, or why it cannot"))
    return parser


def _check_words(one: argparse.ArgumentParser) -> None:
    one.add_argument("dst", metavar="DST.json")
    one.add_argument("srcs", metavar="SRC.json", nargs="+", help="sources in rank order from 0, or RANK=FILE")
    one.add_argument("--dst-rank", type=_number, default=0, metavar="D", help="the destination's rank (0)")
    one.add_argument("--dst-size", type=_number, default=1, metavar="N", help="how many destination ranks (1)")
    one.add_argument("--src-size", type=_number, metavar="N", help="how many source ranks, where not all are given")
    one.add_argument("--allow-missing", action="append", default=[], metavar="SECTION", help="may have no source")
    one.add_argument("--svg", metavar="FILE", help="write the drawing to FILE as well")


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is no integer") from None


def _demo(screen: Screen, words: argparse.Namespace) -> int:
    from nixldesc._cli.demo import demo

    return demo(screen)


def _show(screen: Screen, words: argparse.Namespace) -> int:
    layout = read_layout(words.layout)
    show(screen, layout, words.layout)
    _write_svg(words.svg, page_pictures(layout), words.layout)
    return OK


def _locate(screen: Screen, words: argparse.Namespace) -> int:
    locate(screen, read_layout(words.layout), words.id)
    return OK


def _check(screen: Screen, words: argparse.Namespace) -> int:
    names = _by_rank(words.srcs)
    dst = read_layout(words.dst)
    srcs = {rank: read_layout(name) for rank, name in names.items()}
    _check_ranks(words, srcs)
    options = {name: getattr(words, name) for name in ("dst_rank", "dst_size", "src_size", "allow_missing")}
    verdict = judge(dst, srcs, **options)
    pictures = check(screen, words.dst, names, verdict, dst)
    _write_svg(words.svg, pictures, f"{words.dst} from {', '.join(names.values())}")
    return UNDELIVERED if verdict.made is None else OK


def _by_rank(files: Sequence[str]) -> dict[int, str]:
    names: dict[int, str] = {}
    for number, text in enumerate(files):
        given = re.fullmatch(r"(\d{1,9})=(.+)", text, re.DOTALL)
        rank, name = (int(given[1]), given[2]) if given else (number, text)
        if rank in names:
            raise UsageError(f"source rank {rank} is given twice: {printable(names[rank])} and {printable(name)}")
        names[rank] = name
    return dict(sorted(names.items()))


def _check_ranks(words: argparse.Namespace, srcs: dict[int, Layout]) -> None:
    if not 0 <= words.dst_rank < words.dst_size:
        raise UsageError(f"--dst-rank {words.dst_rank} is none of --dst-size {words.dst_size} (0 to dst-size - 1)")
    if words.src_size is not None and words.src_size <= max(srcs):
        raise UsageError(f"--src-size {words.src_size} has no source rank {max(srcs)}")


def _write_svg(path: str | None, pictures: Sequence[Picture], title: str) -> None:
    if path is None:
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg(pictures, printable(title)))
    except OSError as error:
        raise UsageError(f"{printable(path)}: {error.strerror or error}") from None
