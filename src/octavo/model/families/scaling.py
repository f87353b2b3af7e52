"""The rope settings of each layer: from config.json in both spellings, or GGUF metadata.

    config.json     rope_parameters, one for all layers or one for each kind; or rope_theta and rope_scaling
    GGUF            ARCH.rope.*, and tensors of factors that divide the frequencies

Every setting of a rope must be known: an unknown key may change the answer, so it is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.families.layers import FULL, WINDOWED, Marks
from octavo.model.families.row import Family
from octavo.model.families.sizes import CONTEXT_MAX
from octavo.model.rope import (
    RopeSpec,
    Temperature,
    longrope_attention_factor,
    yarn_attention_factor,
)

THETA_DEFAULT = 10000.0
THETA_MAX = 1e12
FACTOR_MAX = 1e6
FACTOR_MIN = 1e-6
ATTENTION_FACTOR_MAX = 1e3

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_KEYS = frozenset(
    (
        *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "attention_factor"),
        *("original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        *("truncate", "short_factor", "long_factor", "low_freq_factor", "high_freq_factor"),
        # They repeat other settings, or describe the training.
        *("max_position_embeddings", "finetuned"),
    )
)
_TEMPERATURE_KEY = "llama_4_scaling_beta"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """One rope and one temperature a layer, () if no layer has one, and the longest context to which the
    settings scale positions."""

    ropes: tuple[RopeSpec | None, ...]
    temperatures: tuple[Temperature | None, ...]
    longest_context: int


@dataclass(frozen=True, slots=True)
class RopeTensors:
    """The values of a GGUF file's tensors rope_freqs, rope_factors_short and rope_factors_long."""

    factors: tuple[float, ...] | None = None
    short: tuple[float, ...] | None = None
    long: tuple[float, ...] | None = None


