"""What strangers send for a layout: valid dicts, what a fuzzer makes of them, and what any accepted one must be."""

from __future__ import annotations

import copy
import itertools
import json
import random
import reprlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nixldesc import (
    Axis,
    GeometryError,
    Layout,
    Region,
    Section,
    attention_sections,
    mla_sections,
    state_sections,
)

# ------------------------------------------------------------------------------------------------ valid dicts


def layouts() -> list[Layout]:
    """One of every kind."""
    heads: dict[str, Any] = {"num_kv_heads": 4, "tp_size": 2, "block_tokens": 4, "token_head_bytes": 8}
    hnd = attention_sections("l0", tp_rank=1, **heads)
    nhd = attention_sections("l1", tp_rank=0, order="NHD", kv="blocks_first", dtype="bf16", **heads)
    latent = mla_sections("l2", block_tokens=16, token_bytes=18, offset=4)
    state = state_sections(
        "l3",
        projections={"x": 8, "B": 2, "C": 2},
        conv_rows=3,
        conv_itemsize=2,
        conv_order="SD",
        ssm_shape=(4, 2),
        ssm_itemsize=4,
        tp_size=2,
        tp_rank=1,
        replicated=("B", "C"),
    )
    swizzled = Section("scales", (Axis("token", 0, 2, unit=4), Axis("scale", 0, 3), Axis("token", 0, 4)), 1)
    padded = Section("l4", (Axis("head", 0, 2), Axis("token", 0, 4)), 3, strides=(32, 8), cp=False)
    return [
        Layout([Region("k", 4096, 16, 4), Region("v", 8192, 16, 3, block_stride=64, mem_type="DRAM")]),
        Layout([Region("cut", 0, 8, 5, sub_blocks=4), Region("uneven", 160, 8, 5, sub_blocks=2, block_stride=64)]),
        Layout([Region("l0", 2**40, hnd[-1].end, 100, groups=(0, 2), device_id=3, sections=hnd)], cp_rank=1, cp_size=3),
        Layout([Region("l1", 0, nhd[-1].end, 9, sections=nhd), Region("l2", 0, 512, 9, groups=(1,), sections=latent)]),
        Layout([Region("l3", 2**64 - 4096, state[-1].end, 10, sections=state)]),
        Layout([Region("l4", 0, 64, 1, sections=[padded]), Region("f", 0, 4096, 7, mem_type="FILE", device_id=12)]),
        Layout(
            [
                Region("columns", 0, 8, 3, runs=4, run_stride=32),
                Region("both", 4096, 8, 3, runs=2, run_stride=16, sub_blocks=3, sub_stride=40, block_stride=256),
                Region(
                    "sub-blocks in runs",
                    8192,
                    8,
                    2,
                    runs=2,
                    run_stride=64,
                    sub_blocks=3,
                    sub_stride=8,
                    block_stride=128,
                ),
            ]
        ),
        Layout(
            [
                Region.segmented("pool", 16, [(4096, 4), (8192, 2), (2**40, 9)], groups=(0,)),
                Region.segmented("files", 64, [(0, 1, n) for n in range(5)], mem_type="VRAM", block_stride=128),
            ],
            cp_rank=2,
            cp_size=4,
            cp_tokens=8,
        ),
        Layout([Region(f"part{n}", n * 64, 64, 2, sections=[part(n)]) for n in range(4)]),
        Layout([Region("scales", 0, 24, 5, sections=[swizzled])]),
    ]


def part(number: int) -> Section:
    """One of several parts of one array, each in a region of its own."""
    return Section("w", (Axis("row", number * 2, number * 2 + 2), Axis("column", 0, 8)), 4, dtype="f32")


def numbered() -> dict[str, Any]:
    """Ten layers by what counts on, two pages by turns, columns of one value each."""
    section = {"axes": [["head", 0, 2], ["token", 0, 4], ["byte", 0, 8]], "itemsize": 1}
    return {
        "version": 2,
        "cp": [1, 2, 4],
        "names": [["layer", 0, 10, ".attn"], "last"],
        "base_addrs": [n << 12 for n in range(11)],
        "block_lens": 128,
        "num_blocks": 7,
        "block_strides": 256,
        "device_ids": 1,
        "mem_types": "DRAM",
        "groups": [None, [0], [1, 2]],
        "group_of": [0, 1, 2] * 3 + [0, 0],
        "pages": [[section, {**section, "offset": 64}], "opaque"],
        "page_of": [0] * 10 + [1],
        "section_names": {"pages": [["+.k", "+.v"], []]},
        "segments": {"3": [{"first": 2**20, "step": 4096, "count": 3}, [2, 4, 1], 0]},
    }


