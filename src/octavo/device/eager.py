"""The ops in torch, op after op, on any device: what `kernels/reference.py` is for the processor.

Exact by construction, so slow: products are sums of integers in float64 (`exact.py`), everything else is
spelled out in float64 and rounded to float32 once. It is how the torch backend runs on torch's CPU, and the
oracle of the Triton kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo.device import eager_attention, eager_experts
from octavo.device.exact import Codes, coded, multiply, sliced
from octavo.device.functions import activation_of, gate_of, sum_in_order, tanh
from octavo.device.layout import DevicePool
from octavo.device.step import DeviceStep
from octavo.kernels.contract import (
    AttentionSpec,
    Batch,
    Expert,
    Floats,
    Matrix,
    RawTensor,
    Routing,
    Vector,
)
from octavo.kernels.packed import require_matrix, unpack_vector

_ROWS_AT_ONCE = 1024  # of a matrix that is made ready, so that little is held beside it
VERSION = 1  # raise it whenever an op's bits change


@dataclass(frozen=True, slots=True)
class CodedMatrix:
    """A matrix (outputs, inputs) as integers of float64, one exponent for each output."""

    codes: Codes = field(repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        outputs, inputs = self.codes.codes.shape
        return outputs, inputs

    @property
    def kind(self) -> str:
        """How the weights are held."""
        return "F64"

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.codes.codes.nbytes + self.codes.scales.nbytes


@dataclass(frozen=True, slots=True)
class EagerBatch(Batch[Tensor]):
    """A step on the device, with what every layer needs of it."""

    groups: list[eager_attention.Group]
    blocks: Tensor  # (T,) where each token's K and V go
    slots: Tensor  # (T,)


def batch_of(step: DeviceStep, block_size: int) -> EagerBatch:
    """The step as the decoder reads it."""
    shape, tables = step.shape, step.tables[step.table_rows.long()]
    batch = Batch(step.tokens, step.positions, step.starts, step.offsets, tables, step.logit_rows)
    positions = step.positions.long()
    return EagerBatch(
        batch.tokens,
        batch.positions,
        batch.starts,
        batch.offsets,
        batch.tables,
        batch.logit_rows,
        list(eager_attention.groups_of(shape.starts, shape.offsets, batch)),
        tables[step.token_chunks.long(), positions // block_size].long(),
        positions % block_size,
    )


class EagerOps:
    """`StepOps` and `WeightOps` over float32 tensors of one device. `weights`: "auto" and "f32" take a file's
    numbers as they are, "bf16" rounds them first."""

    def __init__(self, device: torch.device, weights: str = "auto") -> None:
        self.device = device
        self.arithmetic_id = f"torch-eager-{weights}-{VERSION}"
        self._weights = weights

    # -- weights -----------------------------------------------------------------------------------
    def matrix(self, raw: RawTensor, table: bool = False) -> CodedMatrix:
        """Codes of the de-quantised numbers; raises UnsupportedModel or BadModelFile."""
        require_matrix(raw)
        values = torch.from_numpy(unpack_vector(raw)).to(self.device)
        if self._weights == "bf16":
            values = values.to(torch.bfloat16)
        outputs, inputs = raw.shape
        codes = torch.empty((outputs, inputs), dtype=torch.float64, device=self.device)
        scales = torch.empty((outputs, 1), dtype=torch.float64, device=self.device)
        for first in range(0, outputs, _ROWS_AT_ONCE):
            part, last = coded(values[first : first + _ROWS_AT_ONCE]), first + _ROWS_AT_ONCE
            codes[first:last], scales[first:last] = part.codes, part.scales
        return CodedMatrix(Codes(codes, scales))

    def vector(self, values: Floats) -> Tensor:
        """The numbers on the device."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)

    # -- the step ----------------------------------------------------------------------------------
    def embed(self, table: Matrix, tokens: Tensor) -> Tensor:
        """(T,) -> (T, E): rows of the table."""
        codes = _codes(table)
        rows = tokens.long()
        return (codes.codes[rows] * codes.scales[rows]).to(torch.float32)

    def take(self, x: Tensor, rows: Tensor) -> Tensor:
        """x[rows], contiguous."""
        return x[rows.long()]

    def linear(self, x: Tensor, weight: Matrix, bias: Vector | None = None) -> Tensor:
        """(T, in) -> (T, out)."""
        product = multiply(sliced(x), _codes(weight))
        return (product if bias is None else product + _wide(bias)).to(torch.float32)

    def rms_norm(self, x: Tensor, weight: Vector, eps: float) -> Tensor:
        """Over the last `len(weight)` elements of each row."""
        size = weight.shape[0]
        heads = x.reshape(-1, size).to(torch.float64)
        mean_of_squares = sum_in_order(heads * heads) / size
        return (heads / torch.sqrt(mean_of_squares + eps) * _wide(weight)).to(torch.float32).reshape(x.shape)

    def layer_norm(self, x: Tensor, weight: Vector, bias: Vector, eps: float) -> Tensor:
        """(T, E) -> (T, E)."""
        size = weight.shape[0]
        wide = x.to(torch.float64)
        centred = wide - sum_in_order(wide) / size
        variance = sum_in_order(centred * centred) / size
        normed = centred / torch.sqrt(variance + eps) * _wide(weight)
        return (normed + _wide(bias)).to(torch.float32)

    def rope(self, x: Tensor, positions: Tensor, cos: Vector, sin: Vector, head_size: int) -> Tensor:
        """Rotate halves of each head."""
        half = cos.shape[1]
        heads = x.unflatten(1, (-1, head_size)).to(torch.float64)
        c, s = (_wide(table)[positions.long()][:, None] for table in (cos, sin))
        a, b, rest = heads.split([half, half, head_size - 2 * half], dim=-1)
        turned = torch.cat([a * c - b * s, b * c + a * s, rest], dim=-1)
        return turned.to(torch.float32).flatten(1)

    def store(self, pool: DevicePool, layer: int, k: Tensor, v: Tensor, batch: Batch[Tensor]) -> None:
        """Write K and V of the step's tokens into their slots of `layer`."""
        own = _own(batch)
        eager_attention.store(pool, layer, k, v, own.blocks, own.slots)

    def attend(
        self,
        pool: DevicePool,
        layer: int,
        q: Tensor,
        batch: Batch[Tensor],
        spec: AttentionSpec,
        log_sum_exp: Tensor | None = None,
    ) -> Tensor:
        """(T, H * D) -> (T, H * D): causal attention over the block tables."""
        return eager_attention.attend(pool, layer, q, _own(batch).groups, spec, log_sum_exp)

    def gated(self, gate: Tensor, up: Tensor, activation: str) -> Tensor:
        """activation(gate) * up."""
        return gate_of(activation)(gate.to(torch.float64), up.to(torch.float64)).to(torch.float32)

    def activate(self, x: Tensor, activation: str) -> Tensor:
        """activation(x)."""
        return activation_of(activation)(x.to(torch.float64)).to(torch.float32)

    def experts(
        self,
        x: Tensor,
        router_logits: Tensor,
        experts: Sequence[Expert],
        routing: Routing,
        activation: str,
    ) -> Tensor:
        """(T, E), (T, X) -> (T, E): each row's weighted sum."""

        def apply(expert: Expert, rows: Tensor) -> Tensor:
            gate = self.linear(rows, expert.gate.weight, expert.gate.bias)
            up = self.linear(rows, expert.up.weight, expert.up.bias)
            return self.linear(self.gated(gate, up, activation), expert.down.weight, expert.down.bias)

        choices = eager_experts.route(router_logits, routing)
        return eager_experts.mix(x, choices, experts, routing.weighs_input, apply)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""
        return x + y

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """x * factor, the factor rounded to float32 first."""
        return x * float(np.float32(factor))

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap)."""
        return (cap * tanh(x.to(torch.float64) / cap)).to(torch.float32)


def _codes(matrix: Matrix) -> Codes:
    assert isinstance(matrix, CodedMatrix), "another backend's matrix"
    return matrix.codes


def _wide(vector: Vector) -> Tensor:
    assert isinstance(vector, Tensor), "another backend's vector"
    return vector.to(torch.float64)


def _own(batch: Batch[Tensor]) -> EagerBatch:
    assert isinstance(batch, EagerBatch), "another backend's batch"
    return batch
