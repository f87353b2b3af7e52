"""Load for an endpoint: the requests, their times, and a report on the answers.

    random         prompts of random token ids                                   /completions
    shared-prefix  the same after a prefix that all share                        /completions
    mixed          lengths between a quarter and four times the given ones       /completions
    multi-turn     chats: each question continues the conversation               /chat/completions

A *script* is the sequence of requests of one simulated client; only multi-turn scripts have several turns.

    closed loop    C clients; when one script ends, the next begins
    Poisson        scripts begin at random times with a given mean rate, independent of the endpoint
    trace          requests begin at the times of a `TrafficTrace`, independent of the endpoint

Prompts, lengths and arrivals are functions of the seed. It knows no HTTP: `Client` does.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from octavo.bench.endpoint import Answer, Client
from octavo.bench.offline import quantile
from octavo.bench.traces import TrafficTrace, prompts_of
from octavo.bench.workloads import FIRST_TOKEN, LoadProfile, WorkloadTargets

Add = Callable[[Answer], None]
_SPREAD = 4  # mixed: lengths from 1 / 4 of the given one to 4 times that
_WORDS = (
    "block", "table", "page", "river", "letter", "garden", "number", "window", "market", "engine", "winter",
    "story", "copper", "island", "signal", "bridge", "people", "colour", "reason", "summer", "paper", "city",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadTurn:
    """One request: token ids, or the words of a question."""

    tokens: tuple[int, ...]
    words: str
    output: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A closed loop of `concurrency` clients, or scripts at a mean `rate_per_s`."""

    concurrency: int = 1
    rate_per_s: float | None = None

    def in_words(self) -> str:
        """ "8 in flight" or "4/s"."""
        return f"{self.concurrency} in flight" if self.rate_per_s is None else f"{self.rate_per_s:g}/s"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of a time and its mean, in milliseconds; 0 if there are no values."""

    p50: float
    p95: float
    p99: float
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One run's figures. Speeds are the tokens of complete answers over the whole run's time."""

    workload: str
    arrival: str
    requests: int
    completed: int
    short: int  # completed, with fewer tokens than requested
    errors: dict[str, int]  # by kind
    error_details: dict[str, str]  # the first of each kind
    seconds: float
    output_tokens: int
    output_tokens_per_s: float
    tokens_per_chunk: float  # above 1: an inter-token time covers several tokens
    ttft_ms: Quantiles
    itl_ms: Quantiles  # between chunks with output
    e2e_ms: Quantiles
    targets: WorkloadTargets
    good: int
    goodput_per_s: float  # good answers a second


@dataclass(slots=True)
class Progress:
    """Counts answers as they arrive, and reports the progress."""

    total: int
    show: Callable[[str], None]
    answers: list[Answer] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        self.answers.append(answer)
        failed = sum(bool(each.error) for each in self.answers)
        self.show(f"{len(self.answers)} of {self.total} answers, {failed} failed")


