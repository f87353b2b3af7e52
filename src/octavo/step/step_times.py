"""The one model of step times: learned from each measured step, read by all parts that plan.

    work of a step    rows that decode, guesses, positions of prompts, positions that attention reads
    seconds           decoding part + position_s * positions of prompts + prompt_read_s * what they read
    decoding part     the size's cost (`SizeCosts`: sizes do not cost in proportion) + read_s * what it reads

`position_s`, `read_s` and `prompt_read_s` come from a least-squares fit of the last few hundred steps, in
which errors are relative and nothing is negative. Of an error that lasts, `pace` follows a fifth at each
step with a prompt, so a machine that other programs slow down is followed within ten steps. A step that took
more than `OUTLIER` times what was predicted counts as that much. `residuals` are the logarithms of measured
over predicted, of the last steps: what a prediction is worth.

Steps that compute cold blocks are not observed here. The model is arithmetic of Python floats alone: a
recording gives the same figures on every machine.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.averages import smoothed
from octavo.step.size_costs import SizeCosts
from octavo.types import Chunk

OUTLIER = 4.0
GAP_MAX_S = 0.1
_KEPT = 0.996  # of the weight of earlier steps, by each new one: half of it after 170
_PACE_GAIN, _PACE_MAX = 0.2, 4.0
_AVERAGE_GAIN = 0.1
_REFIT_STEPS, _SWEEPS = 16, 24
_RESIDUALS = 512
_READS = 1000.0  # positions read are counted in thousands, so that the fit's numbers are of one order
_POSITION, _BASE, _ROW, _READ, _PROMPT_READ = range(5)
_NUM_TERMS = 5


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes."""

    decoding: int = 0  # sequences that decode: a position each
    guesses: int = 0
    prompt: int = 0  # positions of prompts
    read: int = 0  # positions that decoding sequences' attention reads
    prompt_read: int = 0  # the same for prompts: each position reads those before it

    @property
    def positions(self) -> int:
        """The number of computed positions."""
        return self.decoding + self.guesses + self.prompt


def work_of(chunks: Iterable[Chunk]) -> StepWork:
    """The work of a plan's chunks. O(chunks)."""
    decoding = guesses = prompt = read = prompt_read = 0
    for chunk in chunks:
        length = chunk.length
        if length == 1:
            decoding += 1
            read += chunk.start + 1
        elif chunk.drafts:
            decoding += 1
            guesses += length - 1
            read += chunk.start + length
        else:
            prompt += length
            prompt_read += length * chunk.start + length * (length + 1) // 2
    return StepWork(decoding, guesses, prompt, read, prompt_read)


