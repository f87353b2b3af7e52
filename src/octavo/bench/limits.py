"""The machine's peaks, measured now: memory bandwidth, and operations on registers.

A kernel takes at least its bytes over the bandwidth, and at least its operations over the peak rate. The
larger of the two times is its binding limit.
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
    """The best of several tries with all threads: bytes and operations a second.

    A multiply-add is two operations; a copy counts the bytes read and written.
    """

    read_bytes_per_s: float
    copy_bytes_per_s: float
    f32_operations_per_s: float
    bf16_operations_per_s: float
    int8_operations_per_s: float

    def shortest_s(self, num_bytes: float, operations: float, kind: str) -> float:
        """The least time to read `num_bytes` and execute `operations` of kind "f32", "bf16" or "int8"."""
        return max(num_bytes / self.read_bytes_per_s, operations / self._peak(kind))

    def binds(self, num_bytes: float, operations: float, kind: str) -> str:
        """The binding limit: "memory" or the kind of operations."""
        return "memory" if num_bytes / self.read_bytes_per_s >= operations / self._peak(kind) else kind

    def _peak(self, kind: str) -> float:
        return {
            "f32": self.f32_operations_per_s,
            "bf16": self.bf16_operations_per_s,
            "int8": self.int8_operations_per_s,
        }[kind]


def measure_limits(repeats: int = _REPEATS) -> Limits:
    """Measure all five. Takes about two seconds, and half a gigabyte meanwhile."""
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
    """The highest rate of `work`, which returns its number of units. The first try warms up."""
    work()
    speeds = []
    for _ in range(repeats):
        started = time.perf_counter()
        units = work()
        speeds.append(units / (time.perf_counter() - started))
    return max(speeds)
