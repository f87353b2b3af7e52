"""The loss of quality from storing weights and KV in fewer bits: perplexity, and the divergence of the
next-token distribution from that of float32.

    tokens   |  chunk 0: 512  |  chunk 1: 512  |  ...         each chunk is a sequence of its own
             |....++++++++++++|                               +: scored; . : context only

The windows are those of llama.cpp's `llama-perplexity`, so the figures are comparable: chunks of 512 tokens,
the first replaced by a begin token if the model has one, and the 255 tokens after the middle scored. Each
chunk runs through all choices before the next one, so the machine's drift affects their speeds alike. Logits
are compared in float64.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo import _native
from octavo.bench.offline import quantile
from octavo.engine.available import available_cores
from octavo.errors import ConfigError
from octavo.executor.runner import kv_shape
from octavo.kernels.contract import Batch, Floats, HostBatch, Ints, Ops
from octavo.kernels.native_ops import NativeOps
from octavo.model.decoder import hidden_states, project
from octavo.model.hub.paths import resolve
from octavo.model.loader import LoadedModel, load_model
from octavo.model.spec import Model
from octavo.units import blocks_for

CHUNK = 512
SCORED_FROM = CHUNK // 2
NUM_SCORED = CHUNK - 1 - SCORED_FROM
_BLOCK_SIZE = 16
_SLICE_ROWS = 64  # rows of logits that are float64 at once

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StorageChoice:
    """The kinds of weights and KV, as values of the settings."""

    weights: str
    kv: str = "f32"


BASE = StorageChoice("f32", "f32")


@dataclass(frozen=True, slots=True)
class Quality:
    """One choice's figures over all scored tokens; divergences are in nats, from BASE."""

    weights: str
    kv: str
    chunks: int
    scored_tokens: int
    perplexity: float
    divergence_mean: float
    divergence_error: float  # standard error of the mean
    divergence_p99: float
    top1_agreement: float  # share of tokens whose likeliest successor is BASE's
    prompt_tokens_per_s: float
    weight_bytes: int


@dataclass(slots=True)
class Subject:
    """A model loaded for one choice, its prepared layers, and its measurements so far."""

    choice: StorageChoice
    ops: Ops
    model: Model
    step: Callable[[HostBatch], Floats]
    divergences: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # minus the log-probability of the actual token
    agreed: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def logits(self, tokens: Ints) -> Floats:
        """(S, V) of the chunk's scored positions; adds the time of its layers to `seconds`."""
        started = time.perf_counter()
        hidden = self.step(_batch(tokens))
        self.seconds += time.perf_counter() - started
        self.tokens += tokens.size
        return project(self.ops, self.model, hidden)

    def add(self, base: Floats, own: Floats, following: Ints) -> None:
        """Score a chunk's logits (S, V) against BASE's; `following` (S,) are the actual tokens."""
        for start in range(0, following.size, _SLICE_ROWS):
            part = slice(start, start + _SLICE_ROWS)
            expected, given = log_softmax(base[part]), log_softmax(own[part])
            self.divergences += divergence(expected, given).tolist()
            self.losses += (-given[np.arange(given.shape[0]), following[part]]).tolist()
            self.agreed += int((expected.argmax(axis=1) == given.argmax(axis=1)).sum())

    def quality(self) -> Quality:
        """The figures so far."""
        count = len(self.losses)
        return Quality(
            weights=self.choice.weights,
            kv=self.choice.kv,
            chunks=count // NUM_SCORED,
            scored_tokens=count,
            perplexity=math.exp(math.fsum(self.losses) / count),
            divergence_mean=math.fsum(self.divergences) / count,
            divergence_error=float(np.std(self.divergences)) / math.sqrt(count),
            divergence_p99=quantile(self.divergences, 0.99),
            top1_agreement=self.agreed / count,
            prompt_tokens_per_s=self.tokens / self.seconds,
            weight_bytes=self.model.weights.num_bytes,
        )


