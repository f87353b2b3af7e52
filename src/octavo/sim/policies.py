"""The KV memory of a trace of requests under policies that reserve a contiguous run for each request.

A request is known by its lengths only. With a prompt of p and an output of o tokens it finally stores p + o -
1 positions (the last token is sampled, never computed), and runs for o steps: the first computes the whole
prompt, each later one a position. A step advances all running requests. Requests start and end at every step
(iteration-level scheduling, Yu et al. 2022), so policies differ only in their reservations:

    static        the longest request there may be; the lowest hole that has it
    Orca Max      the same, from a buddy allocator
    Orca Pow2     the prompt, and the next power of two of the true output; buddies
    Orca Oracle   the true final size; buddies
    Octavo        see driver.py: the real scheduler and ledger, which reserve nothing ahead

The memory at one moment, after a step has written and before any request ends:

    [ stored ######| reserved ....| internal      ][ stored ####| ...  ][ free          ][ stored ### | ...

    stored      holds K and V of a token
    reserved    empty, but the request that holds the slot will store there
    internal    the request holds the slot and will never store there: the maximum, a power of two, or the
                end of a last block exceeds its final size
    external    free although a request waits: holes that are too small, or room left by a scheduler

These four are the whole memory while a request waits; free memory without a waiting request is not wasted and
does not count. Figure 2 of the paper calls `external` external fragmentation & others.

Requests are admitted by arrival. If the first in the queue finds no hole, others may pass it under the
scheduler's bound (BYPASS_MAX), so that policies differ by memory only; the paper's queue is strict. Source:
Kwon et al. 2023, sections 2.2 to 3.1 and 6.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from octavo.scheduler.admit import BYPASS_MAX, SCAN_MAX
from octavo.sim.contiguous import Allocator, BuddyAllocator, Extent, FirstFit, rounded


@dataclass(frozen=True, slots=True)
class Job:
    """A request as its lengths: at least one token each. `arrival` is in seconds of virtual time."""

    prompt: int
    output: int
    arrival: float = 0.0

    @property
    def positions(self) -> int:
        """Positions that it finally stores."""
        return self.prompt + self.output - 1


@dataclass(frozen=True, slots=True)
class Slots:
    """All slots of the memory at one moment, by kind."""

    stored: int
    reserved: int
    internal: int
    free: int


@dataclass(frozen=True, slots=True)
class ReplayedTrace:
    """The result of a policy on a trace. The four shares add up to 1."""

    policy: str
    stored: float
    reserved: float
    internal: float
    external: float
    running: float  # requests at once, on average
    running_max: int
    measured_steps: int  # steps in the five means
    steps: int  # to the end of the last request
    preemptions: int


T = TypeVar("T")


class Window(Generic[T]):
    """Figures of steps, up to the last one with a request that waits or is yet to arrive: after it the memory
    runs empty. All steps, if no request ever waits."""

    def __init__(self) -> None:
        self._steps: list[T] = []
        self._stop = 0

    def add(self, figures: T, waiting: int, to_come: int) -> None:
        """One step: `waiting` requests wait, `to_come` have not arrived yet."""
        self._steps.append(figures)
        if waiting or to_come:
            self._stop = len(self._steps)

    @property
    def steps(self) -> list[T]:
        """The steps that count."""
        return self._steps[: self._stop] or self._steps


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of a policy: the memory's slots, and how many requests run and wait."""

    slots: Slots
    running: int
    waiting: int

    def shares(self) -> tuple[float, ...]:
        """Stored, reserved, internal and external, as shares of their sum."""
        slots = self.slots
        parts = (slots.stored, slots.reserved, slots.internal, slots.free if self.waiting else 0)
        return tuple(part / sum(parts) for part in parts)


