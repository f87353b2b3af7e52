"""The engine's thread: runs steps while there is work, sleeps on the inbox when there is none, and passes the
updates of each step to one callback.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from octavo.engine.core import Engine
from octavo.engine.port import Cancel
from octavo.errors import DeviceLost
from octavo.types import Update

log = logging.getLogger("octavo.engine")

RECOVERIES_MAX = 3  # broken states within RECOVERY_WINDOW_S, after which the engine gives up
RECOVERY_WINDOW_S = 60.0


class EngineLoop:
    """Runs an Engine on its own thread, and calls back on it.

    `deliver` gets the updates of each step that has any; `recovered` the final updates of the requests that
    failed in a broken step, and the error; `give_up` the last error after too many, before the thread ends.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[list[Update]], None],
        recovered: Callable[[list[Update], BaseException], None],
        give_up: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._recovered = recovered
        self._give_up = give_up
        self._stopping = False
        self._failures: deque[float] = deque(maxlen=RECOVERIES_MAX)
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """End a request, or one choice of it; any thread."""
        self._engine.inbox.post(Cancel(request_id, choice))

    def end(self) -> None:
        """Finish the current step, then end the thread. Idempotent."""
        self._stopping = True
        self._engine.inbox.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def stop(self) -> None:
        """As `end`, and close the executor: memory, the disk cache and its lock. Idempotent."""
        self.end()
        self._engine.close()

    def _run(self) -> None:
        try:
            self._turn()
        except Exception as error:
            # Whatever the error, no caller may wait for a thread that has ended.
            log.error("the engine gives up", exc_info=not isinstance(error, DeviceLost))
            self._give_up(error)

    def _turn(self) -> None:
        """Run until `stop`. Raises the last error after too many broken states, or without a new one."""
        engine = self._engine
        while True:
            if engine.idle and not self._stopping:
                engine.before_sleep()
                if engine.has_work or not engine.warm_more():
                    engine.inbox.wait(engine.seconds_to_next_event())
            if self._stopping:
                return
            try:
                updates = engine.step()
            except Exception as error:
                if isinstance(error, DeviceLost):
                    log.error("%s", error)
                else:
                    log.exception(
                        "the engine's state is broken; every live request fails and the cache is dropped"
                    )
                self._recovered(engine.recover(error), error)
                if isinstance(error, DeviceLost) or self._is_hopeless():
                    raise
                continue
            if updates:
                self._deliver(updates)

    def _is_hopeless(self) -> bool:
        """Count a failure; True when it was the last of RECOVERIES_MAX within RECOVERY_WINDOW_S."""
        self._failures.append(time.monotonic())
        return (
            len(self._failures) == RECOVERIES_MAX
            and self._failures[-1] - self._failures[0] < RECOVERY_WINDOW_S
        )
