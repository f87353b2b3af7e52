"""What tests ask of a running engine: any question, between two steps, on the engine's thread.

Commands are values, so a question that is a function is a command of tests alone: `Probe`. The port that
answers it is wrapped here, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar, cast

from tests.waiting import LIMIT_S

from octavo.engine.core import Engine
from octavo.engine.outputs import EngineStats
from octavo.engine.port import Port, ViewStats
from octavo.errors import OctavoError
from octavo.scheduler.scheduler import Scheduler

T = TypeVar("T")
_HELD_S = 0.2  # a step of the tiny models takes less


class HasEngine(Protocol):
    @property
    def engine(self) -> Engine: ...


class Probe:
    """A question to the scheduler, and the time. Recorders and codecs do not know it."""

    def __init__(self, question: Callable[[Scheduler, float], object]) -> None:
        self.question = question


_answer = Port.answer


def _answer_probes(port: Port, command: object, now: float) -> object:
    if isinstance(command, Probe):
        return command.question(port._scheduler, now)
    return _answer(port, command, now)  # type: ignore[arg-type]


Port.answer = _answer_probes  # type: ignore[method-assign, assignment]


def asked(engine: Engine, question: Callable[[Scheduler, float], T]) -> Future[T]:
    """Its answer, from any thread; an exception that is no OctavoError breaks the engine's state."""
    return cast("Future[T]", engine.inbox.send(Probe(question)))  # type: ignore[arg-type]


async def ask(llm: HasEngine, question: Callable[[Scheduler, float], T]) -> T:
    """The same, awaited."""
    return await asyncio.wait_for(asyncio.wrap_future(asked(llm.engine, question)), LIMIT_S)


def tell(llm: HasEngine, change: Callable[[Scheduler, float], object]) -> None:
    """The same, not awaited."""
    asked(llm.engine, change)


def stats_of(llm: HasEngine) -> EngineStats:
    """The engine's numbers, from any thread: between two steps, or while a test holds the engine in one."""
    reply = llm.engine.inbox.send(ViewStats())
    try:
        return reply.result(_HELD_S)
    except (TimeoutError, OctavoError):
        reply.cancel()
        return llm.engine._port._inspector.stats(llm.engine._counters)
