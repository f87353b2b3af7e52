"""Names of sizes and tensors in files: config.json and safetensors by family, GGUF the same for all families.

A role ("q", "ffn_norm", "heads") is our word; the name is the file's. "{}" is the layer; of tensors,
".weight" and ".bias" follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Names = Mapping[str, str]

# Names of settings in config.json, and in GGUF after the name of the architecture.
CONFIG_KEYS: Names = MappingProxyType(
    {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_size": "head_dim",
        "ffn": "intermediate_size",
        "vocab": "vocab_size",
        "context": "max_position_embeddings",
        "eps": "rms_norm_eps",
        "activation": "hidden_act",
    }
)
GEMMA_KEYS: Names = MappingProxyType({**CONFIG_KEYS, "activation": "hidden_activation"})
STARCODER2_KEYS: Names = MappingProxyType({**CONFIG_KEYS, "eps": "norm_epsilon"})
# Families whose query heads each have K and V of their own: the file's number of KV heads is not read.
_HEADS_ALIKE: Names = MappingProxyType(
    {size: key for size, key in CONFIG_KEYS.items() if size not in ("kv_heads", "head_size")}
)
GPT_NEOX_KEYS: Names = MappingProxyType({**_HEADS_ALIKE, "eps": "layer_norm_eps"})
OPT_KEYS: Names = MappingProxyType(
    {**_HEADS_ALIKE, "ffn": "ffn_dim", "eps": "layer_norm_eps", "activation": "activation_function"}
)
GPT2_KEYS: Names = MappingProxyType(
    {
        "layers": "n_layer",
        "hidden": "n_embd",
        "heads": "n_head",
        "ffn": "n_inner",
        "vocab": "vocab_size",
        "context": "n_positions",
        "eps": "layer_norm_epsilon",
        "activation": "activation_function",
    }
)
GGUF_KEYS: Names = MappingProxyType(
    {
        "layers": "block_count",
        "hidden": "embedding_length",
        "heads": "attention.head_count",
        "kv_heads": "attention.head_count_kv",
        "head_size": "attention.key_length",
        "ffn": "feed_forward_length",
        "context": "context_length",
        "window": "attention.sliding_window",
    }
)

# Names of tensors. "{}" is the layer; ".weight" and ".bias" follow.
GGUF_TENSORS: Names = MappingProxyType(
    {
        "embedding": "token_embd",
        "positions": "position_embd",
        "final_norm": "output_norm",
        "output": "output",
        "attention_norm": "blk.{}.attn_norm",
        "q": "blk.{}.attn_q",
        "k": "blk.{}.attn_k",
        "v": "blk.{}.attn_v",
        "qkv": "blk.{}.attn_qkv",
        "o": "blk.{}.attn_output",
        "q_norm": "blk.{}.attn_q_norm",
        "k_norm": "blk.{}.attn_k_norm",
        "attention_post_norm": "blk.{}.post_attention_norm",
        "ffn_norm": "blk.{}.ffn_norm",
        "gate": "blk.{}.ffn_gate",
        "up": "blk.{}.ffn_up",
        "down": "blk.{}.ffn_down",
        "ffn_post_norm": "blk.{}.post_ffw_norm",
        "sinks": "blk.{}.attn_sinks",
        "router": "blk.{}.ffn_gate_inp",
        "experts_gate": "blk.{}.ffn_gate_exps",
        "experts_up": "blk.{}.ffn_up_exps",
        "experts_down": "blk.{}.ffn_down_exps",
        "shared_gate": "blk.{}.ffn_gate_shexp",
        "shared_up": "blk.{}.ffn_up_shexp",
        "shared_down": "blk.{}.ffn_down_shexp",
    }
)
LLAMA_TENSORS: Names = MappingProxyType(
    {
        "embedding": "model.embed_tokens",
        "final_norm": "model.norm",
        "output": "lm_head",
        "attention_norm": "model.layers.{}.input_layernorm",
        "q": "model.layers.{}.self_attn.q_proj",
        "k": "model.layers.{}.self_attn.k_proj",
        "v": "model.layers.{}.self_attn.v_proj",
        "o": "model.layers.{}.self_attn.o_proj",
        "ffn_norm": "model.layers.{}.post_attention_layernorm",
        "gate": "model.layers.{}.mlp.gate_proj",
        "up": "model.layers.{}.mlp.up_proj",
        "down": "model.layers.{}.mlp.down_proj",
    }
)
QWEN3_TENSORS: Names = MappingProxyType(
    {
        **LLAMA_TENSORS,
        "q_norm": "model.layers.{}.self_attn.q_norm",
        "k_norm": "model.layers.{}.self_attn.k_norm",
    }
)
GEMMA2_TENSORS: Names = MappingProxyType(
    {
        **LLAMA_TENSORS,
        # Gemma's "post" norms are on the branch; Llama's norm of that name is before the feed-forward part.
        "attention_post_norm": "model.layers.{}.post_attention_layernorm",
        "ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
        "ffn_post_norm": "model.layers.{}.post_feedforward_layernorm",
    }
)
GPT2_TENSORS: Names = MappingProxyType(
    {
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "output": "lm_head",
        "attention_norm": "transformer.h.{}.ln_1",
        "qkv": "transformer.h.{}.attn.c_attn",
        "o": "transformer.h.{}.attn.c_proj",
        "ffn_norm": "transformer.h.{}.ln_2",
        "up": "transformer.h.{}.mlp.c_fc",
        "down": "transformer.h.{}.mlp.c_proj",
    }
)
GEMMA3_TENSORS: Names = MappingProxyType(
    {**GEMMA2_TENSORS, "q_norm": QWEN3_TENSORS["q_norm"], "k_norm": QWEN3_TENSORS["k_norm"]}
)
# There are no norms before the branches: only on queries, keys and the branches' outputs.
OLMO2_TENSORS: Names = MappingProxyType(
    {role: name for role, name in GEMMA3_TENSORS.items() if role not in ("attention_norm", "ffn_norm")}
)
FUSED_GATE_TENSORS: Names = MappingProxyType(
    {role: name for role, name in LLAMA_TENSORS.items() if role != "gate"}
    | {"up": "model.layers.{}.mlp.gate_up_proj"}
)
PHI3_TENSORS: Names = MappingProxyType(
    {role: name for role, name in FUSED_GATE_TENSORS.items() if role not in ("q", "k", "v")}
    | {"qkv": "model.layers.{}.self_attn.qkv_proj"}
)
GLM4_TENSORS: Names = MappingProxyType(
    {
        **FUSED_GATE_TENSORS,
        "attention_post_norm": "model.layers.{}.post_self_attn_layernorm",
        "ffn_post_norm": "model.layers.{}.post_mlp_layernorm",
    }
)
STARCODER2_TENSORS: Names = MappingProxyType(
    {role: name for role, name in LLAMA_TENSORS.items() if role != "gate"}
    | {"up": "model.layers.{}.mlp.c_fc", "down": "model.layers.{}.mlp.c_proj"}
)
GPT_NEOX_TENSORS: Names = MappingProxyType(
    {
        "embedding": "gpt_neox.embed_in",
        "final_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
        "attention_norm": "gpt_neox.layers.{}.input_layernorm",
        "qkv": "gpt_neox.layers.{}.attention.query_key_value",
        "o": "gpt_neox.layers.{}.attention.dense",
        "ffn_norm": "gpt_neox.layers.{}.post_attention_layernorm",
        "up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
        "down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
    }
)
OPT_TENSORS: Names = MappingProxyType(
    {
        "embedding": "model.decoder.embed_tokens",
        "positions": "model.decoder.embed_positions",
        "final_norm": "model.decoder.final_layer_norm",
        "output": "lm_head",
        "attention_norm": "model.decoder.layers.{}.self_attn_layer_norm",
        "q": "model.decoder.layers.{}.self_attn.q_proj",
        "k": "model.decoder.layers.{}.self_attn.k_proj",
        "v": "model.decoder.layers.{}.self_attn.v_proj",
        "o": "model.decoder.layers.{}.self_attn.out_proj",
        "ffn_norm": "model.decoder.layers.{}.final_layer_norm",
        "up": "model.decoder.layers.{}.fc1",
        "down": "model.decoder.layers.{}.fc2",
    }
)
