"""Tiny configurations of transformers, one or more for each dense family, in its own spelling.

Every size is as small as it can be for prompts that leave a window of 8 and cross three blocks of 16.
"""

from __future__ import annotations

import transformers

VOCABULARY = 96
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
# Some classes think of special tokens beyond so small a vocabulary.
TOKENS = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
FOUR = SMALL | {"num_hidden_layers": 4}  # enough for each pattern of kinds of layers
NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"} | {"hidden_act": "gelu"}
OPT = {key: SMALL[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
OPT |= {"max_position_embeddings": 128, "ffn_dim": 96, "word_embed_proj_dim": 64} | TOKENS

NEAR, FAR = "sliding_attention", "full_attention"
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
TEMPERED = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
TEMPERED |= {"original_max_position_embeddings": 16}  # so that a prompt of 41 is scaled twice
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 9.0],
}
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
