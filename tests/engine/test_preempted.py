"""Preempted either way, by recompute or kept below, answers are equal to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tests.tiny import Answer, over_kv_of, random_prompt, request, run, tiny_engine

from octavo.engine.core import Engine
from octavo.executor.disk import DiskStore
from octavo.kernels.contract import KvShape
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_block
from octavo.memory.holders import Holder, HolderKind
from octavo.retention.offload_stager import OffloadStager
from octavo.retention.transfers import Transfers
from octavo.types import Request

FINGERPRINT = b"p" * 32
STAGING = 12


class House:
    """Engines with and without a tier below; whether keeping is worth it is decided by the test, since the
    tiny model computes a block about as fast as a disk reads one."""

    def __init__(self, folder: Path, kv: str) -> None:
        self.kv, self._folder = kv, folder
        self.ops = over_kv_of(kv, NativeOps("f32"))
        self._bytes = bytes_per_block(KvShape(2, 2, 16, 16, kv))
        self._engines: list[Engine] = []

    def engine(self, num_blocks: int, depth: int, staging: int = STAGING) -> Engine:
        store = DiskStore.open(self._folder, 400 * (self._bytes + 4096), self._bytes, FINGERPRINT)
        engine = tiny_engine(self.ops, num_blocks=num_blocks, store=store, staging=staging, depth=depth)
        self._engines.append(engine)
        return engine

    def close(self) -> None:
        for engine in self._engines:
            engine.executor.close()


@pytest.fixture(params=["f32", "bf16", "int8"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, request.param)
    yield house
    house.close()


@pytest.fixture(params=["kept", "recomputed"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    is_kept = request.param == "kept"
    with (
        mock.patch.object(Transfers, "is_worth_it", return_value=is_kept),
        mock.patch.object(OffloadStager, "is_worth_it", return_value=is_kept),
    ):
        yield request.param


def crowd() -> list[Request]:
    """Six answers of 11 blocks each in the end, sampled, so that a changed bit shows."""
    rng = np.random.default_rng(8)
    return [
        request(i, random_prompt(rng, 70 + 3 * i), 100, temperature=1.0, seed=i, ignore_eos=True)
        for i in range(1, 7)
    ]


def essences(answers: dict[tuple[int, int], Answer]) -> dict[tuple[int, int], object]:
    return {key: answer.essence for key, answer in answers.items()}


def check_way(engine: Engine, way: str) -> None:
    staging = engine.scheduler.staging
    if way == "kept":
        assert staging.num_staged > 0
        assert staging.num_kept > 0
        assert engine.stats.preemptions_kept == staging.num_kept
    else:
        assert staging.num_staged == 0
        assert staging.num_recomputed > 0
        assert engine.stats.preemptions_recomputed == staging.num_recomputed
        assert engine.stats.tokens_recomputed > 0


@pytest.mark.parametrize("depth", [0, 1])
def test_a_pool_that_is_too_small_changes_no_bit(house: House, way: str, depth: int) -> None:
    wanted = essences(run(tiny_engine(house.ops), crowd()))
    engine = house.engine(30, depth)
    answers = run(engine, crowd())
    assert essences(answers) == wanted
    assert sum(answer.preemptions for answer in answers.values()) > 0
    check_way(engine, way)


def evict_everything(engine: Engine) -> None:
    """Whatever is cached in the pool is lost; what is below is not."""
    memory = engine.scheduler.ledger
    table = memory.open(Holder(HolderKind.SEQUENCE))
    if memory.num_available:
        memory.reserve(table, 0, memory.num_available * memory.block_size)
    memory.close(table)


def preempt_all_at(engine: Engine, step: int, again: int) -> Callable[[int], None]:
    def between(now: int) -> None:
        if now in (step, again):
            victims = sorted(engine.scheduler.live.running, key=lambda s: s.rank, reverse=True)
            engine.scheduler.preemption.preempt_all(victims, None)
        if now in (step + 1, again + 1):
            evict_everything(engine)

    return between


@pytest.mark.parametrize("depth", [0, 1])
def test_preempted_at_every_step_changes_no_bit(house: House, way: str, depth: int) -> None:
    prompt = random_prompt(np.random.default_rng(4), 90)
    ask = request(1, prompt, 30, n=2, temperature=0.8, seed=3, ignore_eos=True)
    wanted = essences(run(tiny_engine(house.ops), [ask]))
    engine = house.engine(60, depth)
    for step in range(1, 24, 3):
        evict_everything(engine)
        again = request(1 + step, prompt, 30, n=2, temperature=0.8, seed=3, ignore_eos=True)
        answers = essences(run(engine, [again], preempt_all_at(engine, step, step + 5)))
        assert {(1, choice): answer for (_, choice), answer in answers.items()} == wanted
    check_way(engine, way)


def test_an_arena_of_one_block_is_enough_to_be_right(house: House, way: str) -> None:
    wanted = essences(run(tiny_engine(house.ops), crowd()))
    engine = house.engine(26, 1, staging=1)
    assert essences(run(engine, crowd())) == wanted
