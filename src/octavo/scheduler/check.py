"""The scheduler's invariants, recomputed: for tests, the simulator, and idle moments. O(everything)."""

from __future__ import annotations

from collections import Counter

from octavo.memory.check import check
from octavo.scheduler.limits import blocks_needed
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import State


def check_scheduler(scheduler: Scheduler) -> None:
    """Raise AssertionError, saying what differs, unless ledger and scheduler agree."""
    memory = scheduler.ledger
    check(memory)
    live = [s for request in scheduler.live.live_requests() for s in scheduler.live.sequences_of(request)]
    running = [s for s in live if s.state is State.RUNNING]
    assert set(running) == set(scheduler.live.running), "a running sequence is not in the list"
    ranks = [s.own_rank for s in scheduler.live.running]
    assert ranks == sorted(ranks), "running sequences are out of order"
    assert set(scheduler.live.waiting) == set(live) - set(running), "a waiting sequence is not in the queue"
    pins = scheduler.pins.all()
    holders = [s.table for s in running] + [pin.table for pin in pins if pin.table is not None]
    holders += scheduler.transfers.tables()
    assert len(memory.tables) == len(holders)
    assert memory.tables == set(holders), "a holder without a sequence or pin, or one without its holder"
    _check_pins(scheduler)
    _check_tier(scheduler)
    _check_staging(scheduler)
    _check_beams(scheduler)
    _check_kept(scheduler)
    _check_sessions(scheduler)
    rows = [s.row for s in running]
    assert len(rows) == len(set(rows)), "two sequences share a row"
    assert scheduler.live.num_free_rows == scheduler.config.max_rows - len(rows) - sum(
        s.forks_left for s in running
    )
    assert scheduler.live.names.sequences() <= set(running), "a name is computed by nobody"
    for s in live:
        assert 0 <= s.num_computed <= s.num_planned <= s.known, f"counters of sequence {s.seq_id}"
        assert len(s.chain.names) == len(s.tokens) // memory.block_size
        if s.state is State.RUNNING:
            assert s.table is not None
            assert s.num_planned <= len(s.table) * memory.block_size
            assert s.table.num_published * memory.block_size <= s.num_computed, (
                "a block was published before its step"
            )
            for name, block in zip(s.chain.names, s.table.blocks[: s.table.num_published], strict=False):
                assert memory.pool.name_of[block] in (name, None), "a block has another prefix's name"
        else:
            assert s.table is None
            assert s.row == -1
            assert s.num_planned == 0


def _check_pins(scheduler: Scheduler) -> None:
    """Pins keep to their budgets, hold what they name, and whoever fills one is alive."""
    pins, pool = scheduler.pins.all(), scheduler.ledger.pool
    assert scheduler.pins.num_blocks == sum(pin.num_held for pin in pins) <= scheduler.config.pin_blocks
    fillers = {r.request_id for r in scheduler.live.requests()}
    for pin in pins:
        if pin.table is None:
            assert pin.filler in fillers, f"pin {pin.name} is filled by nobody"
            continue
        held = [pool.name_of[block] for block in pin.table.blocks]
        wanted = [name for name in pin.names if name in set(held)] if pin.is_kept else pin.names
        assert held == wanted, f"pin {pin.name} holds other blocks than it names"
    quotas, shared_names = scheduler.ledger.quotas, scheduler.pins.shared_names
    for name, block in pool.by_name.items():
        assert (pool.owner[block] == quotas.shared) == (name in shared_names), "shared, and another's, or not"
    for request in scheduler.live.requests():
        room = scheduler.capacity.room_with_own_pin(request, firm=True)
        needed = blocks_needed(request, scheduler.ledger.block_size)
        assert needed <= room, "pins or guarantees crowd a request out"
    for request in scheduler.live.running_requests():
        assert not scheduler.giving_way.is_crowded(request), "idle sessions crowd out a request that runs"


