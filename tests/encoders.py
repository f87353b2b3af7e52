"""Float32 weights as blocks of the kinds that the `gguf` package reads and does not write.

By the plainest of choices: from the smallest to the largest of each group, or up to its largest magnitude.
Every encoder takes (N, weights of a block) and gives (N, bytes of one).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.kernels.contract import Bytes, Floats

_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def _q2_k(blocks: Floats) -> Bytes:
    d, scales, dmin, minima, codes = _with_minima(blocks, 16, levels=3, largest=15)
    return np.concatenate([scales | minima << 4, _joined(codes, 2), _halves(d), _halves(dmin)], axis=1)


def _q3_k(blocks: Floats) -> Bytes:
    d, scales, codes = _symmetric(blocks, 16, levels=4, largest=31)
    six = scales.astype(np.uint8) + 32
    low, high = six & 15, (six >> 4).reshape(-1, 4, 4)
    packed = [low[:, :8] | low[:, 8:] << 4, _or(high[:, i] << 2 * i for i in range(4))]
    return np.concatenate([_joined(codes >> 2, 1), _joined(codes & 3, 2), *packed, _halves(d)], axis=1)


def _q4_k(blocks: Floats) -> Bytes:
    d, scales, dmin, minima, codes = _with_minima(blocks, 32, levels=15, largest=63)
    return np.concatenate([_halves(d), _halves(dmin), _six_bits(scales, minima), _joined(codes, 4)], axis=1)


def _q5_k(blocks: Floats) -> Bytes:
    d, scales, dmin, minima, codes = _with_minima(blocks, 32, levels=31, largest=63)
    factors = [_halves(d), _halves(dmin), _six_bits(scales, minima)]
    return np.concatenate([*factors, _joined(codes >> 4, 1), _joined(codes & 15, 4)], axis=1)


def _q6_k(blocks: Floats) -> Bytes:
    d, scales, codes = _symmetric(blocks, 16, levels=32, largest=127)
    low = (codes & 15).reshape(-1, 2, 2, 64)
    pairs = (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128)
    signed = scales.astype(np.int8).view(np.uint8)
    return np.concatenate([pairs, _joined(codes >> 4, 2), signed, _halves(d)], axis=1)


def _iq4_nl(blocks: Floats) -> Bytes:
    d = (np.abs(blocks).max(axis=1) / 113).astype(np.float16).astype(np.float32)
    return np.concatenate([_halves(d), _pairs(_nearest(blocks, d[:, None]))], axis=1)


def _iq4_xs(blocks: Floats) -> Bytes:
    groups = blocks.reshape(-1, 8, 32)
    d, scales = _shared(np.abs(groups).max(axis=2) / 113, 31)
    codes = _nearest(groups, (d[:, None] * scales)[..., None])
    six = scales.astype(np.uint8) + 32
    high = _or((six[:, i : i + 1] >> 4).astype(np.uint16) << 2 * i for i in range(8)).view(np.uint8)
    low = six[:, ::2] & 15 | (six[:, 1::2] & 15) << 4
    return np.concatenate([_halves(d), high, low, _pairs(codes).reshape(-1, 128)], axis=1)


ENCODERS: dict[str, Callable[[Floats], Bytes]] = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}


def _with_minima(
    blocks: Floats, size: int, levels: int, largest: int
) -> tuple[Floats, Bytes, Floats, Bytes, Bytes]:
    """d (N,), scales (N, G), dmin, minima, and codes (N, 256) from 0 to `levels`."""
    groups = blocks.reshape(len(blocks), -1, size)
    minimum = np.maximum(0, -groups.min(axis=2))
    d, scales = _shared((groups.max(axis=2) + minimum) / levels, largest)
    dmin, minima = _shared(minimum, largest)
    steps = (d[:, None] * scales)[..., None]
    shifted = groups + (dmin[:, None] * minima)[..., None]
    codes = np.rint(np.divide(shifted, steps, out=np.zeros_like(shifted), where=steps > 0))
    codes = codes.clip(0, levels).astype(np.uint8).reshape(len(blocks), -1)
    return d, scales.astype(np.uint8), dmin, minima.astype(np.uint8), codes


def _symmetric(blocks: Floats, size: int, levels: int, largest: int) -> tuple[Floats, Floats, Bytes]:
    """d (N,), scales (N, G), and codes (N, 256) of which `levels` stands for zero."""
    groups = blocks.reshape(len(blocks), -1, size)
    d, scales = _shared(np.abs(groups).max(axis=2) / (levels - 1), largest)
    steps = (d[:, None] * scales)[..., None]
    codes = np.rint(np.divide(groups, steps, out=np.zeros_like(groups), where=steps > 0))
    codes = (codes.clip(-levels, levels - 1) + levels).astype(np.uint8)
    return d, scales, codes.reshape(len(blocks), -1)


def _shared(scales: Floats, largest: int) -> tuple[Floats, Floats]:
    """(N, G) -> d (N,), a half as float32, and whole numbers (N, G) up to `largest`: scales = d * number."""
    d = (scales.max(axis=1) / largest).astype(np.float16).astype(np.float32)
    ratio = np.divide(scales, d[:, None], out=np.zeros_like(scales), where=d[:, None] > 0)
    return d, np.rint(ratio).clip(0, largest)


def _nearest(values: Floats, steps: Floats) -> Bytes:
    """The code of the table's value that is nearest to each in units of its step."""
    ratio = np.divide(values, steps, out=np.zeros_like(values), where=steps > 0)
    return np.abs(ratio[..., None] - _IQ4_VALUES).argmin(axis=-1).astype(np.uint8)


def _joined(codes: Bytes, width: int) -> Bytes:
    """(N, 256) codes of `width` bits -> (N, 32 * width): groups that follow each other share 32 bytes."""
    together = 8 // width
    groups = codes.reshape(len(codes), -1, together, 32)
    return _or(groups[:, :, i] << i * width for i in range(together)).reshape(len(codes), -1)


def _pairs(codes: Bytes) -> Bytes:
    """(..., 32) -> (..., 16): the first sixteen in the low halves."""
    return codes[..., :16] | codes[..., 16:] << 4


def _six_bits(s: Bytes, m: Bytes) -> Bytes:
    """Scales and minima (N, 8) -> (N, 12)."""
    first, second = s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6
    return np.concatenate([first, second, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], axis=1)


def _halves(values: Floats) -> Bytes:
    """(N,) -> (N, 2)."""
    return values[:, None].astype(np.float16).view(np.uint8)


def _or(parts):  # type: ignore[no-untyped-def]
    out, *others = parts
    for other in others:
        out = out | other
    return out
