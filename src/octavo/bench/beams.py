"""The blocks that beams of one search share, on the real engine and a real model: the model decides how soon
beams diverge and which of them survive.

Prompts are slices of a text (`text.py`). Lengths of prompts and outputs come from a trace; no output ends
early. Blocks are counted as in `memory.sharing`: at every step the entries of all tables against the held
blocks. The mean is over all steps, because so few searches never fill the memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from octavo.bench.lengths import Trace
from octavo.bench.memory import Sharing
from octavo.bench.text import sample_text
from octavo.bench.workloads import Memory
from octavo.config import StartOptions
from octavo.engine.core import Engine
from octavo.executor.executor import Executor, PendingResult
from octavo.params import BeamParams, SamplerParams
from octavo.serving.start import build_engine
from octavo.types import Request, StepPlan

BEAM_WIDTHS = (2, 4, 6)
_MAX_ROWS = 96


class _WatchedExecutor:
    """An executor that calls `look` before each plan: its blocks are reserved, and no sequence has ended."""

    def __init__(self, inner: Executor, look: Callable[[], None]) -> None:
        self._inner = inner
        self._look = look

    def submit(self, plan: StepPlan) -> PendingResult:
        self._look()
        return self._inner.submit(plan)

    def close(self) -> None:
        self._inner.close()


def measure_beams(
    model: str | None,
    traces: Sequence[Trace],
    settings: Memory,
    show: Callable[[str], None] = lambda text: None,
) -> Iterator[Sharing]:
    """A row for each trace and width, as soon as it is measured. Raises ConfigError, ModelError,
    RequestTooLarge."""
    options = StartOptions(
        block_size=settings.block_size,
        context_length=settings.max_length,
        max_seqs=_MAX_ROWS,
        prefix_caching=False,  # only beams share blocks
        pace=False,
    )
    started = build_engine(model, options, show)
    tokens = started.loaded.tokenizer.encode(sample_text(None).text)
    for trace in traces:
        for width in BEAM_WIDTHS:
            show(f"{trace.name}: {len(trace.jobs):,} searches with {width} beams ...")
            requests = searches(trace, width, tokens, settings.seed)
            yield beam_sharing(trace.name, width, requests, started.engine)


def searches(trace: Trace, width: int, tokens: Sequence[int], seed: int) -> list[Request]:
    """A search for each of the trace's lengths, with a random slice of `tokens` as its prompt. Arrival times
    are ignored."""
    generator, found = random.Random(f"searches {seed}"), []
    for request_id, job in enumerate(trace.jobs):
        start = generator.randrange(max(1, len(tokens) - job.prompt))
        params = SamplerParams(temperature=0.0, ignore_eos=True, beams=BeamParams(width))
        found.append(
            Request(
                request_id,
                tuple(tokens[start : start + job.prompt]),
                params,
                max_tokens=job.output,
                seed=0,
                n=width,
            )
        )
    return found


def beam_sharing(trace: str, width: int, requests: Sequence[Request], engine: Engine) -> Sharing:
    """Serve the searches, all submitted at the start, and count blocks at every step."""
    saved: list[float] = []
    scheduler = engine.scheduler
    steps_before, preemptions_before = engine.stats.steps, scheduler.live.num_preemptions

    def look() -> None:
        listed = sum(len(table) for table in scheduler.ledger.holders)
        saved.append((listed - scheduler.ledger.counts().held) / listed)

    plain, engine.executor = engine.executor, _WatchedExecutor(engine.executor, look)
    try:
        for request in requests:
            scheduler.submit(request)
        while engine.has_work:
            engine.step()
    finally:
        engine.executor = plain
    return Sharing(
        trace,
        "beam search",
        width,
        len(requests),
        sum(saved) / len(saved),
        engine.stats.steps - steps_before,
        scheduler.live.num_preemptions - preemptions_before,
    )
