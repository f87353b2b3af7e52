"""The cost of a step without its arithmetic: an engine of 256 running and 256 waiting sequences, whose
executor computes nothing.

    python -m bench.planning [--steps 400] [--json]

In `decode` decoding sequences occupy all 256 rows, and the others wait for rows. In `prompts` there are rows
for all, 64 of the running ones are long prompts, and the others wait for blocks or tokens of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import Future
from dataclasses import dataclass

from octavo.engine.core import Engine
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.params import SamplerParams
from octavo.scheduler.scheduler import Scheduler
from octavo.step.context import SchedulerConfig
from octavo.types import Request, SampledToken, StepPlan, StepResult

RUNNING, WAITING, LONG_PROMPTS = 256, 256, 64
BLOCK_SIZE, STEP_TOKENS = 16, 512
SHORT, LONG, OUTPUT = 64, 8_192, 4_096
_SAMPLE = SampledToken(7)


@dataclass(frozen=True, slots=True)
class Scene:
    """At most `rows` sequences run in the pool; the first `long_prompts` are long prompts."""

    name: str
    rows: int
    num_blocks: int
    long_prompts: int


SCENES = (
    Scene("decode", RUNNING, 200_000, 0),
    Scene("prompts", RUNNING + WAITING, LONG_PROMPTS * (LONG // BLOCK_SIZE) + 5_000, LONG_PROMPTS),
)


class NoExecutor:
    """An executor that returns the same token for every sample at once."""

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """The result of a plan."""
        samples = {chunk.seq_id: (_SAMPLE,) * chunk.num_samples for chunk in plan.chunks if chunk.num_samples}
        future: Future[StepResult] = Future()
        future.set_result(StepResult(plan.step_id, samples, seconds=0.01))
        return future

    def close(self) -> None:
        """Nothing to close."""


def engine_of(scene: Scene) -> Engine:
    """An engine that has admitted all sequences it can."""
    config = SchedulerConfig(
        scene.rows, STEP_TOKENS, 2_000, 16_384, frozenset([0]), pace=False, pin_blocks=scene.num_blocks // 2
    )

    def new_scheduler() -> Scheduler:
        root = root_name(b"planning")
        return Scheduler(Ledger(scene.num_blocks, BLOCK_SIZE), config, lambda tenant: root)

    engine = Engine(new_scheduler, NoExecutor(), lambda: None, 0, time.perf_counter)
    params = SamplerParams(max_tokens=OUTPUT, ignore_eos=True)
    for number in range(1, RUNNING + WAITING + 1):
        is_long = scene.long_prompts and number > RUNNING - scene.long_prompts
        length = LONG if is_long else SHORT
        prompt = (number % 30_000 + 2, *range(2, length + 1))
        engine.scheduler.submit(Request(number, prompt, params, OUTPUT, number))
    for _ in range(40):
        engine.step()
    return engine


def step_us(scene: Scene, steps: int) -> dict[str, float]:
    """Microseconds of a step: the median, and the 95th percentile."""
    engine, times = engine_of(scene), list[float]()
    for _ in range(steps):
        began = time.thread_time()  # CPU time: other programs do not count
        engine.step()
        times.append((time.thread_time() - began) * 1e6)
    live = engine.scheduler.live
    return {
        "median_us": statistics.median(times),
        "p95_us": statistics.quantiles(times, n=20)[-1],
        "running": len(live.running),
        "waiting": len(live.waiting),
    }


def main() -> int:
    """Measure each scene, and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="that are timed (default 400)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {scene.name: step_us(scene, given.steps) for scene in SCENES}
    if given.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    for name, one in found.items():
        sys.stdout.write(
            f"{name:8} {one['median_us']:8,.0f} us a step, {one['p95_us']:8,.0f} at p95 "
            f"({one['running']:.0f} run, {one['waiting']:.0f} wait)\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
