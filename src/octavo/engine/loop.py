"""The engine's thread: it turns the step while there is work, sleeps on the inbox when there is none, and hands the
updates of a step to one callback.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from octavo.engine.core import Cancel, Engine, Submit
from octavo.types import Request, Update

log = logging.getLogger("octavo.engine")

RECOVERIES_MAX = 3  # so many broken states within RECOVERY_WINDOW_S, and the engine gives up
RECOVERY_WINDOW_S = 60.0


class EngineLoop:
    """Runs an Engine on its own thread. `deliver` is called on that thread, once per step that has updates."""

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[list[Update]], None],
        give_up: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._give_up = give_up
        self._stopping = False
        self._failures: deque[float] = deque(maxlen=RECOVERIES_MAX)
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)

    def start(self) -> None:
        """Begin turning."""
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; any thread."""
        self._engine.inbox.put(Submit(request))

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """End a request, or one choice of it; any thread."""
        self._engine.inbox.put(Cancel(request_id, choice))

    def stop(self) -> None:
        """Finish the step that runs, then end the thread. Idempotent."""
        self._stopping = True
        self._engine.inbox.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._engine.executor.close()

    def _run(self) -> None:
        engine = self._engine
        while not self._stopping:
            if engine.idle:
                engine.inbox.wait()
                if self._stopping:
                    return
            try:
                updates = engine.step()
            except Exception as error:
                log.exception(
                    "the engine's state is broken; every live request fails and the cache is dropped"
                )
                updates = engine.recover(error)
                self._failures.append(time.monotonic())
                if (
                    len(self._failures) == RECOVERIES_MAX
                    and self._failures[-1] - self._failures[0] < RECOVERY_WINDOW_S
                ):
                    self._deliver(updates)
                    self._give_up(error)
                    return
            if updates:
                self._deliver(updates)
