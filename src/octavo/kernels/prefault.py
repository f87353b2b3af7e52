"""Prefaults the memory of a pool's first blocks before they are written.

The system clears a page on its first write, and a virtual machine may have to get it from its host first:
that can take milliseconds for each MiB, as long as the prompt's own arithmetic. Threads write piece by piece:

    start .. wait() returns    one thread for each of the team's, at ordinary priority: nothing is served yet
    after that                 the rest is prefaulted while the processor is idle, without delaying steps

It is optional: on a system without such a call, the first write to a page allocates it.
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

PIECE_BYTES = 2 << 20  # `stop` waits for one piece at most; a huge page
THREADS_MAX = 8  # the system's memory is no faster with more

log = logging.getLogger("octavo.ready")


class PagePrefaulter:
    """Prefaults the memory of the first `num_blocks` blocks, on threads of its own."""

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
        """Wait for the memory or the timeout; whether it is there. The rest goes on at low priority."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._serving.set()
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Stop prefaulting, so that memory freed from now on stays free. Idempotent."""
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
                _set_idle_priority()
            with self._lock:
                piece = next(self._pieces, None)
            if piece is None:
                return
            if not _native.take_pages(piece):
                log.debug("the system cannot prefault pages")
                self._stopping.set()


def _set_idle_priority() -> None:
    """Give the calling thread idle priority, if the system has that (Linux)."""
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then its priority is unchanged
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
