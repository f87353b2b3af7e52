"""A target for the time to first token: predicts it for each arrival, and sheds requests that would miss it.

    positions    of running prompts, of waiting prompts before it, and its own that are not cached
    steps        positions / a step's prompt positions next to the sequences that decode now
    gaps         without free rows or blocks: the mean time between ends, for each that ranks before it
    predicted    (steps * seconds of such a step + gaps) * recent error of the predictions

Waiting prompts of a higher priority, and earlier ones of the tenant, come before it; of each other tenant as
many as its own tenant has, since tenants take turns. So a higher priority is shed last, and a tenant that
floods the queue sheds its own requests. The target ends no accepted request.
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
    """Predicts and counts if there is a target; else does nothing. Seconds on the engine's clock."""

    _context: Context
    _live: LiveSequences
    _planner: Planner

    def __post_init__(self) -> None:
        self.seconds = self._context.config.target_ttft_s
        self.num_predicted = 0  # accepted arrivals that got a first token
        self.num_late = 0  # of these, after the target
        self.num_shed = 0  # shed arrivals
        self.last_predicted_s = 0.0
        self._bias = 1.0
        self._end_gap_s: float | None = None
        self._ended_at: float | None = None
        self._predicted: dict[int, float] = {}  # by request, until its first token
        if self.seconds is not None:
            self._live.on_first_token.append(self._note_token)
            self._live.on_gone.append(self._note_gone)

    def take(self, request: Request, names: Many[bytes]) -> None:
        """Predict for a request about to be queued. Raises QueueFull if it would be late and shedding is
        on."""
        if self.seconds is None:
            return
        predicted_s = self.predicted_s(request, names)
        if predicted_s is None:
            return
        self.last_predicted_s = predicted_s
        if predicted_s > self.seconds and self._context.config.shed and self._live.unfinished:
            self.num_shed += 1
            after_s = min(RETRY_MAX_S, predicted_s - self.seconds)
            about = "" if request.tenant else f" of about {predicted_s:.1f} s"  # hides others' load
            raise QueueFull(
                f"the first token would come after a wait{about}; allowed: {self.seconds:g} s (setting "
                f"target_ttft); try again in {math.ceil(after_s)} s",
                retry_after_s=after_s,
            )
        self._predicted[request.request_id] = predicted_s

    def predicted_s(self, request: Request, names: Many[bytes]) -> float | None:
        """Seconds from now to its first token; None: too few measurements. O(requests)."""
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
        """Prompt positions computed before the request's first token, its `own` included; how many sequences
        wait before it; whether rows or blocks keep one of them out."""
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
        """A sequence has its first token."""
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
        """A request has ended: the queue advances."""
        self._predicted.pop(request.request_id, None)
        now, is_queue = self._context.now, bool(self._live.waiting.line)
        if self._ended_at is not None and is_queue:
            self._end_gap_s = smoothed(self._end_gap_s, now - self._ended_at, _GAIN)
        self._ended_at = now if is_queue else None  # without a queue the next gap is no service time
