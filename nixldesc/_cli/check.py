"""``check DST.json SRC.json ...``: what each source sends, or exactly why it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nixldesc import Layout, Plan
from nixldesc._cli.check_pictures import pictures_of
from nixldesc._cli.picture import Picture, draw
from nixldesc._cli.regions import alike
from nixldesc._cli.screen import Screen, Styled, count, printable, say, size, table
from nixldesc._cli.verdict import Fault, Run, Verdict

__all__ = ["check"]

_SENDS = "source | memory | >rows\nsrc + dst | >descriptors\nsrc + dst | >in a block:\nruns | >descs | >bytes"
_RUNS = "run | >source | >src byte | >dst byte | >bytes | in a dst block | sections"
#: Longer lists are cut, and the rest is counted.
_LISTED = 8


def check(screen: Screen, dst_name: str, names: Mapping[int, str], verdict: Verdict, dst: Layout) -> list[Picture]:
    """Write the verdict on `dst` (a file's name) and the sources (`names` of files by rank); return its pictures."""
    pictures = pictures_of(dst, verdict, names)
    if verdict.made is None:
        _refusal(screen, dst_name, verdict)
    else:
        _sends(screen, dst_name, names, verdict.made)
    for picture, runs in pictures[:_LISTED]:
        screen.line()
        draw(screen, picture)
        if verdict.made is not None:
            _list_runs(screen, runs)
    if len(pictures) > _LISTED:
        screen.line()
        screen.line(f"and {len(pictures) - _LISTED} more kinds of pages")
    return [picture for picture, _ in pictures]


def _sends(screen: Screen, dst_name: str, names: Mapping[int, str], made: Plan) -> None:
    screen.line(
        Styled(printable(dst_name), "bold"),
        " can be filled, every byte from exactly one source",
        f", but for {len(made.missing)} sections that may be missing." if made.missing else ".",
    )
    screen.line()
    table(screen, _SENDS, [row for rank in names for row in _send_rows(rank, names[rank], made)])
    for words, found in (("without a source", made.missing), ("that the destination does not have", made.unused)):
        if found:
            say(screen, f"{count(len(found), 'section')} {words}: {_few(found)}")


def _send_rows(rank: int, name: str, made: Plan) -> list[list[str | Styled]]:
    source = Styled(f"{rank} {printable(name)}", "bold")
    rows: list[list[str | Styled]] = []
    for pair in made.get(rank, ()):
        regions = pair.dst.regions
        rows.append(
            [
                source,
                printable(" to ".join(pair.mem_types)),
                f"{len(pair.src.table()):,} + {len(pair.dst.table()):,}",
                f"{pair.src.num_descs:,} + {pair.dst.num_descs:,}",
                f"{len(regions):,}",
                f"{sum(region.sub_blocks for region in regions):,}",
                f"{sum(region.sub_blocks * region.block_len for region in regions):,}",
            ]
        )
    return rows or [[source, "nothing", *["-"] * 5]]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(map(printable, names[:6]))
    return shown + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _list_runs(screen: Screen, runs: Sequence[Run]) -> None:
    screen.line()
    rows = []
    for number, run in enumerate(runs[:_LISTED], 1):
        times, apart = run.dst_subs
        spread = f"{times} times, {apart:,} apart" if times > 1 else "once"
        figures = [f"{figure:,}" for figure in (run.rank, run.src_at, run.dst_at, run.length)]
        rows.append([str(number), *figures, spread, _few(run.sections)])
    table(screen, _RUNS, rows)
    if len(runs) > _LISTED:
        screen.line(f"and {len(runs) - _LISTED} more runs")


def _refusal(screen: Screen, dst_name: str, verdict: Verdict) -> None:
    name, not_so = Styled(printable(dst_name), "bold"), Styled("cannot be filled", "bold red")
    screen.line(name, " ", not_so, " from these sources:")
    groups: list[list[Fault]] = alike((fault.key, fault) for fault in verdict.faults)
    if not groups:
        screen.line()
        say(screen, verdict.words)
    for faults in groups:
        screen.line()
        say(screen, faults[0].words)
        if len(faults) > 1:
            say(screen, f"and {len(faults) - 1} more alike: {_few([fault.section.name for fault in faults[1:]])}")
    if any(fault.missing != (fault.section,) for fault in verdict.faults):
        parts = sum(part.nbytes for fault in verdict.faults for part in fault.missing)
        screen.line()
        say(screen, f"In all {size(parts)} of each destination block have no source. Are all source ranks given?")
