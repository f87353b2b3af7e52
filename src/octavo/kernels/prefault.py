"""Memory for a pool's first blocks before they are written.

The system clears a page when it is first written to, and a guest may have to ask its host for it first: that
can take milliseconds for each MiB, as long as the prompt's own arithmetic. Threads ask ahead, piece by piece:

    start .. wait() returns    one thread for each of the team's, at ordinary priority: nothing is served yet
    after that                 what is left comes when the processor is idle, so that steps lose nothing to it

It is a wish: a system that knows no such call gives each page to the first thread that writes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator

from octavo import _native
from octavo.kernels.contract import Bytes, KvPool

PIECE_BYTES = 2 << 20  # what `stop` waits for at most; a huge page
THREADS_MAX = 8  # the system's memory is no faster with more

log = logging.getLogger("octavo.ready")


class PagePrefaulter:
    """Asks for the memory of the first `num_blocks` blocks, on threads of its own, until it has it."""

    def __init__(self, pool: KvPool, num_blocks: int) -> None:
        assert 0 <= num_blocks <= pool.num_blocks
        self._stopping = threading.Event()
        self._serving = threading.Event()  # set: others need the processor
        self._pieces = self._each_piece(pool.data[:num_blocks].reshape(-1))
        self._lock = threading.Lock()  # of the iterator
        count = min(_native.num_threads(), THREADS_MAX) if num_blocks else 0
        self._threads = [
            threading.Thread(target=self._run, name=f"octavo-ready-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the memory is there, or so long; whether it is. What is left does not hurry any more."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._serving.set()
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Ask for no more: what is given back to the system from now on stays there. Idempotent."""
        self._stopping.set()
        self.wait()

    def _each_piece(self, data: Bytes) -> Iterator[Bytes]:
        for first in range(0, data.size, PIECE_BYTES):
            if self._stopping.is_set():
                return
            yield data[first : first + PIECE_BYTES]

    def _run(self) -> None:
        is_idle = False
        while True:
            if self._serving.is_set() and not is_idle:
                is_idle = True
                _leave_the_processor_to_others()
            with self._lock:
                piece = next(self._pieces, None)
            if piece is None:
                return
            if not _native.take_pages(piece):
                log.debug("the system gives no pages before they are written to")
                self._stopping.set()


def _leave_the_processor_to_others() -> None:
    """The calling thread runs when no other one wants to, where the system has such a thing (Linux)."""
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then it goes on as it was
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
