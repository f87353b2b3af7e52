"""The effect of a flooding tenant on a quiet one: alone, with quotas and fair turns, and first come first
served.

    flood   |||||||||||||||||||||||||||||||||||||||   many clients, each sends its next request at once
    quiet      |      |      |      |      |          one client with occasional requests
               <-> time to first token

Requests have the same shape in each situation, on one served model. Step times are the times between two
tokens of the flood's running answers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from octavo.bench.offline import FIRST_TOKEN, quantile
from octavo.errors import RequestFailed
from octavo.memory.quota import TenantPolicy
from octavo.params import SamplerParams
from octavo.scheduler.sequence import State
from octavo.serving.client import EngineClient
from octavo.types import FinishReason, Request

QUIET, FLOOD = "quiet", "flood"
_PAUSE_S = 0.05
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Scenario:
    """Lengths are in tokens."""

    clients: int = 48  # of the flood
    requests: int = 40  # of the quiet tenant
    prompt: int = 128
    flood_output: int = 64
    quiet_output: int = 8


@dataclass(slots=True)
class SituationResult:
    """The measurements of one situation."""

    situation: str
    first_token_s: list[float] = field(default_factory=list)  # of the quiet tenant's requests
    admitted_steps: list[int] = field(default_factory=list)  # steps until one held its blocks
    between_s: list[float] = field(default_factory=list)  # of the flood's tokens
    flood_tokens: int = 0
    flood_blocks: int = 0  # the most in any sample
    flood_maximum: int | None = None
    seconds: float = 0.0

    @property
    def first_token_p95_s(self) -> float:
        """The quiet tenant's time to first token."""
        return quantile(sorted(self.first_token_s), 0.95)

    @property
    def step_p95_s(self) -> float:
        """The flood's time between tokens; 0 if there was no flood."""
        return quantile(sorted(self.between_s), 0.95) if self.between_s else 0.0


def bound_s(alone: SituationResult, flooded: SituationResult) -> float:
    """The bound of the quiet tenant's wait: 1.5 times that alone, and two steps."""
    return 1.5 * alone.first_token_p95_s + 2.0 * flooded.step_p95_s


def policies(llm: EngineClient, scenario: Scenario) -> list[TenantPolicy]:
    """The quiet tenant's guarantee holds two of its requests; the flood's maximum is the rest."""
    pool = llm.engine.scheduler.ledger
    needed = -(-(scenario.prompt + scenario.quiet_output) // pool.block_size)
    guaranteed = min(2 * needed, pool.pool.num_blocks // 2)
    return [
        TenantPolicy(QUIET, guaranteed=guaranteed),
        TenantPolicy(FLOOD, maximum=pool.pool.num_blocks - guaranteed),
    ]


async def measure(llm: EngineClient, scenario: Scenario) -> list[SituationResult]:
    """Measure alone, flooded with tenants, and flooded without. Raises RequestFailed."""
    bounds = policies(llm, scenario)
    found = [await _situation(llm, scenario, "alone", flood="", quiet="")]
    await llm.control.set_tenants(bounds)
    found.append(await _situation(llm, scenario, "flooded, tenants", flood=FLOOD, quiet=QUIET))
    found[-1].flood_maximum = bounds[1].maximum
    await llm.control.set_tenants(())
    few = replace(scenario, requests=max(4, scenario.requests // 8))  # each waits for all the others
    found.append(await _situation(llm, few, "flooded, first come", flood="all", quiet="all"))
    return found


async def _situation(
    llm: EngineClient, scenario: Scenario, name: str, *, flood: str, quiet: str
) -> SituationResult:
    found, generator = SituationResult(name), random.Random(name)
    started = time.perf_counter()
    clients = [
        asyncio.create_task(_flood(llm, scenario, flood, generator, found))
        for _ in range(scenario.clients if flood else 0)
    ]
    watch = asyncio.create_task(_watch(llm, flood, found))
    try:
        if clients:
            await _until_full(llm)
        for _ in range(scenario.requests):
            await asyncio.sleep(_PAUSE_S)
            await _quiet(llm, scenario, quiet, generator, found)
    finally:
        for task in (*clients, watch):
            task.cancel()
        await asyncio.gather(*clients, watch, return_exceptions=True)
    found.seconds = time.perf_counter() - started
    while await llm.control.requests():
        await asyncio.sleep(_LOOK_S)
    return found


async def _until_full(llm: EngineClient) -> None:
    """Wait until the flood holds as many blocks as it can."""
    for _ in range(100):
        await asyncio.sleep(_PAUSE_S)
        if (await llm.stats()).waiting > 0:
            break
    await asyncio.sleep(1.0)


async def _flood(
    llm: EngineClient, scenario: Scenario, tenant: str, generator: random.Random, found: SituationResult
) -> None:
    """One client of the flood: requests without a pause."""
    while True:
        prompt = tuple(_tokens(llm, scenario.prompt, generator))
        stream = await llm.submit(
            Request(prompt=prompt, params=_params(scenario.flood_output), tenant=tenant)
        )
        try:
            last = None
            async for delta in stream:
                now = time.perf_counter()
                found.flood_tokens += len(delta.tokens)
                if last is not None and delta.tokens:
                    found.between_s.append(now - last)
                last = now if delta.tokens else last
        finally:
            stream.cancel()


async def _quiet(
    llm: EngineClient, scenario: Scenario, tenant: str, generator: random.Random, found: SituationResult
) -> None:
    """Run one request of the quiet tenant."""
    prompt = tuple(_tokens(llm, scenario.prompt, generator))
    submitted = time.perf_counter()
    stream = await llm.submit(Request(prompt=prompt, params=_params(scenario.quiet_output), tenant=tenant))
    admission = asyncio.create_task(_steps_until_admitted(llm, stream.request_id))
    try:
        is_first = True
        async for delta in stream:
            if delta.tokens and is_first:
                found.first_token_s.append(time.perf_counter() - submitted)
                is_first = False
            if delta.finish is FinishReason.ERROR:
                raise RequestFailed(delta.error)
        found.admitted_steps.append(await admission)
    finally:
        admission.cancel()
        stream.cancel()


async def _steps_until_admitted(llm: EngineClient, request_id: int) -> int:
    """Steps until the request is admitted, checked once in each."""
    steps = 0
    while (view := await llm.control.request(request_id)) is not None:
        if all(sequence.state is not State.WAITING for sequence in view.sequences):
            break
        steps += 1
    return steps


async def _watch(llm: EngineClient, tenant: str, found: SituationResult) -> None:
    """Sample the number of blocks that the flood holds."""
    while True:
        totals = (await llm.control.kv()).totals
        uses = () if totals is None else totals.tenants
        found.flood_blocks = max([found.flood_blocks, *(u.blocks_held for u in uses if u.name == tenant)])
        await asyncio.sleep(_LOOK_S)


def _tokens(llm: EngineClient, count: int, generator: random.Random) -> Sequence[int]:
    low = min(FIRST_TOKEN, llm.vocab_size - 1)
    return [generator.randrange(low, llm.vocab_size) for _ in range(count)]


def _params(output: int) -> SamplerParams:
    return SamplerParams(max_tokens=output, temperature=0.0, ignore_eos=True)
