"""The router's speed, and its gain on traces of requests.

    python -m bench.routing                   1,000 replicas, 10 million blocks: time of a request, memory
    python -m bench.routing --trace FILE      virtual replicas: times to first tokens and hits, by policy

A virtual replica is an 8B model in bf16 on one H200, with step times measured there (docs/gpu.md): 5.6 ms,
and 0.0327 ms for each row or position of a prompt; attention at 98 TFLOP/s for prompts and 2.35 TB/s for
decoding; 100 GB of KV; a target of 100 ms between tokens. The trace is played --speed times as fast for each
replica.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import statistics
import time
from pathlib import Path

from octavo.bench.calibration import VERSION, Calibration
from octavo.bench.planner import CapacityPlanner, Traffic
from octavo.bench.replicas import RoutingPolicy, balancer_of
from octavo.bench.traces import TrafficTrace, read_trace, scaled
from octavo.bench.workloads import WorkloadTargets
from octavo.engine.scheduler_setup import SchedulerSetup
from octavo.memory.changes import Place
from octavo.routing import reports
from octavo.routing.prompt_costs import RoutedPrompt
from octavo.routing.reports import Changes, Hello, Load, StepModel
from octavo.routing.router import Choice, Router
from octavo.step.context import SchedulerConfig

BLOCK = 16
SHARED = 64  # blocks of a system prompt that all replicas hold
BYTES_PER_BLOCK = BLOCK * 131_072  # 32 layers, 8 heads of 128, K and V in bf16
KV_BYTES = 100_000_000_000
TERMS = [32.7e-6, 5.6e-3, 32.7e-6, 55.7e-6, 5.35e-6]  # position, step, row, 1,000 reads of rows, of prompts


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def filled(num_replicas: int, num_blocks: int) -> tuple[Router, list[bytes]]:
    """A router with so many replicas, and consecutive block names of each."""
    router, samples, each = Router(num_blocks), list[bytes](), num_blocks // num_replicas
    shared = os.urandom(8 * SHARED)
    for slot in range(num_replicas):
        own = os.urandom(8 * (each - SHARED))
        hello = Hello(reports.VERSION, slot, f"replica-{slot}", "m", "f", (), BLOCK, 131_072, 1024, 256, 2048)
        router.on_hello(str(slot), hello)
        for start in range(0, 8 * each, 8 * reports.NAMES_MAX):
            part = (shared + own)[start : start + 8 * reports.NAMES_MAX]
            router.on_changes(str(slot), Changes(Place.POOL, part))
        samples.append(shared + own[: 8 * 2000])
    return router, samples


def load_of(r: random.Random) -> Load:
    prefill_s = (0.0,) * 8 + tuple(r.random() * 0.2 for _ in range(4))
    model = StepModel(50e-6, 5e-9, 1.0 + r.random(), 0.001, 0.1)
    return Load(r.randrange(100), 0, 4000, prefill_s, 10_000, 5000, 10_000, step_model=model)


def time_router(num_replicas: int, num_blocks: int) -> None:
    r, before = random.Random(0), memory_mb()
    started = time.process_time()
    router, samples = filled(num_replicas, num_blocks)
    seconds, kept = time.process_time() - started, memory_mb() - before
    print(f"{num_replicas:,} replicas, {router.index.num_blocks:,} blocks, {router.index.num_names:,} names")
    print(f"filled: {1e6 * seconds / num_blocks:.2f} us a block")
    print(f"memory: {kept:,.0f} MB, {1e6 * kept / num_blocks:.0f} bytes a block")
    started = time.process_time()
    loads = [load_of(r) for _ in range(num_replicas)]
    made = time.process_time()
    for slot, load in enumerate(loads):
        router.on_load(str(slot), load, 1.0)
    print(f"a load: {1e6 * (time.process_time() - made) / num_replicas:.1f} us")
    for title, num_hits, num_new in (
        ("an unknown prompt of 512 blocks", 0, 512),
        ("what all replicas hold, 64 blocks, and 64 new", SHARED, 64),
        ("what one holds, 512 blocks, and 16 new", 512, 16),
        ("what one holds, 2,000 blocks, and 16 new", 2000, 16),
    ):
        chosen, sent, was_found = list[float](), list[float](), 0
        for number in range(300):
            slot = r.randrange(num_replicas)
            names = reports.unpack_names(samples[slot][: 8 * num_hits] + os.urandom(8 * num_new))
            prompt = RoutedPrompt(BLOCK * len(names) + 1, {"f": names})
            started = time.process_time()
            choice = router.choose(prompt, 1.0)
            then = time.process_time()
            assert isinstance(choice, Choice)
            router.on_sent(choice.replica_id, choice, str(number), 1.0)
            router.on_ended(str(number))
            chosen.append(then - started)
            sent.append(time.process_time() - then)
            was_found += choice.num_hits >= BLOCK * num_hits
        times = f"{1e6 * statistics.median(chosen):.0f} us, sent {1e6 * statistics.median(sent):.0f} us"
        print(f"{title}: {times}, found {was_found / 3:.0f} %")
    started = time.process_time()
    for slot in range(num_replicas):  # each evicts 64 blocks and has 64 new ones
        router.on_changes(str(slot), Changes(Place.POOL, os.urandom(8 * 64), samples[slot][-8 * 64 :]))
    print(f"changes: {1e6 * (time.process_time() - started) / num_replicas / 128:.2f} us a name")
    started = time.process_time()
    router.on_gone("0")
    print(f"a replica gone: {1000 * (time.process_time() - started):.1f} ms")


def h200_8b() -> Calibration:
    """A calibration from published figures, not fitted."""
    config = SchedulerConfig(max_rows=256, step_tokens=2048, context_length=131_072, target_itl_s=0.1)
    num_blocks = KV_BYTES // BYTES_PER_BLOCK
    setup = SchedulerSetup(config, num_blocks, num_blocks, BLOCK, (b"8B",))
    return Calibration(
        VERSION,
        setup,
        tier=None,
        depth=1,
        terms=TERMS,
        corrections={},
        noise={},
        drifts=[],
        between_s=0.0,
        between_row_s=0.0,
        http_s=0.005,
        moves={},
        rows_max=256,
        positions_max=2048,
        num_steps=1,
        error_p50=0.0,
        error_p95=0.0,
    )


def seen_before(trace: TrafficTrace) -> float:
    """The share of prompt tokens whose blocks occurred before: the hit rate of one unlimited cache."""
    seen, found = set[int](), 0
    for request in trace.requests:
        for index, block in enumerate(request.blocks):
            if block not in seen:
                break
            found += min(trace.block_tokens, request.prompt - index * trace.block_tokens)
        seen.update(request.blocks)
    return found / sum(request.prompt for request in trace.requests)


def play_trace(path: Path, replicas: list[int], speed: float, seconds: float, delay_s: float) -> None:
    calibration = h200_8b()
    setup = calibration.setup
    trace = read_trace(path)
    print("| replicas | requests/s | requests go | TTFT p50, s | p95, s | hit rate | at most |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for count in replicas:
        rate = speed * count
        part = scaled(trace, rate=rate, seconds=seconds * rate, longest=setup.config.context_length - 1)
        for routing in RoutingPolicy:
            planner = CapacityPlanner(
                calibration,
                WorkloadTargets(),
                setup,
                draws=1,
                replicas=count,
                balancer=lambda servers, how=routing: balancer_of(how, servers, setup, delay_s, 0),
            )
            served = planner.run_draw(Traffic(part))
            ttft = served.report.ttft_ms
            print(
                f"| {count} | {len(part.requests) / seconds:.2f} | {routing} | {ttft.p50 / 1000:.2f} | "
                f"{ttft.p95 / 1000:.2f} | {served.cached_tokens / max(1, served.prompt_tokens):.1%} | "
                f"{seen_before(part):.1%} |",
                flush=True,
            )
            gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--replicas", type=int, nargs="+")
    parser.add_argument("--blocks", type=int, default=10_000_000)
    parser.add_argument("--speed", type=float, default=0.15, help="of the trace, for each replica")
    parser.add_argument("--seconds", type=float, default=240.0, help="of traffic")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds by which reports are late")
    given = parser.parse_args()
    if given.trace is None:
        time_router((given.replicas or [1000])[0], given.blocks)
    else:
        play_trace(given.trace, given.replicas or [2, 4, 8], given.speed, given.seconds, given.delay)


if __name__ == "__main__":
    main()
