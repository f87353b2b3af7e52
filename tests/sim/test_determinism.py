"""A seed is a whole life: whatever ran before it in the process, and however this process hashes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from unittest import mock

import pytest

from octavo.sim.driver import drive
from octavo.sim.oracle import OracleExecutor
from octavo.types import StepPlan, StepResult

RUN = OracleExecutor.run
SEEDS = (2, 6, 11)  # of lives with a tier below, and stores that fail


def trace(seed: int) -> str:
    """All plans of a life, but for the ids that transfers get from the process."""
    traced = hashlib.md5()

    def run(self: OracleExecutor, plan: StepPlan) -> StepResult:
        traced.update(re.sub(r"transfer_id=\d+", "", repr(plan)).encode())
        return RUN(self, plan)

    with mock.patch.object(OracleExecutor, "run", run):
        drive(seed, seed % 3)
    return traced.hexdigest()


@pytest.fixture(scope="module")
def here() -> list[str]:
    return [trace(seed) for seed in SEEDS]


@pytest.mark.parametrize("hash_seed", ["1", "2", "3"])
def test_a_life_is_the_same_in_every_process(here: list[str], hash_seed: str) -> None:
    code = "from tests.sim.test_determinism import trace, SEEDS; print(*map(trace, reversed(SEEDS)))"
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == here[::-1]
