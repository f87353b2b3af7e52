"""A bench for whole models: prompts and decode steps through the decoder, over a scrambled block table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from tests.model.family_configs import FAMILY_CONFIGS, SMALL, VOCABULARY
from tests.model.mixture_configs import MIXTURE_CONFIGS

from octavo.kernels.contract import Batch, KvShape, Ops
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps
from octavo.model.decoder import hidden_states, project
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model
from octavo.model.spec import Model

BLOCK = 16
# float32 weights: what transformers is compared with
BACKENDS = {"reference": partial(ReferenceOps, "f32"), "native": partial(NativeOps, "f32")}

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


def add_tokenizer(folder: Path) -> None:
    """The least tokenizer.json that the loader takes: 96 byte-level letters and no merges."""
    import tokenizers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[:VOCABULARY]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))


def save_model(model: transformers.PreTrainedModel, folder: Path, **options: object) -> ModelPath:
    """As a folder that the loader reads."""
    model.save_pretrained(folder, **options)
    add_tokenizer(folder)
    return ModelPath("tiny", folder, "safetensors")


def load(path: ModelPath, backend: str) -> tuple[Ops, Model]:
    """Ops and the model loaded with them."""
    ops = BACKENDS[backend]()
    return ops, load_model(path, ops).model


def random_prompt(length: int, seed: int = 1) -> list[int]:
    """Token ids."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def run_chunks(
    ops: Ops, model: Model, tokens: Sequence[int], lengths: Sequence[int], *, prepared: bool = False
) -> np.ndarray:
    """(tokens, V) logits of one sequence computed in chunks of these lengths, blocks in scrambled places.

    `prepared`: by the step that the backend made ready, instead of op after op.
    """
    spec = model.spec
    num_blocks = -(-len(tokens) // BLOCK)
    pool = ops.allocate_kv(KvShape(spec.num_layers, spec.num_kv_heads, spec.head_size, BLOCK), num_blocks + 2)
    table = np.random.default_rng(2).permutation(num_blocks + 2)[:num_blocks].astype(np.int32)[None, :]
    assert sum(lengths) == len(tokens)

    def eager(batch: Batch) -> np.ndarray:
        return project(ops, model, hidden_states(ops, model, pool, batch))

    step = ops.prepare_step(lambda o, batch: hidden_states(o, model, pool, batch), pool)
    head = ops.prepare_rows(lambda o, x: project(o, model, x), spec.hidden_size)
    logits = (lambda batch: head(step(batch)).copy()) if prepared else eager
    rows, start = [], 0
    for length in lengths:
        stop = start + length
        batch = Batch(
            tokens=np.asarray(tokens[start:stop], np.int32),
            positions=np.arange(start, stop, dtype=np.int32),
            starts=np.asarray([start], np.int32),
            offsets=np.asarray([0, length], np.int32),
            tables=np.ascontiguousarray(table),
            logit_rows=np.arange(length, dtype=np.int32),
        )
        rows.append(logits(batch))
        start = stop
    return np.concatenate(rows)


def expected_logits(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> np.ndarray:
    """(tokens, V) logits of transformers, the whole prompt at once."""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)])).logits[0].float().numpy()
