"""docs/models.md, printed from the tables that the code follows, so that it cannot say anything else.

    python docs/models_page.py > docs/models.md

What depends on a parser rather than a table (scalings of rope) is asked of the parser. It knows the words for
facts that rows may have; a fact without words is told by its name.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from octavo.errors import ModelError
from octavo.fields import Fields
from octavo.kernels.held import bits_of
from octavo.kernels.holding import panel_bytes
from octavo.kernels.packed import BLOCKS, PANEL_WIDTH
from octavo.model.families import describe_config
from octavo.model.families.row import Family
from octavo.model.families.table import FAMILIES
from octavo.model.quantised.settings import METHODS, OUTCOMES
from octavo.text.pre_tokenizers import PRE_TOKENIZERS

HEAD = """\
# Models: families, files, kinds, tokenizers

```console
$ octavo doctor path/to/model.gguf       # does it run here, does it fit, how fast: from headers, in a second
```

Printed from the code (`python docs/models_page.py > docs/models.md`); a test keeps it true. What is
not here is refused by name, never guessed. A new family is a row: [how to add one](adding-a-family.md). How
files are named and fetched: [model files](model-files.md)."""

# By what people call them, with the rows' own names.
KNOWN_AS: Mapping[str, str] = MappingProxyType(
    {
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
)

# What a row's facts mean. {} stands for the value.
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "norm": "LayerNorm with biases",
        "gated": "feed-forward without a gate",
        "learned_positions": "learned positions",
        "windows": "windows (if the file has them) {}",
        "soft_caps": "soft caps",
        "scaled_embedding": "scaled embedding",
        "multipliers": "multipliers",
        "norm_offset": "norms stored less {:g}",
        "transposed": "transposed matrices",
        "fused_qkv": "q, k, v {}",
        "fused_gate_up": "gate and up in one",
        "parallel": "parallel branches",
        "partial_rope": "partial rope",
        "rope_dims": "rope on {:g} of a head",
        "local_theta": "a second rope in windows",
        "unturned_every": "each {}th layer without rope",
        "temperature": "queries scaled by position",
        "context_is_scaled": "",
        "sinks": "attention sinks",
        "tied": "output is the embedding",
        "activation": "{}",
    }
)
_WINDOWS: Mapping[str, str] = MappingProxyType(
    {
        "all": "in all layers",
        "even": "in every even layer",
        "periodic": "in all but every n-th layer",
        "late": "from `max_window_layers` on",
        "unturned": "in layers without rope",
        "listed": "in the layers that the file lists",
    }
)
# They say how files are read, not what the model is.
_SILENT = frozenset(
    ("name", "arch", "tensors", "config_keys", "biases", "positions_skipped", "interleaved_in", "mixture")
)
_SILENT |= {
    "qk_norm",
    "window_period",
    "wide_scalar_layers",
    "rope_kinds",
    "config_defaults",
    "gguf_defaults",
}

_SIZES: Mapping[str, object] = MappingProxyType(
    {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "vocab_size": 96}
)
# Of each scaling: settings that it needs, and what it is.
_SCALINGS: Mapping[str, tuple[Mapping[str, object], str]] = MappingProxyType(
    {
        "default": ({}, "none"),
        "linear": ({"factor": 4.0}, "all frequencies divided by a factor"),
        "dynamic": ({"factor": 4.0}, "a larger base, chosen by the configured context, not by the text"),
        "llama3": (
            {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            | {"original_max_position_embeddings": 32},
            "low frequencies divided, high ones kept; in GGUF the tensor `rope_freqs`",
        ),
        "yarn": ({"factor": 4.0, "original_max_position_embeddings": 32}, "interpolated by frequency"),
        "longrope": (
            {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 32},
            "a factor for each frequency: short or long ones, by the configured context",
        ),
    }
)


def page() -> str:
    """The whole page."""
    parts = [HEAD, *_families(), *_kinds(), *_methods(), *_ropes(), *_tokenizers()]
    return "\n".join(parts) + "\n"


def _families() -> Iterator[str]:
    yield "\n## Families\n"
    yield (
        "Each is tested against transformers on a tiny random model: logits within 1e-4 in float32, whole\n"
        "prompts, prompts in chunks and token by token, with the native kernels and with "
        "their specification.\n"
    )
    yield from _table(
        ["known as", "config.json `model_type`", "GGUF architecture", "variations"],
        [
            [
                known_as(row),
                f"`{row.name}`",
                f"`{row.arch or row.name}`",
                ", ".join(variations(row)) or "none",
            ]
            for row in FAMILIES.values()
        ],
    )


def known_as(row: Family) -> str:
    """What people call the models of a row; its own name where nothing better is known."""
    return KNOWN_AS.get(row.name, row.name)


def variations(row: Family) -> list[str]:
    """What sets a row apart from a plain Llama, in words."""
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


def _kinds() -> Iterator[str]:
    yield "\n## Kinds of tensors\n"
    yield (
        "With `--weights auto` every kind stays what it is, and nothing is lost; `f32`, "
        "`bf16`, `int8` (Q8_0)\n"
        "and `q4` (Q4_1, with Q8_0 for embeddings and the output) make another of it. "
        "De-quantising is tested\n"
        "against the `gguf` package, products against their specification, bit for bit, "
        "on every instruction\n"
        "set. Safetensors hold F32, F16 and BF16.\n"
    )
    inputs = 256
    yield from _table(
        ["kind", "weights in a block", "bits a weight in the file", "bits a weight in memory"],
        [
            [
                f"`{kind}`",
                str(block.size),
                f"{bits_of(kind):g}",
                f"{8 * panel_bytes(kind, (PANEL_WIDTH, inputs)) / (PANEL_WIDTH * inputs):g}",
            ]
            for kind, block in BLOCKS.items()
        ],
    )


def _methods() -> Iterator[str]:
    yield "\n## Quantised safetensors\n"
    yield (
        f"`quant_method` in config.json: {', '.join(f'`{method}`' for method in METHODS)}\n"
        "([files](files.md)). Tested against the packages that pack them, and against "
        "transformers on what the\n"
        "weights mean.\n"
    )
    rows = [[outcome.layout, f"`{outcome.kind}`", outcome.loss] for outcome in OUTCOMES.values()]
    yield from _table(["in the file", "read as", "lost"], rows)


def _ropes() -> Iterator[str]:
    yield "\n## Rotary positions\n"
    yield (
        "All are fixed by the configured context: a token's K does not depend on what "
        "comes after it. Tested\n"
        "against transformers.\n"
    )
    rows = [[f"`{kind}`", words] for kind, (_, words) in _SCALINGS.items() if is_scaling_known(kind)]
    yield from _table(["`rope_type`", "what it does"], rows)


def is_scaling_known(kind: str) -> bool:
    """Whether config.json's parser takes a scaling of that name; asked of the parser itself."""
    settings, _ = _SCALINGS[kind]
    rope = {"rope_type": kind, "rope_theta": 10000.0, **settings}
    try:
        describe_config(Fields("config.json", {**_SIZES, "rope_parameters": rope}))
    except ModelError:
        return False
    return True


def _tokenizers() -> Iterator[str]:
    yield "\n## Tokenizers\n"
    yield (
        "`tokenizer.json`, SentencePiece (BPE and unigram, byte fallback), tiktoken's ranks, `vocab.json`\n"
        "with `merges.txt`, and what GGUF holds of them; tested against transformers and "
        "the `sentencepiece`\n"
        "package. Byte-level vocabularies of a GGUF file are cut as `tokenizer.ggml.pre` "
        "says, of which these\n"
        "are known:\n"
    )
    yield ", ".join(f"`{name}`" for name in sorted(PRE_TOKENIZERS)) + "."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join(['---'] * len(head))} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
