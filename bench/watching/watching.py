"""The cost of the live map's stream, measured in two ways.

    drawn      a real ledger, tier and scheduler of many blocks and requests, stepped by this module: tokens
               are synthetic and transfers instantaneous; everything else is the production code. Glimpses and
               frames are timed one by one, at the feed's rate on a virtual clock with steps of `step_s`.
    served     a server process under load, alternately with a reader of its stream, in its own process, and
               without: the effect on the clients.

It does not know how frames are written: `Writer` is given.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bench.sessions.sessions import serving

from octavo.bench.endpoint import Client, Endpoint
from octavo.bench.load import Arrival, LoadReport, apply
from octavo.bench.offline import quantile
from octavo.bench.workloads import LoadProfile, WorkloadTargets
from octavo.engine.port import inspector_of
from octavo.errors import ConfigError, RequestFailed
from octavo.inspect.views import Glimpse
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.memory.tiers import OffloadTier
from octavo.params import SamplerParams
from octavo.scheduler.scheduler import Scheduler
from octavo.step.context import SchedulerConfig
from octavo.types import Move, Request, SampledToken, StepPlan, StepResult, TransferDone

BLOCK = 16
_TARGETS = WorkloadTargets(1000.0, 100.0)  # no figure of this report depends on them
_FRAMES_BEFORE_MEASURING = 8
_PAUSE_MAX_S = 1.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A busy pool. All but `streams` of the requests wait; what they do not hold is cached and offloaded."""

    blocks: int = 100_000
    requests: int = 200
    streams: int = 64
    prompt: int = 512
    frames: int = 100  # measured
    step_s: float = 0.05

    def __post_init__(self) -> None:
        if self.blocks < self.blocks_needed:
            raise ConfigError(
                f"--blocks is {self.blocks:,}; allowed: {self.blocks_needed:,} or more, which streams fill"
            )

    @property
    def output(self) -> int:
        """Tokens of an answer: none ends during the measurement, because `draw` bounds the feed's pauses to
        `_PAUSE_MAX_S`."""
        return (
            math.ceil((self.frames + _FRAMES_BEFORE_MEASURING + 1) * 1.1 * _PAUSE_MAX_S / self.step_s)
            + self.prompt
        )

    @property
    def blocks_needed(self) -> int:
        """Blocks for all streams without preemption."""
        return self.streams * ((self.prompt + self.output) // BLOCK + 2)


@dataclass(frozen=True, slots=True)
class FeedCost:
    """The cost of a glimpse, and the stream's figures. Times are quantiles over the frames."""

    blocks: int
    requests: int
    streams: int
    glimpse_ms: float  # on the engine's thread
    glimpse_p95_ms: float
    frame_ms: float  # to compute and write the changes
    frame_p95_ms: float
    snapshot_bytes: int
    frame_bytes: float  # mean
    frames_per_s: float
    bytes_per_s: float
    blocks_per_s: float  # taken by the streams


@dataclass(frozen=True, slots=True)
class ReaderCounts:
    """The counts of a reader of the stream."""

    frames: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Round:
    """One run without a reader and one with."""

    alone: LoadReport
    watched: LoadReport
    read: ReaderCounts

    @property
    def ratio(self) -> float:
        """Tokens a second with a reader over those without."""
        return self.watched.output_tokens_per_s / self.alone.output_tokens_per_s


class Writer(Protocol):
    """Writes glimpses as frames."""

    number: int

    def write(self, glimpse: Glimpse, others: Mapping[str, object]) -> bool:
        """Write a glimpse as a frame. Returns False if nothing has changed."""

    def frame_after(self, number: int) -> bytes:
        """The frame for a reader of that one."""


class BusyScheduler:
    """The scene, advanced step by step."""

    def __init__(self, scene: Scene) -> None:
        config = SchedulerConfig(
            scene.streams, 8192, scene.requests, context_length=2**20, pace=False, bytes_per_block=368_640
        )
        ledger = Ledger(scene.blocks, BLOCK)
        tier = OffloadTier(2 * scene.blocks)
        self.scheduler = Scheduler(ledger, config, lambda tenant: root_name(tenant.encode()), tier)
        self.steps = 0
        self._step_s = scene.step_s
        _fill(ledger)
        tokens = 100
        for request_id in range(1, scene.requests + 1):
            prompt = tuple(range(tokens, tokens + scene.prompt))
            tokens += scene.prompt
            params = SamplerParams(ignore_eos=True)
            self.scheduler.submit(Request(request_id, prompt, params, scene.output, seed=0))

    def step(self) -> None:
        """Run one step of all streams, and finish its transfers."""
        now = self.steps * self._step_s
        plan = self.scheduler.schedule(now)
        assert plan is not None, "the scene has ended"
        self.scheduler.commit(plan, _synthetic(plan), now)
        for transfer in plan.transfers:
            if transfer.move is not Move.FORGET:
                self.scheduler.transfers.finish(TransferDone(transfer.transfer_id, True, 0.001))
        self.steps += 1


def draw(
    scene: Scene,
    writer: Writer,
    others: Callable[[int], Mapping[str, object]],
    pause_s: Callable[[float], float],
    show: Callable[[str], None],
) -> FeedCost:
    """Run the scene with a feed. `others(steps)`: the feed's other fields after so many steps; `pause_s(s)`:
    the feed's pause after a frame that took `s`."""
    show(f"a ledger of {scene.blocks:,} blocks and {scene.requests} requests is made")
    busy = BusyScheduler(scene)
    glimpses, frames, sizes = list[float](), list[float](), list[int]()
    offloaded_from, clock, started, taken = 0, 0.0, 0.0, 0
    for index in range(_FRAMES_BEFORE_MEASURING + scene.frames):
        while busy.steps * scene.step_s <= clock:
            busy.step()
        before = time.perf_counter()
        glimpse = inspector_of(busy.scheduler).glimpse(clock, offloaded_from)
        between = time.perf_counter()
        number, offloaded_from = writer.number, glimpse.next_offloaded_from
        writer.write(glimpse, others(busy.steps))
        found = time.perf_counter()
        frame = writer.frame_after(number)
        spent_s = time.perf_counter() - between
        clock += min(pause_s(found - between), _PAUSE_MAX_S) + spent_s
        if index < _FRAMES_BEFORE_MEASURING:
            started, taken = clock, busy.steps
            continue
        glimpses.append((between - before) * 1000)
        frames.append(spent_s * 1000)
        sizes.append(len(frame))
        show(f"{len(sizes)} of {scene.frames} frames")
    seconds = clock - started
    return FeedCost(
        scene.blocks,
        scene.requests,
        scene.streams,
        quantile(glimpses, 0.5),
        quantile(glimpses, 0.95),
        quantile(frames, 0.5),
        quantile(frames, 0.95),
        len(writer.frame_after(0)),
        sum(sizes) / len(sizes),
        len(sizes) / seconds,
        sum(sizes) / seconds,
        (busy.steps - taken) * scene.streams / BLOCK / seconds,
    )


def serve(
    words: list[str], load: LoadProfile, concurrency: int, rounds: int, show: Callable[[str], None]
) -> Iterator[Round]:
    """Load a server, each round once with a reader of the stream and once without, in alternating order.
    `words` are options of `octavo serve`. Raises RequestFailed."""
    show("starting a server")
    with serving(words) as server:
        run = 0

        def measure(text: str) -> LoadReport:
            nonlocal run
            run += 1
            own = replace(load, seed=load.seed + run)  # prompts of an earlier run would be cached
            return asyncio.run(
                _load(server.url, own, concurrency, lambda progress: show(f"{text}: {progress}"))
            )

        measure("warming up")
        for index in range(rounds):
            name = f"round {index + 1} of {rounds}"
            alone = measure(f"{name}, alone") if index % 2 == 0 else None
            with reading(server.url) as read:
                watched = measure(f"{name}, watched")
            alone = alone or measure(f"{name}, alone")
            yield Round(alone, watched, read[0])


@contextmanager
def reading(url: str) -> Iterator[list[ReaderCounts]]:
    """A reader process that has received its first frame; at the end of the block its counts are in the
    list."""
    command = [sys.executable, str(Path(__file__).with_name("reader.py")), url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    found: list[ReaderCounts] = []
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "reading\n":
            raise RequestFailed(f"{url} has no live map; try /v1/kv/watch by hand")
        yield found
        output, _ = process.communicate("")
        found.append(ReaderCounts(**json.loads(output)))
    finally:
        process.kill()
        process.wait()


async def _load(url: str, load: LoadProfile, concurrency: int, show: Callable[[str], None]) -> LoadReport:
    async with Client(Endpoint(f"{url}/v1")) as client:
        report = await apply(client, load, 2 * concurrency, Arrival(concurrency), _TARGETS, show)
    if report.completed < report.requests:
        raise RequestFailed(f"answers failed: {report.error_details}")
    return report


def _fill(ledger: Ledger) -> None:
    """Cache every block under a name."""
    table = ledger.open(Holder(HolderKind.SEQUENCE))
    ledger.take(table, ledger.pool.num_blocks)
    names = [root_name(index.to_bytes(4, "little")) for index in range(ledger.pool.num_blocks)]
    ledger.publish(table, names, len(names) * ledger.block_size)
    ledger.close(table)


def _synthetic(plan: StepPlan) -> StepResult:
    """A result in which every sample is token 7."""
    samples = {chunk.seq_id: (SampledToken(7),) for chunk in plan.chunks if chunk.num_samples}
    return StepResult(plan.step_id, samples)
