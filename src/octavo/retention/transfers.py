"""Transfers between the pool and the offload tier, and the sequences and pins that wait for them.

    write-behind   a cached block is stored before its place is needed; evicting it is then free
    promised       a block of a warm pin is stored at once, before any of the others (warm_pins.py)
    fetch          a waiting sequence's next blocks are in the tier: they are loaded, then it is admitted

A transfer is a holder until it ends, so its block is not taken meanwhile. A fetch takes all its blocks at
once or none. A complete fetch releases them when a running sequence finds no block, or when no sequence runs
and the first in the queue does not fit: so fetches never block the engine. Damaged bytes are recomputed: the
sequence is admitted with the blocks that are intact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Self

from octavo.memory.changes import Place
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.name_history import Cause
from octavo.memory.names import NameChain
from octavo.memory.quota import SHARED
from octavo.memory.tiers import OffloadTier, SlotMove
from octavo.retention.arena import StagingArena, transfer_average
from octavo.retention.warm_pins import WarmPins
from octavo.step.context import Context
from octavo.step.events import Event, EventKind
from octavo.types import Move, Transfer, TransferDone

STORES_MIN, STORES_MAX = 8, 64  # stores in flight at once: a 64th of the pool, within these bounds
LOADS_MAX = 256  # loads in flight at once, over all fetches


@dataclass(slots=True, eq=False)
class Fetch:
    """The prefix of a waiting sequence while it is loaded. The fetch holds it until the sequence is
    admitted."""

    seq_id: int
    holder: Holder
    shared: frozenset[bytes]  # names that all tenants share
    pending: set[int] = field(default_factory=set)  # transfers that have not ended
    # Names that it has loaded: their tier, and when they came there (None: unknown).
    loaded: dict[bytes, tuple[Place, float | None]] = field(default_factory=dict)
    abandoned: bool = False  # not needed any more; the table is closed when nothing is pending


@dataclass(frozen=True, slots=True)
class _InFlightTransfer:
    """A transfer in flight: a store holds its block, the fetch holds the block of a load; a staged block has
    no holder."""

    transfer: Transfer
    holder: Holder | None
    fetch: Fetch | None


class Transfers:
    """Acts on the ledger, on the offload tier and on the plan in the making."""

    def __init__(
        self, context: Context, tier: OffloadTier | None, warm_pins: WarmPins, arena: StagingArena
    ) -> None:
        self.tier = tier
        self.num_stored = self.num_loaded = self.num_failed = 0
        self._context = context
        self._warm_pins = warm_pins
        self._arena = arena
        self._moving: dict[int, _InFlightTransfer] = {}
        self._fetches: dict[int, Fetch] = {}  # by sequence; abandoned ones are only in _moving
        self._loading: dict[bytes, int] = {}  # name -> transfer
        self._moves: dict[int, SlotMove] = {}  # between the offload tiers: uses no block
        self._num_stores = 0
        self._verifying: set[bytes] = set()  # for running sequences
        self.num_failed_stores = 0  # consecutive failures; concurrent ones count once
        self._last_id_at_failure = 0  # of transfers
        self._stores_max = max(STORES_MIN, min(STORES_MAX, context.ledger.pool.num_blocks // 64))
        self._no_slot = False  # at the last attempt, every slot was in transfer
        self._load_s = transfer_average()
        self._last_id = 0
        if tier is not None:
            # Bounded: if stores are too slow, the longest cached blocks are skipped.
            pool = context.ledger.pool
            pool.newly_cached = deque(maxlen=2 * pool.num_blocks)

    def continue_from(self, old: Self) -> None:
        """Use no id of an earlier scheduler: its late results match no transfer."""
        self._last_id = old._last_id

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    @property
    def in_flight(self) -> int:
        """The number of transfers in flight."""
        return len(self._moving)

    @property
    def could_store(self) -> bool:
        """Whether a plan made now would store or forget blocks: an idle engine then makes one."""
        waiting = self._context.ledger.pool.newly_cached
        if self.tier is None:
            return False
        if self.tier.dropped:
            return True
        if self._warm_pins.has_stores_to_begin and self._num_stores < self._stores_max and not self._no_slot:
            return True
        return (
            bool(waiting) and self._num_stores < self._stores_max and not self._no_slot and self.is_worth_it()
        )

    def blocks(self) -> set[int]:
        """Blocks with a transfer in flight: they cannot move."""
        staged = self._arena.first
        return {m.transfer.block for m in self._moving.values() if 0 <= m.transfer.block < staged}

    def staged(self) -> list[tuple[int, bytes]]:
        """Blocks of the staging arena with a store in flight, and their names: for checks."""
        moving = [m.transfer for m in self._moving.values() if m.transfer.block >= self._arena.first]
        return [(transfer.block, transfer.name) for transfer in moving]

    def fetching(self) -> set[int]:
        """Sequences with a fetch: for checks."""
        return set(self._fetches)

    # -- stores
    # ----------------------------------------------------------------------------------------------------

    def store_behind(self) -> None:
        """Store cached blocks that are not in the tier yet, longest cached first. O(newly cached blocks)."""
        pool, tier = self._context.ledger.pool, self.tier
        if tier is None or pool.newly_cached is None:
            return
        tier.expire(self._context.now)
        for owner, limit in self._context.ledger.quotas.disk_limits:
            self._trim(tier, owner, limit)
        self._send_forgets(tier)
        self._no_slot = False
        self._store_promised(tier)
        if self._no_slot or not self.is_worth_it():
            return
        while pool.newly_cached and self._num_stores < self._stores_max:
            block = pool.newly_cached.popleft()
            name = pool.name_of[block]
            if name is None or pool.holders[block] or not self._is_missing_in_tier(name):
                continue
            if not self._has_room_in_tier(tier, block):
                continue  # its tenant is at its bound in the tier, and none of its names can be forgotten now
            if not self._begin_store(tier, name, block):
                pool.newly_cached.appendleft(block)
                return

    def _store_promised(self, tier: OffloadTier) -> None:
        """Store the blocks that warm pins wait for."""
        holding = self._warm_pins
        while self._num_stores < self._stores_max and (name := holding.next_store()) is not None:
            if tier.is_storing(name):
                continue  # its end notifies the waiting pins
            block = self._context.ledger.pool.find(name)
            assert block is not None, "a warm pin waits for a block that it does not hold"
            if self.is_read_in_tier(name) or not self._has_room_in_tier(tier, block):
                holding.defer(name)  # damaged and still read; or the tenant is at its bound
            elif not self._begin_store(tier, name, block):
                holding.requeue(name)
                return

    def store_cold(self, name: bytes, block: int) -> bool:
        """Store a block that a sequence holds and will read in the tier. Returns False if it must wait for
        other stores, or for room of its tenant."""
        assert self.tier is not None
        self._send_forgets(self.tier)
        if self._num_stores >= self._stores_max:
            return False
        return self._has_room_in_tier(self.tier, block) and self._begin_store(self.tier, name, block)

    def _has_room_in_tier(self, tier: OffloadTier, block: int) -> bool:
        """Whether the tenant of a pool block may store one more, after forgetting its least recently used
        names."""
        owner = self._owner_in_tier(block)
        limit = self._context.ledger.quotas.disk_maximum(owner)
        if limit is None:
            return True
        self._trim(tier, owner, limit - 1)
        self._send_forgets(tier)
        return tier.count_of(owner) < limit

    def _owner_in_tier(self, block: int) -> int:
        return self._context.ledger.quotas.owner_in_tier(self._context.ledger.pool.owner[block])

    def _trim(self, tier: OffloadTier, owner: int, limit: int) -> None:
        """Forget the owner's names beyond the limit, as far as possible now."""
        while tier.count_of(owner) > limit and (oldest := tier.oldest_of(owner)) is not None:
            tier.forget(oldest, Cause.BOUNDED)

    def _begin_store(self, tier: OffloadTier, name: bytes, block: int) -> bool:
        """Returns False if no slot is free or evictable."""
        slot = tier.begin_store(name, self._owner_in_tier(block))
        if slot is None:
            self._no_slot = True
            return False
        self._begin_moves(tier)
        holder = Holder(HolderKind.STORE, label="on its way to an offload tier", is_fixed=True)
        self._context.ledger.adopt(self._context.ledger.open(holder, charges=False), [name])
        self._num_stores += 1
        self._begin(_InFlightTransfer(Transfer(self._new_id(), block, slot, name, Move.STORE), holder, None))
        return True

    def _begin_moves(self, tier: OffloadTier) -> None:
        """Plan the moves from host memory to disk, before their slots are written again."""
        for moved in tier.moved:
            transfer = Transfer(self._new_id(), -1, moved.target, moved.name, Move.MOVE, moved.source)
            self._moves[transfer.transfer_id] = moved
            self._context.plan.transfers.append(transfer)
        tier.moved.clear()

    def store_staged(self, block: int, name: bytes) -> bool:
        """Store a block of the staging arena, which the plan in the making fills. Returns False if no slot is
        free or evictable, or its tenant is at its bound."""
        assert self.tier is not None
        self._send_forgets(self.tier)
        source = self._context.ledger.pool.find(name)
        assert source is not None, "a staged block is a copy of one of the pool"
        if not self._has_room_in_tier(self.tier, source):
            return False
        slot = self.tier.begin_store(name, self._owner_in_tier(source))
        if slot is None:
            return False
        self._begin_moves(self.tier)
        self._begin(_InFlightTransfer(Transfer(self._new_id(), block, slot, name, Move.STORE), None, None))
        return True

    def _send_forgets(self, tier: OffloadTier) -> None:
        """Plan the removal of forgotten names, before their slots are taken again."""
        while tier.dropped:
            gone = Transfer(self._new_id(), -1, tier.dropped.pop(), b"", Move.FORGET)
            self._context.plan.transfers.append(gone)

    # -- loads
    # ----------------------------------------------------------------------------------------------------

    def is_fetching(self, seq_id: int) -> bool:
        """True while blocks are loaded for this sequence."""
        fetch = self._fetches.get(seq_id)
        return fetch is not None and bool(fetch.pending)

    def has_fetched(self, seq_id: int) -> bool:
        """True when its fetch has ended, with success or failure, and still holds blocks."""
        return seq_id in self._fetches

    def loaded_for(self, seq_id: int) -> dict[bytes, tuple[Place, float | None]]:
        """Names that were loaded for this sequence and are held for it: their tier, and when they came there
        (None: unknown)."""
        fetch = self._fetches.get(seq_id)
        return {} if fetch is None else fetch.loaded

    def complete(self, tenant: str | None = None) -> list[Holder]:
        """Fetches that have ended, of all tenants or one: their blocks may be reclaimed."""
        return [
            fetch.holder
            for fetch in self._fetches.values()
            if not fetch.pending and tenant in (None, fetch.holder.tenant)
        ]

    def is_loading(self, name: bytes) -> bool:
        """True while that name is being loaded for any sequence."""
        return name in self._loading

    def count_loadable(self, names: Many[bytes]) -> int:
        """How many leading names are in the pool or in the tier; 0 if loading is expected to be slower than
        computing."""
        if self.tier is None or not self.is_worth_it():
            return 0
        pool = self._context.ledger.pool
        for count, name in enumerate(names):
            if name not in self.tier and pool.find(name) is None:
                return count
        return len(names)

    def may_fetch(self, names: Many[bytes]) -> bool:
        """False if too many loads are in flight."""
        num_missing = sum(self._context.ledger.pool.find(name) is None for name in names)
        return not self._loading or len(self._loading) + num_missing <= LOADS_MAX

    def fetch(
        self, seq_id: int, tenant: str, rank: tuple[int, ...], chain: NameChain, names: Many[bytes]
    ) -> None:
        """Hold these names, which lead the chain, for a waiting sequence: those in the pool at once, the
        others when they are loaded. The caller has checked `may_fetch`."""
        assert self.tier is not None
        assert seq_id not in self._fetches
        ledger = self._context.ledger
        missing = [name for name in names if ledger.pool.find(name) is None]
        label = "on its way from an offload tier"
        holder = Holder(HolderKind.FETCH, tenant, label, is_fixed=bool(missing), rank=rank, group=seq_id)
        holder.request_id = rank[1]  # of (priority, request, choice)
        table = ledger.open(holder)
        fetch = Fetch(seq_id, holder, _common_names(tenant, chain))
        # First those in the pool, so that taking blocks for the others does not evict them.
        held = [name for name in names if ledger.pool.find(name) is not None]
        for name in held:
            block = ledger.pool.find(name)
            assert block is not None
            ledger.pool.retain(block)
            table.blocks.append(block)
        for name in reversed(missing):  # the head is the most recently used, and so forgotten last
            self.tier.touch(name)
        for name, block in zip(missing, ledger.take(table, len(missing)), strict=True):
            transfer = Transfer(self._new_id(), block, self.tier.begin_load(name), name, Move.LOAD)
            fetch.pending.add(transfer.transfer_id)
            self._loading[name] = transfer.transfer_id
            self._begin(_InFlightTransfer(transfer, None, fetch))
        self._fetches[seq_id] = fetch

    def verify(self, seq_id: int, tenant: str, names: Many[bytes]) -> None:
        """Verify these slots before a waiting sequence lists them as cold."""
        assert self.tier is not None
        assert seq_id not in self._fetches
        holder = Holder(
            HolderKind.FETCH, tenant, "being verified in an offload tier", is_fixed=True, group=seq_id
        )
        self._context.ledger.open(holder)
        fetch = Fetch(seq_id, holder, frozenset())
        for name in names:
            transfer = Transfer(self._new_id(), -1, self.tier.begin_load(name), name, Move.VERIFY)
            fetch.pending.add(transfer.transfer_id)
            self._begin(_InFlightTransfer(transfer, None, fetch))
        self._fetches[seq_id] = fetch

    def verify_for_running(self, name: bytes) -> None:
        """Verify this slot before a running sequence lists it as cold."""
        assert self.tier is not None
        if name not in self._verifying:
            self._verifying.add(name)
            transfer = Transfer(self._new_id(), -1, self.tier.begin_load(name), name, Move.VERIFY)
            self._begin(_InFlightTransfer(transfer, None, None))

    def release_fetch(self, seq_id: int) -> None:
        """Release the fetch of a sequence that was admitted or has ended, or whose blocks were reclaimed."""
        fetch = self._fetches.pop(seq_id, None)
        if fetch is not None:
            fetch.abandoned = True
            if not fetch.pending:
                self._close(fetch.holder)

    def _close(self, holder: Holder) -> None:
        assert holder.table is not None
        self._context.ledger.close(holder.table)

    # -- ends of transfers
    # ----------------------------------------------------------------------------------------------------

    def finish(self, done: TransferDone) -> None:
        """A transfer has ended. Ignored if an earlier scheduler began it."""
        self.lose(done.lost)
        moved = self._moves.pop(done.transfer_id, None)
        if moved is not None and self.tier is not None:
            was_there = moved.name in self.tier
            self.tier.end_move(moved, done.ok)
            self.num_failed += not done.ok
            if was_there and moved.name not in self.tier:
                self._warm_pins.lost(moved.name)
            return
        moving = self._moving.pop(done.transfer_id, None)
        if moving is None or self.tier is None:
            return
        transfer, memory = moving.transfer, self._context.ledger
        self._no_slot = False
        if not done.ok:
            self._record_failure(transfer)
        if transfer.move is Move.STORE:
            self.num_stored += done.ok
            self._count_failures(transfer, done.ok)
            self.tier.end_store(transfer.name, done.ok)
            if moving.holder is None:
                self._arena.finish(transfer.block, done)
            else:
                self._num_stores -= 1
                self._close(moving.holder)  # before its pin is notified: tails are released before heads
            self._notify_pins(transfer.name, done.ok)
            if moving.holder is None:
                return
            waiting = memory.pool.newly_cached
            if waiting and waiting[-1] == transfer.block:
                waiting.pop()  # once per store: a tier smaller than the pool must come to rest
            return
        is_found, fetch = self.tier.end_load(transfer.name, done.ok), moving.fetch
        if not done.ok:
            self._warm_pins.lost(transfer.name)
        if fetch is None:
            self._verifying.discard(transfer.name)
            self._warm_pins.try_again()
            return
        if transfer.move is Move.LOAD:
            if is_found:
                fetch.loaded[transfer.name] = (
                    self.tier.place_of(transfer.name),
                    self.tier.since(transfer.name),
                )
            self._finish_load(transfer, done, is_found=is_found, is_shared=transfer.name in fetch.shared)
        self._warm_pins.try_again()
        fetch.pending.discard(transfer.transfer_id)
        fetch.holder.is_fixed = bool(fetch.pending)
        if fetch.abandoned and not fetch.pending:
            self._close(fetch.holder)

    def _count_failures(self, store: Transfer, ok: bool) -> None:
        """Count consecutive failures; concurrent stores that fail count once."""
        if ok:
            self.num_failed_stores = 0
        elif store.transfer_id > self._last_id_at_failure:
            self.num_failed_stores += 1
            self._last_id_at_failure = self._last_id

    def _finish_load(
        self, transfer: Transfer, done: TransferDone, *, is_found: bool, is_shared: bool
    ) -> None:
        """A load has ended: publish the block under its name, if the name is still wanted."""
        if done.ok:
            self.num_loaded += 1
            self._load_s.add(done.seconds, self._context.now)
        if self._loading.get(transfer.name) == transfer.transfer_id:
            del self._loading[transfer.name]
        if is_found:
            self._context.ledger.publish_loaded(transfer.block, transfer.name, is_shared=is_shared)

    def _notify_pins(self, name: bytes, ok: bool) -> None:
        """Notify the pins that wait for this store of its result."""
        assert self.tier is not None
        holding = self._warm_pins
        if name in self.tier:
            holding.stored(name)
            holding.try_again()
        elif ok:
            holding.requeue(name)  # forgotten during the store, and recomputed since
        else:
            holding.defer(name)

    def lose(self, names: Many[bytes]) -> None:
        """The executor's store has lost these names: forget them."""
        for name in names if self.tier is not None else ():
            assert self.tier is not None
            if name in self.tier:
                self.tier.forget(name)
                self._warm_pins.lost(name)

    def forget(self, names: Many[bytes]) -> None:
        """Forget poisoned names in the tier too."""
        for name in names if self.tier is not None else ():
            assert self.tier is not None
            self.tier.forget(name, Cause.POISONED)

    def _is_missing_in_tier(self, name: bytes) -> bool:
        assert self.tier is not None
        return not (name in self.tier or self.tier.is_storing(name) or self.is_read_in_tier(name))

    def is_read_in_tier(self, name: bytes) -> bool:
        """True while its bytes in the tier are read, even if the name was forgotten there."""
        return name in self._loading or (self.tier is not None and self.tier.is_read(name))

    def _begin(self, moving: _InFlightTransfer) -> None:
        self._moving[moving.transfer.transfer_id] = moving
        self._context.plan.transfers.append(moving.transfer)

    @property
    def load_s(self) -> float | None:
        """Seconds to load a block; None: not measured."""
        return self._load_s.at(self._context.now)

    def is_worth_it(self) -> bool:
        """Whether loading a block is expected to be cheaper than computing it; also True if unknown."""
        load_s, position_s = self.load_s, self._context.times.position_s
        if load_s is None or position_s is None:
            return True
        return load_s < position_s * self._context.ledger.block_size

    def is_offloaded(self, name: bytes) -> bool:
        """True if its bytes are in the tier, or on their way there."""
        return self.tier is not None and (name in self.tier or self.tier.is_storing(name))

    def _record_failure(self, transfer: Transfer) -> None:
        self.num_failed += 1
        text = f"offload slot {transfer.slot} was damaged; its block will be recomputed"
        if transfer.move is not Move.VERIFY:
            what = "loaded from" if transfer.move is Move.LOAD else "stored in"
            where = f"offload slot {transfer.slot}"
            text = f"block {transfer.block} could not be {what} {where}; it will be recomputed"
        self._context.events.record(Event(self._context.now, EventKind.TRANSFER_FAILED, text, blocks=1))


def _common_names(tenant: str, chain: NameChain) -> frozenset[bytes]:
    """The names of a chain that all tenants share. O(names)."""
    return frozenset(chain.names if tenant == SHARED else chain.names[: chain.num_shared])
