"""The reference's ops over tensors of torch's CPU: the torch backend without a GPU, for tests.

Rows, pool, sampling and moves are those of any device; `kernels/reference.py` computes the step over the same
memory. Codes and 16-bit numbers of the pool are read as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.layout import LARGEST_CODE, DevicePool
from octavo.device.ranks.collectives import RankGroup
from octavo.device.rows import DeviceRows, Writes
from octavo.device.sampler import TorchSampler
from octavo.executor.batch import StepShape, batch_of
from octavo.kernels.attention_reference import StoredContext
from octavo.kernels.contract import Bytes, Floats, Ints, KvShape
from octavo.kernels.reference import ReferenceOps
from octavo.model.decoder import hidden_states, project
from octavo.model.spec import Model
from octavo.types import COLD_FIRST


@dataclass(frozen=True, slots=True)
class TensorBlocks:
    """`StoredBlocks` of a device's pool."""

    pool: DevicePool
    cold_pool: DevicePool | None = None  # its first block has the number COLD_FIRST

    @property
    def shape(self) -> KvShape:
        """The shape of the KV group."""
        return self.pool.shape

    def write(self, layer: int, block: int, slot: int, k: Floats, v: Floats) -> None:
        """K and V (kv heads, D) of one token."""
        pool, kind = self.pool, self.pool.shape.kind
        for index, (x, held) in enumerate(((k, pool.keys(layer)), (v, pool.values(layer)))):
            numbers = torch.from_numpy(np.ascontiguousarray(x))
            if pool.layout.has_scales:
                scale = numbers.abs().amax(dim=-1, keepdim=True) / LARGEST_CODE[kind]
                numbers = numbers / scale
                numbers = torch.where(
                    torch.isfinite(numbers), numbers, 0.0
                )  # zeros, or a scale that is not finite
                numbers = torch.round(numbers) if kind == "int8" else numbers
                pool.scales(layer)[block, index, :, slot] = scale[:, 0]
            held[block, :, slot] = numbers.to(held.dtype)

    def read(self, layer: int, blocks: Ints) -> StoredContext:
        """The contents of these blocks, concatenated."""
        is_cold = blocks >= COLD_FIRST
        places = np.where(is_cold, blocks - COLD_FIRST, blocks).astype(np.int64)
        k, v = _numbers(self.pool, layer, np.where(is_cold, 0, places))
        if is_cold.any():
            assert self.cold_pool is not None, "a cold block, and no offload tier"
            cold = torch.from_numpy(is_cold)[:, None, None, None]
            cold_k, cold_v = _numbers(self.cold_pool, layer, np.where(is_cold, places, 0))
            k, v = torch.where(cold, cold_k, k), torch.where(cold, cold_v, v)
        k, v = (numbers.transpose(0, 1).flatten(1, 2) for numbers in (k, v))  # (kv heads, P, D)
        return StoredContext(k.mT.contiguous().numpy(), v.numpy())


def _numbers(pool: DevicePool, layer: int, places: npt.NDArray[np.int64]) -> list[Tensor]:
    """K and V of these blocks (n, kv heads, B, D), float32."""
    wanted, numbers = torch.from_numpy(places), []
    for index, held in enumerate((pool.keys(layer), pool.values(layer))):
        values = held[wanted].to(torch.float32)
        if pool.layout.has_scales:
            values = values * pool.scales(layer)[wanted, index][..., None]
        numbers.append(values)
    return numbers


class ReferenceArithmetic:
    """`Arithmetic` op after op, on the host."""

    def __init__(
        self,
        model: Model,
        ops: ReferenceOps,
        pool: DevicePool,
        rows: DeviceRows,
        group: RankGroup | None = None,
    ) -> None:
        if group is not None:
            ops = ReferenceOps(ops.weights, group)
        self.pool = pool
        self.sampler = TorchSampler(rows)
        self._model, self._ops, self._rows = model, ops, rows
        self._cold_pool: DevicePool | None = None
        self._shape: StepShape  # of the prepared step

    def warm(self, step_tokens: int, progress: Callable[[str], None]) -> None:
        """Nothing is compiled."""

    def warm_more(self) -> bool:
        """Nothing is left."""
        return False

    def prepare(self, shape: StepShape, writes: Writes) -> None:
        """Write into the rows; the step's arrays are the host's."""
        indices, values = writes.arrays()
        self._rows.state[torch.from_numpy(indices).long()] = torch.from_numpy(values)
        self._shape = shape

    def read_cold_from(self, slots: Bytes) -> int:
        """Slots are blocks of another pool."""
        self._cold_pool = DevicePool(self.pool.layout, torch.from_numpy(slots))
        return COLD_FIRST

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for source, target in zip(sources, targets, strict=True):
            self.pool.data[target] = self.pool.data[source]

    def hidden(self) -> Tensor:
        """(R, E): the logit rows of the step."""
        rows = self._rows
        batch = batch_of(self._shape, rows.tokens.numpy(), rows.tables.numpy(), rows.block_size)
        return torch.from_numpy(
            hidden_states(self._ops, self._model, TensorBlocks(self.pool, self._cold_pool), batch)
        )

    def new_hidden(self, num_rows: int) -> Tensor:
        """(num_rows, E): memory for hidden rows."""
        return torch.empty((num_rows, self._model.spec.hidden_size))

    def way(self) -> None:
        """Nothing is launched."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S, V) float32, raw."""
        return torch.from_numpy(project(self._ops, self._model, hidden.numpy()))

    def likeliest(self, hidden: Tensor) -> Tensor:
        """(S, E) -> (S,) int64."""
        prepared = self._ops.prepare_rows(lambda ops, x: project(ops, self._model, x), hidden.shape[1])
        return torch.from_numpy(prepared.argmax(hidden.numpy())).long()
