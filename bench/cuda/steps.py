"""Whole steps: a decoding step over the bandwidth's floor, tokens per second, the host's gap; 0.6B and 8B.

    python bench/cuda/steps.py --shape 0.6B
    python bench/cuda/steps.py --shape 8B
    python bench/cuda/steps.py --shape 8B --no-peer

    replay      the captured step and its argmax alone, by events: target 0.85 of the floor at batch 1
    engine      tokens per second through the engine in this process, overlap 1
    gap         device time without work in each step of 32, from torch's profiler: target 50 us
    kernels     us a step of each kernel in those steps, the largest first
    sampled     other sampling parameters, compared with greedy
    peer        transformers' continuous batching on the same card

Each shape takes three to six minutes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from engines import forward_of, new_backend, open_llm, random_model
from measuring import Probe, begin, copy_rate, medians, parser
from peer import generate_batch
from shapes import LLAMA_8B, QWEN3_06B, TINY, Shape
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from octavo.api.llm import LLM
from octavo.bench.offline import Workload, measure, prompts_of, w1, warm_up
from octavo.config import StartOptions
from octavo.device.compiled import CompiledArithmetic
from octavo.params import SamplerParams

SHAPES = {shape.name: shape for shape in (QWEN3_06B, LLAMA_8B)}
CONTEXT = 2048
_KERNELS_SHOWN = 24


def workload(count: int, tiny: bool) -> Workload:
    """128 random tokens in, 128 out, `count` requests at once, as for the peer."""
    return w1(count, 4, 3, count) if tiny else w1(max(4, count), 128, 128, count)


def tokens_per_s(probe: Probe, llm: LLM, shape: Shape, counts: tuple[int, ...], rate: float) -> None:
    """W1, once to capture and once to measure."""
    floor = shape.weights_read * probe.dtypes[0].itemsize / rate
    for count in counts:
        if not probe.has_time(f"engine {shape.name} {count}"):
            continue
        probe.note(f"engine {shape.name}, {count} in flight")
        if not probe.tiny:
            measure(llm, workload(count, probe.tiny))
        report = measure(llm, workload(count, probe.tiny))
        probe.emit(
            "engine",
            shape=shape.name,
            in_flight=count,
            output_tokens_per_s=report.output_tokens_per_s,
            decode_tokens_per_s=report.decode_tokens_per_s,
            prefill_tokens_per_s=report.prefill_tokens_per_s,
            between_p50_ms=report.between_p50_s * 1e3,
            between_p95_ms=report.between_p95_s * 1e3,
            of_floor=floor * report.decode_tokens_per_s / count,
            plan_ms=report.plan_seconds / max(1, report.steps) * 1e3,
            steps=report.steps,
        )


def sampled(probe: Probe, llm: LLM, shape: Shape, count: int) -> None:
    """The same requests with other sampling parameters: the cost of sampling on the device compared with
    greedy."""
    load = workload(count, probe.tiny)
    prompts = prompts_of(load, shape.vocab)
    common: dict[str, Any] = {"max_tokens": load.output, "ignore_eos": True, "seed": 1}
    kinds = {
        "top-k and top-p": SamplerParams(temperature=1.0, top_k=50, top_p=0.9, **common),
        "greedy": SamplerParams(temperature=0.0, **common),
        "temperature": SamplerParams(temperature=1.0, **common),
        "logprobs": SamplerParams(temperature=0.0, logprobs=5, **common),
        "penalties": SamplerParams(temperature=0.0, repetition_penalty=1.1, **common),
    }
    for kind, params in list(kinds.items())[: 1 if probe.tiny else None]:
        if not probe.has_time(f"sampled {kind}", 0 if probe.tiny else 20):
            continue
        probe.note(f"{count} at once, {kind}")
        started = time.perf_counter()
        llm.generate(prompts, params)
        seconds = time.perf_counter() - started
        speed = len(prompts) * load.output / seconds
        probe.emit("sampled", shape=shape.name, at_once=count, kind=kind, output_tokens_per_s=speed)


def replays(probe: Probe, llm: LLM, shape: Shape, rate: float) -> None:
    """Device time of the engine's captured steps, with the present contexts."""
    arithmetic = forward_of(llm).arithmetic
    assert isinstance(arithmetic, CompiledArithmetic)
    num_bytes = shape.weights_read * probe.dtypes[0].itemsize
    kept = arithmetic._steps._kept
    replayed = {size.tokens: each.replay for size, each in kept.items() if size.is_decoding}
    for size, replay in sorted(replayed.items()):
        if replay is None or size & (size - 1):
            continue

        def step(replay: Callable[[], torch.Tensor] = replay) -> object:
            return arithmetic.likeliest(replay())

        hidden = medians(probe, {"hidden": replay}, captured=False)["hidden"]
        whole = medians(probe, {"step": step}, captured=False)["step"]
        probe.emit(
            "replay",
            shape=shape.name,
            batch=size,
            step_ms=whole * 1e3,
            hidden_ms=hidden * 1e3,
            floor_ms=num_bytes / rate * 1e3,
            of_floor=num_bytes / rate / whole,
            gb_per_s=num_bytes / whole / 1e9,
        )


