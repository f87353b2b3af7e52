"""The times of a device's kernels, compared with the copy rate of its memory: `bench kernels --device`.

Each case reads weights or KV that are in no cache: it cycles through several copies, as a model does through
its layers. CUDA events around a captured sequence of calls measure the time, so it includes no launches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from octavo.device.graphs import GraphMemory, Replay
from octavo.device.layout import DevicePool, allocate_pool
from octavo.device.triton.attention import (
    AttentionForm,
    allocate_scratch,
    attend_splitting,
    attend_walking,
)
from octavo.device.triton.attention_work import AttentionStep, tiles_of, work_on
from octavo.device.triton.linear import linear
from octavo.device.triton.norms import rms_norm
from octavo.kernels.contract import KvShape
from octavo.units import blocks_for

ROWS = (1, 8, 32, 64, 512)
_ROUNDS = 7


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """The measured sizes, in elements. The defaults are a layer of Llama 3.1 8B."""

    hidden: int = 4096
    ffn: int = 14_336
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    cold_bytes: int = 256 << 20  # of copies in all: beyond the last cache
    sequences: int = 8
    rows: tuple[int, ...] = ROWS


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """One kernel at one size; `share` is relative to the copy rate, so 1 for the copy itself."""

    kernel: str
    size: str
    seconds: float
    gigabytes_per_s: float
    share: float


@dataclass(frozen=True, slots=True)
class _Case:
    kernel: str
    size: str
    calls: Sequence[Callable[[], object]]  # on different memory
    num_bytes: int  # that one call must move


def measure_kernels(
    device: torch.device, dtype: torch.dtype, sizes: DeviceSizes | None = None
) -> Iterator[DeviceTime]:
    """The copy rate first, then each kernel."""
    sizes = sizes or DeviceSizes()
    rate = None
    for case in _cases(device, dtype, sizes):
        seconds = _time(case, device)
        speed = case.num_bytes / seconds
        rate = rate or speed
        yield DeviceTime(case.kernel, case.size, seconds, speed / 1e9, speed / rate)


def _cases(device: torch.device, dtype: torch.dtype, sizes: DeviceSizes) -> Iterator[_Case]:
    block = torch.empty(sizes.cold_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(block)
    yield _Case("copy", "memory to memory", [partial(target.copy_, block)], 2 * sizes.cold_bytes)
    for outputs, inputs in ((2 * sizes.ffn, sizes.hidden), (sizes.hidden, sizes.ffn)):
        weights = _copies(device, dtype, (outputs, inputs), sizes.cold_bytes)
        for rows in sizes.rows:
            x = torch.randn((rows, inputs), device=device).to(dtype)
            out = torch.empty((rows, outputs), dtype=dtype, device=device)
            calls = [partial(linear, out, x, weight) for weight in weights]
            yield _Case("product", f"{rows} x {inputs} by {outputs}", calls, weights[0].nbytes)
    x = torch.randn((512, sizes.hidden), device=device).to(dtype)
    branch, normed, ones = torch.randn_like(x), torch.empty_like(x), torch.ones(sizes.hidden, device=device)
    size = f"512 x {sizes.hidden}, with a sum"
    yield _Case("norm", size, [lambda: rms_norm(normed, x, ones, 1e-5, branch)], 4 * x.nbytes)
    for kind in ("bf16", "int8", "fp8") if dtype is torch.bfloat16 else ("f32", "int8"):
        yield from _attention(device, dtype, sizes, kind)


def _copies(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int], cold_bytes: int
) -> list[torch.Tensor]:
    size = shape[0] * shape[1] * dtype.itemsize
    return [torch.randn(shape, device=device).to(dtype) for _ in range(-(-cold_bytes // size))]


def _attention(device: torch.device, dtype: torch.dtype, sizes: DeviceSizes, kind: str) -> Iterator[_Case]:
    """Decoding over so much context that a layer's KV alone exceeds the cache."""
    shape = KvShape(1, sizes.kv_heads, sizes.head_size, 16, kind)
    pool = allocate_pool(shape, 1, device)
    per_block = pool.layout.bytes_per_layer
    blocks = blocks_for(sizes.cold_bytes, per_block * sizes.sequences)
    pool = allocate_pool(shape, blocks * sizes.sequences, device)
    if kind == "fp8":
        pool.data.random_(0, 0x70)
    else:
        pool.keys(0).copy_(torch.randint(-9, 9, pool.keys(0).shape, device=device))
        pool.values(0).copy_(torch.randint(-9, 9, pool.values(0).shape, device=device))
    if pool.layout.has_scales:
        pool.scales(0).fill_(0.01)
    num_bytes = blocks * sizes.sequences * per_block
    for name, call in _decoding(pool, dtype, sizes, blocks * 16):
        yield _Case(
            f"attention, {name}", f"{sizes.sequences} x {blocks * 16:,}, KV {kind}", [call], num_bytes
        )


def _decoding(
    pool: DevicePool, dtype: torch.dtype, sizes: DeviceSizes, context: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    device, count = pool.data.device, sizes.sequences
    tables = torch.randperm(pool.num_blocks, device=device).to(torch.int32).view(count, -1)
    starts = torch.full((count,), context - 1, dtype=torch.int32)
    each = torch.arange(count + 1, dtype=torch.int32, device=device)
    step = AttentionStep(tables, each[:-1], starts.to(device), each)
    tiles = tiles_of(starts.numpy(), torch.ones_like(starts).numpy(), 1)
    work = work_on(device, tiles, 1)
    q = torch.randn((count, sizes.heads * sizes.head_size), device=device).to(dtype)
    out, form = torch.empty_like(q), AttentionForm(sizes.head_size**-0.5)
    scratch = allocate_scratch(work.items_max, 1, sizes.heads, sizes.kv_heads, sizes.head_size, device)
    count = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    programs = max(1, 4 * count // sizes.kv_heads)
    yield "walking", lambda: attend_walking(out, q, pool, 0, step, work, form)
    yield "split", lambda: attend_splitting(out, q, pool, 0, step, work, form, scratch, programs)


def _time(case: _Case, device: torch.device) -> float:
    """Seconds of one call: the median of rounds over all copies."""

    def body() -> torch.Tensor:
        for call in case.calls:
            call()
        return torch.empty(0)

    replay = Replay(body, device, GraphMemory(device), case.kernel)
    rounds = []
    for _ in range(_ROUNDS if device.type == "cuda" else 1):
        rounds.append(_seconds(replay, device) / len(case.calls))
    return statistics.median(rounds)


def _seconds(replay: Replay, device: torch.device) -> float:
    if device.type != "cuda":
        started = time.perf_counter()
        replay()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000.0
