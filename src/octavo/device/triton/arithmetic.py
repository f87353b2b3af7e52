"""Functions of single elements that several kernels share. Each has one order of operations, written out."""

from __future__ import annotations

import triton.language as tl

from octavo.device.triton.launch import jit

ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")
_TANH_BY_SERIES = tl.constexpr(0.3)  # below it 1 - 2 / (exp(2x) + 1) would cancel
_TO_INTEGER = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: added to a double, it leaves no fraction bit
_LEAST_NORMAL_E4M3 = tl.constexpr(0x3C800000)  # the bits of 2^-6 in float32
_TWO_TO_120 = tl.constexpr(float(2**120))
_TWO_TO_23_AND_128 = tl.constexpr(float(2**23 + 128))
_REBIASED_E4M3 = tl.constexpr(120 << 3)  # exponents count from 127 in float32, from 7 in e4m3


@jit
def hyperbolic_tangent(x: tl.tensor) -> tl.tensor:
    """tanh of float32, to about two units in the last place."""
    magnitude = tl.abs(x)
    square = x * x
    series = square * (2.0 / 15 + square * (-17.0 / 315 + square * (62.0 / 2835)))
    near = x + x * (square * (-1.0 / 3 + series))
    far = 1.0 - 2.0 / (tl.exp(2.0 * magnitude) + 1.0)
    return tl.where(magnitude < _TANH_BY_SERIES, near, tl.where(x < 0, -far, far))


@jit
def capped(x: tl.tensor, cap: tl.tensor) -> tl.tensor:
    """cap * tanh(x / cap)."""
    return cap * hyperbolic_tangent(x / cap)


@jit
def activated(x: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """activation(x) of float32."""
    if ACTIVATION == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * (x * x * x))
        y = 0.5 * x * (1.0 + hyperbolic_tangent(inner))
    elif ACTIVATION == "relu":
        y = tl.where(x < 0, 0.0, x)
    else:
        tl.static_assert(ACTIVATION == "gelu")
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return y


@jit
def nearest_integer(x: tl.tensor) -> tl.tensor:
    """Round doubles below 2^51 in magnitude; ties to even."""
    return (x + _TO_INTEGER) - _TO_INTEGER


@jit
def exponential(x: tl.tensor) -> tl.tensor:
    """exp of doubles up to 0, op by op as `device/sampler.py` has it; 0 below -110."""
    inside = tl.maximum(x, -110.0)
    turns = nearest_integer(inside * 1.4426950408889634)
    rest = (inside - turns * 0.6931471803691238) - turns * 1.9082149292705877e-10
    value = rest * 0.0 + 1.0 / 6227020800
    value = value * rest + 1.0 / 479001600
    value = value * rest + 1.0 / 39916800
    value = value * rest + 1.0 / 3628800
    value = value * rest + 1.0 / 362880
    value = value * rest + 1.0 / 40320
    value = value * rest + 1.0 / 5040
    value = value * rest + 1.0 / 720
    value = value * rest + 1.0 / 120
    value = value * rest + 1.0 / 24
    value = value * rest + 1.0 / 6
    value = value * rest + 0.5
    value = value * rest + 1.0
    value = value * rest + 1.0
    power = ((turns.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)
    return tl.where(x < -110.0, 0.0, value * power)


@jit
def double_at(at: tl.tensor) -> tl.tensor:
    """The double whose halves lie there as two int32, the low one first."""
    low, high = tl.load(at).to(tl.int64) & 0xFFFFFFFF, tl.load(at + 1).to(tl.int64)
    return ((high << 32) | low).to(tl.float64, bitcast=True)


@jit
def e4m3_code(x: tl.tensor) -> tl.tensor:
    """The nearest fp8 e4m3 as its byte, ties to even; |x| must round to at most 448.

    Spelled out because sm_80 has no instruction for it.
    """
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - _REBIASED_E4M3
    subnormal = nearest_integer(tl.abs(x).to(tl.float64) * 512.0).to(tl.uint32)
    code = tl.where(magnitude < _LEAST_NORMAL_E4M3, subnormal, normal)
    return (((bits >> 24) & 0x80) | code).to(tl.uint8)


@jit
def e4m3_values(words: tl.tensor) -> tl.tensor:
    """(M, 4 * W) float32, exactly, of int32 words (M, W) of four fp8 e4m3 each, the lowest byte first.

    A code's sign becomes a float's, and its other bits a float's lowest exponent and highest fraction bits:
    2^120 too small.
    """
    return _four_of(
        _e4m3_value(words << 24),
        _e4m3_value(words << 16),
        _e4m3_value(words << 8),
        _e4m3_value(words),
    )


@jit
def int8_values(words: tl.tensor) -> tl.tensor:
    """(M, 4 * W) float32, exactly, of int32 words (M, W) of four int8 each, the lowest byte first.

    Faster than conversions: a code + 128 becomes the low bits of a float from 2^23 on, whose unit is one.
    """
    words = words ^ -0x7F7F7F80  # 0x80808080
    return _four_of(
        _int8_value(words),
        _int8_value(words >> 8),
        _int8_value(words >> 16),
        _int8_value(words >> 24),
    )


@jit
def _e4m3_value(words: tl.tensor) -> tl.tensor:
    """float32 of the codes in the highest bytes."""
    return ((words >> 4) & -0x78100000).to(tl.float32, bitcast=True) * _TWO_TO_120  # 0x87F00000


@jit
def _int8_value(words: tl.tensor) -> tl.tensor:
    """float32 of the codes, each + 128, in the lowest bytes."""
    return ((words & 0xFF) | 0x4B000000).to(tl.float32, bitcast=True) - _TWO_TO_23_AND_128


@jit
def _four_of(first: tl.tensor, second: tl.tensor, third: tl.tensor, fourth: tl.tensor) -> tl.tensor:
    """(M, 4 * W) of four (M, W): of each in turn.

    Joined, so that one thread has all four of a word and stores them together. The maximum of one number is
    that number, but it stops the compiler's analysis: from a join alone it would infer operands of bytes,
    whose neighbours `mma.sync` reads in another order.
    """
    joined = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.max(joined.reshape(first.shape[0], 4 * first.shape[1], 1), 2)
