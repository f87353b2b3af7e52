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

import bisect
from array import array
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.errors import QueueFull
from octavo.memory.memory import Memory
from octavo.memory.pins import Pins
from octavo.memory.quota import TenantPolicy
from octavo.memory.tiers import LowerTier
from octavo.scheduler.admit import Admission, Place
from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.budget import Pace
from octavo.scheduler.committing import Committer
from octavo.scheduler.deadlines import Deadline, Deadlines
from octavo.scheduler.diff import PlanDiff
from octavo.scheduler.elastic import Elastic
from octavo.scheduler.events import Event, EventKind, EventRing
from octavo.scheduler.giving_way import GivingWay
from octavo.scheduler.headroom import Headroom
from octavo.scheduler.holding import Holding
from octavo.scheduler.limits import check_fits
from octavo.scheduler.pinning import Pinning
from octavo.scheduler.planner import Flight, Planner
from octavo.scheduler.queue import NamesInProgress, WaitingQueue
from octavo.scheduler.sequence import Sequence, State
from octavo.scheduler.sessions import Sessions
from octavo.scheduler.staging import Staging
from octavo.scheduler.tenancy import Tenancy
from octavo.scheduler.transfers import Transfers
from octavo.scheduler.victims import Victims
from octavo.scheduler.waits import QUEUED, Wait, WaitReason
from octavo.types import (
    FinishReason,
    Fork,
    Request,
    StepPlan,
    StepResult,
    Update,
)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Bounds of the scheduler. `step_tokens` is how many positions one step computes at most."""

    max_rows: int = 64
    step_tokens: int = 512
    max_waiting: int = 1024
    context_length: int = 8192
    stop_ids: frozenset[int] = frozenset()  # end-of-sequence tokens of the model
    prefix_caching: bool = True
    pace: bool = True  # hold prompts back while others decode, once step times are known
    pin_blocks: int = 0  # that all pins together may keep
    bytes_per_block: int = 0  # to tell, not to decide
    staging_blocks: int = 0  # behind the pool's capacity, for what victims keep below


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
        self.memory = memory
        self.config = config
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # by own rank: lent priorities aside
        self.names = NamesInProgress()
        self.costs = Pace(config.step_tokens)  # learns always
        self.pace = (
            self.costs if config.pace else Pace(config.step_tokens)
        )  # one that knows nothing holds nobody
        self.num_preemptions = 0
        self.pins = Pins(memory)
        self.root_of_tenant = root_of_tenant
        self.events = EventRing()
        self.now = 0.0  # of the last call that brought the time
        self._deadlines = Deadlines()
        self.diff = PlanDiff()
        self._free_rows = list(range(config.max_rows - 1, -1, -1))
        self._live: dict[int, list[Sequence]] = {}  # unfinished sequences by request
        self._in_flight: deque[tuple[StepPlan, list[Flight]]] = deque()
        self._rows_promised = 0  # to the forks of running sequences
        self._next_seq_id = 0
        self._admission = Admission(self)
        self._planner = Planner(self)
        self._committer = Committer(self)
        self.tenancy = Tenancy(self)
        self.beams = BeamRows(self)
        self.pinning = Pinning(self)
        self.holding = Holding(self)
        self.sessions = Sessions(self)
        self.giving_way = GivingWay(self)
        self.transfers = Transfers(self, tier)
        self.elastic = Elastic(self)
        self.headroom = Headroom()
        self.staging = Staging(self, config.staging_blocks)
        self.victims = Victims(self, self.tenancy.share_of)

    # -- what clients ask
    # ---------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestTooLarge, InvalidRequest, QueueFull, SessionBusy or UnknownTenant;
        then nothing was queued."""
        self.tenancy.check_known(request.tenant)
        salted = bool(request.cache_salt)
        chain = self.tenancy.salted_chain(request) if salted else self.sessions.chain_for(request)
        if request.session:
            self.sessions.check_turn(request)
            own = self.sessions.own_blocks(request, chain.names, firm=True)
        else:
            own = self.own_blocks(request, firm=True)
        tenancy, fills_pin = self.tenancy, bool(request.fills_pin)
        room = tenancy.room(request.tenant, fills_pin=fills_pin, own=own, firm=True)
        told = tenancy.told_room(request.tenant, fills_pin=fills_pin, own=own)
        check_fits(request, self.config, room, told, self.memory.block_size)
        self.tenancy.check_queue(request.tenant)
        if len(self.waiting) >= self.config.max_waiting:
            many = "too many" if request.tenant else f"{len(self.waiting)}"  # no number that others move
            raise QueueFull(
                f"{many} requests are waiting; allowed: {self.config.max_waiting} (setting max_queue)"
            )
        assert request.request_id not in self._live, "request ids are unique"
        sequence = Sequence(
            seq_id=self.new_seq_id(),
            request=request,
            choice=0,
            tokens=array("I", request.prompt),
            chain=chain,
            forks_left=request.n - 1,
        )
        self.beams.begin(sequence)
        if request.session:
            self.sessions.begin_turn(request, chain.names, self.now)
        self._live[request.request_id] = [sequence]
        self._deadlines.add(request)
        self.tenancy.service.enter(request.tenant)
        self.waiting.add(sequence)
        if request.fills_pin:
            self.pinning.taken(request)

    def cancel(self, request_id: int, choice: int | None = None) -> list[Update]:
        """End all choices of a request, or one, now; the blocks are free for the next plan. Unknown: nothing.

        One of several choices that are still one sequence ends when it becomes its own, with its first token.
        """
        updates = []
        for sequence in self.heads_of(request_id):
            if choice is not None and sequence.group is not None:
                updates += self.beams.cancel_choice(sequence.group, choice)
            elif choice is not None and sequence.forks_left:
                sequence.unwanted.add(choice)
            elif choice is None or sequence.choice == choice:
                updates += self.end(sequence, FinishReason.CANCELLED)
        return updates

    def expire(self, now: float) -> list[Update]:
        """End whoever is out of time, and let pins go whose time has passed; their blocks are unheld now."""
        self.now = now
        updates = []
        while (due := self._deadlines.pop_due(now)) is not None:
            updates += self._time_out(*due)
        self.pinning.expire(now)
        self.sessions.expire(now)
        self.tenancy.see_off()
        return updates

    def next_event(self) -> float | None:
        """When `expire` next has something to do; None: never."""
        times = (self._deadlines.next_time(), self.pins.next_time(), self.sessions.next_time())
        return min((t for t in times if t is not None), default=None)

    def _time_out(self, request_id: int, deadline: Deadline) -> list[Update]:
        """End the request's unfinished choices, unless what was wanted has happened."""
        sequences = self.heads_of(request_id)
        if deadline is Deadline.QUEUE:
            sequences = [s for s in sequences if not s.was_admitted]
        if deadline is Deadline.FIRST_TOKEN and any(len(s.tokens) > s.num_prompt for s in sequences):
            sequences = []
        updates = []
        for s in sequences:
            waited = self.now - s.request.arrival
            wait = self.why_waiting(s) if s.state is State.WAITING else None
            begin = f"{deadline.value} of request {request_id} passed after {waited:.2f} s while it was "
            text = begin + ("running" if wait is None else f"waiting: {wait.in_words()}")
            blocks = 0 if s.table is None else len(s.table)
            self.events.note(Event(self.now, EventKind.TIMED_OUT, text, request_id, s.request.tenant, blocks))
            if wait is not None:
                text = f"{begin}waiting: {wait.in_words_of(s.request.tenant)}"
            updates += self.end(s, FinishReason.TIMEOUT, text)
        return updates

    def set_tenants(self, policies: Many[TenantPolicy]) -> None:
        """These tenants' bounds from now on. Raises TenantsRefused; then nothing changed."""
        self.tenancy.set_policies(policies)

    def own_blocks(self, request: Request, *, firm: bool = False) -> int:
        """Blocks that count with the pins and are an unfinished request's own: those that it fills, or that
        its session holds for it. `firm`: only of pins that do not give way."""
        own_pin = self.pins.filled_by(request)
        filled = own_pin.num_blocks if own_pin is not None else 0
        return self.sessions.own_blocks_of(request, firm=firm) + filled

    def live_requests(self) -> list[int]:
        """Ids of unfinished requests."""
        return list(self._live)

    def requests(self) -> list[Request]:
        """The unfinished requests."""
        return [sequences[0].request for sequences in self._live.values()]

    def running_requests(self) -> list[Request]:
        """Those of which something runs."""
        return list({s.request.request_id: s.request for s in self.running}.values())

    def sequences_of(self, request_id: int) -> list[Sequence]:
        """The unfinished sequences of a request."""
        return list(self._live.get(request_id, ()))

    def heads_of(self, request_id: int) -> list[Sequence]:
        """The same, but of a beam group its leader alone, which stands for all."""
        sequences = self.sequences_of(request_id)
        return [s for s in sequences if s.group is None or s.group.leader is s]

    # -- the step
    # -----------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan | None:
        """The next plan, or None when nothing can be computed before a commit or a submission."""
        self.now = now
        evicted_before = self.memory.pool.num_evictions
        self._admission.give_back_priorities()
        continuing, prompts = self._planner.ready()
        if self.waiting and self.may_enter(self.waiting.first):
            budget = self.pace.prompt_budget(len(continuing), len(prompts) + len(self.waiting))
            if budget == 0 and self.waiting.first.rank < continuing[self.config.step_tokens - 1].rank:
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
        if self.memory.pool.num_evictions > evicted_before:
            self.events.note_evictions(now, self.memory.pool.num_evictions - evicted_before)
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Update]:
        """Take a step's result, in the order the plans were made. See `committing`."""
        expected, flights = self._in_flight.popleft()
        assert expected is plan, "plans are committed in the order they were made"
        assert result.step_id == plan.step_id
        self.now = now
        num_continuing = sum(chunk.length == 1 for chunk in plan.chunks)
        self.headroom.observe(result.seconds)
        self.costs.observe(num_continuing, plan.num_tokens - num_continuing, result.seconds)
        return self._committer.commit(flights, result)

    @property
    def has_work(self) -> bool:
        """True while any request is unfinished or any plan uncommitted."""
        return bool(self._live or self._in_flight)

    def fork(self, parent: Sequence, flights: list[Flight]) -> None:
        """The plan that samples is being made: the other choices become holders of the same table, one
        sample each."""
        assert parent.table is not None
        for choice in range(1, parent.request.n):
            table, row = self.memory.fork(parent.table), self._free_rows.pop()
            child = parent.child(self.new_seq_id(), choice, table, row)
            child.count_blocks(self.now)
            self._live[parent.request.request_id].append(child)
            self.tenancy.service.enter(child.request.tenant)
            bisect.insort(self.running, child, key=lambda s: s.own_rank)
            self.diff.forks.append(Fork(parent.row, child.row, child.seq_id, choice))
            flights.append(Flight(child, child.epoch, child.num_planned, 1))
        self._rows_promised -= parent.forks_left
        parent.forks_left = 0

    # -- rows and states
    # ----------------------------------------------------------------------------------------

    def admit(self, sequence: Sequence, num_hits: int) -> None:
        """Waiting -> running, as one more holder of its first `num_hits` published blocks."""
        self.waiting.remove(sequence)
        sequence.state = State.RUNNING
        sequence.bypassed = 0
        sequence.row = self._free_rows.pop()
        sequence.table = self.memory.open(sequence.request.tenant, sequence.chain.num_shared)
        adopted = self.memory.adopt(sequence.table, sequence.chain.names[:num_hits])
        assert adopted == num_hits
        self.transfers.let_go(sequence)
        sequence.num_computed = sequence.num_planned = adopted * self.memory.block_size
        self.staging.tokens_recomputed += max(0, sequence.num_lost - sequence.num_planned)
        sequence.num_lost = 0
        if not sequence.was_admitted:
            sequence.num_cached = sequence.num_served = sequence.num_planned
        sequence.was_admitted = True
        self.tenancy.service.count(sequence, sequence.num_prompt)
        sequence.wait = QUEUED
        sequence.count_blocks(self.now)
        bisect.insort(self.running, sequence, key=lambda s: s.own_rank)
        self._rows_promised += sequence.forks_left
        self.names.begin(sequence)
        self.diff.admit(sequence.admitted_row(), sequence.table.blocks)

    def preempt(self, sequence: Sequence, winner: Sequence | None) -> None:
        """Running -> waiting, for the sake of `winner`, or of a smaller pool: the table is dropped, what is
        cheaper to load than to compute is kept below. Resuming is an ordinary admission that finds its own
        blocks."""
        if sequence.group is not None:
            sequence = self.beams.gather(sequence.group)
        assert sequence.table is not None
        blocks, loser = len(sequence.table), sequence.request
        text = f"request {loser.request_id} gave up {blocks:,} blocks for a smaller pool"
        if winner is not None:
            text = (
                f"request {loser.request_id} gave up {blocks:,} blocks for request "
                f"{winner.request.request_id}, which ranks before it (priority {winner.priority} and "
                f"{loser.priority})"
            )
        text += f"; {self.staging.note(self.staging.keep([sequence]))}"
        self.events.note(Event(self.now, EventKind.PREEMPTED, text, loser.request_id, loser.tenant, blocks))
        sequence.num_lost = sequence.num_planned
        self._leave_row(sequence)
        sequence.state = State.WAITING
        sequence.epoch += 1
        sequence.num_computed = sequence.num_planned = 0
        sequence.preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def enter_row(self, beam: Sequence) -> None:
        """A beam was forked: it runs in a row that was promised to its group."""
        beam.state = State.RUNNING
        beam.row = self._free_rows.pop()
        beam.count_blocks(self.now)
        assert beam.table is not None
        self._live[beam.request.request_id].append(beam)
        self.tenancy.service.enter(beam.request.tenant)
        bisect.insort(self.running, beam, key=lambda s: s.own_rank)
        self.diff.admit(beam.admitted_row(), beam.table.blocks)

    def promise_rows(self, sequence: Sequence, count: int) -> None:
        """The group of a running sequence may still want so many rows."""
        self._rows_promised += count - sequence.forks_left
        sequence.forks_left = count

    def may_enter(self, sequence: Sequence) -> bool:
        """False when rows alone keep this waiting sequence out, and whoever ranks behind it. O(1)."""
        if self.memory.quotas.has_guarantees:
            return True
        return self.num_free_rows > 0 or sequence.priority > self.running[-1].request.priority

    def why_waiting(self, sequence: Sequence) -> Wait:
        """What keeps a waiting sequence out: rows, in which case nobody looks further, or what was found when
        it was last looked at."""
        if sequence.wait.reason is WaitReason.QUEUED and not self.may_enter(sequence):
            return Wait(WaitReason.ROWS, 1 + sequence.forks_left, self.num_free_rows)
        return sequence.wait

    def place(self, sequence: Sequence) -> Place:
        """Whose prompt comes first in a step: by priority, then whose tenant was served least, then
        arrival."""
        service = self.tenancy.service
        served = service.of(sequence.request.tenant) if service.num_active > 1 else 0.0
        return (sequence.rank[0], served, *sequence.rank[1:])

    @property
    def num_free_rows(self) -> int:
        """Rows that no sequence has and no fork will need."""
        return len(self._free_rows) - self._rows_promised

    def _leave_row(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.names.end(sequence, sequence.chain.names[sequence.table.num_published :])
        self.memory.close(sequence.table)
        sequence.table = None
        sequence.count_blocks(self.now)
        self.running.remove(sequence)
        self._rows_promised -= sequence.forks_left
        self.diff.retire(sequence.row)
        self._free_rows.append(sequence.row)
        sequence.row = -1

    def end(self, sequence: Sequence, finish: FinishReason, error: str = "") -> list[Update]:
        """The sequence and, if it has not forked yet, the choices that it was to become: one final update
        each."""
        if sequence.group is not None:
            return self.beams.end(sequence.group, finish, error)
        if sequence.request.fills_pin:
            self.pinning.give_up(sequence.request)
        choices = sequence.choices_left
        self.close(sequence)
        if sequence.request.session:
            self.sessions.give_up_turn(sequence)
        request_id, usage = sequence.request.request_id, sequence.usage(self.now)
        return [Update(request_id, choice, (), usage, finish, error=error) for choice in choices]

    def close(self, sequence: Sequence) -> None:
        if sequence.state is State.RUNNING:
            self._leave_row(sequence)
        else:
            self.waiting.remove(sequence)
            self.transfers.let_go(sequence)
        sequence.state = State.FINISHED
        siblings = self._live[sequence.request.request_id]
        siblings.remove(sequence)
        self.tenancy.service.leave(sequence.request.tenant)
        if not siblings:
            del self._live[sequence.request.request_id]
            if len(self._deadlines) > 64 + 6 * len(self._live):
                self._deadlines.keep(set(self._live))

    def new_seq_id(self) -> int:
        """One that no sequence had before."""
        self._next_seq_id += 1
        return self._next_seq_id
