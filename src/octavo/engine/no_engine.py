"""The host of a server that renders prompts and generates nothing (`octavo render`): without an engine, every
command fails."""

from __future__ import annotations

import time
from concurrent.futures import Future

from octavo.engine.host import Receiver
from octavo.engine.port import Command, ReplyT, Submit
from octavo.errors import EngineStopped
from octavo.inspect.stats import EngineStats

WHY = "this server renders prompts alone (octavo render): it has no weights"


class NoEngine:
    """A `Host` without an engine; `stop_ids` are the model's end tokens."""

    def __init__(self, stop_ids: frozenset[int]) -> None:
        self.stop_ids, self.block_size = stop_ids, 0
        self.num_recoveries = 0

    def join(self, receiver: Receiver) -> None:
        """Nothing: there are no notifications."""

    def clock(self) -> float:
        """See `Host`."""
        return time.perf_counter()

    def new_id(self) -> int:
        """A constant: no request needs a unique id."""
        return 0

    def send(self, command: Command[ReplyT]) -> Future[ReplyT]:
        """Fails with EngineStopped."""
        failed: Future[ReplyT] = Future()
        failed.set_exception(EngineStopped(WHY))
        return failed

    def post(self, command: Command[ReplyT]) -> None:
        """Nothing."""

    def submit(self, receiver: Receiver, command: Submit, held: object = None) -> Future[int]:
        """Raises EngineStopped."""
        raise EngineStopped(WHY)

    def withdraw(self, request_id: int) -> None:
        """Nothing."""

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """Nothing."""

    def stats(self) -> Future[EngineStats]:
        """Zeros."""
        done: Future[EngineStats] = Future()
        done.set_result(EngineStats())
        return done

    def last_stats(self) -> Future[EngineStats]:
        """Zeros."""
        return self.stats()

    def end(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
