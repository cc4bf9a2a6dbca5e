"""What a vLLM worker's registered tensors are, as a Layout.

vLLM 0.33.0 views every layer's cache as ``[block, head, token, bytes of K and V]`` whatever lies in memory (HND, NHD,
layers interleaved inside a block): its strides say. Two kinds of layers keep something else behind that shape::

    CPU_ATTN    a head's K, [dim][token], then its V, [token][dim]; with AMX both in tiles (cpu_attn_{vec,amx}.hpp)
    Mamba, GDN  a block is the convolution's state, projection after projection, then the SSM state
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.ssm_conv_transfer_utils import derive_mamba_conv_split
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
from vllm.v1.kv_cache_interface import MambaSpec

from nixldesc import Axis, Layout, Region, Section, array_regions, shard_range, state_sections


def layout_of(worker: Any, kv_caches: Mapping[str, Any], tp_rank: int) -> Layout:
    """Return what rank `tp_rank` of this engine holds, at this rank's addresses.

    A writer describes its siblings so: of their memory only the geometry matters.
    """
    on_cpu = any(backend.get_name() == "CPU_ATTN" for backend in worker.attn_backends)
    total = 1 if worker.use_mla else worker.model_config.get_total_num_kv_heads()
    heads = shard_range(total, worker.world_size, tp_rank)
    regions: list[Region] = []
    for name, cache in kv_caches.items():
        spec = worker._layer_specs.get(name)
        if spec is None:  # a layer that shares another's cache
            continue
        groups = (worker.kv_cache_config.transfer_group_index_by_layer[name],)
        if isinstance(spec, MambaSpec):
            page: Sequence[Section] = _state(name, spec, worker.world_size, tp_rank)
        elif on_cpu:
            page = _cpu_attention(name, cache, heads)
        else:
            regions += array_regions(name, cache, "block head token byte", ranges={"head": heads}, groups=groups)
            continue
        (blocks,) = array_regions(name, cache, "block head token byte", groups=groups)
        regions.append(blocks.with_sections(page))
    return Layout(regions)


def _cpu_attention(name: str, cache: Any, heads: tuple[int, int]) -> list[Section]:
    (_, _, tokens, width), item = cache.shape, cache.element_size()
    dims, size = width // 2, tokens * width // 2 * item
    if _get_attn_isa(cache.dtype, tokens, dims).startswith("vec"):
        k = [Axis("dim", 0, dims), Axis("token", 0, tokens)]
        v = [Axis("token", 0, tokens), Axis("dim", 0, dims)]
    else:  # amx: rows of 64 bytes for 16 tokens (K) or 16 dimensions (V), two items of the other axis side by side
        k = [Axis("token", 0, tokens // 16, 16), Axis("dim", 0, dims // 2, 2), Axis("token", 0, 16), Axis("dim", 0, 2)]
        v = [Axis("dim", 0, dims // 16, 16), Axis("token", 0, tokens // 2, 2), Axis("dim", 0, 16), Axis("token", 0, 2)]
    sections = []
    for part, axes, offset in (("k", k, 0), ("v", v, size)):
        within = [item * math.prod(axis.size for axis in axes[i + 1 :]) for i in range(len(axes))]
        axes, strides = [Axis("head", *heads), *axes], [cache.stride(1) * item, *within]
        sections.append(Section(f"{name}.{part}", axes, item, offset=offset, strides=strides, dtype=str(cache.dtype)))
    return sections


def _state(name: str, spec: Any, tp_size: int, tp_rank: int) -> tuple[Section, ...]:
    conv, (heads, *rest) = derive_mamba_conv_split(spec, tp_size), spec.shapes[1]
    return state_sections(
        name,
        projections={f"p{i}": width * tp_size for i, width in enumerate(conv.local_proj_dims)},
        conv_rows=conv.conv_rows,
        conv_itemsize=conv.conv_dtype_size,
        ssm_shape=(heads * tp_size, *rest),
        ssm_itemsize=spec.dtypes[1].itemsize,
        tp_size=tp_size,
        tp_rank=tp_rank,
        dtype=", ".join(map(str, spec.dtypes)),
    )
