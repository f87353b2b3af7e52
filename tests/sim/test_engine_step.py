"""The engine's step over the oracle: a wedge is a broken invariant that is reported, never a silent loop."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TypeVar
from unittest import mock

import pytest
from tests.tiny import request, run, tiny_engine

from octavo.engine.core import Engine
from octavo.engine.port import Submit
from octavo.executor import runner
from octavo.executor.executor import InlineExecutor
from octavo.executor.forward import HostForward
from octavo.kernels.native_ops import NativeOps
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.params import SamplerParams
from octavo.scheduler.planner import Planner
from octavo.scheduler.scheduler import Scheduler
from octavo.sim.oracle import OracleExecutor
from octavo.step.context import SchedulerConfig
from octavo.types import FinishReason, Request, StepPlan, StepResult

T = TypeVar("T")


def new_scheduler() -> Scheduler:
    return Scheduler(Ledger(8, 4), SchedulerConfig(), lambda tenant: root_name(tenant.encode()))


def test_work_that_can_never_be_planned_fails_loudly_and_the_engine_goes_on() -> None:
    oracle = OracleExecutor(num_blocks=8, block_size=4, vocab_size=50)
    engine = Engine(new_scheduler, InlineExecutor(oracle), oracle.rows.clear, 0, time.perf_counter)
    engine.inbox.post(Submit(Request(1, (1, 2, 3), SamplerParams(), 2, 0)))
    with (
        mock.patch.object(Planner, "ready", return_value=([], [], [])),
        pytest.raises(AssertionError, match="wedged") as caught,
    ):
        engine.step()
    (final,) = engine.recover(caught.value)
    assert final.finish is FinishReason.ERROR
    assert engine.idle
    engine.inbox.post(Submit(Request(2, (1, 2, 3), SamplerParams(), 2, 0)))
    assert sum(len(update.tokens) for _ in range(2) for update in engine.step()) == 2


def test_time_is_counted_in_steps_and_of_it_in_planning() -> None:
    """The clock moves a second with each look; the executor says 10 s, of which 3 s were for the batch."""

    class Timed(OracleExecutor):
        def run(self, plan: StepPlan) -> StepResult:
            return replace(super().run(plan), seconds=10.0, batch_seconds=3.0)

    oracle = Timed(num_blocks=8, block_size=4, vocab_size=50)
    ticks = itertools.count()
    engine = Engine(new_scheduler, InlineExecutor(oracle), oracle.rows.clear, 0, lambda: float(next(ticks)))
    engine.inbox.post(Submit(Request(1, (1, 2, 3), SamplerParams(), 2, 0)))
    engine.step()
    planned, committed = 1.0, 1.0
    assert engine.stats.step_seconds == planned + 10.0 + committed
    assert engine.stats.schedule_seconds == planned + 3.0 + committed


def test_the_runner_shows_how_much_of_a_step_was_building_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the runner's clock moves: 3 s while it builds a batch, 10 s while the model runs."""
    now = [0.0]

    def taking(seconds: float, work: Callable[..., T]) -> Callable[..., T]:
        def done(*given: object) -> T:
            now[0] += seconds
            return work(*given)

        return done

    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(HostForward, "prepare", taking(3.0, HostForward.prepare))
    monkeypatch.setattr(HostForward, "run", taking(10.0, HostForward.run))
    engine = tiny_engine(NativeOps(), clock=lambda: 0.0)
    run(engine, [request(1, [5, 6, 7], 2)])
    assert engine.stats.steps == 2
    assert engine.stats.schedule_seconds == 2 * 3.0
    assert engine.stats.step_seconds == 2 * (3.0 + 10.0)
