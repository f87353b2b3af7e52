"""Chunks of sequences with cold blocks: one at a time, in parts.

    plan t      others' chunks    layers [0, 4) of a cold chunk
    plan t + 1  others' chunks    layers [4, 8)                      ... its sample comes with the last part

All of a cold prefix is read for each chunk, layer by layer, which takes many times a usual step. So others
compute their next tokens between two parts. What a part takes is measured: it is about what others' step
takes, or `ALONE_S` where nothing else runs. A prompt's chunk of one layer may be longer than that: then the
next has fewer positions, down to `POSITIONS_MIN`.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.averages import smoothed
from octavo.scheduler.long_contexts import LongContexts
from octavo.scheduler.planner import Planner
from octavo.scheduler.sequence import InFlightChunk, Sequence, State
from octavo.step.context import Context
from octavo.types import StepPlan, StepResult

ALONE_S = 0.25  # for a part, if no running sequence waits for it
POSITIONS_MIN = 16
_SMOOTHING = 0.2


@dataclass(slots=True, eq=False)
class _StartedChunk:
    """A chunk of which a part is planned and another is not."""

    sequence: Sequence
    preemptions: int
    length: int
    next_part: int
    num_parts: int

    @property
    def is_current(self) -> bool:
        """False where the sequence was preempted or has ended since."""
        return self.sequence.state is State.RUNNING and self.preemptions == self.sequence.preemptions


class ColdChunks:
    """Plans a part of one cold chunk, and learns what parts take."""

    def __init__(self, context: Context, planner: Planner, long_contexts: LongContexts) -> None:
        self._context = context
        self._planner = planner
        self._long_contexts = long_contexts
        self._begun: _StartedChunk | None = None
        self._last = -1  # id of the sequence whose turn it was
        self._positions = context.config.step_tokens  # of a prompt's chunk, in steps with others
        self._step_s: float | None = None  # others' tokens, without a prompt
        # A layer of a cold chunk, by whether it is a prompt's.
        self._layer_s: dict[bool, float] = {}
        self._num_cold = 0  # blocks, of the chunk that was begun last
        self.blocks_per_s: float | None = None  # that a token's attention reads; None: not measured

    def turns(self, ready: list[Sequence], others: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Sequences with cold blocks in turn, and positions for each: that alone whose chunk is begun, else
        all that are ready. `others` are the grants of those without. Where a chunk is not cut it is part of
        their step: it has what they leave of its positions, and one of theirs where they leave none."""
        if self._begun is not None and not self._begun.is_current:
            self._begun = self._long_contexts.in_parts = None
        if self._begun is not None:
            return [(self._begun.sequence, self._begun.length)]
        ready.sort(key=lambda s: (s.seq_id <= self._last, s.seq_id))
        limit = min(self._context.step_tokens, self._positions) if others else self._context.step_tokens
        if self._context.config.parts_max == 1:
            limit = min(limit, self._left_by(others))
        return [(s, min(s.remaining, limit)) for s in ready]

    def _left_by(self, others: list[tuple[Sequence, int]]) -> int:
        """Positions of the step that they leave. Where that is none, the largest chunk leaves one; where all
        are of one position, the last in rank pauses."""
        left = self._context.step_tokens - sum(grant for _, grant in others)
        if left > 0:
            return left
        largest = max(range(len(others)), key=lambda i: others[i][1])
        sequence, grant = others[largest]
        if grant > 1:
            others[largest] = (sequence, grant - 1)
        else:
            others.pop()
        return 1

    def plan(self, sequence: Sequence, grant: int, in_flight: list[InFlightChunk], *, is_alone: bool) -> bool:
        """The next part of its chunk, which is reserved when it begins. False where blocks are short."""
        started = self._begun
        if started is None:
            length = self._planner.reserve(sequence, grant)
            if length == 0:
                return False
            assert sequence.table is not None
            self._last, self._num_cold = sequence.seq_id, len(sequence.table.cold)
            started = _StartedChunk(
                sequence, sequence.preemptions, length, 0, self._num_parts(length, is_alone)
            )
        part, started.next_part = started.next_part, started.next_part + 1
        self._begun = started if started.next_part < started.num_parts else None
        self._long_contexts.in_parts = None if self._begun is None else sequence
        self._planner.add_chunk(sequence, started.length, in_flight, (part, started.num_parts))
        return True

    def _num_parts(self, length: int, is_alone: bool) -> int:
        parts_max, layer_s = self._context.config.parts_max, self._layer_s.get(length > 1)
        wanted = ALONE_S if is_alone else self._step_s
        if layer_s is None or wanted is None:
            return parts_max
        layers = max(1, min(parts_max, int(wanted / layer_s)))
        return -(-parts_max // layers)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """A step took so long; of it its cold part."""
        if result.seconds <= 0.0:
            return
        others = [chunk for chunk in plan.chunks if not chunk.is_cold]
        if others and all(chunk.continues for chunk in others):
            self._step_s = smoothed(self._step_s, result.seconds - result.cold_seconds, _SMOOTHING)
        cold = next((chunk for chunk in plan.chunks if chunk.is_cold), None)
        if cold is None or result.cold_seconds <= 0.0:
            return
        is_prompt, parts_max = cold.length > 1, self._context.config.parts_max
        layer_s = result.cold_seconds * cold.num_parts / parts_max
        self._layer_s[is_prompt] = smoothed(self._layer_s.get(is_prompt), layer_s, _SMOOTHING)
        if not is_prompt:
            self.blocks_per_s = smoothed(
                self.blocks_per_s, self._num_cold / (layer_s * parts_max), _SMOOTHING
            )
        if is_prompt and self._step_s is not None and len(plan.chunks) > 1 and cold.is_last_part:
            if layer_s > 2 * self._step_s:
                self._positions = max(POSITIONS_MIN, cold.length // 2)
            elif 2 * layer_s < self._step_s:
                self._positions = min(self._context.config.step_tokens, 2 * cold.length)
