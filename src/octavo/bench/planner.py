"""Predicts how a server would handle hypothetical requests: the real scheduler on a virtual clock.

    Traffic      requests by arrival, or users with a think time between two requests
    Calibration  step times, and the scheduler's setup (calibration.py)
    VirtualServer       the engine's loop: commands, plan, commit; step times are those of the calibration
    serve        servers on one clock, and a balancer that chooses one for each request (replicas.py)
    Forecast     figures of several draws of noise and drift, as ranges

Tokens are synthetic, so nothing that depends on them is forecast (accepted guesses, stops). Traffic that the
calibration does not cover is refused.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from octavo.bench.calibration import Calibration, kind_of, move_of
from octavo.bench.endpoint import Answer
from octavo.bench.forecast import Forecast, HighestLoad, Range, spread_of_tenant
from octavo.bench.load import Arrival, LoadReport, Progress, is_good, report_of
from octavo.bench.traces import TrafficTrace, prompts_of
from octavo.bench.workloads import WorkloadTargets
from octavo.engine.port import FinishTransfer, SetTenants, Submit
from octavo.engine.scheduler_setup import SchedulerSetup
from octavo.engine.virtual_loop import VirtualLoop
from octavo.errors import ConfigError, OctavoError
from octavo.memory.quota import SHARED
from octavo.params import SamplerParams
from octavo.scheduler.scheduler import Scheduler
from octavo.speculation.speculator import Speculation
from octavo.step.step_times import StepWork, work_of
from octavo.types import Move, Request, SampledToken, StepPlan, StepResult, Transfer, TransferDone, Update

VOCAB_SIZE = 32_000
COVERED = 1.25  # times the measured sizes
_TOKEN = (SampledToken(3),)
JUDGES, GOOD = 3, 0.95  # draws of a search, and the share of answers that must meet the targets


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests. With `users`, each user sends the trace's next request `think_s` after the end of the
    last answer."""

    trace: TrafficTrace
    users: int = 0
    think_s: float = 0.0


@dataclass(slots=True)
class DrawResult:
    """The result of one draw."""

    report: LoadReport
    seconds: float
    cached_tokens: int
    prompt_tokens: int
    preemptions: int
    blocks_peak: int
    running_peak: int
    waits: Counter[str]  # steps, by the reason why the first request in the queue waited
    steps: int
    good: float  # share of the answers that met the targets
    of_tenants: dict[str, LoadReport]  # by tenant of the calibration


@dataclass(slots=True)
class Results:
    """The results of all servers' traffic so far."""

    done: list[Answer] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    of_tenants: defaultdict[str, list[Answer]] = field(default_factory=lambda: defaultdict(list))


