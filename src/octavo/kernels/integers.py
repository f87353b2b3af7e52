"""Weight matrices that stay integers: GGUF's groups of 32 in panels of 16 outputs, and their product.

    Q8_0, Q4_0    w = d * code                     Q4_1    w = d * code + m

A matrix takes as many bytes as in its file; `csrc/kernels/codes.cpp` draws a panel, `integer_reference.py`
says what the product means. Activations are quantised to 8 bits for each token and group inside the product.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from octavo import _native
from octavo.kernels.contract import Bytes, Floats, Ints, RawTensor
from octavo.kernels.packed import (
    GROUP_BYTES,
    GROUPED_KINDS,
    PANEL_WIDTH,
    QUANT_GROUP,
    require_consistent,
    require_matrix,
)

_CACHE_LINE = 64
_LARGEST_CODE = 127
_SLICE_ELEMENTS = 1 << 20  # re-quantised at a time: never a float32 copy of a whole matrix


@dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """A matrix (outputs, inputs) of kind Q8_0, Q4_0 or Q4_1 in integer panels (ceil(outputs / 16), bytes)."""

    shape: tuple[int, int]
    kind: str
    panels: Bytes = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.panels.nbytes


def integer_form(raw: RawTensor, weights: str) -> RawTensor | None:
    """The tensor as the integer codes that the mode wants for it, or None where it wants float32.

    `weights`: "f32" wants none; "auto" what the file has; "int8" Q8_0 of everything whose rows are multiples
    of 32. Raises UnsupportedModel or BadModelFile.
    """
    require_matrix(raw)
    if weights == "f32":
        return None
    if weights == "int8" and raw.kind != "Q8_0":
        return requantised(raw) if raw.shape[1] % QUANT_GROUP == 0 else None
    return raw if raw.kind in GROUPED_KINDS else None


def pack(raw: RawTensor) -> IntegerMatrix:
    """The packed form of a matrix of a grouped kind, made straight from the file's bytes."""
    outputs, inputs = raw.shape
    panels = _aligned(-(-outputs // PANEL_WIDTH), _native.code_panel_bytes(raw.kind, inputs))
    _native.pack_codes(raw.data, raw.kind, outputs, inputs, panels)
    return IntegerMatrix((outputs, inputs), raw.kind, panels)


def unpack_rows(table: IntegerMatrix, rows: Ints) -> Floats:
    """(T,) -> (T, inputs), de-quantised. Raises IndexError for a row that does not exist."""
    out = np.empty((rows.size, table.shape[1]), np.float32)
    _native.embed_codes(table.panels, table.kind, table.shape[0], rows, out)
    return out


def multiply(x: Floats, weight: IntegerMatrix, bias: Floats | None) -> Floats:
    """(T, inputs) -> (T, outputs): exact integer sums in groups, one chain of fused steps over the groups."""
    out = np.empty((x.shape[0], weight.shape[0]), np.float32)
    _native.linear_codes(x, weight.panels, weight.kind, bias, out)
    return out


def requantised(raw: RawTensor) -> RawTensor:
    """The matrix as Q8_0: in each group d = largest magnitude / 127 as a half, code = round(w / d).

    O(elements); besides the result it holds a slice of the rows at a time.
    """
    require_consistent(raw)
    outputs, inputs = raw.shape
    row_bytes = raw.data.size // outputs
    blocks = np.empty((outputs, inputs // QUANT_GROUP, GROUP_BYTES["Q8_0"]), np.uint8)
    rows_at_once = max(1, _SLICE_ELEMENTS // inputs)
    for start in range(0, outputs, rows_at_once):
        stop = min(outputs, start + rows_at_once)
        values = np.empty((stop - start, inputs // QUANT_GROUP, QUANT_GROUP), np.float32)
        data = raw.data[start * row_bytes : stop * row_bytes]
        _native.dequantise(data, raw.kind, values.size, values.reshape(-1))
        with np.errstate(all="ignore"):  # a weight that is no number gives a scale that is none
            scale = (np.abs(values).max(axis=2) / np.float32(_LARGEST_CODE)).astype(np.float16)
            wide = scale.astype(np.float32)[..., None]
            codes = np.where(wide > 0, np.rint(values / wide), 0).clip(-_LARGEST_CODE, _LARGEST_CODE)
            blocks[start:stop, :, 2:] = codes.astype(np.int8).view(np.uint8)
        blocks[start:stop, :, :2] = scale.view(np.uint8).reshape(*scale.shape, 2)
    return replace(raw, kind="Q8_0", data=blocks.reshape(-1))


def _aligned(rows: int, row_bytes: int) -> Bytes:
    """An uninitialised byte matrix that begins at a cache line, as a vector load would have it."""
    memory = np.empty(rows * row_bytes + _CACHE_LINE - 1, np.uint8)
    first = -memory.ctypes.data % _CACHE_LINE
    return memory[first : first + rows * row_bytes].reshape(rows, row_bytes)
