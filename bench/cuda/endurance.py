"""Minutes of mixed load in this process: are throughput and memory constant?

    python bench/cuda/endurance.py --seconds 480

Random lengths, greedy and sampled, some penalties, two choices, shared prefixes, cancelled requests, a pool
that is too small, and an offload tier in host memory. Prints a line each half minute, and a summary: the last
half's tokens per second against the first's, and the growth of memory after the first quarter.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import torch
from engines import new_backend, open_llm, random_model
from measuring import Probe, begin, parser
from shapes import LLAMA_8B, QWEN3_06B, TINY, Shape

from octavo.api.llm import LLM
from octavo.api.params import SamplingParams
from octavo.config import StartOptions
from octavo.device.layout import Layout
from octavo.kernels.contract import KvShape
from octavo.types import FinishReason

SHAPES = {shape.name: shape for shape in (QWEN3_06B, LLAMA_8B)}
FLAT = 0.95  # of the first half's tokens per second
GROWTH_MAX = 64 << 20  # bytes of host memory, and of the device's


@dataclass(frozen=True, slots=True)
class Sample:
    """The state at one moment."""

    at: float
    output_tokens: int
    host_bytes: int
    device_bytes: int  # according to the driver
    allocated_bytes: int  # by torch


class Load:
    """Requests of all kinds, from one seed."""

    def __init__(self, shape: Shape, longest: int, tiny: bool) -> None:
        self._rng = random.Random(1)
        self._shape, self._longest, self._tiny = shape, longest, tiny
        self._prefixes = [self._tokens(longest // 4) for _ in range(4)]
        self.cancel_soon: deque[tuple[float, int]] = deque()

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(2, self._shape.vocab) for _ in range(count)]

    def add(self, llm: LLM) -> int:
        """Add a request. Returns its number of choices."""
        rng = self._rng
        prompt = self._tokens(max(1, int(self._longest * rng.random() ** 2)))
        if rng.random() < 0.3:
            prompt = rng.choice(self._prefixes) + prompt
        output = rng.randint(1, max(2, self._longest // 3))
        kinds: list[dict[str, object]] = [
            {"temperature": 0.0},
            {"temperature": 1.0, "seed": rng.randrange(1 << 30)},
            {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "logprobs": 2},
            {"temperature": 0.0, "logprobs": 1},
        ]
        params = rng.choice(kinds)
        if rng.random() < 0.05:
            params = {"temperature": 0.7, "repetition_penalty": 1.2}
        n = 2 if rng.random() < 0.1 else 1
        request_id = llm.add_request(
            prompt,
            SamplingParams(n=n, max_tokens=output, ignore_eos=rng.random() < 0.7, **params),  # type: ignore[arg-type]
        )
        if rng.random() < 0.1:
            self.cancel_soon.append((time.perf_counter() + rng.random() * 2, request_id))
        return n

    def cancel_due(self, llm: LLM) -> None:
        """Cancel the requests that are due, finished or not."""
        now = time.perf_counter()
        while self.cancel_soon and self.cancel_soon[0][0] <= now:
            llm.cancel(self.cancel_soon.popleft()[1])


def sample(probe: Probe, started: float, output_tokens: int) -> Sample:
    """A sample of the present state."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    device_bytes = allocated = 0
    if probe.is_cuda:
        free, total = torch.cuda.mem_get_info(probe.device)
        device_bytes, allocated = total - free, torch.cuda.memory_allocated(probe.device)
    return Sample(time.perf_counter() - started, output_tokens, resident, device_bytes, allocated)


