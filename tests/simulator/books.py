"""What clients asked and what they were told, in random lives: every token equals the model's without paging,
every choice gets one final update, every prompt position is scored once.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulator.beams import BeamBooks
from tests.simulator.outcome import Outcome
from tests.simulator.pooling import check_told

from octavo.scheduler.long_contexts import StuckReason
from octavo.scheduler.shortage import UNREADABLE
from octavo.sim.oracle import next_token
from octavo.types import FinishReason, Request, Update

NO_MEMORY = "the device had no memory for the step"

Choice = tuple[int, int]  # request id and choice


class Books:
    """`learn` raises AssertionError at the first update that should not be."""

    def __init__(self, vocab_size: int, stop_id: int, outcome: Outcome) -> None:
        self.requests: dict[int, Request] = {}
        self.outputs: dict[Choice, list[int]] = {}
        self.finals: dict[Choice, FinishReason] = {}
        self.beams = BeamBooks(vocab_size, frozenset([stop_id]))
        self._prompt_positions: dict[int, list[int]] = {}  # that were scored, by request
        self._vocab_size, self._stop_id = vocab_size, stop_id
        self._outcome = outcome

    def learn(self, updates: Iterable[Update], now: float) -> None:
        """What clients are told at this time."""
        for update in updates:
            key = (update.request_id, update.choice)
            assert key not in self.finals, "an update after the final one"
            request, output = self.requests[update.request_id], self.outputs.setdefault(key, [])
            if request.params.beams is not None:
                self.beams.check(request, update)
                self._check_final(request, output, update, now)
                continue
            if request.params.pooling is not None:
                check_told(request, update)
            for sampled in update.tokens:
                wanted = next_token([*request.prompt, *output], request.seed, update.choice, self._vocab_size)
                assert sampled.token == wanted, f"request {key}, output {len(output)}: wrong token"
                output.append(sampled.token)
            scored = self._prompt_positions.setdefault(update.request_id, [])
            scored += [int(sampled.logprob) for sampled in update.prompt_logprobs]
            assert scored == list(range(1, len(scored) + 1)), "a prompt position is scored twice or left out"
            if update.finish is not None:
                self._check_final(request, output, update, now)

    def lose(self, request_ids: Iterable[int]) -> None:
        """The process died: whatever of these had not ended is answered by nobody."""
        for request_id in request_ids:
            for choice in range(self.requests[request_id].n):
                self.finals.setdefault((request_id, choice), FinishReason.ERROR)

    def check_complete(self) -> None:
        """Every choice has had its final update."""
        for request in self.requests.values():
            for choice in range(request.n):
                assert (request.request_id, choice) in self.finals, "a request was lost"

    def _check_final(self, request: Request, output: list[int], update: Update, now: float) -> None:
        self.finals[update.request_id, update.choice] = finish = update.finish or FinishReason.ERROR
        if finish is FinishReason.CANCELLED:
            self._outcome.cancelled += 1
            return
        if finish is FinishReason.TIMEOUT:
            given = [
                t for t in (request.timeouts.total, request.timeouts.queue, request.timeouts.first_token) if t
            ]
            assert now >= request.arrival + min(given), "it was ended before its time"
            self._outcome.timed_out += 1
            return
        if finish is FinishReason.DEAD_END:
            assert update.error == "dead end"
            self._outcome.failed += 1
            return
        if finish is FinishReason.ERROR:
            params = request.params
            needs_all = params.beams or params.prompt_logprobs is not None
            is_short = update.error in (NO_MEMORY, UNREADABLE, StuckReason.NAMELESS) and needs_all
            is_stuck = update.error in (StuckReason.FAILING, StuckReason.NO_SLOT)
            known = update.error == "poisoned" or is_short or is_stuck or request.fills_pin
            assert known, update.error
            self._outcome.failed += 1
            return
        self._outcome.finished += 1
        self._outcome.cached_tokens += update.usage.num_cached
        self._outcome.pins_filled += bool(request.fills_pin)
        self._outcome.embedded += request.params.pooling is not None
        if request.params.beams is not None or request.params.pooling is not None:
            return
        stopped = bool(output) and output[-1] == self._stop_id and not request.params.ignore_eos
        assert stopped == (finish is FinishReason.STOP)
        assert stopped or len(output) == request.max_tokens
        assert self._stop_id not in output[:-1] or request.params.ignore_eos, "tokens after the end"
        if update.choice == 0 and request.params.prompt_logprobs is not None:
            scored = self._prompt_positions[request.request_id]
            assert len(scored) == len(request.prompt) - 1, "a prompt position was never scored"
            self._outcome.prompts_scored += 1
