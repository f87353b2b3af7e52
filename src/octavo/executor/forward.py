"""What a runner needs of a backend: the bytes of a pool, and a model's arithmetic over them.

    plan --> Runner --> Forward.prepare(plan), run() --> likeliest tokens, or logits, of sampled rows

A runner knows rows, drafts and grammars; a `Forward` knows none of them. How it computes, and where blocks
lie, is its own: NumPy arrays and native kernels here, tensors of a device in `octavo.device`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from octavo.executor.batch import host_batch
from octavo.executor.cold_parts import ColdPart, ColdParts
from octavo.executor.draws import DeviceDraws, Draw, SamplingResult
from octavo.executor.rows import Rows
from octavo.kernels.contract import Bytes, Floats, HostBatch, Ints, KvShape, Ops, SlotMemory
from octavo.kernels.prefault import PagePrefaulter
from octavo.model.decoder import hidden_states, project
from octavo.model.spec import Model
from octavo.types import Chunk, Fork, RankState, StepPlan, StepWay


class BlockMover(Protocol):
    """Copies blocks between the pool and host memory, on the transfer thread."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block."""

    def read_block(self, block: int) -> memoryview:
        """Its bytes, until the next call."""

    def write_block(self, block: int, fill: Callable[[memoryview], bool]) -> bool:
        """Have `fill` write its bytes; False if that failed: the block holds garbage."""

    def read_into(self, places: Sequence[tuple[int, memoryview]]) -> None:
        """Copy blocks to pinned host memory, in this order."""

    def write_from(self, places: Sequence[tuple[int, memoryview]]) -> None:
        """Copy blocks from pinned host memory, in this order."""

    def fence(self) -> None:
        """Order all later calls after the work that the caller has started. The runner calls it."""

    def pin(self, memory: memoryview) -> None:
        """Pin all host memory that copies will use: a device needs it to stay in place."""

    def unpin(self) -> None:
        """Unpin it before it is freed: no copy will follow."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a device could not compute a step, in words; `is_shortage`: a smaller step may succeed."""

    text: str
    is_shortage: bool = False


@dataclass(frozen=True, slots=True)
class ColdReach:
    """The number of offload slots, from the first, in which attention can read cold blocks, and into how many
    parts a cold chunk may be cut."""

    num_slots: int = 0
    num_parts: int = 1


class Forward(Protocol):
    """Owns the bytes of the KV blocks, and computes steps over them. One thread makes all calls but the
    mover's, in order of plans; results of a step are valid until the next one runs.

    The default bodies are for a backend that uses the host's rows and tokens.
    """

    blocks: BlockMover

    def active(self) -> AbstractContextManager[object]:
        """Open while a plan is started."""
        return nullcontext()

    def warm(self, step_tokens: int, progress: Callable[[str], None]) -> None:
        """Prepare what steps of up to so many tokens need, before the first one. Raises ConfigError where
        memory does not suffice."""
        return

    def warm_more(self) -> bool:
        """Prepare one more piece that is needed less often; False: nothing is left."""
        return False

    def prepare(self, plan: StepPlan, rows: Rows) -> None:
        """Build the step's arrays; `rows` are the host's, with the plan applied. Computes nothing yet."""

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""

    def discard_blocks(self, first: int, last: int) -> None:
        """Free the memory of blocks [first, last); their content is lost."""

    def fork(self, fork: Fork) -> None:
        """Copy the parent's row to the child's, but for its choice."""
        return

    def run(self) -> None:
        """Compute the prepared step: K and V of its tokens are written."""

    def argmax(self, places: Sequence[int]) -> Ints:
        """(S,): the likeliest token of each of these hidden rows, lowest first among equals; -1 where its
        logits hold NaN or +inf, or nothing but -inf. No logits are written."""

    def logits(self, places: Sequence[int]) -> Floats:
        """(S, V) raw logits of these hidden rows; valid until the next call."""

    def hidden(self, places: Sequence[int]) -> Floats:
        """(S, E): these hidden rows, on the host; valid until the next call."""

    def draw(self, draws: Sequence[Draw]) -> DeviceDraws:
        """Start the draws that do not need the host's sampler; the request decides which."""
        return DeviceDraws(draws)

    def append(self, draws: Sequence[Draw], taken: SamplingResult) -> None:
        """Write what the host sampled for these draws into their rows."""
        return

    def describe_trouble(self, error: Exception) -> Trouble | None:
        """The trouble, if the error is the device's and other steps can go on; None: the error is a bug of
        ours."""
        return None

    def anchor(self) -> tuple[int, int] | None:
        """(address, bytes): host slots must be aligned to multiples of `bytes` from `address`; None: no
        alignment needed."""
        return None

    def read_cold_from(self, memory: SlotMemory) -> ColdReach:
        """From now on attention reads cold blocks from `memory`; returns how many slots it can reach."""
        return ColdReach()

    def cold_part(self) -> ColdPart | None:
        """The outcome of the cold chunk of the last step, if it had one."""
        return None

    def way(self) -> StepWay | None:
        """How the last step was launched; None: not on a device."""
        return None

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the memory requested at the start is there, or until the timeout; whether it is."""
        return True

    def finish(self) -> None:
        """Called when a started step has ended. Raises DeviceLost if a device was lost meanwhile."""
        return

    def check(self) -> None:
        """Raise DeviceLost if a device was lost, even while nothing runs."""
        return

    def ranks(self) -> tuple[RankState, ...]:
        """The devices that compute the model together, if there are several."""
        return ()

    def wake_when_lost(self, wake: Callable[[], None]) -> None:
        """`wake` is called once, from any thread, if a device is lost while nothing runs."""
        return

    def close(self) -> None:
        """End threads. Idempotent."""
        return


class HostBlocks:
    """A `BlockMover` over host memory (N, bytes of a block): blocks are read and written in place."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.bytes_per_block = data.shape[1]

    def read_block(self, block: int) -> memoryview:
        """The bytes of a block."""
        return memoryview(self._data[block]).toreadonly()

    def write_block(self, block: int, fill: Callable[[memoryview], bool]) -> bool:
        """Have `fill` write its bytes."""
        return fill(memoryview(self._data[block]))

    def read_into(self, places: Sequence[tuple[int, memoryview]]) -> None:
        """Copy the bytes of blocks to other memory."""
        for block, place in places:
            place[:] = self.read_block(block)

    def write_from(self, places: Sequence[tuple[int, memoryview]]) -> None:
        """Copy the bytes of blocks from other memory."""
        for block, place in places:
            memoryview(self._data[block])[:] = place

    def fence(self) -> None:
        """A copy has ended when its call returns."""

    def pin(self, memory: memoryview) -> None:
        """Nothing to do."""

    def unpin(self) -> None:
        """Nothing to do."""


