"""Who runs next: continuous batching over the ledger. No clock, no thread, no bytes; every decision is a
pure function of what was submitted and committed (and of measured step times, where the executor gives them).

One call of `schedule` is one plan (`expire` comes before it, and ends whoever is out of time):

    1. followers     a waiting sequence whose next block is being computed lends its priority and steps aside
    2. admission     waiting sequences that fit in rows, blocks and the step's tokens, in turns (admit.py)
    3. grants        one position for each that continues; the rest is shared among prompts (budget.py)
    4. reservation   in order of rank; whoever finds no block preempts one behind it (planner.py, victims.py)
    5. chunks        and forks, where a request with n > 1 reaches its first sample

Liveness: the best-ranked running sequence gets at least one position in every step, it can preempt all
others, and a request that could not run alone in what pins leave of the pool is refused at submission; so
some sequence always advances. Source: Orca (Yu et al. 2022) for iteration-level scheduling; Kwon et al. 2023,
section 4.5 for preemption.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

from octavo.errors import QueueFull
from octavo.memory.memory import Memory
from octavo.memory.pins import Pins
from octavo.memory.tiers import LowerTier
from octavo.scheduler.admit import Admission
from octavo.scheduler.arena import StagingArena
from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.budget import Pace
from octavo.scheduler.capacity import Capacity
from octavo.scheduler.committing import Committer
from octavo.scheduler.config import SchedulerConfig
from octavo.scheduler.context import Context
from octavo.scheduler.deadlines import Deadline, Deadlines
from octavo.scheduler.elastic import Elastic
from octavo.scheduler.ending import Ending
from octavo.scheduler.events import Event, EventKind, EventRing
from octavo.scheduler.fairness import Service
from octavo.scheduler.flight import Flight
from octavo.scheduler.giving_way import GivingWay
from octavo.scheduler.headroom import Headroom
from octavo.scheduler.holding import Holding
from octavo.scheduler.limits import check_fits
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.naming import Naming
from octavo.scheduler.pinning import Pinning
from octavo.scheduler.planner import Planner
from octavo.scheduler.preemption import Preemption
from octavo.scheduler.resizing import Resizing
from octavo.scheduler.sequence import Sequence, State
from octavo.scheduler.session_table import SessionTable
from octavo.scheduler.sessions import Sessions
from octavo.scheduler.shares import TenantShares
from octavo.scheduler.staging import Staging
from octavo.scheduler.tenants import Tenants
from octavo.scheduler.transfers import Transfers
from octavo.scheduler.victims import Victims
from octavo.types import FinishReason, Request, StepPlan, StepResult, Update


class Scheduler:
    """Owns every sequence. Called from one thread: submit and cancel, then schedule and commit in turns."""

    def __init__(
        self,
        memory: Memory,
        config: SchedulerConfig,
        root_of_tenant: Callable[[str], bytes],
        tier: LowerTier | None = None,
    ) -> None:
        assert config.step_tokens >= 1
        assert config.max_rows >= 1
        costs = Pace(config.step_tokens)  # learns always
        self.context = context = Context(memory, config, costs)
        self.ledger, self.config = memory, config
        # One that knows nothing holds nobody back.
        self.pace = costs if config.pace else Pace(config.step_tokens)
        self.headroom = Headroom()
        self._deadlines = Deadlines()
        self._in_flight: deque[tuple[StepPlan, list[Flight]]] = deque()
        # What is kept beyond a running sequence, and where. Each is handed what stands before it.
        self.pins = Pins(memory)
        self.session_table = SessionTable(self.pins)
        self.naming = Naming(memory.block_size, root_of_tenant, self.pins, self.session_table)
        self.holding = Holding(context, self.pins, self.session_table, tier)
        self.arena = StagingArena(context)
        self.transfers = Transfers(context, tier, self.holding, self.arena)
        # Who is there, and how much room.
        service = Service(lambda tenant: memory.quotas.policy(tenant).weight)
        self.live = live = LiveSequences(context, service, self.transfers)
        self.capacity = Capacity(context, self.pins, self.session_table, live)
        self.giving_way = GivingWay(context, self.pins, self.session_table, live, self.capacity, self.holding)
        self.pinning = Pinning(
            context, self.pins, self.session_table, self.naming, self.capacity, self.holding, self.giving_way
        )
        self.sessions = Sessions(
            context, self.session_table, self.pins, self.naming, self.capacity, self.holding, tier
        )
        # Who goes, and what becomes of it.
        self.shares = TenantShares(context, self.pins, self.transfers, live)
        self.staging = Staging(context, self.transfers, self.arena, self.headroom)
        self.beams = BeamRows(context, live)
        self.victims = Victims(context, live, self.shares, self.staging)
        self.preemption = Preemption(context, live, self.beams, self.staging)
        self.tenants = Tenants(
            context,
            self.pins,
            live,
            self.capacity,
            self.giving_way,
            self.transfers,
            self.victims,
            self.preemption,
        )
        self.elastic = Elastic(context)
        self.resizing = Resizing(
            context,
            self.pins,
            live,
            self.capacity,
            self.transfers,
            self.victims,
            self.preemption,
            self.elastic,
        )
        self._make_step()

    def _make_step(self) -> None:
        """What plans, and what takes the result."""
        context, live = self.context, self.live
        self._admission = Admission(
            context,
            live,
            self.pins,
            self.shares,
            self.transfers,
            self.giving_way,
            self.headroom,
            self.victims,
            self.preemption,
        )
        self._planner = Planner(
            context, live, self.pace, self.shares, self.transfers, self.victims, self.preemption
        )
        self._ending = Ending(context, live, self.beams, self.pinning, self.sessions)
        self._committer = Committer(
            context, live, self.beams, self._ending, self.pinning, self.sessions, self.transfers
        )

    @property
    def events(self) -> EventRing:
        """What happened."""
        return self.context.events

    def continue_from(self, old: Scheduler) -> None:
        """A new ledger over the same bytes: what happened stays told, tenants keep their bounds. Pins, names
        and sessions are gone with the old one."""
        self.ledger.resize(old.ledger.pool.num_blocks, ())
        self.tenants.continue_from(old.tenants)
        self.elastic.continue_from(old.elastic)
        self.context.events = old.context.events

    # -- what clients ask
    # ---------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestTooLarge, InvalidRequest, QueueFull, SessionBusy or UnknownTenant;
        then nothing was queued."""
        self.tenants.check_known(request.tenant)
        context, live = self.context, self.live
        chain = self.naming.of_request(request)
        if request.session:
            self.sessions.check_turn(request)
            own = self.capacity.blocks_of_turn(request, chain.names, firm=True)
        else:
            own = self.capacity.own_blocks(request, firm=True)
        fills_pin = bool(request.fills_pin)
        room = self.capacity.room(request.tenant, fills_pin=fills_pin, own=own, firm=True)
        told = self.capacity.told_room(request.tenant, fills_pin=fills_pin, own=own)
        check_fits(request, context.config, room, told, context.ledger.block_size)
        self.tenants.check_queue(request.tenant)
        if len(live.waiting) >= context.config.max_waiting:
            many = "too many" if request.tenant else f"{len(live.waiting)}"  # no number that others move
            raise QueueFull(
                f"{many} requests are waiting; allowed: {context.config.max_waiting} (setting max_queue)"
            )
        assert request.request_id not in live, "request ids are unique"
        sequence = Sequence(
            seq_id=live.new_seq_id(),
            request=request,
            choice=0,
            tokens=array("I", request.prompt),
            chain=chain,
            forks_left=request.n - 1,
        )
        self.beams.begin(sequence)
        if request.session:
            self.sessions.begin_turn(request, chain.names, context.now)
        live.enter(sequence)
        self._deadlines.add(request)
        if len(self._deadlines) > 64 + 6 * len(live):  # mostly void
            self._deadlines.keep(set(live.live_requests()))
        if request.fills_pin:
            self.pinning.taken(request)

    def cancel(self, request_id: int, choice: int | None = None) -> list[Update]:
        """End all choices of a request, or one, now; the blocks are free for the next plan. Unknown: nothing.

        One of several choices that are still one sequence ends when it becomes its own, with its first token.
        """
        updates = []
        for sequence in self.live.heads_of(request_id):
            if choice is not None and sequence.group is not None:
                updates += self.beams.cancel_choice(sequence.group, choice)
            elif choice is not None and sequence.forks_left:
                sequence.unwanted.add(choice)
            elif choice is None or sequence.choice == choice:
                updates += self._ending.end(sequence, FinishReason.CANCELLED)
        return updates

    def expire(self, now: float) -> list[Update]:
        """End whoever is out of time, and let pins go whose time has passed; their blocks are unheld now."""
        self.context.now = now
        updates = []
        while (due := self._deadlines.pop_due(now)) is not None:
            updates += self._time_out(*due)
        self.pinning.expire(now)
        self.sessions.expire(now)
        self.tenants.see_off()
        return updates

    def next_event(self) -> float | None:
        """When `expire` next has something to do; None: never."""
        times = (self._deadlines.next_time(), self.pins.next_time(), self.sessions.next_time())
        return min((t for t in times if t is not None), default=None)

    def _time_out(self, request_id: int, deadline: Deadline) -> list[Update]:
        """End the request's unfinished choices, unless what was wanted has happened."""
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
            blocks = 0 if s.table is None else len(s.table)
            self.context.events.note(
                Event(self.context.now, EventKind.TIMED_OUT, text, request_id, s.request.tenant, blocks)
            )
            if wait is not None:
                text = f"{begin}waiting: {wait.in_words_of(s.request.tenant)}"
            updates += self._ending.end(s, FinishReason.TIMEOUT, text)
        return updates

    # -- the step
    # -----------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """The next plan, or None when nothing can be computed before a commit or a submission."""
        self.context.now = now
        evicted_before = self.context.ledger.pool.num_evictions
        self._admission.give_back_priorities()
        continuing, prompts = self._planner.ready()
        if self.live.waiting and self.live.may_enter(self.live.waiting.first):
            budget = self.pace.prompt_budget(len(continuing), len(prompts) + len(self.live.waiting))
            if (
                budget == 0
                and self.live.waiting.first.rank < continuing[self.context.config.step_tokens - 1].rank
            ):
                budget = 1  # taken from the last in rank that continues, see _share
            self._admission.admit(prompts, budget)
            continuing, prompts = self._planner.ready()
        flights: list[Flight] = []
        for sequence, grant in self._planner.share(continuing, prompts):
            if sequence.state is State.RUNNING:  # else it became a victim in this loop
                self._planner.plan_chunk(sequence, grant, flights)
        self.transfers.store_behind()
        plan = self.elastic.finish_plan()
        if plan is not None:
            self._in_flight.append((plan, flights))
        if self.context.ledger.pool.num_evictions > evicted_before:
            self.context.events.note_evictions(now, self.context.ledger.pool.num_evictions - evicted_before)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Update]:
        """Take a step's result, in the order the plans were made. See `committing`."""
        expected, flights = self._in_flight.popleft()
        assert expected is plan, "plans are committed in the order they were made"
        assert result.step_id == plan.step_id
        self.context.now = now
        num_continuing = sum(chunk.length == 1 for chunk in plan.chunks)
        self.headroom.observe(result.seconds)
        self.context.costs.observe(num_continuing, plan.num_tokens - num_continuing, result.seconds)
        return self._committer.commit(flights, result)

    @property
    def has_work(self) -> bool:
        """True while any request is unfinished or any plan uncommitted."""
        return bool(len(self.live) or self._in_flight)