class VirtualServer:
    """One virtual server, for one run. `turn` advances its clock."""

    def __init__(self, calibration: Calibration, setup: SchedulerSetup, seed: int, results: Results) -> None:
        """`setup`: the calibration's, or a hypothetical one; `seed`: for noise and drift."""
        self._calibration = calibration
        self._random = random.Random(seed)
        self._loop = VirtualLoop(_plain(setup), calibration.tier)
        if calibration.tenants:
            self._loop.answer(SetTenants(calibration.tenants), 0.0)
        self.is_idle = True  # it has no work until a request arrives
        self._now = 0.0
        self._free_at = 0.0  # when the device has computed all submitted plans
        self._ends: deque[float] = deque()  # of plans in flight
        self._seconds: deque[tuple[float, StepWork]] = deque()
        self._moving: list[tuple[float, int, float]] = []  # a heap: end of a transfer, its id, its seconds
        self._moved_at = 0.0
        self._drift = self._drift_until = 0.0
        self._answers: dict[int, Answer] = {}
        self._done, self._served, self._waits = results.done, results.served, results.waits
        self._of_tenants = results.of_tenants
        self.on_end: Callable[[float], None] = lambda now: None
        self.on_update: Callable[[Update, float], None] = lambda update, now: None

    @property
    def now(self) -> float:
        """The server's clock, in seconds."""
        return self._now

    @property
    def senders(self) -> list[str]:
        """The tenants with requests."""
        return [policy.name for policy in self._calibration.tenants if policy.name != SHARED]

    @property
    def scheduler(self) -> Scheduler:
        """The real scheduler."""
        return self._loop.scheduler

    def submit(self, request: Request, at: float) -> None:
        """Submit a request that arrived at that time."""
        self._now, self.is_idle = max(self._now, at), False
        answer = Answer(at, request.max_tokens)
        self._of_tenants[request.tenant].append(answer)
        try:
            self._loop.answer(Submit(dataclasses.replace(request, arrival=at)), self._now)
        except OctavoError as error:
            answer.ended = at
            answer.fail(type(error).__name__, str(error))
            self._end(answer)
            return
        self._answers[request.request_id] = answer

    def _end(self, answer: Answer) -> None:
        self._done.append(answer)
        self.on_end(answer.ended)

    def turn(self, next_arrival: float) -> None:
        """One iteration of the engine's loop. If there is nothing to do, the clock advances to the next
        event."""
        loop = self._loop
        while self._moving and self._moving[0][0] <= self._now:
            at, transfer_id, seconds = heapq.heappop(self._moving)
            loop.answer(FinishTransfer(TransferDone(transfer_id, ok=True, seconds=seconds)), at)
        loop.scheduler.expire(self._now)
        plan = loop.schedule(self._now)
        if plan is not None:
            self._start(plan)
        if loop.in_flight and (plan is None or len(loop.in_flight) > self._calibration.depth):
            self._commit()
        elif plan is None:
            if not (loop.scheduler.has_work or self._moving):
                self.is_idle = True
                return
            soonest = self._moving[0][0] if self._moving else math.inf
            event = loop.scheduler.next_event()
            upcoming = min(next_arrival, soonest, math.inf if event is None else event)
            assert upcoming < math.inf, "work is left, and there is no next event"
            self._now = max(self._now, upcoming)

    def _start(self, plan: StepPlan) -> None:
        scheduler = self._loop.scheduler
        self._served["steps"] += 1
        self._served["running_sum"] += len(scheduler.live.running)
        self._served["running"] = max(self._served["running"], len(scheduler.live.running))
        self._served["blocks"] = max(self._served["blocks"], scheduler.ledger.counts().held)
        if scheduler.live.waiting.line:
            self._waits[scheduler.live.why_waiting(scheduler.live.waiting.first).reason] += 1
        for transfer in plan.transfers:
            if transfer.move is not Move.FORGET:
                seconds = self._move_s(transfer)
                self._moved_at = max(self._now, self._moved_at) + seconds
                heapq.heappush(self._moving, (self._moved_at, transfer.transfer_id, seconds))
        if plan.has_cold:
            raise ConfigError(
                "the traffic has sequences larger than the pool, with cold blocks in a tier: "
                "no calibration has their time; allowed: shorter requests, or a larger pool"
            )
        work = work_of(plan.chunks)
        step_s = self._step_s(work) if plan.chunks else 0.0
        self._free_at = max(self._now, self._free_at) + step_s
        self._ends.append(self._free_at)
        self._seconds.append((step_s, work))

    def _move_s(self, transfer: Transfer) -> float:
        kind = move_of(transfer, self._calibration.tier)
        if (seconds := self._calibration.moves.get(kind)) is None:
            measured = ", ".join(sorted(self._calibration.moves)) or "none"
            raise ConfigError(
                f"the traffic needs a transfer of a kind that was not measured ({kind}; measured: "
                f"{measured}); allowed: octavo bench calibrate with the server's --host-cache or --disk-cache"
            )
        return seconds

    def _step_s(self, work: StepWork) -> float:
        calibration = self._calibration
        self._check_covered(work)
        if self._now >= self._drift_until:
            self._drift = self._random.choice(calibration.drifts) if calibration.drifts else 0.0
            self._drift_until = self._now + 10.0
        of_kind = calibration.noise.get(kind_of(work))
        noise = self._random.choice(of_kind) if of_kind else 0.0
        return calibration.predicted_s(work) * math.exp(noise + self._drift)

    def _check_covered(self, work: StepWork) -> None:
        calibration = self._calibration
        for what, value, most in (
            ("sequences that decode in a step", work.decoding, calibration.rows_max),
            ("positions of a step", work.positions, calibration.positions_max),
        ):
            if value > COVERED * most:
                raise ConfigError(
                    f"the traffic needs {value:,} {what}; allowed: {COVERED:g} times the measured {most:,} "
                    "(octavo bench calibrate, with the settings to plan)"
                )

    def _commit(self) -> None:
        loop, plan = self._loop, self._loop.in_flight[0]
        seconds, work = self._seconds.popleft()
        self._now = max(self._now, self._ends.popleft())
        samples = {chunk.seq_id: _TOKEN for chunk in plan.chunks if chunk.num_samples}
        result = StepResult(plan.step_id, samples, seconds=seconds)
        received_at = self._now + self._calibration.http_s
        for update in loop.commit(result, self._now):
            self.on_update(update, received_at)
            answer = self._answers[update.request_id]
            if update.tokens:
                answer.chunks.append(received_at)
                answer.tokens += len(update.tokens)
            if update.finish is not None:
                usage = update.usage
                self._served["cached"] += usage.num_cached
                self._served["prompt"] += usage.num_prompt
                self._served["preemptions"] += usage.preemptions
                answer.ended = received_at
                self._end(self._answers.pop(update.request_id))
        if plan.chunks:
            self._now += self._calibration.between(work)


