"""Who runs next: continuous batching over the ledger. No clock, no thread, no bytes; every decision is a
pure function of what was submitted and committed (and of measured step times, where the executor gives them).

One call of `schedule` is one plan:

    1. followers     a waiting sequence whose next block is being computed lends its priority and steps aside
    2. admission     waiting sequences that fit in rows, blocks and the step's tokens, by rank (admit.py)
    3. grants        one position for each that continues; the rest is shared among prompts (budget.py)
    4. reservation   in order of rank; whoever finds no block preempts the last in rank (_victim)
    5. chunks        and forks, where a request with n > 1 reaches its first sample

Liveness: the best-ranked running sequence gets at least one position in every step, it can preempt all
others, and a request that could not run alone in the whole pool is refused at submission; so some sequence
always advances. Source: Orca (Yu et al. 2022) for iteration-level scheduling; Kwon et al. 2023, section 4.5
for preemption.
"""

from __future__ import annotations

import bisect
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import InvalidRequest, QueueFull, RequestTooLarge
from octavo.memory.memory import Memory
from octavo.memory.names import NameChain
from octavo.scheduler.admit import Admission
from octavo.scheduler.budget import Pace, share_by_priority
from octavo.scheduler.diff import PlanDiff
from octavo.scheduler.queue import NamesInProgress, WaitingQueue
from octavo.scheduler.sequence import Sequence, State
from octavo.types import (
    AdmittedRow,
    Chunk,
    FinishReason,
    Fork,
    Request,
    SampledToken,
    StepPlan,
    StepResult,
    Update,
)
from octavo.units import blocks_for


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


@dataclass(slots=True)  # it never leaves this module, and freezing would double its cost
class _Flight:
    """One sequence's stake in a plan that is not committed yet."""

    sequence: Sequence
    epoch: int
    stop: int  # what num_computed becomes
    num_samples: int


