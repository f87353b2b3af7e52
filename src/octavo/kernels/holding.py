"""Converts a native matrix to the bytes of its panels, and back, for packed copies on disk.

It knows no file. The layout of panels is the native module's (`packed.py`, `integers.py`); the caller must
store `NativeOps.arithmetic_id` with the bytes.
"""

from __future__ import annotations

import math

import numpy as np

from octavo import _native
from octavo.kernels.contract import Bytes, Matrix
from octavo.kernels.integers import IntegerMatrix
from octavo.kernels.packed import BLOCKS, FLOAT_KINDS, PANEL_WIDTH, HalfMatrix, PackedMatrix


def panels_of(matrix: Matrix) -> Bytes:
    """The panels' bytes, flat; not a copy."""
    assert isinstance(matrix, PackedMatrix | HalfMatrix | IntegerMatrix), "a matrix of another backend"
    return matrix.panels.reshape(-1).view(np.uint8)


def panel_bytes(kind: str, shape: tuple[int, int]) -> int:
    """Bytes of a matrix (outputs, inputs) of the kind in panels. Raises ValueError for an unknown kind, or
    rows that it cannot hold."""
    if kind not in BLOCKS:
        raise ValueError(f"kind {kind!r:.40} is not known")
    count, inputs = -(-shape[0] // PANEL_WIDTH), shape[1]
    if kind in FLOAT_KINDS:
        return count * inputs * PANEL_WIDTH * BLOCKS[kind].num_bytes
    return count * _native.code_panel_bytes(kind, inputs)


def matrix_of(kind: str, shape: tuple[int, int], data: Bytes) -> Matrix:
    """The matrix with exactly these bytes, cache-line aligned, as panels: a view of them."""
    count, inputs = -(-shape[0] // PANEL_WIDTH), shape[1]
    assert data.size == panel_bytes(kind, shape)
    if kind == "F32":
        return PackedMatrix(shape, data.view(np.float32).reshape(count, inputs, PANEL_WIDTH))
    if kind in FLOAT_KINDS:
        return HalfMatrix(shape, kind, data.view(np.uint16).reshape(count, inputs, PANEL_WIDTH))
    return IntegerMatrix(shape, kind, data.reshape(count, math.prod(data.shape) // count))
