"""SGLang's NIXL backend and a plan: the same bytes from the same places to the same places?

Each test draws geometries, calls SGLang's own function on pools of tiny tensors and compares every byte's source.
"""

import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from backend import import_backend, manager
from numpy.typing import NDArray

from nixldesc import Layout, Region, array_regions, plan, shard_range, state_sections

conn = import_backend()
SEEDS = range(60)
PEER = "decode"


def every_byte(moves: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """(destination, source) of each byte, by destination."""
    parts = [np.empty((0, 2), np.uint64)]
    for src, dst, length in (row for part in moves for row in part.tolist()):
        steps = np.arange(length, dtype=np.uint64)
        parts.append(np.column_stack([dst + steps, src + steps]).astype(np.uint64))
    table = np.concatenate(parts)
    return table[np.lexsort((table[:, 1], table[:, 0]))]


def assert_same(theirs: Any, pairs: Any, src_ids: Any, dst_ids: Any) -> None:
    ours = [pair.moves(*pair.desc_ids([src_ids], [dst_ids])) for pair in pairs]
    got, want = every_byte(ours), every_byte(theirs)
    assert want.size and np.array_equal(got, want)


class Pool:
    """A rank's KV pool: per layer K and V of ``[slots * page, heads, dim]`` as SGLang keeps them, NHD."""

    def __init__(self, layers: int, slots: int, page: int, heads: tuple[int, int], dim: int) -> None:
        shape = (slots * page, heads[1] - heads[0], dim)
        self.tensors = [torch.zeros(shape, dtype=torch.float16) for _ in range(2 * layers)]  # all K, then all V
        self.ptrs = [tensor.data_ptr() for tensor in self.tensors]
        self.lens = [tensor.nbytes for tensor in self.tensors]
        self.item_lens = [length // slots for length in self.lens]
        self.slots = slots
        names = [f"{part}{layer}" for part in "kv" for layer in range(layers)]
        self.layout = Layout(
            region
            for name, tensor in zip(names, self.tensors, strict=True)
            for region in array_regions(
                name, tensor.unflatten(0, (slots, page)), "block token head byte", ranges={"head": heads}
            )
        )

    def as_prefill(self) -> dict[str, Any]:
        return {"kv_data_ptrs": self.ptrs, "kv_data_lens": self.lens, "kv_item_lens": self.item_lens}


def blocks(draw: random.Random, slots: int, count: int) -> NDArray[np.int32]:
    """Distinct pages, in part ascending as a young engine's are."""
    chosen = draw.sample(range(slots), count)
    return np.array(sorted(chosen) if draw.random() < 0.3 else chosen, np.int32)


def test_one_page_off_is_seen() -> None:
    src, dst = (Pool(1, 6, 4, (0, 2), 2) for _ in "sd")
    sender = manager(conn, 1, 0, 4, 2, **src.as_prefill())
    sender.send_kvcache(PEER, np.array([3, 1], np.int32), dst.ptrs, np.array([0, 5], np.int32), 0)
    pairs = plan(dst.layout, {0: src.layout})[0]
    assert_same(sender.agent.moves, pairs, [3, 1], [0, 5])
    with pytest.raises(AssertionError):
        assert_same(sender.agent.moves, pairs, [3, 2], [0, 5])


@pytest.mark.parametrize("seed", SEEDS)
def test_send_kvcache_prepared_and_not(seed: int) -> None:
    draw = random.Random(seed)
    layers, page, heads, dim = draw.randint(1, 3), draw.choice([1, 4]), draw.randint(1, 3), draw.choice([2, 5])
    src, dst = (Pool(layers, draw.randint(6, 12), page, (0, heads), dim) for _ in "sd")
    src_ids, dst_ids = blocks(draw, src.slots, 5), blocks(draw, dst.slots, 5)
    sender = manager(conn, 1, 0, page, heads, mla=draw.random() < 0.5, **src.as_prefill())
    sender.send_kvcache(PEER, src_ids, dst.ptrs, dst_ids, 0)
    pairs = plan(dst.layout, {0: src.layout})[0]
    assert_same(sender.agent.moves, pairs, src_ids, dst_ids)
    sender.agent.moves.clear()
    sender._num_slots_src = src.slots
    sender.decode_kv_args_table[PEER] = SimpleNamespace(dst_num_slots=dst.slots)
    sender._init_equal_tp_prep_handle("", src.ptrs, 0)
    sender._init_equal_tp_prep_handle(PEER, dst.ptrs, 0, num_slots=dst.slots)
    sender.send_kvcache(PEER, src_ids, dst.ptrs, dst_ids, 0)
    assert_same(sender.agent.moves, pairs, src_ids, dst_ids)


def unlike_tp(draw: random.Random, heads: int, *, replicated: bool) -> tuple[int, int]:
    """Two TP sizes of which one divides the other; heads replicated on the decode side at most."""
    sizes = [size for size in (1, 2, 4, 8) if size <= heads]
    while True:
        src, dst = draw.choice(sizes), draw.choice([*sizes, 2 * heads] if replicated else sizes)
        if src != dst:
            return src, dst


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", ["send_kvcache_slice", "_send_swa_state_slice"])
def test_slices_of_heads(seed: int, way: str) -> None:
    draw = random.Random(seed)
    heads, layers, page, dim = draw.choice([2, 4, 8]), draw.randint(1, 2), draw.choice([1, 3, 4]), draw.choice([2, 5])
    src_tp, dst_tp = unlike_tp(draw, heads, replicated=True)
    srcs = {rank: Pool(layers, 8, page, shard_range(heads, src_tp, rank), dim) for rank in range(src_tp)}
    dst_rank = draw.randrange(dst_tp)
    dst = Pool(layers, draw.randint(6, 9), page, shard_range(heads, dst_tp, dst_rank), dim)
    made = plan(dst.layout, {rank: pool.layout for rank, pool in srcs.items()}, dst_rank=dst_rank, dst_size=dst_tp)
    src_ids, dst_ids = blocks(draw, 8, 4), blocks(draw, dst.slots, 4)
    ratio = max(src_tp // dst_tp, dst_tp // src_tp)
    writers = {rank for rank in srcs if (rank // ratio == dst_rank if src_tp > dst_tp else dst_rank // ratio == rank)}
    assert set(made) == writers
    for rank in writers:
        sender = manager(conn, src_tp, rank, page, heads, **srcs[rank].as_prefill())
        if way == "send_kvcache_slice":
            told = SimpleNamespace(
                decode_tp_size=dst_tp,
                decode_tp_rank=dst_rank,
                dst_kv_item_len=dst.item_lens[0],
                dst_kv_ptrs=dst.ptrs,
                dst_num_slots=dst.slots,
                gpu_id=0,
            )
            sender._init_hetero_tp_prep_handle(PEER, told)
            sender.send_kvcache_slice(PEER, src_ids, dst_ids)
        else:
            theirs, ours = (srcs[rank].ptrs, srcs[rank].item_lens), (dst.ptrs, dst_ids.tolist(), dst.item_lens)
            sender._send_swa_state_slice(PEER, src_ids.tolist(), *theirs, *ours, 0, dst_tp, dst_rank)
        assert_same(sender.agent.moves, made[rank], src_ids, dst_ids)


class States:
    """A rank's states: per layer a convolution's ``[slots, q | k | v, rows]``, a temporal ``[slots, heads, a, b]``."""

    def __init__(
        self, layers: int, slots: int, widths: tuple[int, ...], rows: int, heads: int, tp: int, rank: int
    ) -> None:
        local, (start, stop) = sum(widths) // tp, shard_range(heads, tp, rank)
        convs = [torch.zeros((slots, local, rows), dtype=torch.float16) for _ in range(layers)]
        temporals = [torch.zeros((slots, stop - start, 3, 2)) for _ in range(layers)]
        tensors = [*convs, *temporals]
        self.tensors = tensors
        self.ptrs = [tensor.data_ptr() for tensor in tensors]
        self.item_lens = [tensor.nbytes // slots for tensor in tensors]
        self.dims = [local] * layers + [stop - start] * layers
        self.groups = [list(widths)] * layers + [None] * layers
        regions = []
        for i, (conv, temporal) in enumerate(zip(convs, temporals, strict=True)):
            page = state_sections(
                f"conv{i}",
                projections=dict(zip("qkv", widths, strict=True)),
                conv_rows=rows,
                conv_itemsize=2,
                ssm_shape=None,
                ssm_itemsize=4,
                tp_size=tp,
                tp_rank=rank,
            )
            where = (conv.data_ptr(), page[-1].end, slots)
            regions.append(Region(f"conv{i}", *where, mem_type="DRAM", sections=page))
            regions += array_regions(f"temporal{i}", temporal, "block head a b", ranges={"head": (start, stop)})
        self.layout = Layout(regions)


@pytest.mark.parametrize("seed", SEEDS)
def test_slices_of_states(seed: int) -> None:
    draw = random.Random(seed)
    heads, layers, rows = draw.choice([4, 8]), draw.randint(1, 2), draw.randint(1, 3)
    widths = (4 * draw.randint(1, 2) * 2,) * 2 + (heads * draw.randint(1, 3),)
    src_tp, dst_tp = unlike_tp(draw, 4, replicated=False)
    srcs = {rank: States(layers, 6, widths, rows, heads, src_tp, rank) for rank in range(src_tp)}
    dst_rank = draw.randrange(dst_tp)
    dst = States(layers, 5, widths, rows, heads, dst_tp, dst_rank)
    made = plan(dst.layout, {rank: pool.layout for rank, pool in srcs.items()})
    src_slot, dst_slot = draw.randrange(6), draw.randrange(5)
    for rank, pairs in made.items():
        src, sender = srcs[rank], manager(conn, src_tp, rank, 1, heads)
        sender._send_mamba_state_slice(
            PEER, [src_slot], src.ptrs, src.item_lens, src.dims, dst.ptrs, [dst_slot], dst.item_lens, dst.dims, 0,
            dst_tp, dst_rank, src_state_conv_shard_groups=src.groups,
        )  # fmt: skip
        assert_same(sender.agent.moves, pairs, [src_slot], [dst_slot])
    ratio = max(src_tp // dst_tp, 1)
    assert len(made) == ratio


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_in_staging(seed: int) -> None:
    """How many bytes each writer puts into a decode rank's staging buffer."""
    from sglang.srt.disaggregation.common.staging_buffer import compute_staging_layout

    draw = random.Random(seed)
    heads, layers, page, dim = draw.choice([2, 4, 8]), draw.randint(1, 3), draw.choice([1, 4]), 3
    src_tp, dst_tp = unlike_tp(draw, heads, replicated=True)
    dst_rank = draw.randrange(dst_tp)
    srcs = {rank: Pool(layers, 6, page, shard_range(heads, src_tp, rank), dim).layout for rank in range(src_tp)}
    dst = Pool(layers, 6, page, shard_range(heads, dst_tp, dst_rank), dim)
    made = plan(dst.layout, srcs, dst_rank=dst_rank, dst_size=dst_tp)
    ids = blocks(draw, 6, 4)
    ours = [sum(int(pair.moves(*pair.desc_ids([ids], [ids]))[:, 2].sum()) for pair in pairs) for pairs in made.values()]
    count, each, total = compute_staging_layout(src_tp, dst_tp, dst_rank, heads, 4 * page, 2 * dim, layers)
    assert (len(ours), ours, sum(ours)) == (count, each, total)
