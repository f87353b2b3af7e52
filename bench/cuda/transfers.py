"""Transfers of blocks between GPU and host: their speed, and the gain of an offload tier in host memory.

    python bench/cuda/transfers.py

    copies       blocks one at a time, and many, through DeviceBlocks, compared with one large pinned copy
    preemption   a pool too small for the running requests, with and without an offload tier in host memory
    session      a chat suspended to a folder, resumed, and its next turn, compared with recomputing it

Copies use blocks of whole models; engines are of 0.6B.
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from engines import Chat, new_backend, open_llm, random_model, start
from measuring import Probe, begin, parser, seconds_of
from shapes import LLAMA_8B, QWEN3_06B, TINY, Shape

from octavo.bench.offline import measure, w1
from octavo.config import StartOptions
from octavo.device.backend import TorchBackend
from octavo.device.block_copies import DeviceBlocks
from octavo.device.layout import Layout, allocate_pool
from octavo.executor.transfers import BATCH_MAX
from octavo.kernels.contract import KvShape
from octavo.model.loader import LoadedModel
from octavo.serving.client import EngineClient

BLOCK = 16


def kv_shape(shape: Shape, kind: str) -> KvShape:
    """The KV shape of the whole model."""
    return KvShape(shape.layers, shape.kv_heads, shape.head, BLOCK, kind)


def copies(probe: Probe, shape: Shape, kind: str) -> None:
    """GB/s in each way, both directions."""
    layout = Layout(kv_shape(shape, kind))
    size = layout.bytes_per_block
    count = 4 if probe.tiny else max(8, min(512, int(1e9) // size))
    pool = allocate_pool(layout.shape, count, probe.device)
    blocks = DeviceBlocks(pool)
    arena = np.zeros(count * size, np.uint8)
    places = [memoryview(arena[i * size : (i + 1) * size]) for i in range(count)]
    big = torch.empty(count * size, dtype=torch.uint8, pin_memory=probe.is_cuda)
    flat = pool.data.view(-1)

    def fill(place: memoryview) -> bool:
        place[:] = places[0]
        return True

    def emit(way: str, seconds: float) -> None:
        probe.emit(
            "copies",
            shape=shape.name,
            kv=kind,
            block_kb=size / 1024,
            way=way,
            gb_per_s=count * size / seconds / 1e9,
            us_per_block=seconds / count * 1e6,
        )

    def one_by_one(ways: dict[str, Callable[[int], object]]) -> None:
        for way, move in ways.items():
            emit(way, host_seconds(probe, partial(for_each, move, count)))

    one_by_one(
        {
            "read_block": blocks.read_block,
            "write_block": lambda index: blocks.write_block(index, fill),
            "read_into, not pinned": lambda index: blocks.read_into([(index, places[index])]),
            "write_from, not pinned": lambda index: blocks.write_from([(index, places[index])]),
        }
    )
    blocks.pin(memoryview(arena))
    one_by_one(
        {
            "read_into, pinned": lambda index: blocks.read_into([(index, places[index])]),
            "write_from, pinned": lambda index: blocks.write_from([(index, places[index])]),
        }
    )
    every = list(enumerate(places))
    emit("read_into, 64 at once", host_seconds(probe, partial(in_batches, blocks.read_into, every)))
    emit("write_from, 64 at once", host_seconds(probe, partial(in_batches, blocks.write_from, every)))
    emit("one copy to the host", seconds_of(probe, lambda: big.copy_(flat, non_blocking=True), 5))
    emit("one copy from the host", seconds_of(probe, lambda: flat.copy_(big, non_blocking=True), 5))
    if probe.is_cuda:
        torch.cuda.cudart().cudaHostUnregister(arena.ctypes.data)


def for_each(move: Callable[[int], object], count: int) -> None:
    """Copy one block after another."""
    for index in range(count):
        move(index)


def in_batches(
    move: Callable[[Sequence[tuple[int, memoryview]]], None], places: Sequence[tuple[int, memoryview]]
) -> None:
    """Copy in batches, as the transfer worker does."""
    for first in range(0, len(places), BATCH_MAX):
        move(places[first : first + BATCH_MAX])


def host_seconds(probe: Probe, body: Callable[[], None]) -> float:
    """Median wall time: these calls wait for the device themselves."""
    times = []
    for _ in range(2 if probe.tiny else 6):
        started = time.perf_counter()
        body()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def preemption(probe: Probe, shape: Shape, loaded: LoadedModel, backend: TorchBackend) -> None:
    """More sequences than fit, answered with and without host memory."""
    count, prompt, output = (2, 4, 3) if probe.tiny else (64, 1024, 512)
    size = Layout(kv_shape(shape, probe.kv)).bytes_per_block
    needed = count * -(-(prompt + output) // BLOCK) * size
    plain = StartOptions(
        kv=probe.kv,
        kv_memory_bytes=max(2**16, needed * 6 // 10),
        max_seqs=count,
        step_tokens=64 if probe.tiny else 2048,
        overlap=1,
        speculate="off",
    )
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            "recomputed": plain,
            "host memory": dataclasses.replace(plain, host_cache_bytes=2 * needed),
            "host memory and disk": dataclasses.replace(  # preempted rows keep their blocks staged
                plain, host_cache_bytes=2 * needed, disk_cache=folder, disk_size_bytes=max(2**20, 2 * needed)
            ),
            "room for all": dataclasses.replace(plain, kv_memory_bytes=max(2**16, needed * 2)),
        }
        for way, options in ways.items():
            if probe.tiny and way in ("host memory", "room for all"):
                continue
            if not probe.has_time(f"preemption, {way}", 0 if probe.tiny else 40):
                continue
            probe.note(f"preemption, {way}")
            with open_llm(loaded, backend, options) as llm:
                report = measure(llm, w1(count, prompt, output, count))
                stats = llm.engine.stats
            probe.emit(
                "preemption",
                shape=shape.name,
                way=way,
                seconds=report.seconds,
                output_tokens_per_s=report.output_tokens_per_s,
                preemptions=stats.preemptions,
                preemptions_kept=stats.preemptions_kept,
                tokens_recomputed=stats.tokens_recomputed,
                blocks_stored=stats.blocks_stored,
                blocks_loaded=stats.blocks_loaded,
                transfers_failed=stats.transfers_failed,
            )
            del llm
            probe.free()


async def session(probe: Probe, shape: Shape, llm: EngineClient) -> None:
    """Suspend a chat, resume it, and run its next turn; compare with recomputing it."""
    length, output = (20, 3) if probe.tiny else (6000, 32)
    rng = np.random.default_rng(3)

    def text(count: int) -> str:
        return "".join(chr(ord("a") + int(letter)) for letter in rng.integers(0, 26, count))

    if not probe.tiny:
        await Chat(llm, output).say(text(length))  # compiles
    chat = Chat(llm, output)
    computed = await chat.say(text(length))
    started = time.perf_counter()
    view = await llm.sessions.suspend("", chat.session_id)
    suspended_s = time.perf_counter() - started
    for _ in range(0 if probe.tiny else 6):
        await Chat(llm, output).say(text(length))  # overwrites the pool's blocks
    started = time.perf_counter()
    await llm.sessions.resume("", chat.session_id)
    resumed_s = time.perf_counter() - started
    gone_on = await chat.say(text(8))
    probe.emit(
        "session",
        shape=shape.name,
        tokens=view.num_tokens,
        blocks=view.blocks.num_blocks,
        computed=computed,
        suspend_s=suspended_s,
        resume_s=resumed_s,
        gone_on=gone_on,
        resume_over_compute=resumed_s / computed["first_token_s"],
    )


def sessions(probe: Probe, shape: Shape, loaded: LoadedModel, backend: TorchBackend) -> None:
    """Sessions with a disk cache, without and with host memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        options = StartOptions(
            kv=probe.kv,
            kv_memory_bytes=2**20 if probe.tiny else 3 * 2**30,  # of four such chats
            max_seqs=4,
            step_tokens=64 if probe.tiny else 2048,
            speculate="off",
            host_cache_bytes=2**20 if probe.tiny else 4 * 2**30,
            disk_cache=folder,
            disk_size_bytes=2**22 if probe.tiny else 8 * 2**30,
        )
        started = start(loaded, backend, options)
        llm = EngineClient.over(started.engine, loaded.tokenizer, started.facts, 16, started.sessions)
        try:
            asyncio.run(asyncio.wait_for(session(probe, shape, llm), 240))
        except Exception as error:  # noqa: BLE001 - printed
            probe.emit("session", shape=shape.name, error=repr(error)[:400])
        finally:
            llm.close()


def main() -> None:
    """Measure copies, preemption and sessions."""
    probe = begin("transfers", parser(__doc__).parse_args())
    shape = TINY if probe.tiny else QWEN3_06B
    of_blocks = [(QWEN3_06B, "bf16"), (LLAMA_8B, "bf16"), (LLAMA_8B, "int8")]
    for one, kind in [(TINY, "f32")] if probe.tiny else of_blocks:
        probe.note(f"copies {one.name} {kind}")
        copies(probe, one, kind)
        probe.free()
    backend = new_backend(probe)
    loaded = random_model(shape, backend, 128 if probe.tiny else 8192)
    sessions(probe, shape, loaded, backend)
    probe.free()
    preemption(probe, shape, loaded, backend)


if __name__ == "__main__":
    main()
