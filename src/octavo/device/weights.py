"""A model's weights for the kernels: one float type on the device, de-quantised while loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo.errors import ConfigError
from octavo.kernels.contract import Floats, Matrix, RawTensor, Vector
from octavo.kernels.packed import require_matrix, unpack_vector
from octavo.units import format_bytes

_KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(eq=False, slots=True)
class DeviceMatrix:
    """A matrix (outputs, inputs). `data` may become a view of a tensor of several matrices (`stacked`,
    `interleaved`)."""

    data: Tensor = field(repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        outputs, inputs = self.data.shape
        return outputs, inputs

    @property
    def kind(self) -> str:
        """The kind of the weights."""
        return _KINDS[self.data.dtype]

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.data.nbytes


class DeviceWeights:
    """`WeightOps` of a device: matrices of `dtype`, vectors in float32."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    def matrix(self, raw: RawTensor, table: bool = False) -> DeviceMatrix:
        """De-quantised and rounded to the type; raises UnsupportedModel or BadModelFile."""
        require_matrix(raw)
        values = torch.from_numpy(unpack_vector(raw)).to(self.dtype)
        try:
            return DeviceMatrix(values.to(self.device))
        except torch.OutOfMemoryError:
            free = torch.cuda.mem_get_info(self.device)[0]
            held = torch.cuda.memory_allocated(self.device)
            raise ConfigError(
                f"the weights do not fit {self.device}: {format_bytes(held)} are there, {raw.name} of "
                f"{format_bytes(values.nbytes)} is next, {format_bytes(free)} are free; give a smaller "
                "model, another --device, or end what else runs there (nvidia-smi)"
            ) from None

    def vector(self, values: Floats) -> Tensor:
        """The numbers on the device."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)


def stacked(matrices: Sequence[DeviceMatrix]) -> Tensor:
    """Concatenate their rows in one tensor. They become views of it, so the weights exist once, for any
    number of engines that stack them."""
    if (before := _neighbours(matrices)) is not None:
        return before
    whole = torch.cat([matrix.data for matrix in matrices])
    first = 0
    for matrix in matrices:
        matrix.data = whole[first : first + matrix.data.shape[0]]
        first += matrix.data.shape[0]
    return whole


def _neighbours(matrices: Sequence[DeviceMatrix]) -> Tensor | None:
    """The tensor that they are views of already, if any."""
    first = matrices[0].data
    expected = first.storage_offset()
    for matrix in matrices:
        data = matrix.data
        is_next = data.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not is_next or data.storage_offset() != expected:
            return None
        expected += data.numel()
    rows = sum(matrix.data.shape[0] for matrix in matrices)
    return first.as_strided((rows, first.shape[1]), first.stride())


def interleaved(first: DeviceMatrix, second: DeviceMatrix) -> Tensor:
    """Row 0 of the first, row 0 of the second, row 1 of the first, ... in one tensor, of which they become
    views."""
    rows, inputs = first.shape
    assert second.shape == (rows, inputs)
    if _are_interleaved(first, second):
        return first.data.as_strided((2 * rows, inputs), (inputs, 1))
    whole = torch.stack([first.data, second.data], 1).flatten(0, 1)
    first.data, second.data = whole[0::2], whole[1::2]
    return whole


def _are_interleaved(first: DeviceMatrix, second: DeviceMatrix) -> bool:
    """Whether they are views of one tensor already."""
    (_, inputs), one, other = first.shape, first.data, second.data
    is_shared = one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    is_next = one.storage_offset() + inputs == other.storage_offset()
    return is_shared and is_next and one.stride() == other.stride() == (2 * inputs, 1)


def biases_of(biases: Sequence[Vector | None], matrices: Sequence[DeviceMatrix]) -> list[Tensor] | None:
    """The biases of some products, zeros for a missing one; None if no product has one."""
    if all(bias is None for bias in biases):
        return None
    return [
        matrix.data.new_zeros(matrix.shape[0], dtype=torch.float32) if bias is None else own(bias)
        for bias, matrix in zip(biases, matrices, strict=True)
    ]


def own(vector: Vector) -> Tensor:
    """A vector of this backend as a tensor."""
    assert isinstance(vector, Tensor), "another backend's vector"
    return vector


def own_matrix(matrix: Matrix) -> DeviceMatrix:
    """A matrix of the device's own."""
    assert isinstance(matrix, DeviceMatrix), "another backend's matrix"
    return matrix
