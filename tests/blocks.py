"""Tensors of every kind for tests: any bytes as codes, and float32 values quantised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from octavo.kernels.contract import Bytes, Floats, RawTensor
from octavo.kernels.packed import BLOCKS
from tests.encoders import ENCODERS

SUPER_KINDS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", *SUPER_KINDS)
# Where d, and behind it the other half, are in a block.
_HALVES_AT = {"Q2_K": (80, 84), "Q3_K": (108, 110), "Q6_K": (208, 210)}
_HALVES_AT |= dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 4))


def floats_tensor(values: Floats) -> RawTensor:
    """As a file of float32 would hold it."""
    data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
    return RawTensor("w", "F32", values.shape, data)


def random_tensor(kind: str, outputs: int, inputs: int, rng: np.random.Generator) -> RawTensor:
    """Any bytes as codes and small scales, extremes included, with halves of either sign."""
    block = BLOCKS[kind]
    blocks = rng.integers(0, 256, (outputs, inputs // block.size, block.num_bytes)).astype(np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = rng.integers(118, 125, blocks.shape[:2])
    else:
        spread = 0.0005 if kind in SUPER_KINDS else 0.02
        set_halves(blocks, kind, rng.normal(0, spread, (*blocks.shape[:2], 2)))
    return RawTensor("w", kind, (outputs, inputs), blocks.reshape(-1))


def set_halves(blocks: Bytes, kind: str, values: npt.ArrayLike) -> None:
    """Write d, and m where the kind has one, of blocks (..., bytes) from values (..., 2)."""
    if kind == "MXFP4":
        blocks[..., 0] = 128 + np.log2(np.asarray(values)[..., 0])  # powers of two
        return
    first, last = _HALVES_AT.get(kind, (0, 2))
    halves = np.asarray(values, np.float16).view(np.uint8)
    blocks[..., first:last] = halves[..., : last - first]


def encoded(raw: RawTensor, kind: str) -> RawTensor:
    """A float32 tensor as another kind, by the `gguf` package, or here where it cannot write the kind."""
    import gguf

    values = raw.data.view(np.float32).reshape(raw.shape)
    if kind in ENCODERS:
        data = ENCODERS[kind](values.reshape(-1, BLOCKS[kind].size))
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
