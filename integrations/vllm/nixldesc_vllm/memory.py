"""What a vLLM worker's registered tensors are, as a Layout.

vLLM 0.33.0 views every layer's cache as ``[block, head, token, bytes of K and V]`` whatever lies in memory (HND, NHD,
layers interleaved inside a block): its strides say. Two kinds of layers keep something else behind that shape:

    CPU_ATTN    a head's K is column-major, then its V; with AMX both are in tiles of 16 tokens (cpu_attn_{vec,amx}.hpp)
    Mamba, GDN  a block is the convolution's state, projection after projection, then the SSM state
"""

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.ssm_conv_transfer_utils import derive_mamba_conv_split
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
from vllm.v1.kv_cache_interface import MambaSpec

from nixldesc import Layout, Region, Section, array_regions, shard_range, state_sections


def layout_of(worker: Any, kv_caches: Mapping[str, Any], tp_rank: int) -> Layout:
    """Return what rank `tp_rank` of this engine holds, at this rank's addresses.

    A writer describes its siblings so: of their memory only the geometry matters.
    """
    regions: list[Region] = []
    for name, cache in kv_caches.items():
        spec = worker._layer_specs.get(name)
        if spec is None:  # a layer that shares another's cache
            continue
        groups = (worker.kv_cache_config.transfer_group_index_by_layer[name],)
        if isinstance(spec, MambaSpec):
            regions.append(_state(name, cache, spec, worker.world_size, tp_rank, groups))
        else:
            heads = cache.shape[1] if worker.use_mla else worker.model_config.get_total_num_kv_heads()
            ranges = {"head": (0, heads) if worker.use_mla else shard_range(heads, worker.world_size, tp_rank)}
            cpu = worker.backend_name == "CPU_ATTN"
            regions.append((_cpu_attention if cpu else _attention)(name, cache, spec, ranges, groups))
    return Layout(regions)


def _attention(name: str, cache: Any, spec: Any, ranges: Any, groups: tuple[int, ...]) -> Region:
    return _page(name, {"": (cache, "block head token byte")}, ranges, groups)


def _cpu_attention(name: str, cache: Any, spec: Any, ranges: Any, groups: tuple[int, ...]) -> Region:
    _, _, tokens, width = cache.shape
    k, v = cache.flatten(2).unflatten(2, (2, tokens * width // 2)).unbind(2)
    dims = width // 2
    if _get_attn_isa(spec.dtype, tokens, dims).startswith("vec"):
        k, k_axes = k.unflatten(2, (dims, tokens)), "block head dim token"
        v, v_axes = v.unflatten(2, (tokens, dims)), "block head token dim"
    else:  # amx
        k, k_axes = k.unflatten(2, (tokens // 16, 16 * dims)), "block head token byte"
        v, v_axes = v.unflatten(2, (dims // 16, tokens // 16, 256)), "block head dims token byte"
    return _page(name, {"k": (k, k_axes), "v": (v, v_axes)}, ranges, groups)


def _page(name: str, views: Mapping[str, tuple[Any, str]], ranges: Any, groups: tuple[int, ...]) -> Region:
    """Several views of one tensor are sections of one region."""
    made = [
        region
        for part, (view, axes) in views.items()
        for region in array_regions(f"{name}.{part}" if part else name, view, axes, ranges=ranges, groups=groups)
    ]
    first = made[0]
    sections = [_moved(section, region.base_addr - first.base_addr) for region in made for section in region.sections]
    return Region(
        name,
        first.base_addr,
        max(section.end for section in sections),
        first.num_blocks,
        block_stride=first.block_stride,
        groups=groups,
        mem_type=first.mem_type,
        device_id=first.device_id,
        sections=sections,
    )


def _moved(section: Section, by: int) -> Section:
    return Section(
        section.name,
        section.axes,
        section.itemsize,
        offset=section.offset + by,
        strides=section.strides,
        dtype=section.dtype,
        cp=section.cp,
    )


def _state(name: str, cache: Any, spec: Any, tp_size: int, tp_rank: int, groups: tuple[int, ...]) -> Region:
    conv, (heads, *rest) = derive_mamba_conv_split(spec, tp_size), spec.shapes[1]
    sections = state_sections(
        name,
        projections={f"p{i}": width * tp_size for i, width in enumerate(conv.local_proj_dims)},
        conv_rows=conv.conv_rows,
        conv_itemsize=conv.conv_dtype_size,
        ssm_shape=(heads * tp_size, *rest),
        ssm_itemsize=spec.dtypes[1].itemsize,
        tp_size=tp_size,
        tp_rank=tp_rank,
    )
    (whole,) = array_regions(name, cache.flatten(1), "block byte", groups=groups)
    return Region(
        name,
        whole.base_addr,
        sections[-1].end,
        whole.num_blocks,
        block_stride=whole.block_stride,
        groups=groups,
        mem_type=whole.mem_type,
        device_id=whole.device_id,
        sections=sections,
    )
