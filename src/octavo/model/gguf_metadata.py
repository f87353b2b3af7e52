"""A model's description as GGUF metadata: the keys that `families/gguf.py` and the tokenizers read back.

Values are rounded to float32 where the format has them so. What has no key here is not written, and whoever
writes must read back and compare: `convert_folder.py` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from octavo.errors import UnsupportedModel
from octavo.kernels.contract import Floats
from octavo.model.families import Description
from octavo.model.families.names import GGUF_KEYS
from octavo.model.gguf import STRING_BYTES_MAX
from octavo.model.gguf_writer import Pair, f32_pair, text_pair, u32_pair
from octavo.model.rope import RopeSpec
from octavo.text.model_templates import ModelTemplates
from octavo.text.tokenizer import Tokenizer

Value = int | float | str


@dataclass(frozen=True, slots=True)
class Metadata:
    """Keys with their values, as a reader would have them."""

    values: Mapping[str, Value]

    def pairs(self) -> list[Pair]:
        """As the file has them."""
        return [_pair(key, value) for key, value in self.values.items()]


def describe(description: Description, name: str) -> dict[str, Value]:
    """What a model is."""
    family, spec = description.family, description.spec
    arch = family.arch or family.name
    keys = {role: f"{arch}.{key}" for role, key in GGUF_KEYS.items()}
    suffix = "_rms" if spec.norm == "rms" else ""
    values: dict[str, Value] = {
        "general.architecture": arch,
        "general.name": name,
        keys["layers"]: spec.num_layers,
        keys["context"]: spec.context_length,
        keys["hidden"]: spec.hidden_size,
        keys["ffn"]: spec.ffn_size,
        keys["heads"]: spec.num_heads,
        keys["kv_heads"]: spec.num_kv_heads,
        keys["head_size"]: spec.head_size,
        f"{arch}.attention.value_length": spec.head_size,
        f"{arch}.vocab_size": spec.vocab_size,
        f"{arch}.attention.layer_norm{suffix}_epsilon": _rounded(spec.norm_eps),
    }
    windows = {window for window in spec.windows if window is not None}
    if windows or family.windows != "none":
        values[keys["window"]] = min(windows, default=spec.context_length)
    caps = {"attn": spec.attention_soft_cap, "final": spec.logit_soft_cap}
    values |= {
        f"{arch}.{which}_logit_softcapping": _rounded(cap) for which, cap in caps.items() if cap is not None
    }
    rope = next((rope for rope in spec.ropes if rope is not None), None)
    return values if rope is None else values | _of_rope(arch, rope)


def factors_of(rope: RopeSpec | None, context_length: int) -> Floats | None:
    """By what each frequency is divided, where the format has no key for how it came to be."""
    if rope is None or rope.scaling not in ("llama3", "factors"):
        return None
    plain = RopeSpec(rope.theta, rope.dims).inverse_frequencies(context_length)
    return (plain / rope.inverse_frequencies(context_length)).astype(np.float32)


def describe_tokenizer(
    tokenizer: Tokenizer, templates: ModelTemplates, stop_ids: Collection[int]
) -> dict[str, Value]:
    """The tokenizer whole, as its library has it, with the special tokens that a folder names beside it.

    Raises UnsupportedModel where it is longer than a string may be. Of more `stop_ids` than there are keys
    for, some are left out.
    """
    text = tokenizer.to_json()
    if len(text.encode()) > STRING_BYTES_MAX:
        raise UnsupportedModel(
            f"the tokenizer takes {len(text):,} characters in one string; allowed: {STRING_BYTES_MAX:,} bytes"
        )
    values: dict[str, Value] = {"tokenizer.huggingface.json": text}
    ids = dict(_special_ids(tokenizer, stop_ids))
    values |= {f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()}
    found = {"tokenizer.chat_template": templates.default}
    found["tokenizer.chat_template.tool_use"] = templates.with_tools
    return values | {key: text for key, text in found.items() if text is not None}


def _special_ids(tokenizer: Tokenizer, stop_ids: Collection[int]) -> Iterator[tuple[str, int]]:
    """By GGUF's names: beside eos, two more tokens may end a turn or a message."""
    named = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    yield from ((name, token) for name, token in named.items() if token is not None)
    yield from zip(("eot", "eom"), sorted(set(stop_ids) - {tokenizer.eos_id}), strict=False)


def _of_rope(arch: str, rope: RopeSpec) -> dict[str, Value]:
    values: dict[str, Value] = {
        f"{arch}.rope.freq_base": _rounded(rope.theta),
        f"{arch}.rope.dimension_count": rope.dims,
    }
    if rope.scaling in ("none", "llama3", "factors"):
        return values
    values[f"{arch}.rope.scaling.type"] = rope.scaling
    values[f"{arch}.rope.scaling.factor"] = _rounded(rope.factor)
    if rope.scaling == "yarn":
        values[f"{arch}.rope.scaling.original_context_length"] = rope.original_context
        values[f"{arch}.rope.scaling.yarn_beta_fast"] = _rounded(rope.beta_fast)
        values[f"{arch}.rope.scaling.yarn_beta_slow"] = _rounded(rope.beta_slow)
    return values


def _rounded(value: float) -> float:
    return float(np.float32(value))


def _pair(key: str, value: Value) -> Pair:
    if isinstance(value, str):
        return text_pair(key, value)
    return f32_pair(key, value) if isinstance(value, float) else u32_pair(key, value)
