"""A `Forward` in torch, op after op: blocks and weights on a device, rows and sampling on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from octavo.device.eager import EagerOps, batch_on
from octavo.device.layout import allocate_pool
from octavo.device.moving import DeviceBlocks
from octavo.executor.forward import Hidden
from octavo.kernels.contract import Floats, HostBatch, Ints, KvShape
from octavo.model.decoder import hidden_states, project
from octavo.model.spec import Model


class EagerForward:
    """Owns a pool on the ops' device."""

    def __init__(self, model: Model, ops: EagerOps, shape: KvShape, num_blocks: int) -> None:
        self.pool = allocate_pool(shape, num_blocks, ops.device)
        self._model, self._ops = model, ops
        self._blocks = DeviceBlocks(self.pool)

    @property
    def bytes_per_block(self) -> int:
        """What a block takes."""
        return self.pool.layout.bytes_per_block

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for source, target in zip(sources, targets, strict=True):
            self.pool.data[target] = self.pool.data[source]

    def discard_blocks(self, first: int, last: int) -> None:
        """A device keeps its memory: nothing to do."""

    @torch.inference_mode()
    def run(self, batch: HostBatch) -> Hidden:
        """Compute a step."""
        moved = batch_on(self._ops.device, batch, self.pool.shape.block_size)
        self._rows = hidden_states(self._ops, self._model, self.pool, moved)  # (R, E)
        return self

    def argmax(self, places: Sequence[int]) -> Ints:
        """(S,): likeliest tokens of the step's rows."""
        logits = self.logits(places)
        is_sound = np.isfinite(logits.max(axis=-1))
        return np.where(is_sound, logits.argmax(axis=-1), -1).astype(np.int32)

    @torch.inference_mode()
    def logits(self, places: Sequence[int]) -> Floats:
        """(S, V): raw logits of the step's rows."""
        chosen = self._rows[torch.tensor(list(places), device=self._ops.device)]
        logits: Floats = project(self._ops, self._model, chosen).cpu().numpy()
        return logits

    def read_block(self, block: int) -> memoryview:
        """Its bytes, until the next call."""
        return self._blocks.read_block(block)

    def write_block(self, block: int, fill: Callable[[memoryview], bool]) -> bool:
        """Let `fill` make its bytes."""
        return self._blocks.write_block(block, fill)

    def wait_ready(self) -> None:
        """The pool's memory was taken when it was made."""

    def close(self) -> None:
        """There are no threads."""
