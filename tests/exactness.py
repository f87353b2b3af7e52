"""The harness of exactness: what comes of a request alone equals, bit for bit, what comes of it in any
circumstances.

    Subject            a model over its ops, and the requests that a seed draws for it
    in_each            in chunks, in company, overlapped, found in the prefix cache, preempted: each by itself
    in_random          all of that at once, as a seed draws it; with drafts, too

Compared are tokens, the bits of logprobs, of prompt logprobs and of embeddings, and why a choice ended.
`met` counts what a run has met, so that a test can require that its cases met what they are for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo import _native
from octavo.engine.core import Engine
from octavo.kernels.contract import Ops
from octavo.memory.capacity import blocks_needed
from octavo.memory.quota import TenantPolicy
from octavo.model.spec import Model
from octavo.sampling.grammars import Grammars
from octavo.scheduler.sequence import Sequence as Running
from octavo.speculation.speculator import Speculation, Speculator
from octavo.types import FinishReason, Request
from tests.engine.drafting import KINDS, EagerSpeculator, Oracle
from tests.tiny import Answer, mixed_model, request, run, tiny_engine, tiny_model

Answers = dict[tuple[int, int], Answer]
Draw = Callable[[int, int], Request]  # of a seed and a request id
Crowd = Callable[[int, int], list[Request]]  # of a seed and a count: neighbours with ids from 100 on


@contextlib.contextmanager
def threads_restored() -> Iterator[None]:
    """The number of threads is afterwards what it was."""
    before = _native.num_threads()
    try:
        yield
    finally:
        _native.set_num_threads(before)


@dataclass
class Subject:
    """A model over its ops, and the requests that a seed draws for it; what each came to alone is
    remembered."""

    ops: Ops
    draw: Draw
    crowd: Crowd
    model: Model | None = None
    grammars: Grammars | None = None
    _alone: dict[int, list[object]] = field(default_factory=dict)
    _tokens: dict[int, list[list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.model is None:
            self.model = mixed_model(self.ops) if hasattr(self.ops, "routing") else tiny_model(self.ops)

    def engine(self, **settings: object) -> Engine:
        """One over the model, turned by the caller."""
        return tiny_engine(
            self.ops,
            model=self.model,
            grammars=self.grammars,
            **settings,  # type: ignore[arg-type]
        )

    def alone(self, seed: int) -> list[object]:
        """What each choice of a case comes to by itself: a whole prompt on one thread, one token a step."""
        if seed not in self._alone:
            with threads_restored():
                _native.set_num_threads(1)
                wanted = self.draw(seed, 1)
                answers = run(self.engine(step_tokens=512, fast_forward=False), [wanted])
            self._alone[seed] = essences(answers, wanted)
            self._tokens[seed] = [answers[1, choice].tokens for choice in range(wanted.n)]
        return self._alone[seed]

    def tokens(self, seed: int) -> list[list[int]]:
        """The tokens of each choice by itself."""
        self.alone(seed)
        return self._tokens[seed]


def essences(answers: Answers, wanted: Request) -> list[object]:
    """What the contract promises of each choice."""
    return [answers[wanted.request_id, choice].essence for choice in range(wanted.n)]


class Preempter:
    """Preempts a running sequence at some steps: one with drafts or forced tokens in flight, if there
    is one."""

    def __init__(self, engine: Engine, steps: set[int], met: Counter[str] | None = None) -> None:
        self._scheduler, self._steps = engine.scheduler, steps
        self._met = Counter[str]() if met is None else met

    def __call__(self, step: int) -> None:
        running = self._scheduler.live.running
        if step in self._steps and running:
            amid = [s for s in running if s.num_guessed or _is_amid_forced(s)]
            victim = amid[0] if amid else running[-1]
            self._met["preempted amid drafts"] += victim.num_guessed > 0
            self._met["preempted amid forced tokens"] += _is_amid_forced(victim)
            self._scheduler.preemption.preempt(victim, running[0])


def _is_amid_forced(sequence: Running) -> bool:
    """Whether a grammar has forced tokens of it that are known and not yet computed."""
    return sequence.remaining > 1 and bool(sequence.num_forced)


def in_random(subject: Subject, seed: int, met: Counter[str], *, drafts: bool = False) -> list[str]:
    """Where case `seed` differs in circumstances that the seed draws from what it was alone: [] if
    nowhere."""
    rng = np.random.default_rng([seed, 9])
    wanted = subject.draw(seed, 1)
    requests = [wanted, *subject.crowd(seed, int(rng.integers(0, 6)))]
    if rng.random() < 0.5:  # the same prompt before it: a prefix hit, or a wait for the one that computes it
        requests.append(request(0, wanted.prompt, 2, temperature=1.0))
    block_size = int(rng.choice([16, 32]))
    blocks = max(blocks_needed(one, block_size) for one in requests)
    rows = max(one.n for one in requests)
    settings: dict[str, object] = {
        "step_tokens": int(rng.choice([5, 16, 37, 64, 512])),
        "depth": int(rng.integers(0, 2)),
        "block_size": block_size,
        "num_blocks": int(rng.choice([blocks, blocks + 160 // block_size, blocks + 200])),
        "rows": int(rng.choice([rows, rows + 3, rows + 15])),
        "fast_forward": bool(rng.random() < 0.8),
    }
    alone = subject.alone(seed)
    if drafts:
        settings["speculator"] = _speculator(subject, seed, requests)
    with threads_restored():
        _native.set_num_threads(1 + seed % 2)
        engine = subject.engine(**settings)
        if drafts and seed % 4 == 0:
            engine.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=0, maximum=blocks)])
            requests = [dataclasses.replace(one, tenant="a") for one in requests]
            met["at a tenant's maximum"] += 1
        rng.shuffle(requests)  # type: ignore[arg-type]
        try:
            answers = run(engine, requests, Preempter(engine, {int(s) for s in rng.integers(1, 40, 5)}, met))
        except AssertionError as error:
            return [f"case {seed}, {settings}: {error}"]
        finally:
            engine.executor.close()
    _count(met, answers, wanted, drafts)
    found = essences(answers, wanted)
    return [
        f"case {seed}, choice {choice}, {settings}: {answers[1, choice].tokens} is not {tokens}"
        for choice, tokens in enumerate(subject.tokens(seed))
        if found[choice] != alone[choice]
    ]


def _speculator(subject: Subject, seed: int, requests: Sequence[Request]) -> Speculator:
    """Each kind of drafter in turn, told what all of the requests come to; and the one that is served
    with."""
    kind = (*KINDS, "automaton")[seed % (len(KINDS) + 1)]
    if kind == "automaton":
        return Speculator(Speculation.NGRAM)
    oracle = Oracle()
    engine = subject.engine(step_tokens=512)
    answers = run(engine, requests)
    for one in requests:
        for choice in range(one.n):
            oracle.add((*one.prompt, *answers[one.request_id, choice].tokens))
    return EagerSpeculator(oracle, kind, seed, all_of_them=seed % 2 == 0)


def _count(met: Counter[str], answers: Answers, wanted: Request, drafts: bool) -> None:
    met["cases"] += 1
    met["cached"] += answers[1, 0].cached > 0
    met["preempted"] += any(answer.preemptions for answer in answers.values())
    met["preempted itself"] += any(answers[1, choice].preemptions for choice in range(wanted.n))
    met["stopped"] += any(answers[1, c].finish is FinishReason.STOP for c in range(wanted.n))
    params = wanted.params
    met["masked"] += params.allowed_token_ids is not None or bool(params.banned_sequences)
    met["in a crowd"] += len(answers) > 3
    if drafts:
        for answer in answers.values():
            met["drafted"] += answer.drafted
            met["accepted"] += answer.accepted
            met["stopped with drafts"] += answer.accepted > 0 and answer.finish is FinishReason.STOP


def in_each(subject: Subject, requests: Sequence[Request]) -> None:
    """Each circumstance by itself, over requests of different ids; raises `AssertionError` where one
    differs."""

    def of(answers: Answers) -> list[list[object]]:
        return [essences(answers, one) for one in requests]

    def each_by_itself(step_tokens: int) -> list[list[object]]:
        return [essences(run(subject.engine(step_tokens=step_tokens), [one]), one) for one in requests]

    with threads_restored():
        _native.set_num_threads(1)
        wanted = each_by_itself(512)
        assert len({repr(one) for one in wanted}) == len(requests), "two requests say the same"
        _native.set_num_threads(2)
        assert each_by_itself(7) == wanted, "in chunks"
        for step_tokens, depth in ((24, 0), (512, 1)):
            engine = subject.engine(step_tokens=step_tokens, depth=depth)
            assert of(run(engine, requests)) == wanted, "in company"
            again = run(engine, requests)
            assert of(again) == wanted, "from the prefix cache"
            cached = [again[one.request_id, 0].cached for one in requests]
            assert cached == [(len(one.prompt) - 1) // 16 * 16 for one in requests]
            engine.executor.close()
        engine = subject.engine(step_tokens=24, prefix_caching=False)
        answers = run(engine, requests, Preempter(engine, {3, 6, 9}))
        assert of(answers) == wanted, "preempted"
        assert sum(answer.preemptions for answer in answers.values()) > 0
