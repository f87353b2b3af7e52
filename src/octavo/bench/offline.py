"""Three workloads in a closed loop, without HTTP: one thread adds requests and steps the engine.

W1: independent prompts of random tokens, C in flight: when one answer ends, the next request is sent.
W2: prompts that share a long prefix, all at once: the gain of prefix sharing.
W3: long prompts, all at once: the cost of a long context, for prefill and decode.

End-of-sequence is ignored, so every answer has the requested length. Tokens are drawn from a fixed seed and
differ between workloads, so no run finds blocks of another.

    request 1   prompt ......|.|.|.|.|.|.|.|.|.|         a bar is a token
    request 2   prompt ............|.|.|.|.|.|.|.|
                <--- prefill ----->|<-- decode -->

Prefill is the time in which at least one prompt is queued or computed; decode is the rest. Prefill speed is
the uncached prompt tokens over prefill time, decode speed the tokens of decode time over that time.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.api.llm import LLM
from octavo.bench.workloads import FIRST_TOKEN, INDEPENDENT, SHARED, OfflineOptions
from octavo.engine.outputs import EngineStats
from octavo.errors import ConfigError, RequestFailed
from octavo.params import SamplerParams
from octavo.types import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests, and how many run at once. Lengths are in tokens."""

    name: str
    num_requests: int
    prefix: int  # shared by all prompts
    own: int  # of each prompt alone
    output: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Report:
    """One run's figures; a speed is 0 if there was nothing to measure."""

    workload: Workload
    seconds: float
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int
    preemptions: int
    output_tokens_per_s: float
    tokens_per_s: float  # prompt and output
    prefill_tokens_per_s: float
    decode_tokens_per_s: float  # of all requests together
    prefill_seconds: float
    decode_seconds: float
    first_token_p50_s: float
    first_token_p95_s: float
    between_p50_s: float
    between_p95_s: float
    steps: int
    step_seconds: float  # inside steps
    plan_seconds: float  # part of it: scheduling, building batches and committing
    plan_share: float  # of the step time


@dataclass(slots=True)
class _RequestTimes:
    """The times of one request's submission and tokens, on the clock of `time.perf_counter`."""

    submitted: float
    tokens: list[float] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0, 0))

    @property
    def first_s(self) -> float:
        """Time to first token."""
        return self.tokens[0] - self.submitted

    @property
    def between_s(self) -> list[float]:
        """The times between tokens."""
        return [after - before for before, after in itertools.pairwise(self.tokens)]


def w1(num_requests: int, prompt: int, output: int, concurrency: int) -> Workload:
    """`num_requests` independent prompts, `concurrency` in flight."""
    return Workload("W1", num_requests, 0, prompt, output, concurrency)


def w2(num_requests: int, prefix: int, own: int = 32, output: int = 32) -> Workload:
    """`num_requests` prompts that share `prefix` tokens, all at once."""
    return Workload("W2", num_requests, prefix, own, output, num_requests)


def w3(prompt: int, concurrency: int, output: int = 64) -> Workload:
    """`concurrency` long prompts, all at once."""
    return Workload("W3", concurrency, 0, prompt, output, concurrency)


def workloads_of(wanted: OfflineOptions) -> list[Workload]:
    """The workloads of these options, in order; none with a shared prefix if its length is 0."""
    at_once, counts = wanted.conc or (1, 8, 32), wanted.n
    each = counts * len(at_once) if len(counts) == 1 else counts or [max(4, 2 * count) for count in at_once]
    found: list[Workload] = []
    for word in wanted.workload:
        if word == INDEPENDENT:
            pairs = zip(each, at_once, strict=True)
            found += [w1(count, wanted.inp, wanted.out, together) for count, together in pairs]
        elif word == SHARED:
            found += [w2(counts[0] if counts else 32, wanted.prefix)] if wanted.prefix else []
        else:
            found += [w3(wanted.prompt, together, wanted.long_out) for together in wanted.conc or (1, 4)]
    return found


def warm_up(llm: LLM) -> None:
    """Run one short request, so that first touches of memory are not measured."""
    prompt = [FIRST_TOKEN + i for i in range(32)]
    llm.generate([prompt], SamplerParams(max_tokens=8, temperature=0.0, ignore_eos=True))


