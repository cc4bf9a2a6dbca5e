"""examples/vllm_layout.py on vLLM's own kv_caches and KVCacheConfig, against its NIXL connector's own descriptors.

The caches are laid out by vLLM (``allocate_kv_cache``) in all its orders of memory, the descriptors come from its
worker's ``register_kv_caches``, ``_build_fa_local`` and ``_build_mamba_local``, run as they stand on a worker that has
no agent. Nothing is compiled for it and no engine is started; vLLM's Python (0.33.0) and what it imports are enough.
"""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from cached_arrays import deliver
from engine_bytes import Bytes, joined, moved
from examples_here import vllm_layout

torch = pytest.importorskip("torch", reason="vLLM's caches are torch's tensors")
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_SSM_CONV_STATE_LAYOUT", "DS")  # the only one that its NIXL connector takes
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # theirs, of what they import
    interface = pytest.importorskip("vllm.v1.kv_cache_interface", reason="vLLM 0.33.0 is not in this environment")
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
    from vllm.distributed.kv_transfer.kv_connector.v1.ssm_conv_transfer_utils import derive_mamba_conv_split
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.worker.utils import allocate_kv_cache

pytestmark = pytest.mark.filterwarnings("ignore")

ORDERS = [order.name for order in KVCacheLayout]
LAYERS, BLOCKS, HEADS = [f"model.layers.{i}.self_attn.attn" for i in range(3)], 7, 4


def attention(heads: int) -> Any:
    return interface.FullAttentionSpec(block_size=16, num_kv_heads=heads, head_size=8, dtype=torch.bfloat16)


def latent() -> Any:
    return interface.MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=24, dtype=torch.bfloat16)


def caches(order: str, groups: dict[str, Any]) -> tuple[Any, Any]:
    """vLLM's tensors and its config: a group for each spec, with as many layers each, that overlay each other."""
    layout = KVCacheLayout[order]
    tensors, cache_groups = [], []
    for prefix, spec in groups.items():
        layers = [f"{prefix}{layer}" for layer in LAYERS]
        layer_step, block_step = interface.compute_layout_strides(spec, BLOCKS, len(layers), layout)[:2]
        size = len(layers) * BLOCKS * spec.page_size_bytes
        tensors.append(
            interface.KVCacheTensor(size=size, layers=layers, layer_stride=layer_step, block_stride=block_step)
        )
        cache_groups.append(interface.KVCacheGroupSpec(layers, spec))
    config = interface.KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=tensors, kv_cache_groups=cache_groups, kv_cache_layout=order
    )
    return allocate_kv_cache(config, torch.device("cpu"), layout), config


class Registered(Exception):
    """The worker has made its lists and turns to the agent that it has not."""


def worker(monkeypatch: pytest.MonkeyPatch, kv_caches: Any, config: Any, use_mla: bool = False) -> Any:
    """A worker of vLLM's NIXL connector that has registered these caches."""
    monkeypatch.setattr(base_worker, "TransferTopology", lambda **how: SimpleNamespace(**how))
    monkeypatch.setattr(base_worker, "compute_nixl_compatibility_hash", lambda *args, **how: "hash")

    def no_agent(*args: Any) -> None:
        raise Registered

    made = object.__new__(base_worker.NixlBaseConnectorWorker)
    mamba = [
        group.kv_cache_spec for group in config.kv_cache_groups if isinstance(group.kv_cache_spec, interface.MambaSpec)
    ]
    split = derive_mamba_conv_split(mamba[0], 2) if mamba else None
    specs = {layer: group.kv_cache_spec for group in config.kv_cache_groups for layer in group.layer_names}
    made.__dict__.update(
        _conv_decomp=split,
        _has_mamba=bool(mamba),
        _has_packed_cache=KVCacheLayout[config.kv_cache_layout].is_block_outermost,
        _head_sharded_draft_kv_heads=None,
        _is_csa_linear=False,
        _is_hma_required=bool(mamba),
        _layer_specs=specs,
        _logical_num_blocks=BLOCKS,
        _mamba_ssm_size=split.ssm_sizes if split else (0, 0),
        _physical_blocks_per_logical_kv_block=1,
        _region_is_mla=[],
        _supports_pp_hma=False,
        _transfer_layer_region_indices=(),
        attn_backends=[],
        backend_name="none",
        block_len_per_layer=[],
        block_size=16,
        block_stride_per_layer=[],
        dcp_size=1,
        device_id=0,
        engine_id="engine",
        host_xfer_buffers={},
        kv_buffer_device="cpu",
        kv_cache_config=config,
        kv_cache_layout=config.kv_cache_layout,
        kv_caches_base_addr={"engine": {0: []}},
        model_config=SimpleNamespace(get_total_num_kv_heads=lambda: HEADS),
        nixl_memory_type="DRAM",
        nixl_wrapper=SimpleNamespace(get_reg_descs=no_agent),
        num_blocks=BLOCKS,
        pp_size=1,
        region_group_ids=[],
        region_names=[],
        region_num_blocks=[],
        tp_rank=0,
        transfer_tp_rank=1,
        transfer_tp_size=2,
        use_host_buffer=False,
        use_mla=use_mla,
        vllm_config=None,
    )
    made._leaves_dram_xfer_to_rank0 = lambda: False
    with pytest.raises(Registered):
        made.register_kv_caches(kv_caches)
    return made


