"""From a plan to a result: apply the diff, run the model over the block tables, sample.

    plan --> rows.apply --> copies --> transfers begin --> batch --> hidden_states --> project --> forks
         --> sample --> result

Vocabulary rows exist only where a request asked: one for each sample, and slices of `PROMPT_SLICE` rows for
prompt logprobs, so that a long prompt's logits never exist at once. It knows the model and the bytes; it does
not know queues, names or reference counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.executor.rows import Row, Rows
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import Batch, Floats, KvShape, Ops
from octavo.kernels.prefault import PagePrefaulter
from octavo.model.decoder import hidden_states, project
from octavo.model.spec import Model
from octavo.sampling.grammars import Grammars
from octavo.sampling.guides import Guide
from octavo.sampling.logprobs import logprobs_of
from octavo.sampling.sampler import SampleFailure, Sampler, SampleRow
from octavo.types import Chunk, SampledToken, StepPlan, StepResult

PROMPT_SLICE = 64


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """Sizes of the executor's arrays; the scheduler is configured with the same ones."""

    num_blocks: int
    block_size: int
    max_rows: int
    context_length: int
    stop_ids: frozenset[int]
    kv: str = "f32"  # how K and V are held
    ready_blocks: int = 0  # whose memory is asked for at once
    fast_forward: bool = True  # tokens that a grammar forces come with the sample before them


def kv_shape(model: Model, block_size: int, kv: str = "f32") -> KvShape:
    """The shape of the model's one KV group."""
    spec = model.spec
    return KvShape(spec.num_layers, spec.num_kv_heads, spec.head_size, block_size, kv)


