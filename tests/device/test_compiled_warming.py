"""Before the first request the largest step is tried and decoding is captured; no token or block changes."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from tests.device.over_torch import CPU, TinyCompiled
from tests.tiny import request, run, tiny_engine, tiny_model

from octavo.device import compiled, open_backend, sized_steps
from octavo.device.compiled_step import StepSize
from octavo.device.rows import Writes
from octavo.errors import ConfigError
from octavo.executor.batch import shape_of
from octavo.executor.runner import Runner
from octavo.types import Chunk

pytestmark = pytest.mark.full


@pytest.fixture
def engine() -> Any:
    ops = TinyCompiled()
    return tiny_engine(ops, model=tiny_model(ops), rows=20)  # type: ignore[arg-type]


def runner_of(engine: Any) -> Runner:
    runner: Runner = engine.executor._runner
    return runner


def steps_of(engine: Any) -> sized_steps.SizedSteps:
    steps: sized_steps.SizedSteps = runner_of(engine).forward.arithmetic._steps  # type: ignore[attr-defined]
    return steps


def test_likely_sizes_come_first_and_the_others_follow_one_by_one(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_WARM_SIZES", 4)
    steps, said = steps_of(engine), list[str]()
    sizes = [size.tokens for size in steps.decoding_sizes()]
    assert sizes == [24, 1, 2, 4, 8, 16]
    pool = runner_of(engine).forward.pool.data  # type: ignore[attr-defined]
    rows = steps._rows.state
    before = pool.clone(), rows.clone()
    runner_of(engine).warm(48, said.append)
    assert said[-1] == "trying a step of 48 tokens"
    assert said[:-1] == [f"capturing decoding of {n} ({i} of 4)" for i, n in enumerate((24, 1, 2, 4), 1)]
    warm = [size.tokens for size in steps.decoding_sizes() if steps.is_warm(size)]
    assert warm == [24, 1, 2, 4]
    assert [runner_of(engine).warm_more() for _ in range(3)] == [True, True, False]
    assert all(steps.is_warm(size) for size in steps.decoding_sizes())
    assert torch.equal(pool, before[0])
    assert torch.equal(rows, before[1])


def test_a_capture_ahead_that_fails_is_the_last_and_costs_no_request(
    engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(size: StepSize) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(steps_of(engine), "warm", fail)
    assert not runner_of(engine).warm_more()
    assert "no more steps are captured ahead" in caplog.text
    monkeypatch.undo()
    assert not runner_of(engine).warm_more()
    assert len(run(engine, [request(1, (5, 6, 7), 4)])[1, 0].tokens) == 4


def test_the_size_that_was_used_longest_ago_makes_room(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_steps, "_KEPT_SIZES", 2)
    steps = steps_of(engine)
    one, two, three = (StepSize(count, count, 0, count, 0) for count in (1, 2, 4))
    for size in (one, two, one, three):
        steps.warm(size)
    assert list(steps._kept) == [one, three]


def test_answers_are_the_same_and_decoding_is_replayed_from_its_first_step(engine: Any) -> None:
    ops = TinyCompiled()
    wanted = run(tiny_engine(ops, model=tiny_model(ops)), [request(1, (5, 6, 7), 4)])  # type: ignore[arg-type]
    runner_of(engine).warm(32, lambda text: None)
    found = run(engine, [request(1, (5, 6, 7), 4)])
    assert found[1, 0].essence == wanted[1, 0].essence
    assert engine._counters.device_steps == {"first": 1, "replayed": 3}


def test_a_size_of_prompts_is_launched_before_it_is_captured(engine: Any) -> None:
    steps = steps_of(engine)
    chunks = (Chunk(1, 0, 3, 1, 1, 3), Chunk(2, 1, 0, 8, 1, 7))
    ways = []
    with torch.inference_mode():
        for _ in range(19):
            steps.prepare(shape_of(chunks), Writes())
            assert steps.run().shape[0] == 2
            ways.append(steps.way.value)
    assert ways == ["first", *["warming"] * 15, "first", "replayed", "replayed"]


@pytest.mark.usefixtures("chained_dots")
def test_more_tiles_of_a_prompt_than_rows_alongside_one_that_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists have one length, but partials of single tokens have room for the rows alone."""
    monkeypatch.setattr(open_backend, "_PROCESSORS_OF_A_CPU", 64)
    monkeypatch.setattr(sized_steps, "_LAUNCHED_FIRST", 0)
    ops = TinyCompiled()
    asked = [request(1, (5, 6, 7), 4), request(2, tuple(3 + i % 50 for i in range(230)), 2)]
    alone = {}
    for one in asked:
        alone |= run(tiny_engine(ops, model=tiny_model(ops), rows=2, step_tokens=250), [one])  # type: ignore[arg-type]
    engine = tiny_engine(ops, model=tiny_model(ops), rows=2, step_tokens=120)  # type: ignore[arg-type]
    crowd = run(engine, asked)
    assert any(size.singles > 2 for size in steps_of(engine)._kept if size.tiles), "no list is longer"
    assert {key: one.essence for key, one in crowd.items()} == {
        key: one.essence for key, one in alone.items()
    }


def test_what_is_captured_while_nothing_runs_writes_into_no_block() -> None:
    """The place of a size holds the arrays of its last step: they name blocks that are others' by now."""
    ops = TinyCompiled()
    engine = tiny_engine(ops, model=tiny_model(ops), rows=4, num_blocks=8)  # type: ignore[arg-type]
    steps, pool = steps_of(engine), runner_of(engine).forward.pool.data  # type: ignore[attr-defined]
    run(engine, [request(1, tuple(range(5, 25)), 9), request(2, tuple(range(30, 50)), 4)])
    assert steps._kept, "nothing was captured"
    long = tuple((7 * i) % 60 + 3 for i in range(100))
    first = run(engine, [request(8, long, 4)])[8, 0]
    before = pool.clone()
    with torch.inference_mode():
        for size in steps.decoding_sizes():
            steps.warm(size)
    assert torch.equal(pool, before)
    again = run(engine, [request(9, long, 4)])[9, 0]
    assert again.cached == 96
    assert again.essence == first.essence


def test_a_step_that_does_not_fit_ends_the_start_in_words(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(num_tokens: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(steps_of(engine), "try_largest", fail)
    with pytest.raises(ConfigError, match=r"up to 4,096 tokens \(step_tokens\) cannot run .* --step-tokens"):
        runner_of(engine).warm(4096, logging.info)
    assert steps_of(engine)._device == CPU