def messages() -> list[dict[str, Any]]:
    """One of every kind, as peers of either version send it."""
    return [*[layout.to_dict() for layout in layouts()], numbered(), *[version_1(n) for n in range(3)]]


def version_1(kind: int) -> dict[str, Any]:
    """What the releases before wrote."""
    axes = [["head", 2, 4], ["token", 0, 4], ["byte", 0, 8]]
    section = {
        "name": "l0",
        "axes": axes,
        "itemsize": 1,
        "offset": 0,
        "strides": [32, 8, 1],
        "dtype": "fp8",
        "cp": True,
    }
    plain = {"name": "k", "base_addr": 4096, "block_len": 64, "num_blocks": 4, "mem_type": "DRAM", "device_id": 2}
    region = [
        {**plain, "block_stride": 128, "groups": [0, 2]},
        {**plain, "sections": [section]},
        {**plain, "block_len": 16, "sub_blocks": 2, "sub_stride": 24, "block_stride": 64},
    ][kind]
    return {"version": 1, "cp_rank": kind, "cp_size": 3, "regions": [region, {**plain, "name": "other"}]}


# -------------------------------------------------------------------------------------------------- mutations


def nested(depth: int) -> Any:
    bomb: Any = []
    for _ in range(depth):
        bomb = [bomb]
    return bomb


def doubled(depth: int) -> Any:
    """2**depth items in `depth` lists."""
    bomb: Any = "x"
    for _ in range(depth):
        bomb = [bomb, bomb]
    return bomb


NUMBERS = [0, 1, 2, 3, 7, 8, 16, 64, 4096, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 + 5, 2**62, 2**63, 2**64 - 1, 2**64]
NASTY: list[Any] = [
    *NUMBERS,
    *[-n for n in NUMBERS[1:]],
    *[1 << 300, 10**5000, None, True, False, 0.0, 1.0, 4096.0, float("nan"), float("inf"), 1j],
    *["", "0", "token", "byte", "VRAM", "\0", "\ud800", "k" * 1000, b"", b"VRAM", (), object()],
]
FRESH: list[Callable[[], Any]] = [
    list,
    dict,
    set,
    lambda: [[]],
    lambda: [None],
    lambda: ["token", 0, 4],
    lambda: ["byte", 0, 2**63],
    lambda: {"name": "k"},
    lambda: {"version": 1, "regions": []},
    lambda: [["layer", 0, 2, ""]],
    lambda: ["", 0, 2**40, ""],
    lambda: {"0": [[0, 4096], 1, 0]},
    lambda: {"1": [{"first": 0, "step": 4096, "count": 2**18}, 1, 0]},
    lambda: {"first": 0, "step": 1, "count": 2**40},
    lambda: {"pages": [["+"]]},
    lambda: {"regions": [["+", 0, 4, ""]]},
    lambda: "opaque",
    lambda: [0, 2, 4],
    lambda: ["token", 0, 4, 2],
    lambda: [{"axes": [["token", 0, 2, 4], ["token", 0, 4]], "itemsize": 8}],
    lambda: nested(2000),
    lambda: doubled(60),
]
KEYS = [
    *("version", "regions", "cp_rank", "cp_size", "name", "base_addr", "block_len", "num_blocks", "block_stride"),
    *("groups", "mem_type", "device_id", "sections", "sub_blocks", "sub_stride", "axes", "itemsize", "offset"),
    *("strides", "dtype", "cp", "", "Version", "block_size", 0, None, ("name",)),
    *("names", "base_addrs", "block_lens", "block_strides", "device_ids", "sub_strides", "runs", "run_strides"),
    *("mem_types", "group_of", "pages", "page_of", "section_names", "segments", "regions", "first", "step", "count"),
]


class Slot(NamedTuple):
    """A place in a nested value: ``holder[key]``."""

    holder: Any
    key: Any


