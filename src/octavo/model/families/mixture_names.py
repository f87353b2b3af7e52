"""The names of tensors in files of mixtures: `names.py`, for experts."""

from __future__ import annotations

from types import MappingProxyType

from octavo.model.families.names import CONFIG_KEYS, LLAMA_TENSORS, QWEN3_TENSORS, Names

MIXTRAL_TENSORS: Names = MappingProxyType(
    {
        **LLAMA_TENSORS,
        "router": "model.layers.{}.block_sparse_moe.gate",
        "expert_gate": "model.layers.{}.block_sparse_moe.experts.{{}}.w1",
        "expert_up": "model.layers.{}.block_sparse_moe.experts.{{}}.w3",
        "expert_down": "model.layers.{}.block_sparse_moe.experts.{{}}.w2",
    }
)
QWEN3_MOE_TENSORS: Names = MappingProxyType(
    {
        **QWEN3_TENSORS,
        "router": "model.layers.{}.mlp.gate",
        "expert_gate": "model.layers.{}.mlp.experts.{{}}.gate_proj",
        "expert_up": "model.layers.{}.mlp.experts.{{}}.up_proj",
        "expert_down": "model.layers.{}.mlp.experts.{{}}.down_proj",
    }
)
GPT_OSS_TENSORS: Names = MappingProxyType(
    {
        **LLAMA_TENSORS,
        "sinks": "model.layers.{}.self_attn.sinks",
        "router": "model.layers.{}.mlp.router",
        "experts_gate_up": "model.layers.{}.mlp.experts.gate_up_proj",
        "experts_down": "model.layers.{}.mlp.experts.down_proj",
    }
)
# Its converter keeps the name of the norm before the feed-forward part, which elsewhere means another norm.
GPT_OSS_GGUF: Names = MappingProxyType({"ffn_norm": "blk.{}.post_attention_norm"})
LLAMA4_TENSORS: Names = MappingProxyType(
    {
        **LLAMA_TENSORS,
        "gate": "model.layers.{}.feed_forward.gate_proj",
        "up": "model.layers.{}.feed_forward.up_proj",
        "down": "model.layers.{}.feed_forward.down_proj",
        "router": "model.layers.{}.feed_forward.router",
        "experts_gate_up": "model.layers.{}.feed_forward.experts.gate_up_proj",
        "experts_down": "model.layers.{}.feed_forward.experts.down_proj",
        "shared_gate": "model.layers.{}.feed_forward.shared_expert.gate_proj",
        "shared_up": "model.layers.{}.feed_forward.shared_expert.up_proj",
        "shared_down": "model.layers.{}.feed_forward.shared_expert.down_proj",
    }
)
LLAMA4_KEYS: Names = MappingProxyType({**CONFIG_KEYS, "ffn": "intermediate_size_mlp"})  # of its dense layers
