"""The invariants between retention's parts, recomputed: for tests, the simulator, and idle moments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from octavo.memory.capacity import blocks_needed
from octavo.memory.ledger import Ledger
from octavo.retention.arena import StagingArena
from octavo.retention.pins import Pins
from octavo.retention.room import AcceptedRequests, Room
from octavo.retention.session_table import SessionTable
from octavo.retention.soft_holds import SoftHolds
from octavo.retention.transfers import Transfers
from octavo.retention.warm_pins import WarmPins
from octavo.step.context import Context


def check_pins(
    context: Context, pins: Pins, taken: AcceptedRequests, room: Room, soft_holds: SoftHolds
) -> None:
    """Pins keep to their budgets, hold the blocks they name, and the request that fills one is alive."""
    ledger, pool = context.ledger, context.ledger.pool
    assert pins.num_blocks == sum(pin.num_held for pin in pins.all()) <= context.config.pin_blocks
    assert pins.num_soft == sum(pin.num_held for pin in pins.all() if pin.is_soft)
    fillers = {r.request_id for r in taken.requests()}
    for pin in pins.all():
        if pin.table is None:
            assert pin.filler in fillers, f"no request fills pin {pin.name}"
            continue
        held = [pool.name_of[block] for block in pin.table.blocks]
        wanted = [name for name in pin.names if name in set(held)] if pin.is_kept else pin.names
        assert held == wanted, f"pin {pin.name} holds other blocks than it names"
    for name, block in pool.by_name.items():
        is_shared = pool.owner[block] == ledger.quotas.shared
        assert is_shared == (name in pins.shared_names), "the shared names are not those of the shared pins"
    for request in taken.requests():
        needed = blocks_needed(request, ledger.block_size)
        assert needed <= room.room_with_hard_pins(request), "pins or guarantees leave a request no room"
    for request in taken.running_requests():
        assert not soft_holds.is_crowded(request), "idle sessions crowd out a request that runs"


def check_tier(transfers: Transfers, waiting: Collection[int]) -> None:
    """Every slot has one name or is free, and every fetch has a waiting sequence. `waiting`: sequences."""
    tier = transfers.tier
    if tier is None:
        return
    taken = list(tier.slots().values())
    assert len(taken) == len(set(taken)), "two names in one slot"
    assert len(taken) + tier.num_free == tier.num_slots, "a slot is lost"
    assert transfers.fetching() <= set(waiting), "a fetch for a sequence that does not wait"


def check_staging(arena: StagingArena, transfers: Transfers) -> None:
    """Every block of the arena is free, or one store copies it to a slot that is not findable."""
    tier, staged, free = transfers.tier, transfers.staged(), list(arena.free)
    blocks = [block for block, _ in staged]
    everything = range(arena.first, arena.first + arena.num_blocks)
    assert sorted(blocks + free) == list(everything), "a block of the staging arena is lost, or used twice"
    for block, name in staged:
        assert tier is not None
        assert tier.is_storing(name), f"block {block} is staged without a store"
        assert name not in tier, f"block {block} can be found before its store ended"


def check_kept(ledger: Ledger, pins: Pins, warm_pins: WarmPins, transfers: Transfers) -> None:
    """Every name kept by the tier is kept for a pin, and is in the tier or held by that pin."""
    tier, pool, kept = transfers.tier, ledger.pool, Counter[bytes]()
    for pin in pins.all():
        if not pin.is_kept:
            continue
        assert tier is not None
        assert pin.table is not None
        kept.update(pin.names)
        held = {pool.name_of[block] for block in pin.table.blocks}
        assert pin.missing <= held, f"pin {pin.name} waits for a store of what it does not hold"
        for name in pin.names:
            assert name in tier or name in pin.missing, f"a block of pin {pin.name} is kept nowhere"
            assert (pin in warm_pins.waiting().get(name, ())) == (name in pin.missing)
        assert pin.missing or not held, f"pin {pin.name} is stored and still holds its blocks"
    for tenant in {pin.tenant for pin in pins.all()}:
        own = [name for p in pins.all() if p.is_kept and p.tenant == tenant for name in p.names]
        assert warm_pins.kept_of(tenant) == Counter(own), "a tenant's kept names are miscounted"
    if tier is not None:
        assert tier.keepers() == kept, "names are kept in the tier for no pin, or are not kept"
        assert tier.num_kept <= tier.kept_max


def check_sessions(sessions: SessionTable, pins: Pins, taken: AcceptedRequests) -> None:
    """A session's turn is a live request, and sessions' pins are consistent."""
    live = {r.request_id: r.session for r in taken.requests()}
    for session in sessions:
        assert session.turn is None or live.get(session.turn) == session.session_id, "a turn of no request"
    owned = {pin for session in sessions for pin in session.pins}
    assert owned == {pin for pin in pins.all() if pin.session_id}, "a session's pin has no owner, or is gone"
