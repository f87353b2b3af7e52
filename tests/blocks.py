"""Tensors of every kind for tests: any bytes as codes, and float32 values quantised."""

from __future__ import annotations

import numpy as np

from octavo.kernels.contract import Bytes, Floats, RawTensor
from octavo.kernels.packed import BLOCKS

SUPER_KINDS = ("Q4_K", "Q6_K")
HALVES_AT = {"Q8_0": (0, 2), "Q4_0": (0, 2), "Q4_1": (0, 4), "Q4_K": (0, 4), "Q6_K": (208, 210)}


def floats_tensor(values: Floats) -> RawTensor:
    """As a file of float32 would hold it."""
    data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    return RawTensor("w", "F32", values.shape, data)


def random_tensor(kind: str, outputs: int, inputs: int, rng: np.random.Generator) -> RawTensor:
    """Any bytes as codes and small scales, extremes included, with halves of either sign."""
    block = BLOCKS[kind]
    blocks = rng.integers(0, 256, (outputs, inputs // block.size, block.num_bytes)).astype(np.uint8)
    first, last = HALVES_AT[kind]
    spread = 0.0005 if kind in SUPER_KINDS else 0.02
    halves = rng.normal(0, spread, (*blocks.shape[:2], 2)).astype(np.float16).view(np.uint8)
    blocks[..., first:last] = halves[..., : last - first]
    return RawTensor("w", kind, (outputs, inputs), blocks.reshape(-1))


def encoded(raw: RawTensor, kind: str) -> RawTensor:
    """A float32 tensor as another kind, by the `gguf` package, or here where it cannot write the kind."""
    import gguf

    values = raw.data.view(np.float32).reshape(raw.shape)
    if kind in SUPER_KINDS:
        blocks = values.reshape(-1, 256)
        data = _encode_q4_k(blocks) if kind == "Q4_K" else _encode_q6_k(blocks)
    elif kind == "F16":
        data = values.astype(np.float16)
    else:
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    return RawTensor(raw.name, kind, raw.shape, np.ascontiguousarray(data).reshape(-1).view(np.uint8))


def dequantised(raw: RawTensor) -> Floats:
    """By the `gguf` package."""
    import gguf

    rows = raw.data.reshape(raw.shape[0], -1)
    if raw.kind == "F32":
        return rows.view(np.float32)
    if raw.kind == "F16":
        return rows.view(np.float16).astype(np.float32)
    values: Floats = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[raw.kind])
    return values


def _encode_q4_k(blocks: Floats) -> Bytes:
    """(N, 256) -> (N, 144), by the plainest of choices: from the smallest to the largest of each group."""
    groups = blocks.reshape(-1, 8, 32)
    minimum = np.maximum(0, -groups.min(axis=2))
    scale = (groups.max(axis=2) + minimum) / 15
    d, scales = _shared(scale, 63)
    dmin, minima = _shared(minimum, 63)
    steps = (d[:, None] * scales)[..., None]
    shifted = groups + (dmin[:, None] * minima)[..., None]
    codes = np.rint(np.divide(shifted, steps, out=np.zeros_like(shifted), where=steps > 0))
    codes = codes.clip(0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    packed = [
        s[:, :4] | s[:, 4:] >> 4 << 6,
        m[:, :4] | m[:, 4:] >> 4 << 6,
        s[:, 4:] & 15 | (m[:, 4:] & 15) << 4,
    ]
    halves = np.stack([d, dmin], axis=1).astype(np.float16).view(np.uint8)
    pairs = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(-1, 128)
    return np.concatenate([halves, *packed, pairs], axis=1)


def _encode_q6_k(blocks: Floats) -> Bytes:
    """(N, 256) -> (N, 210), likewise, symmetrically."""
    groups = blocks.reshape(-1, 16, 16)
    d, scales = _shared(np.abs(groups).max(axis=2) / 31, 127)
    steps = (d[:, None] * scales)[..., None]
    codes = np.rint(np.divide(groups, steps, out=np.zeros_like(groups), where=steps > 0))
    codes = (codes.clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # half, quarter
    low = codes & 15
    pairs = np.concatenate([low[:, :, :2], low[:, :, 2:]], axis=2).reshape(-1, 2, 2, 64)
    pairs = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    high = sum((codes[:, :, quarter] >> 4) << 2 * quarter for quarter in range(4))
    halves = d[:, None].astype(np.float16).view(np.uint8)
    signed = scales.astype(np.int8).view(np.uint8)
    return np.concatenate([pairs, np.asarray(high, np.uint8).reshape(-1, 64), signed, halves], axis=1)


def _shared(scales: Floats, largest: int) -> tuple[Floats, Floats]:
    """(N, G) -> d (N,), a half as float32, and whole numbers (N, G) up to `largest`: scales = d * number."""
    d = (scales.max(axis=1) / largest).astype(np.float16).astype(np.float32)
    ratio = np.divide(scales, d[:, None], out=np.zeros_like(scales), where=d[:, None] > 0)
    return d, np.rint(ratio).clip(0, largest)
