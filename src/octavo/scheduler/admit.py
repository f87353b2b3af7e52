"""Who may enter: rows, blocks and the step's tokens decide, in order of rank.

- Followers: where the next block a sequence needs is being computed by a running one, it waits for that
block. This is
  decided anew every step, so a leader that is cancelled or preempted releases its followers. A follower
  never blocks those behind it, and lends its priority to its leader.
- A sequence enters when the blocks of all its known tokens fit beside what running prompts were promised,
plus one
  block for each that runs: so a prompt never has to preempt, and back-pressure comes before thrash.
- A huge one that does not fit does not block those behind it, but at most `BYPASS_MAX` may pass before the
door closes
  until it fits: no starvation either way.
- A higher priority may preempt strictly lower ones to enter.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from octavo.scheduler.budget import share_by_priority
from octavo.scheduler.sequence import Sequence
from octavo.units import blocks_for

if TYPE_CHECKING:
    from octavo.scheduler.scheduler import Scheduler

SCAN_MAX = 64  # waiting sequences looked at per step
BYPASS_MAX = 32  # admissions past a blocked head


class Admission:
    """Decides over the scheduler's queue; acts only through `Scheduler.admit` and `Scheduler.preempt`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def admit(self, continuing: list[Sequence], prompts: list[Sequence], budget: int) -> list[Sequence]:
        """Admit what fits and would get tokens in this step; returns those admitted.

        May preempt members of `continuing` and `prompts` (only for a strictly higher priority), and removes
        them there.
        """
        admitted: list[Sequence] = []
        head: Sequence | None = None  # the first that did not fit
        for sequence in list(islice(self._scheduler.waiting, SCAN_MAX)):
            if sequence.pending:
                continue  # a victim whose last sample is still in flight
            num_hits, leader = self._look_up(sequence)
            if leader is not None:
                leader.lent_priority = max(leader.priority, sequence.priority)
                continue
            if not self._gets_tokens(sequence, num_hits, [*prompts, *admitted], budget):
                continue
            if not self._fits(sequence, num_hits) and not self._make_room(
                sequence, num_hits, continuing, prompts
            ):
                head = head or sequence
                if head.bypassed >= BYPASS_MAX:
                    break
                continue
            if head is not None:
                head.bypassed += 1
            # Making room may have evicted nothing but moved holders: hits are published blocks, and stay so.
            self._scheduler.admit(sequence, num_hits)
            admitted.append(sequence)
            if head is not None and head.bypassed >= BYPASS_MAX:
                break
        return admitted

    def _look_up(self, sequence: Sequence) -> tuple[int, Sequence | None]:
        """Published blocks to adopt (never the last token's), and who computes the next one, if anybody
        does."""
        scheduler = self._scheduler
        if sequence.wants_prompt_logprobs or not scheduler.config.prefix_caching:
            return 0, None
        limit = (len(sequence.tokens) - 1) // scheduler.memory.block_size
        names = sequence.chain.names[:limit]
        num_hits = scheduler.memory.find_prefix(names)
        leader = scheduler.names.who_computes(names[num_hits]) if num_hits < limit else None
        return num_hits, leader

    def _gets_tokens(self, sequence: Sequence, num_hits: int, prompts: list[Sequence], budget: int) -> bool:
        remaining = len(sequence.tokens) - num_hits * self._scheduler.memory.block_size
        items = [(s.rank, s.remaining) for s in prompts] + [(sequence.rank, remaining)]
        items.sort()
        grants = share_by_priority([(-rank[0], length) for rank, length in items], budget)
        return grants[items.index((sequence.rank, remaining))] > 0

    def _blocks_missing(self, sequence: Sequence, num_hits: int) -> int:
        """Blocks that would have to become unheld before this sequence fits; <= 0 when it fits."""
        scheduler, memory = self._scheduler, self._scheduler.memory
        cost = blocks_for(len(sequence.tokens), memory.block_size) - num_hits
        cost += memory.num_unheld_among(sequence.chain.names[:num_hits])
        promised = sum(
            max(0, blocks_for(s.known, memory.block_size) - len(s.table))
            for s in scheduler.running
            if s.table is not None
        )
        headroom = len(scheduler.running) + sequence.forks_left if scheduler.running else 0
        return cost + promised + headroom - memory.num_unheld

    def _fits(self, sequence: Sequence, num_hits: int) -> bool:
        rows = 1 + sequence.forks_left
        if rows > self._scheduler.num_free_rows():
            return False
        return self._blocks_missing(sequence, num_hits) <= 0

    def _make_room(
        self, sequence: Sequence, num_hits: int, continuing: list[Sequence], prompts: list[Sequence]
    ) -> bool:
        """Preempt strictly lower priorities, last in rank first, if that lets the sequence in; else change
        nothing."""
        scheduler, pool = self._scheduler, self._scheduler.memory.pool
        lower = [s for s in scheduler.running if s.priority < sequence.priority]
        if not lower:
            return False
        gain = sum(pool.holders[block] == 1 for s in lower if s.table is not None for block in s.table.blocks)
        rows = scheduler.num_free_rows() + sum(1 + s.forks_left for s in lower)
        if rows < 1 + sequence.forks_left or gain < self._blocks_missing(sequence, num_hits):
            return False
        for victim in sorted(lower, key=lambda s: s.rank, reverse=True):
            if self._fits(sequence, num_hits):
                break
            scheduler.preempt(victim)
            for group in (continuing, prompts):
                if victim in group:
                    group.remove(victim)
        return self._fits(sequence, num_hits)
