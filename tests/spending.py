"""What two strangers' messages cost who reads, plans and prepares them: bytes held at once, seconds of processor."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nixldesc import Layout, NixldescError, plan
from nixldesc._memory import forget
from nixldesc.memory import wire_checks
from nixldesc.planning.limits import MAX_FAMILIES

#: What any two messages of a megabyte may cost at most.
BYTES = 64 * 2**20
SECONDS = 1.0
#: As many regions, or sections, as a message may speak of.
MANY = wire_checks.MAX_REGIONS


class Spent(NamedTuple):
    """The cost of one pair of messages, and what became of them."""

    nbytes: int
    seconds: float
    verdict: str

    @property
    def share(self) -> float:
        """The larger share of what may be spent: more than 1 is too much."""
        return max(self.nbytes / BYTES, self.seconds / SECONDS)

    def words(self) -> str:
        return f"{self.nbytes / 2**20:.1f} MiB, {self.seconds:.2f} s: {self.verdict[:150]}"


def first_ids(layout: Layout) -> None:
    """Ids of one block for each group, where so many lists can be."""
    top = max(max(groups or (0,)) for groups in layout.columns.groups)
    if top < 64:
        layout.desc_ids([[0]] * (top + 1))


def first_use(dst: Any, src: Any) -> str:
    """Everything until the first request: read both, plan, tables, one block of each list. Returns a verdict."""
    try:
        here, there = Layout.from_dict(dst), Layout.from_dict(src)
        for layout in (here, there):
            layout.table()
            first_ids(layout)
        made = plan(here, {0: there}, dst_rank=0, dst_size=1, allow_missing=True)
        for pairs in made.values():
            for pair in pairs:
                for layout in (pair.src, pair.dst):
                    layout.table()
                    layout.row_index()
                tops = [max(max(g or (0,)) for g in layout.columns.groups) for layout in (pair.src, pair.dst)]
                if max(tops) < 64:
                    pair.desc_ids(*[[[0]] * (top + 1) for top in tops])
    except NixldescError as error:
        return f"{type(error).__name__}: {error}"
    return repr(made)


def pace() -> float:
    """How much slower this machine is just now than an idle one that does a million steps in 40 ms."""
    began = time.process_time()
    total = 0
    for i in range(1_000_000):
        total += i & 3
    return max(1.0, (time.process_time() - began) / 0.040)


def spent(dst: Any, src: Any, use: Callable[[Any, Any], str] = first_use) -> Spent:
    """Run twice: once for the time, as on an idle machine, once for the memory (which is slower under watch)."""
    forget()
    before = pace()
    began = time.process_time()
    verdict = use(dst, src)
    seconds = (time.process_time() - began) / min(before, pace())
    forget()
    tracemalloc.start()
    try:
        use(dst, src)
        nbytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Spent(nbytes, seconds, verdict)


# ------------------------------------------------------------------------------------------------------- messages


def section(*axes: Sequence[Any], itemsize: int = 1, **how: Any) -> dict[str, Any]:
    return {"axes": [list(axis) for axis in axes], "itemsize": itemsize, **how}


def columns(regions: int, page: Any = "opaque", **how: Any) -> dict[str, Any]:
    """A message of version 2: `regions` equal regions, numbered names, one page; what `how` says instead."""
    length = how.pop("length", 64)
    message: dict[str, Any] = {
        "version": 2,
        "names": [["r", 0, regions, ""]],
        "base_addrs": [i * length for i in range(regions)],
        "block_lens": length,
        "num_blocks": 1,
    }
    if page != "opaque":
        message |= {"pages": [page], "page_of": 0}
        if len(page) > 1:
            message["section_names"] = {"pages": [[f"+{i}" for i in range(len(page))]]}
    return message | how


def uneven() -> tuple[Any, Any]:
    """A few bytes that ask for millions of rows."""
    cut = columns(1, [], length=1, num_blocks=2, block_strides=2**40, sub_blocks=2**22, sub_strides=2)
    return columns(1), cut


def long_name() -> tuple[Any, Any]:
    """A region's name that every lane of it would repeat, against an ordinary model of 64 layers."""
    page = [section(["head", 0, 8], ["token", 0, 16], ["byte", 0, 128])]
    turned = [section(["token", 0, 16], ["head", 0, 8], ["byte", 0, 128])]
    names = [[f"layers.{'n' * 309_000}", 0, 1, ""], ["layer", 1, 63, ""]]
    model = columns(64, page, length=2**14)
    one = columns(64, turned, length=2**14) | {"names": names, "section_names": {"pages": [["=l"]]}}
    one["section_names"] = {"regions": [["=r", 0, 64, ""]]}
    return model, one