def run(probe: Probe, llm: LLM, load: Load, seconds: float, every_s: float, in_flight: int) -> list[Sample]:
    """Keep so many requests in flight until the time is over."""
    started, samples, finishes = time.perf_counter(), list[Sample](), Counter[str]()
    num_output = 0
    samples.append(sample(probe, started, 0))
    while time.perf_counter() - started < seconds:
        while llm.num_unfinished < in_flight:
            load.add(llm)
        load.cancel_due(llm)
        for _, delta in llm.step():
            num_output += len(delta.tokens)
            if delta.finish is not None:
                finishes[delta.finish.value] += 1
                if delta.finish is FinishReason.ERROR:
                    probe.emit("failed request", error=delta.error[:300])
        if time.perf_counter() - started - samples[-1].at >= every_s:
            samples.append(sample(probe, started, num_output))
            emit(probe, llm, samples[-2], samples[-1], finishes)
    if samples[-1].at < seconds - every_s / 2 or len(samples) < 2:
        samples.append(sample(probe, started, num_output))
        emit(probe, llm, samples[-2], samples[-1], finishes)
    return samples


def emit(probe: Probe, llm: LLM, before: Sample, now: Sample, finishes: Counter[str]) -> None:
    """Print one line."""
    stats = llm.engine.stats
    probe.note(f"{now.output_tokens:,} tokens")
    probe.emit(
        "interval",
        at_s=now.at,
        output_tokens_per_s=(now.output_tokens - before.output_tokens) / (now.at - before.at),
        host_mb=now.host_bytes / 1e6,
        device_mb=now.device_bytes / 1e6,
        allocated_mb=now.allocated_bytes / 1e6,
        running=stats.running,
        waiting=stats.waiting,
        preemptions=stats.preemptions,
        blocks_stored=stats.blocks_stored,
        blocks_loaded=stats.blocks_loaded,
        transfers_failed=stats.transfers_failed,
        finishes=dict(finishes),
    )


def summary(probe: Probe, samples: list[Sample]) -> bool:
    """Print the summary. Returns whether throughput and memory were constant after the first quarter."""
    rest = samples[len(samples) // 4 :]
    first, middle, last = rest[0], rest[len(rest) // 2], rest[-1]
    halves = [
        (b.output_tokens - a.output_tokens) / max(1e-9, b.at - a.at)
        for a, b in ((first, middle), (middle, last))
    ]
    ratio = halves[1] / halves[0] if halves[0] else 0.0
    host, device = last.host_bytes - first.host_bytes, last.allocated_bytes - first.allocated_bytes
    is_flat = ratio >= FLAT and host <= GROWTH_MAX and device <= GROWTH_MAX
    probe.emit(
        "summary",
        is_flat=is_flat,
        halves_tokens_per_s=halves,
        ratio=ratio,
        host_growth_mb=host / 1e6,
        device_growth_mb=(last.device_bytes - first.device_bytes) / 1e6,
        allocated_growth_mb=device / 1e6,
    )
    return is_flat


def main() -> None:
    """Run the load; 0.6B by default, for more steps in the same time."""
    made = parser(__doc__)
    made.add_argument("--shape", choices=list(SHAPES), default="0.6B")
    made.add_argument("--seconds", type=float, default=480.0)
    made.add_argument("--every-s", type=float, default=30.0)
    given = made.parse_args()
    probe = begin("endurance", given)
    shape = TINY if probe.tiny else SHAPES[given.shape]
    longest, in_flight = (8, 3) if probe.tiny else (1500, 96)
    backend = new_backend(probe)
    loaded = random_model(shape, backend, 64 if probe.tiny else 4096)
    block = Layout(KvShape(shape.layers, shape.kv_heads, shape.head, 16, probe.kv)).bytes_per_block
    options = StartOptions(
        kv=probe.kv,
        kv_memory_bytes=2**18 if probe.tiny else block * 3000,
        max_seqs=in_flight,
        step_tokens=64 if probe.tiny else 2048,
        overlap=1,
        host_cache_bytes=2**20 if probe.tiny else block * 6000,
    )
    seconds, every_s = (2.0, 1.0) if probe.tiny else (given.seconds, given.every_s)
    with open_llm(loaded, backend, options) as llm:
        samples = run(probe, llm, Load(shape, longest, probe.tiny), seconds, every_s, in_flight)
    is_flat = summary(probe, samples)
    raise SystemExit(0 if is_flat or probe.tiny else 1)


if __name__ == "__main__":
    main()
