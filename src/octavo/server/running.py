"""Running answers that another request may cancel, by tenant and id.

That request may arrive at another front end, so front ends register their answers with the engine.
"""

from __future__ import annotations

import asyncio
from asyncio import wrap_future
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

STOP_TIMEOUT_S = 5.0  # for another front end, which needs a second at most


class RunningAnswer(Protocol):
    """An answer that has not ended."""

    async def stop(self) -> None:
        """End it, within about a second, even if its client does not read; its output so far stays."""


class OtherAnswers(Protocol):
    """The running answers of all front ends."""

    stop_answer_here: Callable[[str, str], Future[bool]] | None

    def answer_began(self, tenant: str, answer_id: str) -> None:
        """Register an answer of this front end."""

    def answer_ended(self, tenant: str, answer_id: str) -> None:
        """Remove an answer that has ended."""

    def is_answering(self, tenant: str, answer_id: str) -> bool:
        """Whether it runs in any front end."""

    def stop_answer(self, tenant: str, answer_id: str) -> Future[bool]:
        """Stop it; whether it ran in any front end."""


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """One of several processes that serve one engine. `metrics`: the folder of the counts of all."""

    index: int
    answers: OtherAnswers
    run_id: str  # of the engine's start, the same in all
    started_at: int  # when this process started, in seconds of the epoch
    engine_pid: int
    metrics: Path


class RunningAnswers:
    """The running answers of one server, on its event loop."""

    def __init__(self, others: OtherAnswers | None = None) -> None:
        self._answers: dict[tuple[str, str], RunningAnswer] = {}
        self._others = others

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start on this event loop: other front ends may now stop answers of this one."""
        if self._others is not None:
            self._others.stop_answer_here = lambda tenant, answer_id: asyncio.run_coroutine_threadsafe(
                self._stop_here(tenant, answer_id), loop
            )

    def add(self, tenant: str, answer_id: str, answer: RunningAnswer) -> None:
        """Register an answer that begins."""
        self._answers[tenant, answer_id] = answer
        if self._others is not None:
            self._others.answer_began(tenant, answer_id)

    def find(self, tenant: str, answer_id: str) -> RunningAnswer | None:
        """The tenant's answer, if it runs here."""
        return self._answers.get((tenant, answer_id))

    def is_running(self, tenant: str, answer_id: str) -> bool:
        """Whether it runs, here or in another front end."""
        if (tenant, answer_id) in self._answers:
            return True
        return self._others is not None and self._others.is_answering(tenant, answer_id)

    async def stop(self, tenant: str, answer_id: str) -> bool:
        """Stop it, here or in another front end; False: it does not run."""
        if await self._stop_here(tenant, answer_id):
            return True
        if self._others is None:
            return False
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                return await wrap_future(self._others.stop_answer(tenant, answer_id))
        except TimeoutError:
            return False  # the other front end hangs

    async def _stop_here(self, tenant: str, answer_id: str) -> bool:
        answer = self._answers.get((tenant, answer_id))
        if answer is None:
            return False
        await answer.stop()
        return True

    def remove(self, tenant: str, answer_id: str) -> None:
        """Remove an answer that has ended. Idempotent."""
        ended = self._answers.pop((tenant, answer_id), None)
        if ended is not None and self._others is not None:
            self._others.answer_ended(tenant, answer_id)
