"""What a runner asks of a backend: the bytes of a pool, and a model's arithmetic over them.

    plan --> Runner --> Forward.run(batch) --> Hidden --> likeliest tokens, or logits, of sampled rows

A runner knows rows, guesses and grammars; a `Forward` knows none of them. What it computes with, and where
its blocks lie, is its own: NumPy arrays and native kernels here, tensors of a device in `octavo.device`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from octavo.kernels.contract import Floats, HostBatch, Ints, KvShape, Ops
from octavo.kernels.prefault import PagePrefaulter
from octavo.model.decoder import hidden_states, project
from octavo.model.spec import Model


class Hidden(Protocol):
    """The rows of a step whose logits are wanted, as their last norm left them: R of them."""

    def argmax(self, places: Sequence[int]) -> Ints:
        """(S,): the likeliest token of each of these rows, lowest first among equals; -1 where its logits
        hold NaN or +inf, or nothing but -inf. No logits are written."""

    def logits(self, places: Sequence[int]) -> Floats:
        """(S, V) raw logits of these rows; they live until the next call."""

    def rows(self, places: Sequence[int]) -> Floats:
        """(S, E): these rows themselves, on the host; they live until the next call."""


class BlockMover(Protocol):
    """Blocks on their way between the pool and host memory, one at a time, on the transfer thread."""

    @property
    def bytes_per_block(self) -> int:
        """What a block takes."""

    def read_block(self, block: int) -> memoryview:
        """Its bytes, until the next call."""

    def write_block(self, block: int, fill: Callable[[memoryview], bool]) -> bool:
        """Let `fill` make its bytes; False where that failed: the block holds garbage."""

    def read_into(self, block: int, place: memoryview) -> None:
        """Copy its bytes to host memory that lasts."""

    def write_from(self, block: int, place: memoryview) -> None:
        """Copy its bytes from host memory that lasts."""

    def pin(self, memory: memoryview) -> None:
        """Host memory that copies will come from and go to, all of it: a device wants it to stay in place."""

    def unpin(self) -> None:
        """It goes now: no copy will follow."""


class Forward(BlockMover, Protocol):
    """Owns the bytes of the KV blocks. All calls but the mover's come from one thread, in order of plans."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""

    def discard_blocks(self, first: int, last: int) -> None:
        """The memory of blocks [first, last) may go; what they hold is lost."""

    def run(self, batch: HostBatch) -> Hidden:
        """Compute a step: K and V of its tokens are written. The result lives until the next call."""

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Until the memory that was asked for at once is there, or so long; whether it is."""

    def close(self) -> None:
        """Let go of threads. Idempotent."""


class HostForward:
    """A `Forward` over the processor's own ops."""

    def __init__(
        self, model: Model, ops: Ops, shape: KvShape, num_blocks: int, ready_blocks: int = 0
    ) -> None:
        """`ready_blocks`: whose memory is asked for at once."""
        pool = ops.allocate_kv(shape, num_blocks)
        self.pool = pool
        self.readying = PagePrefaulter(pool, ready_blocks)
        self._ops = ops
        self._rows: Floats  # (R, E) of the step that ran last
        self._hidden_states = ops.prepare_step(lambda o, batch: hidden_states(o, model, pool, batch), pool)
        self._project = ops.prepare_rows(lambda o, x: project(o, model, x), model.spec.hidden_size)

    @property
    def bytes_per_block(self) -> int:
        """What a block takes."""
        return self.pool.bytes_per_block

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        self._ops.copy_blocks(self.pool, sources, targets)

    def discard_blocks(self, first: int, last: int) -> None:
        """Give their memory back to the system."""
        self.readying.stop()
        self._ops.discard_blocks(self.pool, first, last)

    def run(self, batch: HostBatch) -> Hidden:
        """Compute a step."""
        self._rows = self._hidden_states(batch)
        return self

    def argmax(self, places: Sequence[int]) -> Ints:
        """(S,): likeliest tokens of the step's rows."""
        return self._project.argmax(self._taken(places))

    def logits(self, places: Sequence[int]) -> Floats:
        """(S, V): raw logits of the step's rows."""
        return self._project(self._taken(places))

    def rows(self, places: Sequence[int]) -> Floats:
        """(S, E): the step's rows."""
        return self._taken(places)

    def read_block(self, block: int) -> memoryview:
        """Its bytes, where they lie."""
        return memoryview(self.pool.data[block]).toreadonly()

    def write_block(self, block: int, fill: Callable[[memoryview], bool]) -> bool:
        """Let `fill` make its bytes, where they lie."""
        return fill(memoryview(self.pool.data[block]))

    def read_into(self, block: int, place: memoryview) -> None:
        """Copy its bytes to other memory."""
        place[:] = self.read_block(block)

    def write_from(self, block: int, place: memoryview) -> None:
        """Copy its bytes from other memory."""
        memoryview(self.pool.data[block])[:] = place

    def pin(self, memory: memoryview) -> None:
        """Nothing to do: blocks lie in the same memory."""

    def unpin(self) -> None:
        """Nothing to do."""

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Until the memory that was asked for at once is there, or so long; whether it is."""
        return self.readying.wait(timeout_s)

    def close(self) -> None:
        """Ask the system for no more memory."""
        self.readying.stop()

    def _taken(self, places: Sequence[int]) -> Floats:
        if len(places) == len(self._rows):
            return self._rows
        return self._ops.take(self._rows, np.array(places, np.int32))
