"""In which kind a matrix is held: what `--weights` means.

    auto    the file's own: integers stay integers, F16 and BF16 keep their 16 bits; nothing is lost
    f32     float32, de-quantised
    bf16    rounded to 16 bits
    int8    Q8_0
    q4      Q4_1, embeddings and the output Q8_0; what has no more bits already is left alone

Four bits in the vocabulary cost far more than in the layers (docs/log.md), so the files of others have eight
there too. int8 and q4 leave a matrix as it is in the file where its rows are no multiple of 32. BF16 lies in
pairs: rows with an odd number of inputs become F32. It knows no arrays.
"""

from __future__ import annotations

from octavo.kernels.contract import RawTensor
from octavo.kernels.packed import BLOCKS, QUANT_GROUP


def kind_held(raw: RawTensor, weights: str, table: bool = False) -> str:
    """The kind of `RawTensor` that the mode makes of a matrix; `table`: an embedding, or the output.

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
    """Bits that a weight of this kind takes in a file, its share of the scales among them."""
    block = BLOCKS[kind]
    return 8 * block.num_bytes / block.size
