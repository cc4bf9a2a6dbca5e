"""The demo's figures as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nixldesc._cli.demo.decode import ID_REPEATS
from nixldesc._cli.demo.rank import REPEATS
from nixldesc._cli.screen import Screen, Styled, count, say, size, table

__all__ = ["report"]

_PEERS = "once per peer | >rows\nsrc + dst | >descriptors\nsrc + dst | >plan\nms | >prepare\nms"
_REQUESTS = (
    "request | >tokens | >cached | >ids | >million\nids/s | >wire ops\ngiven | >\nmerge | >MiB | >ms\ngiven | >\nmerge"
)
_KINDS = "kind of layer | >rows | >ids | >wire ops\ngiven | >\nmerge"

_WHY_MERGE = (
    "Neighbours merge where rows are dense on both sides. Here a source holds only a part of each attention and state "
    "block, so those rows are strided; latent blocks come whole, in runs as long as both block tables have them."
)


def report(screen: Screen, result: dict[str, Any]) -> bool:
    """Write the tables and the verdict; return whether every byte was right."""
    screen.line()
    table(screen, _PEERS, _peer_rows(result["peers"]))
    screen.line()
    table(screen, _REQUESTS, _request_rows(result["requests"]))
    say(screen, f"Times are the quickest of {REPEATS} transfers, and of {ID_REPEATS} computations of the ids.")
    screen.line()
    table(screen, _KINDS, _kind_rows(result["kinds"]))
    say(screen, _WHY_MERGE)
    screen.line()
    for words in result["wrong"]:
        screen.line(Styled("WRONG: ", "bold red"), words)
    if not result["wrong"]:
        screen.line(Styled("Every byte is right.", "bold green"))
        heard = count(result["heard"], "notification")
        say(screen, f"{size(result['compared'])} of decode's memory compared, prefill's untouched, {heard} heard.")
    return not result["wrong"]


def _peer_rows(peers: Iterable[dict[str, Any]]) -> list[list[str]]:
    words = {"READ": "decode {mine} reads prefill {theirs}", "WRITE": "prefill {mine} writes decode {theirs}"}
    rows, shown = [], set()
    for peer in peers:
        both = [" + ".join(f"{figure:,}" for figure in peer[key]) for key in ("rows", "descs")]
        # One plan is for all sources of a destination; its time stands once.
        once = "" if peer["plan"] in shown else _ms(peer["plan"])
        shown.add(peer["plan"])
        rows.append([words[peer["posts"]].format(**peer), *both, once, _ms(peer["prepare"])])
    return rows


def _request_rows(requests: list[dict[str, Any]]) -> list[list[str | Styled]]:
    rows: list[list[str | Styled]] = [[f"{facts['number']} {facts['how']}", *_figures([facts])] for facts in requests]
    rows.append([Styled(cell, "bold") for cell in ("all", *_figures(requests))])
    return rows


def _figures(requests: list[dict[str, Any]]) -> list[str]:
    def total(*keys: str) -> Any:
        values: list[Any] = requests
        for key in keys:
            values = [value[key] for value in values]
        return sum(values)

    return [
        f"{total('tokens'):,}",
        f"{total('cached'):,}" if total("cached") else "-",
        f"{total('ids'):,}",
        f"{total('ids') / total('id_seconds') / 1e6:,.0f}",
        f"{total('given', 'ops'):,}",
        f"{total('merge', 'ops'):,}",
        f"{total('merge', 'nbytes') / 2**20:,.1f}",
        _ms(total("given", "seconds")),
        _ms(total("merge", "seconds")),
    ]


def _kind_rows(kinds: list[dict[str, Any]]) -> list[list[str]]:
    return [[facts["kind"], *[f"{facts[key]:,}" for key in ("rows", "ids", "given", "merge")]] for facts in kinds]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"
