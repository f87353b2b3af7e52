"""The step of a model as one native call: the decoder is recorded once, its record is replayed.

    nodes (`recording.py`)  -->  phases and an arena (csrc/program.hpp)  -->  program(batch)

A replay calls the same kernels over the same rows: the bits are those of the single ops, which remain the
program's specification (tests/kernels/test_program.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo import _native
from octavo.kernels.contract import Floats, HostBatch, Ints, KvPool, RowsBody, StepBody
from octavo.kernels.packed import floats_of, floats_or_none
from octavo.kernels.panels import mixture_of, weight_of
from octavo.kernels.pool import layout_of
from octavo.kernels.recording import (
    POSITIONS,
    Activation,
    Attention,
    Embed,
    GatedActivation,
    MixtureOfExperts,
    Node,
    Product,
    Record,
    Rope,
    RowNorm,
    RowsInput,
    Scale,
    SoftCap,
    StoreKv,
    Sum,
    Take,
    record_rows,
    record_step,
)


class _NativeLowering:
    """Nodes become ops of a native program, whose buffers have numbers."""

    def __init__(self, record: Record, layers: list[_native.KvLayer]) -> None:
        self.program = _native.Program(layers)
        self.kept: list[object] = [record]  # the program reads their arrays
        self._numbers: dict[Node, int] = {}
        for node in record.nodes:
            number = self._lowered(node)
            if number is not None:
                self._numbers[node] = number
        self.program.finish(self._numbers[record.result])

    def _lowered(self, node: Node) -> int | None:
        """The number of its result; None: it has none."""
        program, at = self.program, self._numbers
        match node:
            case RowsInput(width):
                return program.given_rows(width)
            case Embed(table, rows, ()):
                return program.embed(weight_of(table), rows is POSITIONS)
            case Take(x):
                return program.take(at[x])
            case Product(x, weight, bias):
                return program.linear(at[x], weight_of(weight), floats_or_none(bias))
            case RowNorm(x, weight, bias, eps):
                if bias is None:
                    return program.rms_norm(at[x], floats_of(weight), eps)
                return program.layer_norm(at[x], floats_of(weight), floats_of(bias), eps)
            case Rope(x, cos, sin, head_size):
                return program.rope(at[x], floats_of(cos), floats_of(sin), head_size)
            case StoreKv(layer, k, v):
                program.store(layer, at[k], at[v])
                return None
            case Attention(layer, q, spec):
                sinks, slopes = floats_or_none(spec.sinks), floats_or_none(spec.slopes)
                return program.attend(layer, at[q], spec.scale, spec.window, spec.soft_cap, sinks, slopes)
            case GatedActivation(gate, up, activation):
                return program.gated(at[gate], at[up], activation)
            case Activation(x, activation):
                return program.activate(at[x], activation)
            case MixtureOfExperts(x, router_logits, experts, routing, activation, ()):
                mixture = mixture_of(experts, routing, activation)
                self.kept.append(mixture)
                return program.experts(at[x], at[router_logits], mixture)
            case Sum(x, y):
                return program.add(at[x], at[y])
            case Scale(x, factor):
                return program.scale(at[x], factor)
        assert isinstance(node, SoftCap), f"no kernel for {node}"
        return program.soft_cap(at[node.x], node.cap)


class StepProgram:
    """A recorded step. One call at a time; a result is overwritten by the next call."""

    def __init__(self, body: StepBody, pool: KvPool) -> None:
        lowering = _NativeLowering(record_step(body, pool), layout_of(pool.shape).layers(pool.data))
        self._program, self._kept = lowering.program, (lowering.kept, pool)
        self._num_blocks = pool.num_blocks

    def __call__(self, batch: HostBatch) -> Floats:
        """The body's result for this batch; ValueError or IndexError if it makes no sense."""
        result: Floats = self._program.run_step(
            batch.tokens,
            batch.positions,
            batch.starts,
            batch.offsets,
            batch.tables,
            batch.logit_rows,
            self._num_blocks,
        )
        return result


@dataclass(frozen=True, slots=True)
class ColdStats:
    """How much the cold steps of a program have read from a file, and how long they waited for it."""

    bytes_read: int
    read_wait_s: float


class ColdStepProgram:
    """A recorded step whose block tables may name slots of a second memory; it runs in several calls.

        begin(batch)  -->  advance(tables, num_layers), None while layers are left  -->  the result
                      -->  abandon()

    One step at a time, and one program at a time over one second memory. Bits are those of `StepProgram` over
    a pool with all blocks. An entry >= `COLD_FIRST` names a slot; the step writes only blocks of the pool.
    """

    def __init__(self, body: StepBody, pool: KvPool, memory: _native.SecondMemory) -> None:
        lowering = _NativeLowering(record_step(body, pool), layout_of(pool.shape).layers(pool.data))
        self._program, self._kept = lowering.program, (lowering.kept, pool, memory)
        self._num_blocks, self._memory = pool.num_blocks, memory

    def begin(self, batch: HostBatch) -> None:
        """Copy the batch and start to read ahead.

        Raises ValueError or IndexError for an invalid batch, RuntimeError if a step is in progress already,
        or another program uses the memory.
        """
        self._program.begin_step(
            batch.tokens,
            batch.positions,
            batch.starts,
            batch.offsets,
            batch.tables,
            batch.logit_rows,
            self._num_blocks,
            self._memory,
        )

    def advance(self, tables: Ints, num_layers: int) -> Floats | None:
        """Run until `num_layers` more layers have attended; after the last layer run to the end, and return
        the result's rows, overwritten by the next step.

        `tables` (C, W) replace the earlier ones: blocks may have moved, with the K and V that the step itself
        has stored. If cold entries differ, the read-ahead is dropped. ValueError or IndexError leave the step
        unchanged.
        """
        result: Floats | None = self._program.advance(tables, num_layers)
        return result

    def abandon(self) -> None:
        """Wait for reads in flight and drop the step, if there is one."""
        self._program.abandon()

    def failed_slots(self) -> list[int]:
        """Slots, ascending, that the last step (ended or abandoned) could not read: if any, its result is
        invalid."""
        return self._program.failed_slots()

    def stats(self) -> ColdStats:
        """The totals of all steps so far."""
        return ColdStats(*self._program.cold_stats())


class RowsProgram:
    """A recorded function of rows. One call at a time; a result is overwritten by the next call."""

    def __init__(self, body: RowsBody, width: int) -> None:
        lowering = _NativeLowering(record_rows(body, width), [])
        self._program, self._kept = lowering.program, lowering.kept

    def __call__(self, x: Floats) -> Floats:
        """The body's result for rows x (R, width)."""
        result: Floats = self._program.run_rows(x)
        return result

    def argmax(self, x: Floats) -> Ints:
        """(R,): where each row of that result is largest, or -1; the result itself is not made."""
        out = np.empty(x.shape[0], np.int32)
        self._program.run_rows_argmax(x, out)
        return out
