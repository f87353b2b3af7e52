"""From a plan to a result: apply the diff, run the model over the block tables, sample.

    plan --> rows.apply --> copies --> transfers begin --> batch --> forward --> forks --> sample --> result

Vocabulary rows exist only where a request asked: one for each sample, and slices for prompt logprobs
(`prompts.py`). It knows rows and sampling; the model and the bytes are the backend's (`forward.py`). It does
not know queues, names or reference counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from octavo.executor.forward import Forward
from octavo.executor.pooling import pool_prompts
from octavo.executor.prompts import prompt_logprobs
from octavo.executor.rows import Rows
from octavo.executor.transfers import TransferWorker
from octavo.executor.walks import Walker
from octavo.kernels.contract import Batch, HostBatch, KvShape
from octavo.model.spec import Model, ModelSpec
from octavo.sampling.grammars import Grammars
from octavo.sampling.sampler import Sampler
from octavo.types import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Sizes of the executor's arrays; the scheduler is configured with the same ones."""

    block_size: int
    max_rows: int
    context_length: int
    stop_ids: frozenset[int]
    vocab_size: int
    fast_forward: bool = True  # tokens that a grammar forces come with the sample before them


def kv_shape(model: Model, block_size: int, kv: str = "f32") -> KvShape:
    """The shape of the model's one KV group."""
    return kv_shape_of(model.spec, block_size, kv)


def kv_shape_of(spec: ModelSpec, block_size: int, kv: str = "f32") -> KvShape:
    """The same for a model that is not loaded."""
    return KvShape(spec.num_layers, spec.num_kv_heads, spec.head_size, block_size, kv)


class Runner:
    """Owns rows, and a backend's `Forward`. `run` is called by one thread at a time, with plans in order."""

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
        if transfers is not None:
            transfers.serve(forward)
        self._sampler = Sampler(config.vocab_size, config.stop_ids)
        self.walker = Walker(self._rows, self._sampler, config.stop_ids, fast_forward=config.fast_forward)

    def run(self, plan: StepPlan) -> StepResult:
        """Execute one plan. One poisoned sequence fails alone; an exception means that the whole state is
        lost."""
        started = time.perf_counter()
        rows = self._rows
        rows.apply(plan)
        if plan.copies:
            sources, targets = [c.source for c in plan.copies], [c.target for c in plan.copies]
            self.forward.copy_blocks(sources, targets)
        for first, last in plan.discarded:
            self.forward.discard_blocks(first, last)
        if plan.transfers:  # behind the copies: a block that has moved may be on its way down already
            assert self._transfers is not None, "a plan moves blocks, and there is no tier below"
            self._transfers.begin(plan.transfers)
        if not plan.chunks:
            return StepResult(plan.step_id, {})
        planned = time.perf_counter()
        batch = self._batch(plan)
        batch_seconds = time.perf_counter() - planned
        hidden = self.forward.run(batch)
        for fork in plan.forks:
            rows.fork(fork)
        scored = prompt_logprobs(plan, rows, hidden)
        masked = self._sampler.mask_seconds
        taken = self.walker.sample(plan, hidden)
        pooled = pool_prompts(plan, rows, hidden, taken)
        failures = {seq_id: failure.reason for seq_id, failure in taken.failed.items() if failure.is_poisoned}
        dead_ends = {
            seq_id: failure.reason for seq_id, failure in taken.failed.items() if not failure.is_poisoned
        }
        seconds = time.perf_counter() - started
        return StepResult(
            plan.step_id,
            taken.samples,
            scored,
            failures,
            dead_ends,
            seconds,
            batch_seconds,
            self._sampler.mask_seconds - masked,
            taken.num_forced,
            taken.in_grammar,
            pooled,
        )

    def wait_ready(self, timeout_s: float | None = None) -> bool:
        """Until the memory that was asked for at once is there, or so long; whether it is."""
        return self.forward.wait_ready(timeout_s)

    def reset(self) -> None:
        """Forget all rows: after a broken invariant, before a new ledger starts. The pool's bytes are not
        trusted again because no name survives, neither here nor below; no transfer is left that could still
        write to it."""
        self._rows.clear()
        if self._transfers is not None:
            self._transfers.clear()

    def close(self) -> None:
        """End the transfers that have begun."""
        self.forward.close()
        if self._transfers is not None:
            self._transfers.close()

    def _batch(self, plan: StepPlan) -> HostBatch:
        chunks, rows = plan.chunks, self._rows
        for chunk in chunks:
            assert rows[chunk.row].seq_id == chunk.seq_id, "a chunk runs in another's row"
            assert chunk.stop <= rows[chunk.row].length + len(chunk.drafts), (
                "a chunk runs ahead of its tokens"
            )
            if chunk.drafts:
                rows.tokens[chunk.row, chunk.stop - len(chunk.drafts) : chunk.stop] = chunk.drafts
        about = np.array([(c.row, c.start, c.length, c.logits_from) for c in chunks], np.int32)  # (C, 4)
        row, starts, lengths, logits_from = np.ascontiguousarray(about.T)
        offsets = np.zeros(len(chunks) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        chunk_of = np.repeat(np.arange(len(chunks)), lengths)  # (T,)
        positions = np.arange(offsets[-1], dtype=np.int32) + (starts - offsets[:-1])[chunk_of]
        tokens = rows.tokens[row[chunk_of], positions]
        tables = rows.tables[row, : -(-int((starts + lengths).max()) // self.config.block_size)]
        logit_rows = np.flatnonzero(positions >= logits_from[chunk_of]).astype(np.int32)
        return Batch(tokens, positions, starts, offsets, tables, logit_rows)
