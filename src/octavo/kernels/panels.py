"""Panels of a native matrix of any kind: their bytes, for packed copies on disk, and native views of them.

The layout of panels is the native module's (`packed.py`, `integers.py`); the caller must store
`NativeOps.arithmetic_id` with the bytes. A matrix must outlive its views. This module knows no file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from octavo import _native
from octavo.kernels import integers, packed
from octavo.kernels.contract import Bytes, Expert, Matrix, Routing
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


def weight_of(matrix: Matrix) -> _native.Weight:
    """A view of the matrix's panels."""
    if isinstance(matrix, integers.IntegerMatrix):
        return _native.code_weight(matrix.panels, matrix.kind, *matrix.shape)
    if isinstance(matrix, packed.HalfMatrix):
        return _native.half_weight(matrix.panels, matrix.kind, matrix.shape[0])
    assert isinstance(matrix, packed.PackedMatrix), "another backend's matrix"
    return _native.float_weight(matrix.panels, matrix.shape[0])


def mixture_of(experts: Sequence[Expert], routing: Routing, activation: str) -> _native.Mixture:
    """A view of all experts. Raises ValueError if sizes differ or a name is unknown."""
    mixture = _native.Mixture(
        routing.top_k, routing.scoring, routing.normalised, routing.weighs_input, activation
    )
    for expert in experts:
        mixture.add_expert(
            weight_of(expert.gate.weight),
            packed.floats_or_none(expert.gate.bias),
            weight_of(expert.up.weight),
            packed.floats_or_none(expert.up.bias),
            weight_of(expert.down.weight),
            packed.floats_or_none(expert.down.bias),
        )
    return mixture
