"""Facts about the CPU and the memory for `octavo doctor`. Reads /proc; knows nothing of models."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo import _native

_READ_BYTES = 1 << 28  # far beyond any cache


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, for the CPU backend. Memory is in bytes, 0 if the system does not report it."""

    cpu: str  # the processor's name
    vendor: str
    instruction_sets: tuple[str, ...]  # of interest, as found
    usable: tuple[str, ...]  # kernels that are built in and run here, worst first
    chosen: str
    vector_bits: int
    cores: int  # that this process may use
    threads: int  # that compute an operation together now
    memory_total: int
    memory_available: int


def probe() -> Machine:
    """Probe the machine. Raises ValueError if OCTAVO_ISA names an instruction set that cannot run here."""
    simd = _native.simd_probe()
    cpu = _fields(Path("/proc/cpuinfo"))
    memory = _fields(Path("/proc/meminfo"))
    return Machine(
        cpu=cpu.get("model name", "unknown"),
        vendor=cpu.get("vendor_id", "unknown"),
        instruction_sets=tuple(simd["found"]),
        usable=tuple(simd["usable"]),
        chosen=simd["chosen"],
        vector_bits=simd["vector_bits"],
        cores=simd["cores"],
        threads=_native.num_threads(),
        memory_total=_bytes(memory.get("MemTotal", "")),
        memory_available=_bytes(memory.get("MemAvailable", "")),
    )


def measure_read(tries: int = 3) -> float:
    """Bytes a second that all threads of the team read from memory, the best of some tries.

    It takes a tenth of a second, and a quarter of a gigabyte during that time.
    """
    source = np.ones(_READ_BYTES, np.uint8)
    seconds = []
    for _ in range(tries + 1):  # the first warms up
        started = time.perf_counter()
        _native.read_bytes(source)
        seconds.append(time.perf_counter() - started)
    return source.nbytes / min(seconds[1:])


def _fields(path: Path) -> dict[str, str]:
    """The "name : value" lines of a file of /proc, the first of each name; none where there is no file."""
    fields: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return fields
    for line in lines:
        name, found, value = line.partition(":")
        if found:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _bytes(text: str) -> int:
    """ "24576 kB" as bytes."""
    number, _, unit = text.partition(" ")
    return int(number) * 1024 if number.isdigit() and unit == "kB" else 0