def measure(
    model: str | None,
    base_model: str | None,
    choices: Sequence[StorageChoice],
    text: str,
    num_chunks: int,
    threads: int | None,
    show: Callable[[str], None],
) -> list[Quality]:
    """Every choice's figures over the first `num_chunks` chunks of the text; 0: all.

    The reference is `base_model` in BASE's kinds, or `model` if that is None. All models are in memory at
    once. Raises ConfigError if the text is shorter than a chunk or the context than 512 tokens, and the
    errors of loading.
    """
    _native.set_num_threads(threads or available_cores())
    loaded: dict[tuple[str | None, str], tuple[Ops, LoadedModel]] = {}

    def subject(name: str | None, choice: StorageChoice) -> Subject:
        if (name, choice.weights) not in loaded:
            ops = NativeOps(choice.weights)
            loaded[name, choice.weights] = ops, load_model(resolve(name, show), ops, progress=show)
        return subject_of(choice, *loaded[name, choice.weights])

    base_name = model if base_model is None else base_model
    base = subject(base_name, BASE)
    is_base = {choice: choice == BASE and base_name == model for choice in choices}
    subjects = [base if is_base[choice] else subject(model, choice) for choice in choices]
    others = [each for each in subjects if each is not base]
    chunks = list(chunks_of(loaded[base_name, BASE.weights][1], text, num_chunks))
    for index, tokens in enumerate(chunks):
        show(f"chunk {index + 1} of {len(chunks)} ...")
        score(base, others, tokens)
    return [each.quality() for each in subjects]


def score(base: Subject, others: Sequence[Subject], tokens: Ints) -> None:
    """Run one chunk (512,) through all subjects."""
    following = tokens[SCORED_FROM + 1 :]
    expected = base.logits(tokens)
    base.add(expected, expected, following)
    for subject in others:
        subject.add(expected, subject.logits(tokens), following)


def subject_of(choice: StorageChoice, ops: Ops, loaded: LoadedModel) -> Subject:
    """A subject over loaded weights. Raises ConfigError if a chunk exceeds the context."""
    model = loaded.model
    if model.spec.context_length < CHUNK:
        raise ConfigError(f"the model's context is {model.spec.context_length}; quality needs {CHUNK}")
    pool = ops.allocate_kv(kv_shape(model, _BLOCK_SIZE, choice.kv), blocks_for(CHUNK, _BLOCK_SIZE))
    step = ops.prepare_step(lambda any_ops, batch: hidden_states(any_ops, model, pool, batch), pool)
    return Subject(choice, ops, model, step)


def chunks_of(loaded: LoadedModel, text: str, num_chunks: int) -> Iterator[Ints]:
    """The text's whole chunks, (512,) token ids each, at most `num_chunks`; 0: all.

    Raises ConfigError if there is none.
    """
    tokens = np.array(loaded.tokenizer.encode(text), np.int32)
    begin = loaded.tokenizer.encode("")  # the begin token, if the model has one
    available = tokens.size // CHUNK
    if not available:
        raise ConfigError(f"the text has {tokens.size} tokens; allowed: {CHUNK} or more")
    for index in range(min(available, num_chunks or available)):
        chunk = tokens[index * CHUNK : (index + 1) * CHUNK].copy()
        chunk[: len(begin)] = begin
        yield chunk


def log_softmax(logits: Floats) -> Doubles:
    """(S, V) in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def divergence(expected: Doubles, given: Doubles) -> Doubles:
    """(S,): the Kullback-Leibler divergence of `given` from `expected`, log-probabilities (S, V); in nats."""
    return np.asarray((np.exp(expected) * (expected - given)).sum(axis=1))


def _batch(tokens: Ints) -> HostBatch:
    """One chunk from position 0 on, in blocks 0, 1, ...; logits of the scored positions."""
    return Batch(
        tokens=tokens,
        positions=np.arange(CHUNK, dtype=np.int32),
        starts=np.zeros(1, np.int32),
        offsets=np.array([0, CHUNK], np.int32),
        tables=np.arange(blocks_for(CHUNK, _BLOCK_SIZE), dtype=np.int32)[None, :],
        logit_rows=np.arange(SCORED_FROM, CHUNK - 1, dtype=np.int32),
    )
