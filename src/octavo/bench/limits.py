"""What this machine can do at best, measured now: bandwidth of memory, and operations out of registers.

A kernel cannot be faster than its bytes over the one or its operations over the other; the larger of the two
times is the limit that binds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from octavo import _native
from octavo.kernels.probe import measure_read

_ARRAY_BYTES = 1 << 28  # far beyond any cache
_ROUNDS = 1 << 20
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """Best of several tries, with all threads of the team: bytes and operations a second.

    A multiply-add is two operations; a copy counts the bytes read and written.
    """

    read_bytes_per_s: float
    copy_bytes_per_s: float
    f32_operations_per_s: float
    bf16_operations_per_s: float
    int8_operations_per_s: float

    def shortest_s(self, num_bytes: float, operations: float, kind: str) -> float:
        """The least time of what reads `num_bytes` and does `operations` of kind "f32", "bf16" or "int8"."""
        return max(num_bytes / self.read_bytes_per_s, operations / self._peak(kind))

    def binds(self, num_bytes: float, operations: float, kind: str) -> str:
        """Which of the two it is."""
        return "memory" if num_bytes / self.read_bytes_per_s >= operations / self._peak(kind) else kind

    def _peak(self, kind: str) -> float:
        return {
            "f32": self.f32_operations_per_s,
            "bf16": self.bf16_operations_per_s,
            "int8": self.int8_operations_per_s,
        }[kind]


def measure_limits(repeats: int = _REPEATS) -> Limits:
    """Measure all five; about two seconds, half a gigabyte for a moment."""
    source = np.ones(_ARRAY_BYTES, np.uint8)
    target = np.zeros_like(source)

    def copy() -> int:
        _native.copy_bytes(source, target)
        return 2 * source.nbytes

    return Limits(
        read_bytes_per_s=measure_read(repeats),
        copy_bytes_per_s=_best(copy, repeats),
        f32_operations_per_s=_best(lambda: _native.peak_multiply_add(_ROUNDS), repeats),
        bf16_operations_per_s=_best(lambda: _native.peak_pairs(_ROUNDS), repeats),
        int8_operations_per_s=_best(lambda: _native.peak_dots(_ROUNDS), repeats),
    )


def _best(work: Callable[[], int], repeats: int) -> float:
    """The most units a second that `work`, which returns its units, reached. The first try warms up."""
    work()
    speeds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        units = work()
        speeds.append(units / (time.perf_counter() - begun))
    return max(speeds)
