"""A matrix in another kind, as a file stores it: rows of blocks, made of the native module's panels.

Panels are quantised by the same code that `--weights` uses, so a file that is written this way gives the
very weights that the setting gives. `csrc/kernels/codes.cpp` draws a panel, and
`integer_reference.requantised` says what the blocks must be.
"""

from __future__ import annotations

import math

import numpy as np

from octavo import _native
from octavo.kernels import integers
from octavo.kernels.contract import Bytes, Floats, RawTensor
from octavo.kernels.integers import IntegerMatrix
from octavo.kernels.packed import BLOCKS, PANEL_WIDTH, QUANT_GROUP, HalfMatrix, pack, require_matrix

_HALF_GROUP = QUANT_GROUP // 2
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_1")


def encoded(raw: RawTensor, kind: str) -> Bytes:
    """The bytes of a matrix (outputs, inputs) as blocks of one of `KINDS`; the file's own kind is a view.

    Raises UnsupportedModel or BadModelFile. O(elements), with the matrix in panels beside it.
    """
    require_matrix(raw)
    if kind == raw.kind:
        return raw.data
    if kind == "F32":
        values: Floats = np.empty(math.prod(raw.shape), np.float32)
        _native.dequantise(raw.data, raw.kind, values.size, values)
        return values.view(np.uint8)
    if kind in ("F16", "BF16"):
        halves = pack(raw, kind)
        assert isinstance(halves, HalfMatrix)
        side_by_side = 2 if kind == "BF16" else 1
        panels = halves.panels.reshape(len(halves.panels), -1, PANEL_WIDTH, side_by_side)
        rows = panels.swapaxes(1, 2).reshape(-1, raw.shape[1])[: raw.shape[0]]
        return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    assert kind in KINDS
    return _blocks(integers.pack(raw, kind))


def _blocks(matrix: IntegerMatrix) -> Bytes:
    """Panels of Q8_0 or Q4_1 -> blocks, row after row."""
    (outputs, inputs), count = matrix.shape, matrix.panels.shape[0]
    groups, words = inputs // QUANT_GROUP, 8 if matrix.kind == "Q8_0" else 4
    code_bytes = groups * words * PANEL_WIDTH * 4
    # (panels, groups, words, lanes, bytes of a word) -> (rows, groups, words, bytes)
    codes = matrix.panels[:, :code_bytes].reshape(count, groups, words, PANEL_WIDTH, 4)
    codes = codes.transpose(0, 3, 1, 2, 4).reshape(-1, groups, words, 4)[:outputs]
    per_scale = 2 if matrix.kind == "Q4_1" else 1
    last = code_bytes + groups * per_scale * PANEL_WIDTH * 2  # a panel ends at a cache line
    scales = matrix.panels[:, code_bytes:last].reshape(count, groups, per_scale, PANEL_WIDTH, 2)
    scales = scales.transpose(0, 3, 1, 2, 4).reshape(-1, groups, per_scale * 2)[:outputs]
    blocks = np.empty((outputs, groups, BLOCKS[matrix.kind].num_bytes), np.uint8)
    blocks[..., : per_scale * 2] = scales
    data = blocks[..., per_scale * 2 :]
    if matrix.kind == "Q8_0":
        np.bitwise_xor(codes.reshape(outputs, groups, QUANT_GROUP), 0x80, out=data)
        return blocks.reshape(-1)
    # Word j has inputs 8j .. 8j + 3 below, the next four above; a block has i below, i + 16 above.
    each = np.stack([codes & 15, codes >> 4], axis=3).reshape(outputs, groups, 2, _HALF_GROUP)
    np.bitwise_or(each[:, :, 0], each[:, :, 1] << 4, out=data)
    return blocks.reshape(-1)
