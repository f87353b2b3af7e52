"""Tiny configurations of transformers, one or more for each dense family, in its own spelling."""

from __future__ import annotations

import transformers
from tests.model.sizes import FAR, FOUR, LONGROPE, NEAR, NEOX, OPT, SMALL, TEMPERED, TOKENS, YARN

GEMMA3 = FOUR | TOKENS | {"head_dim": 32, "query_pre_attn_scalar": 48, "sliding_window": 8}
BY_KIND = {
    NEAR: {"rope_type": "default", "rope_theta": 10000.0},
    FAR: YARN | {"rope_theta": 20000.0},
}

FAMILY_CONFIGS = {
    "ministral": lambda: transformers.MinistralConfig(
        **SMALL, head_dim=16, sliding_window=8, layer_types=[NEAR, FAR, NEAR]
    ),
    "ministral3": lambda: transformers.Ministral3Config(
        **SMALL, **TOKENS, head_dim=16, rope_parameters=dict(TEMPERED)
    ),
    "smollm3": lambda: transformers.SmolLM3Config(**FOUR, **TOKENS),
    "smollm3-window": lambda: transformers.SmolLM3Config(
        **FOUR, **TOKENS, use_sliding_window=True, sliding_window=8, no_rope_layers=[1, 0, 1, 0]
    ),
    "phi3": lambda: transformers.Phi3Config(**SMALL, **TOKENS, sliding_window=8),
    "phi3-longrope": lambda: transformers.Phi3Config(
        **SMALL, **TOKENS, original_max_position_embeddings=32, tie_word_embeddings=True,
        rope_parameters=LONGROPE | {"partial_rotary_factor": 0.75},
    ),
    "gemma": lambda: transformers.GemmaConfig(**SMALL, **TOKENS, head_dim=32),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        **GEMMA3, layer_types=[NEAR, NEAR, FAR, NEAR],
        rope_parameters={
            NEAR: {"rope_type": "default", "rope_theta": 10000.0},
            FAR: {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        },
    ),
    "granite": lambda: transformers.GraniteConfig(
        **SMALL, embedding_multiplier=12.0, attention_multiplier=0.2, residual_multiplier=0.22,
        logits_scaling=4.0,
    ),
    "olmo2": lambda: transformers.Olmo2Config(**SMALL, **TOKENS),
    "olmo3": lambda: transformers.Olmo3Config(**FOUR, **TOKENS, sliding_window=8, rope_parameters=BY_KIND),
    "starcoder2": lambda: transformers.Starcoder2Config(**SMALL, **TOKENS, sliding_window=8),
    "opt": lambda: transformers.OPTConfig(**OPT),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**NEOX, **TOKENS),
    "gpt_neox-serial": lambda: transformers.GPTNeoXConfig(
        **NEOX, **TOKENS, use_parallel_residual=False, rotary_pct=0.5
    ),
    "glm": lambda: transformers.GlmConfig(**SMALL, **TOKENS, head_dim=16),
    "glm4": lambda: transformers.Glm4Config(**SMALL, **TOKENS, head_dim=16),
}  # fmt: skip
