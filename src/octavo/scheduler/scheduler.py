"""The scheduler: continuous batching over the ledger. No clock, no thread, no bytes; every decision is a pure
function of submissions and commits (and of measured step times, if the executor reports them).

One call of `schedule` makes one plan (`expire` comes before it, and ends requests that are out of time):

    1. followers     a waiting sequence whose next block is being computed lends its priority and steps aside
    2. admission     waiting sequences that fit in rows, blocks and the step's tokens, in turns (admit.py)
    3. grants        one position for each that continues; the rest is shared among prompts (budget.py)
    4. reservation   in order of rank; one that lacks a block reclaims others' (planner.py, reclaimer.py)
    5. chunks        and forks, where a request with n > 1 reaches its first sample
    6. drafts        guesses at tokens to come, in the remaining budget (drafts.py)

Liveness: the best-ranked running sequence gets at least one position in every step and can preempt all
others. A request that could not run alone in the pool next to pins is refused at submission. So some sequence
always advances. Source: Orca (Yu et al. 2022) for iteration-level scheduling; Kwon et al. 2023, section 4.5
for preemption.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Self

from octavo.memory.block_namer import BlockNamer
from octavo.memory.capacity import Capacity
from octavo.memory.check import check as check_ledger
from octavo.memory.ledger import Ledger
from octavo.memory.names import NameChain
from octavo.memory.tiers import OffloadTier
from octavo.retention.arena import StagingArena
from octavo.retention.check import check_kept, check_pins, check_sessions, check_staging, check_tier
from octavo.retention.client_pins import ClientPins
from octavo.retention.offload_stager import OffloadStager
from octavo.retention.pins import Pins
from octavo.retention.room import Room
from octavo.retention.session_holds import SessionHolds
from octavo.retention.session_table import SessionTable
from octavo.retention.soft_holds import SoftHolds
from octavo.retention.transfers import Transfers
from octavo.retention.warm_pins import WarmPins
from octavo.scheduler.admission_limits import AdmissionLimits
from octavo.scheduler.admit import Admission
from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.block_budget import BlockBudget
from octavo.scheduler.check import check_beams, check_live
from octavo.scheduler.cold_chunks import ColdChunks
from octavo.scheduler.committer import Committer
from octavo.scheduler.drafts import Drafts
from octavo.scheduler.fair_queue import VirtualTokenCounter
from octavo.scheduler.finisher import Finisher
from octavo.scheduler.first_tokens import FirstTokens
from octavo.scheduler.idle_memory import IdleMemory
from octavo.scheduler.limits import check_fits, check_salt, with_max_tokens
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.long_contexts import LongContexts
from octavo.scheduler.planner import Planner
from octavo.scheduler.pool_resizer import PoolResizer
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.prefixes import PrefixLookup
from octavo.scheduler.reclaimer import Reclaimer
from octavo.scheduler.sequence import InFlightChunk, Sequence, State
from octavo.scheduler.sequence_parts import Attachment
from octavo.scheduler.shares import TenantShares
from octavo.scheduler.shortage import UNREADABLE, StepShortage
from octavo.scheduler.tenants import TenantBounds
from octavo.scheduler.victims import Victims
from octavo.speculation.speculator import Speculator
from octavo.step.context import Context, SchedulerConfig
from octavo.step.events import Event, EventKind, EventRing
from octavo.step.headroom import Headroom
from octavo.step.latency_target import LatencyTarget, PrefillBudget
from octavo.step.step_times import StepTimes, work_of
from octavo.step.timers import Deadline, TimerKind, Timers, cancel_deadlines, set_deadlines
from octavo.types import FinishReason, Request, StepPlan, StepResult, StepWay, Update


class Scheduler:
    """Owns every sequence. Called from one thread: submit and cancel, then schedule and commit in turns."""

    def __init__(
        self,
        ledger: Ledger,
        config: SchedulerConfig,
        root_of_tenant: Callable[[str], bytes],
        tier: OffloadTier | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        assert config.step_tokens >= 1
        assert config.max_rows >= 1
        times = StepTimes() if speculator is None else StepTimes(speculator.costs)
        target = LatencyTarget(times, config.target_itl_s)
        self.context = context = Context(ledger, config, times, target)
        self.ledger, self.config = ledger, config
        ledger.attach(tier)
        # An unmeasured model delays no prompt.
        self.prefill_budget = PrefillBudget(config.step_tokens, times if config.pace else StepTimes())
        self.headroom, self.timers = Headroom(times), Timers()
        self._in_flight: deque[tuple[StepPlan, list[InFlightChunk]]] = deque()
        # Each part receives the ones before it. First: blocks beyond running sequences, and their tiers.
        self.pins, self.session_table = Pins(ledger), SessionTable()
        self.namer = BlockNamer(ledger.block_size, root_of_tenant, self.pins.shared_names)
        self.warm_pins = WarmPins(context, self.pins, self.session_table, tier, self.timers)
        self.arena = StagingArena(context)
        self.transfers = Transfers(context, tier, self.warm_pins, self.arena)
        self.staging = OffloadStager(context, self.transfers, self.arena, self.headroom)
        # The sequences, their room, and the victims.
        counter = VirtualTokenCounter(lambda tenant: ledger.quotas.policy(tenant).weight)
        self.live = live = LiveSequences(context, counter, self.transfers)
        self.room = Room(context, self.pins, self.session_table, live)
        self.soft_holds = SoftHolds(context, self.pins, self.session_table, live, self.room, self.warm_pins)
        self.budget = BlockBudget(context, self.headroom)
        self.shares = TenantShares(context, live, self.budget)
        self.beams = BeamRows(context, live)
        self.preemption = Preemption(context, live, self.beams, self.staging)
        self.victims = Victims(context, live, self.shares)
        self.reclaimer = Reclaimer(context, self.victims, self.transfers, self.soft_holds, self.preemption)
        # Operations of clients and operators other than requests.
        kept = (context, self.pins, self.session_table, self.namer, self.room, self.warm_pins)
        self.client_pins = ClientPins(*kept, self.soft_holds, self.timers)
        self.session_holds = SessionHolds(*kept, tier, self.timers)
        self.tenants = TenantBounds(context, self.pins, live, self.room, self.reclaimer)
        self.idle_memory = IdleMemory(context)
        self.resizer = PoolResizer(context, live, self.room, self.reclaimer, self.idle_memory)
        # Planning and committing.
        self.long_contexts = LongContexts(context, live, self.transfers, self.budget, self.warm_pins)
        self.prefixes = PrefixLookup(context, live, self.transfers, self.long_contexts)
        self.limits = AdmissionLimits(context, live, self.budget, self.shares, self.soft_holds)
        self.admission = Admission(live, self.prefixes, self.limits, self.victims, self.reclaimer)
        self.planner = Planner(context, live, self.prefill_budget, self.shares, self.reclaimer)
        self.cold_chunks = ColdChunks(context, self.planner, self.long_contexts)
        self.speculator = speculator
        self._drafts: Drafts | None = None
        if speculator is not None:
            self._drafts = Drafts(context, live, self.budget, self.shares, speculator)
        self.first_tokens = FirstTokens(context, live, self.planner)
        self._finisher = Finisher(context, live, self.beams, self._drafts, self._forget_poisoned)
        self._shortage = StepShortage(context, live, self.prefill_budget, self._finisher)
        self._committer = Committer(context, live, self.beams, self._finisher, self._drafts)
        # Attachments: features at points of a request's life; plain requests have none.
        self.always_attached: tuple[Attachment, ...] = ()  # of all requests
        live.on_gone.append(lambda request: cancel_deadlines(self.timers, request))
        self._before_plan: list[Callable[[], None]] = []
        if tier is not None:
            self._before_plan += [self.long_contexts.store, self.transfers.store_behind]

    @property
    def events(self) -> EventRing:
        """The recorded events."""
        return self.context.events

    # -- requests
    # ---------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestTooLarge, InvalidRequest, QueueFull, SessionBusy or UnknownTenant,
        and then queues nothing."""
        self.tenants.check_known(request.tenant)
        check_salt(request)
        self.tenants.check_queue(request.tenant)
        context, live = self.context, self.live
        chain = self._chain_of(request)
        if request.session:
            self.session_holds.check_turn(request)
        request = self._fitted(request, chain.names)
        self.first_tokens.take(request, chain.names)
        context.ledger.quotas.owner(request.tenant)  # registers a new tenant
        assert request.request_id not in live, "request ids are unique"
        sequence = Sequence(
            seq_id=live.new_seq_id(),
            request=request,
            choice=0,
            tokens=array("I", request.prompt),
            chain=chain,
            forks_left=request.n - 1,
            attached=self.always_attached if request.n == 1 and request.params.beams is None else (),
        )
        if self._drafts is not None:
            self._drafts.begin(sequence)
        if request.params.beams is not None:
            self.beams.begin(sequence, request.params.beams)
        if request.session:
            self.session_holds.begin_turn(request, chain.names, context.now)
            sequence.attached += (self.session_holds,)
        live.enter(sequence)
        self.long_contexts.on_queued(request)
        set_deadlines(self.timers, request)
        if request.fills_pin:
            sequence.attached += (self.client_pins,)
            self.client_pins.on_queued(request)

    def fitted(self, request: Request) -> Request:
        """The request as it would be queued now, with its `max_tokens`. Raises UnknownTenant, and
        RequestTooLarge or InvalidRequest if it could never run. Changes nothing. O(tokens)."""
        self.tenants.check_known(request.tenant)
        check_salt(request)
        return self._fitted(request, self._chain_of(request).names if request.session else ())

    def check_pool(self, request: Request) -> None:
        """Raise RequestTooLarge or InvalidRequest if the request could not run even in an empty pool."""
        blocks, size = self.ledger.pool.num_blocks, self.ledger.block_size
        capacity = Capacity(blocks, {}, {})
        fitted = with_max_tokens(request, self.config.context_length, lambda hard_only: blocks, size)
        fitted = self.long_contexts.fitted(request, fitted, capacity, 0)
        check_fits(fitted, self.config, capacity, 0, size)

    def _fitted(self, request: Request, names: Many[bytes]) -> Request:
        room, config, size = self.room, self.context.config, self.context.ledger.block_size

        def left(hard_only: bool) -> int:
            capacity = room.hard if hard_only else room.everything
            return capacity.room(request.tenant, own=room.own_of_new(request, names, hard_only=hard_only))

        own = room.own_of_new(request, names, hard_only=True)
        fitted = with_max_tokens(request, config.context_length, left, size)
        fitted = self.long_contexts.fitted(request, fitted, room.hard, own)
        check_fits(fitted, config, room.hard, own, size)
        return fitted

    def _chain_of(self, request: Request) -> NameChain:
        """The names of the prompt's full blocks. A turn, or a request that resumes a session, continues the
        session's names. O(tokens)."""
        tokens = array("I", request.prompt)
        if request.cache_salt:
            return self.namer.salted(request.tenant, request.cache_salt, tokens)
        pin = self.pins.filled_by(request)
        session_id = request.session if pin is None else pin.session_id
        said = self.session_table.names_of(request.tenant, session_id)
        return self.namer.chain(request.tenant, tokens, *said)

    def cancel(self, request_id: int, choice: int | None = None) -> list[Update]:
        """End all choices of a request, or one, now; the next plan may use the blocks. Ignores unknown ids.

        A choice that has not forked yet ends at its fork, with its first token.
        """
        updates = []
        for sequence in self.live.heads_of(request_id):
            if choice is not None and sequence.group is not None:
                updates += self.beams.cancel_choice(sequence.group, choice)
            elif choice is not None and sequence.forks_left:
                sequence.unwanted.add(choice)
            elif choice is None or sequence.choice == choice:
                updates += self._finisher.end(sequence, FinishReason.CANCELLED)
        return updates

    def expire(self, now: float) -> list[Update]:
        """End requests that are out of time, and release pins and sessions whose time has passed: their
        blocks are available now."""
        self.context.now = now
        updates: list[Update] = []
        if self.timers.soonest <= now:
            for what, (number, name) in self.timers.pop_due(now):
                if what is TimerKind.DEADLINE:
                    updates += self._time_out(number, Deadline(name))
                elif what is TimerKind.PIN:
                    self.client_pins.expire(now)  # all that are due, in the order of creation
                else:
                    self.session_holds.expire(name, now)
        if self.tenants.draining:
            self.tenants.drop_drained()
        return updates + self._end_stuck()

    def _end_stuck(self) -> list[Update]:
        """Restart, or end, sequences with damaged cold blocks and sequences that cannot continue."""
        updates: list[Update] = []
        if damaged_reads := self.long_contexts.take_damaged():
            later = (in_flight for _, in_flight in self._in_flight)
            updates += self._shortage.begin_again(damaged_reads, later, UNREADABLE, set())
        for sequence, why in self.long_contexts.stuck().items():
            later = (in_flight for _, in_flight in self._in_flight)
            failing = {sequence.seq_id} if self.long_contexts.is_final(why) else set[int]()
            updates += self._shortage.begin_again({sequence.request.request_id}, later, why, failing)
        return updates

    def next_event(self) -> float | None:
        """When `expire` next has work; None: never."""
        return self.context.now if self.has_stuck else self.timers.next_time()

    def _time_out(self, request_id: int, deadline: Deadline) -> list[Update]:
        """End the request's unfinished choices, unless the deadline was met."""
        sequences = self.live.heads_of(request_id)
        if deadline is Deadline.QUEUE:
            sequences = [s for s in sequences if not s.was_admitted]
        if deadline is Deadline.FIRST_TOKEN and any(len(s.tokens) > s.num_prompt for s in sequences):
            sequences = []
        updates = []
        for s in sequences:
            waited = self.context.now - s.request.arrival
            wait = self.live.why_waiting(s) if s.state is State.WAITING else None
            begin = f"{deadline.value} of request {request_id} passed after {waited:.2f} s while it was "
            text = begin + ("running" if wait is None else f"waiting: {wait.in_words()}")
            blocks = 0 if s.table is None else len(s.table.blocks)
            self.context.events.record(
                Event(self.context.now, EventKind.TIMED_OUT, text, request_id, s.request.tenant, blocks)
            )
            if wait is not None:
                text = f"{begin}waiting: {wait.in_words_of(s.request.tenant)}"
            updates += self._finisher.end(s, FinishReason.TIMEOUT, text)
        return updates

    def final_updates(self, reason: str, now: float) -> list[Update]:
        """End every unfinished choice with an error: this scheduler is discarded."""
        return [
            Update(request_id, choice, (), sequence.usage(now), FinishReason.ERROR, error=reason)
            for request_id in self.live.live_requests()
            for sequence in self.live.heads_of(request_id)
            for choice in sequence.choices_left
        ]

    def continue_from(self, old: Self) -> None:
        """Continue with a new ledger over the same bytes: events and tenants' bounds stay; the old ledger's
        pins, names and sessions are gone."""
        self.ledger.resize(old.ledger.pool.num_blocks, ())
        self.tenants.continue_from(old.tenants)
        self.idle_memory.continue_from(old.idle_memory)
        self.transfers.continue_from(old.transfers)
        self.live.continue_from(old.live)
        self.context.target.set(old.context.target.seconds)
        self.context.events = old.context.events

    # -- the step
    # -----------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """The next plan, or None if nothing can be computed before a commit or a submission."""
        context = self.context
        context.now = now
        evicted_before = self.context.ledger.pool.num_evictions
        if self.prefixes.leaders:
            self.prefixes.return_priorities()
        self.long_contexts.make_room()
        continuing, prompts, cold = self.planner.ready()
        if self.live.waiting.line and self.live.may_admit(self.live.waiting.first):
            budget = self.planner.prompt_budget(len(continuing), len(prompts) + len(self.live.waiting))
            if budget == 0 and self.live.waiting.first.rank < continuing[self.context.step_tokens - 1].rank:
                budget = 1  # from the last in rank that continues, see `Planner.share`
            self.admission.admit(prompts, budget, context.target.more_rows(len(self.live.running)))
            continuing, prompts, cold = self.planner.ready()
        in_flight: list[InFlightChunk] = []
        self._plan_chunks(self.planner.share(continuing, prompts), cold, in_flight)
        if self._drafts is not None:
            self._drafts.plan(in_flight)
        for hook in self._before_plan:
            hook()
        if self.idle_memory.gives_back:
            self.idle_memory.finish_plan()
        plan = self.context.plan.finish()
        if plan is not None:
            if plan.chunks:
                self.idle_memory.worked_at = now
            if plan.discarded:
                self.idle_memory.record(plan)
            self._in_flight.append((plan, in_flight))
        if self.context.ledger.pool.num_evictions > evicted_before:
            self.context.events.record_evictions(now, self.context.ledger.pool.num_evictions - evicted_before)
        return plan

    def _plan_chunks(
        self, share: list[tuple[Sequence, int]], cold: list[Sequence], in_flight: list[InFlightChunk]
    ) -> None:
        """Plan the chunks of the share, and a part of one cold chunk: of the first sequence in turn that has
        blocks."""
        if not cold:
            for sequence, grant in share:
                if sequence.state is State.RUNNING:  # else it was preempted in this loop
                    self.planner.plan_chunk(sequence, grant, in_flight)
            return
        is_alone, has_cold = not share, False
        turns = self.cold_chunks.turns(cold, share)
        share.append(turns[0])
        self.planner.sort(share)
        for sequence, grant in share + turns[1:]:
            if sequence.state is not State.RUNNING:
                continue
            if not sequence.has_cold:
                self.planner.plan_chunk(sequence, grant, in_flight)
            elif not has_cold:
                has_cold = self.cold_chunks.plan(sequence, grant, in_flight, is_alone=is_alone)

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Update]:
        """Commit a step's result, in the order of the plans. See `committing`."""
        expected, in_flight = self._in_flight.popleft()
        assert expected is plan, "a plan is committed out of order"
        assert result.step_id == plan.step_id
        self.context.now = now
        if result.too_large:
            later = (in_flight for _, in_flight in self._in_flight)
            return self._shortage.take(in_flight, plan.num_tokens, later, result.too_large)
        if self.context.step_tokens < self.config.step_tokens:
            self._shortage.note_step()
        updates: list[Update] = []
        if result.unreadable:
            self.long_contexts.lose({slot for slots in result.unreadable.values() for slot in slots})
            later = (in_flight for _, in_flight in self._in_flight)
            is_final = self.long_contexts.cannot_read
            updates = self._shortage.take_unreadable(in_flight, result.unreadable, later, is_final=is_final)
        elif plan.has_cold and any(chunk.is_cold and chunk.is_last_part for chunk in plan.chunks):
            self.long_contexts.note_read()
        if plan.has_cold:
            self._charge_cold(plan, result, in_flight)
        self._observe(plan, result)
        updates += self._committer.commit(in_flight, result)
        if not self.live.running:
            self.context.target.note_idle()
        return updates

    def _charge_cold(self, plan: StepPlan, result: StepResult, in_flight: list[InFlightChunk]) -> None:
        """Charge its tenant for the time of a chunk's cold part, converted to prompt positions, less the
        positions that count already."""
        position_s = self.context.times.position_s
        cold = next(chunk for chunk in plan.chunks if chunk.is_cold)
        if position_s is None or result.cold_seconds <= 0.0:
            return
        tenant = next(f.sequence.request.tenant for f in in_flight if f.sequence.seq_id == cold.seq_id)
        counted = cold.length if cold.is_last_part else 0
        self.live.service.charge(tenant, max(0.0, result.cold_seconds / position_s - counted))

    def _observe(self, plan: StepPlan, result: StepResult) -> None:
        """Record the step's time. Steps with cold blocks are not representative of others."""
        if self.long_contexts.any_unfinished:
            self.cold_chunks.observe(plan, result)
        if plan.has_cold:
            return
        context, work = self.context, work_of(plan.chunks)
        context.target.observe(work, result.seconds, context.now)
        context.times.observe(work, result.seconds, is_typical=result.way is not StepWay.WARMING)
        self.headroom.observe(result.seconds)

    def _forget_poisoned(self, names: list[bytes]) -> None:
        """Forget the names of a failed request's blocks, and the pins on them."""
        self.ledger.forget(names)
        self.transfers.forget(names)
        self.client_pins.drop_unnamed()

    def check(self) -> None:
        """Raise AssertionError, with the difference, unless ledger and all parts agree. O(everything)."""
        context, live, pins, transfers = self.context, self.live, self.pins, self.transfers
        check_ledger(self.ledger)
        check_live(self.ledger, live, context.config.max_rows)
        check_beams(self.ledger, live)
        check_pins(context, pins, live, self.room, self.soft_holds)
        long = (sequence for sequence in live.running if sequence.is_long)
        check_tier(transfers, [sequence.seq_id for sequence in (*live.waiting, *long)])
        check_staging(self.arena, transfers)
        check_kept(self.ledger, pins, self.warm_pins, transfers)
        check_sessions(self.session_table, pins, live)

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.ledger.block_size

    @property
    def step_tokens(self) -> int:
        """The most positions of a step, now."""
        return self.context.step_tokens

    @property
    def num_tenants(self) -> int:
        """Tenants named by the operator."""
        return self.ledger.quotas.num_tenants

    @property
    def request_ids(self) -> list[int]:
        """Unfinished requests."""
        return self.live.live_requests()

    @property
    def num_waiting(self) -> int:
        """Waiting sequences."""
        return len(self.live.waiting)

    @property
    def waits_for_transfers(self) -> bool:
        """True while transfers between the pool and an offload tier are in flight."""
        return bool(self.transfers.in_flight)

    @property
    def has_stuck(self) -> bool:
        """True while `expire` has stuck sequences to end or restart."""
        tier = self.transfers.tier
        return tier is not None and bool(tier.damaged_reads or self.long_contexts.stuck())

    @property
    def has_work(self) -> bool:
        """True while any request is unfinished or any plan uncommitted."""
        return bool(self.live.unfinished or self._in_flight)

    @property
    def could_store(self) -> bool:
        """True when a plan made now would store or forget blocks: an engine without other work then makes
        one."""
        return self.transfers.tier is not None and self.transfers.could_store
