"""The random lives met a machine that is short of memory, and two tiers below, in each of their states."""

from __future__ import annotations

import pytest
from tests.simulator.lives import drive


@pytest.mark.full
def test_random_lives_step_back_grow_again_and_give_idle_memory_back() -> None:
    outcomes = [drive(seed, overlap) for seed in range(100, 108) for overlap in (0, 1)]
    assert sum(o.returned for o in outcomes) > 5
    assert sum(o.pressed for o in outcomes) > 20
    assert sum(o.relieved for o in outcomes) > 5
    assert sum(o.moved for o in outcomes) > 100
    assert sum(o.aged for o in outcomes) > 10


def test_what_is_on_its_way_from_host_memory_between_two_plans_is_not_thought_forgotten() -> None:
    drive(69, 1)  # a resize preempts, and its staged blocks push others on to disk
