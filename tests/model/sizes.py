"""Sizes and scalings of tiny configurations.

Every size is as small as it can be for prompts that leave a window of 8 and cross three blocks of 16.
"""

from __future__ import annotations

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
