"""Rows of dense families: every token passes through all weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from octavo.model.families.names import (
    FUSED_GATE_TENSORS,
    GEMMA2_TENSORS,
    GEMMA3_TENSORS,
    GEMMA_KEYS,
    GLM4_TENSORS,
    GPT2_KEYS,
    GPT2_TENSORS,
    GPT_NEOX_KEYS,
    GPT_NEOX_TENSORS,
    OLMO2_TENSORS,
    OPT_KEYS,
    OPT_TENSORS,
    PHI3_TENSORS,
    QWEN3_TENSORS,
    STARCODER2_KEYS,
    STARCODER2_TENSORS,
)
from octavo.model.families.row import Family

_IN_GGUF = frozenset(("gguf",))
_EVERYWHERE = frozenset(("gguf", "safetensors"))
_GLM = Family(
    "glm",
    arch="chatglm",
    tensors=FUSED_GATE_TENSORS,
    fused_gate_up=True,
    partial_rope=True,
    rope_dims=0.5,
    interleaved_in=_EVERYWHERE,
    config_defaults=MappingProxyType({"rms_norm_eps": 1.5625e-07, "num_key_value_heads": 2, "head_dim": 128}),
)
# A GGUF file of OLMo 3 says "olmo2" too, and that it has windows.
_OLMO2 = Family(
    "olmo2",
    tensors=OLMO2_TENSORS,
    qk_norm="all",
    windows="periodic",
    window_period=4,
    local_theta=0.0,
    whole_attention_factor=True,
    config_defaults=MappingProxyType({"rms_norm_eps": 1e-5}),
)
_OLMO3_DEFAULTS = MappingProxyType({"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096})
_MISTRAL_DEFAULTS = MappingProxyType({"num_key_value_heads": 8, "sliding_window": 4096})
_QWEN_DEFAULTS = MappingProxyType(
    {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
)
_MINISTRAL_ROPE: Mapping[str, object] = MappingProxyType(
    {
        "type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
)

_LLAMA_LIKE: tuple[Family, ...] = (
    Family("llama", interleaved_in=_IN_GGUF),
    Family("mistral", windows="all", config_defaults=_MISTRAL_DEFAULTS),
    Family("ministral", windows="listed", config_defaults=_MISTRAL_DEFAULTS),
    Family(
        "ministral3",
        arch="mistral3",
        interleaved_in=_IN_GGUF,
        windows="all",
        temperature=True,
        config_defaults=MappingProxyType(
            {"rms_norm_eps": 1e-5, "head_dim": 128, "num_key_value_heads": 8}
            | {"rope_scaling": dict(_MINISTRAL_ROPE)}
        ),
    ),
    Family("qwen2", windows="late", biases=frozenset("qkv"), config_defaults=_QWEN_DEFAULTS),
    Family(
        "qwen3",
        tensors=QWEN3_TENSORS,
        windows="late",
        config_defaults=MappingProxyType({**_QWEN_DEFAULTS, "head_dim": 128}),
    ),
    Family(
        "smollm3",
        interleaved_in=_IN_GGUF,
        tied=True,
        windows="ropeless",
        ropeless_every=4,
        config_defaults=MappingProxyType({"rope_theta": 2e6, "num_key_value_heads": 4}),
    ),
    Family("granite", interleaved_in=_IN_GGUF, multipliers=True),
    Family(
        "phi3",
        tensors=PHI3_TENSORS,
        windows="all",
        fused_qkv="stacked",
        fused_gate_up=True,
        partial_rope=True,
        rope_kinds=MappingProxyType({"yarn": "longrope"}),
        config_defaults=MappingProxyType({"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}),
    ),
    _GLM,
    replace(_GLM, name="glm4", arch="", tensors=GLM4_TENSORS),
    _OLMO2,
    replace(_OLMO2, name="olmo3", arch="olmo2", config_defaults=_OLMO3_DEFAULTS),
)

# Their norms are stored less 1, and their embedding is scaled.
_GEMMA1 = Family(
    "gemma",
    config_keys=GEMMA_KEYS,
    activation="gelu_pytorch_tanh",
    tied=True,
    scaled_embedding=True,
    norm_offset=1.0,
    config_defaults=MappingProxyType({"head_dim": 256, "num_key_value_heads": 16}),
)
_GEMMA: tuple[Family, ...] = (
    _GEMMA1,
    replace(
        _GEMMA1,
        name="gemma2",
        tensors=GEMMA2_TENSORS,
        windows="even",
        soft_caps=True,
        wide_scalar_layers=46,
        config_defaults=MappingProxyType(
            {
                "num_key_value_heads": 4,
                "head_dim": 256,
                "query_pre_attn_scalar": 256,
                "sliding_window": 4096,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
            }
        ),
        gguf_defaults=MappingProxyType(
            {
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
                "attention.sliding_window": 4096,
            }
        ),
    ),
    replace(
        _GEMMA1,
        name="gemma3_text",
        arch="gemma3",
        tensors=GEMMA3_TENSORS,
        windows="periodic",
        window_period=6,
        soft_caps=True,
        wide_scalar_layers=62,
        local_theta=10_000.0,
        context_is_scaled=True,
        # The files of those with images leave most keys out.
        config_defaults=MappingProxyType(
            {
                "vocab_size": 262_208,
                "hidden_size": 2304,
                "intermediate_size": 9216,
                "num_hidden_layers": 26,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "max_position_embeddings": 131_072,
                "query_pre_attn_scalar": 256,
                "rope_theta": 1e6,
                "sliding_window": 4096,
            }
        ),
    ),
)

_WITH_LAYER_NORMS: tuple[Family, ...] = (
    Family(
        "gpt2",
        tensors=GPT2_TENSORS,
        config_keys=GPT2_KEYS,
        norm="layer",
        activation="gelu_new",
        gated=False,
        tied=True,
        learned_positions=True,
        biases=frozenset(("qkv", "o", "up", "down")),
        transposed=True,
        fused_qkv="stacked",
    ),
    Family(
        "starcoder2",
        tensors=STARCODER2_TENSORS,
        config_keys=STARCODER2_KEYS,
        norm="layer",
        activation="gelu_pytorch_tanh",
        gated=False,
        tied=True,
        windows="all",
        config_defaults=MappingProxyType({"intermediate_size": 12_288, "num_key_value_heads": 2}),
    ),
    Family(
        "opt",
        tensors=OPT_TENSORS,
        config_keys=OPT_KEYS,
        norm="layer",
        activation="relu",
        gated=False,
        tied=True,
        learned_positions=True,
        positions_skipped=2,
        config_defaults=MappingProxyType({"ffn_dim": 3072}),
    ),
    Family(
        "gpt_neox",
        arch="gptneox",
        tensors=GPT_NEOX_TENSORS,
        config_keys=GPT_NEOX_KEYS,
        norm="layer",
        activation="gelu",
        gated=False,
        fused_qkv="by head",
        partial_rope=True,
        rope_dims=0.25,
        parallel=True,
        config_defaults=MappingProxyType({"intermediate_size": 24_576}),
    ),
)

DENSE: tuple[Family, ...] = (*_LLAMA_LIKE, *_GEMMA, *_WITH_LAYER_NORMS)