def transposed(rows: int, cols: int) -> tuple[Any, Any]:
    """Two short messages whose pages order their bytes the other way round."""
    a, b = ["a", 0, rows], ["b", 0, cols]
    return (
        columns(1, [section(a, b)], length=rows * cols),
        columns(1, [section(a, b, strides=[1, rows])], length=rows * cols),
    )


def three_ways(size: int) -> tuple[Any, Any]:
    axes = [["a", 0, size], ["b", 0, size], ["c", 0, size]]
    strides = [1, size, size * size]
    return (
        columns(1, [section(*axes)], length=size**3),
        columns(1, [section(*axes, strides=strides)], length=size**3),
    )


def numbered(regions: int, **how: Any) -> tuple[Any, Any]:
    """Very many regions, whose names are few bytes."""
    both = columns(regions, **how) | {"base_addrs": 0}
    return both, both


def named(count: int, length: int) -> tuple[Any, Any]:
    both = columns(count) | {"names": [f"{i}{'n' * length}" for i in range(count)]}
    return both, both


def sectioned(regions: int, sections: int, by_region: bool = False) -> tuple[Any, Any]:
    """Every region a page of many small sections."""
    page = [section(["a", 0, 2], offset=2 * i) for i in range(sections)]
    both = columns(regions, page, length=2 * sections, base_addrs=0)
    if by_region:
        both["section_names"] = {"regions": [["+", 0, regions * sections, ""]]}
    turned = dict(both)
    turned["pages"] = [[section(["a", 0, 2], offset=2 * i) for i in reversed(range(sections))]]
    return both, turned


def alike(count: int, sections: int) -> tuple[Any, Any]:
    """So many pages, no two alike, whose sections have an axis of one index."""
    held = [[section(["a", 0, 1], offset=sections * n + i) for i in range(sections)] for n in range(count)]
    both = columns(count, pages=held, page_of=list(range(count)), length=count * sections)
    if sections > 1:
        both["section_names"] = {"pages": [[f"+{i}" for i in range(sections)]] * count}
    return both, both


def segments(count: int, regions: int = 1) -> tuple[Any, Any]:
    message = columns(regions)
    message["segments"] = {str(i): [[64 * n + 2**40 * i for n in range(0, 2 * count, 2)], 1, 0] for i in range(regions)}
    return message, message


