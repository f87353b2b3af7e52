"""Rows of mixture families: a token passes through a few of many experts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from octavo.kernels.contract import Routing
from octavo.model.families.mixture_names import (
    GPT_OSS_GGUF,
    GPT_OSS_TENSORS,
    LLAMA4_KEYS,
    LLAMA4_TENSORS,
    MIXTRAL_TENSORS,
    QWEN3_MOE_TENSORS,
)
from octavo.model.families.row import Family, MixtureFacts

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
