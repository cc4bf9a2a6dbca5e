"""A search for small messages that cost much: two strangers' layouts, read, planned and prepared.

    python tests/hard/search_cost.py [SECONDS [SEED [quick]]]      (of the processor)

All of `spending.NAMED` first; then pairs of messages of at most a megabyte are drawn and measured, and those that cost
most are changed further. Ends with status 1 when one costs more than `spending` allows (64 MiB held at once, a second
of an idle machine's processor); the worst are printed, with the genes that make them again. The same SEED draws the
same pairs, but how far the search gets is a matter of the machine.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import spending
from spending import Spent, columns, section, spent

#: Bytes of the longest message, as JSON.
MEGABYTE = 2**20

Genes = dict[str, int]

#: What a message is made of, and how much of it there may be. `dst_...` genes say what differs in the destination's.
RANGES: dict[str, int] = {
    "regions": 2**17,
    "name": 2**10,  # letters of each region's name
    "listed": 1,  # names one by one, not counted on
    "sections": 2**13,  # of a page
    "pages": 2**12,  # different ones
    "a": 2**20,  # sizes of three axes
    "b": 2**20,
    "c": 2**12,
    "token": 2**20,
    "cut": 20,  # the first axis in so many parts
    "turn": 5,  # the order of the axes in memory
    "gap": 2**6,  # bytes between items
    "itemsize": 2**6,
    "start": 2**6,  # how much further each page's first axis starts
    "one": 1,  # all sections of one name
    "rank": 3,
    "cp": 2**12,
    "grain": 2**20,
    "groups": 2**10,  # of each region
    "kinds": 2**10,  # of groups
    "mems": 2**16,  # types of memory
    "segments": 2**16,
    "cut_regions": 2**10,  # regions with segments
    "sub_blocks": 2**24,
    "runs": 2**24,
    "blocks": 2**31 - 1,
    "woven": 1,  # sections side by side, item by item
}
RARE = ("blocks", "cut", "cp", "segments", "sub_blocks", "runs", "groups", "kinds", "mems", "woven", "gap")


def draw(rng: random.Random, most: int) -> int:
    """Most often small, sometimes huge, often a power of two or next to one."""
    bits = rng.randrange(most.bit_length() + 1)
    value = 1 << bits if rng.random() < 0.6 else rng.randrange(1 << bits, 2 << bits)
    return min(most, max(0, value + rng.choice((0, 0, 0, -1, 1))))


#: An ordinary pair: what is drawn is it with a few genes changed, so that most are looked at to the end.
ORDINARY: Genes = dict.fromkeys(RANGES, 0) | {"regions": 4, "sections": 2, "a": 4, "b": 8, "blocks": 1}


def fresh(rng: random.Random) -> Genes:
    genes = dict(ORDINARY)
    for key in rng.sample([key for key in RANGES if key not in RARE], rng.randrange(1, 8)):
        genes[key] = draw(rng, RANGES[key])
    for key in rng.sample(RARE, rng.choice((0, 0, 1, 1, 2))):
        genes[key] = draw(rng, RANGES[key])
    for key in rng.sample([*RANGES], rng.choice((0, 1, 1, 2, 3))):
        genes[f"dst_{key}"] = draw(rng, RANGES[key])
    return genes


def changed(rng: random.Random, genes: Genes) -> Genes:
    found = dict(genes)
    for _ in range(rng.choice((1, 1, 2, 3))):
        key = rng.choice(list(RANGES))
        name = key if rng.random() < 0.6 else f"dst_{key}"
        turn = rng.random()
        if turn < 0.5:
            found[name] = min(RANGES[key], max(0, int(found.get(name, found[key]) * rng.choice((0.5, 0.9, 1.1, 2, 4)))))
        elif turn < 0.7:
            found.pop(f"dst_{key}", None)
        else:
            found[name] = draw(rng, RANGES[key])
    return found


def page_of(genes: Genes, number: int) -> list[dict[str, Any]]:
    """One page: its sections one after the other, or woven into one another."""
    sizes: list[Any] = [["a", max(genes["a"], 1)], ["b", max(genes["b"], 1)], ["c", max(genes["c"], 1)]]
    if genes["token"]:
        sizes.insert(1, ["token", genes["token"]])
    first = genes["start"] * number
    axes: list[Any] = [[name, first * (name == "a"), size + first * (name == "a")] for name, size in sizes if size > 1]
    if genes["cut"]:
        units = [1 << i for i in range(min(genes["cut"], 17 - len(axes)))]
        axes = [axis for axis in axes if axis[0] != "a"] + [["a", 0, 2, unit] for unit in reversed(units)]
    count = max(genes["sections"], 1)
    step = genes["itemsize"] or 1
    apart = count * step if genes["woven"] else step + genes["gap"]
    order = list(range(len(axes)))
    random.Random(genes["turn"]).shuffle(order)
    strides = [0] * len(axes)
    for place in order if genes["turn"] else reversed(range(len(axes))):
        strides[place] = apart
        apart *= axes[place][2] - axes[place][1]
    offset = step if genes["woven"] else max(apart, step)
    return [section(*axes, itemsize=step, strides=strides, offset=offset * n) for n in range(count)]


def message(genes: Genes) -> dict[str, Any] | None:
    """The message, None where it would be too long to be looked at."""
    regions = min(max(genes["regions"], 1), RANGES["regions"])
    kinds = min(max(genes["pages"], 1), regions)
    listed = bool(genes["listed"])
    long = kinds * max(genes["sections"], 1) * 60 + listed * regions * (genes["name"] + 8)
    long += genes["cut_regions"] * genes["segments"] * 8 + genes["kinds"] * genes["groups"] * 3
    if long > 2 * MEGABYTE:
        return None
    cut = genes["sub_blocks"] > 1 or genes["runs"] > 1
    pages = [[]] if cut else [page_of(genes, number) for number in range(kinds)]
    length = 1
    for held in pages[-1]:
        spans = [(axis[2] - axis[1] - 1) * step for axis, step in zip(held["axes"], held["strides"], strict=True)]
        length = max(length, held["offset"] + held["itemsize"] + sum(spans))
    letters = "n" * genes["name"]
    told = columns(
        regions,
        length=min(length, 2**64 - 1),
        pages=pages,
        num_blocks=min(max(genes["blocks"], 1), 2**63 // length + 1, 2**30 // regions),
    )
    told["base_addrs"] = 0
    told["names"] = [f"{i}{letters}" for i in range(regions)] if listed else [[letters, 0, regions, ""]]
    told["page_of"] = [i % len(pages) for i in range(regions)] if len(pages) > 1 else 0
    per_page = len(pages[0])
    if genes["one"]:
        told["section_names"] = {"regions": [f"=w{n}" for _ in range(regions) for n in range(per_page)]}
    elif per_page != 1:
        told["section_names"] = {"pages": [[f"+{n}" for n in range(per_page)]] * len(pages)}
    if genes["cp"] > 1:
        told["cp"] = [min(genes["rank"], genes["cp"] - 1), genes["cp"], genes["grain"] or None]
    if genes["groups"]:
        several = max(genes["kinds"], 1)
        told["groups"] = [list(range(i, i + genes["groups"])) for i in range(several)]
        told["group_of"] = [i % several for i in range(regions)]
    if genes["mems"] > 1:
        told["mem_types"] = [f"m{i % genes['mems']}" for i in range(regions)]
    if genes["segments"] > 1:
        told["segments"] = {
            str(i): [[told["block_lens"] * 2 * n for n in range(genes["segments"])], 1, 0]
            for i in range(min(genes["cut_regions"], regions))
        }
    if cut:
        told |= {"sub_blocks": max(genes["sub_blocks"], 1), "runs": max(genes["runs"], 1)}
        told |= {"run_strides": told["block_lens"] + genes["gap"], "block_strides": 2**32}
        told["sub_strides"] = told["run_strides"] * told["runs"] + genes["gap"]
    return told


def pair_of(genes: Genes) -> tuple[Any, Any] | None:
    """The two messages, destination first."""
    other = {key: genes.get(f"dst_{key}", genes[key]) for key in RANGES}
    found = message(other), message({key: genes[key] for key in RANGES})
    if None in found or max(len(json.dumps(told)) for told in found) > MEGABYTE:
        return None
    return found


class Found(NamedTuple):
    share: float
    spent: Spent
    genes: Genes


def measured(genes: Genes, spend: Callable[[Any, Any], Spent] = spent) -> Found | None:
    pair = pair_of(genes)
    if pair is None:
        return None
    cost = spend(*pair)
    return Found(cost.share, cost, genes)


def kept(found: list[Found]) -> list[Found]:
    """The costliest dozen; of those that end in the same words, two, so that there are others to go on from."""
    best: list[Found] = []
    for item in sorted(found, key=lambda item: -item.share):
        like = [other for other in best if other.spent.verdict[:24] == item.spent.verdict[:24]]
        if len(like) < 3:
            best.append(item)
    return best[:12]


def search(seconds: float, seed: int) -> tuple[int, list[Found]]:
    """The costliest few, and how many pairs were measured."""
    rng, worst, count = random.Random(seed), list[Found](), 0
    end = time.process_time() + seconds
    while time.process_time() < end:
        genes = fresh(rng) if len(worst) < 8 or rng.random() < 0.3 else changed(rng, rng.choice(worst).genes)
        found = measured(genes)
        if found is None:
            continue
        count += 1
        worst = kept([*worst, found])
    return count, worst


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def is_dear(genes: Genes) -> bool:
    """Measured again, for another process may have slowed the first time."""
    found = measured(genes)
    return found is not None and found.share > 1


def main(seconds: float, seed: int, named: bool) -> int:
    dear = [(name, cost) for name, make in spending.NAMED.items() if named and (cost := spent(*make())).share > 1]
    for name, cost in dear:
        say(f"{name}: {cost.words()}")
    count, worst = search(seconds, seed)
    for found in worst[:6]:
        say(f"{found.share:.2f} of what may be spent: {found.spent.words()}\n    {found.genes}")
    say(f"pairs={count} worst={worst[0].share:.2f} seed={seed} seconds={seconds:.0f}")
    if dear or (worst[0].share > 1 and is_dear(worst[0].genes)):
        say(f"a pair of messages costs more than {spending.BYTES >> 20} MiB or {spending.SECONDS} s")
        return 1
    return 0


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(float(words[0]) if words else 300.0, int(words[1]) if words[1:] else 1, len(words) < 3))
