"""What one rank of vLLM (0.33) holds, from the two objects that its connectors are given.

``register_kv_caches(kv_caches)`` passes a tensor per layer, ``[block, head, state, content]`` whatever order the
memory has (LBHNC, LBNHC, LHBNC, BLHNC, BLNHC or BHLNC; layers in tensors of their own, or all in one packed or
cross-layer allocation): the strides say it. ``KVCacheConfig`` says what a layer is and whose block table it follows.
Pages of several groups that overlay each other are regions that share memory.

    layout = vllm_layout(kv_caches, kv_cache_config, num_kv_heads=8, tp_rank=rank, tp_size=4,
                         projections={"x": 2048, "B": 256, "C": 256})

Block ids are those of the tensors, in the order of ``kv_cache_config.select_transfer_block_ids``; where an attention
kernel's blocks are smaller than the manager's, `nixldesc.kernel_blocks` turns one into the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nixldesc import Layout, Region, array_regions, shard_range


def vllm_layout(
    kv_caches: Mapping[str, Any],
    kv_cache_config: Any,
    *,
    num_kv_heads: int,
    tp_rank: int,
    tp_size: int,
    projections: Mapping[str, int] | None = None,
    cp_rank: int = 0,
    cp_size: int = 1,
    cp_tokens: int | None = None,
) -> Layout:
    """Describe the caches of one rank.

    `num_kv_heads` and `projections` (of a Mamba-like layer's conv state, in memory order) are the model's; the order
    of the conv state is DS, as vLLM's NIXL connector wants it. `cp_tokens` is its ``cp_kv_cache_interleave_size``.
    """
    rank = {"tp_rank": tp_rank, "tp_size": tp_size}
    regions: list[Region] = []
    for layer, cache in kv_caches.items():
        group = kv_cache_config.transfer_group_index_by_layer.get(layer)
        if group is None:  # this layer reads another's cache, or its cache is not for transfer
            continue
        spec = layer_spec(kv_cache_config.transfer_groups[group].kv_cache_spec, layer)
        if hasattr(spec, "shapes"):
            regions += state(layer, cache, spec, projections or {}, (group,), **rank)
        else:
            regions += attention(layer, cache, spec, num_kv_heads, (group,), **rank)
    return Layout(regions, cp_rank=cp_rank, cp_size=cp_size, cp_tokens=cp_tokens)


def layer_spec(spec: Any, layer: str) -> Any:
    """A group of alike layers has one spec, a group of unlike ones (UniformTypeKVCacheSpecs) one for each."""
    return spec.kv_cache_specs[layer] if hasattr(spec, "kv_cache_specs") else spec


def attention(
    layer: str, cache: Any, spec: Any, num_kv_heads: int, groups: tuple[int, ...], *, tp_rank: int, tp_size: int
) -> tuple[Region, ...]:
    """K and V lie together in the content, or a latent that every rank holds (MLA: a spec without V)."""
    latent = spec.head_size_v == 0
    heads = (0, 1) if latent else shard_range(num_kv_heads, tp_size, tp_rank)
    # A compressed cache keeps a state for several tokens: such a block is matched whole.
    inner = "token" if spec.tokens_per_state == 1 else "state"
    cp = getattr(spec, "dcp_sharded", True)  # else every context-parallel rank holds it whole (a draft's cache)
    return array_regions(
        layer, cache, f"block head {inner} byte", ranges={"head": heads}, groups=groups, cp=cp or inner == "state"
    )


def state(
    layer: str,
    cache: Any,
    spec: Any,
    projections: Mapping[str, int],
    groups: tuple[int, ...],
    *,
    tp_rank: int,
    tp_size: int,
) -> list[Region]:
    """A Mamba-like block: the conv state ``[channel][row]``, projection after projection, then the SSM state."""
    split = (0, 1) if spec.tp_replicated else (tp_rank, tp_size)
    blocks = cache.flatten(1)  # [block][byte]; a view, for head and state are one
    conv, ssm = arrays(blocks, spec.shapes, spec.dtypes)
    regions: list[Region] = []
    begin = 0
    for name, width in projections.items():
        start, stop = shard_range(width, split[1], split[0])
        channels = conv[:, begin : begin + stop - start]
        regions += array_regions(
            f"{layer}.{name}", channels, "block channel row", ranges={"channel": (start, stop)}, groups=groups
        )
        begin += stop - start
    if begin != conv.shape[1]:
        raise ValueError(f"{layer}: projections {dict(projections)} are {begin} channels here, not {conv.shape[1]}")
    heads = ssm.shape[1]
    axes = ["block", "head", *(f"state{i}" for i in range(1, ssm.ndim - 1))]
    mine = {"head": (split[0] * heads, (split[0] + 1) * heads)}
    return [*regions, *array_regions(f"{layer}.ssm", ssm, axes, ranges=mine, groups=groups)]


def arrays(blocks: Any, shapes: Any, dtypes: Any) -> list[Any]:
    """The typed arrays that lie one after the other in blocks of bytes, ``[block, *shape]`` each."""
    found, begin = [], 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        end = begin + math.prod(shape) * dtype.itemsize
        found.append(blocks[:, begin:end].view(dtype).unflatten(1, shape))
        begin = end
    return found
