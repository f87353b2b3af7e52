"""Where each matrix and vector of a model goes in a GGUF file.

    matrix n of the reader's order  ->  tensor, first byte in it, order of its rows
    a bias, a norm                  ->  a tensor of its own, or a piece of one

It undoes for GGUF what `reader.py` did for the backends: q and k rows of some families are stored for rope on
neighbours, and q, k and v, or gate and up, are one tensor where the family has them so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.errors import UnsupportedModel
from octavo.kernels.contract import Floats, Linear, Matrix, Vector
from octavo.kernels.packed import BLOCKS, floats_of
from octavo.model.families.names import GGUF_TENSORS
from octavo.model.families.row import Description
from octavo.model.files.gguf_writer import PlannedTensor
from octavo.model.reader import RowOrder, halves_order
from octavo.model.spec import LayerWeights, Mixture, ModelWeights, Norm


@dataclass(frozen=True, slots=True)
class PlannedMatrix:
    """A matrix that is not made: the `index`-th that the reader asks for."""

    shape: tuple[int, int]
    kind: str
    index: int

    @property
    def num_bytes(self) -> int:
        """In the file."""
        block = BLOCKS[self.kind]
        return math.prod(self.shape) // block.size * block.num_bytes


@dataclass(frozen=True, slots=True)
class Part:
    """Where a matrix goes: row s of it in the file is row order[s] of the reader's."""

    tensor: str
    kind: str
    first_byte: int
    order: RowOrder | None = None


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """All tensors of the file; `parts` by the index of a matrix."""

    tensors: list[PlannedTensor] = field(default_factory=list)
    parts: dict[int, Part] = field(default_factory=dict)
    vectors: dict[str, Floats] = field(default_factory=dict)

    def add_matrix(self, name: str, pieces: Sequence[Matrix], orders: Sequence[RowOrder | None]) -> None:
        """A tensor of matrices one below the other."""
        first_byte, rows = 0, 0
        for matrix, order in zip(pieces, orders, strict=True):
            assert isinstance(matrix, PlannedMatrix)
            self.parts[matrix.index] = Part(name, matrix.kind, first_byte, order)
            first_byte += matrix.num_bytes
            rows += matrix.shape[0]
        self.tensors.append(PlannedTensor(name, pieces[0].kind, (rows, pieces[0].shape[1])))

    def add_linear(
        self, name: str, linears: Sequence[Linear], orders: Sequence[RowOrder | None] | None = None
    ) -> None:
        """The weights and the biases of projections that are one in the file; nothing for none."""
        if not linears:
            return
        orders = orders or [None] * len(linears)
        self.add_matrix(f"{name}.weight", [linear.weight for linear in linears], orders)
        biases = [linear.bias for linear in linears if linear.bias is not None]
        if len(biases) not in (0, len(linears)):
            raise UnsupportedModel(f"{name}: some of its parts have a bias and some have none")
        if biases:
            pieces = [_ordered(bias, order) for bias, order in zip(biases, orders, strict=True)]
            self.vectors[f"{name}.bias"] = np.concatenate(pieces)

    def add_mixture(self, name: Callable[[str], str], mixture: Mixture) -> None:
        """The router, and each part of all experts in one tensor of three dimensions."""
        self.add_linear(name("router"), [mixture.router])
        for part in ("gate", "up", "down"):
            linears: list[Linear] = [getattr(expert, part) for expert in mixture.experts]
            tensor = name(f"experts_{part}")
            self.add_linear(tensor, linears)
            whole = self.tensors.pop()
            shape = (len(linears), *linears[0].weight.shape)
            self.tensors.append(PlannedTensor(whole.name, whole.kind, shape))
            if f"{tensor}.bias" in self.vectors:
                biases = self.vectors[f"{tensor}.bias"]
                self.vectors[f"{tensor}.bias"] = biases.reshape(len(linears), -1)

    def add_norm(self, name: str, norm: Norm | None) -> None:
        """Nothing where there is none, or nothing of it was learned."""
        if norm is None or not norm.is_learned:
            return
        self.vectors[f"{name}.weight"] = floats_of(norm.weight)
        if norm.bias is not None:
            self.vectors[f"{name}.bias"] = floats_of(norm.bias)


def lay_out(weights: ModelWeights, description: Description) -> FolderLayout:
    """`weights` are planned. Raises UnsupportedModel where parts of one tensor are not alike."""
    layout = FolderLayout()
    layout.add_matrix("token_embd.weight", [weights.embedding], [None])
    if weights.positions is not None:
        layout.add_matrix(f"{GGUF_TENSORS['positions']}.weight", [weights.positions], [None])
    for index, layer in enumerate(weights.layers):
        _lay_out_layer(layout, layer, index, description)
    layout.add_norm(GGUF_TENSORS["final_norm"], weights.final_norm)
    if weights.output is not weights.embedding:
        layout.add_matrix("output.weight", [weights.output], [None])
    return layout


def _lay_out_layer(layout: FolderLayout, layer: LayerWeights, index: int, description: Description) -> None:
    family = description.family
    names = {**GGUF_TENSORS, **family.gguf_tensors}

    def name(role: str) -> str:
        return names[role].format(index)

    if family.fused_qkv:
        layout.add_linear(name("qkv"), [layer.q, layer.k, layer.v])
    else:
        orders = _stored_orders(layer, index, description)
        layout.add_linear(name("q"), [layer.q], [orders[0]])
        layout.add_linear(name("k"), [layer.k], [orders[1]])
        layout.add_linear(name("v"), [layer.v])
    layout.add_linear(name("o"), [layer.o])
    if layer.mixture is not None:
        layout.add_mixture(name, layer.mixture)
    shared = "" if layer.mixture is None else "shared_"
    if family.fused_gate_up and layer.gate is not None and layer.up is not None:
        layout.add_linear(name("up"), [layer.gate, layer.up])
    else:
        for role, linear in (("gate", layer.gate), ("up", layer.up)):
            layout.add_linear(name(shared + role), [] if linear is None else [linear])
    layout.add_linear(name(f"{shared}down"), [] if layer.down is None else [layer.down])
    for role in ("attention_norm", "ffn_norm", "q_norm", "k_norm", "attention_post_norm", "ffn_post_norm"):
        norm = getattr(layer, role)
        assert norm is None or isinstance(norm, Norm)
        layout.add_norm(name(role), norm)
    if layer.sinks is not None:
        layout.vectors[f"{name('sinks')}.weight"] = floats_of(layer.sinks)


def _stored_orders(layer: LayerWeights, index: int, description: Description) -> list[RowOrder | None]:
    """Of q and k: which of our rows each stored row is."""
    spec, rope = description.spec, description.spec.rope(index)
    if rope is None or "gguf" not in description.family.interleaved_in:
        return [None, None]
    sizes = ((layer.q, spec.num_heads), (layer.k, spec.num_kv_heads))
    return [np.argsort(halves_order(linear.weight.shape[0], heads, rope.dims)) for linear, heads in sizes]


def _ordered(vector: Vector, order: RowOrder | None) -> Floats:
    values = floats_of(vector)
    return values if order is None else values[order]