class Balancer(Protocol):
    """Chooses a server for each request."""

    def place(self, request: Request, now: float) -> int | None:
        """The server's index; None: all refuse it."""

    def follow(self, index: int) -> None:
        """Take the reports of a server that has run an iteration."""


class SingleServer:
    """The balancer of a single server."""

    def place(self, request: Request, now: float) -> int | None:
        """The only server."""
        return 0

    def follow(self, index: int) -> None:
        """Nothing to do."""


def serve(
    servers: Sequence[VirtualServer],
    balancer: Balancer,
    results: Results,
    traffic: Traffic,
    targets: WorkloadTargets,
    seed: int,
    bad_max: float = math.inf,
) -> DrawResult:
    """Run until the last answer ends, or more than `bad_max` answers have missed the targets. The server with
    the earliest clock runs next."""
    num_judged = num_bad = 0
    requests = _requests(traffic, seed, servers[0].senders)
    arrivals: list[tuple[float, int, Request]] = []

    def next_of_user(now: float) -> None:
        if (one := next(requests, None)) is not None:
            heapq.heappush(arrivals, (now, one[1].request_id, one[1]))

    if traffic.users:
        for _ in range(traffic.users):
            next_of_user(0.0)
        for server in servers:
            server.on_end = lambda now: next_of_user(now + traffic.think_s)
    else:
        first = next(requests)
        arrivals.append((first[0], 1, first[1]))
    while num_bad <= bad_max:
        busy = [index for index, server in enumerate(servers) if not server.is_idle]
        last = min(busy, key=lambda index: servers[index].now) if busy else None
        if arrivals and (last is None or arrivals[0][0] <= servers[last].now):
            at, _, request = heapq.heappop(arrivals)
            place = balancer.place(request, at)
            if place is None:
                refused = Answer(at, request.max_tokens, ended=at)
                refused.fail("QueueFull", "all replicas are full")
                results.done.append(refused)
                servers[0].on_end(at)
            else:
                servers[place].submit(request, at)
            if not traffic.users and (one := next(requests, None)) is not None:
                heapq.heappush(arrivals, (one[0], one[1].request_id, one[1]))
        elif last is not None:
            servers[last].turn(arrivals[0][0] if arrivals else math.inf)
            balancer.follow(last)
            ended = results.done[num_judged:]
            num_judged += len(ended)
            num_bad += sum(bool(answer.error) or not is_good(answer, targets) for answer in ended)
        else:
            break
    return _result(results, traffic, targets, servers[0].senders)


def _result(
    results: Results, traffic: Traffic, targets: WorkloadTargets, senders: Sequence[str]
) -> DrawResult:
    seconds = max((answer.ended for answer in results.done), default=0.0)
    seconds = max(seconds, 1e-9)
    arrival = (
        Arrival(traffic.users) if traffic.users else Arrival(rate_per_s=len(traffic.trace.requests) / seconds)
    )

    def report_on(answers: list[Answer]) -> LoadReport:
        progress = Progress(len(answers), lambda text: None, answers)
        return report_of(traffic.trace.name, arrival.in_words(), progress, targets, seconds)

    report = report_on(results.done)
    served = results.served
    return DrawResult(
        report,
        seconds,
        served["cached"],
        served["prompt"],
        served["preemptions"],
        served["blocks"],
        served["running"],
        results.waits,
        served["steps"],
        report.good / max(1, report.requests),
        {name: report_on(results.of_tenants[name]) for name in senders},
    )


