"""From a plan to a result: apply the diff, run the model over the block tables, sample.

    plan --> rows.apply --> prepare --> copies --> transfers begin --> forks --> forward --> sample --> result

`submit` starts a plan and `finish` waits for its result. On a CPU all work is done when `submit` returns. On
a device the next plan may start before the caller reads the result, because its tokens are read from the rows
there. Logits are computed only where needed: one row for each sample, and slices for prompt logprobs, so a
long prompt's logits never exist at once. The runner knows rows and sampling; the model and the bytes are the
backend's (`forward.py`). It does not know queues, names or reference counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from octavo.executor.cold_parts import ColdPart
from octavo.executor.draws import SamplingResult, draws_of
from octavo.executor.forward import ColdReach, Forward, Trouble
from octavo.executor.pooling import pool_prompts
from octavo.executor.rows import Rows
from octavo.executor.transfers import TransferWorker
from octavo.executor.walks import TokenSampler
from octavo.kernels.contract import KvShape
from octavo.model.spec import Model, ModelSpec
from octavo.sampling.grammars import Grammars
from octavo.sampling.logprobs import logprobs_of
from octavo.sampling.sampler import Sampler
from octavo.types import RankState, SampledToken, StepPlan, StepResult, StepWay

PROMPT_SLICE = 64


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Sizes of the executor's arrays; the scheduler has the same ones."""

    block_size: int
    max_rows: int
    context_length: int
    stop_ids: frozenset[int]
    vocab_size: int
    fast_forward: bool = True  # tokens that a grammar forces are appended to the sample before them


def kv_shape(model: Model, block_size: int, kv: str = "f32") -> KvShape:
    """The shape of the model's one KV group."""
    return kv_shape_of(model.spec, block_size, kv)


def kv_shape_of(spec: ModelSpec, block_size: int, kv: str = "f32") -> KvShape:
    """The KV shape of a model that is not loaded."""
    return KvShape(spec.num_layers, spec.num_kv_heads, spec.head_size, block_size, kv)


@dataclass(slots=True)
class PendingStep:
    """A plan that was started. `result` waits for it, and may be called repeatedly."""

    runner: Runner
    plan: StepPlan
    started: float
    taken: SamplingResult = field(default_factory=SamplingResult)
    collect: Callable[[SamplingResult], None] | None = None  # waits for the device's draws and adds them
    scored: dict[int, tuple[SampledToken, ...]] = field(default_factory=dict)
    pooled: dict[int, bytes] = field(default_factory=dict)
    batch_seconds: float = 0.0
    mask_seconds: float = 0.0
    way: StepWay | None = None
    cold: ColdPart | None = None
    trouble: Trouble | None = None  # why its sequences fail, or must be computed in smaller steps
    _result: StepResult | None = None

    def result(self) -> StepResult:
        """Wait for the plan's result. Raises DeviceLost if the device is lost."""
        if self._result is None:
            self._result = self.runner.finish(self)
        return self._result

    def exception(self) -> BaseException | None:
        """Wait; what went wrong."""
        try:
            self.result()
        except Exception as error:  # noqa: BLE001 - handed to the caller
            return error
        return None


