"""Rows of mixture families, and the names of tensors in their files: a token passes through a few of many
experts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from octavo.kernels.contract import Routing
from octavo.model.families.names import CONFIG_KEYS, LLAMA_TENSORS, QWEN3_TENSORS, Names
from octavo.model.families.row import Family, MixtureFacts

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

_NORMALISED = Routing(1, "softmax", normalised=True)
_GPT_OSS_ROPE: Mapping[str, object] = MappingProxyType(
    {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    }
)

MIXTURES: tuple[Family, ...] = (
    Family(
        "mixtral",
        arch="llama",
        tensors=MIXTRAL_TENSORS,
        windows="all",
        interleaved_in=frozenset(("gguf",)),
        mixture=MixtureFacts(_NORMALISED, usual_count=8),
        config_defaults=MappingProxyType(
            {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_experts_per_tok": 2, "num_key_value_heads": 8}
        ),
    ),
    Family(
        "qwen3_moe",
        arch="qwen3moe",
        tensors=QWEN3_MOE_TENSORS,
        windows="switched",
        mixture=MixtureFacts(
            _NORMALISED,
            usual_count=128,
            ffn_key="moe_intermediate_size",
            normalised_key="norm_topk_prob",
            step_key="decoder_sparse_step",
            dense_key="mlp_only_layers",
        ),
        config_defaults=MappingProxyType(
            {"num_experts_per_tok": 8, "moe_intermediate_size": 768, "num_key_value_heads": 4}
            | {"sliding_window": 4096}
        ),
    ),
    Family(
        "olmoe",
        tensors=QWEN3_MOE_TENSORS,
        qk_norm="all",
        mixture=MixtureFacts(Routing(1, "softmax"), usual_count=64, normalised_key="norm_topk_prob"),
        config_defaults=MappingProxyType({"rms_norm_eps": 1e-5, "num_experts_per_tok": 8}),
    ),
    Family(
        "gpt_oss",
        arch="gpt-oss",
        tensors=GPT_OSS_TENSORS,
        gguf_tensors=GPT_OSS_GGUF,
        windows="even",
        biases=frozenset(("q", "k", "v", "o", "router")),
        sinks=True,
        fractional_yarn=True,
        mixture=MixtureFacts(
            Routing(1, "softmax_of_chosen"),
            usual_count=128,
            stored="stacked",
            alternating=True,
            biased=True,
            activation="swiglu_clamped",
            constants=MappingProxyType({"swiglu_alpha": 1.702, "swiglu_limit": 7.0}),
        ),
        config_defaults=MappingProxyType(
            {"rms_norm_eps": 1e-5, "rope_theta": 150_000.0, "num_experts_per_tok": 4, "sliding_window": 128}
            | {"num_key_value_heads": 8, "head_dim": 64, "rope_scaling": dict(_GPT_OSS_ROPE)}
        ),
    ),
    Family(
        "llama4_text",
        arch="llama4",
        tensors=LLAMA4_TENSORS,
        config_keys=LLAMA4_KEYS,
        interleaved_in=frozenset(("gguf", "safetensors")),
        ropeless_every=4,
        attends_in_chunks=True,
        mixture=MixtureFacts(
            Routing(1, "sigmoid", weighs_input=True),
            usual_count=16,
            stored="stacked",
            shares_one=True,
            step_key="interleave_moe_layer_step",
            mixed_key="moe_layers",
        ),
        config_defaults=MappingProxyType(
            {"rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "head_dim": 128, "num_experts_per_tok": 1}
            | {"num_key_value_heads": 8}
        ),
    ),
)
