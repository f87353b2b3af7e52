"""Memory for a pool's first blocks before they are written.

The system clears a page when it is first written to, and a guest may have to ask its host for it first: that
can take milliseconds for each MiB, as long as the prompt's own arithmetic. A thread asks ahead, piece by
piece. It is a wish: a system that knows no such call gives each page to the first thread that writes it.
"""

from __future__ import annotations

import logging
import threading

from octavo import _native
from octavo.kernels.contract import Bytes, KvPool

PIECE_BYTES = 16 << 20  # what `stop` waits for at most

log = logging.getLogger("octavo.ready")


class PagePrefaulter:
    """Asks for the memory of the first `num_blocks` blocks, on a thread of its own, until it has it."""

    def __init__(self, pool: KvPool, num_blocks: int) -> None:
        assert 0 <= num_blocks <= pool.num_blocks
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if num_blocks:
            data = pool.data[:num_blocks].reshape(-1)
            self._thread = threading.Thread(target=self._run, args=(data,), name="octavo-ready", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until the memory is there."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Ask for no more: what is given back to the system from now on stays there. Idempotent."""
        self._stopping.set()
        self.wait()

    def _run(self, data: Bytes) -> None:
        for first in range(0, data.size, PIECE_BYTES):
            if self._stopping.is_set():
                return
            if not _native.take_pages(data[first : first + PIECE_BYTES]):
                log.debug("the system gives no pages before they are written to")
                return
