"""Weight matrices in float32 panels, as both CPU backends hold them, and the checks of what a file says.

    panels[p, i, lane] = W[16 p + lane, i]     outputs lie along the vector lanes, zeros beyond the last

Sixteen outputs of one input are one 64-byte load, and each output is summed over the inputs in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from octavo import _native
from octavo.errors import BadModelFile, UnsupportedModel
from octavo.kernels.aligned import aligned_bytes
from octavo.kernels.contract import Floats, Ints, RawTensor

PANEL_WIDTH = 16
QUANT_GROUP = 32

# Bytes of a group of 32 elements, by kind.
GROUP_BYTES = {"F32": 128, "F16": 64, "BF16": 64, "Q8_0": 34, "Q4_0": 18, "Q4_1": 20}
GROUPED_KINDS = frozenset({"Q8_0", "Q4_0", "Q4_1"})


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A float32 matrix (outputs, inputs) in panels (ceil(outputs / 16), inputs, 16)."""

    shape: tuple[int, int]
    panels: Floats = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.panels.nbytes


def pack(raw: RawTensor) -> PackedMatrix:
    """The packed form of a 2-d tensor, made straight from the file's bytes.

    Raises UnsupportedModel for an unknown kind, BadModelFile when shape and bytes disagree.
    """
    require_matrix(raw)
    outputs, inputs = raw.shape
    count = -(-outputs // PANEL_WIDTH)
    memory = aligned_bytes(count * inputs * PANEL_WIDTH * 4)
    panels = memory.view(np.float32).reshape(count, inputs, PANEL_WIDTH)
    _native.pack(raw.data, raw.kind, outputs, inputs, panels)
    return PackedMatrix((outputs, inputs), panels)


def unpack_vector(raw: RawTensor) -> Floats:
    """The tensor as float32, of its own shape. Raises as `pack` does."""
    require_consistent(raw)
    out = np.empty(math.prod(raw.shape), np.float32)
    _native.dequantise(raw.data, raw.kind, out.size, out)
    return out.reshape(raw.shape)


def unpack_rows(table: PackedMatrix, rows: Ints) -> Floats:
    """(T,) -> (T, inputs). Raises IndexError for a row that does not exist."""
    out = np.empty((rows.size, table.shape[1]), np.float32)
    _native.embed(table.panels, table.shape[0], rows, out)
    return out


def multiply(x: Floats, weight: PackedMatrix, bias: Floats | None) -> Floats:
    """(T, inputs) -> (T, outputs): each output one chain of fused multiply-adds over the inputs, in order."""
    out = np.empty((x.shape[0], weight.shape[0]), np.float32)
    _native.linear(x, weight.panels, bias, out)
    return out


def require_matrix(raw: RawTensor) -> None:
    """Raise unless the tensor is a consistent matrix."""
    if len(raw.shape) != 2:
        raise BadModelFile(f"tensor {raw.name} has shape {raw.shape}; a matrix is needed")
    require_consistent(raw)


def require_consistent(raw: RawTensor) -> None:
    """Raise unless the kind is known and the bytes are exactly those of the shape."""
    if raw.kind not in GROUP_BYTES:
        known = ", ".join(GROUP_BYTES)
        raise UnsupportedModel(f"tensor {raw.name} is of kind {raw.kind}; known: {known}")
    if any(size < 1 for size in raw.shape):
        raise BadModelFile(f"tensor {raw.name} has shape {raw.shape}; every size must be at least 1")
    if raw.kind in GROUPED_KINDS and (not raw.shape or raw.shape[-1] % QUANT_GROUP):
        raise BadModelFile(
            f"tensor {raw.name} of kind {raw.kind} has shape {raw.shape}; "
            f"its rows must be multiples of {QUANT_GROUP}"
        )
    needed = math.prod(raw.shape) * GROUP_BYTES[raw.kind] // QUANT_GROUP
    if raw.data.size != needed:
        raise BadModelFile(
            f"tensor {raw.name} ({raw.kind}, {raw.shape}) has {raw.data.size:,} bytes; {needed:,} are needed"
        )
