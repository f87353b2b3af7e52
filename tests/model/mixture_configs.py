"""Tiny configurations of transformers, some for each family of mixtures: top-k 1, 2 and 8; windows of
less than a block of 16, of one, and of more."""

from __future__ import annotations

import transformers

SMALL = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
# Some classes think of special tokens beyond so small a vocabulary.
TOKENS = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
# Rows of whole super-blocks, of experts too.
WIDE = SMALL | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}

MIXTURE_CONFIGS = {
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=5, sliding_window=16),
    "mixtral-wide": lambda: transformers.MixtralConfig(**WIDE, num_local_experts=4),
    "mixtral-top-1": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=3, num_experts_per_tok=1),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, **TOKENS, head_dim=32, num_experts=12, num_experts_per_tok=8, moe_intermediate_size=32,
        norm_topk_prob=True,
    ),
    "qwen3_moe-some-dense": lambda: transformers.Qwen3MoeConfig(
        **SMALL | {"num_hidden_layers": 4}, **TOKENS, head_dim=32, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, decoder_sparse_step=2, mlp_only_layers=[1], use_sliding_window=True,
        sliding_window=24, max_window_layers=1,
    ),
    "olmoe": lambda: transformers.OlmoeConfig(
        **SMALL | {"num_key_value_heads": 4}, **TOKENS, num_experts=9, num_experts_per_tok=8
    ),
}  # fmt: skip
