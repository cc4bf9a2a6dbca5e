"""What one rank of SGLang (0.5.23) holds, from its memory pools.

``MHATokenToKVPool`` keeps a K and a V tensor per layer, ``[slot, head, dimension]``; page p is slots p * page_size and
on (or ``[page, head, slot in page, dimension]`` where the pool is in HND). ``MLATokenToKVPool`` keeps one latent
tensor per layer, the same on every rank. ``MambaPool`` keeps for all its layers the conv states and the SSM state,
``[layer, slot, ...]``. Pages are group 0 of a request's block lists, state slots group 1.

    layout = sglang_layout(token_to_kv_pool, num_kv_heads=8, tp_rank=rank, tp_size=4, state_pool=mamba_pool)

A pipeline stage's pool has the layers of that stage; sections are found by the model's layer ids, so a stage plans
with ``allow_missing=True`` and nobody counts buffers. Context parallelism by tokens (SGLang gives token t to rank
t % dcp_size) is ``cp_tokens=1``.
"""

from __future__ import annotations

from typing import Any

from nixldesc import Layout, Region, array_regions, shard_range

PAGES, STATES = (0,), (1,)


def sglang_layout(
    pool: Any,
    *,
    num_kv_heads: int,
    tp_rank: int,
    tp_size: int,
    state_pool: Any = None,
    cp_rank: int = 0,
    cp_size: int = 1,
    cp_tokens: int | None = None,
) -> Layout:
    """Describe the pools of one rank; `num_kv_heads` is the model's, ranks are those of attention TP."""
    regions: list[Region] = []
    if hasattr(pool, "k_buffer"):
        heads = shard_range(num_kv_heads, tp_size, tp_rank)
        for kind, buffers in (("k", pool.k_buffer), ("v", pool.v_buffer)):  # all K, then all V: SGLang's own order
            for layer, buffer in zip(pool.model_layer_ids, buffers, strict=True):
                regions += pages(f"layers.{layer}.{kind}", buffer, heads, pool.page_size, pool.kv_cache_layout)
    else:
        for layer, buffer in zip(pool.model_layer_ids, pool.kv_buffer, strict=True):
            regions += pages(f"layers.{layer}", buffer, (0, 1), pool.page_size, "nhd")
    if state_pool is not None:
        regions += states(state_pool, tp_rank, tp_size)
    return Layout(regions, cp_rank=cp_rank, cp_size=cp_size, cp_tokens=cp_tokens)


def pages(name: str, buffer: Any, heads: tuple[int, int], page_size: int, order: str) -> tuple[Region, ...]:
    """One tensor's pages; slots that fill no page at the end are nobody's."""
    if order == "hnd":
        return array_regions(name, buffer, "block head token byte", ranges={"head": heads}, groups=PAGES)
    if order != "nhd":
        raise ValueError(f"{name}: SGLang's {order!r} layout cuts an axis in two; declare it with Axis(unit=)")
    paged = buffer[: buffer.shape[0] // page_size * page_size].unflatten(0, (-1, page_size))
    return array_regions(name, paged, "block token head byte", ranges={"head": heads}, groups=PAGES)


def states(pool: Any, tp_rank: int, tp_size: int) -> list[Region]:
    """A block is a slot: conv states by their projections, then the SSM state, sharded by heads."""
    regions: list[Region] = []
    layers = [f"layers.{layer}" for layer in pool.mamba_layer_ids]
    axis = pool.conv_slice_axis  # 0: [channel][row] in a slot, 1: [row][channel]
    axes = "layer block channel row" if axis == 0 else "layer block row channel"
    for number, conv in enumerate(pool.mamba_cache.conv):
        local = conv.shape[2 + axis]
        # Without groups the state's channels are sharded as one; with them ([q, k, v]) each group is, side by side.
        groups = pool.conv_shard_groups or [local * tp_size]
        begin = 0
        for part, width in enumerate(groups):
            start, stop = shard_range(width, tp_size, tp_rank)
            channels = conv.narrow(2 + axis, begin, stop - start)
            regions += array_regions(
                "",
                channels,
                axes,
                ranges={"channel": (start, stop)},
                names={"layer": [f"{layer}.conv{number}.{part}" for layer in layers]},
                groups=STATES,
            )
            begin += stop - start
        if begin != local:
            raise ValueError(f"conv state {number}: groups {groups} are {begin} channels here, the pool has {local}")
    ssm = pool.mamba_cache.temporal
    if ssm.numel():  # a short convolution has none
        heads = ssm.shape[2]
        regions += array_regions(
            "",
            ssm,
            ["layer", "block", "head", *(f"state{i}" for i in range(1, ssm.ndim - 2))],
            ranges={"head": (tp_rank * heads, (tp_rank + 1) * heads)},
            names={"layer": [f"{layer}.ssm" for layer in layers]},
            groups=STATES,
        )
    return regions
