"""Planted bugs: a suite is judged by the bugs it refuses. Each entry breaks one promise on purpose; the
simulator must notice every one. `make planted-bugs` prints the table.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.simulator import planted_beams
from tests.simulator.lives import drive
from tests.simulator.planted_cold import COLD_BUGS
from tests.simulator.planted_drafts import DRAFT_BUGS
from tests.simulator.planted_events import EVENT_BUGS
from tests.simulator.planted_preemption import PREEMPTION_BUGS
from tests.simulator.planted_sessions import SESSION_BUGS
from tests.simulator.planted_splits import SPLIT_BUGS
from tests.simulator.planting import PlantedBug

from octavo.inspect import sight
from octavo.inspect.sight import Sight, VisibleBlocks
from octavo.memory import block_namer
from octavo.memory import names as names_module
from octavo.memory import pool as pool_module
from octavo.memory.capacity import Capacity
from octavo.memory.holders import Holder
from octavo.memory.ledger import Ledger, Reservation
from octavo.memory.pool import BlockPool
from octavo.memory.quota import Quotas
from octavo.memory.table import BlockTable
from octavo.memory.tiers import OffloadTier
from octavo.retention.client_pins import ClientPins
from octavo.retention.pins import Pin, Pins
from octavo.retention.transfers import Transfers, _InFlightTransfer
from octavo.scheduler import admit as admit_module
from octavo.scheduler import beam_rows, beams, limits
from octavo.scheduler import scheduler as scheduler_module
from octavo.scheduler import shortage as shortage_module
from octavo.scheduler.admit import Admission
from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.beams import BeamGroup
from octavo.scheduler.idle_memory import IdleMemory
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.planner import Planner
from octavo.scheduler.pool_resizer import PoolResizer
from octavo.scheduler.prefixes import PrefixLookup
from octavo.scheduler.pressure import PressurePolicy
from octavo.scheduler.queue import NamesInProgress
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.shares import TenantShares
from octavo.scheduler.shortage import StepShortage
from octavo.scheduler.victims import Victims
from octavo.scheduler.waits import Wait
from octavo.step.plan_builder import PlanBuilder
from octavo.types import FinishReason, Move, TransferDone, Update, Usage


def _reserve_without_copies(self: Ledger, table: BlockTable, start: int, stop: int) -> Reservation | None:
    reservation = _RESERVE(self, table, start, stop)
    return reservation and Reservation(reservation.first_index, reservation.blocks, ())


def _take_keeping_the_name(self: BlockPool, owner: int = 0) -> int:
    block = self.eviction_order()[0]
    name = self.name_of[block]
    _TAKE(self, owner)
    if name is not None:
        self.by_name[name], self.name_of[block] = block, name
    return block


def _name_without_parent(parent: bytes, tokens: array[int]) -> bytes:
    return _BLOCK_NAME(b"same for all", tokens)


def _chain_without_root(self: names_module.NameChain, root: bytes, block_size: int) -> None:
    _CHAIN_INIT(self, b"one root for every tenant", block_size)


def _plan_chunk_publishing_early(
    self: Planner, sequence: Sequence, grant: int, flights: list[object]
) -> None:
    _PLAN_CHUNK(self, sequence, grant, flights)
    if sequence.table is not None:
        filled = min(sequence.num_planned, len(sequence.tokens))
        self._context.ledger.publish(sequence.table, sequence.chain.names, filled)


def _close_leaking(self: Ledger, table: BlockTable) -> None:
    if table.blocks:
        table.blocks.pop(0)
    _CLOSE(self, table)


_SCORED_ALONE = property(lambda sequence: sequence.needs_prompt_logprobs)
_NEVER = property(lambda sequence: False)
_ALL_BEHIND_THE_PROMPT = property(lambda sequence: len(sequence.tokens) - sequence.num_prompt)


def _hit_everything(self: PrefixLookup, sequence: Sequence) -> int:
    if sequence.needs_prompt_logprobs:
        return 0
    return self._context.ledger.find_prefix(sequence.chain.names)


def _retire_inherits(self: PlanBuilder, row: int) -> None:
    self._retired.append(row)


def _preempt_in_the_same_epoch(self: LiveSequences, sequence: Sequence) -> None:
    _PREEMPT(self, sequence)
    sequence.preemptions -= 1


def _victim_already_planned(self: Victims, winner: Sequence) -> list[Sequence]:
    return [s for s in self._live.running if s is not winner]


def _readmit_with_samples_in_flight(self: Admission, prompts: list[Sequence], budget: int) -> None:
    for sequence in self._live.waiting:
        sequence.pending = 0
    _ADMIT(self, prompts, budget)


def _never_released(self: NamesInProgress, sequence: Sequence, names: list[bytes]) -> None:
    return None


def _fork_without_holding(self: Ledger, table: BlockTable, holder: Holder) -> BlockTable:
    twin = self.open(holder)
    twin.blocks, twin.num_published = list(table.blocks), table.num_published
    return twin


def _preempt_scoring_again(self: LiveSequences, sequence: Sequence) -> None:
    _PREEMPT(self, sequence)
    sequence.prompt_logprobs_done = 0


def _forget_what_is_held(self: BlockPool, name: bytes) -> None:
    block = self.by_name.get(name)
    if block is not None and self.holders[block] > 0:
        _FORGET(self, name)


def _cancel_before_the_fork(self: Scheduler, request_id: int, choice: int | None = None) -> list[Update]:
    updates = []
    for sequence in self.live.sequences_of(request_id):
        if choice is None or sequence.choice == choice:
            updates += self._finisher.end(sequence, FinishReason.CANCELLED)
    return updates


def _preempt_in_vain(self: Admission, entry: admit_module._Entry) -> list[Sequence]:
    for victim in [s for s in self._live.running if s.priority < entry.sequence.priority]:
        self._reclaimer._preemption.preempt(victim, entry.sequence)
    return []


def _fill_without_holding(self: Pins, pin: Pin) -> None:
    _FILL(self, pin)
    assert pin.table is not None
    for block in pin.table.blocks:
        self._ledger.pool.release(block)


def _remove_keeping_the_blocks(self: Pins, pin: Pin) -> None:
    del self._pins[pin]
    self._named.pop((pin.tenant, pin.name), None)
    self.num_blocks -= pin.num_blocks


def _admitted_is_forgotten(self: LiveSequences, sequence: Sequence, num_hits: int) -> None:
    _ENTER(self, sequence, num_hits)
    sequence.phases = replace(sequence.phases, admitted=None)


def _time_out_without_closing(self: Scheduler, request_id: int, deadline: object) -> list[Update]:
    usage = Usage(0, 0, 0, 0)
    return (
        [Update(request_id, 0, (), usage, FinishReason.TIMEOUT)] if self.live.sequences_of(request_id) else []
    )


def _retain_charging_again(self: BlockPool, block: int, *, charge: bool = True) -> None:
    _RETAIN(self, block, charge=charge)
    if self.holders[block] > 1:
        self.charged[self.owner[block]] += 1


def _extend_unsalted(self: names_module.NameChain, tokens: array[int]) -> None:
    count, self.num_shared = self.num_shared, 0
    _EXTEND(self, tokens)
    self.num_shared = count


def _findable_before_it_is_stored(self: OffloadTier, name: bytes, owner: int = 0) -> int | None:
    slot = _BEGIN_STORE(self, name, owner)
    if slot is not None:
        self._slot_of[name] = slot
    return slot


def _store_without_holding(self: Transfers, moving: _InFlightTransfer) -> None:
    _BEGIN(self, moving)
    if moving.holder is not None:
        for block in moving.holder.blocks:
            self._context.ledger.pool.release(block)
        moving.holder.blocks.clear()


def _published_before_it_is_loaded(self: Transfers, moving: _InFlightTransfer) -> None:
    _BEGIN(self, moving)
    if moving.transfer.move is Move.LOAD:
        self._context.ledger.publish_loaded(moving.transfer.block, moving.transfer.name)


def _load_is_not_a_holder(self: Transfers, seq_id: int) -> None:
    fetch = self._fetches.pop(seq_id, None)
    if fetch is not None:
        self._close(fetch.holder)


def _slot_taken_while_it_loads(self: OffloadTier, name: bytes) -> int:
    return self.slots()[name]


def _damage_is_not_noticed(self: Transfers, done: TransferDone) -> None:
    _FINISH(self, replace(done, ok=True))


def _drop_for_this_process_alone(self: OffloadTier, slot: int) -> None:
    self._free[self._tier_of(slot)].append(slot)


def _place_by_admission(self: LiveSequences, sequence: Sequence) -> tuple[int, float, int, int]:
    return (sequence.rank[0], self.service.turn_of(sequence.request.tenant), *sequence.rank[1:])


def _requests_of_all(self: Sight, live: LiveSequences) -> Iterable[list[Sequence]]:
    return live.unfinished.values()


def _blocks_of_all(self: Sight, ledger: Ledger) -> VisibleBlocks:
    return _BLOCKS(Sight(None), ledger)


def _blocks_by_their_places(self: Sight, ledger: Ledger) -> VisibleBlocks:
    return replace(_BLOCKS(self, ledger), numbers=None)


def _move_without_copies(self: PlanBuilder, copies: object, discarded: tuple[int, int]) -> None:
    self._discarded.append(discarded)


def _give_back_what_is_unused_now(self: IdleMemory) -> None:
    pool = self._context.ledger.pool
    self._context.plan.give_back(pool.backing.unused_runs(pool.holders, pool.name_of))


def _step_back_below_the_floor(self: PressurePolicy, resizer: PoolResizer, kept: int, more: int) -> int:
    return max(1, kept - more)


def _grow_beyond_what_was_asked_for(
    self: PressurePolicy, resizer: PoolResizer, now: float, available: int
) -> None:
    resizer.idle_memory.blocks_wanted += 1
    _GROW(self, resizer, now, available)
    resizer.idle_memory.blocks_wanted -= 1


def _give_nothing_back(self: IdleMemory) -> None:
    pool = self._context.ledger.pool
    for first, last in pool.backing.unused_runs(pool.holders, pool.name_of):
        pool.backing.record_given_back(first, last)


def _moves_after_the_store(self: Transfers, tier: OffloadTier) -> None:
    late, tier.moved = tier.moved, []
    _BEGIN_MOVES(self, tier)
    tier.moved = late


def _move_of_the_wrong_slot(self: Transfers, tier: OffloadTier) -> None:
    tier.moved = [replace(moved, target=moved.source) for moved in tier.moved]
    _BEGIN_MOVES(self, tier)


def _failed_move_is_not_noticed(self: OffloadTier, moved: object, ok: bool) -> None:
    return None


_RESERVE, _TAKE, _CLOSE = Ledger.reserve, BlockPool.take, Ledger.close
_BLOCK_NAME, _CHAIN_INIT = names_module.block_name, names_module.NameChain.__init__
_PLAN_CHUNK: Callable[..., None] = Planner.plan_chunk
_PREEMPT, _ADMIT, _ENTER = LiveSequences.requeue, Admission.admit, LiveSequences.admit
_FILL = Pins.fill
_BEGIN_STORE, _BEGIN, _FINISH = OffloadTier.begin_store, Transfers._begin, Transfers.finish
_FORGET, _RETAIN, _EXTEND = BlockPool.forget, BlockPool.retain, names_module.NameChain.extend
_BEGIN_MOVES = Transfers._begin_moves
_FORGET, _GROW = BlockPool.forget, PressurePolicy._grow


def _take_as_computed(self, flights, num_positions, later, why):  # type: ignore[no-untyped-def]
    """Its positions count, as if a result had come."""
    for flight in flights:
        flight.sequence.pending -= flight.num_samples
        if flight.is_current and not flight.sequence.group:
            flight.sequence.num_computed = flight.stop
    self._context.step_tokens = max(1, num_positions // 2)
    return []


_BLOCKS, _PLACES = Sight.blocks, Sight.places

NAME_WIDTH = 52  # of the printed table
SEEDS = 100  # of lives that a bug may take to be noticed

BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("no copy-on-write", BlockPool, "is_writable", lambda self, block: True),
    PlantedBug("copy-on-write whose copy is forgotten", Ledger, "reserve", _reserve_without_copies),
    PlantedBug("evicted block keeps its name", BlockPool, "take", _take_keeping_the_name),
    PlantedBug("tenant salt dropped from the names", names_module.NameChain, "__init__", _chain_without_root),
    PlantedBug("cache salt dropped from the names", block_namer, "salted_root", lambda root, salt: root),
    PlantedBug("parent dropped from the names", names_module, "block_name", _name_without_parent),
    PlantedBug("blocks published before the commit", Planner, "plan_chunk", _plan_chunk_publishing_early),
    PlantedBug("first block leaked on drop", Ledger, "close", _close_leaking),
    PlantedBug("whole prompt served from the cache", PrefixLookup, "find_hits", _hit_everything),
    PlantedBug("published after the drop", LiveSequences, "requeue", _preempt_in_the_same_epoch),
    PlantedBug("victim's blocks reused in its own plan", Victims, "behind", _victim_already_planned),
    PlantedBug("resumed with a sample in flight", Admission, "admit", _readmit_with_samples_in_flight),
    PlantedBug("leader's names never released", NamesInProgress, "end", _never_released),
    PlantedBug("fork that is not a holder", Ledger, "fork", _fork_without_holding),
    PlantedBug("row inherits its last owner's writes", PlanBuilder, "retire", _retire_inherits),
    PlantedBug("poisoned block found again", Ledger, "forget", lambda self, names: None),
    PlantedBug("poisoned block of a preempted one found again", BlockPool, "forget", _forget_what_is_held),
    PlantedBug("prompt logprobs asked for twice", LiveSequences, "requeue", _preempt_scoring_again),
    PlantedBug("cancelled choice takes its siblings along", Scheduler, "cancel", _cancel_before_the_fork),
    PlantedBug("victims preempted in vain", Admission, "_find_lower", _preempt_in_vain),
    PlantedBug("pin that is not a holder", Pins, "fill", _fill_without_holding),
    PlantedBug("pin that leaks its blocks", Pins, "remove", _remove_keeping_the_blocks),
    PlantedBug("pins without a budget", ClientPins, "_check_budget", lambda self, num_blocks, order: None),
    PlantedBug("orphaned pin", ClientPins, "give_up", lambda self, request: None),
    PlantedBug("pin on poisoned blocks", ClientPins, "drop_unnamed", lambda self: None),
    PlantedBug("deadline that never passes", scheduler_module, "set_deadlines", lambda timers, request: None),
    PlantedBug("timed out, but it runs on", Scheduler, "_time_out", _time_out_without_closing),
    PlantedBug("findable before it is stored", OffloadTier, "begin_store", _findable_before_it_is_stored),
    PlantedBug("store that does not hold its block", Transfers, "_begin", _store_without_holding),
    PlantedBug("published before it is loaded", Transfers, "_begin", _published_before_it_is_loaded),
    PlantedBug("block of a load given away", Transfers, "release_fetch", _load_is_not_a_holder),
    PlantedBug("slot taken while it is read", OffloadTier, "begin_load", _slot_taken_while_it_loads),
    PlantedBug("damage below is not noticed", Transfers, "finish", _damage_is_not_noticed),
    PlantedBug("fetches never give way", Transfers, "complete", lambda self, tenant=None: []),
    PlantedBug("poisoned block found after a restart", OffloadTier, "_drop", _drop_for_this_process_alone),
    PlantedBug("poisoned block found below", Transfers, "forget", lambda self, names: None),
    *PREEMPTION_BUGS,
    PlantedBug("taken of a step that came to nothing", shortage_module, "_void", lambda flights, ids: None),
    PlantedBug("step without memory is taken as computed", StepShortage, "take", _take_as_computed),
    PlantedBug("moved block is not copied", PlanBuilder, "move", _move_without_copies),
    PlantedBug(
        "moved block, and its row is not told", PoolResizer, "_update_rows", lambda self, copies: None
    ),
    PlantedBug("pool below its floor", PoolResizer, "floor", lambda self: 1),
    PlantedBug("events told to a tenant as written", sight, "own_event", lambda event: event),
    PlantedBug("another tenant's request is told", Sight, "sees", lambda self, tenant: True),
    PlantedBug("another tenant's requests are listed", Sight, "requests", _requests_of_all),
    PlantedBug("another tenant's pins are listed", Sight, "own", lambda self, things: things),
    PlantedBug("another tenant's blocks are drawn", Sight, "blocks", _blocks_of_all),
    PlantedBug("a tenant's blocks by their places", Sight, "blocks", _blocks_by_their_places),
    PlantedBug("a tenant is told its place", Sight, "places", lambda self, live: _PLACES(Sight(None), live)),
    PlantedBug("a tenant is told of all", Sight, "is_whole", True),
    PlantedBug("why a request waits names another", Wait, "in_words_of", lambda self, t: self.in_words()),
    PlantedBug("quota forgotten at admission", TenantShares, "allows", lambda self, *given: True),
    PlantedBug("quota forgotten when a table grows", Quotas, "room", lambda self, owner: 1 << 30),
    PlantedBug("quota forgotten below", Quotas, "disk_maximum", lambda self, owner: None),
    PlantedBug("guarantees that nobody can claim", Admission, "_claim_guarantees", lambda self: None),
    PlantedBug("prompts charged before they are computed", LiveSequences, "place", _place_by_admission),
    PlantedBug("guarantees lent for good", Capacity, "reserved", lambda *a, **k: 0),
    PlantedBug("shared blocks charged to each holder", BlockPool, "retain", _retain_charging_again),
    PlantedBug(
        "tenant's salt dropped after a shared prefix", names_module.NameChain, "extend", _extend_unsalted
    ),
    PlantedBug("moved to disk after its slot was written", Transfers, "_begin_moves", _moves_after_the_store),
    PlantedBug("moved to another slot than was said", Transfers, "_begin_moves", _move_of_the_wrong_slot),
    PlantedBug("failed move is not noticed", OffloadTier, "end_move", _failed_move_is_not_noticed),
    PlantedBug(
        "cached block's memory is given back",
        pool_module,
        "_is_unused",
        lambda num_holders, name: num_holders == 0,
    ),
    PlantedBug(
        "held block's memory is given back",
        pool_module,
        "_is_unused",
        lambda num_holders, name: name is None,
    ),
    PlantedBug(
        "given back before the plan is complete", IdleMemory, "give_back", _give_back_what_is_unused_now
    ),
    PlantedBug("given back in words only", IdleMemory, "give_back", _give_nothing_back),
    PlantedBug("stepped back below the floor", PressurePolicy, "_smaller", _step_back_below_the_floor),
    PlantedBug("grown beyond what was asked for", PressurePolicy, "_grow", _grow_beyond_what_was_asked_for),
    PlantedBug("queue deadline of one that runs", LiveSequences, "admit", _admitted_is_forgotten),
    PlantedBug("leader preempted without its beams", BeamRows, "gather", planted_beams.gather_nobody),
    PlantedBug("group preempted but for one beam", BeamRows, "gather", planted_beams.gather_half),
    PlantedBug("beam passed over keeps its blocks", BeamRows, "_drop", planted_beams.drop_leaking),
    PlantedBug("beams without promised rows", BeamRows, "begin", planted_beams.begin_without_rows),
    PlantedBug(
        "cancelled hypothesis told again", BeamRows, "cancel_choice", planted_beams.cancel_choice_twice
    ),
    PlantedBug("group counted as one beam", limits, "blocks_needed", planted_beams.blocks_of_one_beam),
    PlantedBug(
        "beams share one token too many", beam_rows, "shared_length", planted_beams.share_one_too_many
    ),
    PlantedBug(
        "forked beam keeps its parent's tail", Ledger, "truncate", lambda self, table, positions: None
    ),
    PlantedBug(
        "beam's token not told to its row", PlanBuilder, "write_token", lambda self, row, i, token: None
    ),
    PlantedBug("hypotheses of all lengths alike", beams, "penalised", planted_beams.penalised_never),
    PlantedBug("beam planned ahead of its choice", Planner, "ready", planted_beams.ready_ahead),
    PlantedBug("beam preempts its sibling", Victims, "behind", planted_beams.victim_in_the_group),
    PlantedBug("too few candidates", BeamGroup, "advance", planted_beams.advance_with_one_too_few),
    PlantedBug("mean takes a prefix hit", Sequence, "computes_all", _SCORED_ALONE),
    PlantedBug("mean lacks the rows inside its prompt", Sequence, "needs_mean", _NEVER),
    PlantedBug("placeholder counted as output", Sequence, "num_output", _ALL_BEHIND_THE_PROMPT),
    *SESSION_BUGS,
    *DRAFT_BUGS,
    *COLD_BUGS,
    *SPLIT_BUGS,
    *EVENT_BUGS,
)


def hunt(bug: PlantedBug, seeds: int = SEEDS, first: tuple[int, int] = (0, 0)) -> str | None:
    """Where the simulator noticed the bug ("seed 3, overlap 1: ..."), or None if it never did. `first`, seed
    and overlap, is where to look at once."""
    lives = [first, *((seed, overlap) for seed in range(seeds) for overlap in (0, 1, 2))]
    with bug.planted():
        for seed, overlap in lives:
            try:
                (bug.drive or drive)(seed, overlap, 300)
            except Exception as caught:  # noqa: BLE001 - whatever it says, the bug was noticed
                return f"seed {seed}, overlap {overlap}: {type(caught).__name__}: {caught}"
    return None


def main() -> int:
    """Print the table; 1 if a bug got away."""
    escaped = 0
    for bug in BUGS:
        where = hunt(bug)
        escaped += where is None
        sys.stdout.write(f"{bug.name:{NAME_WIDTH}s} {'caught  ' + where[:60] if where else 'NOT CAUGHT'}\n")
    sys.stdout.write(f"{len(BUGS) - escaped} of {len(BUGS)} planted bugs caught\n")
    return int(escaped > 0)


if __name__ == "__main__":
    sys.exit(main())
