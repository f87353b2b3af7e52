"""An embedding has the same bits alone and in a crowd, and however its prompt is cut, found, preempted or
moved."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from unittest import mock

import numpy as np
import pytest
from tests.drawn import BACKENDS
from tests.engine.served import POISON, poisoned_model
from tests.exactness import Preempter, Subject, in_random, threads_restored
from tests.tiers import cells, full
from tests.tiny import CONTEXT, Answer, random_prompt, request, run, tiny_engine, tiny_model

from octavo import _native
from octavo.errors import InvalidRequest, RequestTooLarge
from octavo.executor.forward import HostForward
from octavo.executor.runner import kv_shape
from octavo.kernels.contract import Batch, Ops
from octavo.kernels.native_ops import NativeOps
from octavo.params import Pooling, SamplerParams
from octavo.scheduler.limits import check_fits
from octavo.scheduler.sequence import Sequence as Running
from octavo.types import FinishReason, Request

LENGTHS = (1, 5, 15, 16, 17, 33, 70, 150, 300)


NAMES = ["reference-F32", "cpu-F32", "cpu-Q4_1-int8", "cpu-BF16-bf16", "cpu-Q4_K"]


@pytest.fixture(params=cells(NAMES, ["reference-F32", "cpu-Q4_1-int8"]))
def ops(request: pytest.FixtureRequest) -> Ops:
    return BACKENDS[request.param]


@pytest.fixture(params=Pooling)
def pooling(request: pytest.FixtureRequest) -> Pooling:
    return Pooling(request.param)


def wants_embedding(request_id: int, prompt: Sequence[int], pooling: Pooling) -> Request:
    return Request(request_id, tuple(prompt), SamplerParams(pooling=pooling), 1, 0)


def case(seed: int, request_id: int = 1) -> Request:
    rng = np.random.default_rng([seed, 5])
    pooling = Pooling.MEAN if rng.random() < 0.5 else Pooling.LAST
    return wants_embedding(request_id, random_prompt(rng, int(rng.choice(LENGTHS))), pooling)


def crowd(seed: int, count: int) -> list[Request]:
    """Some want embeddings, and some answers."""
    rng = np.random.default_rng([seed, 6])
    made: list[Request] = []
    for request_id in range(100, 100 + count):
        prompt = random_prompt(rng, int(rng.integers(1, 120)))
        if rng.random() < 0.5:
            made.append(
                request(request_id, prompt, int(rng.integers(1, 16)), temperature=1.0, seed=request_id)
            )
        else:
            made.append(case(seed * 1000 + request_id, request_id))
    return made


def alone(ops: Ops, wanted: Request, **engine: object) -> bytes:
    answer = run(tiny_engine(ops, **engine), [wanted])[wanted.request_id, 0]  # type: ignore[arg-type]
    assert len(answer.embedding) > 0
    return answer.embedding


@pytest.mark.parametrize("part", [0, full(1), full(2), full(3)])
def test_an_embedding_is_equal_alone_batched_chunked_found_preempted_and_overlapped(
    ops: Ops, part: int
) -> None:
    met: Counter[str] = Counter()
    subject, count = Subject(ops, case, crowd), 6 if ops.name.startswith("reference") else 20
    for seed in range(part * count, (part + 1) * count):
        assert in_random(subject, seed, met) == []
    assert met["preempted"] >= count // 3, met
    assert ops.name.startswith("reference") or met["cached"] >= 1, met


@pytest.mark.parametrize("step_tokens", [full(1), 7, full(16), full(100)])
def test_any_chunking_and_any_number_of_threads_gives_equal_embeddings(
    ops: Ops, pooling: Pooling, step_tokens: int
) -> None:
    rng = np.random.default_rng(2)
    for length in (1, 16, 17, 70, 257):
        wanted = wants_embedding(1, random_prompt(rng, length), pooling)
        with threads_restored():
            _native.set_num_threads(1)
            whole = alone(ops, wanted, step_tokens=512)
            _native.set_num_threads(2)
            assert alone(ops, wanted, step_tokens=step_tokens) == whole


def test_a_prefix_hit_gives_an_equal_last_embedding_and_a_mean_takes_none(ops: Ops) -> None:
    rng = np.random.default_rng(3)
    for length in (17, 32, 33, 64, 257):
        prompt = random_prompt(rng, length)
        for pooling, cached in ((Pooling.LAST, (length - 1) // 16 * 16), (Pooling.MEAN, 0)):
            engine = tiny_engine(ops)
            first = run(engine, [wants_embedding(1, prompt, pooling)])[1, 0]
            second = run(engine, [wants_embedding(2, prompt, pooling)])[2, 0]
            assert second.cached == cached
            assert first.embedding == second.embedding


def test_what_an_embedding_has_computed_is_found_by_a_generation_and_the_other_way_round(
    pooling: Pooling,
) -> None:
    prompt = random_prompt(np.random.default_rng(4), 70)
    engine = tiny_engine(NativeOps())
    run(engine, [wants_embedding(1, prompt, pooling)])
    generated = run(engine, [request(2, prompt, 8)])[2, 0]
    assert generated.cached == 64
    assert generated.essence == run(tiny_engine(NativeOps()), [request(2, prompt, 8)])[2, 0].essence
    engine = tiny_engine(NativeOps())
    run(engine, [request(1, prompt, 8)])
    made = run(engine, [wants_embedding(2, prompt, Pooling.LAST)])[2, 0]
    assert made.cached == 64
    assert made.embedding == alone(NativeOps(), wants_embedding(2, prompt, Pooling.LAST))


@pytest.mark.parametrize("depth, caching", [(0, True), (1, False), full(0, False), full(1, True)])
def test_an_embedding_preempted_at_every_step_is_equal(
    ops: Ops, pooling: Pooling, depth: int, caching: bool
) -> None:
    wanted = wants_embedding(1, random_prompt(np.random.default_rng(7), 70), pooling)
    whole, preempted = alone(ops, wanted), 0
    for step in range(1, 8):
        engine = tiny_engine(ops, depth=depth, step_tokens=20, prefix_caching=caching)
        answer = run(engine, [wanted], Preempter(engine, {step, step + 3}))[1, 0]
        assert answer.embedding == whole
        preempted += answer.preemptions
        engine.executor.close()
    assert preempted >= 3


@pytest.mark.parametrize("depth", [0, 1])
def test_an_embedding_whose_blocks_move_in_a_resize_is_equal(pooling: Pooling, depth: int) -> None:
    rng = np.random.default_rng(12)
    wanted = [wants_embedding(10 + i, random_prompt(rng, 200 + 40 * i), pooling) for i in range(2)]
    shorts = [request(i, random_prompt(rng, 120), 1 + i) for i in range(3)]
    engine, moved = tiny_engine(NativeOps(), num_blocks=64, step_tokens=24, depth=depth), 0

    def between(step: int) -> None:
        nonlocal moved
        scheduler = engine.scheduler
        before = {s: list(s.table.blocks) for s in scheduler.live.running if s.table is not None}
        if scheduler.resizer.resize(40 if step % 4 == 0 else 64):
            moved += sum(s.table is not None and s.table.blocks != before[s] for s in before)

    answers = run(engine, [*shorts, *wanted], between)
    assert moved
    for one in wanted:
        assert answers[one.request_id, 0].embedding == alone(NativeOps(), one)
    engine.executor.close()


def test_a_mean_is_the_mean_of_all_hidden_rows_and_last_is_the_last_of_them(ops: Ops) -> None:
    """Computed here in one batch, without rows, scheduler or runner."""
    model, prompt = tiny_model(ops), random_prompt(np.random.default_rng(8), 70)
    shape = kv_shape(model, 16)
    forward = HostForward(model, ops, shape, 5)
    every = np.arange(70, dtype=np.int32)
    starts, offsets = np.array([0], np.int32), np.array([0, 70], np.int32)
    tables = np.arange(5, dtype=np.int32)[None]
    forward._batch = Batch(np.array(prompt, np.int32), every, starts, offsets, tables, every)
    forward.run()
    rows = forward.hidden(range(70)).copy()  # (70, E)
    assert rows.shape == (70, model.spec.hidden_size)
    total = np.zeros(rows.shape[1], np.float64)
    for row in rows:
        total += row
    mean = (total / 70).astype(np.float32)
    np.testing.assert_allclose(mean, rows.astype(np.float64).mean(0), rtol=1e-5, atol=1e-7)
    for step_tokens in (16, 512):
        found = alone(ops, wants_embedding(1, prompt, Pooling.MEAN), model=model, step_tokens=step_tokens)
        assert found == mean.tobytes()
        found = alone(ops, wants_embedding(1, prompt, Pooling.LAST), model=model, step_tokens=step_tokens)
        assert found == rows[-1].tobytes()


def test_an_embedding_makes_no_logits_shows_no_token_and_counts_no_output(pooling: Pooling) -> None:
    prompt = random_prompt(np.random.default_rng(9), 70)
    asked: list[str] = []

    def refuse(name: str) -> Callable[[HostForward, Sequence[int]], None]:
        return lambda forward, places: asked.append(name)

    engine = tiny_engine(NativeOps(), step_tokens=32)
    with (
        mock.patch.object(HostForward, "logits", refuse("logits")),
        mock.patch.object(HostForward, "argmax", refuse("argmax")),
    ):
        engine.scheduler.submit(wants_embedding(1, prompt, pooling))
        updates = []
        while engine.has_work:
            updates += engine.step()
    [update] = updates
    assert asked == []
    assert update.tokens == ()
    assert update.stop_token is None
    assert (update.usage.num_prompt, update.usage.num_output) == (70, 0)
    assert engine.stats.output_tokens == 0


def test_a_prompt_as_long_as_the_context_has_an_embedding_and_a_longer_one_is_refused(
    ops: Ops, pooling: Pooling
) -> None:
    prompt = random_prompt(np.random.default_rng(10), CONTEXT)
    whole = alone(ops, wants_embedding(1, prompt, pooling))
    assert alone(ops, wants_embedding(1, prompt, pooling), step_tokens=100) == whole
    with pytest.raises(RequestTooLarge, match="prompt of 513 tokens is 513 tokens"):
        run(tiny_engine(ops), [wants_embedding(1, [*prompt, 5], pooling)])


def test_numbers_that_are_not_finite_fail_their_own_request_alone(pooling: Pooling) -> None:
    rng = np.random.default_rng(11)
    sound = [token if token != POISON else 2 for token in random_prompt(rng, 40)]
    sick = [*sound[:20], POISON]
    engine = tiny_engine(NativeOps(), model=poisoned_model())
    engine.scheduler.submit(wants_embedding(1, sick, pooling))
    engine.scheduler.submit(wants_embedding(2, sound, pooling))
    updates = {}
    while engine.has_work:
        updates |= {update.request_id: update for update in engine.step()}
        engine.scheduler.check()
    assert updates[1].finish is FinishReason.ERROR
    assert "not finite" in updates[1].error
    assert updates[1].embedding == b""
    assert updates[2].embedding == alone(NativeOps(), wants_embedding(2, sound, pooling))


def test_a_prompt_with_a_row_that_is_not_finite_leaves_no_block_to_be_found(pooling: Pooling) -> None:
    sick = [
        POISON,
        *[token if token != POISON else 2 for token in random_prompt(np.random.default_rng(1), 40)],
    ]
    engine = tiny_engine(NativeOps(), model=poisoned_model())
    assert run(engine, [wants_embedding(1, sick, pooling)])[1, 0].finish is FinishReason.ERROR
    assert run(engine, [request(2, sick, 1)])[2, 0].cached == 0


def test_a_request_that_wants_an_embedding_is_one_plain_request(pooling: Pooling) -> None:
    engine = tiny_engine(NativeOps())
    plain = wants_embedding(1, [5, 6, 7], pooling)
    for changes in ({"n": 2}, {"session": "s"}, {"fills_pin": "p"}):
        odd = dataclasses.replace(plain, **changes)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="pooling"):
            check_fits(odd, engine.scheduler.config, engine.scheduler.room.hard, 0, 16)


def caught(requests: Sequence[Request], wanted: dict[int, bytes]) -> bool:
    """Whether an engine with a bug is found out: by its own assertions, or by another embedding."""
    engine = tiny_engine(NativeOps(), step_tokens=24)
    try:
        for one in requests:
            answer: Answer = run(engine, [one], Preempter(engine, {2}))[one.request_id, 0]
            if one.request_id in wanted and answer.embedding != wanted[one.request_id]:
                return True
    except AssertionError:
        return True
    return False


def test_a_mean_that_takes_a_prefix_hit_or_loses_a_row_is_caught() -> None:
    prompt = random_prompt(np.random.default_rng(13), 70)
    requests = [request(1, prompt, 1), wants_embedding(2, prompt, Pooling.MEAN)]
    wanted = {2: alone(NativeOps(), requests[1])}
    assert not caught(requests, wanted)
    scored_only = property(lambda sequence: sequence.needs_prompt_logprobs)
    with mock.patch.object(Running, "computes_all", scored_only):
        assert caught(requests, wanted)
    with mock.patch.object(Running, "needs_mean", property(lambda sequence: False)):
        assert caught(requests, wanted)
