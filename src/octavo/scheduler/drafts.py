"""Drafts in a plan: a chunk is lengthened by drafts, and cut back to the accepted ones.

    tokens known   | t0 t1 t2 t3 t4 |             positions [4, 8) are planned, with drafts d0 d1 d2
    chunk                        t4   d0  d1  d2
    samples                      s0   s1  s2      s0 = d0, s1 = d1, but s2 is not d2: d2 is rejected, and its
    committed      | t0 t1 t2 t3 t4   d0  d1 | s2      position with it; s2 is the newest token

A draft is accepted exactly when it equals the token sampled at its position, so the output is that of
decoding one token at a time. Rejected positions count as never planned: the table is truncated, and nothing
of them is named, counted or charged. Drafts are planned last, with the remaining budget: they preempt no
sequence, and take no block that is promised or that their tenant would have to borrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass

from msgspec.structs import replace

from octavo.memory.table import BlockTable
from octavo.scheduler.block_budget import BlockBudget
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import InFlightChunk, Sequence
from octavo.scheduler.sequence_parts import DraftState
from octavo.scheduler.shares import TenantShares
from octavo.speculation.speculator import DRAFTS_MAX, READ_TOKENS, Speculator
from octavo.step.context import Context
from octavo.types import Chunk, SampledToken
from octavo.units import blocks_for

RETRY_TOKENS = 16  # after so many tokens, rejected guesses are awaited again


@dataclass(frozen=True, slots=True)
class _Offer:
    """A sequence with guesses: its chunk in the plan being made, and the most drafts for it."""

    drafts: DraftState
    flight: InFlightChunk
    index: int  # of its chunk
    limit: int


@dataclass(eq=False)
class Drafts:
    """Lengthens chunks by drafts, and removes rejected positions."""

    _context: Context
    _live: LiveSequences
    _budget: BlockBudget
    _shares: TenantShares
    _speculator: Speculator

    def __post_init__(self) -> None:
        self._speculator.forget_sequences()  # of an earlier scheduler

    def begin(self, sequence: Sequence) -> None:
        """The sequence was submitted. Beams, and requests that disable drafts, decode without them."""
        request, params = sequence.request, sequence.request.params
        if params.speculate and params.beams is None and request.max_tokens > 1:
            sequence.drafts = DraftState(self._speculator.begin())

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if sequence.drafts is not None:
            self._speculator.end(sequence.drafts.drafting)

    def plan(self, in_flight: list[InFlightChunk]) -> None:
        """Lengthen chunks of the plan being made; `in_flight` has all of them."""
        chunks = self._context.plan.chunks
        num_positions = sum(chunk.length for chunk in chunks)
        offers = self._offers(in_flight, READ_TOKENS + num_positions)
        self._begin_forks(in_flight)
        if not offers:
            return
        left = self._context.step_tokens - num_positions
        if self._context.target.seconds is not None:
            num_decoding = sum(chunk.length == 1 for chunk in chunks)
            allowed = self._context.target.positions(num_decoding)
            if allowed is not None:
                left = max(0, min(left, allowed - (num_positions - num_decoding)))
        counts = self._speculator.counts(
            [(offer.drafts.drafting, offer.limit) for offer in offers],
            num_positions,
            left,
            is_measured=all(chunk.continues for chunk in chunks),
        )
        promised = Counter[str]()
        if any(counts):
            promised = self._budget.promised_by_tenant(self._live.running)
        spare = self._context.ledger.num_available - promised.total()
        for offer, count in zip(offers, counts, strict=True):
            taken = self._lengthen(offer, count, spare, promised) if count else 0
            spare -= taken
            offer.drafts.drafting.was_taken = bool(offer.flight.drafts)

    def _begin_forks(self, in_flight: list[InFlightChunk]) -> None:
        """Forks of this plan start with the draft state of their parents."""
        if not self._context.plan.forks:
            return
        parents = {flight.sequence.row: flight.sequence for flight in in_flight}
        by_row = {fork.child_row: parents[fork.parent_row] for fork in self._context.plan.forks}
        for flight in in_flight:
            parent = by_row.get(flight.sequence.row)
            if parent is not None and parent.drafting is not None:
                twin = self._speculator.fork(parent.drafting)
                flight.sequence.drafts = None if twin is None else DraftState(twin)

    def _offers(self, in_flight: list[InFlightChunk], to_read: int) -> list[_Offer]:
        """Sequences that may draft. Drafters also read on in their prompts, at most `to_read` tokens."""
        plan = self._context.plan
        parents = {fork.parent_row for fork in plan.forks}
        flight_of = {flight.sequence.seq_id: flight for flight in in_flight}
        offers = []
        for index, chunk in enumerate(plan.chunks):
            flight = flight_of[chunk.seq_id]
            sequence = flight.sequence
            if sequence.drafts is None:
                continue
            drafting = sequence.drafts.drafting
            to_read -= self._speculator.read(drafting, sequence.tokens, to_read)
            # No other chunk of it is in flight, and no layer is computed yet.
            is_next = chunk.num_samples == 1 and sequence.pending == 1 and chunk.num_parts <= 1
            if not is_next or not drafting.draft.tokens or chunk.row in parents:
                continue
            limit = min(DRAFTS_MAX, sequence.max_length - 1 - chunk.stop)
            if limit > 0 and len(sequence.tokens) > sequence.num_prompt:
                offers.append(_Offer(sequence.drafts, flight, index, limit))
        return offers

    def _lengthen(self, offer: _Offer, count: int, spare: int, promised: Counter[str]) -> int:
        """Draft up to `count` tokens, fewer without blocks; returns the number of blocks taken."""
        ledger, flight = self._context.ledger, offer.flight
        sequence, table = flight.sequence, flight.sequence.table
        assert table is not None
        size, stop = ledger.block_size, flight.stop
        own = min(spare, self._own_room(sequence, table) - promised[sequence.request.tenant])
        missing = blocks_for(stop + count, size) - len(table)
        if missing > own:
            count = min(count, (len(table) + max(0, own)) * size - stop)
            missing = max(0, own)
        if count <= 0:
            return 0
        reservation = ledger.reserve(table, stop, stop + count)
        if reservation is None:  # drafts do not justify copying a shared tail
            return 0
        if reservation.blocks:
            self._context.plan.reserve(sequence.row, reservation)  # counted when the drafts are accepted
        drafts = offer.drafts.drafting.draft.tokens[:count]
        chunks = self._context.plan.chunks
        chunks[offer.index] = _with_drafts(chunks[offer.index], drafts)
        sequence.num_planned += count
        offer.drafts.num_guessed, offer.drafts.blocks_guessed = count, max(0, missing)
        offer.drafts.is_awaited = True
        flight.stop, flight.drafts = stop + count, drafts
        return max(0, missing)

    def _own_room(self, sequence: Sequence, table: BlockTable) -> int:
        """Blocks that its tenant may take without borrowing."""
        quotas, tenant = self._context.ledger.quotas, sequence.request.tenant
        room = quotas.room(table.owner)
        if quotas.has_guarantees:
            room = min(room, quotas.policy(tenant).guaranteed - self._shares.used(tenant))
        return room

    def settle(self, flight: InFlightChunk, samples: Many[SampledToken], num_taken: int) -> int:
        """The chunk's samples have arrived, and `num_taken` of them are new tokens. Removes rejected
        positions. Returns the end of the computed positions."""
        sequence, drafts, state = flight.sequence, flight.drafts, flight.sequence.drafts
        accepted = 0
        for sampled, guess in zip(samples, drafts, strict=False):
            if sampled.token != guess:
                break
            accepted += 1
        # The newest token is never computed, even if a later sample failed, or if it was itself a draft.
        accepted = min(accepted, num_taken - 1)
        computed = flight.stop - len(drafts) + accepted
        if state is None:
            return computed
        state.clear_in_flight()
        if drafts and flight.is_current:
            assert sequence.table is not None
            assert sequence.num_planned == flight.stop, "positions are planned after drafts"
            sequence.num_planned = computed
            self._context.ledger.truncate(sequence.table, computed)
            sequence.count_blocks(self._context.now)
            self._live.service.count(sequence, computed)
        drafting = state.drafting
        if drafting.drafter.num_tokens == len(sequence.tokens) - num_taken:
            came = [sampled.token for sampled in samples[:num_taken]]
            self._speculator.learn(drafting, came, len(drafts), accepted)
            self._speculator.read(drafting, sequence.tokens, num_taken)
            # With steps in flight, guesses are awaited only while they are accepted, and from time to time.
            is_tried = drafting.was_taken or len(sequence.tokens) % RETRY_TOKENS < num_taken
            state.is_awaited = is_tried and self._speculator.is_promising(drafting)
        else:
            state.is_awaited = False
        return computed


def _with_drafts(chunk: Chunk, drafts: tuple[int, ...]) -> Chunk:
    """Sampled at its last position, and at every draft."""
    count = len(drafts)
    return replace(chunk, length=chunk.length + count, num_samples=1 + count, drafts=drafts)