def replayed(policy: str, moments: Sequence[Moment], steps: int, preemptions: int) -> ReplayedTrace:
    """Means over moments; each step counts the same, whatever it computes."""
    shares = zip(*(moment.shares() for moment in moments), strict=True)
    stored, reserved, internal, external = (sum(share) / len(moments) for share in shares)
    running = [moment.running for moment in moments]
    return ReplayedTrace(
        policy, stored, reserved, internal, external,
        sum(running) / len(running), max(running), len(moments), steps, preemptions,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Policy:
    """The size and place of a request's reservation."""

    name: str
    allocator: Callable[[int], Allocator]  # over so many slots
    wanted: Callable[[Job], int]  # slots to reserve


def reservation_policies(max_length: int) -> tuple[Policy, ...]:
    """The policies that reserve, if no request is longer than `max_length` tokens."""

    def whole(job: Job) -> int:
        return max_length

    def doubled(job: Job) -> int:
        return min(job.prompt + rounded(job.output), max_length)

    def true(job: Job) -> int:
        return job.positions

    return (
        Policy("static", FirstFit, whole),
        Policy("Orca Max", BuddyAllocator, whole),
        Policy("Orca Pow2", BuddyAllocator, doubled),
        Policy("Orca Oracle", BuddyAllocator, true),
    )


def replay_reserved(jobs: Sequence[Job], policy: Policy, num_slots: int, step_s: float) -> ReplayedTrace:
    """Serve the trace to its end under `policy`; a step lasts `step_s` of virtual time.

    The memory must have room for any one of the jobs.
    """
    return _Server(jobs, policy, num_slots, step_s).run()


@dataclass(slots=True, eq=False)
class _ActiveJob:
    """A job in the queue, or running once it has a piece."""

    job: Job
    wanted: int
    piece: Extent | None = None
    stored: int = 0
    bypassed: int = 0


class _Server:
    """Serves one trace under one policy."""

    def __init__(self, jobs: Sequence[Job], policy: Policy, num_slots: int, step_s: float) -> None:
        self._policy = policy
        self._allocator = policy.allocator(num_slots)
        self._step_s = step_s
        self._to_come = deque(sorted(jobs, key=lambda job: job.arrival))
        self._waiting: list[_ActiveJob] = []  # by arrival
        self._running: list[_ActiveJob] = []
        self._now = 0.0
        self._window: Window[Moment] = Window()

    def run(self) -> ReplayedTrace:
        """Run all steps."""
        steps = 0
        while self._to_come or self._waiting or self._running:
            self._arrive()
            self._admit()
            assert self._running, f"{self._policy.name}: a request does not fit even alone"
            self._compute()
            moment = Moment(self._slots(), len(self._running), len(self._waiting))
            self._window.add(moment, moment.waiting, len(self._to_come))
            self._leave()
            steps += 1
            self._now += self._step_s
        return replayed(self._policy.name, self._window.steps, steps, preemptions=0)

    def _arrive(self) -> None:
        if not self._waiting and not self._running:
            self._now = max(self._now, self._to_come[0].arrival)
        while self._to_come and self._to_come[0].arrival <= self._now:
            job = self._to_come.popleft()
            self._waiting.append(_ActiveJob(job, self._policy.wanted(job)))

    def _admit(self) -> None:
        """Start waiting jobs that find a piece, by arrival, with the scheduler's bound on passing."""
        head: _ActiveJob | None = None  # the first one without a piece
        too_large = 1 << 62  # a size without a hole in this step
        for request in self._waiting[:SCAN_MAX]:
            if request.wanted < too_large:
                request.piece = self._allocator.take(request.wanted)
            if request.piece is not None:
                self._running.append(request)
                if head is not None:
                    head.bypassed += 1
            else:
                too_large = min(too_large, request.wanted)
                head = head or request
            if head is not None and head.bypassed >= BYPASS_MAX:
                break
        self._waiting = [request for request in self._waiting if request.piece is None]

    def _compute(self) -> None:
        for request in self._running:
            request.stored = request.stored + 1 if request.stored else request.job.prompt

    def _slots(self) -> Slots:
        held = sum(request.piece.size for request in self._running if request.piece is not None)
        stored = sum(request.stored for request in self._running)
        coming = sum(request.job.positions for request in self._running)
        return Slots(stored, coming - stored, held - coming, self._allocator.num_free)

    def _leave(self) -> None:
        for request in self._running:
            if request.stored == request.job.positions and request.piece is not None:
                self._allocator.give(request.piece)
                request.piece = None
        self._running = [request for request in self._running if request.piece is not None]
