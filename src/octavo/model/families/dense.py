"""Rows of families whose every token passes through all weights."""

from __future__ import annotations

from types import MappingProxyType

from octavo.model.families.names import (
    CONFIG_KEYS,
    GEMMA2_TENSORS,
    GPT2_KEYS,
    GPT2_TENSORS,
    QWEN3_TENSORS,
)
from octavo.model.families.row import Family

DENSE: tuple[Family, ...] = (
    Family("llama", interleaved_in=frozenset(("gguf",))),
    Family("mistral", windows="all"),
    Family("qwen2", windows="late", biases=frozenset("qkv")),
    Family("qwen3", tensors=QWEN3_TENSORS, windows="late"),
    Family(
        "gemma2",
        tensors=GEMMA2_TENSORS,
        config_keys=MappingProxyType({**CONFIG_KEYS, "activation": "hidden_activation"}),
        activation="gelu_pytorch_tanh",
        tied=True,
        windows="even",
        soft_caps=True,
        scaled_embedding=True,
        norm_offset=1.0,
    ),
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
)
