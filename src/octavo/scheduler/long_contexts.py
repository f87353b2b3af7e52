"""Sequences larger than the pool: attention reads their oldest blocks, the cold ones, in an offload tier.

    accepted   its worst case exceeds the pool, or its tenant's maximum, and the tier has slots for all of it
    running    its published blocks are stored, oldest first; a stored one may become cold, oldest first
    make_room  before each plan: as many become cold as running sequences and the head of the queue need

Liveness is two inequalities. In the pool a long request counts as its `hot_blocks` (memory/capacity.py). In
the tier, each accepted request fits with the kept names, and the running ones fit together.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from octavo.errors import RequestTooLarge
from octavo.memory.capacity import Capacity, blocks_needed, slots_needed
from octavo.memory.tiers import OffloadTier
from octavo.retention.transfers import LOADS_MAX, Transfers
from octavo.retention.warm_pins import WarmPins
from octavo.scheduler.block_budget import BlockBudget
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.waits import WaitReason
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.types import Request
from octavo.units import blocks_for

WANTS_BLOCKS = (WaitReason.QUEUED, WaitReason.BLOCKS)
HOT_MIN = 2  # blocks: one is written while the previous one is stored
ANSWER_MIN = 1024  # tokens
FAILURES_MAX = 8  # consecutive failed stores, or reads, that end the sequences that need them


class StuckReason(enum.StrEnum):
    """Why a block cannot become cold. The values are error texts."""

    NAMELESS = "what one of its blocks holds was found to be wrong"
    FAILING = f"the offload tier could not store {FAILURES_MAX} blocks one after the other"
    NO_SLOT = "no slot of the offload tier can be had"


class LongContexts:
    """Accepts long requests, and decides which of their blocks are cold."""

    def __init__(
        self,
        context: Context,
        live: LiveSequences,
        transfers: Transfers,
        budget: BlockBudget,
        warm_pins: WarmPins,
    ) -> None:
        self._context = context
        self._live = live
        self._transfers = transfers
        self._budget = budget
        self._warm_pins = warm_pins
        self.num_made_cold = 0  # blocks
        self.num_unreadable = 0  # likewise
        self._num_unread = 0  # consecutive chunks with unreadable slots
        self._claims: dict[int, tuple[str, int]] = {}  # accepted requests: tenant and slots by request
        self.in_parts: Sequence | None = None  # its chunk has layers left to plan
        self._stuck: dict[Sequence, StuckReason] = {}  # the first pool block of each cannot become cold
        live.on_gone.append(self._note_gone)

    @property
    def any_unfinished(self) -> bool:
        """True while a long request is unfinished."""
        return bool(self._claims)

    # -- requests

    def fitted(self, request: Request, fitted: Request, capacity: Capacity, own: int) -> Request:
        """`fitted` itself if the pool has room for it, or if the request may not have cold blocks; else the
        request as a long one. If its client sets no max_tokens, it is long rather than cut to less than
        `ANSWER_MIN` tokens by the pool. Raises RequestTooLarge if the tier has no slots for it."""
        policy, size = capacity.policy(request.tenant), self._context.ledger.block_size
        room = min(capacity.room_in_pool(request.tenant, own), capacity.room_in_maximum(request.tenant, own))
        fits = blocks_needed(fitted, size) <= room
        requested, left = request.params.max_tokens, self._context.config.context_length - len(request.prompt)
        is_open = not request.max_tokens and (requested is None or requested > left)
        if not self._may_be_long(request) or room < HOT_MIN or left < 1:
            return fitted
        if fits and (not is_open or fitted.max_tokens >= min(left, ANSWER_MIN)):
            return fitted
        most = self._slots_for(request.tenant)
        tokens = fitted.max_tokens
        if is_open:
            tokens = max(1, min(left, self._tokens_that_fit(request, most)))
        hot = max(HOT_MIN, 2 * blocks_for(self._context.config.step_tokens, size))
        long = replace(fitted, max_tokens=tokens, hot_blocks=min(room, hot))
        needed = slots_needed(long, size)
        if (fits and (needed > most or tokens <= fitted.max_tokens)) or tokens > left:
            return fitted
        if policy.request_maximum is not None and needed > policy.request_maximum:
            return fitted  # to be refused by the caller
        if needed > most:
            raise RequestTooLarge(
                f"prompt of {len(request.prompt):,} tokens plus max_tokens of {long.max_tokens:,} needs "
                f"{needed:,} KV blocks; allowed: {room:,} in the pool (setting kv_memory), or {most:,} of "
                "which the oldest lie in an offload tier (settings host_cache, disk_size); ask for fewer "
                "tokens",
                param="max_tokens",
                code="kv_pool_exceeded",
            )
        return long

    def on_queued(self, request: Request) -> None:
        """Claim slots of the tier for a request that was queued."""
        if request.hot_blocks:
            slots = slots_needed(request, self._context.ledger.block_size)
            self._claims[request.request_id] = (request.tenant, slots)
            self._count_claims()

    def _note_gone(self, request: Request) -> None:
        if self._claims.pop(request.request_id, None) is not None:
            self._count_claims()

    def _count_claims(self) -> None:
        """Reserve slots in the tier, in all and by tenant: for the running requests together, or for the
        largest accepted one. Kept names leave so many."""
        tier = self._transfers.tier
        assert tier is not None
        running = {s.request.request_id for s in self._live.running if s.is_long}
        largest, together = Counter[str](), Counter[str]()
        for request_id, (tenant, slots) in self._claims.items():
            for whose in {tenant, ""}:
                largest[whose] = max(largest[whose], slots)
                together[whose] += slots if request_id in running else 0
        tier.claimed_by = dict(largest | together)
        tier.num_claimed = tier.claimed_by.get("", 0)

    def _may_be_long(self, request: Request) -> bool:
        config, tier = self._context.config, self._transfers.tier
        if tier is None or not tier.num_readable or not config.long_context or not config.prefix_caching:
            return False
        return request.params.beams is None and not request.fills_pin

    def _slots_for(self, tenant: str) -> int:
        """Slots that one of its requests may need."""
        tier, limit = self._transfers.tier, self._disk_left(tenant)
        assert tier is not None
        return tier.num_to_read if limit is None else min(tier.num_to_read, limit)

    def _disk_left(self, tenant: str) -> int | None:
        """The rest of its bound in the tier after its sessions; None: no bound."""
        limit = self._context.ledger.quotas.policy(tenant).disk_maximum
        return None if limit is None else limit - len(self._warm_pins.kept_of(tenant))

    def _tokens_that_fit(self, request: Request, slots: int) -> int:
        """The greatest max_tokens that fits into so many slots."""
        size = self._context.ledger.block_size
        shared = len(request.prompt) // size
        return (shared + (slots - shared) // max(1, request.n)) * size + 1 - len(request.prompt)

    # -- admission

    def slots_missing(self, sequence: Sequence) -> int:
        """Slots by which its cold blocks, and those of running sequences, exceed the tier, or its tenant's
        part; 0 or less: they fit. O(running)."""
        if not sequence.is_long:
            return 0
        own = self._claims[sequence.request.request_id][1]
        others = (s for s in self._live.waiting if s.is_long and s.queue.wait.reason is WaitReason.SLOTS)
        if any(s.rank < sequence.rank for s in others):
            return own  # so that no smaller one passes it repeatedly
        tenant, tier = sequence.request.tenant, self._transfers.tier
        assert tier is not None
        running = [r for r in self._live.running_requests() if r.request_id != sequence.request.request_id]
        claims = [self._claims[r.request_id] for r in running if r.request_id in self._claims]
        missing = own + sum(slots for _, slots in claims) - tier.num_to_read
        limit = self._disk_left(tenant)
        if limit is not None:
            missing = max(missing, own + sum(slots for whose, slots in claims if whose == tenant) - limit)
        return missing

    # -- the step

    def make_room(self) -> None:
        """Make blocks cold, as many as are needed and possible. O(long sequences, and blocks that become
        cold)."""
        if not self._claims:
            return
        ledger, long = self._context.ledger, [s for s in self._live.running if s.is_long]
        wanted = 0
        for s in long:
            assert s.table is not None
            more = self._blocks_wanted(s)
            wanted += more
            excess = len(s.table.blocks) + more - s.hot_max(ledger.pool.num_blocks, ledger.quotas.has_maxima)
            self._make_cold(s, excess)
        if long and self._live.waiting.line and self._live.waiting.first.queue.wait.reason in WANTS_BLOCKS:
            first = self._live.waiting.first
            wanted += min(self._budget.needed(first, first.queue.num_cold), ledger.pool.num_blocks)
        num_running = len(self._live.running)
        wanted += self._budget.promised(self._live.running) + self._budget.headroom(num_running)
        for s in reversed(long):  # the last in rank first
            self._make_cold(s, wanted - ledger.num_available)
        for s in long:
            if s.has_cold and s is not self.in_parts:
                self._make_hot(s, ledger.num_available - wanted)

    def _blocks_wanted(self, sequence: Sequence) -> int:
        """New blocks for its next chunk."""
        assert sequence.table is not None
        stop = sequence.num_planned + min(max(sequence.remaining, 1), self._context.step_tokens)
        return max(0, blocks_for(stop, self._context.ledger.block_size) - len(sequence.table))

    def _make_cold(self, sequence: Sequence, at_most: int) -> None:
        ledger, table = self._context.ledger, sequence.table
        assert table is not None
        if at_most <= 0:
            return
        count = ledger.count_cold_candidates(table, at_most)
        if count < at_most:  # later stores may have been forgotten
            table.num_stored = len(table.cold) + count
        if not count:
            return
        first = ledger.make_cold(table, count)[0]
        self.num_made_cold += count
        self._context.plan.write_table(sequence.row, first, ledger.cold_entries(table)[first:])
        sequence.count_blocks(self._context.now)

    def _make_hot(self, sequence: Sequence, spare: int) -> None:
        """If all its cold blocks fit into `spare` blocks, load them and make them hot again."""
        ledger, table, transfers = self._context.ledger, sequence.table, self._transfers
        assert table is not None
        is_held, count = transfers.has_fetched(sequence.seq_id), len(table.cold)
        if is_held and transfers.is_fetching(sequence.seq_id):
            return
        total, quotas = len(table) + self._blocks_wanted(sequence), ledger.quotas
        fits = total <= sequence.hot_max(ledger.pool.num_blocks, quotas.has_maxima)
        if is_held:
            if fits and ledger.find_prefix(table.cold) == count:
                self._context.plan.write_table(sequence.row, 0, ledger.make_hot(table))
                sequence.count_blocks(self._context.now)
            transfers.release_fetch(sequence.seq_id)
            return
        has_room = fits and count <= min(spare, quotas.room(table.owner))
        if has_room and transfers.count_loadable(table.cold) == count and transfers.may_fetch(table.cold):
            request, names = sequence.request, list(table.cold)
            transfers.fetch(sequence.seq_id, request.tenant, sequence.rank, sequence.chain, names)

    def store(self) -> None:
        """Store blocks of long sequences, oldest first, up to the bound on stores in flight. O(those)."""
        tier = self._transfers.tier
        if not self._claims or tier is None:
            return
        self._count_claims()
        self._stuck.clear()
        for s in self._live.running:
            if not s.is_long or s.table is None:
                continue
            s.table.num_stored = max(s.table.num_stored, len(s.table.cold))
            for index in range(s.table.num_stored, s.table.num_published):
                why_not = self._store_block(tier, s.table.block_at(index))
                if why_not is not None:
                    if index == len(s.table.cold) and not self._transfers.in_flight:
                        self._stuck[s] = why_not
                    break
                if index == s.table.num_stored and tier.may_read(s.chain.names[index]):
                    s.table.num_stored += 1

    def _store_block(self, tier: OffloadTier, block: int) -> StuckReason | None:
        """Bring a block to a slot that attention can read; returns why that cannot begin now."""
        name = self._context.ledger.pool.name_of[block]
        if name is None:
            return StuckReason.NAMELESS
        if tier.may_read(name) or tier.is_storing(name):
            return None
        if tier.could_read(name):
            self._transfers.verify_for_running(name)
            return None
        if tier.is_leaving(name) or self._transfers.is_read_in_tier(name):
            return None  # wait for its bytes, or for the last reader of a forgotten slot
        if name in tier and not tier.is_kept(name):  # its slot is not readable by attention
            tier.forget(name)
        if self._transfers.num_failed_stores >= FAILURES_MAX:
            return StuckReason.FAILING
        return None if self._transfers.store_cold(name, block) else StuckReason.NO_SLOT

    def stuck(self) -> dict[Sequence, StuckReason]:
        """Sequences that cannot continue, and why: they hold all the blocks that they may, and none can
        become cold."""
        return {s: why for s, why in self._stuck.items() if self._is_full(s)}

    def is_final(self, why: StuckReason) -> bool:
        """False if restarting such a sequence helps."""
        num_long = sum(s.is_long for s in self._live.running)
        return why is StuckReason.FAILING or (why is StuckReason.NO_SLOT and num_long == 1)

    def take_damaged(self) -> set[int]:
        """Requests that read damaged slots, since the last call. O(their blocks)."""
        tier = self._transfers.tier
        if tier is None or not tier.damaged_reads:
            return set()
        names = set(tier.damaged_reads)
        self.num_unreadable += len(names)
        tier.damaged_reads.clear()
        tables = ((s.request.request_id, s.table) for s in self._live.running)
        return {number for number, table in tables if table and not names.isdisjoint(table.cold)}

    def _is_full(self, sequence: Sequence) -> bool:
        """True when it can write no further position and has no chunk in flight."""
        ledger, table = self._context.ledger, sequence.table
        if table is None or not (
            sequence.num_computed == sequence.num_planned == len(table) * ledger.block_size
        ):
            return False
        num_hot, quotas = len(table.blocks), ledger.quotas
        room = min(ledger.num_available, quotas.room(table.owner))
        most = max(sequence.request.hot_blocks, num_hot + room)
        return num_hot >= min(most, sequence.hot_max(ledger.pool.num_blocks, quotas.has_maxima))

    def lose(self, slots: Collection[int]) -> None:
        """These slots could not be read: forget their names."""
        tier = self._transfers.tier
        assert tier is not None
        self.num_unreadable += len(slots)
        self._num_unread += 1
        text = f"{len(slots):,} cold blocks could not be read; they will be recomputed"
        self._context.events.record(
            Event(self._context.now, EventKind.TRANSFER_FAILED, text, blocks=len(slots))
        )
        self._transfers.lose([name for name, slot in tier.slots().items() if slot in slots])

    def note_read(self) -> None:
        """All cold blocks of a chunk were read."""
        self._num_unread = 0

    @property
    def cannot_read(self) -> bool:
        """True after `FAILURES_MAX` consecutive failed reads."""
        return self._num_unread >= FAILURES_MAX

    def find_hits(self, sequence: Sequence, limit: int) -> int:
        """How many of its first blocks are hits; notes how many of them would be cold. Hits in the pool stay
        hot, up to its promised blocks. O(hits)."""
        tier, pool = self._transfers.tier, self._context.ledger.pool
        assert tier is not None
        names, hot_max = sequence.chain.names[:limit], sequence.request.hot_blocks // 2
        cold = next((i for i, name in enumerate(names) if not tier.may_read(name)), limit)
        hits = cold
        while hits < limit and hits - cold < hot_max and pool.find(names[hits]) is not None:
            hits += 1
        while cold > 0 and hits - cold < hot_max and pool.find(names[cold - 1]) is not None:
            cold -= 1
        sequence.queue.num_cold = cold
        return hits

    def num_to_verify(self, sequence: Sequence, num_hits: int, limit: int) -> int:
        """How many blocks after its hits are in a readable slot, and only need verification."""
        tier = self._transfers.tier
        assert tier is not None
        names = sequence.chain.names[num_hits:limit]
        count = next((i for i, name in enumerate(names) if not tier.could_read(name)), len(names))
        return 0 if all(map(tier.may_read, names[:count])) else min(count, LOADS_MAX)
