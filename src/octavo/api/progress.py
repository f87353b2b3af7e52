"""A progress bar for long calls: the number of ended requests, and the rates of input and output tokens.

It appears after two seconds, on a terminal only. A program may pass a factory for its own bar, such as
`tqdm.tqdm`; that bar is made at once. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

APPEARS_AFTER_S = 2.0
DRAWN_EVERY_S = 0.2


class ProgressBar(Protocol):
    """The used part of `tqdm.tqdm`'s interface."""

    def update(self, n: int = 1) -> object:
        """So many more have ended."""

    def close(self) -> object:
        """The work is done."""


UseTqdm = bool | Callable[..., ProgressBar]


class WorkBar:
    """The bar of one call, whether it is shown or not. Close it."""

    def __init__(
        self, what: str, total: int, use_tqdm: UseTqdm, now: float, console: Console | None = None
    ) -> None:
        self._what = what
        self._total = total
        self._begun = self._drawn = now
        self._ended = self._input_tokens = self._output_tokens = 0
        self._reported = 0  # to a bar of the program's own
        self._theirs = None if isinstance(use_tqdm, bool) else use_tqdm(total=total, desc=what)
        self._console = console or Console(stderr=True)
        self._is_wanted = use_tqdm is True and self._console.is_terminal
        self._bar: Progress | None = None

    def count(self, *, ended: int = 0, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count without drawing."""
        self._ended += ended
        self._input_tokens += input_tokens
        self._output_tokens += output_tokens

    def draw(self, now: float) -> None:
        """Draw, if it is time."""
        if self._theirs is not None:
            if self._ended > self._reported:
                self._theirs.update(self._ended - self._reported)
                self._reported = self._ended
        elif self._is_wanted and now - self._begun >= APPEARS_AFTER_S and self._is_due(now):
            self._draw(now)

    def _is_due(self, now: float) -> bool:
        return self._bar is None or now - self._drawn >= DRAWN_EVERY_S or self._ended == self._total

    def _draw(self, now: float) -> None:
        self._drawn = now
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
                auto_refresh=False,
            )
            self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        seconds = max(now - self._begun, 1e-9)
        speeds = f"{self._input_tokens / seconds:,.0f} tok/s in, {self._output_tokens / seconds:,.0f} out"
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=self._ended, description=f"{self._what}, {speeds}")
        self._bar.refresh()

    def close(self) -> None:
        """The terminal keeps the last drawing."""
        if self._bar is not None:
            self._bar.stop()
        if self._theirs is not None:
            self._theirs.close()