class Scheduler:
    """Owns every sequence. Called from one thread: submit and cancel, then schedule and commit in turns."""

    def __init__(
        self, memory: Memory, config: SchedulerConfig, root_of_tenant: Callable[[str], bytes]
    ) -> None:
        assert config.step_tokens >= 1
        assert config.max_rows >= 1
        self.memory = memory
        self.config = config
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # by own rank: lent priorities aside
        self.names = NamesInProgress()
        self.pace = Pace(config.step_tokens)
        self.num_preemptions = 0
        self._root_of_tenant = root_of_tenant
        self._diff = PlanDiff()
        self._free_rows = list(range(config.max_rows - 1, -1, -1))
        self._live: dict[int, list[Sequence]] = {}  # unfinished sequences by request
        self._in_flight: deque[tuple[StepPlan, list[_Flight]]] = deque()
        self._rows_promised = 0  # to the forks of running sequences
        self._next_seq_id = 0
        self._admission = Admission(self)

    # -- what clients ask
    # ---------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestTooLarge, InvalidRequest or QueueFull; then nothing was queued."""
        check_fits(request, self.config, self.memory.pool.num_blocks, self.memory.block_size)
        if len(self.waiting) >= self.config.max_waiting:
            raise QueueFull(
                f"{len(self.waiting)} requests are waiting; allowed: {self.config.max_waiting} "
                "(setting max_queue)"
            )
        assert request.request_id not in self._live, "request ids are unique"
        sequence = Sequence(
            seq_id=self._new_seq_id(),
            request=request,
            choice=0,
            tokens=array("I", request.prompt),
            chain=NameChain(self._root_of_tenant(request.tenant), self.memory.block_size),
            forks_left=request.n - 1,
        )
        sequence.chain.extend(sequence.tokens)
        self._live[request.request_id] = [sequence]
        self.waiting.add(sequence)

    def cancel(self, request_id: int, choice: int | None = None) -> list[Update]:
        """End all choices of a request, or one, now; the blocks are free for the next plan. Unknown: nothing.

        One of several choices that are still one sequence ends when it becomes its own, with its first token.
        """
        updates = []
        for sequence in self.sequences_of(request_id):
            if choice is not None and sequence.forks_left:
                sequence.unwanted.add(choice)
            elif choice is None or sequence.choice == choice:
                updates += self._end(sequence, FinishReason.CANCELLED)
        return updates

    def live_requests(self) -> list[int]:
        """Ids of unfinished requests."""
        return list(self._live)

    def sequences_of(self, request_id: int) -> list[Sequence]:
        """The unfinished sequences of a request."""
        return list(self._live.get(request_id, ()))

    # -- the step
    # -----------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan | None:
        """The next plan, or None when nothing can be computed before a commit or a submission."""
        self._admission.give_back_priorities()
        continuing, prompts = self._ready()
        if self.waiting and self.may_enter(self.waiting.first):
            budget = self.pace.prompt_budget(len(continuing), len(prompts) + len(self.waiting))
            if budget == 0 and self.waiting.first.rank < continuing[self.config.step_tokens - 1].rank:
                budget = 1  # taken from the last in rank that continues, see _share
            self._admission.admit(prompts, budget)
            continuing, prompts = self._ready()
        flights: list[_Flight] = []
        for sequence, grant in self._share(continuing, prompts):
            if sequence.state is State.RUNNING:  # else it became a victim in this loop
                self._plan_chunk(sequence, grant, flights)
        plan = self._diff.finish()
        if plan is not None:
            self._in_flight.append((plan, flights))
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[Update]:
        """Take a step's result: counters move, full blocks get their names, finished sequences let go of
        theirs."""
        expected, flights = self._in_flight.popleft()
        assert expected is plan, "plans are committed in the order they were made"
        assert result.step_id == plan.step_id
        if self.config.pace:
            num_continuing = sum(chunk.length == 1 for chunk in plan.chunks)
            self.pace.observe(num_continuing, plan.num_tokens - num_continuing, result.seconds)
        updates: list[Update] = []
        for flight in flights:
            flight.sequence.pending -= flight.num_samples
            if flight.sequence.state is not State.FINISHED and flight.sequence.seq_id not in result.failures:
                updates += self._commit_flight(flight, result)
        # Last, so that no sibling publishes under a name that was just taken away.
        for flight in flights if result.failures else ():
            sequence = flight.sequence
            if sequence.state is not State.FINISHED and sequence.seq_id in result.failures:
                self.memory.forget(sequence.chain.names)
                updates += self._end(sequence, FinishReason.ERROR, result.failures[sequence.seq_id])
        return updates

    def _commit_flight(self, flight: _Flight, result: StepResult) -> list[Update]:
        """One sequence's share of a commit."""
        sequence = flight.sequence
        samples: tuple[SampledToken, ...] = ()
        if flight.num_samples:
            samples = result.samples[sequence.seq_id]
            for sampled in samples:
                sequence.tokens.append(sampled.token)
            sequence.chain.extend(sequence.tokens)
        if flight.epoch == sequence.epoch:
            self._publish(sequence, flight.stop)
        updates = self._update(sequence, samples, result.prompt_logprobs.get(sequence.seq_id, ()))
        if (
            sequence.choice in sequence.unwanted
            and not sequence.forks_left
            and sequence.state is not State.FINISHED
        ):
            updates += self._end(sequence, FinishReason.CANCELLED)
        return updates

    @property
    def has_work(self) -> bool:
        """True while any request is unfinished or any plan uncommitted."""
        return bool(self._live or self._in_flight)

    # -- steps 3 to 5
    # ----------------------------------------------------------------------------------------------------

    def _ready(self) -> tuple[list[Sequence], list[Sequence]]:
        """The running sequences with something to compute: those that continue by one position, and
        prompts."""
        continuing, prompts = [], []
        for s in self.running:
            known = len(s.tokens) + s.pending
            if known < s.max_length:  # else all its samples are in flight
                if known == s.num_planned + 1:
                    continuing.append(s)
                elif known > s.num_planned:
                    prompts.append(s)
        return continuing, prompts

    def _share(self, continuing: list[Sequence], prompts: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Who computes how many positions, in order of rank: `step_tokens` at most, and at least one for the
        first.

        Sequences that continue come before prompts. Where they alone fill the step, the last in rank pause,
        and one of them leaves its position to a prompt that ranks before it.
        """
        limit = self.config.step_tokens
        budget = self.pace.prompt_budget(len(continuing), len(prompts) + len(self.waiting))
        prompts.sort(key=lambda s: s.rank)
        if len(continuing) >= limit:
            continuing.sort(key=lambda s: s.rank)
            budget = int(bool(prompts) and prompts[0].rank < continuing[limit - 1].rank)
            del continuing[limit - budget :]
        share = [(s, 1) for s in continuing]
        if prompts:
            grants = share_by_priority([(s.priority, s.remaining) for s in prompts], budget)
            share += [(s, grant) for s, grant in zip(prompts, grants, strict=True) if grant]
        share.sort(key=lambda item: item[0].rank)
        return share

    def _plan_chunk(self, sequence: Sequence, grant: int, flights: list[_Flight]) -> None:
        """Reserve and plan up to `grant` positions; fewer, or none, when blocks are short and nobody ranks
        below."""
        grant = self._reserve(sequence, grant)
        if grant == 0:
            return
        start, stop = sequence.num_planned, sequence.num_planned + grant
        num_samples = int(stop == sequence.known)
        logits_from = stop - num_samples
        if sequence.wants_prompt_logprobs:
            logits_from = min(max(start, sequence.prompt_logprobs_done), logits_from)
            sequence.prompt_logprobs_done = max(
                sequence.prompt_logprobs_done, min(stop, sequence.num_prompt - 1)
            )
        self._diff.chunks.append(Chunk(sequence.seq_id, sequence.row, start, grant, num_samples, logits_from))
        sequence.num_planned = stop
        sequence.pending += num_samples
        flights.append(_Flight(sequence, sequence.epoch, stop, num_samples))
        if num_samples and sequence.forks_left:
            self._fork(sequence, flights)

    def _reserve(self, sequence: Sequence, grant: int) -> int:
        """Positions made writable: `grant`, or what the unheld blocks allow once no victim is left."""
        assert sequence.table is not None
        start = sequence.num_planned
        while True:
            reservation = self.memory.reserve(sequence.table, start, start + grant)
            if reservation is not None:
                if reservation.blocks:
                    self._diff.reserve(sequence.row, reservation)
                return grant
            victim = self._victim(sequence)
            if victim is not None:
                self.preempt(victim)
                continue
            # Nobody ranks below: take what fits without a new block, else pause until somebody ahead ends.
            room = (len(sequence.table) + self.memory.num_unheld) * self.memory.block_size - start
            if room >= grant or room <= 0:
                return 0
            grant = room

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """The last in rank of those that rank after `sequence` and have no chunk in the plan being made."""
        planned = {chunk.seq_id for chunk in self._diff.chunks} | {
            fork.child_seq_id for fork in self._diff.forks
        }
        below = [s for s in self.running if s.rank > sequence.rank and s.seq_id not in planned]
        return max(below, key=lambda s: s.rank, default=None)

    def _fork(self, parent: Sequence, flights: list[_Flight]) -> None:
        """The plan that samples is being made: the other choices become holders of the same table, one
        sample each."""
        assert parent.table is not None
        for choice in range(1, parent.request.n):
            child = Sequence(
                seq_id=self._new_seq_id(),
                request=parent.request,
                choice=choice,
                tokens=array("I", parent.tokens),
                chain=parent.chain.copy(),
                table=self.memory.fork(parent.table),
                state=State.RUNNING,
                row=self._free_rows.pop(),
                num_computed=parent.num_computed,
                num_planned=parent.num_planned,
                pending=1,
                num_cached=parent.num_cached,
                prompt_logprobs_done=parent.num_prompt,
                unwanted=parent.unwanted,
            )
            self._live[parent.request.request_id].append(child)
            bisect.insort(self.running, child, key=lambda s: s.own_rank)
            self._diff.forks.append(Fork(parent.row, child.row, child.seq_id, choice))
            flights.append(_Flight(child, child.epoch, child.num_planned, 1))
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
        sequence.table = self.memory.open()
        adopted = self.memory.adopt(sequence.table, sequence.chain.names[:num_hits])
        assert adopted == num_hits
        sequence.num_computed = sequence.num_planned = adopted * self.memory.block_size
        if sequence.preemptions == 0:
            sequence.num_cached = sequence.num_planned
        bisect.insort(self.running, sequence, key=lambda s: s.own_rank)
        self._rows_promised += sequence.forks_left
        self.names.begin(sequence)
        request = sequence.request
        row = AdmittedRow(
            sequence.row,
            sequence.seq_id,
            tuple(sequence.tokens),
            sequence.num_prompt,
            sequence.num_prompt + request.max_tokens,
            request.params,
            request.seed,
            sequence.choice,
        )
        self._diff.admit(row, sequence.table.blocks)

    def preempt(self, sequence: Sequence) -> None:
        """Running -> waiting: the table is dropped. Resuming is an ordinary admission that finds its own
        blocks."""
        self._leave_row(sequence)
        sequence.state = State.WAITING
        sequence.epoch += 1
        sequence.num_computed = sequence.num_planned = 0
        sequence.preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def may_enter(self, sequence: Sequence) -> bool:
        """False when rows alone keep this waiting sequence out, and whoever ranks behind it. O(1)."""
        return self.num_free_rows > 0 or sequence.priority > self.running[-1].request.priority

    @property
    def num_free_rows(self) -> int:
        """Rows that no sequence has and no fork will need."""
        return len(self._free_rows) - self._rows_promised

    def _leave_row(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.names.end(sequence, sequence.chain.names[sequence.table.num_published :])
        self.memory.close(sequence.table)
        sequence.table = None
        self.running.remove(sequence)
        self._rows_promised -= sequence.forks_left
        self._diff.retire(sequence.row)
        self._free_rows.append(sequence.row)
        sequence.row = -1

    def _end(self, sequence: Sequence, finish: FinishReason, error: str = "") -> list[Update]:
        """The sequence and, if it has not forked yet, the choices that it was to become: one final update
        each."""
        choices = [sequence.choice, *range(1, 1 + sequence.forks_left)]
        self._close(sequence)
        request_id, usage = sequence.request.request_id, sequence.usage()
        return [Update(request_id, choice, (), usage, finish, error=error) for choice in choices]

    def _close(self, sequence: Sequence) -> None:
        if sequence.state is State.RUNNING:
            self._leave_row(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.state = State.FINISHED
        siblings = self._live[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._live[sequence.request.request_id]

    # -- commit
    # -------------------------------------------------------------------------------------------------

    def _publish(self, sequence: Sequence, num_computed: int) -> None:
        assert sequence.table is not None
        assert sequence.num_computed <= num_computed <= sequence.num_planned
        sequence.num_computed = num_computed
        before = sequence.table.num_published
        if not self.config.prefix_caching or num_computed // self.memory.block_size == before:
            return
        for index in self.memory.publish(sequence.table, sequence.chain.names, num_computed):
            self._diff.write_table(sequence.row, index, [sequence.table.blocks[index]])
        self.names.end(sequence, sequence.chain.names[before : sequence.table.num_published])

    def _update(
        self, sequence: Sequence, samples: tuple[SampledToken, ...], prompt_logprobs: tuple[SampledToken, ...]
    ) -> list[Update]:
        """What the client learns of this commit; closes the sequence when its last token is here."""
        if not samples and not prompt_logprobs:
            return []
        finish, stop_token = self._finish_reason(sequence) if samples else (None, None)
        if finish is not None:
            self._close(sequence)
        request_id, usage = sequence.request.request_id, sequence.usage()
        return [Update(request_id, sequence.choice, samples, usage, finish, stop_token, "", prompt_logprobs)]

    def _finish_reason(self, sequence: Sequence) -> tuple[FinishReason | None, int | None]:
        params, token = sequence.request.params, sequence.tokens[-1]
        num_output = len(sequence.tokens) - sequence.num_prompt
        if num_output > params.min_tokens or params.min_tokens == 0:
            is_eos = token in self.config.stop_ids and not params.ignore_eos
            if is_eos or token in params.stop_token_ids:
                return FinishReason.STOP, token
        if num_output >= sequence.request.max_tokens:
            return FinishReason.LENGTH, None
        return None, None

    def _new_seq_id(self) -> int:
        self._next_seq_id += 1
        return self._next_seq_id


def check_fits(request: Request, config: SchedulerConfig, num_blocks: int, block_size: int) -> None:
    """Raise unless the request could run alone: in the context, in the pool, in the rows. Pure, so anybody
    may ask."""
    if not request.prompt:
        raise InvalidRequest("the prompt is empty; allowed: at least 1 token", param="prompt")
    total = len(request.prompt) + request.max_tokens
    if total > config.context_length:
        raise RequestTooLarge(
            f"prompt of {len(request.prompt):,} tokens plus max_tokens of {request.max_tokens:,} is "
            f"{total:,} tokens; allowed: {config.context_length:,} (the context; setting context_length)",
            param="max_tokens" if len(request.prompt) < config.context_length else "prompt",
            code="context_length_exceeded",
        )
    needed = blocks_for(total - 1, block_size)  # the last token is sampled, never computed
    if needed > num_blocks:
        raise RequestTooLarge(
            f"prompt of {len(request.prompt):,} tokens plus max_tokens of {request.max_tokens:,} needs "
            f"{needed:,} KV blocks; allowed: {num_blocks:,}, the whole pool (setting kv_memory); "
            "ask for fewer tokens",
            param="max_tokens",
            code="kv_pool_exceeded",
        )
    if not 1 <= request.n <= config.max_rows:
        raise InvalidRequest(
            f"n is {request.n}; allowed: 1 to {config.max_rows} (setting max_seqs)", param="n"
        )