def slots(value: Any) -> Iterator[Slot]:
    """Every place in nested dicts and lists, but not inside bombs."""
    todo = [value]
    for _ in range(500):
        if not todo:
            return
        holder = todo.pop()
        for key in list(holder) if isinstance(holder, dict) else range(min(len(holder), 100)):
            yield Slot(holder, key)
            if isinstance(holder[key], (dict, list)):
                todo.append(holder[key])


def nasty(rng: random.Random) -> Any:
    return rng.choice(FRESH)() if rng.random() < 0.15 else rng.choice(NASTY)


def tweak(rng: random.Random, value: Any) -> Any:
    """Something near `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = [value + 1, value - 1, value * 2, value // 2, -value, value + 2**64, value ^ 1 << rng.randrange(64)]
        return rng.choice([*near, float(value), str(value)] if abs(value) < 2**100 else near)
    if isinstance(value, str):
        return rng.choice([value + "x", value[:-1], value.upper(), value.encode("utf-8", "replace"), [value]])
    if isinstance(value, list):
        times = rng.choice([2, 3, 17, 1000])
        return rng.choice([value * times if len(value) < 100 else value[:50], value[::-1], value[1:], tuple(value)])
    return nasty(rng)


def mutate(rng: random.Random, valid: dict[str, Any]) -> Any:
    """A copy of `valid` with one to five changes; now and then what JSON makes of it."""
    root = Slot([copy.deepcopy(valid)], 0)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        everywhere = [root, *slots(root.holder[0])] if isinstance(root.holder[0], (dict, list)) else [root]
        holder, key = rng.choice(everywhere[1:] or everywhere) if rng.random() < 0.98 else root
        turn = rng.random()
        if turn < 0.40:
            holder[key] = tweak(rng, holder[key])
        elif turn < 0.70:
            holder[key] = nasty(rng)
        elif turn < 0.80:
            other = rng.choice(everywhere)
            holder[key] = copy.copy(other.holder[other.key])
        elif turn < 0.88 and isinstance(holder, dict):
            holder[rng.choice(KEYS)] = nasty(rng)
        elif turn < 0.94:
            del holder[key]
            if holder is root.holder:
                return None
        elif isinstance(holder, list):
            holder.insert(key, copy.copy(holder[key]))
    return as_json(root.holder[0]) if rng.random() < 0.1 else root.holder[0]


def as_json(value: Any) -> Any:
    """What arrives of `value` in JSON; `value` where it does not fit there."""
    try:
        parts = list(itertools.islice(json.JSONEncoder().iterencode(value), 10_000))
        return json.loads("".join(parts))
    except (TypeError, ValueError, RecursionError):
        return value


# ---------------------------------------------------------------------------------------------------- verdicts


class Tally:
    """What became of the inputs."""

    def __init__(self) -> None:
        self.inputs = self.valid = self.refused = 0
        self.crashes: list[str] = []

    def take(self, given: Any, read: Callable[[Any], Layout] = Layout.from_dict) -> None:
        self.inputs += 1
        try:
            layout = read(given)
        except GeometryError as error:
            self.refused += 1
            self._expect(0 < len(str(error)) < 6000, f"a message of {len(str(error))} characters", given)
        except Exception as error:
            self.crashes.append(f"{type(error).__name__}: {error} for {brief(given)}")
        else:
            self.valid += 1
            wrong = next(unsound(layout), None)
            self._expect(wrong is None, f"accepted, but {wrong}", given)
            again = Layout.from_dict(json.loads(json.dumps(layout.to_dict())))
            self._expect(again == layout, "another layout after to_dict", given)

    def _expect(self, fine: bool, otherwise: str, given: Any) -> None:
        if not fine:
            self.crashes.append(f"{otherwise}: {brief(given)}")


def brief(value: Any) -> str:
    """A few of its entries, a few levels deep: written out in full some of these would fill the machine."""
    try:
        return reprlib.repr(value)[:2000]
    except (ValueError, RecursionError):
        return "(a value without end)"


def unsound(layout: Layout) -> Iterator[str]:
    """What is wrong with an accepted layout, counted out from the design's words."""
    names = [region.name for region in layout.regions]
    if len(set(names)) < len(names):
        yield "a name stands twice"
    for region in layout.regions:
        yield from (f"region {region.name!r}: {wrong}" for wrong in unsound_region(region))
        yield from (f"region {region.name!r}: {wrong}" for wrong in unsound_page(region))
    descs = sum(region.num_blocks * region.sub_blocks * region.runs for region in layout.regions)
    if descs > 2**31 - 1 or descs != layout.num_descs:
        yield f"{descs} descriptors"
    if layout.cp_tokens is not None and not 0 < layout.cp_tokens < 2**31:
        yield f"{layout.cp_tokens} tokens at a time"
    if not 0 <= layout.cp_rank < layout.cp_size:
        yield f"rank {layout.cp_rank} of {layout.cp_size}"


