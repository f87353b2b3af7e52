"""The step of a model as one native call: the decoder runs once over a recorder, its record is replayed.

    body(recorder, batch)  -->  ops in order  -->  phases and an arena (csrc/program.hpp)  -->  program(batch)

The recorder offers the same ops as `NativeOps` and is given the same function; what it passes around are
numbers of buffers instead of arrays. A replay calls the same kernels over the same rows: the bits are those
of the eager ops, which stay as the program's specification (tests/kernels/test_program.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo import _native
from octavo.kernels import packed
from octavo.kernels.contract import (
    AttentionSpec,
    Batch,
    Expert,
    Floats,
    HostBatch,
    Ints,
    KvPool,
    Matrix,
    Routing,
    RowsBody,
    StepBody,
    Vector,
)
from octavo.kernels.mixture import mixture_of, weight_of
from octavo.kernels.pool import layout_of

# Stands for the step's own arrays while recording: an op is told by identity which of them it was given.
_EMPTY = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Slot:
    """A buffer of the program, by number."""

    number: int


class OpRecorder:
    """The ops of a step, written down instead of done. Holds on to every array that the program will read."""

    def __init__(self, pool: KvPool | None) -> None:
        layers = [] if pool is None else layout_of(pool.shape).layers(pool.data)
        self.program = _native.Program(layers)
        self.kept: list[object] = [pool]
        self.batch: HostBatch = Batch(
            tokens=_EMPTY.copy(),
            positions=_EMPTY.copy(),
            starts=_EMPTY,
            offsets=_EMPTY,
            tables=_EMPTY.reshape(0, 0),
            logit_rows=_EMPTY.copy(),
        )

    def given_rows(self, width: int) -> Slot:
        """Rows that come from outside, (R, width)."""
        return Slot(self.program.given_rows(width))

    def embed(self, table: Matrix, tokens: Ints) -> Slot:
        """Rows of the table for the step's tokens or positions."""
        assert tokens is self.batch.tokens or tokens is self.batch.positions, "not an array of the step"
        return Slot(self.program.embed(self._weight(table), tokens is self.batch.positions))

    def take(self, x: Slot, rows: Ints) -> Slot:
        """The rows whose logits are wanted."""
        assert rows is self.batch.logit_rows, "not an array of the step"
        return Slot(self.program.take(x.number))

    def linear(self, x: Slot, weight: Matrix, bias: Vector | None = None) -> Slot:
        """(T, in) -> (T, out)."""
        self.kept.append(bias)
        return Slot(self.program.linear(x.number, self._weight(weight), packed.floats_or_none(bias)))

    def rms_norm(self, x: Slot, weight: Vector, eps: float) -> Slot:
        """Over the last `len(weight)` elements of each row."""
        self.kept.append(weight)
        return Slot(self.program.rms_norm(x.number, packed.floats_of(weight), eps))

    def layer_norm(self, x: Slot, weight: Vector, bias: Vector, eps: float) -> Slot:
        """(T, E) -> (T, E)."""
        self.kept += [weight, bias]
        weight, bias = packed.floats_of(weight), packed.floats_of(bias)
        return Slot(self.program.layer_norm(x.number, weight, bias, eps))

    def rope(self, x: Slot, positions: Ints, cos: Vector, sin: Vector, head_size: int) -> Slot:
        """Rotate halves of each head."""
        assert positions is self.batch.positions, "not an array of the step"
        self.kept += [cos, sin]
        return Slot(self.program.rope(x.number, packed.floats_of(cos), packed.floats_of(sin), head_size))

    def store(self, pool: KvPool, layer: int, k: Slot, v: Slot, batch: HostBatch) -> None:
        """Write K and V of the step's tokens into their slots of `layer`."""
        self._require_own(pool, batch)
        self.program.store(layer, k.number, v.number)

    def attend(
        self,
        pool: KvPool,
        layer: int,
        q: Slot,
        batch: HostBatch,
        spec: AttentionSpec,
        log_sum_exp: Slot | None = None,
    ) -> Slot:
        """(T, H * D) -> (T, H * D): causal attention over the block tables."""
        self._require_own(pool, batch)
        assert log_sum_exp is None, "a recorded step has no second result"
        self.kept += [spec.sinks, spec.slopes]
        sinks, slopes = packed.floats_or_none(spec.sinks), packed.floats_or_none(spec.slopes)
        return Slot(
            self.program.attend(layer, q.number, spec.scale, spec.window, spec.soft_cap, sinks, slopes)
        )

    def gated(self, gate: Slot, up: Slot, activation: str) -> Slot:
        """activation(gate) * up."""
        return Slot(self.program.gated(gate.number, up.number, activation))

    def activate(self, x: Slot, activation: str) -> Slot:
        """activation(x)."""
        return Slot(self.program.activate(x.number, activation))

    def experts(
        self, x: Slot, router_logits: Slot, experts: Sequence[Expert], routing: Routing, activation: str
    ) -> Slot:
        """(T, E), (T, X) -> (T, E): each row's weighted sum."""
        mixture = mixture_of(experts, routing, activation)
        self.kept += [experts, mixture]
        return Slot(self.program.experts(x.number, router_logits.number, mixture))

    def add(self, x: Slot, y: Slot) -> Slot:
        """x + y."""
        return Slot(self.program.add(x.number, y.number))

    def scale(self, x: Slot, factor: float) -> Slot:
        """x * factor, the factor rounded to float32 first."""
        return Slot(self.program.scale(x.number, factor))

    def soft_cap(self, x: Slot, cap: float) -> Slot:
        """cap * tanh(x / cap)."""
        return Slot(self.program.soft_cap(x.number, cap))

    def _require_own(self, pool: KvPool, batch: HostBatch) -> None:
        assert pool is self.kept[0], "a program is recorded over one pool"
        assert batch is self.batch, "not the step's batch"

    def _weight(self, matrix: Matrix) -> _native.Weight:
        self.kept.append(matrix)
        return weight_of(matrix)


class StepProgram:
    """A recorded step. One call at a time; a result is overwritten by the next call."""

    def __init__(self, body: StepBody, pool: KvPool) -> None:
        recorder = OpRecorder(pool)
        recorder.program.finish(body(recorder, recorder.batch).number)
        self._program, self._kept, self._num_blocks = recorder.program, recorder.kept, pool.num_blocks

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


class RowsProgram:
    """A recorded function of rows. One call at a time; a result is overwritten by the next call."""

    def __init__(self, body: RowsBody, width: int) -> None:
        recorder = OpRecorder(None)
        recorder.program.finish(body(recorder, recorder.given_rows(width)).number)
        self._program, self._kept = recorder.program, recorder.kept

    def __call__(self, x: Floats) -> Floats:
        """The body's result for rows x (R, width)."""
        result: Floats = self._program.run_rows(x)
        return result

    def argmax(self, x: Floats) -> Ints:
        """(R,): where each row of that result is largest, or -1; the result itself is not made."""
        out = np.empty(x.shape[0], np.int32)
        self._program.run_rows_argmax(x, out)
        return out