def listed(rows: Any, blocks: list[int]) -> Bytes:
    """The bytes of these blocks in rows (address, length, device, stride, count)."""
    return joined(
        (address + block * stride, address + block * stride + length)
        for address, length, _, stride, count in rows.tolist()
        for block in blocks
        if block < count
    )


def base_addresses(made: Any) -> list[int]:
    found: list[int] = made.kv_caches_base_addr["engine"][0]
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_attention_in_every_order_is_vllms_list(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    kv_caches, config = caches(order, {"": attention(2)})
    layout = vllm_layout.vllm_layout(kv_caches, config, num_kv_heads=HEADS, tp_rank=1, tp_size=2)
    made = worker(monkeypatch, kv_caches, config)
    rows = made._build_fa_local(base_addresses(made), 1)
    assert moved(layout, [[5, 2]]) == listed(rows, [5, 2])


@pytest.mark.parametrize("order", ["LBHNC", "BLHNC", "BHLNC"])
def test_a_latent_apart_packed_and_cross_layer_is_vllms_list(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    kv_caches, config = caches(order, {"": latent()})
    layout = vllm_layout.vllm_layout(kv_caches, config, num_kv_heads=1, tp_rank=3, tp_size=4)
    made = worker(monkeypatch, kv_caches, config, use_mla=True)
    rows = made._build_fa_local(base_addresses(made), 1)
    assert moved(layout, [[0, 6]]) == listed(rows, [0, 6])


def hybrid(order: str, tp_size: int) -> tuple[Any, Any]:
    """Attention and Mamba2 layers in pages of one size that lie over each other."""
    full = attention(HEADS // tp_size)
    conv, ssm = (24 // tp_size, 3), (4 // tp_size, 4, 6)
    mamba = interface.MambaSpec(
        block_size=16, shapes=(conv, ssm), dtypes=(torch.bfloat16, torch.float32), page_size_padded=full.page_size_bytes
    )
    return caches(order, {"": full, "mamba.": mamba})


WIDTHS = {"x": 16, "B": 4, "C": 4}


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC"])  # vLLM's list of states takes blocks that abut
def test_hybrid_groups_are_vllms_lists(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    kv_caches, config = hybrid(order, 2)
    layout = vllm_layout.vllm_layout(kv_caches, config, num_kv_heads=HEADS, projections=WIDTHS, tp_rank=1, tp_size=2)
    made = worker(monkeypatch, kv_caches, config)
    assert moved(layout, [[5, 2], []]) == listed(made._build_fa_local(base_addresses(made), 1), [5, 2])
    assert moved(layout, [[], [3]]) == listed(made._build_mamba_local(base_addresses(made)), [3])


@pytest.mark.parametrize("order", ORDERS)
def test_caches_of_vllm_fill_each_other(order: str) -> None:
    """TP 1 in LBNHC to rank 1 of TP 2 in any order; torch's own indexing is the oracle."""
    src_caches, src_config = caches("LBNHC", {"": attention(4)})
    dst_caches, dst_config = caches(order, {"": attention(2)})
    for cache in src_caches.values():
        cache.copy_(torch.randn(cache.shape))
    src = vllm_layout.vllm_layout(src_caches, src_config, num_kv_heads=HEADS, tp_rank=0, tp_size=1)
    dst = vllm_layout.vllm_layout(dst_caches, dst_config, num_kv_heads=HEADS, tp_rank=1, tp_size=2)
    deliver(src, dst, [[5, 0]], [[1, 3]])
    for layer, cache in dst_caches.items():
        assert torch.equal(cache[[1, 3]], src_caches[layer][[5, 0], 2:]) and cache[[1, 3]].any()
        assert not cache[[0, 2, 4, 5, 6]].any()


def test_a_state_of_vllm_splits_by_its_projections() -> None:
    src_caches, src_config = hybrid("BLHNC", 1)
    dst_caches, dst_config = hybrid("LBHNC", 2)
    for cache in src_caches.values():
        cache.view(torch.int8).copy_(torch.randint(-100, 100, cache.view(torch.int8).shape, dtype=torch.int8))
    layouts = [
        vllm_layout.vllm_layout(kv, config, num_kv_heads=HEADS, projections=WIDTHS, tp_rank=rank, tp_size=size)
        for kv, config, rank, size in ((src_caches, src_config, 0, 1), (dst_caches, dst_config, 1, 2))
    ]
    deliver(layouts[0], layouts[1], [[], [4]], [[], [2]])
    layer = f"mamba.{LAYERS[1]}"
    sent, got = (kv[layer].flatten(1)[block] for kv, block in ((src_caches, 4), (dst_caches, 2)))
    conv = sent[: 24 * 3 * 2].view(torch.int16).reshape(24, 3)
    mine = [*range(8, 16), 18, 19, 22, 23]  # rank 1's half of x, of B and of C
    assert torch.equal(got[: 12 * 3 * 2].view(torch.int16).reshape(12, 3), conv[mine])
    ssm = sent[24 * 3 * 2 :].view(torch.int32).reshape(4, 4, 6)
    assert torch.equal(got[12 * 3 * 2 :].view(torch.int32).reshape(2, 4, 6), ssm[2:])
