"""What llama.cpp's converters make of mixtures: tensors of all experts, routers, sinks, and their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import gguf
import numpy as np

Config = Any  # transformers' own, or one with its attributes


class Model(Protocol):
    """A model of transformers, or a recorded one."""

    config: Config

    def state_dict(self) -> Mapping[str, Any]: ...


def floats_of(tensor: Any) -> np.ndarray:
    """Of a tensor of torch, or an array."""
    return tensor if isinstance(tensor, np.ndarray) else tensor.float().numpy()


def expert_tensors(name: str, values: np.ndarray, config: Config) -> dict[str, np.ndarray]:
    """The file's names and values of a tensor that belongs to a mixture; empty for any other one."""
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    if rest == "self_attn.sinks":
        return {f"blk.{layer}.attn_sinks.weight": values}
    part = rest.rpartition("mlp.")[2] if "mlp." in rest else rest.removeprefix("feed_forward.")
    module, _, kind = part.rpartition(".")
    if module in ("gate", "router"):
        return {f"blk.{layer}.ffn_gate_inp.{kind}": values}
    if module != "experts":
        return {}
    kind, is_bias = kind.removesuffix("_bias"), kind.endswith("_bias")
    if not is_bias and config.model_type in ("gpt_oss", "llama4_text"):
        values = values.swapaxes(1, 2)  # they are (experts, inputs, outputs)
    suffix = "bias" if is_bias else "weight"
    if kind == "down_proj":
        return {f"blk.{layer}.ffn_down_exps.{suffix}": values}
    if config.model_type == "gpt_oss":
        gate, up = values[:, ::2], values[:, 1::2]
    else:
        gate, up = np.split(values, 2, axis=1)
    return {f"blk.{layer}.ffn_gate_exps.{suffix}": gate, f"blk.{layer}.ffn_up_exps.{suffix}": up}


def add_expert_settings(writer: gguf.GGUFWriter, config: Config) -> None:
    """Keys that only mixtures have."""
    writer.add_expert_count(getattr(config, "num_local_experts", None) or config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    kind = config.model_type
    if kind == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind in ("gpt_oss", "llama4_text"):
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if kind == "llama4_text":
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    if kind in ("gpt_oss", "mixtral") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
