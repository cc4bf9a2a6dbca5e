"""What strangers send for a layout: valid dicts, what a fuzzer makes of them, and what any accepted one must be."""

from __future__ import annotations

import copy
import itertools
import json
import random
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
    padded = Section("l4", (Axis("head", 0, 2), Axis("token", 0, 4)), 3, strides=(32, 8), cp=False)
    return [
        Layout([Region("k", 4096, 16, 4), Region("v", 8192, 16, 3, block_stride=64, mem_type="DRAM")]),
        Layout([Region("cut", 0, 8, 5, sub_blocks=4), Region("uneven", 160, 8, 5, sub_blocks=2, block_stride=64)]),
        Layout([Region("l0", 2**40, hnd[-1].end, 100, groups=(0, 2), device_id=3, sections=hnd)], cp_rank=1, cp_size=3),
        Layout([Region("l1", 0, nhd[-1].end, 9, sections=nhd), Region("l2", 0, 512, 9, groups=(1,), sections=latent)]),
        Layout([Region("l3", 2**64 - 4096, state[-1].end, 10, sections=state)]),
        Layout([Region("l4", 0, 64, 1, sections=[padded]), Region("f", 0, 4096, 7, mem_type="FILE", device_id=12)]),
    ]


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
    lambda: nested(2000),
    lambda: doubled(60),
]
KEYS = [
    *("version", "regions", "cp_rank", "cp_size", "name", "base_addr", "block_len", "num_blocks", "block_stride"),
    *("groups", "mem_type", "device_id", "sections", "sub_blocks", "sub_stride", "axes", "itemsize", "offset"),
    *("strides", "dtype", "cp", "", "Version", "block_size", 0, None, ("name",)),
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
    try:
        return repr(value)[:2000]
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
    descs = sum(region.num_blocks * region.sub_blocks for region in layout.regions)
    if descs > 2**31 - 1 or descs != layout.num_descs:
        yield f"{descs} descriptors"
    if not 0 <= layout.cp_rank < layout.cp_size:
        yield f"rank {layout.cp_rank} of {layout.cp_size}"


def unsound_region(region: Region) -> Iterator[str]:
    sizes = region.block_len, region.num_blocks, region.sub_blocks, region.sub_stride, region.block_stride
    if min(sizes) < 1 or max(sizes) >= 2**64 or {*map(type, sizes)} != {int}:
        yield f"sizes {sizes}"
    reach = region.block_len
    for _ in range(min(region.sub_blocks, 3) - 1):
        reach += region.sub_stride
    reach += max(0, region.sub_blocks - 3) * region.sub_stride
    if reach > region.block_stride:
        yield "blocks overlap"
    if region.sub_blocks > 1 and region.sub_stride < region.block_len:
        yield "sub-blocks overlap"
    last = region.base_addr
    for _ in range(min(region.num_blocks, 3) - 1):
        last += region.block_stride
    last += max(0, region.num_blocks - 3) * region.block_stride
    if region.base_addr < 0 or last + reach > 2**64:
        yield "leaves the address space"
    if not 0 <= region.device_id < 2**64 or not region.mem_type:
        yield "lies in no memory"
    groups = (0,) if region.groups is None else region.groups
    if not groups or len({*groups}) < len(groups) or min(groups) < 0:
        yield f"takes groups {groups}"
    if region.sub_blocks > 1 and region.sections:
        yield "is cut and has sections"


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