def unsound_region(region: Region) -> Iterator[str]:
    sizes = [region.block_len, region.num_blocks, region.sub_blocks, region.sub_stride, region.block_stride]
    sizes += [region.runs, region.run_stride]
    if min(sizes) < 1 or max(sizes) >= 2**64 or {*map(type, sizes)} != {int}:
        yield f"sizes {sizes}"
    reach = region.block_len
    reach += sum(region.sub_stride for _ in range(min(region.sub_blocks, 3) - 1))
    reach += max(0, region.sub_blocks - 3) * region.sub_stride
    reach += sum(region.run_stride for _ in range(min(region.runs, 3) - 1))
    reach += max(0, region.runs - 3) * region.run_stride
    if reach > region.block_stride:
        yield "blocks overlap"
    pieces = [
        k * region.sub_stride + j * region.run_stride
        for k in range(min(region.sub_blocks, 40))
        for j in range(min(region.runs, 40))
    ]
    if any(after - before < region.block_len for before, after in itertools.pairwise(sorted(pieces))):
        yield "pieces of a block overlap"
    yield from unsound_segments(region, reach)
    if region.num_blocks != sum(blocks for _, blocks, _ in region.segments.tolist()):
        yield "its blocks are not those of its segments"
    if not region.mem_type:
        yield "lies in no memory"
    groups = (0,) if region.groups is None else region.groups
    if not groups or len({*groups}) < len(groups) or min(groups) < 0:
        yield f"takes groups {groups}"
    if region.sub_blocks * region.runs > 1 and region.sections:
        yield "is cut and has sections"


def unsound_segments(region: Region, reach: int) -> Iterator[str]:
    spans = []
    for base, blocks, device in region.segments.tolist():
        last = base
        for _ in range(min(blocks, 3) - 1):
            last += region.block_stride
        last += max(0, blocks - 3) * region.block_stride
        spans.append((device, base, last + reach))
        if blocks < 1 or base < 0 or last + reach > 2**64:
            yield "leaves the address space"
        if not 0 <= device < 2**64:
            yield "lies in no memory"
    spans.sort()
    if any(one[0] == two[0] and two[1] < one[2] for one, two in itertools.pairwise(spans)):
        yield "segments overlap"


def unsound_page(region: Region) -> Iterator[str]:
    """Count out the items of a page, where they are few enough."""
    spans: list[tuple[int, int]] = []
    for section in region.sections:
        count = 1
        for axis in section.axes:
            if not 0 <= axis.start < axis.stop:
                yield f"axis {axis} is empty"
            count *= axis.stop - axis.start
        if len(spans) + count > 5000:
            return
        if len({axis.name for axis in section.axes}) < len(section.axes):
            indices = [sorted(held_indices(section, name)) for name in {axis.name for axis in section.axes}]
            if any(there != [*range(there[0], there[0] + len(there))] for there in indices):
                yield "parts of an axis leave indices out, or hold one twice"
        steps = [range(axis.stop - axis.start) for axis in section.axes]
        for at in itertools.product(*steps):
            start = section.offset
            for index, stride in zip(at, section.strides, strict=True):
                start += index * stride
            spans.append((start, start + section.itemsize))
    spans.sort()
    if spans and (spans[0][0] < 0 or max(stop for _, stop in spans) > region.block_len):
        yield "a section leaves the block"
    if any(stop > start for (_, stop), (start, _) in itertools.pairwise(spans)):
        yield "items share bytes"


def held_indices(section: Section, name: str) -> Iterator[int]:
    """The indices of an axis that is stored in parts, counted out."""
    parts = [axis for axis in section.axes if axis.name == name]
    for at in itertools.product(*[range(axis.start, axis.stop) for axis in parts]):
        yield sum(index * axis.unit for index, axis in zip(at, parts, strict=True))