class Runner:
    """Owns rows, and a backend's `Forward`. Calls come from one thread at a time, with plans in order."""

    def __init__(
        self,
        forward: Forward,
        config: RunnerConfig,
        transfers: TransferWorker | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.config = config
        self.forward = forward
        self._rows = Rows(config.max_rows, config.context_length, config.block_size, grammars)
        self._transfers = transfers
        self.cold_reach = ColdReach()
        if transfers is not None:
            memory = transfers.slot_memory(forward.anchor())
            transfers.serve(forward.blocks)
            self.cold_reach = forward.read_cold_from(memory)
        self._sampler = Sampler(config.vocab_size, config.stop_ids)
        self.walker = TokenSampler(
            self._rows, self._sampler, config.stop_ids, fast_forward=config.fast_forward
        )
        self._finished = 0.0  # time of the last result

    def run(self, plan: StepPlan) -> StepResult:
        """Run one plan and wait for it. A sequence with bad numbers fails alone; an exception means that the
        whole state is lost."""
        return self.submit(plan).result()

    def submit(self, plan: StepPlan) -> PendingStep:
        """Start one plan. A device's error fails the plan's sequences, and no others."""
        with self.forward.active():
            return self._start(plan)

    def finish(self, step: PendingStep) -> StepResult:
        """The result of a plan that was started."""
        plan, taken = step.plan, step.taken
        if step.collect is not None and step.trouble is None:
            with self._record_trouble(step):
                step.collect(taken)
        if plan.chunks:
            self.forward.finish()
        now = time.perf_counter()
        seconds = now - max(step.started, self._finished)
        self._finished = now
        if step.way is StepWay.FIRST:
            seconds = 0.0
        if step.trouble is not None:
            text = step.trouble.text
            if step.trouble.is_shortage:
                return StepResult(plan.step_id, {}, way=step.way, too_large=text)
            failed = {chunk.seq_id: text for chunk in plan.chunks}
            failed |= {fork.child_seq_id: text for fork in plan.forks}
            return StepResult(plan.step_id, {}, {}, failed, seconds=seconds, way=step.way)
        cold = step.cold
        poisoned = {s: failure.reason for s, failure in taken.failed.items() if failure.is_poisoned}
        dead_ends = {s: failure.reason for s, failure in taken.failed.items() if not failure.is_poisoned}
        return StepResult(
            plan.step_id,
            taken.samples,
            step.scored,
            poisoned,
            dead_ends,
            seconds if plan.chunks else 0.0,
            step.batch_seconds,
            step.mask_seconds,
            taken.num_forced,
            taken.in_grammar,
            step.pooled,
            step.way,
            unreadable={cold.seq_id: cold.unreadable} if cold is not None and cold.unreadable else {},
            cold_seconds=0.0 if cold is None else cold.seconds,
        )

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the memory requested at the start is there, or until the timeout; whether it is."""
        return self.forward.wait_ready(timeout_s)

    def warm(self, step_tokens: int, progress: Callable[[str], None]) -> None:
        """Prepare what steps of up to so many tokens need. Raises ConfigError where memory is short."""
        self.forward.warm(step_tokens, progress)

    def warm_more(self) -> bool:
        """Prepare one more piece that is needed less often; False: nothing is left."""
        return self.forward.warm_more()

    def check(self) -> None:
        """Raise DeviceLost if a device was lost while nothing runs."""
        self.forward.check()

    def ranks(self) -> tuple[RankState, ...]:
        """The devices that compute the model together, if there are several."""
        return self.forward.ranks()

    def reset(self) -> None:
        """Drop all rows: after a broken invariant, before a new ledger starts. No name survives in any tier,
        so the pool's bytes are not used again, and no transfer is left that could still write to it."""
        self._rows.clear()
        if self._transfers is not None:
            self._transfers.clear()

    def close(self) -> None:
        """End the transfers that have begun."""
        if self._transfers is not None:
            self._transfers.drain()
        self.forward.close()
        if self._transfers is not None:
            self._transfers.close()

    def _start(self, plan: StepPlan) -> PendingStep:
        step = PendingStep(self, plan, time.perf_counter())
        self._rows.apply(plan)
        applied = time.perf_counter()
        self.forward.prepare(plan, self._rows)
        prepared = time.perf_counter()
        self._move(plan)
        if not plan.chunks:
            return step
        step.batch_seconds = prepared - applied
        for fork in plan.forks:  # before anything can fail: the next plan may use the child
            self._rows.fork(fork)
            self.forward.fork(fork)
        masked = self._sampler.mask_seconds
        with self._record_trouble(step):
            self.forward.run()
            step.way, step.cold = self.forward.way(), self.forward.cold_part()
            self._sample(step)
        step.mask_seconds = self._sampler.mask_seconds - masked
        return step

    def _move(self, plan: StepPlan) -> None:
        """Copy blocks, then begin transfers."""
        if plan.copies:
            sources, targets = [c.source for c in plan.copies], [c.target for c in plan.copies]
            self.forward.copy_blocks(sources, targets)
        for first, last in plan.discarded:
            self.forward.discard_blocks(first, last)
        if plan.transfers:  # after the copies: a block that was copied may be stored at once
            assert self._transfers is not None, "a plan moves blocks, and there is no offload tier"
            self.forward.blocks.fence()
            self._transfers.begin(plan.transfers)

    def _sample(self, step: PendingStep) -> None:
        """After the step has run: logprobs of prompts, tokens, embeddings."""
        plan, forward = step.plan, self.forward
        step.scored = prompt_logprobs(plan, self._rows, forward)
        drawn = forward.draw(draws_of(plan, self._rows))
        step.collect = drawn.collect
        if drawn.left:
            step.taken = self.walker.sample(drawn.left, forward)
            forward.append(drawn.left, step.taken)
        step.pooled = pool_prompts(plan, self._rows, forward, step.taken)

    @contextmanager
    def _record_trouble(self, step: PendingStep) -> Iterator[None]:
        """Record an error of the device as the step's trouble."""
        try:
            yield
        except Exception as error:
            step.trouble = self.forward.describe_trouble(error)
            if step.trouble is None:
                raise
            for chunk in step.plan.chunks:
                self._rows[chunk.row].has_missed = True


def prompt_logprobs(plan: StepPlan, rows: Rows, forward: Forward) -> dict[int, tuple[SampledToken, ...]]:
    """Logprobs of prompt tokens after the positions [logits_from, stop) of their chunks, by sequence."""
    found: dict[int, tuple[SampledToken, ...]] = {}
    first = 0
    for chunk in plan.ended:
        entry = rows[chunk.row]
        count = min(chunk.stop, entry.num_prompt - 1) - chunk.logits_from
        top = entry.params.prompt_logprobs
        if count > 0 and top is not None:
            following = rows.tokens[chunk.row, chunk.logits_from + 1 : chunk.logits_from + 1 + count]
            scored: list[SampledToken] = []
            for start in range(0, count, PROMPT_SLICE):
                stop = min(start + PROMPT_SLICE, count)
                logits = forward.logits(range(first + start, first + stop))
                scored += logprobs_of(logits, following[start:stop], top)
            found[chunk.seq_id] = tuple(scored)
        first += chunk.stop - chunk.logits_from
    return found
