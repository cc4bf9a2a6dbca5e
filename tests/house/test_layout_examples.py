"""examples/*_layout.py say what their engines hold: NumPy arrays in the engines' shapes are the oracle.

tests/peers runs the same examples on the engines' own objects.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cached_arrays import deliver
from engine_tensors import Array, Tensor
from examples_here import sglang_layout, vllm_layout, weights_layout

EXAMPLES = ("vllm_layout", "sglang_layout", "weights_layout")


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_short(name: str) -> None:
    assert Path(sys.modules[name].__file__ or "").read_text().count("\n") < 150


def paint(arrays: Sequence[Array]) -> None:
    for seed, array in enumerate(arrays):
        array.view(np.uint8)[...] = np.random.default_rng(seed).integers(0, 256, array.view(np.uint8).shape, np.uint8)


# ------------------------------------------------------------------------------------------ vLLM

LAYERS, BLOCKS, HEADS, TOKENS, CONTENT = 3, 6, 4, 8, 10
ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
NAMES = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]


def caches_of(order: str, heads: int, kind: Any = np.float16) -> list[Array]:
    """A view [block, head, token, content] per layer of one allocation in this order of memory."""
    sizes = {"L": LAYERS, "B": BLOCKS, "H": heads, "N": TOKENS, "C": CONTENT}
    memory = np.zeros([sizes[letter] for letter in order], kind)
    seen = memory.transpose([order.index(letter) for letter in "LBHNC"])
    return list(seen)


def vllm_config(groups: Mapping[Any, Sequence[str]]) -> Any:
    """What of KVCacheConfig is read; a spec per group of layers."""
    return SimpleNamespace(
        transfer_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in groups],
        transfer_group_index_by_layer={layer: i for i, layers in enumerate(groups.values()) for layer in layers},
    )


class Spec:
    """An engine's spec of a layer, or of a group."""

    def __init__(self, **words: Any) -> None:
        self.__dict__.update(words)


def attention_spec(head_size_v: int = 5) -> Spec:
    return Spec(head_size_v=head_size_v, tokens_per_state=1)


