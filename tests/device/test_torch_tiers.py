"""Blocks that left torch's pool for host memory or a disk and came back are the same blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from tests.device.reusing import torch_instead_of_native
from tests.engine import test_below, test_host_cache, test_preempted
from tests.engine.test_below import (  # noqa: F401 - collected here, with the fixtures of this file
    test_a_disk_that_fails_costs_time_and_no_answer,
    test_after_a_restart_only_the_last_block_is_computed_again,
    test_all_at_once_is_equal,
    test_what_comes_back_from_disk_is_equal,
)
from tests.engine.test_preempted import way  # noqa: F401

from octavo.device.layout import Layout
from octavo.kernels.contract import KvShape
from octavo.retention.transfers import Transfers

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True, scope="module")
def over_torch() -> Iterator[None]:
    with torch_instead_of_native(test_below, test_host_cache, test_preempted) as patch:
        patch.setattr(test_host_cache, "BLOCK", Layout(KvShape(2, 2, 16, 16, "bf16")).bytes_per_block)
        yield


@pytest.fixture(params=["int8"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[test_below.House]:
    house = test_below.House(tmp_path, request.param)
    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        yield house
        house.close()


@pytest.mark.parametrize("depth", [0, 1])
def test_what_comes_back_from_host_memory_is_equal(depth: int) -> None:
    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        test_host_cache.test_what_comes_back_from_host_memory_is_equal(depth)


def test_host_memory_overflows_to_disk_and_a_restart_finds_what_is_there(tmp_path: Path) -> None:
    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        test_host_cache.test_host_memory_overflows_to_disk_and_a_restart_finds_what_is_there(tmp_path)


@pytest.mark.parametrize("kv,depth", [("f32", 1), ("fp8", 0)])
def test_a_pool_that_is_too_small_changes_no_bit(kv: str, depth: int, way: str, tmp_path: Path) -> None:  # noqa: F811
    house = test_preempted.House(tmp_path, kv)
    try:
        test_preempted.test_a_pool_that_is_too_small_changes_no_bit(house, way, depth)
    finally:
        house.close()