class HostForward(Forward):
    """A model over the processor's own ops."""

    def __init__(
        self, model: Model, ops: Ops, shape: KvShape, num_blocks: int, ready_blocks: int = 0
    ) -> None:
        """`ready_blocks`: blocks whose memory is requested at the start."""
        pool = ops.allocate_kv(shape, num_blocks)
        self.pool = pool
        self.blocks = HostBlocks(pool.data)
        self.readying = PagePrefaulter(pool, ready_blocks)
        self._model, self._ops = model, ops
        self._cold: ColdParts | None = None
        self._chunks: tuple[Chunk, ...] = ()  # of the prepared step: those with hidden rows
        self._batch: HostBatch | None = None
        self._hidden: Floats  # (R, E) of the last step
        self._hidden_states = ops.prepare_step(lambda o, batch: hidden_states(o, model, pool, batch), pool)
        self._project = ops.prepare_rows(lambda o, x: project(o, model, x), model.spec.hidden_size)

    def prepare(self, plan: StepPlan, rows: Rows) -> None:
        """Gather tokens and block tables; begin to read cold blocks."""
        if not plan.chunks:
            return
        cold, chunks = None, plan.chunks
        if plan.has_cold:
            cold = next(chunk for chunk in chunks if chunk.is_cold)
        if self._cold is not None:
            self._cold.prepare(cold, rows)
        if cold is not None:
            chunks = tuple(chunk for chunk in chunks if chunk is not cold)
        self._batch, self._chunks = host_batch(chunks, rows) if chunks else None, plan.ended

    def read_cold_from(self, memory: SlotMemory) -> ColdReach:
        """From now on attention reads cold blocks from `memory`: host memory, and a file if a layer's bytes
        are contiguous in it."""
        if memory.pieces < self._model.spec.num_layers:
            memory = replace(memory, fd=-1, num_slots=memory.num_host)
        if memory.num_slots == 0:
            return ColdReach()
        model, pool = self._model, self.pool
        step = self._ops.prepare_cold_step(
            lambda o, batch: hidden_states(o, model, pool, batch), pool, memory
        )
        if step is None:
            return ColdReach()
        self._cold = ColdParts(step, self._model.spec.num_layers)
        return ColdReach(memory.num_slots, self._model.spec.num_layers)

    def cold_part(self) -> ColdPart | None:
        """The outcome of the step's cold chunk."""
        return None if self._cold is None else self._cold.done

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        self._ops.copy_blocks(self.pool, sources, targets)

    def discard_blocks(self, first: int, last: int) -> None:
        """Give their memory back to the system."""
        self.readying.stop()
        self._ops.discard_blocks(self.pool, first, last)

    def run(self) -> None:
        """Compute the prepared step."""
        hidden = np.empty((0, self._model.spec.hidden_size), np.float32)
        if self._batch is not None:
            hidden = self._hidden_states(self._batch)
        if self._cold is not None and self._cold.is_prepared:
            hidden = self._with_cold(hidden, self._cold.run())
        self._hidden = hidden

    def _with_cold(self, hidden: Floats, cold: Floats | None) -> Floats:
        """Hidden rows in the order of chunks: `cold` are those of the cold chunk, if it has ended."""
        if cold is None:
            return hidden
        parts, first = list[Floats](), 0
        for chunk in self._chunks:
            if chunk.is_cold:
                parts.append(cold)
                continue
            parts.append(hidden[first : first + chunk.stop - chunk.logits_from])
            first += len(parts[-1])
        return np.concatenate(parts)

    def argmax(self, places: Sequence[int]) -> Ints:
        """(S,): likeliest tokens of hidden rows."""
        return self._project.argmax(self.hidden(places))

    def logits(self, places: Sequence[int]) -> Floats:
        """(S, V): raw logits of hidden rows."""
        return self._project(self.hidden(places))

    def hidden(self, places: Sequence[int]) -> Floats:
        """(S, E): hidden rows of the step."""
        if len(places) == len(self._hidden):
            return self._hidden
        return self._ops.take(self._hidden, np.array(places, np.int32))

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the memory requested at the start is there, or until the timeout; whether it is."""
        return self.readying.wait(timeout_s)

    def close(self) -> None:
        """Stop the prefaulting threads; end reads."""
        self.readying.stop()
        if self._cold is not None:
            self._cold.close()
