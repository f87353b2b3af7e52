"""What llama.cpp's converters write of a configuration: keys and tensors of rope, family by family."""

from __future__ import annotations

import math

import gguf
import numpy as np
from tests.model.gguf_mixtures import Config, add_expert_settings

ARCHS = {"mistral": "llama", "ministral3": "mistral3", "gemma3_text": "gemma3", "olmo3": "olmo2"}
ARCHS |= {"gpt_neox": "gptneox", "glm": "chatglm", "mixtral": "llama", "qwen3_moe": "qwen3moe"}
ARCHS |= {"gpt_oss": "gpt-oss", "llama4_text": "llama4"}
# Their converters put the rows of q and k in the order of rope on neighbours; GLM's have it from the start.
ON_NEIGHBOURS = ("llama", "mistral3", "smollm3", "granite")
LAYER_NORMS = ("gpt2", "starcoder2", "gptneox")


def arch_of(config: Config) -> str:
    """What GGUF calls the family."""
    return ARCHS.get(config.model_type, config.model_type)


def add_settings(writer: gguf.GGUFWriter, config: Config, arch: str) -> None:
    """All keys below the architecture's name."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if arch == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(getattr(config, "intermediate_size_mlp", config.intermediate_size))
    if arch == "gptneox":
        writer.add_parallel_residual(config.use_parallel_residual)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
    if arch in LAYER_NORMS:
        writer.add_layer_norm_eps(getattr(config, "norm_epsilon", None) or config.layer_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    _add_rope(writer, config, arch, head_size)
    _add_variations(writer, config, arch)
    if hasattr(config, "num_experts_per_tok"):
        add_expert_settings(writer, config)


def _add_variations(writer: gguf.GGUFWriter, config: Config, arch: str) -> None:
    if arch in ("gemma2", "gemma3", "olmo2", "phi3", "starcoder2") and getattr(
        config, "sliding_window", None
    ):
        writer.add_sliding_window(config.sliding_window)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch in ("gemma3", "olmo2") and hasattr(config, "layer_types"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if arch == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if arch == "mistral3":
        writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])


def _add_rope(writer: gguf.GGUFWriter, config: Config, arch: str, head_size: int) -> None:
    rope = config.rope_parameters
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if arch in ("phi3", "glm4", "chatglm", "gptneox"):
        writer.add_rope_dimension_count(int(head_size * rope["partial_rotary_factor"]))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if "mscale_all_dim" in rope:
            writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    if rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        ratio = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(ratio) / math.log(original)))


def add_rope_tensors(writer: gguf.GGUFWriter, config: Config) -> None:
    """Factors of longrope."""
    rope = getattr(config, "rope_parameters", None) or {}
    for name in ("long", "short"):
        if f"{name}_factor" in rope:
            writer.add_tensor(f"rope_factors_{name}.weight", np.asarray(rope[f"{name}_factor"], np.float32))
