"""Blocks that went to host memory, and on to disk, and came back are the same blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from tests.engine.test_below import FINGERPRINT, NUM_BLOCKS, asks, serve
from tests.tiny import over_kv_of, run, tiny_engine

from octavo.config import StartOptions
from octavo.engine.core import Engine
from octavo.engine.offload import open_stores
from octavo.engine.port import inspector_of
from octavo.errors import ConfigError
from octavo.executor.transfers import BlockStore
from octavo.kernels.contract import KvShape
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_block
from octavo.retention.transfers import Transfers

BLOCK = bytes_per_block(KvShape(2, 2, 16, 16, "bf16"))


@pytest.fixture(autouse=True)
def always_worth_it() -> Iterator[None]:
    """The tiny model computes a block faster than it is copied."""
    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        yield


def ops() -> NativeOps:
    return over_kv_of("bf16", NativeOps("f32"))  # type: ignore[return-value]


def engine_with(host_slots: int, disk: Path | None = None, disk_slots: int = 0, depth: int = 0) -> Engine:
    options = StartOptions(
        host_cache_bytes=host_slots * BLOCK,
        disk_cache=None if disk is None else str(disk),
        disk_size_bytes=max(2**20, disk_slots * BLOCK),
    )
    below = open_stores(options, BLOCK, FINGERPRINT)
    assert below is not None
    assert below.num_host == host_slots
    store: BlockStore = below.store
    return tiny_engine(ops(), num_blocks=NUM_BLOCKS, store=store, num_host=below.num_host, depth=depth)


@pytest.mark.parametrize("depth", [0, 1])
def test_what_comes_back_from_host_memory_is_equal(depth: int) -> None:
    wanted, _ = serve(tiny_engine(ops()), asks(1, 8))
    engine = engine_with(200, depth=depth)
    assert serve(engine, asks(1, 8))[0] == wanted
    again, cached = serve(engine, asks(101, 8))
    assert again == wanted
    assert cached == 8 * 96
    assert engine.scheduler.transfers.num_loaded >= 40
    totals = inspector_of(engine.scheduler).kv(0.0).totals
    assert totals is not None
    told = totals.tier
    assert told is not None
    assert told.num_in_host == told.num_stored > NUM_BLOCKS
    engine.executor.close()


def test_a_small_arena_forgets_and_answers_stay_equal() -> None:
    wanted, _ = serve(tiny_engine(ops()), asks(1, 8))
    engine = engine_with(5)
    for first in (1, 101, 201):
        assert serve(engine, asks(first, 8))[0] == wanted
    tier = engine.scheduler.transfers.tier
    assert tier is not None
    assert tier.num_evictions > 0
    engine.executor.close()


def test_host_memory_overflows_to_disk_and_a_restart_finds_what_is_there(tmp_path: Path) -> None:
    wanted, _ = serve(tiny_engine(ops()), asks(1, 8))
    engine = engine_with(10, tmp_path, 200)
    assert serve(engine, asks(1, 8))[0] == wanted
    again, cached = serve(engine, asks(101, 8))
    assert (again, cached) == (wanted, 8 * 96)
    tier = engine.scheduler.transfers.tier
    assert tier is not None
    assert (tier.num_in_host, tier.num_evictions) == (10, 0)
    num_on_disk = tier.num_stored - tier.num_in_host
    assert num_on_disk > NUM_BLOCKS
    assert engine.scheduler.transfers.num_failed == 0
    engine.executor.close()
    engine = engine_with(10, tmp_path, 200)
    tier = engine.scheduler.transfers.tier
    assert tier is not None
    assert (tier.num_in_host, tier.num_stored) == (0, num_on_disk)
    again, cached = serve(engine, asks(201, 8))
    assert again == wanted
    assert cached >= 3 * 96
    engine.scheduler.check()
    engine.executor.close()


def test_all_at_once_over_both_tiers_is_equal(tmp_path: Path) -> None:
    wanted, _ = serve(tiny_engine(ops()), asks(1, 8))
    engine = engine_with(10, tmp_path, 25)
    for first in (1, 101, 201):
        answers = run(engine, asks(first, 8))
        assert [answers[first + i, 0].essence for i in range(8)] == wanted
    engine.executor.close()


def test_after_a_broken_state_nothing_below_is_found(tmp_path: Path) -> None:
    engine = engine_with(10, tmp_path, 200)
    serve(engine, asks(1, 8))
    engine.recover(RuntimeError("broken"))
    tier = engine.scheduler.transfers.tier
    assert tier is not None
    assert (tier.num_stored, tier.num_free) == (0, tier.num_slots)
    assert serve(engine, asks(101, 2))[1] == 0
    engine.executor.close()


def test_an_arena_without_room_for_a_block_is_refused_and_lets_the_disk_go(tmp_path: Path) -> None:
    options = StartOptions(host_cache_bytes=1, disk_cache=str(tmp_path), disk_size_bytes=2**20)
    with pytest.raises(ConfigError, match="host_cache is 1 bytes"):
        open_stores(options, BLOCK, FINGERPRINT)
    open_stores(StartOptions(disk_cache=str(tmp_path), disk_size_bytes=2**20), BLOCK, FINGERPRINT)