def host_gap(probe: Probe, llm: LLM, shape: Shape, count: int) -> None:
    """Device time without work in steps of `count` rows, from torch's profiler."""
    num_steps = 2 if probe.tiny else 40
    params = SamplerParams(max_tokens=num_steps + 8, temperature=0.0, ignore_eos=True)
    prompts = prompts_of(w1(count, 4 if probe.tiny else 64, 2, count + 1), llm.started.facts.vocab_size)
    for prompt in prompts:
        llm.add_request(prompt, params)
    for _ in range(1 if probe.tiny else 6):
        llm.step()
    activity = ProfilerActivity.CUDA if probe.is_cuda else ProfilerActivity.CPU
    try:
        with profile(activities=[activity]) as profiler:
            for _ in range(num_steps):
                llm.step()
            probe.wait()
        events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
        spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    except Exception as error:  # noqa: BLE001 - a machine may forbid it
        probe.emit("gap", shape=shape.name, in_flight=count, error=repr(error)[:300])
        return
    finally:
        while llm.num_unfinished:
            llm.step()
    times = Counter[str]()
    for event in events:
        times[event.name] += event.time_range.end - event.time_range.start
    by_name = {name: time / num_steps for name, time in times.most_common(_KERNELS_SHOWN)}
    probe.emit("kernels", shape=shape.name, in_flight=count, steps=num_steps, us_per_step=by_name)
    gaps, end = [], spans[0][1] if spans else 0.0
    for start, stop in spans:
        if start > end:
            gaps.append(start - end)
        end = max(end, stop)
    largest = sorted(gaps)[-num_steps:]
    window = (end - spans[0][0]) if spans else 0.0
    probe.emit(
        "gap",
        shape=shape.name,
        in_flight=count,
        steps=num_steps,
        launches_per_step=len(spans) / num_steps,
        step_us=window / num_steps,
        idle_us_per_step=sum(gaps) / num_steps,
        largest_gap_p50_us=largest[len(largest) // 2] if largest else None,
        largest_gap_us=largest[-1] if largest else None,
    )


def main() -> None:
    """Measure one shape, or both."""
    made = parser(__doc__)
    made.add_argument("--shape", choices=[*SHAPES, "all"], default="all")
    made.add_argument("--no-peer", action="store_true", help="without transformers")
    given = made.parse_args()
    probe = begin("steps", given)
    rate = copy_rate(probe)
    named = list(SHAPES.values()) if given.shape == "all" else [SHAPES[given.shape]]
    chosen = [TINY] if probe.tiny else named
    counts = (2,) if probe.tiny else (32, 128, 256)
    for shape in chosen:
        backend = new_backend(probe)
        probe.note(f"weights of {shape.name}")
        loaded = random_model(shape, backend, 128 if probe.tiny else CONTEXT)
        options = StartOptions(
            kv=probe.kv,
            kv_memory_bytes=2**22 if probe.tiny else 24 * 2**30,
            max_seqs=256,
            step_tokens=64 if probe.tiny else 2048,
            overlap=1,
            speculate="off",
            prefix_caching=False,
        )
        with open_llm(loaded, backend, options) as llm:
            if not probe.tiny:
                warm_up(llm)
            if not probe.tiny:
                tokens_per_s(probe, llm, shape, (1,), rate)
                host_gap(probe, llm, shape, 1)
            tokens_per_s(probe, llm, shape, counts, rate)
            host_gap(probe, llm, shape, counts[0])
            sampled(probe, llm, shape, counts[0])
            with torch.inference_mode():  # as the runner
                replays(probe, llm, shape, rate)
        del llm, loaded, backend
        probe.free()
        if not given.no_peer:
            batches = {count: prompts_of(workload(count, probe.tiny), shape.vocab) for count in counts}
            generate_batch(probe, shape, batches, workload(counts[0], probe.tiny).output)
            probe.free()


if __name__ == "__main__":
    main()
