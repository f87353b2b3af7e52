"""Rotary positions: tables of cos and sin from a model's settings and the configured context.

    inverse frequencies (dims / 2,)  ->  angles = position * frequency  ->  cos, sin

A scaling changes the frequencies. None depends on a request: scalings that usually depend on the length of
the text ("dynamic", "longrope") depend here on the engine's configured context, so a token's K is independent
of the tokens after it.

Sources: Su et al. 2021 (RoFormer); Chen et al. 2023 (linear); Peng et al. 2023 (YaRN); Ding et al. 2024
(LongRoPE); the Llama 3.1 model card ("llama3").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from octavo.kernels.contract import Floats


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The first `dims` elements of each head are rotated in halves, i with i + dims/2.

    scaling     its parameters besides theta and dims
    none
    linear      factor: all frequencies are divided by it
    dynamic     factor, original_context: theta grows once the context is longer than the original one
    llama3      factor, low_freq_factor, high_freq_factor, original_context
    yarn        factor, original_context, beta_fast, beta_slow, truncate
    factors     factors, (dims / 2,): each divides its frequency (GGUF's rope_freqs tensor)
    longrope    factors, long_factors: the latter when the context is longer than original_context
    """

    theta: float
    dims: int
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None
    attention_factor: float = 1.0  # times cos and sin

    def inverse_frequencies(self, context_length: int) -> Floats:
        """(dims / 2,) in float32, computed in float32 as the models were trained."""
        fixed = self.fixed(context_length)
        inverse = _powers(fixed.theta, self.dims)
        match fixed.scaling:
            case "none":
                return inverse
            case "linear":
                return (inverse / np.float32(self.factor)).astype(np.float32)
            case "llama3":
                return self._llama3(inverse)
            case "yarn":
                return self._yarn(inverse)
            case "factors":
                return (inverse / np.asarray(fixed.factors, np.float32)).astype(np.float32)
        raise ValueError(f"unknown rope scaling {self.scaling!r}")

    def fixed(self, context_length: int) -> RopeSpec:
        """An equivalent for that context: the same tables, by a scaling independent of the context."""
        if self.scaling == "dynamic":
            stretch = self.factor * max(context_length, self.original_context) / self.original_context
            theta = self.theta * (stretch - (self.factor - 1)) ** (self.dims / (self.dims - 2))
            return RopeSpec(theta, self.dims, attention_factor=self.attention_factor)
        if self.scaling == "longrope":
            factors = self.long_factors if context_length > self.original_context else self.factors
            return RopeSpec(
                self.theta, self.dims, "factors", factors=factors, attention_factor=self.attention_factor
            )
        return self

    def table(self, context_length: int) -> RopeTable:
        """The tables for positions 0 to context_length - 1."""
        inverse = self.inverse_frequencies(context_length)
        angles = np.arange(context_length, dtype=np.float32)[:, None] * inverse[None, :]
        factor = np.float32(self.attention_factor)
        # In place: at a million tokens each array takes half a GiB.
        cos: Floats = np.cos(angles)
        sin: Floats = np.sin(angles, out=angles)
        return RopeTable(np.multiply(cos, factor, out=cos), np.multiply(sin, factor, out=sin))

    def _llama3(self, inverse: Floats) -> Floats:
        wavelength = 2 * np.pi / inverse
        low = self.original_context / self.low_freq_factor
        high = self.original_context / self.high_freq_factor
        width = self.high_freq_factor - self.low_freq_factor or 1.0  # 0: no frequency is between
        smooth = (self.original_context / wavelength - self.low_freq_factor) / width
        blended = (1 - smooth) * inverse / self.factor + smooth * inverse
        scaled = np.where(wavelength > low, inverse / self.factor, inverse)
        between = (wavelength <= low) & (wavelength >= high)
        return np.where(between, blended, scaled).astype(np.float32)

    def _yarn(self, inverse: Floats) -> Floats:
        """Fast frequencies stay, slow ones are divided by the factor, and those between are blended."""
        low, high = self._yarn_dimension(self.beta_fast), self._yarn_dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dims - 1)
        width = high - low if high != low else 0.001
        ramp = np.clip((np.arange(self.dims // 2, dtype=np.float32) - low) / width, 0, 1)
        slowed = inverse / np.float32(self.factor)
        blended: Floats = (slowed * ramp + inverse * (1 - ramp)).astype(np.float32)
        return blended

    def _yarn_dimension(self, turns: float) -> float:
        """The dimension that makes so many full rotations within the original context."""
        return (
            self.dims * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(self.theta))
        )


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor of cos and sin, unless a file overrides it (section 3.4)."""
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


def longrope_attention_factor(factor: float, original_context: int) -> float:
    """LongRoPE's factor of cos and sin: `factor` is the longest context divided by the original one."""
    return 1.0 if factor <= 1.0 else math.sqrt(1.0 + math.log(factor) / math.log(original_context))


@dataclass(frozen=True, slots=True)
class Temperature:
    """Scales queries far from the beginning by 1 + beta * ln(1 + floor((position + first) / span)).

    Source: Nakanishi 2025; Llama 4 and Ministral 3 have it.
    """

    beta: float
    span: int
    first: int = 0

    def scales(self, context_length: int) -> Floats:
        """(context,) float32."""
        spans = np.floor((np.arange(context_length, dtype=np.float64) + self.first) / self.span)
        return (1.0 + self.beta * np.log1p(spans)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin, (context, dims / 2) each, float32."""

    cos: Floats
    sin: Floats

    def scaled(self, scales: Floats) -> RopeTable:
        """Row p times scales[p]: the rotation then scales as well."""
        return RopeTable(self.cos * scales[:, None], self.sin * scales[:, None])


def identity_table(context_length: int, dims: int) -> RopeTable:
    """The table that leaves `dims` elements of a head unchanged."""
    shape = (context_length, dims // 2)
    return RopeTable(np.ones(shape, np.float32), np.zeros(shape, np.float32))


def _powers(theta: float, dims: int) -> Floats:
    exponents = np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims)
    inverse: Floats = (np.float32(1.0) / np.power(np.float32(theta), exponents)).astype(np.float32)
    return inverse
