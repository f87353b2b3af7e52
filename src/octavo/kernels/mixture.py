"""Weights and mixtures in the native module's form: views, which their matrices must outlive."""

from __future__ import annotations

from collections.abc import Sequence

from octavo import _native
from octavo.kernels import integers, packed
from octavo.kernels.contract import Expert, Matrix, Routing


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
