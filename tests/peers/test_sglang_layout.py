"""examples/sglang_layout.py on SGLang's own pools, against SGLang's own lists for disaggregation."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_pools
from cached_arrays import deliver
from engine_bytes import Bytes, joined, moved
from examples_here import sglang_layout

torch = pytest.importorskip("torch", reason="SGLang's pools are of torch's tensors; make test-peers has it")

pytestmark = pytest.mark.skipif(
    sglang_pools.folder() is None, reason="NIXLDESC_SGLANG names no unpacked wheel of SGLang; make test-peers has it"
)

PAGE, HEADS = 16, 4


@pytest.fixture(scope="module")
def pools() -> Iterator[Any]:
    pytest.importorskip("msgspec", reason="SGLang's memory_pool imports msgspec")
    with sglang_pools.memory_pool() as module:
        yield module


def mha(pools: Any, heads: int, **how: Any) -> Any:
    return pools.MHATokenToKVPool(
        size=6 * PAGE,
        page_size=PAGE,
        dtype=torch.bfloat16,
        head_num=heads,
        head_dim=8,
        layer_num=2,
        device="cpu",
        enable_memory_saver=False,
        start_layer=3,
        end_layer=4,
        **how,
    )


def mla(pools: Any) -> Any:
    return pools.MLATokenToKVPool(
        size=6 * PAGE,
        page_size=PAGE,
        dtype=torch.float8_e4m3fn,
        kv_lora_rank=12,
        qk_rope_head_dim=4,
        layer_num=3,
        device="cpu",
        enable_memory_saver=False,
    )


def state(pools: Any, tp_size: int, envelope: bool = False) -> Any:
    shape = SimpleNamespace(
        conv=[(16 // tp_size, 3)], temporal=(4 // tp_size, 2, 3), conv_shard_groups=[4, 4, 8], conv_slice_axis=0
    )
    params = SimpleNamespace(
        shape=shape, dtype=SimpleNamespace(conv=torch.bfloat16, temporal=torch.float32), is_kda=False
    )
    return pools.MambaPool(
        size=5, spec_state_size=0, cache_params=params, mamba_layer_ids=[1, 2], device="cpu", envelope_layout=envelope
    )


def listed(infos: tuple[list[int], list[int], list[int]], blocks: list[int]) -> Bytes:
    """The bytes of these pages or slots in SGLang's lists: pointers, lengths, item lengths."""
    pointers, lengths, items = infos
    for length, item in zip(lengths, items, strict=True):
        assert (max(blocks) + 1) * item <= length
    return joined(
        (pointer + block * item, pointer + (block + 1) * item)
        for pointer, item in zip(pointers, items, strict=True)
        for block in blocks
    )


def test_pages_of_heads_are_sglangs_list(pools: Any) -> None:
    pool = mha(pools, 2)
    layout = sglang_layout.sglang_layout(pool, num_kv_heads=HEADS, tp_rank=1, tp_size=2)
    assert moved(layout, [[5, 2]]) == listed(pool.get_contiguous_buf_infos(), [5, 2])
    # Region by region it is the list itself, in SGLang's order: all K, then all V.
    pointers, _, items = pool.get_contiguous_buf_infos()
    assert [(region.base_addr, region.block_stride) for region in layout.regions] == list(
        zip(pointers, items, strict=True)
    )
    assert [section.name for region in layout.regions for section in region.sections] == [
        "layers.3.k",
        "layers.4.k",
        "layers.3.v",
        "layers.4.v",
    ]


def test_a_latent_is_sglangs_list(pools: Any) -> None:
    pool = mla(pools)
    layout = sglang_layout.sglang_layout(pool, num_kv_heads=1, tp_rank=3, tp_size=4)
    assert moved(layout, [[0, 6]]) == listed(pool.get_contiguous_buf_infos(), [0, 6])


def test_states_are_sglangs_list(pools: Any) -> None:
    pool, states = mla(pools), state(pools, 2)
    layout = sglang_layout.sglang_layout(pool, num_kv_heads=1, tp_rank=1, tp_size=2, state_pool=states)
    assert moved(layout, [[], [4]]) == listed(states.get_contiguous_buf_infos(), [4])
    layers = [f"layers.{layer}" for layer in states.get_state_layer_ids()]
    assert {section.name.rsplit(".", 1)[0] for region in layout.regions[3:] for section in region.sections} <= {
        *layers,
        *(f"{layer}.conv0" for layer in layers),
    }


def test_tp_two_to_four_by_torchs_own_indexing(pools: Any) -> None:
    """SGLang's tensors themselves: prefill at TP 1 with a state, decode at rank 1 of 2."""
    src_pool, dst_pool, src_states, dst_states = mha(pools, 4), mha(pools, 2), state(pools, 1), state(pools, 2)
    for tensor in (
        *src_pool.k_buffer,
        *src_pool.v_buffer,
        *src_states.mamba_cache.conv,
        src_states.mamba_cache.temporal,
    ):
        tensor.copy_(torch.randn(tensor.shape))
    src = sglang_layout.sglang_layout(src_pool, num_kv_heads=HEADS, tp_rank=0, tp_size=1, state_pool=src_states)
    dst = sglang_layout.sglang_layout(dst_pool, num_kv_heads=HEADS, tp_rank=1, tp_size=2, state_pool=dst_states)
    deliver(src, dst, [[5, 2], [3]], [[1, 4], [2]])
    for one, other in zip(
        (*src_pool.k_buffer, *src_pool.v_buffer), (*dst_pool.k_buffer, *dst_pool.v_buffer), strict=True
    ):
        for here, there in ((5, 1), (2, 4)):
            sent = one[here * PAGE : (here + 1) * PAGE, 2:]
            assert torch.equal(other[there * PAGE : (there + 1) * PAGE], sent) and sent.any()
    conv, temporal = src_states.mamba_cache.conv[0], src_states.mamba_cache.temporal
    mine = [2, 3, 6, 7, 12, 13, 14, 15]  # rank 1's half of q, of k and of v
    assert torch.equal(dst_states.mamba_cache.conv[0][:, 2], conv[:, 3][:, mine])
    assert torch.equal(dst_states.mamba_cache.temporal[:, 2], temporal[:, 3, 2:])


def test_states_in_one_envelope_pair_with_states_in_tensors_of_their_own(pools: Any) -> None:
    """SGLang's strided views into one buffer per slot: the same sections, found by their strides."""
    pool, apart, envelope = mla(pools), state(pools, 2), state(pools, 2, envelope=True)
    for tensor in (*apart.mamba_cache.conv, apart.mamba_cache.temporal):
        tensor.copy_(torch.randn(tensor.shape))
    layouts = [
        sglang_layout.sglang_layout(pool, num_kv_heads=1, tp_rank=1, tp_size=2, state_pool=states)
        for states in (apart, envelope)
    ]
    deliver(layouts[0], layouts[1], [[], [3]], [[], [5]])
    assert torch.equal(envelope.mamba_cache.conv[0][:, 5], apart.mamba_cache.conv[0][:, 3])
    assert torch.equal(envelope.mamba_cache.temporal[:, 5], apart.mamba_cache.temporal[:, 3])
