"""Sequences larger than the pool: with most of their blocks in an offload tier they answer, to the bit, as
with all of them in the pool; alone, in a crowd, forked, preempted, after a restart, and when blocks are
damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tests.doubles.faults import Fault, FaultKind, FaultyFiles
from tests.tiny import Answer, over_kv_of, random_prompt, request, run, settle, tiny_engine

from octavo.engine.core import Engine
from octavo.errors import RequestTooLarge
from octavo.executor.disk import DiskStore
from octavo.executor.host import HostStore, TieredStore
from octavo.executor.transfers import BlockStore
from octavo.files import Files
from octavo.kernels.contract import KvShape
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_block, bytes_per_layer
from octavo.memory.quota import TenantPolicy
from octavo.params import SamplerParams
from octavo.types import FinishReason, Request

FINGERPRINT = b"f" * 32
SLOTS = 160
LENGTH = 490  # tokens of a prompt: 31 blocks, two partitions of attention


class House:
    """Engines over the tiny model, each with tiers of its own kind on one folder."""

    def __init__(self, folder: Path, kv: str, tiers: str) -> None:
        self.ops = over_kv_of(kv, NativeOps("f32"))
        self._folder, self._tiers = folder, tiers
        shape = KvShape(2, 2, 16, 16, kv)
        self._bytes, self._piece_bytes = bytes_per_block(shape), bytes_per_layer(shape)
        self._engines: list[Engine] = []

    def engine(self, num_blocks: int, files: object = None, slots: int = SLOTS, **changes: object) -> Engine:
        store, num_host = self._store(files, slots)
        given = {
            "num_blocks": num_blocks,
            "store": store,
            "num_host": num_host,
            "long_context": True,
            **changes,
        }
        engine = tiny_engine(self.ops, **given)  # type: ignore[arg-type]
        self._engines.append(engine)
        return engine

    def _store(self, files: object, slots: int) -> tuple[BlockStore, int]:
        host = HostStore(slots * (self._bytes + 4096), self._bytes) if self._tiers != "disk" else None
        if self._tiers == "host":
            assert host is not None
            return host, host.num_slots
        given = {"piece_bytes": self._piece_bytes, "files": files}
        disk = DiskStore.open(self._folder, slots * (self._bytes + 4096), self._bytes, FINGERPRINT, **given)  # type: ignore[arg-type]
        if host is None:
            return disk, 0
        few = HostStore(12 * (self._bytes + 4096), self._bytes)
        return TieredStore(few, disk), few.num_slots

    def plain(self, num_blocks: int = 200) -> Engine:
        return tiny_engine(self.ops, num_blocks=num_blocks)

    def close(self) -> None:
        for engine in self._engines:
            engine.executor.close()


@pytest.fixture(
    params=[("f32", "disk"), ("bf16", "disk"), ("int8", "disk"), ("f32", "host"), ("int8", "both")]
)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, *request.param)
    yield house
    house.close()


def long_request(
    number: int = 0, length: int = LENGTH, seed: int = 7, n: int = 1, **params: object
) -> Request:
    return request(number, random_prompt(np.random.default_rng(seed), length), 12, n, **params)


def same(answers: dict[tuple[int, int], Answer], expected: dict[tuple[int, int], Answer]) -> bool:
    return {k: a.essence for k, a in answers.items()} == {k: a.essence for k, a in expected.items()}


def num_cold(engine: Engine) -> int:
    return engine.scheduler.long_contexts.num_made_cold


@pytest.mark.parametrize("num_blocks", [16, 4, 2])
def test_a_pool_of_a_part_of_the_sequence_answers_as_one_that_holds_it(house: House, num_blocks: int) -> None:
    long = long_request()
    expected = run(house.plain(), [long])
    engine = house.engine(num_blocks, step_tokens=40)
    assert same(run(engine, [long]), expected)
    assert num_cold(engine) >= 31 - num_blocks


@pytest.mark.parametrize("depth", [0, 1])
def test_in_a_crowd_with_choices_and_scored_prompts(house: House, depth: int) -> None:
    rng = np.random.default_rng(3)
    crowd = [request(i, random_prompt(rng, 20 + 7 * i), 20, temperature=0.9, seed=i) for i in range(6)]
    long = [
        long_request(10, n=3, temperature=1.0, seed=5),
        long_request(11, 300, seed=8, prompt_logprobs=2),
        long_request(12, 470),  # it begins as the first one does
    ]
    expected = run(house.plain(), crowd + long)
    engine = house.engine(14, depth=depth, step_tokens=48)
    assert same(run(engine, long + crowd), expected)
    assert num_cold(engine)


def test_preempted_it_goes_on_with_what_is_offloaded(house: House) -> None:
    long = long_request()
    expected = run(house.plain(), [long])
    engine = house.engine(8, step_tokens=32)

    def between(step: int) -> None:
        if step in (15, 25):
            engine.scheduler.preemption.preempt_all(engine.scheduler.live.running[:], None)

    answers = run(engine, [long], between)
    assert same(answers, expected)
    assert answers[0, 0].preemptions == 2


def run_and_close(house: House, request: Request) -> None:
    """One engine answers it, stores what it has, and ends."""
    engine = house.engine(4)
    run(engine, [request])
    settle(engine)
    engine.executor.close()


def test_after_a_restart_the_prefix_is_verified_and_read_where_it_lies(tmp_path: Path) -> None:
    house = House(tmp_path, "f32", "disk")
    long = long_request()
    expected = run(house.plain(), [long])
    run_and_close(house, long)
    second = house.engine(4)
    answers = run(second, [long])
    assert same(answers, expected)
    assert answers[0, 0].cached >= 26 * 16
    house.close()


def test_damaged_blocks_are_computed_again(tmp_path: Path) -> None:
    house = House(tmp_path, "bf16", "disk")
    long = long_request()
    expected = run(house.plain(), [long])
    run_and_close(house, long)
    blocks = next(tmp_path.glob("*/blocks"))
    damaged = bytearray(blocks.read_bytes())
    for place in range(1000, len(damaged), len(damaged) // 5):
        damaged[place] ^= 1
    blocks.write_bytes(damaged)
    assert same(run(house.engine(4), [long]), expected)
    house.close()


def test_a_file_that_becomes_shorter_while_it_is_read_costs_time_alone(tmp_path: Path) -> None:
    house = House(tmp_path, "f32", "disk")
    long = long_request()
    expected = run(house.plain(), [long])
    engine = house.engine(4, step_tokens=40)

    def between(step: int) -> None:
        running = engine.scheduler.live.running
        if running and len(running[0].tokens) >= LENGTH + 3 and not running[0].preemptions:
            os.truncate(next(tmp_path.glob("*/blocks")), 0)

    assert same(run(engine, [long], between), expected)
    assert engine.scheduler.long_contexts.num_unreadable > 0
    house.close()


def _no_write(call: int, operation: str) -> Fault | None:
    return Fault(FaultKind.ENOSPC, 0) if operation == "pwrite" else None


def test_a_disk_that_stores_nothing_ends_it_and_nothing_else(tmp_path: Path) -> None:
    house = House(tmp_path, "f32", "disk")
    engine = house.engine(6, files=FaultyFiles(Files(), _no_write))
    short = request(1, [5, 6, 7], 8)
    expected = run(house.plain(), [short])
    answers = run(engine, [long_request(), short])
    assert same({(1, 0): answers[1, 0]}, expected)
    assert answers[0, 0].finish is FinishReason.ERROR
    house.close()


def test_what_no_tier_has_room_for_is_refused_with_numbers(tmp_path: Path) -> None:
    house = House(tmp_path, "f32", "disk")
    engine = house.engine(4, slots=20)
    with pytest.raises(
        RequestTooLarge, match=r"needs 32 KV blocks; allowed: 4 in the pool .* or 21 of which"
    ):
        engine.scheduler.submit(long_request())
    house.close()
    with pytest.raises(RequestTooLarge, match=r"needs 32 KV blocks; allowed: 4, what pins leave of the pool"):
        house.plain(4).scheduler.submit(long_request())


def test_cancelled_it_holds_nothing(house: House) -> None:
    engine = house.engine(6, step_tokens=32)

    def between(step: int) -> None:
        if step == 30:
            engine.scheduler.cancel(0)

    run(engine, [long_request()], between)
    settle(engine)
    tier = engine.scheduler.transfers.tier
    assert tier is not None
    assert not tier.readers()
    assert engine.scheduler.ledger.counts().held == 0


def test_who_reads_what_is_found_damaged_begins_again(house: House) -> None:
    long = long_request()
    expected = run(house.plain(), [long])
    engine = house.engine(6, step_tokens=32)

    def between(step: int) -> None:
        running = engine.scheduler.live.running
        if running and len(running[0].tokens) == LENGTH + 4 and not running[0].preemptions:
            assert running[0].table is not None
            engine.scheduler.transfers.lose(running[0].table.cold[2:3])

    answers = run(engine, [long], between)
    assert same(answers, expected)
    assert answers[0, 0].preemptions == 1


@mock.patch("octavo.executor.transfers.COMMIT_AFTER_S", 1000.0)
def test_blocks_that_a_commit_could_not_bring_to_the_medium_are_not_read(tmp_path: Path) -> None:
    house = House(tmp_path, "f32", "disk")
    is_broken = False

    def no_sync(call: int, operation: str) -> Fault | None:
        return Fault(FaultKind.EIO, 0) if operation == "fdatasync" and is_broken else None

    engine = house.engine(6, files=FaultyFiles(Files(), no_sync), step_tokens=32)
    long = long_request()
    expected = run(house.plain(), [long])

    def between(step: int) -> None:
        nonlocal is_broken
        running = engine.scheduler.live.running
        if running and len(running[0].tokens) == LENGTH + 2 and not running[0].preemptions:
            is_broken = True
            engine.executor._runner._transfers.sync(()).result()  # type: ignore[attr-defined]
            is_broken = False

    answers = run(engine, [long], between)
    assert same(answers, expected)
    assert engine.scheduler.long_contexts.num_unreadable > 0
    house.close()


def test_an_answer_of_open_length_is_long_rather_than_cut_short_by_the_pool(tmp_path: Path) -> None:
    house = House(tmp_path, "f32", "disk")
    engine = house.engine(8)

    def taken(num_prompt: int, asked: int | None = None) -> tuple[int, int]:
        params = SamplerParams(max_tokens=asked)
        one = replace(long_request(length=num_prompt), max_tokens=0, params=params)
        fitted = engine.scheduler.fitted(one)
        return fitted.max_tokens, fitted.hot_blocks

    assert taken(100) == (412, 8)  # the rest of the context, which is less than `ANSWER_MIN`
    assert taken(127) == (385, 8)
    assert taken(130) == (382, 8)
    assert taken(130, 2000) == (382, 8)
    with pytest.raises(RequestTooLarge, match="maximum context length is 512"):
        taken(600)
    house.close()


def test_one_that_its_tenant_keeps_out_does_not_keep_others_out(tmp_path: Path) -> None:
    house = House(tmp_path, "f32", "disk")
    engine = house.engine(12, step_tokens=32)
    engine.scheduler.tenants.set_policies([TenantPolicy("a", max_running=1)])
    ours = [replace(long_request(i, 300), tenant="a") for i in range(2)]
    theirs = replace(long_request(2, 300), tenant="b")
    began: list[int] = []

    def between(step: int) -> None:
        began.extend(s.request.request_id for s in engine.scheduler.live.running)

    run(engine, [*ours, theirs], between)
    assert began.index(2) < began.index(1)
    house.close()


def test_what_its_cold_blocks_take_is_charged_to_its_tenant(tmp_path: Path) -> None:
    house = House(tmp_path, "f32", "disk")
    long = replace(long_request(), tenant="a")
    plain, engine = house.plain(), house.engine(8, step_tokens=32)
    run(plain, [long])
    run(engine, [replace(request(5, [5, 6, 7] * 20, 20), tenant="b"), long])
    assert engine.scheduler.context.times.position_s is not None
    assert engine.scheduler.live.service.served["a"] > plain.scheduler.live.service.served["a"]
    house.close()
