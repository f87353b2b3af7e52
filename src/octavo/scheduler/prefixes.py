"""Looks up a waiting sequence's prefix: published blocks, blocks that a running sequence computes, blocks in
an offload tier.

Followers: a sequence waits while a running one computes its next block. This is decided in every step, so the
cancellation or preemption of a leader releases its followers. A follower never blocks sequences behind it,
and lends its priority to its leader.
"""

from __future__ import annotations

from octavo.memory.names import hits_max
from octavo.retention.transfers import Transfers
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.long_contexts import LongContexts
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.waits import IN_FLIGHT, Wait, WaitReason
from octavo.step.context import Context


class PrefixLookup:
    """Looks prefixes up, lends priorities, and begins fetches."""

    def __init__(
        self, context: Context, live: LiveSequences, transfers: Transfers, long_contexts: LongContexts
    ) -> None:
        self._context = context
        self._live = live
        self._transfers = transfers
        self._long_contexts = long_contexts
        self.leaders: list[Sequence] = []  # borrowed a priority in the last step

    def return_priorities(self) -> None:
        """End the loans of the last step."""
        for leader in self.leaders:
            leader.give_back()
        self.leaders.clear()

    def examine(self, sequence: Sequence) -> int | None:
        """The sequence's hits, or None while it waits for blocks that will come; `wait` has the reason."""
        if sequence.pending:
            sequence.queue.wait = IN_FLIGHT
            return None
        if self._transfers.is_fetching(sequence.seq_id):
            sequence.await_blocks(self._context.now)
            return None
        sequence.end_loading(self._context.now)
        missing = self._long_contexts.slots_missing(sequence)
        if missing > 0:
            sequence.queue.wait = Wait(WaitReason.SLOTS, missing)
            return None
        if self._still_follows(sequence):
            return None  # its next block comes soon
        num_hits = self.find_hits(sequence)
        return None if self._still_follows(sequence) else num_hits

    def find_hits(self, sequence: Sequence) -> int:
        """Published blocks to adopt, never the last token's; notes whether the next ones are being computed.

        It awaits the last block of those that one leader computes in a row: until that is published, or the
        leader is gone, a lookup finds no more. O(blocks), once per leader.
        """
        sequence.queue.awaited, sequence.queue.num_cold = None, 0
        if not self._may_hit(sequence):
            return 0
        limit = hits_max(len(sequence.tokens), self._context.ledger.block_size)
        names = sequence.chain.names[:limit]
        if sequence.is_long:
            num_hits = self._long_contexts.find_hits(sequence, limit)
        else:
            num_hits = self._context.ledger.find_prefix(names)
        leader = self._live.names.leader_of(names[num_hits]) if num_hits < limit else None
        for name in names[num_hits:] if leader is not None else ():
            if self._live.names.leader_of(name) is not leader:
                break
            sequence.queue.awaited = name
        return num_hits

    def num_fetchable(self, sequence: Sequence, num_hits: int) -> int | None:
        """How many blocks after its hits to load from an offload tier, or to verify there for a long
        sequence; None: the first of them is being loaded for another sequence. O(blocks in the tier)."""
        transfers = self._transfers
        if transfers.tier is None or not self._may_hit(sequence):
            return 0
        if transfers.has_fetched(sequence.seq_id) and not sequence.is_long:
            return 0
        limit = hits_max(len(sequence.tokens), self._context.ledger.block_size)
        if sequence.is_long:
            return self._long_contexts.num_to_verify(sequence, num_hits, limit)
        rest = sequence.chain.names[num_hits:limit]
        count = transfers.count_loadable(rest)
        on_their_way = next((i for i, name in enumerate(rest[:count]) if transfers.is_loading(name)), count)
        return None if count > 0 and on_their_way == 0 else on_their_way

    def may_fetch(self, sequence: Sequence, num_blocks: int) -> bool:
        """False if too many loads are in flight. O(blocks)."""
        return sequence.is_long or self._transfers.may_fetch(sequence.chain.names[:num_blocks])

    def fetch(self, sequence: Sequence, num_hits: int, num_blocks: int) -> None:
        """Hold its first blocks for it, and load those that are not in the pool; for a long one, verify the
        blocks after its hits in the tier."""
        request, chain = sequence.request, sequence.chain
        if sequence.is_long:
            names = chain.names[num_hits:num_blocks]
            self._transfers.release_fetch(sequence.seq_id)  # blocks verified before
            self._transfers.verify(sequence.seq_id, request.tenant, names)
            return
        names = chain.names[:num_blocks]
        self._transfers.fetch(sequence.seq_id, request.tenant, sequence.rank, chain, names)

    def await_blocks(self, sequence: Sequence) -> None:
        """Let a sequence wait for blocks that are being loaded."""
        sequence.await_blocks(self._context.now)

    def num_to_compute(self, sequence: Sequence, num_hits: int) -> int:
        """Positions after its hits."""
        return len(sequence.tokens) - num_hits * self._context.ledger.block_size

    def _may_hit(self, sequence: Sequence) -> bool:
        return self._context.config.prefix_caching and not sequence.computes_all

    def _still_follows(self, sequence: Sequence) -> bool:
        """True, and its priority is lent, while a running sequence computes the block that it waits for.
        O(1)."""
        if sequence.queue.awaited is None or self._context.ledger.is_published(sequence.queue.awaited):
            return False
        leader = self._live.names.leader_of(sequence.queue.awaited)
        if leader is None:
            return False
        if sequence.queue.wait.reason is not WaitReason.FOLLOWS:
            sequence.queue.wait = Wait(WaitReason.FOLLOWS, request_id=leader.request.request_id)
        if leader.priority < sequence.priority:
            leader.borrow(sequence.priority)
            self.leaders.append(leader)
        return True
