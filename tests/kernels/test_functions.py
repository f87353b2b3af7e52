"""Promises about our own exp, tanh and activations: accurate, and blind to the neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo import _native
from octavo.kernels.contract import Floats, Ops


def _map(function: str, x: Floats) -> Floats:
    out = np.empty_like(x)
    _native.map(function, x, out)
    return out


def _ulps(given: Floats, exact: np.ndarray) -> float:
    rounded = exact.astype(np.float32)
    spacing = np.spacing(np.maximum(np.abs(rounded), np.float32(1e-45)))
    return float((np.abs(given.astype(np.float64) - exact) / spacing).max())


def test_exp_is_within_two_ulp() -> None:
    x = np.linspace(-103.5, 88.7, 2_000_003, dtype=np.float32)
    assert _ulps(_map("exp", x), np.exp(x.astype(np.float64))) <= 2.0


def test_exp_is_right_at_the_ends() -> None:
    x = np.array([0.0, -0.0, -np.inf, np.inf, np.nan, -104.0, -1e30, 89.0, 1e30], np.float32)
    np.testing.assert_array_equal(_map("exp", x), np.array([1, 1, 0, np.inf, np.nan, 0, 0, np.inf, np.inf]))


def test_tanh_is_within_four_ulp() -> None:
    x = np.concatenate([np.linspace(-12, 12, 1_000_003), np.geomspace(1e-30, 1, 1000)]).astype(np.float32)
    assert _ulps(_map("tanh", x), np.tanh(x.astype(np.float64))) <= 4.0
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(_map("tanh", ends), np.array([0, 0, 1, -1, np.nan], np.float32))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_activations_follow_their_formulas(ops: Ops, activation: str) -> None:
    x = np.linspace(-20, 20, 10_001, dtype=np.float32).reshape(1, -1)
    wide = x.astype(np.float64)
    expected = {
        "silu": wide / (1 + np.exp(-wide)),
        "gelu_tanh": 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))),
        "gelu": 0.5 * wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))),
    }[activation]
    np.testing.assert_allclose(ops.activate(x, activation), expected, atol=2e-6, rtol=2e-6)
    np.testing.assert_allclose(ops.gated(x, x, activation), expected * wide, atol=4e-5, rtol=4e-6)


def test_an_unknown_activation_is_refused(ops: Ops) -> None:
    with pytest.raises(ValueError, match="swish"):
        ops.activate(np.zeros((1, 4), np.float32), "swish")


@pytest.mark.parametrize("function", ["exp", "tanh", "silu", "gelu_tanh", "gelu"])
def test_an_element_is_the_same_at_every_place(function: str, rng: np.random.Generator) -> None:
    x = (rng.standard_normal(77) * 4).astype(np.float32)
    whole = _map(function, x)
    for i in range(x.size):
        assert _map(function, x[i : i + 1])[0] == whole[i]
