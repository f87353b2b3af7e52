"""Whether requests were taken, for clients that wait to know: one future each, until the engine has decided.

The engine's thread settles them when it takes or refuses a request; a thread that finds requests lost, or
the engine gone, fails what is left. A future whose caller has gone was cancelled, and its request is not
taken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future

from octavo.errors import OctavoError


class PendingAcks:
    """Futures by request id. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Future[None]] = {}

    def open(self, request_id: int) -> Future[None]:
        """A new one; `close` it whatever happens."""
        with self._lock:
            answer = self._open[request_id] = Future()
        return answer

    def close(self, request_id: int) -> None:
        """Its caller waits for it no more."""
        with self._lock:
            self._open.pop(request_id, None)

    def fail(self, request_ids: Iterable[int], error: OctavoError) -> None:
        """These will not be decided; those that were, and those without a future, are left alone."""
        with self._lock:
            found = [self._open[request_id] for request_id in request_ids if request_id in self._open]
        for answer in found:
            if not answer.done() and (answer.running() or answer.set_running_or_notify_cancel()):
                answer.set_exception(error)
