"""The pool shrinks and grows while requests run: their blocks move, and answers are equal to the bit."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from tests.tiny import Answer, over_kv_of, random_prompt, request, run, tiny_engine

from octavo.engine.core import Engine
from octavo.kernels.native_ops import NativeOps
from octavo.step.plan_builder import PlanBuilder
from octavo.types import BlockCopy, Request

LARGE, SMALL = 64, 36


def crowd() -> list[Request]:
    """Long answers behind short ones, which leave the head of the pool while the tail is held; two choices
    share blocks, and one prompt is another's prefix."""
    rng = np.random.default_rng(12)
    shorts = [request(i, random_prompt(rng, 120), 2 + i, temperature=1.0, seed=i) for i in range(3)]
    prompts = [random_prompt(rng, 40 + 9 * i) for i in range(3)]
    longs = [
        request(10 + i, prompt, 60, n=1 + i % 2, temperature=1.0, seed=i, ignore_eos=True)
        for i, prompt in enumerate([*prompts, [*prompts[2], 5, 6]])
    ]
    return [*shorts, *longs]


def essences(answers: dict[tuple[int, int], Answer]) -> dict[tuple[int, int], object]:
    return {key: answer.essence for key, answer in answers.items()}


class Resizing:
    """Every few steps the pool becomes small, or large again; counts what happened to whom."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.moved = self.moved_in_flight = self.grown = 0  # sequences that run on, over all resizes

    def between(self, step: int) -> None:
        if step % 4 == 0:
            self._shrink()
        elif step % 4 == 2:
            self.grown += self._engine.scheduler.resizer.resize(LARGE)

    def _shrink(self) -> None:
        scheduler = self._engine.scheduler
        before = {s: list(s.table.blocks) for s in scheduler.live.running if s.table is not None}
        if not scheduler.resizer.resize(SMALL):
            return
        assert scheduler.ledger.pool.num_blocks == SMALL
        moved = [s for s in scheduler.live.running if s.table is not None and s.table.blocks != before[s]]
        self.moved += len(moved)
        self.moved_in_flight += sum(s.num_planned > s.num_computed for s in moved)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kv", ["f32", "bf16", "int8"])
def test_a_pool_that_is_resized_under_load_changes_no_bit(kv: str, depth: int) -> None:
    ops = over_kv_of(kv, NativeOps("f32"))
    wanted = essences(run(tiny_engine(ops), crowd()))
    engine = tiny_engine(ops, num_blocks=LARGE, depth=depth)
    resizing = Resizing(engine)
    assert essences(run(engine, crowd(), resizing.between)) == wanted
    engine.executor.close()
    assert resizing.moved >= 10, "blocks of running requests hardly moved"
    assert resizing.grown >= 5
    assert bool(resizing.moved_in_flight) == bool(depth), "a step was in flight, and its blocks moved"


def test_a_move_that_is_not_copied_shows() -> None:
    ops = NativeOps("f32")
    wanted = essences(run(tiny_engine(ops), crowd()))
    plain = PlanBuilder.move

    def move(self: PlanBuilder, copies: tuple[BlockCopy, ...], discarded: tuple[int, int]) -> None:
        plain(self, (), discarded)

    engine = tiny_engine(ops, num_blocks=LARGE)
    with mock.patch.object(PlanBuilder, "move", move):
        assert essences(run(engine, crowd(), Resizing(engine).between)) != wanted