@pytest.mark.parametrize(("here", "there"), list(itertools.product(ORDERS, repeat=2)))
def test_vllm_attention_in_any_order_of_memory_fills_any_other(here: str, there: str) -> None:
    """TP 1, all four heads, to rank 1 of TP 2."""
    src, dst = caches_of(here, HEADS), caches_of(there, HEADS // 2)
    paint(src)
    config = vllm_config({attention_spec(): NAMES})
    layouts = [
        vllm_layout.vllm_layout(
            dict(zip(NAMES, map(Tensor, caches), strict=True)), config, num_kv_heads=HEADS, tp_rank=rank, tp_size=size
        )
        for caches, rank, size in ((src, 0, 1), (dst, 1, 2))
    ]
    deliver(layouts[0], layouts[1], [[5, 0, 2]], [[1, 3, 4]])
    for one, other in zip(src, dst, strict=True):
        expected = np.zeros_like(other)
        expected[[1, 3, 4]] = one[[5, 0, 2], 2:]
        np.testing.assert_array_equal(other, expected)


def test_vllm_a_latent_is_whole_on_every_rank_and_a_shared_layer_is_skipped() -> None:
    src, dst = caches_of("BLHNC", 1), caches_of("LBHNC", 1)
    paint(src)
    config = vllm_config({Spec(kv_cache_specs={NAMES[0]: attention_spec(0), NAMES[2]: attention_spec(0)}): NAMES[::2]})
    layouts = [
        vllm_layout.vllm_layout(
            dict(zip(NAMES, map(Tensor, caches), strict=True)), config, num_kv_heads=1, tp_rank=rank, tp_size=size
        )
        for caches, rank, size in ((src, 0, 1), (dst, 3, 4))
    ]
    deliver(layouts[0], layouts[1], [[5, 0]], [[1, 3]])
    assert [bool(array.any()) for array in dst] == [True, False, True]
    np.testing.assert_array_equal(dst[2][[1, 3]], src[2][[5, 0]])


WIDTHS, ROWS, STATE = {"x": 8, "B": 4, "C": 4}, 3, (4, 2, 3)


def hybrid(tp_size: int) -> tuple[Array, list[Array], Any]:
    """An attention layer and a Mamba2 layer that overlay each other, a block of bytes each."""
    heads = HEADS // tp_size
    conv, ssm = (sum(WIDTHS.values()) // tp_size, ROWS), (STATE[0] // tp_size, *STATE[1:])
    conv_bytes, ssm_bytes = 2 * math.prod(conv), 4 * math.prod(ssm)
    page = max(heads * TOKENS * CONTENT * 2, conv_bytes + ssm_bytes)
    memory = np.zeros((BLOCKS, page), np.uint8)
    attention = memory[:, : heads * TOKENS * CONTENT * 2].view(np.float16).reshape(BLOCKS, heads, TOKENS, CONTENT)
    states: list[Array] = [
        memory[:, :conv_bytes].view(np.float16).reshape(BLOCKS, *conv),
        memory[:, conv_bytes:][:, :ssm_bytes].view(np.float32).reshape(BLOCKS, *ssm),
    ]
    assert all(np.shares_memory(memory, array) for array in (attention, *states))
    whole = memory[:, None, None, : conv_bytes + ssm_bytes]
    spec = Spec(shapes=(conv, ssm), dtypes=(np.dtype(np.float16), np.dtype(np.float32)), tp_replicated=False)
    config = vllm_config({attention_spec(): ["attn"], spec: ["mixer"]})
    caches = {"attn": Tensor(attention), "mixer": Tensor(whole)}
    return memory, [attention, *states], (caches, config)


@pytest.mark.parametrize("rank", [0, 1])
def test_vllm_a_hybrid_model_moves_each_group_by_its_own_table(rank: int) -> None:
    memory, src, (src_caches, src_config) = hybrid(1)
    _, dst, (dst_caches, dst_config) = hybrid(2)
    memory[...] = np.random.default_rng(3).integers(0, 100, memory.shape, np.uint8)
    src_layout, dst_layout = (
        vllm_layout.vllm_layout(
            caches, config, num_kv_heads=HEADS, projections=WIDTHS, tp_rank=tp_rank, tp_size=tp_size
        )
        for caches, config, tp_rank, tp_size in ((src_caches, src_config, 0, 1), (dst_caches, dst_config, rank, 2))
    )
    deliver(src_layout, dst_layout, [[5, 0], [3]], [[1, 2], [4]])
    half = slice(2 * rank, 2 * rank + 2)
    np.testing.assert_array_equal(dst[0][[1, 2]], src[0][[5, 0], half])
    begins = {"x": 0, "B": 8, "C": 12}
    channels = [begins[part] + rank * width // 2 + i for part, width in WIDTHS.items() for i in range(width // 2)]
    np.testing.assert_array_equal(dst[1][4], src[1][3][channels])
    np.testing.assert_array_equal(dst[2][4], src[2][3][half])


def test_vllm_projections_that_are_not_the_states_are_refused() -> None:
    _, _, (caches, config) = hybrid(2)
    with pytest.raises(ValueError, match=r"mixer: projections \{'x': 8\} are 4 channels here, not 8"):
        vllm_layout.vllm_layout(caches, config, num_kv_heads=HEADS, projections={"x": 8}, tp_rank=0, tp_size=2)


# ------------------------------------------------------------------------------------------ SGLang

PAGE, SLOTS = 4, 26  # the last two slots fill no page


def mha_pool(heads: int, order: str = "nhd") -> tuple[Any, list[Array]]:
    pages: list[Array] = [np.zeros((SLOTS // PAGE, PAGE, heads, CONTENT), np.float16) for _ in range(2 * 2)]
    if order == "nhd":
        buffers: list[Array] = [np.zeros((SLOTS, heads, CONTENT), np.float16) for _ in pages]
        pages = [buffer[: SLOTS // PAGE * PAGE].reshape(-1, PAGE, heads, CONTENT) for buffer in buffers]
    else:
        buffers = [np.zeros((SLOTS // PAGE, heads, PAGE, CONTENT), np.float16) for _ in pages]
        pages = [buffer.swapaxes(1, 2) for buffer in buffers]
    tensors = [*map(Tensor, buffers)]
    pool = SimpleNamespace(
        k_buffer=tensors[:2], v_buffer=tensors[2:], page_size=PAGE, kv_cache_layout=order, model_layer_ids=(4, 5)
    )
    return pool, pages


@pytest.mark.parametrize("order", ["nhd", "hnd"])
def test_sglang_pages_of_heads(order: str) -> None:
    (src_pool, src), (dst_pool, dst) = mha_pool(HEADS), mha_pool(1, order)
    paint(src)
    src_layout = sglang_layout.sglang_layout(src_pool, num_kv_heads=HEADS, tp_rank=0, tp_size=1)
    dst_layout = sglang_layout.sglang_layout(dst_pool, num_kv_heads=HEADS, tp_rank=5, tp_size=8)
    assert [region.sections[0].name for region in dst_layout.regions] == [
        "layers.4.k", "layers.5.k", "layers.4.v", "layers.5.v",
    ]  # fmt: skip
    deliver(src_layout, dst_layout, [[5, 0]], [[1, 3]])
    for one, other in zip(src, dst, strict=True):
        np.testing.assert_array_equal(other[[1, 3]], one[[5, 0], :, 2:3])
        assert not other[[0, 2, 4, 5]].any()


def test_sglang_a_latent_and_states_by_their_groups() -> None:
    """Two conv states of [q, k, v] in the order [row][channel], as Kimi's are, to rank 1 of 2."""

    def pools(tp_size: int) -> tuple[Any, Any, list[Array]]:
        latent = np.zeros((SLOTS, 1, CONTENT), np.float16)
        conv = np.zeros((2, 5, ROWS, 16 // tp_size), np.float16)
        ssm = np.zeros((2, 5, 4 // tp_size, 2, 3), np.float32)
        pool = SimpleNamespace(kv_buffer=[Tensor(latent)], page_size=PAGE, model_layer_ids=(3,))
        cache = SimpleNamespace(conv=[Tensor(conv)], temporal=Tensor(ssm))
        states = SimpleNamespace(
            mamba_layer_ids=[1, 2], mamba_cache=cache, conv_shard_groups=[4, 4, 8], conv_slice_axis=1
        )
        return pool, states, [latent[:24].reshape(6, PAGE, CONTENT), conv, ssm]

    (src_pool, src_states, src), (dst_pool, dst_states, dst) = pools(1), pools(2)
    paint(src)
    layouts = [
        sglang_layout.sglang_layout(pool, num_kv_heads=1, tp_rank=rank, tp_size=size, state_pool=states)
        for pool, states, rank, size in ((src_pool, src_states, 0, 1), (dst_pool, dst_states, 1, 2))
    ]
    deliver(layouts[0], layouts[1], [[5, 0], [4]], [[1, 3], [2]])
    np.testing.assert_array_equal(dst[0][[1, 3]], src[0][[5, 0]])
    np.testing.assert_array_equal(dst[1][:, 2], src[1][:, 4][:, :, [2, 3, 6, 7, 12, 13, 14, 15]])
    np.testing.assert_array_equal(dst[2][:, 2], src[2][:, 4, 2:])


def test_sglang_what_the_example_does_not_know_it_says() -> None:
    pool, _ = mha_pool(1)
    pool.kv_cache_layout = "vectorized_5d"
    with pytest.raises(ValueError, match="'vectorized_5d' layout cuts an axis in two"):
        sglang_layout.sglang_layout(pool, num_kv_heads=1, tp_rank=0, tp_size=1)


# ------------------------------------------------------------------------------------------ weights


def test_weights_of_a_mesh_of_rows_fill_a_mesh_of_columns() -> None:
    """Every rank of 2 x 2, `up` sharded by rows over one mesh dimension, fills every rank of 3, sharded by columns."""
    whole = {"up": np.arange(70.0).reshape(7, 10), "norm": np.arange(10.0)}
    spread = {"up": weights_layout.Parameter((7, 10), (0, None)), "norm": weights_layout.Parameter((10,), (None, None))}
    columns = {"up": weights_layout.Parameter((7, 10), (1,)), "norm": weights_layout.Parameter((10,), (0,))}
    rows = [slice(0, 4), slice(0, 4), slice(4, 7), slice(4, 7)]
    srcs = {}
    alive = []
    for rank, held in enumerate(rows):
        tensors = {"up": whole["up"][held].copy(), "norm": whole["norm"].copy()}
        alive.append(tensors)
        srcs[rank] = weights_layout.weights_layout(tensors, spread, mesh=(2, 2), rank=rank)
    for rank, held in enumerate([slice(0, 4), slice(4, 8), slice(8, 10)]):
        mine = {"up": np.zeros((7, 10))[:, held].copy(), "norm": np.zeros(10)[held].copy()}
        dst = weights_layout.weights_layout(mine, columns, mesh=(3,), rank=rank)
        deliver(srcs, dst, [[0]], [[0]], dst_rank=rank, dst_size=3)
        np.testing.assert_array_equal(mine["up"], whole["up"][:, held])
        np.testing.assert_array_equal(mine["norm"], whole["norm"][held])


def test_weights_an_empty_shard_is_nothing() -> None:
    parameters = {"bias": weights_layout.Parameter((3,), (0,)), "norm": weights_layout.Parameter((3,), (None,))}
    layout = weights_layout.weights_layout({"norm": np.zeros(3)}, parameters, mesh=(4,), rank=3)
    assert [region.name for region in layout.regions] == ["norm"]


def test_weights_experts_apart_fill_experts_together() -> None:
    apart = {expert: np.random.default_rng(expert).random((3, 4)) for expert in range(6)}
    src = weights_layout.experts_layout({"w13": apart})
    together = np.zeros((2, 3, 4))
    mine = {"w13": weights_layout.Parameter((6, 3, 4), (0,))}
    axes = weights_layout.weights_layout({"w13": together}, mine, mesh=(3,), rank=1).regions[0].sections[0].axes
    assert [axis.name for axis in axes] == ["d0", "d1", "d2"]
    deliver(src, weights_layout.experts_layout({"w13": {4: together[0], 2: together[1]}}), [[0]], [[0]])
    np.testing.assert_array_equal(together, [apart[4], apart[2]])