def parts(regions: int, reach: int, dims: int = 1) -> tuple[Any, Any]:
    """Parts of one section, each of `reach` indices: against parts that overlap one another."""
    side = round(regions ** (1 / dims))

    def message(reach: int) -> dict[str, Any]:
        pages = []
        for i in range(side**dims):
            at = [i // side**d % side for d in range(dims)]
            pages.append([section(*[[f"a{d}", n, n + reach] for d, n in enumerate(at)])])
        return columns(side**dims, length=reach**dims, pages=pages) | {
            "page_of": list(range(side**dims)),
            "section_names": {"regions": ["=w"] * side**dims},
        }

    return message(1), message(reach)


def runs(regions: int, rows: int) -> tuple[Any, Any]:
    """Columns cut out of rows: a run per row."""
    page, whole = [section(["r", 0, rows], ["c", 0, 4])], [section(["r", 0, rows], ["c", 0, 8])]
    return (
        columns(regions, page, length=4 * rows),
        columns(regions, whole, length=8 * rows),
    )


def pages(count: int, sections: int) -> tuple[Any, Any]:
    """Every region a page of its own."""

    def message(step: int) -> dict[str, Any]:
        kinds = [
            [section(["a", 0, 2], offset=step * n, strides=[1], itemsize=1) for n in range(sections)]
            for _ in range(count)
        ]
        for i, kind in enumerate(kinds):
            kind[0]["offset"] = i
            for n, held in enumerate(kind):
                held["offset"] = i + step * n
        names = {"pages": [[f"+{n}" for n in range(sections)]] * count}
        length = count + step * sections + 2
        return columns(count, length=length, pages=kinds, page_of=list(range(count)), section_names=names)

    return message(2), message(3)


def tokens(src: int, dst: int, heads: int = 2) -> tuple[Any, Any]:
    """Blocks of many tokens against blocks of few."""

    def message(count: int) -> dict[str, Any]:
        return columns(1, [section(["token", 0, count], ["head", 0, heads])], length=count * heads)

    return message(dst), message(src)


def dealt(tokens: int, grain: int) -> tuple[Any, Any]:
    page = [section(["token", 0, tokens], ["head", 0, 2])]
    both = columns(1, page, length=tokens * 2)
    return both, both | {"cp": [0, 4, grain]}


def grouped(regions: int, groups: int) -> tuple[Any, Any]:
    both = columns(regions, groups=[list(range(groups))], group_of=0)
    return both, both


def many_groups(regions: int) -> tuple[Any, Any]:
    both = columns(regions, groups=[[i] for i in range(regions)], group_of=list(range(regions)))
    return both, both


def memory_types(regions: int) -> tuple[Any, Any]:
    both = columns(regions, mem_types=[f"m{i}" for i in range(regions)])
    return both, both


def unlike_pages(regions: int) -> tuple[Any, Any]:
    """A few hundred pages on either side, and each of one side's meets each of the other's."""
    kinds = math.isqrt(regions) + 1
    pages = [[section(["a", 0, 4], itemsize=8, offset=i)] for i in range(kinds)]
    dst = columns(regions, length=2048, pages=pages, page_of=[i % kinds for i in range(regions)])
    src = columns(regions, length=2048, pages=pages, page_of=[i // kinds for i in range(regions)])
    return dst, src


def segments_in_pieces(regions: int) -> tuple[Any, Any]:
    """Each of many pieces of a block, each of two segments."""
    axes = [["x", 0, 8], ["y", 0, 8], ["z", 0, 2]]
    sides = []
    for strides in ([16, 2, 1], [1, 8, 64]):
        page = [section(*axes, strides=strides, offset=128 * i) for i in range(30)]
        cut = {str(i): [[0, 8192], 1, 0] for i in range(regions)}
        sides.append(columns(regions, page, length=128 * 30, base_addrs=0, segments=cut))
    return sides[0], sides[1]


def deep(depth: int) -> tuple[Any, Any]:
    bomb: Any = []
    for _ in range(depth):
        bomb = [bomb]
    return columns(2, groups=[bomb]), columns(2, names=bomb)


def split_axis(units: int) -> tuple[Any, Any]:
    """An axis in many parts against the same in one."""
    axes = [["x", 0, 2, 2**i] for i in reversed(range(units))]
    strides = [2**i for i in range(units)]
    return (
        columns(1, [section(["x", 1, 2**units - 1])], length=2**units),
        columns(1, [section(*axes, strides=strides)], length=2**units),
    )


def version_1(regions: int, sections: int = 0) -> tuple[Any, Any]:
    held = [{"name": f"s{i}", "itemsize": 1, "axes": [], "offset": i} for i in range(sections)]
    found = []
    for i in range(regions):
        region: dict[str, Any] = {"name": str(i), "base_addr": i, "block_len": max(sections, 1), "num_blocks": 1}
        if sections:
            region["sections"] = [{**one, "name": f"{i}.{one['name']}"} for one in held]
        found.append(region)
    both = {"version": 1, "regions": found}
    return both, both


def one_row() -> tuple[Any, Any]:
    """Millions of pieces of a block in one row: the first block id becomes as many descriptor ids."""
    cut = columns(1, [], length=1, sub_blocks=2**23, block_strides=2**24)
    return cut, cut


def section_names() -> tuple[Any, Any]:
    """Every region's name once for every section of its page."""
    page = [section(offset=i) for i in range(64)]
    both = columns(600, page, length=64, names=[["n" * 500, 0, 600, ""]])
    return both, both


#: What reviews and the search found, by what it is made of; each a destination's message and a source's.
NAMED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "sub-blocks, unevenly spaced": uneven,
    "sub-blocks of one row": one_row,
    "a name of 309 kB": long_name,
    "a transposed page": lambda: transposed(2**17, 2**17),
    "a transposed page, just small enough": lambda: transposed(2**16, 2**16),
    "three axes turned round": lambda: three_ways(2**9),
    "too many regions": lambda: numbered(2**16),
    "numbered names": lambda: numbered(MANY),
    "numbered names, uneven": lambda: numbered(MANY, page=[], sub_blocks=2, sub_strides=3, length=2, block_strides=7),
    "numbered names that are long": lambda: numbered(2**13, names=[["n" * 990, 0, 2**13, ""]]),
    "long names": lambda: named(1000, 1000),
    "short names": lambda: named(MANY, 1),
    "too many sections": lambda: sectioned(2**12, 2**6),
    "sections": lambda: sectioned(768, 2**6),
    "sections named by region": lambda: sectioned(768, 2**6, True),
    "sections of one page": lambda: sectioned(1, 2**12),
    "sections of one page, as many as it may have": lambda: alike(1, 3 * 2**11 - 1),
    "sections of one page, one too many": lambda: alike(1, 3 * 2**11),
    "pages of one section, as many as there may be": lambda: alike(2**12, 1),
    "names of sections": section_names,
    "segments": lambda: segments(50_000),
    "segments in many regions": lambda: segments(50, 1000),
    "parts": lambda: parts(2048, 1),
    "parts that overlap": lambda: parts(2048, 500),
    "parts that overlap in two axes": lambda: parts(2048, 12, 2),
    "parts that overlap in three axes": lambda: parts(2197, 4, 3),
    "runs": lambda: runs(2**13, 2**8),
    "many runs": lambda: runs(1, 2**20),
    "many runs of many regions": lambda: runs(2**10, 2**20),
    "pages": lambda: pages(300, 8),
    "pages of one section": lambda: pages(3000, 1),
    "tokens": lambda: tokens(2**20, 2**19),
    "tokens of no common size": lambda: tokens(2**20, 2**20 - 1),
    "tokens against one": lambda: tokens(1, 2**20),
    "dealt tokens": lambda: dealt(2**20, 3),
    "groups": lambda: grouped(100, 60_000),
    "many groups": lambda: many_groups(2**14),
    "as many groups as are planned": lambda: many_groups(MAX_FAMILIES),
    "memory types": lambda: memory_types(MANY),
    "as many memory types as are read": lambda: memory_types(wire_checks.MAX_MEM_TYPES),
    "pages of which no two are alike": lambda: unlike_pages(MANY),
    "as many of these as are planned": lambda: unlike_pages(MAX_FAMILIES),
    "segments in pieces": lambda: segments_in_pieces(128),
    "as many segments in pieces as are planned": lambda: segments_in_pieces(32),
    "deep lists": lambda: deep(100_000),
    "an axis in many parts": lambda: split_axis(11),
    "version 1": lambda: version_1(8_000),
    "version 1 with sections": lambda: version_1(600, 10),
}
