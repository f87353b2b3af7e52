"""A target for the time to the first token: what each arrival is predicted to wait, and who is sent away.

    positions    of running prompts, of prompts that wait and rank before it, and its own that are not cached
    steps        positions / what a step has for prompts beside those that decode now
    gaps         where rows or blocks are short: the mean time between ends, for each that ranks before it
    predicted    (steps * seconds of such a step + gaps) * how far predictions were off lately

What ranks higher is predicted less and so is sent away last. A target ends nothing: who was taken stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.averages import smoothed
from octavo.errors import QueueFull
from octavo.memory.names import hits_max
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.planner import Planner
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.waits import WaitReason
from octavo.step.context import Context
from octavo.types import Request

_GAIN = 0.1
_BIAS_MAX = 4.0
_FULL = frozenset({WaitReason.ROWS, WaitReason.BLOCKS, WaitReason.TARGET})


@dataclass(eq=False)
class FirstTokens:
    """Predicts and counts where there is a target; else it does nothing. Seconds on the engine's clock."""

    _context: Context
    _live: LiveSequences
    _planner: Planner

    def __post_init__(self) -> None:
        self.seconds = self._context.config.target_ttft_s
        self.num_predicted = 0  # arrivals that were taken and got a first token
        self.num_late = 0  # of them, those that got it after the target
        self.num_shed = 0  # that were sent away
        self.last_predicted_s = 0.0
        self._bias = 1.0
        self._end_gap_s: float | None = None
        self._ended_at: float | None = None
        self._predicted: dict[int, float] = {}  # by request, until its first token
        if self.seconds is not None:
            self._live.on_first_token.append(self._note_token)
            self._live.on_gone.append(self._note_gone)

    def take(self, request: Request, names: Many[bytes]) -> None:
        """Predict for a request that would be queued. Raises QueueFull where it would be late, and such are
        sent away."""
        if self.seconds is None:
            return
        predicted_s = self.predicted_s(request, names)
        if predicted_s is None:
            return
        self.last_predicted_s = predicted_s
        if predicted_s > self.seconds and self._context.config.shed and self._live.unfinished:
            self.num_shed += 1
            after_s = predicted_s - self.seconds
            raise QueueFull(
                f"the first token would come after about {predicted_s:.1f} s; allowed: {self.seconds:g} s "
                f"(setting target_ttft); try again in {math.ceil(after_s)} s",
                retry_after_s=after_s,
            )
        self._predicted[request.request_id] = predicted_s

    def predicted_s(self, request: Request, names: Many[bytes]) -> float | None:
        """From now to its first token; None: too little was measured. O(requests)."""
        times, live, size = self._context.times, self._live, self._context.ledger.block_size
        before = [s for s in live.waiting.line if s.rank <= (-request.priority, request.request_id, 0)]
        decoding = sum(s.remaining <= 1 for s in live.running)
        hits = self._context.ledger.find_prefix(names[: hits_max(len(request.prompt), size)])
        own = len(request.prompt) - hits * size
        positions = own + sum(s.remaining for s in live.running if s.remaining > 1)
        positions += sum(s.remaining for s in before)
        num_prompts = 1 + len(before) + len(live.running) - decoding
        budget = max(1, min(positions, self._planner.prompt_budget(decoding, num_prompts)))
        decode_s, position_s = times.decode_s(decoding), times.position_s
        if decode_s is None or position_s is None:
            return None
        steps = -(-positions // budget)
        seconds = steps * (decode_s + times.between_s) + positions * position_s
        if self._end_gap_s is not None and (
            live.num_free_rows < request.n or any(s.queue.wait.reason in _FULL for s in before)
        ):
            seconds += (len(before) + request.n) * self._end_gap_s
        return seconds * self._bias

    def _note_token(self, sequence: Sequence) -> None:
        """A sequence's first token came now."""
        predicted_s = self._predicted.pop(sequence.request.request_id, None)
        if predicted_s is None:
            return
        assert self.seconds is not None
        taken_s = self._context.now - sequence.request.arrival
        self.num_predicted += 1
        self.num_late += taken_s > self.seconds
        if predicted_s > 0.0 and taken_s > 0.0:
            ratio = min(_BIAS_MAX, max(1 / _BIAS_MAX, taken_s / predicted_s))
            self._bias = min(_BIAS_MAX, max(1 / _BIAS_MAX, self._bias * ratio**_GAIN))

    def _note_gone(self, request: Request) -> None:
        """It has ended: whoever waits is nearer to its turn."""
        self._predicted.pop(request.request_id, None)
        now = self._context.now
        if self._ended_at is not None and self._live.waiting.line:
            self._end_gap_s = smoothed(self._end_gap_s, now - self._ended_at, _GAIN)
        self._ended_at = now
