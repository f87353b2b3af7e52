"""The kind in which a matrix is held, by `--weights`.

    auto    the file's own: integers stay integers, F16 and BF16 keep their 16 bits; nothing is lost
    f32     float32, de-quantised
    bf16    rounded to 16 bits
    int8    Q8_0
    q4      Q4_1, embeddings and the output Q8_0; kinds with no more bits are unchanged

Four bits in the vocabulary lose far more quality than in the layers (docs/log.md); published files have eight
there too. int8 and q4 keep a matrix unchanged if its rows are no multiple of 32. BF16 is stored in pairs:
rows with an odd number of inputs become F32. This module knows no arrays.
"""

from __future__ import annotations

from octavo.kernels.contract import RawTensor
from octavo.kernels.packed import BLOCKS, QUANT_GROUP


def kind_held(raw: RawTensor, weights: str, table: bool = False) -> str:
    """The kind of `RawTensor` to which the mode converts a matrix; `table`: an embedding, or the output.

    Raises ValueError for an unknown mode.
    """
    kind = _wanted(raw, weights, table)
    return "F32" if kind == "BF16" and raw.shape[-1] % 2 else kind


def _wanted(raw: RawTensor, weights: str, table: bool) -> str:
    divisible = raw.shape[-1] % QUANT_GROUP == 0
    match weights:
        case "auto":
            return raw.kind
        case "f32":
            return "F32"
        case "bf16":
            return "BF16"
        case "int8":
            return "Q8_0" if divisible else raw.kind
        case "q4":
            wanted = "Q8_0" if table else "Q4_1"
            return wanted if divisible and bits_of(raw.kind) > bits_of(wanted) else raw.kind
    raise ValueError(f"unknown weights {weights!r}; known: auto, f32, bf16, int8, q4")


def bits_of(kind: str) -> float:
    """Bits of a weight of this kind in a file, including its share of the scales."""
    block = BLOCKS[kind]
    return 8 * block.num_bytes / block.size
