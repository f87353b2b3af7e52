"""The unfinished sequences: waiting and running ones, their rows, and the transitions between them."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Self

from octavo.retention.transfers import Transfers
from octavo.scheduler.budget import Place
from octavo.scheduler.ended_requests import EndedRequests
from octavo.scheduler.fair_queue import VirtualTokenCounter
from octavo.scheduler.prompt_split import split_prompt
from octavo.scheduler.queue import NamesInProgress, WaitingQueue
from octavo.scheduler.sequence import InFlightChunk, Sequence, State
from octavo.scheduler.waits import QUEUED, Wait, WaitReason
from octavo.step.context import Context
from octavo.types import Fork, Request


class LiveSequences:
    """Owns every sequence until its end."""

    def __init__(self, context: Context, service: VirtualTokenCounter, transfers: Transfers) -> None:
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []  # by own rank, without lent priorities
        self.names = NamesInProgress()
        self.ended = EndedRequests()
        self.service = service
        self.num_preemptions = 0
        self.tokens_recomputed = 0  # recomputed because of preemptions
        self.on_first_token: list[Callable[[Sequence], None]] = []
        self.on_gone: list[Callable[[Request], None]] = []  # called when a request has ended
        self._context = context
        self._transfers = transfers
        self.unfinished: dict[int, list[Sequence]] = {}  # by request
        self._free_rows = list(range(context.config.max_rows - 1, -1, -1))
        self._rows_promised = 0  # to the forks of running sequences
        self._next_seq_id = 0

    def __len__(self) -> int:
        return len(self.unfinished)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.unfinished

    def live_requests(self) -> list[int]:
        """Ids of unfinished requests."""
        return list(self.unfinished)

    def requests(self) -> list[Request]:
        """The unfinished requests."""
        return [sequences[0].request for sequences in self.unfinished.values()]

    def running_requests(self) -> list[Request]:
        """Requests with a running sequence."""
        return list({s.request.request_id: s.request for s in self.running}.values())

    def waiting_requests(self) -> list[Request]:
        """Requests with a waiting sequence. After a preemption a request may be among both."""
        return list({s.request.request_id: s.request for s in self.waiting}.values())

    def sequences_of(self, request_id: int) -> list[Sequence]:
        """The unfinished sequences of a request."""
        return list(self.unfinished.get(request_id, ()))

    def heads_of(self, request_id: int) -> list[Sequence]:
        """These sequences, but of a beam group only the leader."""
        sequences = self.sequences_of(request_id)
        return [s for s in sequences if s.group is None or s.group.leader is s]

    def enter(self, sequence: Sequence) -> None:
        """Queue the first sequence of an accepted request."""
        self.unfinished[sequence.request.request_id] = [sequence]
        self.service.enter(sequence.request.tenant)
        self.waiting.add(sequence)

    def admit(self, sequence: Sequence, num_hits: int) -> None:
        """Waiting -> running, as one more holder of its first `num_hits` published blocks, some of which may
        be cold."""
        self.waiting.remove(sequence)
        if not sequence.was_admitted:
            sequence.split = split_prompt(sequence, num_hits, self._context, self._transfers)
        sequence.state = State.RUNNING
        sequence.queue.bypassed = 0
        sequence.row = self._free_rows.pop()
        sequence.table = self._context.ledger.open(sequence.holder, sequence.chain.num_shared)
        if sequence.queue.num_cold:
            self._context.ledger.adopt_cold(sequence.table, sequence.chain.names[: sequence.queue.num_cold])
        hot_names = sequence.chain.names[sequence.queue.num_cold : num_hits]
        adopted = self._context.ledger.adopt(sequence.table, hot_names)
        assert sequence.queue.num_cold + adopted == num_hits
        sequence.describe(self._context.ledger, 0, num_hits)
        sequence.table.num_stored = sequence.queue.num_cold
        sequence.queue.num_cold = 0
        self._transfers.release_fetch(sequence.seq_id)
        sequence.num_computed = sequence.num_planned = num_hits * self._context.ledger.block_size
        self.tokens_recomputed += max(0, sequence.num_lost - sequence.num_planned)
        sequence.num_lost = 0
        sequence.num_served = max(sequence.num_served, sequence.num_planned)
        sequence.note_admission(self._context.now)
        self.service.admit(sequence)
        sequence.queue.wait = QUEUED
        sequence.count_blocks(self._context.now)
        bisect.insort(self.running, sequence, key=lambda s: s.own_rank)
        self._rows_promised += sequence.forks_left
        self.names.begin(sequence)
        self._context.plan.admit(sequence.admitted_row(), self._context.ledger.entries(sequence.table))

    def fork(self, parent: Sequence, in_flight: list[InFlightChunk]) -> None:
        """Fork in the plan that samples: other choices become holders of the same table, one sample each."""
        assert parent.table is not None
        for choice in range(1, parent.request.n):
            child = parent.child(self.new_seq_id(), choice, self._free_rows.pop())
            child.table = self._context.ledger.fork(parent.table, child.holder)
            child.count_blocks(self._context.now)
            self.unfinished[parent.request.request_id].append(child)
            self.service.enter(child.request.tenant)
            bisect.insort(self.running, child, key=lambda s: s.own_rank)
            self._context.plan.forks.append(Fork(parent.row, child.row, child.seq_id, choice))
            in_flight.append(InFlightChunk(child, child.preemptions, child.num_planned, 1))
        self._rows_promised -= parent.forks_left
        parent.forks_left = 0

    def enter_row(self, beam: Sequence) -> None:
        """A forked beam runs in a row that was promised to its group."""
        beam.state = State.RUNNING
        beam.row = self._free_rows.pop()
        beam.count_blocks(self._context.now)
        assert beam.table is not None
        self.unfinished[beam.request.request_id].append(beam)
        self.service.enter(beam.request.tenant)
        bisect.insort(self.running, beam, key=lambda s: s.own_rank)
        self._context.plan.admit(beam.admitted_row(), beam.table.blocks)

    def promise_rows(self, sequence: Sequence, count: int) -> None:
        """Promise so many more rows to the group of a running sequence."""
        self._rows_promised += count - sequence.forks_left
        sequence.forks_left = count

    def may_admit(self, sequence: Sequence) -> bool:
        """False when rows alone keep out this waiting sequence and all that rank after it. O(1)."""
        if self._context.ledger.quotas.has_guarantees:
            return True
        return self.num_free_rows > 0 or sequence.priority > self.running[-1].request.priority

    def why_waiting(self, sequence: Sequence) -> Wait:
        """The reason that it waits: rows, which keep it from being examined, or the reason of the last
        examination."""
        if sequence.queue.wait.reason is WaitReason.QUEUED and not self.may_admit(sequence):
            return Wait(WaitReason.ROWS, 1 + sequence.forks_left, self.num_free_rows)
        return sequence.queue.wait

    def place(self, sequence: Sequence) -> Place:
        """The rank of its prompt in a step: by priority, then its tenant's service, then arrival."""
        service = self.service
        served = service.of(sequence.request.tenant) if service.num_active > 1 else 0.0
        return (sequence.rank[0], served, *sequence.rank[1:])

    @property
    def num_free_rows(self) -> int:
        """Rows without a sequence and not promised to a fork."""
        return len(self._free_rows) - self._rows_promised

    def _leave_row(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.names.end(sequence, sequence.chain.names[sequence.table.num_published :])
        self._transfers.release_fetch(sequence.seq_id)
        self._context.ledger.close(sequence.table)
        sequence.table = None
        sequence.count_blocks(self._context.now)
        self.running.remove(sequence)
        self.service.withdraw(sequence)
        self._rows_promised -= sequence.forks_left
        self._context.plan.retire(sequence.row)
        self._free_rows.append(sequence.row)
        sequence.row = -1

    def close(self, sequence: Sequence) -> None:
        """End it: release its row, or its place in the queue, and its blocks."""
        if sequence.state is State.RUNNING:
            self._leave_row(sequence)
        else:
            self.waiting.remove(sequence)
            self._transfers.release_fetch(sequence.seq_id)
        sequence.state = State.FINISHED
        siblings = self.unfinished[sequence.request.request_id]
        siblings.remove(sequence)
        self.service.leave(sequence.request.tenant)
        if not siblings:
            del self.unfinished[sequence.request.request_id]
            self.ended.add(sequence, self._context.now)
            for gone in self.on_gone:
                gone(sequence.request)

    def continue_from(self, old: Self) -> None:
        """The requests of an earlier scheduler have ended, and its pool is lost. Records of ended requests
        and of names continue."""
        ledger, lost = self._context.ledger, old._context.ledger
        ledger.history.continue_from(lost.history, lost.pool.by_name)
        self.ended = old.ended
        for sequences in old.unfinished.values():
            if sequences:  # else the failure came during its end
                self.ended.add(sequences[0], old._context.now)

    def new_seq_id(self) -> int:
        """A sequence id that was never used."""
        self._next_seq_id += 1
        return self._next_seq_id

    def requeue(self, sequence: Sequence) -> None:
        """Running -> waiting: its table is dropped. It resumes by an ordinary admission that finds its own
        blocks."""
        sequence.num_lost = sequence.num_planned - sequence.num_guessed
        if sequence.drafts is not None:
            sequence.drafts.clear_in_flight()
        self._leave_row(sequence)
        sequence.state = State.WAITING
        sequence.num_computed = sequence.num_planned = 0
        sequence.preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)