def scripts_of(load: LoadProfile, num_requests: int) -> list[tuple[LoadTurn, ...]]:
    """The scripts of all clients: `num_requests` turns or, for chats, the next multiple of `turns`."""
    generator = random.Random(f"{load.kind} {load.seed}")
    prefix = _tokens(generator, load.prefix, load) if load.kind == "shared-prefix" else ()

    def turn() -> LoadTurn:
        if load.kind == "multi-turn":
            return LoadTurn((), " ".join(generator.choices(_WORDS, k=load.prompt)) + "?", load.output)
        prompt, output = load.prompt, load.output
        if load.kind == "mixed":
            prompt, output = _mixed(generator, prompt), _mixed(generator, output)
        return LoadTurn(prefix + _tokens(generator, prompt, load), "", output)

    turns = load.turns if load.kind == "multi-turn" else 1
    return [tuple(turn() for _ in range(turns)) for _ in range(-(-num_requests // turns))]


async def apply(
    client: Client,
    load: LoadProfile,
    num_requests: int,
    arrival: Arrival,
    targets: WorkloadTargets,
    show: Callable[[str], None] = lambda text: None,
) -> LoadReport:
    """Send all requests and wait for the answers. Errors of the endpoint are counted, not raised."""
    scripts = scripts_of(load, num_requests)
    progress = Progress(sum(map(len, scripts)), show)
    begun = time.perf_counter()
    await send(client, scripts, arrival, str(load.seed), progress.add)
    return report_of(load.kind, arrival.in_words(), progress, targets, time.perf_counter() - begun)


async def play(
    client: Client,
    trace: TrafficTrace,
    load: LoadProfile,
    targets: WorkloadTargets,
    show: Callable[[str], None] = lambda text: None,
) -> LoadReport:
    """Like `apply`, with the requests of a trace at its times; only seed and vocabulary of `load` are used.
    Prompts are made on the way, so each of many simultaneous requests may be a millisecond late."""
    progress = Progress(len(trace.requests), show)
    prompts = prompts_of(trace, load.seed, load.vocab_size)
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for request, tokens in zip(trace.requests, prompts, strict=True):
            await asyncio.sleep(max(0.0, begun + request.arrival_s - time.perf_counter()))
            script = (LoadTurn(tokens, "", request.output),)
            group.create_task(_follow(client, iter([script]), progress.add))
    return report_of(trace.name, "trace", progress, targets, time.perf_counter() - begun)


async def send(
    client: Client, scripts: Sequence[tuple[LoadTurn, ...]], arrival: Arrival, seed: str, add: Add
) -> None:
    """Run all scripts to their ends; `add` receives the answers as they end. Random times are functions of
    the seed."""
    if arrival.rate_per_s is None:
        queue = iter(scripts)
        await asyncio.gather(*(_follow(client, queue, add) for _ in range(arrival.concurrency)))
    elif scripts:
        # The rate counts requests, and each chat has several.
        rate = arrival.rate_per_s / len(scripts[0])
        await _arrive(client, scripts, random.Random(f"arrivals {seed}"), rate, add)


async def _arrive(
    client: Client,
    scripts: Sequence[tuple[LoadTurn, ...]],
    gaps: random.Random,
    rate: float,
    add: Add,
) -> None:
    """Begin scripts at absolute times, so that a delay of the client does not lower the rate."""
    due = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for script in scripts:
            due += gaps.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(_follow(client, iter([script]), add))


async def _follow(client: Client, scripts: Iterator[tuple[LoadTurn, ...]], add: Add) -> None:
    """One client: scripts one after another. A failed turn ends its script, and the remaining turns fail."""
    for script in scripts:
        messages: list[dict[str, str]] = []
        for index, turn in enumerate(script):
            if turn.tokens:
                answer = await client.complete(turn.tokens, turn.output)
            else:
                messages.append({"role": "user", "content": turn.words})
                answer = await client.chat(messages, turn.output)
                messages.append({"role": "assistant", "content": answer.text})
            add(answer)
            if answer.error:
                for left in script[index + 1 :]:
                    skipped = Answer(answer.ended, left.output, ended=answer.ended)
                    skipped.fail("not sent: an earlier turn failed")
                    add(skipped)
                break


def report_of(
    workload: str, arrival: str, progress: Progress, targets: WorkloadTargets, seconds: float
) -> LoadReport:
    """The report on the answers of a run. Workload and arrival are in words."""
    failed = [answer for answer in progress.answers if answer.error]
    done = [answer for answer in progress.answers if not answer.error]
    tokens, chunks = sum(answer.tokens for answer in done), sum(len(answer.chunks) for answer in done)
    good = sum(is_good(answer, targets) for answer in done)
    details: dict[str, str] = {}
    for answer in failed:
        details.setdefault(answer.error, answer.detail)
    return LoadReport(
        workload=workload,
        arrival=arrival,
        requests=progress.total,
        completed=len(done),
        short=sum(answer.tokens < answer.asked for answer in done),
        errors=dict(Counter(answer.error for answer in failed)),
        error_details=details,
        seconds=seconds,
        output_tokens=tokens,
        output_tokens_per_s=tokens / seconds,
        tokens_per_chunk=tokens / chunks if chunks else 0.0,
        ttft_ms=_spread([first_token_s(answer) for answer in done]),
        itl_ms=_spread([b - a for answer in done for a, b in itertools.pairwise(answer.chunks)]),
        e2e_ms=_spread([answer.ended - answer.begun for answer in done]),
        targets=targets,
        good=good,
        goodput_per_s=good / seconds,
    )


def first_token_s(answer: Answer) -> float:
    """Time to the first chunk with output; to the end if no chunk has any."""
    return (answer.chunks[0] if answer.chunks else answer.ended) - answer.begun


def is_good(answer: Answer, targets: WorkloadTargets) -> bool:
    """Whether a complete answer met both targets."""
    first = first_token_s(answer)
    last = answer.chunks[-1] - answer.begun if answer.chunks else first
    mean_gap = (last - first) / max(1, answer.tokens - 1)
    return first * 1000 <= targets.ttft_ms and mean_gap * 1000 <= targets.itl_ms


def _spread(seconds: Sequence[float]) -> Quantiles:
    mean = sum(seconds) / len(seconds) if seconds else 0.0
    p50, p95, p99 = (quantile(seconds, share) * 1000 for share in (0.5, 0.95, 0.99))
    return Quantiles(p50, p95, p99, mean * 1000)


def _tokens(generator: random.Random, count: int, load: LoadProfile) -> tuple[int, ...]:
    low = min(FIRST_TOKEN, load.vocab_size - 1)
    return tuple(generator.randrange(low, load.vocab_size) for _ in range(count))


def _mixed(generator: random.Random, length: int) -> int:
    """A log-uniform length around the given one."""
    factor: float = _SPREAD ** generator.uniform(-1, 1)
    return max(1, round(length * factor))