class Runner:
    """Owns KV bytes and rows. `run` is called by one thread at a time, with plans in order."""

    def __init__(
        self,
        model: Model,
        ops: Ops,
        config: RunnerConfig,
        transfers: TransferWorker | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self._ops = ops
        self._rows = Rows(config.max_rows, config.context_length, config.block_size, grammars)
        pool = ops.allocate_kv(kv_shape(model, config.block_size, config.kv), config.num_blocks)
        self._pool = pool
        self.readying = PagePrefaulter(pool, config.ready_blocks)
        self._transfers = transfers
        if transfers is not None:
            transfers.serve(pool.data)
        self._hidden_states = ops.prepare_step(lambda o, batch: hidden_states(o, model, pool, batch), pool)
        self._project = ops.prepare_rows(lambda o, x: project(o, model, x), model.spec.hidden_size)
        self._sampler = Sampler(model.spec.vocab_size, config.stop_ids)

    def run(self, plan: StepPlan) -> StepResult:
        """Execute one plan. One poisoned sequence fails alone; an exception means that the whole state is
        lost."""
        started = time.perf_counter()
        rows = self._rows
        rows.apply(plan)
        if plan.copies:
            sources, targets = [c.source for c in plan.copies], [c.target for c in plan.copies]
            self._ops.copy_blocks(self._pool, sources, targets)
        if plan.discarded:
            self.readying.stop()
        for first, last in plan.discarded:
            self._ops.discard_blocks(self._pool, first, last)
        if plan.transfers:  # behind the copies: a block that has moved may be on its way down already
            assert self._transfers is not None, "a plan moves blocks, and there is no tier below"
            self._transfers.begin(plan.transfers)
        if not plan.chunks:
            return StepResult(plan.step_id, {})
        planned = time.perf_counter()
        batch = self._batch(plan)
        batch_seconds = time.perf_counter() - planned
        hidden = self._hidden_states(batch)  # (R, E)
        for fork in plan.forks:
            rows.fork(fork)
        prompt_logprobs = self._prompt_logprobs(plan, hidden)
        masked = self._sampler.mask_seconds
        samples, failed = self._sample(plan, hidden)
        failures = {seq_id: failure.reason for seq_id, failure in failed.items() if failure.is_poisoned}
        dead_ends = {seq_id: failure.reason for seq_id, failure in failed.items() if not failure.is_poisoned}
        seconds = time.perf_counter() - started
        return StepResult(
            plan.step_id,
            samples,
            prompt_logprobs,
            failures,
            dead_ends,
            seconds,
            batch_seconds,
            self._sampler.mask_seconds - masked,
            sum(map(len, samples.values())) - len(samples),
            frozenset(rows[c.row].seq_id for c in plan.chunks if c.num_samples and rows[c.row].is_told)
            | frozenset(fork.child_seq_id for fork in plan.forks if rows[fork.child_row].is_told),
        )

    def reset(self) -> None:
        """Forget all rows: after a broken invariant, before a new ledger starts. The pool's bytes are not
        trusted again because no name survives, neither here nor below; no transfer is left that could still
        write to it."""
        self._rows.clear()
        if self._transfers is not None:
            self._transfers.clear()

    def close(self) -> None:
        """End the transfers that have begun."""
        self.readying.stop()
        if self._transfers is not None:
            self._transfers.close()

    def _batch(self, plan: StepPlan) -> Batch:
        chunks, rows = plan.chunks, self._rows
        for chunk in chunks:
            assert rows[chunk.row].seq_id == chunk.seq_id, "a chunk runs in another's row"
            assert chunk.stop <= rows[chunk.row].length, "a chunk runs ahead of its tokens"
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

    def _sample(
        self, plan: StepPlan, hidden: Floats
    ) -> tuple[dict[int, tuple[SampledToken, ...]], dict[int, SampleFailure]]:
        """Sample once for every chunk that ends its known tokens, and for every fork of it."""
        last_row = _last_hidden_rows(plan.chunks)
        places = [(c.row, last_row[c.row]) for c in plan.chunks if c.num_samples]
        places += [(fork.child_row, last_row[fork.parent_row]) for fork in plan.forks]
        if not places:
            return {}, {}
        samples: dict[int, tuple[SampledToken, ...]] = {}
        failed: dict[int, SampleFailure] = {}
        for (row, _), outcome in zip(places, self._outcomes(hidden, places), strict=True):
            seq_id = self._rows[row].seq_id
            if isinstance(outcome, SampleFailure):
                failed[seq_id] = outcome
                token = 0  # a plan in flight may count on a token being there; it will be dropped
            else:
                samples[seq_id] = (outcome,)
                token = outcome.token
            if self._rows[row].params.beams is None:  # else a later plan says which token it is
                self._rows.append(row, token)
            if self._rows[row].guide is not None and seq_id in samples:
                self._go_on(row, samples, failed)
        return samples, failed

    def _go_on(
        self, row: int, samples: dict[int, tuple[SampledToken, ...]], failed: dict[int, SampleFailure]
    ) -> None:
        """The row's guide takes its new token; what a grammar forces comes along (fast-forward), unless the
        client wants logprobs, which need logits. Not before the host knows that a grammar leads: a plan that
        is in flight may count on a single token."""
        entry = self._rows[row]
        assert entry.guide is not None
        (sampled,) = samples[entry.seq_id]
        why_not = entry.guide.accept(sampled.token)
        if why_not:
            del samples[entry.seq_id]
            failed[entry.seq_id] = SampleFailure(f"its grammar ended: {why_not}", False)
            return
        was_told, entry.is_told = entry.is_told, entry.is_told or entry.guide.is_constrained
        if not was_told or not self._may_forward(entry):
            return
        forced = entry.guide.forced()
        for token in forced:
            self._rows.append(row, token)
        samples[entry.seq_id] = (sampled, *map(SampledToken, forced))

    def _may_forward(self, entry: Row) -> bool:
        """Whether what is forced is what would be sampled: no logits are wanted, and nothing else forbids
        tokens, as an end token before `min_tokens`."""
        params, is_long_enough = entry.params, entry.length - entry.num_prompt >= entry.params.min_tokens
        return self.config.fast_forward and params.logprobs is None and entry.masks is None and is_long_enough

    def _outcomes(self, hidden: Floats, places: list[tuple[int, int]]) -> list[SampledToken | SampleFailure]:
        """For each row and the place of its hidden state: the token that follows. Rows that need the
        likeliest alone have no logits written, whatever stands beside them; of rows that a guide leads, those
        whose likeliest token was allowed the last time are tried so first."""
        plain = [place for place in places if self._rows[place[0]].is_plain]
        led = {place[0]: guide for place in plain if (guide := self._guide_of(place[0])) is not None}
        found = self._told_by_guides(led) if led else {}
        plain = [(row, at) for row, at in plain if row not in found]
        plain = [(row, at) for row, at in plain if row not in led or led[row].was_allowed]
        likeliest = self._likeliest(hidden, plain) if plain else {}
        found |= self._without_refused(likeliest, led) if led else likeliest
        others = [place for place in places if place[0] not in found]
        if others:
            taken, of_place = self._taken(hidden, others)
            logits = self._project(taken)
            if len(others) > len(taken):  # forks share their parent's hidden row
                logits = logits[of_place]
            rows = [self._sample_row(row) for row, _ in others]
            for (row, _), outcome in zip(others, self._sampler.sample(logits, rows), strict=True):
                found[row] = outcome
        return [found[row] for row, _ in places]

    def _guide_of(self, row: int) -> Guide | None:
        entry = self._rows[row]
        return entry.guide if entry.is_led else None

    def _told_by_guides(self, led: Mapping[int, Guide]) -> dict[int, SampledToken | SampleFailure]:
        """By row: tokens that must come, whatever the logits are."""
        with self._sampler.timed():
            only = {row: guide.only() for row, guide in led.items()}
        return {row: SampledToken(token) for row, token in only.items() if token is not None}

    def _without_refused(
        self, found: dict[int, SampledToken | SampleFailure], led: Mapping[int, Guide]
    ) -> dict[int, SampledToken | SampleFailure]:
        """Those that no guide forbids."""
        with self._sampler.timed():
            return {
                row: outcome
                for row, outcome in found.items()
                if row not in led or not isinstance(outcome, SampledToken) or led[row].allows(outcome.token)
            }

    def _likeliest(
        self, hidden: Floats, places: list[tuple[int, int]]
    ) -> dict[int, SampledToken | SampleFailure]:
        """By row. None at all where one has no numbers: the sampler says what is wrong, and with which."""
        taken, of_place = self._taken(hidden, places)
        tokens = self._project.argmax(taken)
        if tokens.min() < 0:
            return {}
        chosen = tokens[of_place].tolist()
        return {row: SampledToken(token) for (row, _), token in zip(places, chosen, strict=True)}

    def _taken(self, hidden: Floats, places: list[tuple[int, int]]) -> tuple[Floats, list[int]]:
        """The hidden rows of these places, each once, and for each place which of them is its."""
        unique = sorted({place for _, place in places})
        taken = hidden
        if len(unique) < len(hidden):
            taken = self._ops.take(hidden, np.array(unique, np.int32))
        index_of = {place: index for index, place in enumerate(unique)}
        return taken, [index_of[place] for _, place in places]

    def _sample_row(self, row: int) -> SampleRow:
        entry = self._rows[row]
        history = self._rows.history(row)
        guide = entry.guide if entry.is_led else None
        return SampleRow(
            entry.params, entry.masks, entry.seed, entry.choice, entry.num_prompt, history, guide
        )

    def _prompt_logprobs(self, plan: StepPlan, hidden: Floats) -> dict[int, tuple[SampledToken, ...]]:
        """Logprobs of prompt tokens that follow the positions [logits_from, stop) of their chunks."""
        found: dict[int, tuple[SampledToken, ...]] = {}
        first = 0
        for chunk in plan.chunks:
            entry = self._rows[chunk.row]
            count = min(chunk.stop, entry.num_prompt - 1) - chunk.logits_from
            top = entry.params.prompt_logprobs
            if count > 0 and top is not None:
                following = self._rows.tokens[
                    chunk.row, chunk.logits_from + 1 : chunk.logits_from + 1 + count
                ]
                scored: list[SampledToken] = []
                for start in range(0, count, PROMPT_SLICE):
                    part = slice(start, min(start + PROMPT_SLICE, count))
                    logits = self._project(hidden[first + part.start : first + part.stop])
                    scored += logprobs_of(logits, following[part], top)
                found[chunk.seq_id] = tuple(scored)
            first += chunk.stop - chunk.logits_from
        return found


def _last_hidden_rows(chunks: tuple[Chunk, ...]) -> dict[int, int]:
    """For each row with a chunk that has logits: the index of its last hidden row."""
    last, total = {}, 0
    for chunk in chunks:
        total += chunk.stop - chunk.logits_from
        last[chunk.row] = total - 1
    return last
