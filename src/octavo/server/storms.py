"""Preemption storms: where memory is so short that sequences are sent back all the time, the log says so."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from octavo.engine.outputs import EngineStats

_STORM = 20  # preemptions in a period
_PERIOD_S = 10.0

_log = logging.getLogger("octavo.server")


class PreemptionWatch:
    """Looks at the engine's counts, now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._preemptions = 0

    def is_due(self) -> bool:
        """Whether a period has passed since the last `look`."""
        return self._clock() - self._since >= _PERIOD_S

    def look(self, stats: EngineStats) -> None:
        """Compare with what was seen a period ago, and log a storm."""
        now = self._clock()
        num = stats.preemptions - self._preemptions
        if num >= _STORM:
            _log.warning(
                "memory is short: %d preemptions in %.0f s, %d of %d blocks held, %d sequences wait; more "
                "--kv-memory, fewer --max-seqs or shorter answers would help (/v1/kv says who holds what)",
                num,
                now - self._since,
                stats.blocks_held,
                stats.blocks_total,
                stats.waiting,
            )
        self._since, self._preemptions = now, stats.preemptions
