"""In which kind a matrix is held: what `--weights` means.

    auto    the file's own: integers stay integers, F16 and BF16 keep their 16 bits
    f32     float32, de-quantised
    bf16    rounded to 16 bits
    int8    Q8_0
    q4      Q4_1; a matrix that has 4 bits already is left alone

int8 and q4 leave a matrix as it is in the file where its rows are no multiple of 32. It knows no arrays.
"""

from __future__ import annotations

from octavo.kernels.contract import RawTensor
from octavo.kernels.packed import QUANT_GROUP

_FOUR_BITS = frozenset({"Q4_0", "Q4_1", "Q4_K"})


def kind_held(raw: RawTensor, weights: str) -> str:
    """The kind of `RawTensor` that the mode makes of a matrix. Raises ValueError for an unknown mode."""
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
            return "Q4_1" if divisible and raw.kind not in _FOUR_BITS else raw.kind
    raise ValueError(f"unknown weights {weights!r}; known: auto, f32, bf16, int8, q4")
