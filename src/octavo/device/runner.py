"""From a plan to a result on a device, without waiting for it.

    plan --> writes, step --(one copy)--> scatter --> block copies --> transfers begin --> hidden rows
         --> forks --> draw --> tokens into the rows, and on their way to the host --> result, behind an event

`submit` starts all of it and returns; the next plan may be started before anybody asks for the result, since
its tokens are read from the rows on the device. Rows with masks, `min_tokens`, beams or grammars are
sampled by the host's own sampler (`executor/walks.py`), which waits for their logits.

It knows rows and drawing; products and attention are an `Arithmetic`'s, and no queue, name or count is known.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo.device.arithmetic import Arithmetic, tokens_of
from octavo.device.devices import current
from octavo.device.drawing import Drawing, Drawn
from octavo.device.hidden import HostHidden
from octavo.device.moving import DeviceBlocks
from octavo.device.rows import DeviceRows, carry
from octavo.device.step import DeviceStep, StepShape, shape_of
from octavo.device.trouble import describe_trouble, is_trouble
from octavo.executor.pooling import pool_prompts
from octavo.executor.prompts import prompt_logprobs
from octavo.executor.rows import Rows
from octavo.executor.runner import RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.executor.walks import Taken, Walker
from octavo.sampling.grammars import Grammars
from octavo.sampling.sampler import Sampler
from octavo.types import SampledToken, StepPlan, StepResult

log = logging.getLogger("octavo.device")


@dataclass(slots=True)
class Pending:
    """A step that was started. `result` waits for it, and may be asked once or more."""

    runner: DeviceRunner
    plan: StepPlan
    started: float
    drawn: Drawn | None = None
    taken: Taken = field(default_factory=Taken)
    scored: dict[int, tuple[SampledToken, ...]] = field(default_factory=dict)
    pooled: dict[int, bytes] = field(default_factory=dict)
    batch_seconds: float = 0.0
    mask_seconds: float = 0.0
    trouble: str | None = None
    _result: StepResult | None = None

    def result(self) -> StepResult:
        """Of the plan. Raises DeviceLost where the device is no more."""
        if self._result is None:
            self._result = self.runner.finish(self)
        return self._result

    def exception(self) -> BaseException | None:
        """Wait; what went wrong."""
        try:
            self.result()
        except Exception as error:  # noqa: BLE001 - told to the caller
            return error
        return None


class DeviceRunner:
    """Owns rows on the device and their side on the host. One thread calls `submit`, in order of plans."""

    def __init__(
        self,
        arithmetic: Arithmetic,
        rows: DeviceRows,
        config: RunnerConfig,
        transfers: TransferWorker | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """The arithmetic's pool has one block more than the ledger knows: the dummy row's."""
        pool = arithmetic.pool
        self.config = config
        self.arithmetic = arithmetic
        self.blocks = DeviceBlocks(pool)
        self._device = pool.data.device
        self._on_device = rows
        self._rows = Rows(config.max_rows, config.context_length, config.block_size, grammars)
        self._transfers = transfers
        if transfers is not None:
            transfers.serve(self.blocks)
        self._sampler = Sampler(config.vocab_size, config.stop_ids)
        self.walker = Walker(self._rows, self._sampler, config.stop_ids, fast_forward=config.fast_forward)
        self._drawing = Drawing(self._rows, self._on_device, arithmetic, config.stop_ids)
        self._finished = 0.0  # when the last result was there

    def run(self, plan: StepPlan) -> StepResult:
        """Execute one plan and wait for it."""
        return self.submit(plan).result()

    def submit(self, plan: StepPlan) -> Pending:
        """Start one plan. A kernel that fails takes the plan's sequences with it, and no others."""
        with current(self._device), torch.inference_mode():
            return self._start(plan)

    def finish(self, pending: Pending) -> StepResult:
        """The result of a plan that was started."""
        plan, taken = pending.plan, pending.taken
        if pending.trouble is None and pending.drawn is not None:
            try:
                pending.drawn.collect(taken)
            except Exception as error:
                if not is_trouble(error):
                    raise
                pending.trouble = describe_trouble(error, self._device)
        now = time.perf_counter()
        seconds = now - max(pending.started, self._finished)
        self._finished = now
        if pending.trouble is not None:
            failed = {chunk.seq_id: pending.trouble for chunk in plan.chunks}
            failed |= {fork.child_seq_id: pending.trouble for fork in plan.forks}
            return StepResult(plan.step_id, {}, {}, failed, seconds=seconds)
        poisoned = {s: failure.reason for s, failure in taken.failed.items() if failure.is_poisoned}
        dead_ends = {s: failure.reason for s, failure in taken.failed.items() if not failure.is_poisoned}
        return StepResult(
            plan.step_id,
            taken.samples,
            pending.scored,
            poisoned,
            dead_ends,
            seconds if plan.chunks else 0.0,
            pending.batch_seconds,
            pending.mask_seconds,
            taken.num_forced,
            taken.in_grammar,
            pending.pooled,
        )

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """The pool's memory was taken when it was made."""
        return True

    def reset(self) -> None:
        """Forget all rows, and what is below."""
        self._rows.clear()
        if self._transfers is not None:
            self._transfers.clear()

    def close(self) -> None:
        """End the transfers that have begun."""
        if self._transfers is not None:
            self._transfers.close()

    def _start(self, plan: StepPlan) -> Pending:
        pending = Pending(self, plan, time.perf_counter())
        rows, on_device = self._rows, self._on_device
        rows.apply(plan)
        shape = shape_of(plan)
        writes = on_device.written_by(plan).arrays()
        extra = self.arithmetic.arrays_of(shape) if plan.chunks else ()
        count = np.array([writes[0].size], np.int32)
        carried = carry([*writes, count, *shape.arrays, *extra], self._device)
        indices, values, count_there, *arrays = carried
        pending.batch_seconds = time.perf_counter() - pending.started
        if indices.numel():
            self.arithmetic.scatter(on_device.state, indices, values, count_there)
        self._move(plan)
        if not plan.chunks:
            return pending
        for fork in plan.forks:  # before anything can fail: the next plan may count on the child
            rows.fork(fork)
            on_device.fork(fork)
        masked = self._sampler.mask_seconds
        try:
            self._compute(plan, self._step(shape, arrays), pending)
        except Exception as error:
            if not is_trouble(error):
                raise
            pending.trouble = describe_trouble(error, self._device)
        pending.mask_seconds = self._sampler.mask_seconds - masked
        return pending

    def _move(self, plan: StepPlan) -> None:
        """Copies, and transfers begin. What the plan discards stays allocated: a device's pool is one tensor,
        of which no part can be given back."""
        if plan.discarded:
            log.info(
                "%s blocks are not used any more; their memory on %s stays allocated until the server ends: "
                "the pool is one allocation",
                f"{sum(last - first for first, last in plan.discarded):,}",
                self._device,
            )
        if plan.copies:
            sources, targets = [c.source for c in plan.copies], [c.target for c in plan.copies]
            self.arithmetic.copy_blocks(sources, targets)
        if plan.transfers:  # behind the copies: a block that has moved may be on its way down already
            assert self._transfers is not None, "a plan moves blocks, and there is no tier below"
            self.blocks.fence()
            self._transfers.begin(plan.transfers)

    def _step(self, shape: StepShape, arrays: Sequence[Tensor]) -> DeviceStep:
        table_rows, starts, offsets, token_chunks, positions, logit_rows, *extra = arrays
        on_device = self._on_device
        tokens = tokens_of(table_rows, token_chunks, positions, on_device.tokens)
        return DeviceStep(
            shape,
            table_rows,
            starts,
            offsets,
            token_chunks,
            positions,
            logit_rows,
            tokens,
            on_device.tables,
            extra,
        )

    def _compute(self, plan: StepPlan, step: DeviceStep, pending: Pending) -> None:
        hidden = self.arithmetic.hidden(step)
        on_host = HostHidden(self.arithmetic, hidden)
        pending.scored = prompt_logprobs(plan, self._rows, on_host)
        pending.drawn = self._drawing.begin(plan, hidden)
        others = self._drawing.left_to_host(plan)
        if others:
            pending.taken = self.walker.sample(plan, on_host, others)
            self._drawing.write_back(plan, pending.taken, others)
        pending.pooled = pool_prompts(plan, self._rows, on_host, pending.taken)
