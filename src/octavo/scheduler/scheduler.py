"""Who runs next: continuous batching over the ledger. No clock, no thread, no bytes; every decision is a
pure function of what was submitted and committed (and of measured step times, where the executor gives them).

One call of `schedule` is one plan:

    1. followers     a waiting sequence whose next block is being computed lends its priority and stays out
    of the way 2. admission     waiting sequences that fit in rows, blocks and the step's tokens, in order
    of rank   (admit.py) 3. grants        one position for each that continues; the rest is shared among
    prompts
           (budget.py) 4. reservation   in order of rank; whoever finds no block preempts the last in rank

            (victim below) 5. chunks        and forks, where a request with n > 1 reaches its first sample

Liveness: the best-ranked sequence can always preempt all others, and a request that could not run alone in
the whole pool is refused at submission; so some sequence always advances.
Source: Orca (Yu et al. 2022) for iteration-level scheduling; Kwon et al. 2023, section 4.5 for preemption.
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


@dataclass(frozen=True, slots=True)
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
        self.running: list[Sequence] = []  # by rank, lent priorities aside
        self.names = NamesInProgress()
        self.pace = Pace(config.step_tokens)
        self.num_preemptions = 0
        self._root_of_tenant = root_of_tenant
        self._diff = PlanDiff()
        self._free_rows = list(range(config.max_rows - 1, -1, -1))
        self._live: dict[int, list[Sequence]] = {}  # unfinished sequences by request
        self._in_flight: deque[tuple[StepPlan, list[_Flight]]] = deque()
        self._next_seq_id = 0
        self._admission = Admission(self)

    # -- what clients ask
    # ---------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestTooLarge, InvalidRequest or QueueFull; then nothing was queued."""
        check_fits(request, self.config, self.memory.pool.num_blocks, self.memory.block_size)
        if len(self.waiting) >= self.config.max_waiting:
            raise QueueFull(
                f"{len(self.waiting)} requests are waiting; allowed: {self.config.max_waiting} (setting max_queue)"
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
        """End all choices of a request, or one, now; the blocks are free for the next plan. Unknown: nothing."""
        return self.end(request_id, FinishReason.CANCELLED, choice=choice)

    def end(
        self, request_id: int, finish: FinishReason, error: str = "", choice: int | None = None
    ) -> list[Update]:
        """End unfinished choices of a request for a reason from outside the token stream."""
        updates = []
        for sequence in self.sequences_of(request_id):
            if choice is None or sequence.choice == choice:
                updates += self._end(sequence, finish, error)
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
        for sequence in self.running:
            sequence.lent_priority = None
        continuing = [s for s in self.running if s.remaining == 1 and s.num_samples_left > 0]
        prompts = [s for s in self.running if s.remaining > 1 and s.num_samples_left > 0]
        budget = self.pace.prompt_budget(len(continuing), len(prompts) + len(self.waiting))
        if self._somebody_may_enter():
            prompts += self._admission.admit(continuing, prompts, budget)
        prompts.sort(key=lambda s: s.rank)
        grants = share_by_priority([(s.priority, s.remaining) for s in prompts], budget)
        # A step computes step_tokens positions at most, so in a small step some of the last in rank may
        # have to pause.
        share = [(s, 1) for s in continuing[: self.config.step_tokens]]
        share += [(s, grant) for s, grant in zip(prompts, grants, strict=True) if grant]
        share.sort(key=lambda item: item[0].rank)
        flights: list[_Flight] = []
        for sequence, grant in share:
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
        num_continuing = sum(chunk.length == 1 for chunk in plan.chunks)
        if self.config.pace:
            self.pace.observe(num_continuing, plan.num_tokens - num_continuing, result.seconds)
        updates: list[Update] = []
        for flight in flights:
            sequence = flight.sequence
            sequence.pending -= flight.num_samples
            if sequence.state is State.FINISHED:
                continue
            failure = result.failures.get(sequence.seq_id)
            if failure is not None:
                if sequence.table is not None:
                    self.memory.forget(sequence.table)
                updates += self._end(sequence, FinishReason.ERROR, failure)
                continue
            samples = result.samples[sequence.seq_id] if flight.num_samples else ()
            sequence.tokens.extend(sampled.token for sampled in samples)
            sequence.chain.extend(sequence.tokens)
            if flight.epoch == sequence.epoch:
                self._publish(sequence, flight.stop)
            update = self._update(sequence, samples, result.prompt_logprobs.get(sequence.seq_id, ()))
            if update is not None:
                updates.append(update)
        return updates

    @property
    def has_work(self) -> bool:
        """True while any request is unfinished or any plan uncommitted."""
        return bool(self._live or self._in_flight)

    # -- steps 4 and 5
    # ------------------------------------------------------------------------------------------

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
            )
            self._live[parent.request.request_id].append(child)
            bisect.insort(self.running, child, key=lambda s: s.rank)
            self._diff.forks.append(Fork(parent.row, child.row, child.seq_id, choice))
            flights.append(_Flight(child, child.epoch, child.num_planned, 1))
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
        bisect.insort(self.running, sequence, key=lambda s: s.rank)
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

    def _somebody_may_enter(self) -> bool:
        if not self.waiting:
            return False
        return bool(self._free_rows) or self.waiting.first.priority > self.running[-1].priority

    def num_free_rows(self) -> int:
        """Rows that no sequence has and no fork will need."""
        return len(self._free_rows) - sum(s.forks_left for s in self.running)

    def _leave_row(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.names.end(sequence, sequence.chain.names[sequence.table.num_published :])
        self.memory.close(sequence.table)
        sequence.table = None
        self.running.remove(sequence)
        self._diff.retire(sequence.row)
        self._free_rows.append(sequence.row)
        sequence.row = -1

    def _end(self, sequence: Sequence, finish: FinishReason, error: str) -> list[Update]:
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
        if not self.config.prefix_caching:
            return
        before = sequence.table.num_published
        for index in self.memory.publish(sequence.table, sequence.chain.names, num_computed):
            self._diff.write_table(sequence.row, index, [sequence.table.blocks[index]])
        self.names.end(sequence, sequence.chain.names[before : sequence.table.num_published])

    def _update(
        self, sequence: Sequence, samples: tuple[SampledToken, ...], prompt_logprobs: tuple[SampledToken, ...]
    ) -> Update | None:
        """What the client learns of this commit; closes the sequence when its last token is here."""
        if not samples and not prompt_logprobs:
            return None
        finish, stop_token = self._finish_reason(sequence) if samples else (None, None)
        if finish is not None:
            self._close(sequence)
        return Update(
            sequence.request.request_id,
            sequence.choice,
            samples,
            sequence.usage(),
            finish,
            stop_token,
            prompt_logprobs=prompt_logprobs,
        )

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
            f"prompt of {len(request.prompt):,} tokens plus max_tokens of {request.max_tokens:,} is {total:,} tokens; "
            f"allowed: {config.context_length:,} (the context; setting context_length)",
            param="max_tokens" if len(request.prompt) < config.context_length else "prompt",
            code="context_length_exceeded",
        )
    needed = blocks_for(total - 1, block_size)  # the last token is sampled, never computed
    if needed > num_blocks:
        raise RequestTooLarge(
            f"prompt of {len(request.prompt):,} tokens plus max_tokens of {request.max_tokens:,} needs {needed:,} KV "
            f"blocks; allowed: {num_blocks:,}, the whole pool (setting kv_memory); ask for fewer tokens",
            param="max_tokens",
            code="kv_pool_exceeded",
        )
    if not 1 <= request.n <= config.max_rows:
        raise InvalidRequest(
            f"n is {request.n}; allowed: 1 to {config.max_rows} (setting max_seqs)", param="n"
        )
