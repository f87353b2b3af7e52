"""Gumbel noise within a kernel, with the bits of `device/sampler.py`, the version in torch.

Four tokens share a counter of Philox 4x32 with ten rounds (Salmon et al. 2011); the key is the seed, the
counter (token / 4, position, choice, 0); the noise is -log(-log(u)), u of 24 bits, in float64 and op by op.
"""

from __future__ import annotations

import triton.language as tl

from octavo.device.triton.launch import jit

_FIRST_FACTOR, _SECOND_FACTOR = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
_FIRST_STEP, _SECOND_STEP = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)


@jit
def noise_words(
    counter: tl.tensor, position: tl.tensor, choice: tl.tensor, seed_low: tl.tensor, seed_high: tl.tensor
) -> tl.tensor:
    """Four words of 32 bits for each counter (N,), of tokens 4 * counter and the next three. Of the others,
    integers, the low 32 bits count."""
    word_0, word_3 = counter.to(tl.uint32), tl.zeros(counter.shape, tl.uint32)
    word_1, word_2 = word_3 + position.to(tl.uint32), word_3 + choice.to(tl.uint32)
    key_0, key_1 = seed_low.to(tl.uint32), seed_high.to(tl.uint32)
    for _ in tl.static_range(10):
        first = word_0.to(tl.uint64) * _FIRST_FACTOR
        second = word_2.to(tl.uint64) * _SECOND_FACTOR
        word_0 = (second >> 32).to(tl.uint32) ^ word_1 ^ key_0
        word_2 = (first >> 32).to(tl.uint32) ^ word_3 ^ key_1
        word_1 = second.to(tl.uint32)
        word_3 = first.to(tl.uint32)
        key_0 = (key_0.to(tl.uint64) + _FIRST_STEP).to(tl.uint32)
        key_1 = (key_1.to(tl.uint64) + _SECOND_STEP).to(tl.uint32)
    return word_0, word_1, word_2, word_3


@jit
def noise_of(bits: tl.tensor) -> tl.tensor:
    """-log(-log(u)) as float32."""
    u = ((bits >> 8).to(tl.float64) + 0.5) * (1.0 / 16777216.0)
    return (-logarithm(-logarithm(u))).to(tl.float32)


@jit
def logarithm(x: tl.tensor) -> tl.tensor:
    """Logarithm of positive normal float64, op by op as in `device/sampler.py`."""
    bits = x.to(tl.int64, bitcast=True)
    e = ((bits >> 52) - 1023).to(tl.float64)
    m = ((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
    is_upper = m > 1.4142135623730951
    m = tl.where(is_upper, 0.5 * m, m)
    e = tl.where(is_upper, e + 1.0, e)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = tl.zeros_like(z) + (1.0 / 21)
    p = p * z + 1.0 / 19
    p = p * z + 1.0 / 17
    p = p * z + 1.0 / 15
    p = p * z + 1.0 / 13
    p = p * z + 1.0 / 11
    p = p * z + 1.0 / 9
    p = p * z + 1.0 / 7
    p = p * z + 1.0 / 5
    p = p * z + 1.0 / 3
    tail = 2.0 * s * z * p + e * 1.9082149292705877e-10
    return e * 0.69314718036912382 + (2.0 * s + tail)