def measure(llm: LLM, workload: Workload) -> Report:
    """Run a workload to its end. Raises ConfigError if it cannot fit the model, RequestFailed."""
    facts = llm.started.facts
    needed = workload.prefix + workload.own + workload.output
    if needed > facts.context_length:
        raise ConfigError(
            f"{workload.name} needs {needed:,} tokens for each request; "
            f"the context is {facts.context_length:,}"
        )
    prompts = prompts_of(workload, facts.vocab_size)
    params = SamplerParams(max_tokens=workload.output, temperature=0.0, ignore_eos=True)
    before = llm.engine.stats
    begun = time.perf_counter()
    timings = _run(llm, prompts, params, workload.concurrency)
    return _report(workload, timings, time.perf_counter() - begun, before, llm.engine.stats)


def prompts_of(workload: Workload, vocab_size: int) -> list[list[int]]:
    """The prompts of a workload: equal for equal workloads, otherwise different."""
    seed = f"{workload.name} {workload.num_requests} {workload.prefix} {workload.own} {workload.concurrency}"
    generator = random.Random(seed)

    def tokens(count: int) -> list[int]:
        low = min(FIRST_TOKEN, vocab_size - 1)
        return [generator.randrange(low, vocab_size) for _ in range(count)]

    shared = tokens(workload.prefix)
    return [shared + tokens(workload.own) for _ in range(workload.num_requests)]


def _run(
    llm: LLM, prompts: Sequence[list[int]], params: SamplerParams, in_flight: int
) -> list[_RequestTimes]:
    """Answer every prompt, `in_flight` at once."""
    timings: dict[int, _RequestTimes] = {}
    unsent = deque(prompts)
    while unsent or llm.num_unfinished:
        while unsent and llm.num_unfinished < in_flight:
            submitted = time.perf_counter()
            timings[llm.add_request(unsent.popleft(), params)] = _RequestTimes(submitted)
        deltas = llm.step()
        now = time.perf_counter()
        for request_id, delta in deltas:
            if delta.finish is FinishReason.ERROR:
                raise RequestFailed(delta.error)
            timing = timings[request_id]
            timing.tokens.extend(now for _ in delta.tokens)
            timing.usage = delta.usage
    return list(timings.values())


def _report(
    workload: Workload, timings: list[_RequestTimes], seconds: float, before: EngineStats, after: EngineStats
) -> Report:
    output = sum(timing.usage.num_output for timing in timings)
    prompt = sum(timing.usage.num_prompt for timing in timings)
    firsts = [timing.first_s for timing in timings]
    between = [gap for timing in timings for gap in timing.between_s]
    cached = sum(timing.usage.num_cached for timing in timings)
    prefill = merged([(timing.submitted, timing.tokens[0]) for timing in timings])
    prefill_s = sum(stop - start for start, stop in prefill)
    decode_s = max(timing.tokens[-1] for timing in timings) - prefill[0][0] - prefill_s
    # A token counts at the middle of its gap, since prefill ends exactly at the time of some tokens.
    gaps = [pair for timing in timings for pair in itertools.pairwise(timing.tokens)]
    decoded = num_outside(prefill, [(before + after) / 2 for before, after in gaps])
    step_seconds = after.step_seconds - before.step_seconds
    plan_seconds = after.schedule_seconds - before.schedule_seconds
    return Report(
        workload=workload,
        seconds=seconds,
        output_tokens=output,
        prompt_tokens=prompt,
        cached_tokens=cached,
        preemptions=sum(timing.usage.preemptions for timing in timings),
        output_tokens_per_s=output / seconds,
        tokens_per_s=(prompt + output) / seconds,
        prefill_tokens_per_s=(prompt - cached) / prefill_s,
        decode_tokens_per_s=decoded / decode_s if decoded else 0.0,
        prefill_seconds=prefill_s,
        decode_seconds=decode_s,
        first_token_p50_s=quantile(firsts, 0.5),
        first_token_p95_s=quantile(firsts, 0.95),
        between_p50_s=quantile(between, 0.5),
        between_p95_s=quantile(between, 0.95),
        steps=after.steps - before.steps,
        step_seconds=step_seconds,
        plan_seconds=plan_seconds,
        plan_share=plan_seconds / step_seconds if step_seconds else 0.0,
    )


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of half-open spans of time, as ascending spans that do not touch."""
    union: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(stop, union[-1][1]))
        else:
            union.append((start, stop))
    return union


def num_outside(union: Sequence[tuple[float, float]], times: Sequence[float]) -> int:
    """The number of times outside all spans and their ends; `union` as returned by `merged`."""
    starts = [start for start, _ in union]
    count = 0
    for at in times:
        index = bisect.bisect_right(starts, at) - 1
        count += index < 0 or at > union[index][1]
    return count


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed; 0 of no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
