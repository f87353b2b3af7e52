"""A target for the time to the first token: what each arrival is predicted to wait, and who is sent away.

    positions    of running prompts, of prompts that wait and come before it, and its own that are not cached
    steps        positions / what a step has for prompts beside those that decode now
    gaps         where rows or blocks are short: the mean time between ends, for each that ranks before it
    predicted    (steps * seconds of such a step + gaps) * how far predictions were off lately

Of prompts that wait, those of a higher priority and the tenant's own earlier ones come before it; of another
tenant as much as its own tenant has, since tenants take turns. So a higher priority is sent away last, and a
tenant that floods the queue is, not the others. A target ends nothing: who was taken stays.
"""

from __future__ import annotations

import math
from collections import Counter
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
RETRY_MAX_S = 60.0
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
            after_s = min(RETRY_MAX_S, predicted_s - self.seconds)
            about = "" if request.tenant else f" of about {predicted_s:.1f} s"  # others' load is not told
            raise QueueFull(
                f"the first token would come after a wait{about}; allowed: {self.seconds:g} s (setting "
                f"target_ttft); try again in {math.ceil(after_s)} s",
                retry_after_s=after_s,
            )
        self._predicted[request.request_id] = predicted_s

    def predicted_s(self, request: Request, names: Many[bytes]) -> float | None:
        """From now to its first token; None: too little was measured. O(requests)."""
        times, live, size = self._context.times, self._live, self._context.ledger.block_size
        decoding = sum(s.remaining <= 1 for s in live.running)
        hits = self._context.ledger.find_prefix(names[: hits_max(len(request.prompt), size)])
        before, num_before, is_full = self._waiting_before(request, len(request.prompt) - hits * size)
        positions = before + sum(s.remaining for s in live.running if s.remaining > 1)
        num_prompts = 1 + num_before + len(live.running) - decoding
        budget = max(1, min(positions, self._planner.prompt_budget(decoding, num_prompts)))
        decode_s, position_s = times.decode_s(decoding), times.position_s
        if decode_s is None or position_s is None:
            return None
        steps = -(-positions // budget)
        seconds = steps * (decode_s + times.between_s) + positions * position_s
        if self._end_gap_s is not None and (live.num_free_rows < request.n or is_full):
            seconds += (num_before + request.n) * self._end_gap_s
        return seconds * self._bias

    def _waiting_before(self, request: Request, own: int) -> tuple[int, int, bool]:
        """Positions of prompts that are computed before the request's first token, its `own` included; how
        many sequences wait before it; whether rows or blocks keep one of them out."""
        positions, counts, is_full = Counter({request.tenant: own}), Counter({request.tenant: 0}), False
        first, num_first = 0, 0  # of higher priorities
        for s in self._live.waiting.line:
            if s.rank > (-request.priority, request.request_id, 0):
                continue
            is_full = is_full or s.queue.wait.reason in _FULL
            if s.rank[0] < -request.priority:
                first, num_first = first + s.remaining, num_first + 1
            else:
                positions[s.request.tenant] += s.remaining
                counts[s.request.tenant] += 1
        own, num_own = positions[request.tenant], counts[request.tenant]
        positions_all = first + sum(min(own, one) for one in positions.values())
        return positions_all, num_first + sum(min(num_own + 1, one) for one in counts.values()), is_full

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
        now, is_queue = self._context.now, bool(self._live.waiting.line)
        if self._ended_at is not None and is_queue:
            self._end_gap_s = smoothed(self._end_gap_s, now - self._ended_at, _GAIN)
        self._ended_at = now if is_queue else None  # without a queue the next end says nothing
