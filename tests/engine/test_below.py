"""Blocks that went to disk and came back are the same blocks: answers are equal to the bit, also after a
restart, and when the disk fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tests.doubles.faults import FaultKind, FaultyFiles, seeded
from tests.tiny import Answer, over_kv_of, random_prompt, request, run, settle, tiny_engine

from octavo.engine.core import Engine
from octavo.executor.disk import DiskStore
from octavo.files import Files
from octavo.kernels.contract import KvShape
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_block, bytes_per_layer
from octavo.retention.transfers import Transfers
from octavo.types import Request

FINGERPRINT = b"f" * 32
NUM_BLOCKS = 30


class House:
    """Engines over the tiny model, one after another, on one folder, where a layer of a block is a piece."""

    def __init__(self, folder: Path, kv: str) -> None:
        self.ops = over_kv_of(kv, NativeOps("f32"))
        self._folder = folder
        shape = KvShape(2, 2, 16, 16, kv)
        self._bytes, self._piece_bytes = bytes_per_block(shape), bytes_per_layer(shape)
        self._engines: list[Engine] = []

    def engine(self, slots: int = 400, files: object = None, **changes: object) -> Engine:
        given = {"piece_bytes": self._piece_bytes, "files": files}
        store = DiskStore.open(self._folder, slots * (self._bytes + 4096), self._bytes, FINGERPRINT, **given)  # type: ignore[arg-type]
        engine = tiny_engine(self.ops, num_blocks=NUM_BLOCKS, store=store, **changes)  # type: ignore[arg-type]
        self._engines.append(engine)
        return engine

    def plain(self) -> Engine:
        return tiny_engine(self.ops)

    def close(self) -> None:
        for engine in self._engines:
            engine.executor.close()


@pytest.fixture(params=["f32", "bf16", "int8"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, request.param)
    # The tiny model computes a block about as fast as a disk reads one: what a busy machine measures must not
    # decide what is tested here.
    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        yield house
        house.close()


def asks(first_id: int, count: int, length: int = 100) -> list[Request]:
    """The same prompts for the same count, under other ids; sampled, so that a changed bit shows."""
    rng = np.random.default_rng(5)
    return [
        request(first_id + i, random_prompt(rng, length), 12, temperature=1.0, seed=i) for i in range(count)
    ]


def serve(engine: Engine, requests: list[Request]) -> tuple[list[object], int]:
    """What they came to, one after another, and the tokens that were found cached."""
    told, cached = [], 0
    for one in requests:
        answer = run(engine, [one])[one.request_id, 0]
        told.append(answer.essence)
        cached += answer.cached
        settle(engine)
    return told, cached


@pytest.mark.parametrize("depth", [0, 1])
def test_what_comes_back_from_disk_is_equal(house: House, depth: int) -> None:
    wanted, _ = serve(house.plain(), asks(1, 8))
    engine = house.engine(depth=depth)
    first, _ = serve(engine, asks(1, 8))  # 8 prompts of 7 blocks: more than the pool holds
    assert first == wanted
    assert engine.scheduler.transfers.num_stored > NUM_BLOCKS
    again, cached = serve(engine, asks(101, 8))
    assert again == wanted
    assert engine.scheduler.transfers.num_loaded >= 40
    assert cached == 8 * 96
    assert engine.scheduler.transfers.num_failed == 0


def test_all_at_once_is_equal(house: House) -> None:
    wanted, _ = serve(house.plain(), asks(1, 8))
    engine = house.engine()
    serve(engine, asks(1, 8))
    for first in (101, 201):
        answers = run(engine, asks(first, 8))
        assert [answers[first + i, 0].essence for i in range(8)] == wanted
    assert engine.scheduler.transfers.num_loaded >= 10


def test_after_a_restart_only_the_last_block_is_computed_again(house: House) -> None:
    wanted, _ = serve(house.plain(), asks(1, 8))
    engine = house.engine()
    serve(engine, asks(1, 8))
    # What is still in the pool alone is lost; drive it down by using the pool for other things.
    serve(engine, [request(50 + i, random_prompt(np.random.default_rng(100 + i), 100), 2) for i in range(6)])
    engine.executor.close()
    engine = house.engine()
    again, cached = serve(engine, asks(101, 8))
    assert again == wanted
    assert cached == 8 * 96


def rest(engine: Engine) -> None:
    """Step until only a request could make it go on."""
    for _ in range(1000):
        if engine.idle and not engine.scheduler.transfers.in_flight:
            return
        if engine.idle:
            engine.inbox.wait(10)
        engine.step()
        engine.scheduler.check()
    raise AssertionError("it never comes to rest")


@pytest.mark.parametrize("slots", [400, 5])
def test_an_engine_without_work_stores_what_is_cached_once(house: House, slots: int) -> None:
    engine = house.engine(slots)
    run(engine, asks(1, 3))
    rest(engine)
    assert engine.scheduler.transfers.num_stored == 3 * 6  # the full blocks of 111 positions


def test_a_small_store_keeps_what_was_used_last_and_answers_stay_equal(house: House) -> None:
    wanted, _ = serve(house.plain(), asks(1, 8))
    engine = house.engine(slots=20)
    for first in (1, 101, 201):
        assert serve(engine, asks(first, 8))[0] == wanted
    assert engine.scheduler.transfers.tier is not None
    assert engine.scheduler.transfers.tier.num_evictions > 0


def test_a_disk_that_fails_costs_time_and_no_answer(house: House) -> None:
    wanted, _ = serve(house.plain(), asks(1, 8))
    is_armed = False
    faults = seeded(3, 0.1, [*FaultKind][:6])  # short, flipped, full, broken: whatever does not kill
    files = FaultyFiles(Files(), lambda call, operation: faults(call, operation) if is_armed else None)
    engine = house.engine(files=files)
    is_armed = True
    for first in (1, 101, 201):
        assert serve(engine, asks(first, 8))[0] == wanted
    assert engine.scheduler.transfers.num_failed > 0
    assert len(files.struck) > 3
    engine.scheduler.check()
    assert any("will be recomputed" in event.text for event in engine.scheduler.events.recent(1000))


def test_after_a_restart_a_prefix_is_found_in_a_tier_under_its_own_salt_alone(house: House) -> None:
    prompt = random_prompt(np.random.default_rng(1), 100)

    def answer_under(engine: Engine, request_id: int, salt: str) -> Answer:
        asked = dataclasses.replace(request(request_id, prompt, 5), cache_salt=salt)
        return run(engine, [asked])[request_id, 0]

    first = house.engine()
    wanted = answer_under(first, 1, "a").essence
    settle(first)
    first.executor.close()
    second = house.engine()
    for request_id, (salt, cached) in enumerate([("b", 0), ("", 0), ("a", 96)]):
        answer = answer_under(second, request_id, salt)
        assert (answer.cached, answer.essence) == (cached, wanted), salt
