"""The positions that each sequence computes in a step: grants, reservations, chunks.

In order of rank. A sequence that lacks a block reclaims one (reclaimer.py); if no source has one left, it
pauses. Acts on sequences and on the plan in the making.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.scheduler.budget import share_in_turn
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.reclaimer import Reclaimer
from octavo.scheduler.sequence import InFlightChunk, Sequence
from octavo.scheduler.shares import TenantShares
from octavo.step.context import Context
from octavo.step.latency_target import PrefillBudget
from octavo.types import Chunk


@dataclass(eq=False)
class Planner:
    """Steps 3 to 5 of `Scheduler.schedule`."""

    _context: Context
    _live: LiveSequences
    _prefill_budget: PrefillBudget
    _shares: TenantShares
    _reclaimer: Reclaimer

    def ready(self) -> tuple[list[Sequence], list[Sequence], list[Sequence]]:
        """The running sequences with work: those that continue by one position, prompts, and those with cold
        blocks, which are neither."""
        continuing, prompts, cold = [], [], []
        for s in self._live.running:
            if s.pending and s.blocks_lookahead:
                continue
            known = len(s.tokens) + s.pending
            if known < s.max_length:  # else all its samples are in flight
                if s.table is not None and s.table.cold:
                    cold += [s] if known > s.num_planned else []
                elif known == s.num_planned + 1:
                    continuing.append(s)
                elif known > s.num_planned:
                    prompts.append(s)
        return continuing, prompts, cold

    def share(self, continuing: list[Sequence], prompts: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Grants of positions, in order of rank: `step_tokens` at most, and at least one for the first.

        Sequences that continue come before prompts. If they alone fill the step, the last in rank pause, and
        one of them leaves its position to a prompt of better rank.
        """
        limit = self._context.step_tokens
        budget = self.prompt_budget(len(continuing), len(prompts) + len(self._live.waiting.line))
        place = self._live.place
        prompts.sort(key=place)
        if len(continuing) >= limit:
            continuing.sort(key=lambda s: s.rank)
            budget = int(any(s.rank < continuing[limit - 1].rank for s in prompts))
            del continuing[limit - budget :]
        share = [(s, 1) for s in continuing]
        if prompts:
            grants = share_in_turn([(place(s)[:2], s.remaining) for s in prompts], budget)
            if len(prompts) > 1:
                self._grant_best_ranked(prompts, grants)
            share += [(s, grant) for s, grant in zip(prompts, grants, strict=True) if grant]
        self.sort(share)
        return share

    def prompt_budget(self, num_decoding: int, num_prompts: int) -> int:
        """Positions for prompts, under the target for inter-token latency if there is one."""
        target = self._context.target
        if target.seconds is None:
            return self._prefill_budget.prompt_budget(num_decoding, num_prompts)
        return target.prompt_budget(num_decoding, max(0, self._context.step_tokens - num_decoding))

    def sort(self, share: list[tuple[Sequence, int]]) -> None:
        """Sort into the order in which blocks are reserved."""
        shares = self._shares
        if (
            self._context.ledger.quotas.has_guarantees
        ):  # sequences within a guarantee before borrowers, whose blocks may be reclaimed
            share.sort(key=lambda item: (shares.is_borrower(item[0].request.tenant), item[0].rank))
        else:
            share.sort(key=lambda item: item[0].rank)

    def _grant_best_ranked(self, prompts: list[Sequence], grants: list[int]) -> None:
        """Grant the best-ranked prompt a position even if turns put another tenant's prompt before it: it
        alone may preempt all others, so some request always advances. The position comes from the largest
        grant; of equal ones from the last in turn."""
        first = min(range(len(prompts)), key=lambda i: prompts[i].rank)
        if grants[first] == 0 and any(grants):
            largest = max(reversed(range(len(grants))), key=grants.__getitem__)
            grants[largest] -= 1
            grants[first] = 1

    def plan_chunk(self, sequence: Sequence, grant: int, in_flight: list[InFlightChunk]) -> None:
        """Reserve and plan up to `grant` positions; fewer, or none, if blocks are short and no lower-ranked
        sequence can be preempted."""
        grant = self.reserve(sequence, grant)
        if grant > 0:
            self.add_chunk(sequence, grant, in_flight)

    def add_chunk(
        self,
        sequence: Sequence,
        grant: int,
        in_flight: list[InFlightChunk],
        part: tuple[int, int] | None = None,
    ) -> None:
        """Plan `grant` reserved positions; with cold blocks, this part of their layers."""
        start, stop = sequence.num_planned, sequence.num_planned + grant
        num_samples = 1 if stop == len(sequence.tokens) + sequence.pending else 0
        logits_from = stop - num_samples
        params, plan = sequence.request.params, self._context.plan
        if params.pooling is not None or params.prompt_logprobs is not None:
            logits_from = self._logits_from(sequence, start, logits_from)
        if part is None:
            chunk = Chunk(sequence.seq_id, sequence.row, start, grant, num_samples, logits_from)
        else:
            plan.has_cold, is_last = True, part[0] + 1 == part[1]
            of_part = (num_samples if is_last else 0, logits_from, (), *part)
            chunk = Chunk(sequence.seq_id, sequence.row, start, grant, *of_part)
            if not is_last:
                plan.chunks.append(chunk)
                in_flight.append(InFlightChunk(sequence, sequence.preemptions, start, 0))
                return
        plan.chunks.append(chunk)
        if params.prompt_logprobs is not None and sequence.needs_prompt_logprobs:
            done = min(stop, sequence.num_prompt - 1)
            sequence.prompt_logprobs_done = max(sequence.prompt_logprobs_done, done)
        sequence.num_planned = stop
        sequence.pending += num_samples
        self._live.service.count(sequence, stop)
        in_flight.append(InFlightChunk(sequence, sequence.preemptions, stop, num_samples))
        if num_samples and sequence.forks_left and sequence.group is None:
            self._live.fork(sequence, in_flight)

    def _logits_from(self, sequence: Sequence, start: int, sampled_from: int) -> int:
        """The first position from `start` on whose logits are needed; those of sampled positions are."""
        if sequence.needs_mean:
            return start
        if not sequence.needs_prompt_logprobs:
            return sampled_from
        return min(max(start, sequence.prompt_logprobs_done), sampled_from)

    def reserve(self, sequence: Sequence, grant: int) -> int:
        """Positions made writable: `grant`, or what fits into available blocks when no victim is left."""
        assert sequence.table is not None
        start = sequence.num_planned
        if sequence.request.hot_blocks:
            hot_max = sequence.hot_max(
                self._context.ledger.pool.num_blocks, self._context.ledger.quotas.has_maxima
            )
            grant = min(grant, self._num_writable(sequence, hot_max))
            if grant <= 0:
                return 0  # wait until more of its blocks can become cold
        while True:
            reservation = self._context.ledger.reserve(sequence.table, start, start + grant)
            if reservation is None and (promised := self._promised(sequence, grant)) > 0:
                reservation = self._reclaimer.reserve(sequence, start, start + promised)
                grant = promised if reservation is not None else grant
            if reservation is not None:
                if reservation.blocks:
                    self._context.plan.reserve(sequence.row, reservation)
                    sequence.count_blocks(self._context.now)
                return grant
            unheld = min(
                self._context.ledger.num_available, self._context.ledger.quotas.room(sequence.table.owner)
            )
            # No source is left: take what fits without a new block, else pause until one ahead ends.
            room = (len(sequence.table) + unheld) * self._context.ledger.block_size - start
            if room >= grant or room <= 0:
                return 0
            grant = room

    def _num_writable(self, sequence: Sequence, num_blocks: int) -> int:
        """Positions that it can compute next with so many pool blocks."""
        assert sequence.table is not None
        size = self._context.ledger.block_size
        return (len(sequence.table.cold) + num_blocks) * size - sequence.num_planned

    def _promised(self, sequence: Sequence, grant: int) -> int:
        """The positions of a grant for which blocks are reclaimed: for a long sequence those that fit into
        its promised blocks."""
        if not sequence.is_long:
            return grant
        return min(grant, self._num_writable(sequence, sequence.request.hot_blocks))
