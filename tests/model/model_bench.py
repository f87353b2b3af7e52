"""Tiny random models of transformers, and what it computes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from tests.model.checkpoints import add_tokenizer
from tests.model.family_configs import FAMILY_CONFIGS
from tests.model.mixture_configs import MIXTURE_CONFIGS
from tests.model.sizes import SMALL, VOCABULARY

from octavo.model.hub.paths import ModelPath

# Rows of whole super-blocks.
WIDE = SMALL | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}

LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3_ROPE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "llama-wide": lambda: transformers.LlamaConfig(**WIDE),
    "llama-tied": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True, head_dim=24),
    "llama-biases": lambda: transformers.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama-rope-llama3": lambda: transformers.LlamaConfig(**SMALL, rope_parameters=LLAMA3_ROPE),
    "llama-rope-linear": lambda: transformers.LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
    ),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=None),
    "mistral-window": lambda: transformers.MistralConfig(**SMALL, sliding_window=8),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=32),
    "gemma2": lambda: transformers.Gemma2Config(
        **SMALL, head_dim=32, query_pre_attn_scalar=48, sliding_window=8, attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_head=4, n_layer=3, n_positions=128
    ),
    **FAMILY_CONFIGS,
    **MIXTURE_CONFIGS,
}  # fmt: skip


def make_model(name: str, seed: int = 0, layers: int | None = None) -> transformers.PreTrainedModel:
    """A random model of a family, whose weights are large enough for a mistake to show."""
    torch.manual_seed(seed)
    config = CONFIGS[name]()
    config.num_hidden_layers = layers or config.num_hidden_layers
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return with_random_weights(model.float().eval(), "gemma" in name)


def with_random_weights(
    model: transformers.PreTrainedModel, norms_on_zero: bool
) -> transformers.PreTrainedModel:
    """The model, filled; norms of Gemma's are stored less 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.2 if parameter.dim() == 1 else 0.15
            is_norm = "norm" in name or "ln_" in name
            centre = 1.0 if is_norm and name.endswith("weight") and not norms_on_zero else 0.0
            parameter.copy_(centre + spread * torch.randn_like(parameter))
    return model


def save_model(model: transformers.PreTrainedModel, folder: Path, **options: object) -> ModelPath:
    """As a folder that the loader reads."""
    model.save_pretrained(folder, **options)
    add_tokenizer(folder)
    return ModelPath("tiny", folder, "safetensors")


def expected_logits(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> np.ndarray:
    """(tokens, V) logits of transformers, the whole prompt at once."""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)])).logits[0].float().numpy()