def _check_tier(scheduler: Scheduler) -> None:
    """Every slot below has one name or is free, and nothing is moved for the dead."""
    tier = scheduler.transfers.tier
    if tier is None:
        return
    taken = list(tier.slots().values())
    assert len(taken) == len(set(taken)), "two names in one slot"
    assert len(taken) + tier.num_free == tier.num_slots, "a slot is lost"
    waiting = {s.seq_id for s in scheduler.live.waiting}
    assert scheduler.transfers.fetching() <= waiting, "a fetch for a sequence that does not wait"


def _check_staging(scheduler: Scheduler) -> None:
    """Every block of the arena is free, or one store is on its way from it to a slot that is not findable."""
    arena, tier = scheduler.arena, scheduler.transfers.tier
    staged, free = scheduler.transfers.staged(), list(arena.free)
    blocks = [block for block, _ in staged]
    everything = range(arena.first, arena.first + arena.num_blocks)
    assert sorted(blocks + free) == list(everything), "a block of the staging arena is lost, or used twice"
    for block, name in staged:
        assert tier is not None
        assert tier.is_storing(name), f"block {block} is staged for nothing"
        assert name not in tier, f"what block {block} holds can be found below before it is there"


def _check_beams(scheduler: Scheduler) -> None:
    """A group runs with all its beams or waits with its leader alone, has its rows, and keeps to its worst
    case."""
    for request in scheduler.live.requests():
        sequences = scheduler.live.sequences_of(request.request_id)
        group = sequences[0].group
        if group is None:
            continue
        assert set(sequences) == set(group.sequences()), (
            "a beam without a sequence, or a sequence without a beam"
        )
        assert group.leader.forks_left == sum(s.forks_left for s in sequences), (
            "rows promised to another beam"
        )
        assert len(sequences) + group.leader.forks_left == group.params.width, "a group has lost a row"
        for beam in group.beams:
            s = beam.sequence
            assert s is None or len(s.tokens) == s.num_prompt + beam.length, (
                "a beam's tokens are not its path"
            )
            assert beam.candidates is None or (s is not None and s.pending == 0), "delivered, and in flight"
        if group.leader.state is not State.RUNNING:
            assert sequences == [group.leader], "a beam runs while its leader waits"
            continue
        held = {block for s in sequences if s.table is not None for block in s.table.blocks}
        needed = blocks_needed(request, scheduler.ledger.block_size)
        assert len(held) <= needed, "a group holds more than its worst case"


def _check_kept(scheduler: Scheduler) -> None:
    """Every name that the tier keeps is kept for a pin, and is below or held by that pin in the pool."""
    tier, pool, kept = scheduler.transfers.tier, scheduler.ledger.pool, Counter[bytes]()
    for pin in scheduler.pins.all():
        if not pin.is_kept:
            continue
        assert tier is not None
        assert pin.table is not None
        kept.update(pin.names)
        held = {pool.name_of[block] for block in pin.table.blocks}
        assert pin.missing <= held, f"pin {pin.name} waits for a store of what it does not hold"
        for name in pin.names:
            assert name in tier or name in pin.missing, f"a block of pin {pin.name} is kept nowhere"
            assert (pin in scheduler.holding.waiting().get(name, ())) == (name in pin.missing)
        assert pin.missing or not held, f"pin {pin.name} is below and holds its blocks still"
    for tenant in {pin.tenant for pin in scheduler.pins.all()}:
        own = [name for p in scheduler.pins.all() if p.is_kept and p.tenant == tenant for name in p.names]
        assert scheduler.holding.kept_of(tenant) == Counter(own), "a tenant's kept names are miscounted"
    if tier is not None:
        assert tier.keepers() == kept, "names are kept below for nobody, or are not kept"
        assert tier.num_kept <= tier.kept_max


def _check_sessions(scheduler: Scheduler) -> None:
    """A session's turn is a live request, and pins of sessions have theirs."""
    live = {r.request_id: r.session for r in scheduler.live.requests()}
    owned = {pin for s in scheduler.session_table for pin in scheduler.session_table.pins_of(s)}
    for session in scheduler.session_table:
        assert session.turn is None or live.get(session.turn) == session.session_id, "a turn of nobody"
    for pin in scheduler.pins.all():
        assert not pin.is_of_session or pin in owned, f"pin {pin.name} belongs to no session"
