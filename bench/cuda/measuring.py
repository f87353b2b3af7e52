"""Common parts of the probes: the device, JSON lines, medians of interleaved runs, the copy rate.

Import it first: for a CPU, it must set TRITON_INTERPRET before Triton is imported.

    stdout    one JSON object a line; the first describes the machine
    stderr    progress
    exit      0; 1 with one line if there is no such device; 2 for wrong arguments
"""

from __future__ import annotations

import argparse
import os
import sys

if "cpu" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import triton
from chained import chain_products
from torch import Tensor

from octavo.device.devices import find_cuda_obstacle, words_of
from octavo.device.graphs import GraphMemory, Replay

LIMIT_S = 540.0  # of a script, less than a time slot of ten minutes
_COPY_BYTES = 8 << 30  # at most a quarter of the free memory; an H200 copies 1 GiB at 2.8 TB/s, 8 GB at 4.3
_ROUND_S = 0.03  # the least time of a round of replays, so that events are precise


@dataclass(frozen=True, slots=True)
class Probe:
    """One run of a script."""

    name: str
    device: torch.device
    tiny: bool
    started: float
    limit_s: float

    @property
    def is_cuda(self) -> bool:
        """False: torch's CPU and Triton's interpreter."""
        return self.device.type == "cuda"

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The types of tensor cores; without bfloat16 in the interpreter, whose products are wrong."""
        return (torch.bfloat16, torch.float16) if self.is_cuda else (torch.float32,)

    @property
    def kv(self) -> str:
        """The plain kind of KV memory."""
        return "bf16" if self.is_cuda else "f32"

    def emit(self, what: str, **values: object) -> None:
        """Print a line of results."""
        rounded = {key: _rounded(value) for key, value in values.items()}
        print(json.dumps({"probe": self.name, "what": what, **rounded}), flush=True)

    def note(self, text: str) -> None:
        """Print progress."""
        seconds = time.perf_counter() - self.started
        print(f"[{self.name} {seconds:6.1f} s] {text}", file=sys.stderr, flush=True)

    def has_time(self, what: str, needed_s: float = 0.0) -> bool:
        """Whether so many seconds are left; otherwise prints what is skipped."""
        left = self.limit_s - (time.perf_counter() - self.started)
        if left < needed_s or left < 0:
            self.emit("skipped", left_out=what, seconds_left=left)
            return False
        return True

    def wait(self) -> None:
        """Wait for all work on the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def free(self) -> None:
        """Release unused device memory for the next phase."""
        import gc

        gc.collect()
        if self.is_cuda:
            torch.cuda.empty_cache()


def parser(description: str | None) -> argparse.ArgumentParser:
    """The common arguments."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu with --tiny")
    made.add_argument("--tiny", action="store_true", help="tiny shapes, to check that the script runs")
    made.add_argument("--limit-s", type=float, default=LIMIT_S, help="skip parts that would take longer")
    return made


def begin(name: str, given: argparse.Namespace) -> Probe:
    """Check the device, and print the machine. Exits if it cannot be used."""
    device = torch.device(given.device)
    if device.type == "cpu":
        if not given.tiny:
            raise SystemExit(f"{name}: --device cpu interprets kernels, so it needs --tiny")
        torch.set_num_threads(1)
        np.seterr(all="ignore")  # the interpreter computes masked elements too
        chain_products()
    else:
        obstacle = find_cuda_obstacle()
        if obstacle is not None:
            raise SystemExit(f"{name}: no CUDA device: {obstacle}; to try the script: --device cpu --tiny")
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    probe = Probe(name, device, given.tiny, time.perf_counter(), given.limit_s)
    about: dict[str, object] = {}
    if probe.is_cuda:
        properties = torch.cuda.get_device_properties(device)
        about = {
            "capability": torch.cuda.get_device_capability(device),
            "multiprocessors": properties.multi_processor_count,
            "memory_gb": properties.total_memory / 1e9,
        }
    probe.emit(
        "machine",
        device=words_of(device),
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        triton=triton.__version__,
        tiny=probe.tiny,
        **about,
    )
    return probe


def seconds_of(probe: Probe, body: Callable[[], object], rounds: int = 7) -> float:
    """Median time of one call, without graphs."""
    return medians(probe, {"": body}, rounds, captured=False)[""]


def medians(
    probe: Probe, bodies: Mapping[str, Callable[[], object]], rounds: int = 7, *, captured: bool = True
) -> dict[str, float]:
    """Median seconds of one call of each, in interleaved rounds; `captured`: as graphs."""
    calls: dict[str, Callable[[], object]] = {}
    memory = GraphMemory(probe.device)
    for name, body in bodies.items():
        calls[name] = (
            Replay(partial(_tensor_of, body, probe.device), probe.device, memory) if captured else body
        )
        calls[name]()
    repeats = {name: _repeats(probe, call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(1 if probe.tiny else rounds):
        for name, call in calls.items():
            times[name].append(_elapsed(probe, call, repeats[name]))
    return {name: statistics.median(each) for name, each in times.items()}


def copy_rate(probe: Probe) -> float:
    """Bytes per second of a large copy on the device, reads and writes counted."""
    size = 1 << 16
    if not probe.tiny:
        size = min(_COPY_BYTES, torch.cuda.mem_get_info(probe.device)[0] // 4)
    rate = 2 * size / _copy_seconds(probe, size)
    probe.free()
    probe.emit("copy rate", gb_per_s=rate / 1e9, copied_mb=size / 1e6)
    return rate


def _copy_seconds(probe: Probe, size: int) -> float:
    source = torch.zeros(size, dtype=torch.uint8, device=probe.device)
    target = torch.empty_like(source)
    return medians(probe, {"copy": lambda: target.copy_(source)})["copy"]


def _tensor_of(body: Callable[[], object], device: torch.device) -> Tensor:
    made = body()
    return made if isinstance(made, Tensor) else torch.empty(0, device=device)


def _repeats(probe: Probe, call: Callable[[], object]) -> int:
    if probe.tiny:
        return 1
    return max(1, min(1000, round(_ROUND_S / max(1e-6, _elapsed(probe, call, 3)))))


def _elapsed(probe: Probe, call: Callable[[], object], repeats: int) -> float:
    """Seconds of one call, from the time of several."""
    if not probe.is_cuda:
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - started) / repeats
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(repeats):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1000 / repeats


def _rounded(value: object) -> object:
    """Four significant digits; JSON knows no NaN or infinity."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {str(key): _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value
