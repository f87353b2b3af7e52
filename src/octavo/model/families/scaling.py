"""How a file describes its rotary positions: config.json (both spellings) or GGUF metadata, to `RopeSpec`.

Scalings known: none, linear, llama3 (in GGUF as the tensor rope_freqs.weight). Any other is UnsupportedModel.
"""

from __future__ import annotations

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.model.families.sizes import CONTEXT_MAX
from octavo.model.rope import RopeSpec

THETA_DEFAULT = 10000.0
THETA_MAX = 1e12
FACTOR_MAX = 1e6


def rope_from_config(config: Fields, dims: int) -> RopeSpec:
    """From `rope_parameters` (newer files), or `rope_theta` and `rope_scaling` (older ones)."""
    scaling = (
        config.inner("rope_parameters") if config.has("rope_parameters") else config.inner("rope_scaling")
    )
    if config.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
        raise UnsupportedModel(
            f"{config.source}: partial_rotary_factor is not 1; allowed: heads rotated as a whole"
        )
    theta = config.number("rope_theta", 1.0, THETA_MAX, THETA_DEFAULT)
    theta = scaling.number("rope_theta", 1.0, THETA_MAX, theta)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        if any(isinstance(value, dict) for value in scaling.values.values()):
            raise UnsupportedModel(
                f"{scaling.source}: rope settings differ by kind of layer, which is not supported"
            )
        return RopeSpec(theta, dims)
    if kind == "linear":
        return RopeSpec(theta, dims, "linear", scaling.number("factor", 1.0, FACTOR_MAX))
    if kind == "llama3":
        low = scaling.number("low_freq_factor", 1e-3, FACTOR_MAX)
        return RopeSpec(
            theta,
            dims,
            "llama3",
            factor=scaling.number("factor", 1.0, FACTOR_MAX),
            low_freq_factor=low,
            high_freq_factor=scaling.number("high_freq_factor", low * 1.001, FACTOR_MAX),
            original_context=scaling.integer("original_max_position_embeddings", 1, CONTEXT_MAX),
        )
    raise UnsupportedModel(f"{scaling.source}: rope scaling {kind!r:.40}; allowed: default, linear, llama3")


def rope_from_gguf(metadata: Fields, arch: str, dims: int, factors: tuple[float, ...] | None) -> RopeSpec:
    """From the architecture's keys; `factors` are the values of rope_freqs.weight, when the file has it."""
    theta = metadata.number(f"{arch}.rope.freq_base", 1.0, THETA_MAX, THETA_DEFAULT)
    rotated = metadata.integer(f"{arch}.rope.dimension_count", 2, dims, dims)
    if rotated != dims:
        raise UnsupportedModel(
            f"{metadata.source}: {rotated} of {dims} elements of a head are rotated; allowed: all"
        )
    factor = metadata.number(f"{arch}.rope.scaling.factor", 1e-3, FACTOR_MAX, 1.0)
    # The oldest files wrote a linear factor under a key of its own.
    old = metadata.number(f"{arch}.rope.scale_linear", 1e-3, FACTOR_MAX, 1.0)
    kind = metadata.text(f"{arch}.rope.scaling.type", "linear" if old != 1.0 else "none")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(
            f"{metadata.source}: rope scaling {kind!r:.40}; allowed: none, linear, rope_freqs.weight"
        )
    if factors is not None:
        if kind == "linear":
            raise UnsupportedModel(f"{metadata.source}: both linear rope scaling and rope_freqs.weight")
        if len(factors) != dims // 2 or not all(0.0 < value <= FACTOR_MAX for value in factors):
            raise metadata.bad("rope_freqs.weight", f"{dims // 2} factors above 0")
        return RopeSpec(theta, dims, "factors", factors=factors)
    if kind == "linear":
        return RopeSpec(theta, dims, "linear", factor if factor != 1.0 else old)
    return RopeSpec(theta, dims)
