"""Who computes how many positions in a step, and where: grants, reservations, chunks.

In order of rank: whoever finds no block takes one from a complete fetch behind it, then from a running
sequence that ranks after it (victims.py), then from any complete fetch; with nobody left it pauses. Acts on
the scheduler's sequences and on the plan in the making.
"""

from __future__ import annotations

from octavo.scheduler.budget import Pace, share_in_turn
from octavo.scheduler.context import Context
from octavo.scheduler.flight import Flight
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.shares import TenantShares
from octavo.scheduler.transfers import Transfers
from octavo.scheduler.victims import Victims
from octavo.types import Chunk
from octavo.units import blocks_for


class Planner:
    """Steps 3 to 5 of `Scheduler.schedule`."""

    def __init__(
        self,
        context: Context,
        live: LiveSequences,
        pace: Pace,
        shares: TenantShares,
        transfers: Transfers,
        victims: Victims,
        preemption: Preemption,
    ) -> None:
        self._context = context
        self._live = live
        self._pace = pace
        self._shares = shares
        self._transfers = transfers
        self._victims = victims
        self._preemption = preemption

    def ready(self) -> tuple[list[Sequence], list[Sequence]]:
        """The running sequences with something to compute: those that continue by one position, and
        prompts. A beam's next token is not its own sample, so nothing follows one that is in flight."""
        continuing, prompts = [], []
        for s in self._live.running:
            if s.pending and s.group is not None:
                continue
            known = len(s.tokens) + s.pending
            if known < s.max_length:  # else all its samples are in flight
                if known == s.num_planned + 1:
                    continuing.append(s)
                elif known > s.num_planned:
                    prompts.append(s)
        return continuing, prompts

    def share(self, continuing: list[Sequence], prompts: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Who computes how many positions, in order of rank: `step_tokens` at most, and at least one for the
        first.

        Sequences that continue come before prompts. Where they alone fill the step, the last in rank pause,
        and one of them leaves its position to a prompt that ranks before it.
        """
        limit = self._context.config.step_tokens
        budget = self._pace.prompt_budget(len(continuing), len(prompts) + len(self._live.waiting))
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
                self._leave_one_to_the_first(prompts, grants)
            share += [(s, grant) for s, grant in zip(prompts, grants, strict=True) if grant]
        shares = self._shares
        if (
            self._context.ledger.quotas.has_guarantees
        ):  # who is within a guarantee before borrowers, who may give way
            share.sort(key=lambda item: (shares.is_borrower(item[0].request.tenant), item[0].rank))
        else:
            share.sort(key=lambda item: item[0].rank)
        return share

    def _leave_one_to_the_first(self, prompts: list[Sequence], grants: list[int]) -> None:
        """Turns may put a prompt of another tenant before the best-ranked one, which alone may preempt all:
        it gets a position all the same, so that somebody always advances."""
        first = min(range(len(prompts)), key=lambda i: prompts[i].rank)
        if grants[first] == 0 and any(grants):
            largest = max(range(len(grants)), key=grants.__getitem__)
            grants[largest] -= 1
            grants[first] = 1

    def plan_chunk(self, sequence: Sequence, grant: int, flights: list[Flight]) -> None:
        """Reserve and plan up to `grant` positions; fewer, or none, when blocks are short and nobody ranks
        below."""
        grant = self._reserve(sequence, grant)
        if grant == 0:
            return
        start, stop = sequence.num_planned, sequence.num_planned + grant
        num_samples = int(stop == sequence.known)
        logits_from = stop - num_samples
        if sequence.wants_prompt_logprobs:
            logits_from = min(max(start, sequence.prompt_logprobs_done), logits_from)
            sequence.prompt_logprobs_done = max(
                sequence.prompt_logprobs_done, min(stop, sequence.num_prompt - 1)
            )
        self._context.plan.chunks.append(
            Chunk(sequence.seq_id, sequence.row, start, grant, num_samples, logits_from)
        )
        sequence.num_planned = stop
        sequence.pending += num_samples
        self._live.service.count(sequence, stop)
        flights.append(Flight(sequence, sequence.epoch, stop, num_samples))
        if num_samples and sequence.forks_left and sequence.group is None:
            self._live.fork(sequence, flights)

    def _reserve(self, sequence: Sequence, grant: int) -> int:
        """Positions made writable: `grant`, or what the unheld blocks allow once no victim is left."""
        assert sequence.table is not None
        start = sequence.num_planned
        while True:
            reservation = self._context.ledger.reserve(sequence.table, start, start + grant)
            if reservation is not None:
                if reservation.blocks:
                    self._context.plan.reserve(sequence.row, reservation)
                    sequence.count_blocks(self._context.now)
                return grant
            # Short of the pool, or of what its tenant may hold: then only the tenant's own can help.
            room = self._context.ledger.quotas.room(sequence.table.owner)
            unheld = min(self._context.ledger.num_unheld, room)
            tenant = sequence.request.tenant if room <= self._context.ledger.num_unheld else None
            if self._transfers.give_back(sequence, others_too=False, tenant=tenant):
                continue
            victims = self._victims_of(sequence, start + grant, tenant)
            if victims:
                self._preemption.preempt_all(victims, sequence)
                continue
            if self._transfers.give_back(sequence, others_too=True, tenant=tenant):
                continue
            victims = () if tenant is not None else self._last_resort(sequence)
            if victims:
                self._preemption.preempt_all(victims, sequence)
                continue
            # Nobody ranks below: take what fits without a new block, else pause until somebody ahead ends.
            room = (len(sequence.table) + unheld) * self._context.ledger.block_size - start
            if room >= grant or room <= 0:
                return 0
            grant = room

    def _victims_of(self, sequence: Sequence, stop: int, tenant: str | None) -> tuple[Sequence, ...]:
        """Who goes so that `sequence` may reach position `stop`: of its tenant, where that has no room, or of
        all."""
        assert sequence.table is not None
        memory, victims = self._context.ledger, self._victims
        room = memory.num_unheld if tenant is None else memory.quotas.room(sequence.table.owner)
        missing = blocks_for(stop, memory.block_size) - len(sequence.table) - room
        eligible = [s for s in victims.behind(sequence) if tenant in (None, s.request.tenant)]
        return victims.find(eligible, max(1, missing))

    def _last_resort(self, sequence: Sequence) -> tuple[Sequence, ...]:
        """Guarantees fit the pool together, but prefixes that are held on after the operator ceased to share
        them are charged to nobody's: then the best-ranked of all may preempt whoever ranks after it."""
        if not self._context.ledger.quotas.has_guarantees or self._transfers.in_flight:
            return ()
        if min(s.rank for s in self._live.running) < sequence.rank:  # beams of a group share theirs
            return ()
        return self._victims.find(self._victims.unplanned(sequence), 1)
