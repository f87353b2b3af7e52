"""A model's description as GGUF metadata: the keys that `families/gguf.py` and the tokenizers read back.

Values are rounded to float32 where the format has them so. What has no key here is not written, and whoever
writes must read back and compare: `convert_folder.py` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.errors import UnsupportedModel
from octavo.kernels.contract import Floats
from octavo.model.families import Description
from octavo.model.families.names import GGUF_KEYS
from octavo.model.files.gguf import STRING_BYTES_MAX
from octavo.model.files.gguf_writer import Pair, f32_pair, flag_pair, text_pair, u32_pair
from octavo.model.rope import RopeSpec
from octavo.text.model_templates import ModelTemplates
from octavo.text.tokenizer import Tokenizer

Value = bool | int | float | str


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
    if family.windows != "none":
        values[keys["window"]] = max((window or 0 for window in spec.windows), default=0)
    period = _period_of(spec.windows)
    if family.windows == "periodic" and period is not None and period != family.window_period:
        values[f"{arch}.attention.sliding_window_pattern"] = period
    if family.soft_caps:
        values[f"{arch}.attn_logit_softcapping"] = _rounded(spec.attention_soft_cap or 0.0)
        values[f"{arch}.final_logit_softcapping"] = _rounded(spec.logit_soft_cap or 0.0)
    if family.multipliers:
        values[f"{arch}.attention.scale"] = _rounded(spec.attention_scale)
        values[f"{arch}.embedding_scale"] = _rounded(spec.embedding_scale)
        values[f"{arch}.residual_scale"] = _rounded(spec.residual_scale)
        values[f"{arch}.logit_scale"] = _rounded(1.0 / spec.logit_scale)
    if family.parallel:
        values[f"{arch}.use_parallel_residual"] = spec.parallel
    if spec.temperatures and spec.temperatures[0] is not None:
        values[f"{arch}.attention.temperature_scale"] = _rounded(spec.temperatures[0].beta)
    return values | _of_ropes(arch, description) | _of_experts(arch, description)


def factors_of(description: Description) -> dict[str, Floats]:
    """Tensors of what divides each frequency of rope, where the format has no key for how it came to be."""
    rope, context = _main_rope(description), description.spec.context_length
    if rope is not None and rope.scaling in ("llama3", "factors"):
        plain = RopeSpec(rope.theta, rope.dims).inverse_frequencies(context)
        return {"rope_freqs.weight": (plain / rope.inverse_frequencies(context)).astype(np.float32)}
    if rope is not None and rope.scaling == "longrope":
        named = {"rope_factors_short.weight": rope.factors, "rope_factors_long.weight": rope.long_factors}
        return {name: np.asarray(factors, np.float32) for name, factors in named.items()}
    return {}


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


def _of_experts(arch: str, description: Description) -> dict[str, Value]:
    spec, facts = description.spec, description.family.mixture
    if facts is None or spec.routing is None:
        return {}
    values: dict[str, Value] = {
        f"{arch}.expert_count": spec.num_experts,
        f"{arch}.expert_used_count": spec.routing.top_k,
        f"{arch}.expert_feed_forward_length": spec.expert_ffn_size,
        f"{arch}.expert_weights_norm": spec.routing.normalised,
    }
    step = _period_of([None if mixed else 1 for mixed in description.mixed_layers])
    if facts.step_key and step is not None:
        values[f"{arch}.interleave_moe_layer_step"] = step
    return values


def _period_of(windows: Sequence[int | None]) -> int | None:
    """Which layers have no window: each so many-th; None: another pattern."""
    marks = [window is not None for window in windows]
    periods = range(1, len(marks) + 1)
    return next((p for p in periods if marks == [(i + 1) % p != 0 for i in range(len(marks))]), None)


def _main_rope(description: Description) -> RopeSpec | None:
    """That of the layers without a window, or of all."""
    spec = description.spec
    by_window = sorted(range(spec.num_layers), key=lambda layer: spec.window(layer) is not None)
    return next((rope for layer in by_window if (rope := spec.rope(layer)) is not None), None)


def _of_ropes(arch: str, description: Description) -> dict[str, Value]:
    rope, spec = _main_rope(description), description.spec
    if rope is None:
        return {}
    values: dict[str, Value] = {
        f"{arch}.rope.freq_base": _rounded(rope.theta),
        f"{arch}.rope.dimension_count": rope.dims,
    }
    near = [spec.rope(layer) for layer in range(spec.num_layers) if spec.window(layer) is not None]
    if description.family.local_theta is not None and near and near[0] is not None:
        values[f"{arch}.rope.freq_base_swa"] = _rounded(near[0].theta)
    scaling = f"{arch}.rope.scaling"
    if spec.temperatures or rope.scaling in ("yarn", "longrope"):
        values[f"{scaling}.original_context_length"] = rope.original_context
    if rope.scaling in ("none", "llama3", "factors"):
        return values
    values[f"{scaling}.type"] = rope.scaling
    if rope.scaling != "longrope":
        values[f"{scaling}.factor"] = _rounded(rope.factor)
    if rope.scaling == "yarn":
        values[f"{scaling}.yarn_beta_fast"] = _rounded(rope.beta_fast)
        values[f"{scaling}.yarn_beta_slow"] = _rounded(rope.beta_slow)
        values[f"{scaling}.yarn_attn_factor"] = _rounded(rope.attention_factor)
    elif rope.attention_factor != 1.0:
        values[f"{scaling}.attn_factor"] = _rounded(rope.attention_factor)
    return values


def _rounded(value: float) -> float:
    return float(np.float32(value))


def _pair(key: str, value: Value) -> Pair:
    if isinstance(value, str):
        return text_pair(key, value)
    if isinstance(value, bool):
        return flag_pair(key, value)
    return f32_pair(key, value) if isinstance(value, float) else u32_pair(key, value)
