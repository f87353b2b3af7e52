"""Sequences larger than a device's pool: blocks in host memory are read there, with the bits of a pool that
holds all. Torch's CPU stands for the device; its kernels run in Triton's interpreter."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from tests.device.over_torch import TinyCompiled, TinyTorch
from tests.tiny import Answer, random_prompt, request, run, tiny_engine, tiny_model

from octavo.device import backend
from octavo.device.layout import DevicePool, Layout
from octavo.engine.core import Engine
from octavo.executor.host import HostStore
from octavo.kernels.contract import KvShape
from octavo.types import Request

pytestmark = pytest.mark.full
SLOTS = 60


def engine_of(ops: TinyTorch | TinyCompiled, num_blocks: int, *, is_long: bool, **changes: object) -> Engine:
    store = None
    if is_long:
        per_block = Layout(KvShape(2, 2, 16, 16, ops.kv)).bytes_per_block
        store = HostStore(SLOTS * per_block, per_block)
    given = {"store": store, "num_host": SLOTS if is_long else 0, "long_context": is_long, **changes}
    model = tiny_model(ops)  # type: ignore[arg-type]
    return tiny_engine(ops, num_blocks=num_blocks, model=model, **given)  # type: ignore[arg-type]


def mapped_pool(shape: KvShape, num_blocks: int, device: torch.device) -> DevicePool:
    """A pool that the system maps, as it does host memory: not billions of its small blocks away from it."""
    layout = Layout(shape)
    memory = mmap.mmap(-1, num_blocks * layout.bytes_per_block, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    data = torch.from_numpy(np.frombuffer(memory, np.uint8)).view(num_blocks, layout.bytes_per_block)
    return DevicePool(layout, data)


def asked(length: int, max_tokens: int) -> list[Request]:
    rng = np.random.default_rng(5)
    long = request(1, random_prompt(rng, length), max_tokens, n=2, temperature=0.8, seed=4)
    short = [request(2 + i, random_prompt(rng, 11 + 5 * i), max_tokens) for i in range(2)]
    return [long, *short]


def essences(answers: dict[tuple[int, int], Answer]) -> dict[tuple[int, int], object]:
    return {key: answer.essence for key, answer in answers.items()}


@pytest.mark.parametrize("kv", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_part_of_the_pool_is_enough_over_tensors(kv: str, depth: int) -> None:
    ops = TinyTorch(kv)
    expected = essences(run(engine_of(ops, 200, is_long=False), asked(400, 8)))
    engine = engine_of(ops, 9, is_long=True, depth=depth, step_tokens=40)
    assert engine.executor._runner.cold_reach.num_parts == 1  # type: ignore[attr-defined]
    assert essences(run(engine, asked(400, 8))) == expected
    assert engine.scheduler.long_contexts.num_made_cold > 10


@pytest.mark.usefixtures("chained_dots")
@pytest.mark.parametrize("kv", ["bf16"])
def test_one_kernel_reads_both_memories(kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = TinyCompiled(kv)
    expected = essences(run(engine_of(ops, 60, is_long=False, step_tokens=32), asked(90, 2)))
    monkeypatch.setattr(backend, "allocate_pool", mapped_pool)
    engine = engine_of(ops, 4, is_long=True, step_tokens=32)
    assert essences(run(engine, asked(90, 2))) == expected
    assert engine.scheduler.long_contexts.num_made_cold > 2
