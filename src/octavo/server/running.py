"""Answers that are being made and that another request may cancel, by tenant and id. On the event loop
alone."""

from __future__ import annotations

from typing import Protocol


class RunningAnswer(Protocol):
    """An answer that has not ended."""

    async def stop(self) -> None:
        """It ends here, within about a second, whether its client reads or not; what it has said stays."""


class RunningAnswers:
    """Of one server."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], RunningAnswer] = {}

    def add(self, tenant: str, answer_id: str, answer: RunningAnswer) -> None:
        """It runs from here on."""
        self._answers[tenant, answer_id] = answer

    def find(self, tenant: str, answer_id: str) -> RunningAnswer | None:
        """The tenant's, if it runs."""
        return self._answers.get((tenant, answer_id))

    def remove(self, tenant: str, answer_id: str) -> None:
        """It has ended. Again does nothing."""
        self._answers.pop((tenant, answer_id), None)