class StepTimes:
    """Learns with `observe`; every other method only reads. Times are in seconds."""

    def __init__(self, sizes: SizeCosts | None = None) -> None:
        self.sizes = SizeCosts() if sizes is None else sizes  # of steps without prompts
        self.step_s: float | None = None  # of a step, on average
        self.between_s = 0.0  # from one step's end to the next one's begin, on average
        self.residuals: deque[float] = deque(maxlen=_RESIDUALS)
        self._fit = LeastSquares()
        self._pace = 1.0
        self._read_each = 0.0  # positions that a decoding sequence's attention reads, on average
        self._prompt_read_each = 0.0  # the same for a position of a prompt

    @property
    def position_s(self) -> float | None:
        """One more position of a prompt; None: no step with a prompt and others was measured."""
        fit = self._fit
        if not fit.has_prompts:
            return None
        seconds = fit.terms[_POSITION] + fit.terms[_PROMPT_READ] * self._prompt_read_each / _READS
        return self._pace * seconds or None

    def decode_s(self, num_decoding: int) -> float | None:
        """A step that only decodes, with contexts as of late; None: none was measured. Of no sequence 0."""
        if num_decoding == 0:
            return 0.0
        if not self.sizes.is_measured:
            return None
        read_s = self._fit.terms[_READ] * num_decoding * self._read_each / _READS
        return self.sizes.seconds(num_decoding) + read_s

    def predicted_s(self, work: StepWork) -> float | None:
        """The step's own time; None: too little is known."""
        terms, num_rows = self._fit.terms, work.decoding + work.guesses
        read_s = terms[_READ] * work.read / _READS
        prompt_s = terms[_POSITION] * work.prompt + terms[_PROMPT_READ] * work.prompt_read / _READS
        if work.prompt and not self._fit.has_prompts:
            return None
        if num_rows == 0:
            return self._pace * (terms[_BASE] + prompt_s)
        if not self.sizes.is_measured:
            return None
        return self.sizes.seconds(num_rows) + read_s + self._pace * prompt_s

    def observe(self, work: StepWork, seconds: float, *, is_typical: bool = True) -> None:
        """A step took so long; 0: it was not measured, and says nothing. Not `is_typical`: later steps of its
        size will be faster."""
        if seconds <= 0.0 or work.positions == 0:
            return
        self.step_s = smoothed(self.step_s, seconds, _AVERAGE_GAIN)
        predicted = self.predicted_s(work)
        if predicted is not None and predicted > 0.0:
            ratio = min(OUTLIER, max(1.0 / OUTLIER, seconds / predicted))
            self.residuals.append(math.log(ratio))
            if work.prompt:
                share = 1.0 if not work.decoding else min(1.0, work.prompt / work.positions)
                self._pace = min(_PACE_MAX, max(1 / _PACE_MAX, self._pace * ratio ** (_PACE_GAIN * share)))
            seconds = ratio * predicted
        num_rows = work.decoding + work.guesses
        if work.decoding:
            self._read_each += _AVERAGE_GAIN * (work.read / work.decoding - self._read_each)
        if work.prompt:
            self._prompt_read_each += _AVERAGE_GAIN * (
                work.prompt_read / work.prompt - self._prompt_read_each
            )
        self._fit.add(work, seconds)
        if not work.prompt and is_typical:
            self.sizes.observe(
                num_rows, max(0.5 * seconds, seconds - self._fit.terms[_READ] * work.read / _READS)
            )

    def observe_gap(self, seconds: float) -> None:
        """From one step's end to the next one's begin; a longer one than `GAP_MAX_S` counts as that."""
        self.between_s = smoothed(self.between_s, min(GAP_MAX_S, seconds), _PACE_GAIN)


@dataclass(slots=True)
class LeastSquares:
    """Least squares over (prompt positions, 1, rows, reads, prompt reads), nothing below 0.

    `terms` are seconds each. What two terms explain alike is the first one's: where only steps with prompts
    were measured, all is the prompts'.
    """

    kept: float = _KEPT  # of the weight of earlier steps, by each new one
    terms: list[float] = field(default_factory=lambda: [0.0] * _NUM_TERMS)
    has_prompts: bool = False
    _products: list[list[float]] = field(
        default_factory=lambda: [[0.0] * _NUM_TERMS for _ in range(_NUM_TERMS)]
    )
    _values: list[float] = field(default_factory=lambda: [0.0] * _NUM_TERMS)
    _num_steps: int = 0

    @staticmethod
    def features(work: StepWork) -> tuple[float, ...]:
        """The factors of the terms."""
        rows = work.decoding + work.guesses
        return work.prompt, 1.0, rows, work.read / _READS, work.prompt_read / _READS

    def add(self, work: StepWork, seconds: float) -> None:
        """A step took so long: each one's error counts in proportion to its time."""
        weight, values = 1.0 / seconds, self._values
        x = [feature * weight for feature in self.features(work)]
        for i, row in enumerate(self._products):
            values[i] = self.kept * values[i] + x[i]
            for j in range(i + 1):
                row[j] = self.kept * row[j] + x[i] * x[j]
        self._num_steps += 1
        self.has_prompts = self.has_prompts or work.prompt > 0
        if self._num_steps <= 4 * _REFIT_STEPS or self._num_steps % _REFIT_STEPS == 0:
            self.solve()

    def solve(self) -> None:
        """Go from the last terms towards the best ones, one term at a time."""
        products, values, terms = self._products, self._values, self.terms
        for _ in range(_SWEEPS):
            for i in range(_NUM_TERMS):
                own = products[i][i]
                if own > 0.0:
                    others = sum(
                        (products[i][j] if j < i else products[j][i]) * terms[j]
                        for j in range(_NUM_TERMS)
                        if j != i
                    )
                    terms[i] = max(0.0, (values[i] - others) / own)