def rope_scaling_of_config(
    family: Family, config: Fields, head_size: int, has_rope: Marks, windowed: Marks, context: int
) -> RopeScaling:
    """From config.json. `has_rope` and `windowed` have one mark a layer; `context` is the file's own.

    Raises BadModelFile (an absurd number) or UnsupportedModel (an unknown scaling or setting).
    """
    if family.learned_positions:
        return RopeScaling((), (), context)
    given = config.inner("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    by_kind = any(isinstance(value, dict) for value in given.values.values())
    if by_kind and family.local_theta is None:
        raise UnsupportedModel(
            f"{given.source}: rope settings differ by kind of layer; in family {family.name} all are alike"
        )
    settings = given.inner(FULL) if by_kind else given
    theta = _theta(config, settings)
    rope = local = _rope_of_config(family, config, settings, theta, head_size, context)
    if by_kind:
        of_local = given.inner(WINDOWED)
        theta = of_local.number("rope_theta", 1.0, THETA_MAX, family.local_theta or theta)
        local = _rope_of_config(family, config, of_local, theta, head_size, context)
    elif family.local_theta is not None:
        theta = config.number("rope_local_base_freq", 1.0, THETA_MAX, family.local_theta or theta)
        local = RopeSpec(theta, rope.dims)
    temperature = _temperature_of_config(family, settings, context)
    return _rope_scaling(family, rope, local, temperature, has_rope, windowed, context)


def rope_scaling_of_gguf(
    family: Family,
    metadata: Fields,
    arch: str,
    head_size: int,
    has_rope: Marks,
    windowed: Marks,
    context: int,
    tensors: RopeTensors,
) -> RopeScaling:
    """The scaling from the architecture's keys and the tensors of factors."""
    if family.learned_positions:
        return RopeScaling((), (), context)
    rope = local = _rope_of_gguf(family, metadata, arch, head_size, context, tensors)
    if family.local_theta is not None:
        key = f"{arch}.rope.freq_base_swa"
        theta = metadata.number(key, 1.0, THETA_MAX, family.local_theta or rope.theta)
        local = RopeSpec(theta, rope.dims)
    temperature = None
    if family.temperature:
        beta = metadata.number(f"{arch}.attention.temperature_scale", 0.0, FACTOR_MAX, 0.0)
        temperature = Temperature(beta, rope.original_context) if beta else None
    return _rope_scaling(family, rope, local, temperature, has_rope, windowed, context)


def _rope_scaling(
    family: Family,
    rope: RopeSpec,
    local: RopeSpec,
    temperature: Temperature | None,
    has_rope: Marks,
    windowed: Marks,
    context: int,
) -> RopeScaling:
    ropes = [local if near else rope for near in windowed]
    return RopeScaling(
        tuple(one if mark else None for one, mark in zip(ropes, has_rope, strict=True)),
        () if temperature is None else (temperature,) * len(has_rope),
        _longest_context(family, rope, context),
    )


def _longest_context(family: Family, rope: RopeSpec, context: int) -> int:
    """The longest scaled context, if the file's context is the one before scaling."""
    scaled = context
    if rope.scaling in ("linear", "dynamic") and not family.context_is_scaled:
        scaled = int(context * rope.factor)
    elif rope.scaling == "yarn":
        scaled = int(rope.original_context * rope.factor)
    return min(max(context, scaled), CONTEXT_MAX)


def _theta(config: Fields, settings: Fields) -> float:
    """The base; GPT-NeoX has an older key for it."""
    base = config.number("rotary_emb_base", 1.0, THETA_MAX, THETA_DEFAULT)
    return settings.number("rope_theta", 1.0, THETA_MAX, config.number("rope_theta", 1.0, THETA_MAX, base))


def _rope_of_config(
    family: Family, config: Fields, settings: Fields, theta: float, head_size: int, context: int
) -> RopeSpec:
    _require_known(family, settings)
    given = settings.text("rope_type", settings.text("type", "default"))
    kind = family.rope_kinds.get(given, "longrope" if given == "su" else given)
    if kind not in KINDS:
        raise UnsupportedModel(f"{settings.source}: rope scaling {kind!r:.40}; allowed: {', '.join(KINDS)}")
    dims = _dims_of_config(family, config, settings, head_size)
    plain = RopeSpec(theta, dims, truncate=not family.fractional_yarn)
    # The training context; files of some families have it outside the rope's settings.
    original = settings.integer("original_max_position_embeddings", 1, CONTEXT_MAX, context)
    original = config.integer("original_max_position_embeddings", 1, CONTEXT_MAX, original)
    match kind:
        case "linear":
            return replace(plain, scaling=kind, factor=settings.number("factor", 1.0, FACTOR_MAX))
        case "dynamic":
            if plain.dims < 4:
                raise UnsupportedModel(
                    f"{settings.source}: rope scaling dynamic of {plain.dims} elements; allowed: 4 or more"
                )
            factor = settings.number("factor", 1.0, FACTOR_MAX)
            return replace(plain, scaling=kind, factor=factor, original_context=context)
        case "llama3":
            return _llama3(plain, settings, original)
        case "yarn":
            return _yarn(plain, settings, original, context)
        case "longrope":
            return _longrope(plain, settings, original, context)
    return plain


def _require_known(family: Family, settings: Fields) -> None:
    known = _KEYS | {_TEMPERATURE_KEY} if family.temperature else _KEYS
    unknown = [key for key in settings.values if key not in known and settings.has(key)]
    if unknown:
        raise UnsupportedModel(
            f"{settings.source}: {', '.join(unknown[:3])!s:.80} is not understood in family {family.name};"
            f" allowed: {', '.join(sorted(known))}"
        )


def _dims_of_config(family: Family, config: Fields, settings: Fields, head_size: int) -> int:
    """The number of rotated elements of a head."""
    part = config.number("rotary_pct", 0.0, 1.0, family.rope_dims)
    part = settings.number(
        "partial_rotary_factor", 0.0, 1.0, config.number("partial_rotary_factor", 0.0, 1.0, part)
    )
    if part != 1.0 and not family.partial_rope:
        raise UnsupportedModel(
            f"{config.source}: partial_rotary_factor is {part:g}; family {family.name} rotates whole heads"
        )
    return _sound_dims(config, int(head_size * part), head_size)


def _sound_dims(fields: Fields, dims: int, head_size: int) -> int:
    if dims < 2 or dims % 2:
        raise UnsupportedModel(
            f"{fields.source}: {dims} of {head_size} elements of a head are rotated; allowed: an even number"
        )
    return dims


def _llama3(plain: RopeSpec, settings: Fields, original: int) -> RopeSpec:
    low = settings.number("low_freq_factor", 1e-3, FACTOR_MAX)
    return replace(
        plain,
        scaling="llama3",
        factor=settings.number("factor", 1.0, FACTOR_MAX),
        low_freq_factor=low,
        high_freq_factor=settings.number("high_freq_factor", low, FACTOR_MAX),
        original_context=original,
    )


def _yarn(plain: RopeSpec, settings: Fields, original: int, context: int) -> RopeSpec:
    factor = settings.number("factor", 1.0, FACTOR_MAX, max(1.0, context / original))
    numerator = settings.number("mscale", 0.0, FACTOR_MAX, 0.0)
    denominator = settings.number("mscale_all_dim", 0.0, FACTOR_MAX, 0.0)
    usual = yarn_attention_factor(factor)
    if numerator and denominator:
        usual = yarn_attention_factor(factor, numerator) / yarn_attention_factor(factor, denominator)
    return replace(
        _require_scalable(plain, settings, "yarn"),
        scaling="yarn",
        factor=factor,
        original_context=original,
        # 0 means as published
        beta_fast=settings.number("beta_fast", 0.0, FACTOR_MAX, 0.0) or plain.beta_fast,
        beta_slow=settings.number("beta_slow", 0.0, FACTOR_MAX, 0.0) or plain.beta_slow,
        truncate=settings.flag("truncate", plain.truncate),
        attention_factor=settings.number("attention_factor", FACTOR_MIN, ATTENTION_FACTOR_MAX, usual),
    )


def _require_scalable(plain: RopeSpec, fields: Fields, kind: str) -> RopeSpec:
    """YaRN computes the dimension of a given frequency: with a base of 1 all frequencies are equal."""
    if plain.theta <= 1.0:
        raise UnsupportedModel(f"{fields.source}: rope scaling {kind} with rope_theta 1; allowed: above 1")
    return plain


def _longrope(plain: RopeSpec, settings: Fields, original: int, context: int) -> RopeSpec:
    pairs = plain.dims // 2
    ratio = settings.number("factor", FACTOR_MIN, FACTOR_MAX, context / original)
    usual = _longrope_attention(settings, ratio, original)
    return replace(
        plain,
        scaling="longrope",
        original_context=original,
        factors=settings.numbers("short_factor", pairs, FACTOR_MIN, FACTOR_MAX),
        long_factors=settings.numbers("long_factor", pairs, FACTOR_MIN, FACTOR_MAX),
        attention_factor=settings.number("attention_factor", FACTOR_MIN, ATTENTION_FACTOR_MAX, usual),
    )


def _longrope_attention(settings: Fields, ratio: float, original: int) -> float:
    if ratio > 1.0 and original < 2:
        raise settings.bad("original_max_position_embeddings", "2 or more")
    return longrope_attention_factor(ratio, original)


def _temperature_of_config(family: Family, settings: Fields, context: int) -> Temperature | None:
    if not family.temperature or not settings.has(_TEMPERATURE_KEY):
        return None
    beta = settings.number(_TEMPERATURE_KEY, 0.0, FACTOR_MAX)
    return Temperature(beta, settings.integer("original_max_position_embeddings", 1, CONTEXT_MAX, context))


def _rope_of_gguf(
    family: Family, metadata: Fields, arch: str, head_size: int, context: int, tensors: RopeTensors
) -> RopeSpec:
    theta = metadata.number(f"{arch}.rope.freq_base", 1.0, THETA_MAX, THETA_DEFAULT)
    usual = int(head_size * family.rope_dims)
    dims = metadata.integer(f"{arch}.rope.dimension_count", 1, head_size, usual)
    if dims != head_size and not family.partial_rope:
        raise UnsupportedModel(
            f"{metadata.source}: {dims} of {head_size} elements of a head are rotated; allowed: all"
        )
    scaling = f"{arch}.rope.scaling"
    original = metadata.integer(f"{scaling}.original_context_length", 1, CONTEXT_MAX, context)
    attention_factor = metadata.number(f"{scaling}.attn_factor", FACTOR_MIN, ATTENTION_FACTOR_MAX, 1.0)
    plain = RopeSpec(
        theta,
        _sound_dims(metadata, dims, head_size),
        original_context=original,
        truncate=not family.fractional_yarn,
        attention_factor=attention_factor,
    )
    # The oldest files wrote a linear factor under a key of its own.
    old = metadata.number(f"{arch}.rope.scale_linear", FACTOR_MIN, FACTOR_MAX, 1.0)
    factor = metadata.number(f"{scaling}.factor", FACTOR_MIN, FACTOR_MAX, old)
    kind = metadata.text(f"{scaling}.type", "linear" if old != 1.0 else "none")
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedModel(
            f"{metadata.source}: rope scaling {kind!r:.40}; allowed: none, linear, yarn, longrope"
        )
    if tensors != RopeTensors():
        return _rope_of_tensors(metadata, plain, kind, tensors)
    if kind == "longrope":
        raise UnsupportedModel(f"{metadata.source}: rope scaling longrope without rope_factors_*.weight")
    if kind == "yarn":
        return _yarn_of_gguf(family, metadata, scaling, plain, factor)
    return replace(plain, scaling="linear", factor=factor) if kind == "linear" and factor != 1.0 else plain


def _rope_of_tensors(metadata: Fields, plain: RopeSpec, kind: str, tensors: RopeTensors) -> RopeSpec:
    if kind in ("linear", "yarn"):
        raise UnsupportedModel(f"{metadata.source}: both {kind} rope scaling and a tensor of rope's factors")
    if tensors.short is None and tensors.long is None:
        factors = _sound_factors(metadata, "rope_freqs.weight", tensors.factors, plain.dims)
        return replace(plain, scaling="factors", factors=factors)
    if tensors.factors is not None:
        raise UnsupportedModel(f"{metadata.source}: both rope_freqs.weight and rope_factors_*.weight")
    return replace(
        plain,
        scaling="longrope",
        factors=_sound_factors(metadata, "rope_factors_short.weight", tensors.short, plain.dims),
        long_factors=_sound_factors(metadata, "rope_factors_long.weight", tensors.long, plain.dims),
    )


def _sound_factors(
    metadata: Fields, name: str, factors: Sequence[float] | None, dims: int
) -> tuple[float, ...]:
    if (
        factors is None
        or len(factors) != dims // 2
        or not all(0.0 < value <= FACTOR_MAX for value in factors)
    ):
        raise metadata.bad(name, f"{dims // 2} factors above 0")
    return tuple(factors)


def _yarn_of_gguf(family: Family, metadata: Fields, scaling: str, plain: RopeSpec, factor: float) -> RopeSpec:
    key = f"{scaling}.yarn_ext_factor"
    if metadata.has(key) and metadata.number(key, -1.0, FACTOR_MAX) not in (-1.0, 1.0):
        raise UnsupportedModel(f"{metadata.source}: {key} is {metadata.values[key]}; allowed: 1")
    usual = _yarn_attention_of_gguf(family, metadata, scaling, plain, factor)
    return replace(
        _require_scalable(plain, metadata, "yarn"),
        scaling="yarn",
        factor=factor,
        beta_fast=metadata.number(f"{scaling}.yarn_beta_fast", FACTOR_MIN, FACTOR_MAX, plain.beta_fast),
        beta_slow=metadata.number(f"{scaling}.yarn_beta_slow", FACTOR_MIN, FACTOR_MAX, plain.beta_slow),
        attention_factor=usual,
    )


def _yarn_attention_of_gguf(
    family: Family, metadata: Fields, scaling: str, plain: RopeSpec, factor: float
) -> float:
    """The factor of cos and sin; `plain` has the file's attn_factor.

    Converters write config.json's attention_factor under yarn_attn_factor. OLMo's older one wrote it under
    attn_factor, and its newer ones under yarn_attn_factor as well.
    """
    whole = f"{scaling}.yarn_attn_factor"
    if family.whole_attention_factor and metadata.has(f"{scaling}.attn_factor"):
        return metadata.number(whole, FACTOR_MIN, ATTENTION_FACTOR_MAX, plain.attention_factor)
    usual = yarn_attention_factor(factor)
    log_multiplier = metadata.number(f"{scaling}.yarn_log_multiplier", 0.0, FACTOR_MAX, 0.0)
    if log_multiplier:
        usual /= yarn_attention_factor(factor, log_multiplier)
    usual = metadata.number(whole, FACTOR_MIN, ATTENTION_FACTOR_MAX, usual)
    return usual * plain.attention_factor
