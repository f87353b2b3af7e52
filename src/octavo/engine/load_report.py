"""What a replica reports of its work to a router: its queue, and what its steps take.

Prompts that wait count without the blocks that are found for them, which are looked up once for each request.
"""

from __future__ import annotations

from collections import Counter

from octavo.averages import smoothed
from octavo.errors import QueueFull
from octavo.memory.names import hits_max
from octavo.routing.reports import LENGTHS, Load, StepModel
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from octavo.step.step_times import StepWork
from octavo.types import Request

_GAIN = 0.1
_READ = 1_000_000  # positions, to learn what one costs
_TENANTS_MAX = 32


class LoadReporter:
    """Reports the load of one scheduler. Called on its thread. Seconds are of the engine's clock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._found: dict[int, int] = {}  # positions of prompts that wait, by request
        self._end_gap_s: float | None = None
        self._ended_at: float | None = None
        scheduler.live.on_gone.append(self._note_gone)

    def report(self, *, is_draining: bool = False) -> Load:
        """The work as it is now. O(requests)."""
        scheduler = self._scheduler
        live, pool = scheduler.live, scheduler.ledger.pool
        prompts = [(s.num_planned, s.known) for s in live.running if s.remaining > 1]
        num_decoding = len(live.running) - len(prompts)
        prompts += [(self._cached(s), s.known) for s in live.waiting]
        model = self._model(num_decoding, len(prompts))
        by_length, counts = [0.0] * LENGTHS, [0] * LENGTHS
        for start, stop in prompts:
            own_s = (stop - start) * 1e-4 if model is None else model.prefill_s(start, stop)
            length = min(LENGTHS - 1, (stop - start).bit_length())
            by_length[length] += own_s
            counts[length] += 1
        num_waiting = len(live.waiting)
        return Load(
            len(live.running),
            num_waiting,
            sum(stop - start for start, stop in prompts),
            tuple(by_length),
            sum(max(0, s.max_length - max(s.num_prompt, s.known)) for s in (*live.running, *live.waiting)),
            pool.num_available,
            pool.num_blocks,
            len(live) >= scheduler.config.max_waiting,  # where its host takes no more
            is_draining,
            model,
            self._tenants_full(),
            tuple(counts),
        )

    def _cached(self, sequence: Sequence) -> int:
        """Positions of a waiting sequence that were found when it was first seen here."""
        request_id = sequence.request.request_id
        found = self._found.get(request_id)
        if found is None:
            ledger, tier = self._scheduler.ledger, self._scheduler.transfers.tier
            names = sequence.chain.names[: hits_max(sequence.num_prompt, ledger.block_size)]
            hits = ledger.find_prefix(names)
            while tier is not None and hits < len(names) and names[hits] in tier:
                hits += 1
            found = self._found[request_id] = ledger.block_size * hits
        return min(found, sequence.known)

    def _model(self, num_decoding: int, num_prompts: int) -> StepModel | None:
        """The times of steps; None: too few were measured."""
        scheduler = self._scheduler
        times, step_tokens = scheduler.context.times, scheduler.context.step_tokens
        whole_s = times.predicted_s(StepWork(prompt=step_tokens))
        read_s = times.predicted_s(StepWork(prompt=step_tokens, prompt_read=_READ))
        decode_s = times.decode_s(num_decoding)
        if not whole_s or read_s is None or decode_s is None:
            return None
        position_s = whole_s / step_tokens
        budget = max(1, scheduler.planner.prompt_budget(num_decoding, max(1, num_prompts)))
        stretch = 1.0 + (decode_s + times.between_s) / (budget * position_s) if num_decoding else 1.0
        one_s, two_s = (times.decode_s(num_decoding + more) or 0.0 for more in (1, 2))
        return StepModel(
            position_s,
            (read_s - whole_s) / _READ,
            stretch,
            scheduler.transfers.load_s or 0.0,
            self._end_gap_s or 0.0,
            times.between_s + one_s,
            max(0.0, two_s - one_s),
        )

    def _tenants_full(self) -> tuple[str, ...]:
        """The tenants that may queue no more, of those with most requests in the queue."""
        bounds, full = self._scheduler.tenants, list[str]()
        queued = Counter(s.request.tenant for s in self._scheduler.live.waiting)
        for tenant, _ in queued.most_common(_TENANTS_MAX):
            try:
                bounds.check_queue(tenant)
            except QueueFull:
                full.append(tenant)
        return tuple(full)

    def _note_gone(self, request: Request) -> None:
        self._found.pop(request.request_id, None)
        now, is_queue = self._scheduler.context.now, bool(self._scheduler.live.waiting.line)
        if self._ended_at is not None and is_queue:
            self._end_gap_s = smoothed(self._end_gap_s, now - self._ended_at, _GAIN)
        self._ended_at = now if is_queue else None  # without a queue the next end says nothing
