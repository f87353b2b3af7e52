"""Guesses in random lives: the truth, the truth with one error, garbage, or none, and as many as may be. What
must hold of them is checked after every plan and every commit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import State
from octavo.sim.oracle import next_token
from octavo.speculation.drafter import NO_DRAFT, Draft
from octavo.speculation.speculator import DrafterState, Speculation, Speculator
from octavo.step.events import EventKind
from octavo.types import StepPlan
from octavo.units import blocks_for

PLANS_MAX = 3  # in flight: two are made before the result of a third comes


class SimulatedDrafter:
    """It knows what the oracle would say; of whom, `SimulatedSpeculator.attend` tells it."""

    name = "simulated"

    def __init__(self, r: random.Random, vocab_size: int) -> None:
        self._random, self._vocab_size = r, vocab_size
        self._tokens: list[int] = []
        self.seed, self.choice = 0, 0

    @property
    def num_tokens(self) -> int:
        """Tokens that it has seen."""
        return len(self._tokens)

    @property
    def num_bytes(self) -> int:
        """Nearly."""
        return 8 * len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """These came behind those that it has seen."""
        self._tokens += tokens

    def copy(self) -> SimulatedDrafter:
        """For a fork."""
        twin = SimulatedDrafter(self._random, self._vocab_size)
        twin._tokens = list(self._tokens)
        twin.seed, twin.choice = self.seed, self.choice
        return twin

    def draft(self, limit: int) -> Draft:
        """Of any kind."""
        r = self._random
        kind, count = r.choice(["truth", "truth", "one error", "garbage", "none"]), r.randint(0, limit)
        if kind == "none" or not count:
            return NO_DRAFT
        tokens: list[int] = []
        for _ in range(count):
            context = [*self._tokens, *tokens]
            tokens.append(next_token(context, self.seed, self.choice, self._vocab_size))
        if kind == "one error":
            place = r.randrange(count)
            tokens[place] = (tokens[place] + 1) % self._vocab_size
        if kind == "garbage":
            tokens = [r.randrange(self._vocab_size) for _ in tokens]
        return Draft(tuple(tokens), r.randint(1, 40))


class SimulatedSpeculator(Speculator):
    """Takes any number of the guesses."""

    def __init__(self, r: random.Random, vocab_size: int) -> None:
        super().__init__(Speculation.AUTO, lambda: SimulatedDrafter(r, vocab_size))
        self._random = r

    def counts(
        self,
        offers: Sequence[tuple[DrafterState, int]],
        num_positions: int,
        budget: int,
        *,
        is_measured: bool = True,
    ) -> list[int]:
        """Some of each."""
        chosen = super().counts(offers, num_positions, budget, is_measured=is_measured)
        assert sum(chosen) <= max(0, budget)
        found = []
        for drafting, limit in offers:
            most = max(0, min(limit, len(drafting.draft.tokens), budget))
            found.append(self._random.choice([most, self._random.randint(0, most)]))
            budget -= found[-1]
        return found

    def attend(self, scheduler: Scheduler) -> None:
        """Tell drafters whose they are."""
        for request_id in scheduler.live.live_requests():
            for sequence in scheduler.live.sequences_of(request_id):
                drafter = None if sequence.drafting is None else sequence.drafting.drafter
                if isinstance(drafter, SimulatedDrafter):
                    drafter.seed, drafter.choice = sequence.request.seed, sequence.choice


def check_planned(plan: StepPlan, scheduler: Scheduler) -> int:
    """What drafts took was to be had; returns how many there are."""
    ledger, quotas, shares = scheduler.ledger, scheduler.ledger.quotas, scheduler.shares
    size, taken = ledger.block_size, 0
    by_id = {s.seq_id: s for s in scheduler.live.running}
    for chunk in plan.chunks:
        sequence = by_id.get(chunk.seq_id)
        if not chunk.drafts or sequence is None or sequence.table is None:
            continue
        assert chunk.stop < sequence.max_length, "drafts pass the row's length"
        assert sequence.group is None, "a beam drafts"
        tenant = sequence.request.tenant
        if sequence.drafts is not None and sequence.drafts.blocks_guessed:
            taken += 1
            if quotas.has_guarantees:
                assert shares.used(tenant) <= quotas.policy(tenant).guaranteed, "drafts borrow"
    if taken and not plan.transfers:  # which hold blocks for a moment, behind the drafts
        promised = sum(
            s.blocks_promised(size) + s.forks_left for s in scheduler.live.running if s.table is not None
        )
        assert ledger.num_available >= promised, "drafts took what was promised"
    return sum(len(chunk.drafts) for chunk in plan.chunks)


def check_committed(scheduler: Scheduler) -> None:
    """Of what was rejected nothing is left: no block, no charge, no count."""
    size = scheduler.ledger.block_size
    if scheduler.speculator is not None:
        live = scheduler.live
        everyone = [s for request in live.live_requests() for s in live.sequences_of(request)]
        held = sum(s.drafting.drafter.num_bytes for s in everyone if s.drafting is not None)
        assert scheduler.speculator.num_bytes == held, "drafters of nobody, or not counted"
    for s in scheduler.live.running:
        if s.state is not State.RUNNING or s.group is not None or s.pending or s.drafting is None:
            continue
        assert s.table is not None
        needed = max(blocks_for(s.num_planned, size), blocks_for(s.num_computed, size))
        assert len(s.table) <= needed or s.has_cold, "a block of rejected positions is held"
        # Those that were planned ahead of a step that came to nothing: they were charged and held blocks.
        is_void = scheduler.events.counts[EventKind.STEP_SHRUNK] or scheduler.long_contexts.num_unreadable
        ahead = PLANS_MAX if is_void else 0
        assert s.num_served <= max(s.num_prompt, len(s.tokens) - 1) + ahead, (
            "rejected positions count as served"
        )
        assert s.block_use.peak <= blocks_for(len(s.tokens) + ahead, size), (
            "blocks of rejected positions are told"
        )
        assert s.drafting.num_accepted <= s.drafting.num_drafted
        assert s.drafting.num_accepted < max(1, len(s.tokens) - s.num_prompt), "more right than there are"
