"""Tiny models with random weights, made here: nothing is downloaded.    models.py FOLDER

Weights are scaled so that tokens vary and the best one leads clearly.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers

COMMON = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}


def attention() -> Any:
    """4 layers, 4 KV heads of 64."""
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**COMMON, **HEADS, num_hidden_layers=4))


def mla() -> Any:
    """3 layers of latent attention, 512 + 64 wide."""
    config = transformers.DeepseekV2Config(
        **COMMON,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        first_k_dense_replace=3,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
    )
    return transformers.DeepseekV2ForCausalLM(config)


def hybrid(kv_heads: int = 4) -> Any:
    """2 layers of gated delta net (2 key heads, 4 value heads of 128), 2 of attention; one is a mixture of experts."""
    config = transformers.Qwen3NextConfig(
        **COMMON,
        **{**HEADS, "num_key_value_heads": kv_heads},
        num_hidden_layers=4,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=128,
        mlp_only_layers=[0, 1, 2],
        decoder_sparse_step=1,
        full_attention_interval=2,
        layer_types=["linear_attention", "full_attention"] * 2,
    )
    return transformers.Qwen3NextForCausalLM(config)


def one_head() -> Any:
    """The hybrid with one KV head, which every rank of TP 2 then holds whole."""
    return hybrid(kv_heads=1)


def save(make: Any, folder: Path) -> None:
    """Make the model with weights of its own generator's and save it as vLLM loads it."""
    torch.manual_seed(7)
    model = make()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() >= 2:
                scale = 1.0 if "embed" in name else 1.5 / weight.shape[-1] ** 0.5
                weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    model.to(torch.float32).save_pretrained(folder / make.__name__)


if __name__ == "__main__":
    for make in (attention, mla, hybrid, one_head):
        save(make, Path(sys.argv[1]))
