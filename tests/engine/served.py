"""The tiny model behind the real clients: a stand-in tokenizer, a turnstile in front of the executor, a
poisoned token."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import types
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from tests.tiny import CONTEXT, EOS, VOCAB, Answer, request, run, tiny_engine, tiny_model
from tests.waiting import LIMIT_S, turns, until

from octavo.engine.core import Engine
from octavo.engine.outputs import Delta
from octavo.engine.port import Cancel, request_of
from octavo.engine.requests import ModelFacts
from octavo.engine.stream import DeltaStream
from octavo.executor.executor import Executor
from octavo.kernels.contract import Matrix, Ops, RawTensor
from octavo.kernels.native_ops import NativeOps
from octavo.model.spec import Model
from octavo.serving.client import EngineClient
from octavo.types import FinishReason, Request, SampledToken, StepPlan, StepResult

POISON = VOCAB - 1  # see `poisoned_model`
FACTS = ModelFacts("tiny", CONTEXT, VOCAB)
T = TypeVar("T")


class LetterTokenizer:
    """Token t is the letter of t mod 26; text to tokens is its inverse, from 26 on. No chat template."""

    special_ids = frozenset([EOS])
    stop_ids = frozenset([EOS])
    chat_template = None

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        return [26 + ord(letter) - ord("a") for letter in text]

    def close(self) -> None:
        pass

    def token_bytes(self, token: int) -> bytes:
        return bytes([ord("a") + token % 26])


def started_tiny(tokenizer: LetterTokenizer | None = None, **engine: object) -> types.SimpleNamespace:
    """What `build_engine` gives, over the tiny model."""
    loaded = types.SimpleNamespace(tokenizer=tokenizer or LetterTokenizer())
    tiny = tiny_engine(NativeOps(), **engine)  # type: ignore[arg-type]
    return types.SimpleNamespace(engine=tiny, loaded=loaded, facts=FACTS)


class Turnstile:
    """An executor that waits while `open` is cleared, and breaks as often as `failures` says.

    Clear `open`, or set `permits`, before the request is submitted: then it is certain which step waits.
    """

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()  # a step waits, or has passed
        self.permits: threading.Semaphore | None = None  # each step takes one, if there are any to take
        self.failures = 0
        self.plans: list[StepPlan] = []
        self.num_passed = 0  # of them: the others wait

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        self.plans.append(plan)
        self.reached.set()
        assert self.open.wait(LIMIT_S)
        permits = self.permits
        assert permits is None or permits.acquire(timeout=LIMIT_S)
        self.num_passed += 1
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the executor broke")
        return self._inner.submit(plan)

    def close(self) -> None:
        self._inner.close()

    async def stepping(self, work: Awaitable[T]) -> T:
        """What the work comes to. Until then each step that waits for a permit gets one, after the event loop
        has gone round a few times: what needs no step comes first."""
        task = asyncio.ensure_future(work)
        while not task.done():
            passed = self.num_passed
            await turns(20)
            await until(lambda: task.done() or len(self.plans) > self.num_passed)
            if not task.done():
                assert self.permits is not None
                self.permits.release()
                await until(lambda passed=passed: self.num_passed > passed)
        return task.result()


def poisoned(ops: Ops) -> Ops:
    """The same ops, which load the embedding with one row of NaN."""
    plain = ops.matrix

    def matrix(raw: RawTensor, table: bool = False) -> Matrix:
        if raw.shape[0] == VOCAB:
            values = raw.data.copy().view(np.float32).reshape(raw.shape)
            values[POISON] = np.nan
            raw = dataclasses.replace(raw, data=values.reshape(-1).view(np.uint8))
        return plain(raw, table)

    ops.matrix = matrix  # type: ignore[method-assign]
    return ops


def poisoned_model() -> Model:
    """The tiny model, whose logits are NaN after the token POISON and only then."""
    sound, sick = tiny_model(NativeOps()), tiny_model(poisoned(NativeOps()))
    weights = dataclasses.replace(sound.weights, embedding=sick.weights.embedding)
    return dataclasses.replace(sound, weights=weights)


@dataclass(frozen=True, slots=True)
class Served:
    """An EngineClient over the tiny model. Close `llm`."""

    llm: EngineClient
    engine: Engine
    turnstile: Turnstile


def serve_tiny(
    *, max_queue: int = 1000, tokenizer: LetterTokenizer | None = None, **options: object
) -> Served:
    """Start one; `options` are those of `tiny_engine`."""
    engine = tiny_engine(NativeOps(), **options)  # type: ignore[arg-type]
    turnstile = Turnstile(engine.executor)
    engine.executor = turnstile
    words = tokenizer or LetterTokenizer()
    llm = EngineClient.over(engine, words, FACTS, max_queue)  # type: ignore[arg-type]
    return Served(llm, engine, turnstile)


@dataclass(slots=True)
class Told:
    """What a client was told about one choice."""

    answer: Answer = field(default_factory=Answer)
    text: str = ""
    finishes: list[FinishReason] = field(default_factory=list)
    stop: str | int | None = None
    error: str = ""

    def add(self, delta: Delta) -> None:
        assert not self.finishes, "a delta after the final one"
        tops = [tuple((token, logprob) for token, _, logprob in info.top) for info in delta.tokens]
        self.answer.add(
            [SampledToken(i.token, i.logprob or 0.0, top) for i, top in zip(delta.tokens, tops, strict=True)]
        )
        self.text += delta.text
        self.answer.cached = delta.usage.num_cached
        if delta.finish is not None:
            self.finishes.append(delta.finish)
            self.answer.finish, self.stop, self.error = delta.finish, delta.stop, delta.error


def is_cancelled(engine: Engine) -> bool:
    """A cancellation lies in the inbox, and the step that waits keeps it there."""
    return any(isinstance(command, Cancel) for command in engine.inbox.unread())


def step_for_each_glimpse(served: Served) -> None:
    """From now on a step is taken only while a glimpse of the pool is asked for, so that no glimpse misses
    more than a step or two."""
    control, plain = served.llm.control, served.llm.control.glimpse
    served.turnstile.permits = threading.Semaphore(0)

    async def glimpse(*given: object) -> object:
        return await served.turnstile.stepping(plain(*given))  # type: ignore[arg-type]

    control.glimpse = glimpse  # type: ignore[method-assign, assignment]


async def sent(served: Served, request: Request) -> asyncio.Task[DeltaStream]:
    """A submission whose command lies in the inbox, where a step that waits keeps it, or which is done."""
    task = asyncio.ensure_future(served.llm.submit(request))

    def is_unread() -> bool:
        found = map(request_of, served.engine.inbox.unread())
        return any(one is not None and one.prompt == request.prompt for one in found)

    await until(lambda: task.done() or is_unread())
    return task


async def read(stream: DeltaStream, n: int = 1) -> list[Told]:
    """Everything, by choice; each choice ends exactly once, and the stream ends."""
    told = [Told() for _ in range(n)]

    async def all_of_it() -> None:
        async for delta in stream:
            told[delta.choice].add(delta)

    await asyncio.wait_for(all_of_it(), LIMIT_S)
    assert [len(one.finishes) for one in told] == [1] * n
    return told


def alone(
    prompt: Sequence[int], max_tokens: int, n: int = 1, model: Model | None = None, **params: object
) -> list[Answer]:
    """The same on an engine of its own, without any client."""
    engine = tiny_engine(NativeOps(), model=model)
    answers = run(engine, [request(1, prompt, max_tokens, n, **params)])
    return [answers[1, choice] for choice in range(n)]
