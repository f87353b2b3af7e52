"""The tables of docs/models.md and docs/files.md, which docs/reference.py prints, from the code's tables.
The words for the facts of a row are here; a fact without words is printed by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from octavo.kernels.packed import BLOCKS, PANEL_WIDTH, bits_of
from octavo.kernels.panels import panel_bytes
from octavo.model.families.row import Family
from octavo.model.families.scaling import KINDS
from octavo.model.families.table import FAMILIES
from octavo.model.quantised.settings import METHODS, OUTCOMES
from octavo.text.pre_tokenizers import PRE_TOKENIZERS

# Their names for people, by the rows' names.
KNOWN_AS: Mapping[str, str] = {
    "llama": "Llama 2, 3, 3.1, 3.2 (text), 3.3; SmolLM, SmolLM2; Falcon 3; DeepSeek-R1-Distill-Llama; Yi",
    "llama4_text": "Llama 4 (text)",
    "mistral": "Mistral 7B, Mistral Nemo, Mistral Small",
    "ministral": "Ministral 8B",
    "ministral3": "Ministral 3",
    "mixtral": "Mixtral 8x7B, 8x22B",
    "qwen2": "Qwen2, Qwen2.5, QwQ; DeepSeek-R1-Distill-Qwen",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3-30B-A3B, Qwen3-235B-A22B",
    "smollm3": "SmolLM3",
    "granite": "Granite 3",
    "phi3": "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
    "glm": "GLM-4 9B (2024)",
    "glm4": "GLM-4-0414",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "olmoe": "OLMoE",
    "gemma": "Gemma 1",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3 (text)",
    "gpt2": "GPT-2, DistilGPT-2",
    "gpt_neox": "GPT-NeoX, Pythia",
    "gpt_oss": "gpt-oss-20b, gpt-oss-120b",
    "opt": "OPT",
    "starcoder2": "StarCoder2",
}

# What a row's facts mean. {} stands for the value.
_WORDS: Mapping[str, str] = {
    "norm": "LayerNorm with biases",
    "gated": "feed-forward without a gate",
    "learned_positions": "learned positions",
    "windows": "sliding windows {}",
    "soft_caps": "soft caps",
    "scaled_embedding": "scaled embedding",
    "multipliers": "multipliers",
    "norm_offset": "norm weights stored minus {:g}",
    "transposed": "transposed weight matrices",
    "fused_qkv": "q, k, v {}",
    "fused_gate_up": "gate and up stacked",
    "parallel": "attention and feed-forward in parallel",
    "partial_rope": "partial rope",
    "rope_dims": "rope on {:g} of each head",
    "local_theta": "another rope base in layers with windows",
    "ropeless_every": "every {}th layer without rope",
    "temperature": "queries scaled by position",
    "fractional_yarn": "YaRN's ramp is not rounded to whole dimensions",
    "attends_in_chunks": "chunked attention in layers with rope (the context is limited to one chunk: "
    "8,192 tokens, unless the file has another size)",
    "context_is_scaled": "",
    "sinks": "attention sinks",
    "tied": "tied embeddings",
    "activation": "{}",
}
_WINDOWS: Mapping[str, str] = {
    "all": "in all layers",
    "even": "in every second layer",
    "periodic": "in all but every n-th layer",
    "switched": "in all layers if `use_sliding_window` is true",
    "late": "from `max_window_layers` on",
    "ropeless": "in layers without rope",
    "listed": "in the layers that the file lists",
}
# Facts about the files, not about the model.
_SILENT = frozenset(
    (
        *(
            "name",
            "arch",
            "tensors",
            "config_keys",
            "biases",
            "positions_skipped",
            "interleaved_in",
            "mixture",
        ),
        *("qk_norm", "window_period", "wide_scalar_layers", "rope_kinds", "config_defaults", "gguf_defaults"),
        "whole_attention_factor",
    )
)
_ROPES: Mapping[str, str] = {
    "default": "no scaling",
    "linear": "all frequencies divided by a factor",
    "dynamic": "a larger base, chosen by the configured context, not by the text",
    "llama3": "low frequencies divided, high ones kept; in GGUF the tensor `rope_freqs`",
    "yarn": "low frequencies interpolated, high ones kept, with a ramp between them",
    "longrope": "a factor for each frequency: short or long ones, by the configured context",
}


def family_rows() -> Iterator[tuple[str, ...]]:
    """Every family."""
    yield "known as", "config.json `model_type`", "GGUF architecture", "variations"
    for row in FAMILIES.values():
        words = "; ".join(variations(row)) or "none"
        yield KNOWN_AS[row.name], f"`{row.name}`", f"`{row.arch or row.name}`", words


def variations(row: Family) -> list[str]:
    """How a row differs from a plain Llama, in words."""
    words = [] if row.mixture is None else ["mixture of experts"]
    if "q_norm" in row.tensors:
        words.append("query and key norms")
    for item in dataclasses.fields(row):
        value: object = getattr(row, item.name)
        if item.name in _SILENT or item.default is dataclasses.MISSING or value == item.default:
            continue
        template = _WORDS.get(item.name, item.name.replace("_", " "))
        words.append(template.format(_WINDOWS[row.windows] if item.name == "windows" else value))
    return [word for word in words if word]


def kind_rows() -> Iterator[tuple[str, ...]]:
    """Every kind of tensor."""
    yield "kind", "weights in a block", "bits a weight in the file", "bits a weight in memory"
    inputs = 256
    for kind, block in BLOCKS.items():
        bits = 8 * panel_bytes(kind, (PANEL_WIDTH, inputs)) / (PANEL_WIDTH * inputs)
        yield f"`{kind}`", str(block.size), f"{bits_of(kind):g}", f"{bits:g}"


def outcome_rows() -> Iterator[tuple[str, ...]]:
    """The kinds that quantised safetensors are read as, and their losses."""
    yield "in the file", "read as", "lost"
    for outcome in OUTCOMES.values():
        yield outcome.layout, f"`{outcome.kind}`", outcome.loss


def rope_rows() -> Iterator[tuple[str, ...]]:
    """Every scaling of rope."""
    yield "`rope_type`", "what it does"
    for kind in KINDS:
        yield f"`{kind}`", _ROPES[kind]


def _listed(title: str, names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    yield (title,)
    yield (", ".join(f"`{name}`" for name in names),)


TABLES: Mapping[str, Callable[[], Iterator[tuple[str, ...]]]] = {
    "families": family_rows,
    "kinds": kind_rows,
    "methods": lambda: _listed("`quant_method` in config.json", METHODS),
    "outcomes": outcome_rows,
    "ropes": rope_rows,
    "tokenizers": lambda: _listed("`tokenizer.ggml.pre`", sorted(PRE_TOKENIZERS)),
}
