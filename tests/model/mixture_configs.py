"""Tiny configurations of transformers, some for each family of mixtures: top-k 1, 2 and 8; windows of
less than a block of 16, of one, and of more."""

from __future__ import annotations

import transformers
from tests.model.sizes import SMALL, TOKENS

YARN_AS_IT_IS = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "truncate": False}
YARN_AS_IT_IS |= {"original_max_position_embeddings": 32, "beta_fast": 8.0, "beta_slow": 1.0}
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
    **{
        f"gpt_oss-window-{window}": lambda window=window: transformers.GptOssConfig(
            **SMALL, **TOKENS, head_dim=32, num_local_experts=5, num_experts_per_tok=2, sliding_window=window,
            rope_parameters=dict(YARN_AS_IT_IS),
        )
        for window in (8, 16, 24)
    },
    "llama4_text": lambda: transformers.Llama4TextConfig(
        **SMALL | {"num_hidden_layers": 4}, **TOKENS, head_dim=32, intermediate_size_mlp=80,
        num_local_experts=4, interleave_moe_layer_step=2, floor_scale=16, attention_chunk_size=64,
    ),
    "llama4_text-no-norm": lambda: transformers.Llama4TextConfig(
        **SMALL, **TOKENS, head_dim=32, intermediate_size_mlp=80, num_local_experts=3, use_qk_norm=False,
        moe_layers=[0, 2], no_rope_layers=[1, 0, 1], attn_temperature_tuning=False,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 1.0, "original_max_position_embeddings": 32,
        },
    ),
}  # fmt: skip
