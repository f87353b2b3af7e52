"""Random lives against the oracle: arrivals, forks, cancels, failures, tiny pools, priorities, tenants,
prompt logprobs, deadlines, pins, a tier below with slow and failing transfers, restarts, a pool that grows
and shrinks, a machine short of memory, steps smaller than the number of rows, step times of all kinds,
overlap depth 0, 1 and 2.

Every finished choice must equal what the oracle's model says without paging, every choice must get exactly
one final update, every prompt position is asked for its logprobs exactly once, what a failed sequence wrote
is never found again, something always advances, and every invariant must hold after every step. The seed is
the whole input.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tests.simulator.beams import check_apart, with_beams
from tests.simulator.books import NO_MEMORY, Books
from tests.simulator.drafts import SimulatedSpeculator, check_committed, check_planned
from tests.simulator.liveness import best_running, check_best_stays
from tests.simulator.lower import SimulatedTiers
from tests.simulator.outcome import Outcome
from tests.simulator.pooling import with_pooling
from tests.simulator.pressure import SimulatedMachine, check_resident, count_acts
from tests.simulator.sessions import SessionLives
from tests.simulator.sights import check_sights
from tests.simulator.splits import NameWatch
from tests.simulator.tenants import (
    TENANTS,
    GuaranteeWatch,
    TurnWatch,
    owner_of_seed,
    random_policies,
    salt_of_seed,
    try_policies,
    unsalted_seed,
)

from octavo.errors import InvalidRequest, PinRefused, RequestTooLarge, ResizeRefused
from octavo.memory.changes import ChangeRecord
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.memory.quota import SHARED, TenantPolicy
from octavo.memory.tiers import OffloadTier
from octavo.params import SamplerParams, Timeouts
from octavo.retention.client_pins import PinRequest
from octavo.retention.pins import Strength
from octavo.scheduler.scheduler import Scheduler
from octavo.sim.oracle import OracleExecutor
from octavo.step.context import SchedulerConfig
from octavo.step.events import EventKind
from octavo.types import Request, StepPlan, StepResult, Transfer, Update

VOCAB, EOS = 50, 0
DRAFTING = 0.4  # of all lives
LONG = 0.3  # of the requests of lives whose tier can be read: more tokens than the pool has room for
SHORT = 0.15  # of all lives: their device has memory for small steps alone
SIGHT_EVERY = 16  # steps, between two looks at what each tenant sees


class Simulation:
    """One random life: `run` is all of it; its parts are for who decides himself what happens next."""

    def __init__(self, r: random.Random, overlap: int) -> None:
        self.random = r
        self.block_size = r.choice([1, 2, 4, 16])
        roomy = r.random() < 0.2  # a larger pool, and prompts of many steps
        num_blocks = r.randint(100, 300) if roomy else r.randint(8, 40)
        config = SchedulerConfig(
            max_rows=r.randint(1, 12),
            step_tokens=r.choice([r.randint(1, 4), r.randint(4, 40)]),
            max_waiting=1000,
            context_length=10_000,
            stop_ids=frozenset([EOS]),
            pin_blocks=r.choice([0, num_blocks // 2, num_blocks - 1]),
        )
        self._num_blocks, self._tiers = num_blocks, SimulatedTiers(r)
        staging = r.choice([0, 1, 2, 5, 30]) if self._tiers.exist else 0
        self._config = replace(config, staging_blocks=staging)
        self._transfer_rate = r.choice([0.1, 0.5, 1.0])
        # Positions for which the device has memory; None: for all. Of its own, so that a seed's life stays.
        room = random.Random(str(r.getstate()[1][:8]))
        self._room = room.randint(1, 40) if room.random() < SHORT else None
        self._transfer_failures = r.choice([0.0, 0.0, 0.1, 0.9])
        self._capacity = num_blocks + r.randint(0, 20)  # that the pool may grow to
        self._resize_rate = r.choice([0.0, 0.05])
        self._tenants_rate = r.choice([0.0, 0.02])
        self._policies: list[TenantPolicy] = []
        self._shared: list[tuple[int, ...]] = []  # prompts that the operator shared
        self._machine = SimulatedMachine(r, self._capacity)
        guesses = random.Random(
            repr(r.getstate()[1][:8])
        )  # of their own: lives without guesses stay as they were
        self._long = random.Random(repr(r.getstate()[1][8:16]))  # of its own likewise
        if self._tiers.exist:
            self._config = replace(self._config, parts_max=self._long.choice([1, 1, 2, 3, 5]))
        self._speculator = SimulatedSpeculator(guesses, VOCAB) if guesses.random() < DRAFTING else None
        self._begin()
        self.overlap = overlap
        self.clock = 0.0
        self.pipe: deque[tuple[StepPlan, StepResult]] = deque()
        self.outcome = Outcome()
        self.books = Books(VOCAB, EOS, self.outcome)
        longest = 200 if roomy else 40
        self._prefixes = [[r.randrange(1, VOCAB) for _ in range(r.randint(1, longest))] for _ in range(3)]
        self.sessions = SessionLives(self)
        self._failure_rate = r.choice([0.0, 0.01])
        self._is_timed = r.random() < 0.5
        self._is_hasty = r.random() < 0.5  # requests with deadlines

    def _begin(self, stored: Mapping[bytes, int] = MappingProxyType({})) -> None:
        """A new process: an empty pool over whatever is stored below."""
        self.memory = Ledger(self._num_blocks, self.block_size, self._capacity)
        self.memory.history.changes = self.new_record()
        tier = self._tiers.new_ledger(stored)
        roots = {name: root_name(name.encode()) for name in [*map(str, range(TENANTS)), SHARED]}
        roots_of = roots.__getitem__
        self.scheduler = Scheduler(self.memory, self._config, roots_of, tier, self._speculator)
        self.executor = OracleExecutor(
            self._capacity + self._config.staging_blocks,
            self.block_size,
            VOCAB,
            owner_of_seed,
            stop_ids=frozenset([EOS]),
        )
        self.executor.shared = self._shared
        self._watch, self._turns = GuaranteeWatch(), TurnWatch(self.scheduler)
        self._names = NameWatch(self.scheduler)
        try_policies(self.scheduler, self._policies)

    def new_record(self) -> ChangeRecord | None:
        """Of what comes to the pool and the tiers; None: nothing is recorded."""
        return None

    @property
    def has_tier(self) -> bool:
        """Whether anything outlives the process."""
        return self._tiers.exist

    def resize(self) -> None:
        """Make the pool larger or smaller, if that may be."""
        try:
            self.outcome.resized += self.scheduler.resizer.resize(self.random.randint(1, self._capacity + 3))
        except ResizeRefused:
            self.outcome.resizes_refused += 1

    def change_tenants(self) -> None:
        """Other bounds for the tenants, if that may be."""
        names = [*map(str, range(TENANTS)), SHARED]
        policies = random_policies(self.random, names, self.memory.pool.num_blocks)
        if try_policies(self.scheduler, policies):
            self._policies = policies
            self.outcome.tenants_changed += 1
        else:
            self.outcome.tenants_refused += 1

    def restart(self) -> None:
        """The process ends with nothing in flight and begins anew: the pool is lost, what is below is not."""
        assert not self.pipe
        assert not self.executor.moving
        tier = self.scheduler.transfers.tier
        assert tier is not None
        found = {name: slot for slot, (name, _) in self._tiers.after_restart(self.executor).items() if name}
        assert found == self._tiers.on_disk(tier), "what a restart finds is not what the ledger lists"
        self._begin_again()

    def crash(self) -> None:
        """The process dies: nobody is answered, what was on its way below has arrived whole or not at all."""
        for transfer in list(self.executor.moving):
            self.executor.end_transfer(transfer, self.random.random() >= self._transfer_failures)
        self.pipe.clear()
        self.books.lose(self.scheduler.live.live_requests())
        self.outcome.crashes += 1
        self._begin_again()

    def _begin_again(self) -> None:
        self._tell()
        below = self._tiers.after_restart(self.executor)
        stored = {name: slot for slot, (name, _) in below.items() if name}
        kept_of_sessions = self.sessions.restart()
        self._begin(stored)
        self.executor.tier_slots = {
            slot: found for slot, found in below.items() if stored.get(found[0]) == slot
        }
        self.sessions.restore(kept_of_sessions)

    def _tell(self) -> None:
        """Add what this scheduler counted to the outcome."""
        outcome, transfers = self.outcome, self.scheduler.transfers
        if self._speculator is not None:
            outcome.accepted = sum(self._speculator.accepted.values())
        outcome.preemptions += self.scheduler.live.num_preemptions
        outcome.kept += self.scheduler.staging.num_kept
        outcome.recomputed += self.scheduler.staging.num_recomputed
        outcome.staged += self.scheduler.staging.num_staged
        outcome.evictions += self.memory.pool.num_evictions
        outcome.stored += transfers.num_stored
        outcome.loaded += transfers.num_loaded
        outcome.cooled += self.scheduler.long_contexts.num_made_cold
        outcome.transfers_failed += transfers.num_failed
        outcome.aged += transfers.tier.num_expired if transfers.tier is not None else 0
        outcome.gave_way += self.scheduler.events.counts[EventKind.SESSION_RELEASED]
        returned, pressed, relieved = count_acts(self.scheduler)
        outcome.returned, outcome.pressed = outcome.returned + returned, outcome.pressed + pressed
        outcome.relieved += relieved

    def end_transfers(self, everything: bool = False) -> None:
        """End some of the transfers that have begun, in any order."""
        moving = [t for t in self.executor.moving if everything or self.random.random() < self._transfer_rate]
        self.random.shuffle(moving)
        for transfer in moving:
            self.end_transfer(transfer, self.random.random() >= self._transfer_failures)

    def end_transfer(self, transfer: Transfer, ok: bool) -> None:
        """One of them, well or not."""
        self.scheduler.transfers.finish(self.executor.end_transfer(transfer, ok))
        self.scheduler.check()

    def check_below(self) -> None:
        """What a restart would find now is listed by the ledger, or about to be overwritten or forgotten."""
        tier = self.scheduler.transfers.tier
        if tier is None:
            return
        listed = tier.slots()
        leaving = {slot for name, slot in listed.items() if tier.is_storing(name)} | set(tier.dropped)
        leaving |= {transfer.slot for transfer in self.scheduler.context.plan.transfers}  # of the next plan
        for slot, (name, _) in self.executor.tier_slots.items():
            assert not name or listed.get(name) == slot or slot in leaving, (
                "forgotten, and found by a restart"
            )

    def arrive(self) -> None:
        """Submit a random request, if it can fit."""
        self.submit(with_pooling(self.some_request()))

    def some_request(self) -> Request:
        """Of any kind; the next one to be submitted."""
        r = self.random
        prompt = self.some_prompt()
        tenant = r.randrange(TENANTS)
        request = Request(
            request_id=len(self.books.requests),
            prompt=tuple(prompt),
            params=SamplerParams(
                ignore_eos=r.random() < 0.5, prompt_logprobs=0 if r.random() < 0.15 else None
            ),
            max_tokens=r.randint(1, 12),
            seed=r.randrange(1000) * TENANTS + tenant,
            n=min(r.choice([1, 1, 1, 1, 2, 3, 8]), self.scheduler.config.max_rows),
            tenant=str(tenant),
            priority=r.choice([0, 0, 0, 0, 5, r.randint(-3, 3)]),
            arrival=self.clock,
            timeouts=self._timeouts(),
        )
        request = replace(request, cache_salt=salt_of_seed(request.seed))
        return with_beams(r, request, self.scheduler.config.max_rows)

    def submit(self, request: Request) -> bool:
        """Whether there is room for such a request at all."""
        try:
            self.scheduler.submit(request)
        except RequestTooLarge:
            return False
        self.books.requests[request.request_id] = request
        return True

    def some_prompt(self) -> list[int]:
        """One of a few prefixes, and perhaps a few tokens more; or many, of which others begin alike."""
        r, tier = self.random, self.scheduler.transfers.tier
        prompt = r.choice(self._prefixes) + [r.randrange(1, VOCAB) for _ in range(r.randint(0, 6))]
        room = self.memory.pool.num_blocks * self.block_size
        if tier is not None and tier.num_readable and room < 200 and self._long.random() < LONG:
            own = self._long.randint(room // 2, 2 * room)
            prompt += [1 + (7 * i + i // 5) % (VOCAB - 1) for i in range(own)]
        return prompt

    def _timeouts(self) -> Timeouts:
        r = self.random
        if not self._is_hasty or r.random() < 0.6:
            return Timeouts()
        total, queue, first = (r.choice([None, None, 0.5, 5.0, 50.0]) for _ in range(3))
        return Timeouts(total, queue, first)

    def pin(self) -> None:
        """Pin a random prompt under one of a few names, renew one, or let one go."""
        r, pinning = self.random, self.scheduler.client_pins
        owner = r.randrange(TENANTS)
        tenant, name = r.choice([str(owner), str(owner), SHARED]), r.choice("abc")
        found = self.scheduler.pins.find(tenant, name)
        if found is not None and r.random() < 0.5:
            pinning.renew(tenant, name, 5.0, self.clock)
            return
        if found is not None:
            pinning.release(tenant, name)
            return
        self.open_pin(owner, tenant, name)

    def open_pin(self, owner: int, tenant: str, name: str) -> None:
        """Pin a random prompt; that of the shared tenant is computed in the name of `owner`."""
        r, pinning = self.random, self.scheduler.client_pins
        prompt = tuple(r.choice(self._prefixes))[: r.randint(1, 100)]
        request_id = len(self.books.requests)
        request = Request(
            request_id,
            prompt,
            SamplerParams(ignore_eos=True),
            max_tokens=1,
            seed=unsalted_seed(r, owner),
            tenant=tenant,
            arrival=self.clock,
            timeouts=self._timeouts(),
            fills_pin=name,
        )
        try:
            order = PinRequest(name, prompt, r.choice([1.0, 20.0, 1000.0]), r.choice([*Strength]), tenant)
            pinning.open(order, request_id, self.clock)
        except (PinRefused, InvalidRequest):
            self.outcome.pins_refused += 1
            return
        if not self.submit(request):
            pinning.give_up(request)
            return
        if tenant == SHARED:
            self._shared.append(prompt)

    def pass_time(self, seconds: float) -> None:
        """Deadlines pass: nobody may outlive the one that counts."""
        self.clock += seconds
        stuck = {
            s.request.request_id for s in self.scheduler.live.running if s.is_long
        }  # they may have to end
        running = [
            r
            for r in self.scheduler.live.running_requests()
            if not self._is_late(r) and r.request_id not in stuck
        ]
        self.learn(self.scheduler.expire(self.clock))
        assert all(r.request_id in self.scheduler.live for r in running), "a queue deadline ended what runs"
        self.scheduler.check()
        self.sessions.check()
        for request_id in self.scheduler.live.live_requests():
            request = self.books.requests[request_id]
            sequences = self.scheduler.live.sequences_of(request_id)
            timeouts, begun = request.timeouts, request.arrival
            assert timeouts.total is None or self.clock < begun + timeouts.total, "it outlived its deadline"
            if timeouts.queue is not None and self.clock >= begun + timeouts.queue:
                assert all(s.was_admitted for s in sequences), "it waits beyond its deadline"
            if timeouts.first_token is not None and self.clock >= begun + timeouts.first_token:
                assert any(len(s.tokens) > s.num_prompt for s in sequences), "no token in time, and it lives"

    def _is_late(self, request: Request) -> bool:
        """Whether a deadline of it has passed that counts while it runs."""
        bounds = (request.timeouts.total, request.timeouts.first_token)
        return any(seconds is not None and self.clock >= request.arrival + seconds for seconds in bounds)

    def step(self) -> None:
        """One turn of the engine's loop."""
        self.check_below()
        self.pass_time(self.random.choice([0.0, 0.001, 0.1, 1.0]))
        self.end_transfers()
        self._tiers.damage(self.executor)
        if self.random.random() < self._machine.rate:
            self.look_at_machine()
        planned = self.plan()
        if self.pipe and (not planned or len(self.pipe) > self.overlap):
            self.commit()

    def look_at_machine(self) -> None:
        """Memory may be short, or to be had again, or idle."""
        self.clock = self._machine.look(self.scheduler, self.executor, self.clock)
        self.scheduler.check()

    def plan(self) -> bool:
        """Make a plan and run it; False when there is nothing to be computed before a commit."""
        best = best_running(self.scheduler)
        if self._speculator is not None:
            self._speculator.attend(self.scheduler)
        self._turns.before()
        plan = self.scheduler.schedule(self.clock)
        self._turns.after()
        check_best_stays(self.scheduler, best)
        self._names.look()
        self.scheduler.check()
        if self.outcome.steps % SIGHT_EVERY == 0:
            check_sights(self.scheduler, self.clock)
        self._watch.look(self.scheduler)
        if plan is None:
            may_go_on = self.executor.moving or self.scheduler.has_stuck
            assert self.pipe or may_go_on or not self.scheduler.has_work, (
                "wedged: work is left, nothing is planned, nothing is in flight"
            )
            return False
        self.outcome.steps += 1
        self.outcome.forks += len(plan.forks)
        check_apart(plan, [earlier for earlier, _ in self.pipe], self.scheduler)
        self.outcome.drafted += check_planned(plan, self.scheduler)
        hot = sum(chunk.length for chunk in plan.chunks if not chunk.is_cold)
        assert hot <= self.scheduler.context.step_tokens, "the step's budget was exceeded"
        result = self.executor.run(plan)
        self.outcome.unreadable += len(result.unreadable)
        self.pipe.append((plan, self._disturb(plan, result)))
        self.outcome.moved += self._tiers.end_moves(plan, self.scheduler, self.executor)
        if plan.discarded or plan.step_id % 8 == 0:
            check_resident(self.scheduler, self.executor)
        return True

    def _disturb(self, plan: StepPlan, result: StepResult) -> StepResult:
        """The same result with a step time, and now and then with a sequence that failed: poisoned, or with
        no token that its client allows; or none, where the device had no memory for it."""
        r = self.random
        if self._room is not None and plan.num_tokens > self._room:
            self.outcome.shortages += 1
            return StepResult(result.step_id, {}, too_large=NO_MEMORY)
        failed = [seq_id for seq_id in result.samples if r.random() < self._failure_rate]
        samples = {seq_id: tokens for seq_id, tokens in result.samples.items() if seq_id not in failed}
        dead_ends = {seq_id: "dead end" for seq_id in failed if r.random() < 0.3}
        failures = {seq_id: "poisoned" for seq_id in failed if seq_id not in dead_ends}
        seconds = r.choice([0.001, 0.01, 1.0]) * r.random() if self._is_timed else 0.0
        cold_seconds = 0.7 * seconds if any(chunk.is_cold for chunk in plan.chunks) else 0.0
        return replace(
            result,
            samples=samples,
            failures=failures,
            dead_ends=dead_ends,
            seconds=seconds,
            cold_seconds=cold_seconds,
        )

    def commit(self) -> None:
        """Take the result of the oldest plan in flight."""
        plan, result = self.pipe.popleft()
        live = [s for i in self.scheduler.live.live_requests() for s in self.scheduler.live.sequences_of(i)]
        poisoned = [name for s in live if s.seq_id in result.failures for name in s.chain.names]
        self.learn(self.scheduler.commit(plan, result, self.clock))
        tier = self.scheduler.transfers.tier or OffloadTier(0)
        assert not any(name in self.memory.pool.by_name or name in tier for name in poisoned), (
            "a poisoned block can be found"
        )
        self._names.look()
        self.scheduler.check()
        check_committed(self.scheduler)

    def drain(self) -> None:
        """No more arrivals: everything must finish (liveness)."""
        for _ in range(20_000):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "livelock: 20,000 steps did not finish the work"
        self.books.check_complete()
        self.sessions.suspend_all()
        self.settle()
        self.sessions.delete_unless_suspended()
        held = {block for pin in self.scheduler.pins.all() if pin.table for block in pin.table.blocks}
        assert self.memory.counts().held == len(held), "blocks are held by nobody that lives"
        self.clock += 10_000.0
        self.learn(self.scheduler.expire(self.clock))
        assert self.memory.counts().held == 0, "blocks are held by pins that have expired"
        assert self.scheduler.pins.num_blocks == 0
        self._machine.rest(self.scheduler, self.clock)
        self.step()
        self._machine.check_rested(self.scheduler, self.executor)
        self.settle()

    def settle(self) -> None:
        """Until nothing is in flight."""
        for _ in range(20_000):
            if not (self.pipe or self.executor.moving or self.scheduler.transfers.could_store):
                return
            self.end_transfers(everything=True)
            self.step()
        raise AssertionError("it never comes to rest")

    def run(self, steps: int) -> Outcome:
        """A whole life of at least `steps` turns, with a restart in the middle where something is below."""
        self._live(steps // 2 if self.has_tier else steps)
        if self.has_tier:
            self.restart()
            self._live(steps // 2)
        return self.end()

    def end(self) -> Outcome:
        """What all of it came to."""
        self._tell()
        self.outcome.beams_searched = self.books.beams.searched
        self.outcome.beams_told_in_part = self.books.beams.told_in_part
        self.outcome.beams_preempted = self.books.beams.preempted
        return self.outcome

    def _live(self, steps: int) -> None:
        for _ in range(steps):
            if self.random.random() < 0.35 and len(self.scheduler.live.live_requests()) < 20:
                self.arrive()
            if self.random.random() < self._resize_rate:
                self.resize()
                self.scheduler.check()
            if self.random.random() < self._tenants_rate:
                self.change_tenants()
                self.scheduler.check()
            if self.random.random() < 0.05:
                self.pin()
                self.scheduler.check()
            if self.random.random() < 0.15:
                self.sessions.act()
                self.scheduler.check()
            if self.random.random() < 0.05 and self.scheduler.live.live_requests():
                self.cancel(self.random.choice(self.scheduler.live.live_requests()))
                self.scheduler.check()
            self.step()
        self.drain()

    def cancel(self, request_id: int) -> None:
        """All choices of the request, or one of them."""
        choice = self.random.choice([None, *range(self.books.requests[request_id].n)])
        updates = self.scheduler.cancel(request_id, choice)
        assert all(choice in (None, update.choice) for update in updates), "another choice was cancelled"
        self.learn(updates)

    def cancel_request(self, request_id: int) -> None:
        """All of it."""
        self.learn(self.scheduler.cancel(request_id))

    def learn(self, updates: list[Update]) -> None:
        """What clients are told."""
        self.books.learn(updates, self.clock)


def drive(seed: int, overlap: int, steps: int = 300) -> Outcome:
    """Run one random life and return what it did; an AssertionError names what broke."""
    return Simulation(random.Random(seed), overlap).run(steps)
