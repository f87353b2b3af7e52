"""The effect of a long prompt on running answers: their inter-token times before it arrives and meanwhile.

    streams  ....|....|....|....|......|......|......|......|....|....        a bar is a token
    prompt                      ^ arrives                   ^ its first token
             <----- before ----><---------- while ---------->

Several configurations are measured alternately, so the machine's drift affects all of them alike. A ratio is
taken within one run, and the median over the rounds is reported.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.bench.offline import quantile
from octavo.bench.workloads import FIRST_TOKEN, SETTLE, Latency
from octavo.engine.stream import DeltaStream
from octavo.errors import ConfigError, RequestFailed
from octavo.params import SamplerParams
from octavo.serving.client import EngineClient
from octavo.types import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the scenario: inter-token times over all streams, in seconds."""

    configuration: str
    round_index: int
    before_p50_s: float
    before_p95_s: float
    while_p50_s: float
    while_p95_s: float
    while_max_s: float
    first_token_s: float  # of the long prompt
    tokens_while: int  # of the streams while it was computed

    @property
    def p50_ratio(self) -> float:
        """While over before."""
        return self.while_p50_s / self.before_p50_s

    @property
    def p95_ratio(self) -> float:
        """While over before."""
        return self.while_p95_s / self.before_p95_s


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians over the rounds of one configuration; ratios are medians of ratios."""

    configuration: str
    rounds: int
    before_p50_s: float
    before_p95_s: float
    while_p50_s: float
    while_p95_s: float
    while_max_s: float
    p50_ratio: float
    p95_ratio: float
    first_token_s: float


@dataclass(slots=True)
class _StreamReader:
    """One running stream and the arrival times of its tokens."""

    stream: DeltaStream
    before: int
    times: list[float] = field(default_factory=list)
    steady: asyncio.Event = field(default_factory=asyncio.Event)  # it has `before` tokens, or has ended
    stop_after: float = math.inf  # set when the long prompt has its first token

    async def read(self) -> None:
        """Until the first token after `stop_after`. Raises RequestFailed."""
        try:
            async for delta in self.stream:
                now = time.perf_counter()
                self.times.extend(now for _ in delta.tokens)
                if delta.finish is FinishReason.ERROR:
                    raise RequestFailed(delta.error)
                if len(self.times) >= self.before:
                    self.steady.set()
                if now > self.stop_after:
                    return
        finally:
            self.steady.set()
            self.stream.cancel()


async def warm_up(model: EngineClient) -> None:
    """Run one short request, so that first touches of memory are not measured."""
    params = SamplerParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    stream = await model.submit(Request(prompt=tuple(FIRST_TOKEN + i for i in range(32)), params=params))
    async for delta in stream:
        if delta.finish is FinishReason.ERROR:
            raise RequestFailed(delta.error)


async def measure(model: EngineClient, scenario: Latency, configuration: str, round_index: int) -> Run:
    """Run the scenario once. Raises RequestFailed, and ConfigError when the streams end too early."""
    generator = random.Random(f"{configuration} {round_index}")

    def tokens(count: int) -> list[int]:
        low = min(FIRST_TOKEN, model.vocab_size - 1)
        return [generator.randrange(low, model.vocab_size) for _ in range(count)]

    params = SamplerParams(temperature=0.0, ignore_eos=True)  # up to the end of the context
    readers = [
        _StreamReader(
            await model.submit(Request(prompt=tuple(tokens(scenario.own)), params=params)), scenario.before
        )
        for _ in range(scenario.streams)
    ]
    tasks = [asyncio.create_task(reader.read()) for reader in readers]
    try:
        for reader in readers:
            await reader.steady.wait()
        arrived = time.perf_counter()
        done = await _first_token(model, tokens(scenario.prompt))
        for reader in readers:
            reader.stop_after = done
        await asyncio.gather(*tasks)
    finally:
        for reader in readers:
            reader.stream.cancel()
        await asyncio.wait(tasks)
    return _run(configuration, round_index, [reader.times for reader in readers], arrived, done)


def summarise(runs: Sequence[Run]) -> Summary:
    """The medians of one configuration's runs."""

    def median(value: Callable[[Run], float]) -> float:
        return statistics.median(map(value, runs))

    return Summary(
        configuration=runs[0].configuration,
        rounds=len(runs),
        before_p50_s=median(lambda run: run.before_p50_s),
        before_p95_s=median(lambda run: run.before_p95_s),
        while_p50_s=median(lambda run: run.while_p50_s),
        while_p95_s=median(lambda run: run.while_p95_s),
        while_max_s=median(lambda run: run.while_max_s),
        p50_ratio=median(lambda run: run.p50_ratio),
        p95_ratio=median(lambda run: run.p95_ratio),
        first_token_s=median(lambda run: run.first_token_s),
    )


async def _first_token(model: EngineClient, prompt: Sequence[int]) -> float:
    """The time of the first token after a prompt."""
    params = SamplerParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    stream = await model.submit(Request(prompt=tuple(prompt), params=params))
    try:
        async for delta in stream:
            if delta.finish is FinishReason.ERROR:
                raise RequestFailed(delta.error)
            if delta.tokens:
                return time.perf_counter()
    finally:
        stream.cancel()
    raise RequestFailed("the long prompt ended without a token")


def _run(
    configuration: str, round_index: int, times: Sequence[Sequence[float]], arrived: float, done: float
) -> Run:
    """`times` by stream; `arrived` and `done` are the long prompt's."""
    if any(not own or own[-1] <= done for own in times):
        raise ConfigError(
            "the streams reached the end of the context, or of the pool, while the long prompt was computed; "
            "give a shorter --prompt or more --kv-memory"
        )
    gaps = [pair for own in times for pair in itertools.pairwise(own)]
    settled = max(own[SETTLE - 1] for own in times)
    before = [stop - start for start, stop in gaps if start >= settled and stop <= arrived]
    during = [stop - start for start, stop in gaps if stop > arrived and start < done]
    return Run(
        configuration=configuration,
        round_index=round_index,
        before_p50_s=quantile(before, 0.5),
        before_p95_s=quantile(before, 0.95),
        while_p50_s=quantile(during, 0.5),
        while_p95_s=quantile(during, 0.95),
        while_max_s=max(during),
        first_token_s=done - arrived,
        tokens_while=len(during),
    )