def _plain(setup: SchedulerSetup) -> SchedulerSetup:
    """The setup without guesses, which depend on tokens, and with all of the pool's memory from the start."""
    return replace(setup, speculate=Speculation.OFF, pressure=None, num_ready=setup.capacity)


def _requests(traffic: Traffic, seed: int, senders: Sequence[str]) -> Iterator[tuple[float, Request]]:
    """The requests by arrival, numbered from 1. Those without a tenant are assigned to the senders in
    turn."""
    senders = senders or [""]
    params = SamplerParams(ignore_eos=True)
    trace = traffic.trace
    for number, (one, prompt) in enumerate(
        zip(trace.requests, prompts_of(trace, seed, VOCAB_SIZE), strict=True), 1
    ):
        yield (
            one.arrival_s,
            Request(
                number,
                prompt,
                params,
                one.output,
                number,
                tenant=one.tenant or senders[number % len(senders)],
            ),
        )


@dataclass(slots=True)
class CapacityPlanner:
    """Runs traffic on virtual servers."""

    calibration: Calibration
    targets: WorkloadTargets
    setup: SchedulerSetup
    draws: int = 5
    show: Callable[[str], None] = field(default=lambda text: None)
    replicas: int = 1
    balancer: Callable[[Sequence[VirtualServer]], Balancer] = lambda servers: SingleServer()

    def run_draw(self, traffic: Traffic, draw: int = 0, bad_max: float = math.inf) -> DrawResult:
        """Run one draw; `bad_max` as in `serve`."""
        results = Results()
        servers = [
            VirtualServer(self.calibration, self.setup, 1000 * index + draw, results)
            for index in range(self.replicas)
        ]
        return serve(servers, self.balancer(servers), results, traffic, self.targets, draw, bad_max)

    def forecast(self, traffic: Traffic) -> Forecast:
        """The forecast of all draws."""
        served = []
        for draw in range(self.draws):
            self.show(f"draw {draw + 1} of {self.draws}")
            served.append(self.run_draw(traffic, draw))
        reports = [one.report for one in served]

        def spread(name: str) -> dict[str, Range]:
            own = [getattr(report, name) for report in reports]
            return {q: Range.of([getattr(one, q) for one in own]) for q in ("mean", "p50", "p95", "p99")}

        waits = sum((one.waits for one in served), Counter[str]())
        steps = sum(one.steps for one in served)
        reason, count = waits.most_common(1)[0] if waits else ("", 0)
        last = served[0]
        return Forecast(
            spread("ttft_ms"),
            spread("itl_ms"),
            spread("e2e_ms"),
            Range.of([report.output_tokens_per_s for report in reports]),
            Range.of([one.good for one in served]),
            last.cached_tokens / max(1, last.prompt_tokens),
            max(one.blocks_peak for one in served),
            self.setup.num_blocks,
            max(one.running_peak for one in served),
            max(one.preemptions for one in served),
            reason if count > 0.05 * steps else "",
            last.seconds,
            dict(reports[0].errors),
            next(iter(reports[0].error_details.values()), ""),
            {name: spread_of_tenant([one.of_tenants[name] for one in served]) for name in last.of_tenants},
        )

    def highest(self, scaled: Callable[[float], Traffic], low: float, high: float) -> HighestLoad:
        """The largest number between `low` and `high`, within 2 %, at which 95 % of the answers meet the
        targets in most of three draws. A larger one may meet them by chance, since times are random."""
        beyond = False  # the last try was not covered by the calibration

        def keeps(number: float) -> bool:
            nonlocal beyond
            self.show(f"trying {number:.3g}")
            try:
                traffic = scaled(number)
                bad_max = (1 - GOOD) * len(traffic.trace.requests)
                goods = sorted(self.run_draw(traffic, draw, bad_max).good for draw in range(JUDGES))
            except ConfigError:
                beyond = True
                return False
            return goods[JUDGES // 2] >= GOOD

        if not keeps(low):
            return HighestLoad(0.0, "calibration" if beyond else "targets")
        if keeps(high):
            return HighestLoad(high, "search")
        is_beyond = beyond
        while high / low > 1.02:
            middle, beyond = math.sqrt(low * high), False
            if keeps(middle):
                low = middle
            else:
                high, is_beyond = middle, beyond
        return HighestLoad(low, "calibration" if is_beyond else "targets")
