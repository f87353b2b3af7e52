"""Beam search through the real engine: the same hypotheses, bit for bit, whatever happens around it."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest
from tests import drawn
from tests.engine.peek import stats_of
from tests.engine.served import POISON, poisoned_model, read, serve_tiny
from tests.exactness import Preempter, Subject, essences, in_random
from tests.tiers import cells, full
from tests.tiny import EOS, random_prompt, request, run, tiny_engine
from tests.wanted import request_for

from octavo.kernels.contract import Ops
from octavo.kernels.native_ops import NativeOps
from octavo.params import BeamParams, SamplerParams
from octavo.types import FinishReason, Request


def case(seed: int, request_id: int = 1) -> Request:
    """A random search; a third of them may end at several tokens."""
    rng = np.random.default_rng(seed)
    beams = BeamParams(
        int(rng.choice([2, 3, 6, 10])),
        float(rng.choice([1.0, 0.0, -1.0, 2.0])),
        [False, True, "never"][int(rng.integers(3))],  # type: ignore[arg-type]
    )
    prompt = random_prompt(rng, int(rng.choice([1, 5, 15, 16, 17, 33, 70])))
    ends = tuple(range(EOS, EOS + 6)) if rng.random() < 0.3 else ()
    return request(
        request_id,
        prompt,
        int(rng.integers(1, 20)),
        beams.width,
        beams=beams,
        logprobs=0,
        ignore_eos=bool(rng.random() < 0.5),
        stop_token_ids=ends,
    )


def crowd(seed: int, count: int) -> list[Request]:
    """Plain requests, and another search."""
    return [*drawn.crowd(seed, min(count, 4)), case(seed + 1, 90)]


@pytest.fixture(params=cells(["cpu-F32", "reference-F32"], ["cpu-F32"]))
def ops(request: pytest.FixtureRequest) -> Ops:
    return drawn.BACKENDS[request.param]


def searches(ops: Ops, seeds: range) -> Counter[str]:
    """What the cases met; each is equal to itself alone."""
    met: Counter[str] = Counter()
    subject = Subject(ops, case, crowd)
    for seed in seeds:
        assert in_random(subject, seed, met) == []
    return met


def test_alone_batched_chunked_preempted_and_overlapped_are_equal() -> None:
    met = searches(NativeOps(), range(10))
    assert met["preempted itself"] >= 3, met
    assert met["stopped"] >= 2, met


@pytest.mark.full
def test_more_searches_are_equal() -> None:
    met = searches(NativeOps(), range(10, 50)) + searches(drawn.BACKENDS["reference-F32"], range(8))
    assert met["preempted itself"] >= 12, met
    assert met["stopped"] >= 5, met


@pytest.mark.parametrize("depth, caching", [(0, True), (1, False), full(0, False), full(1, True)])
def test_preempted_at_every_step_is_equal(depth: int, caching: bool) -> None:
    ops = NativeOps()
    prompt = random_prompt(np.random.default_rng(1), 21)
    wanted = request(1, prompt, 14, 4, beams=BeamParams(4), logprobs=0, ignore_eos=True)
    alone = essences(run(tiny_engine(ops), [wanted]), wanted)
    for step in range(1, 15):
        engine = tiny_engine(ops, depth=depth, step_tokens=10, prefix_caching=caching)
        answers = run(engine, [wanted], Preempter(engine, {step, step + 2}))
        assert essences(answers, wanted) == alone
        assert answers[1, 0].preemptions >= 1
        engine.executor.close()


def test_a_prefix_hit_is_equal(ops: Ops) -> None:
    prompt = random_prompt(np.random.default_rng(6), 70)
    engine = tiny_engine(ops)
    wanted = request(1, prompt, 10, 3, beams=BeamParams(3), logprobs=0)
    first, second = (run(engine, [wanted]) for _ in range(2))
    assert second[1, 0].cached == 64
    assert essences(first, wanted) == essences(second, wanted)


def test_hypotheses_are_reported_once_best_first_and_differ(ops: Ops) -> None:
    prompt = random_prompt(np.random.default_rng(2), 20)
    wanted = request(1, prompt, 12, 3, beams=BeamParams(6, length_penalty=0.5), logprobs=0)
    engine = tiny_engine(ops)
    engine.scheduler.submit(wanted)
    finals, others = [], 0
    while engine.has_work:
        for update in engine.step():
            finals += [update] if update.finish is not None else []
            others += update.finish is None
    assert others == 0, "something was told before the search was over"
    assert [update.choice for update in finals] == [0, 1, 2]
    scores = [sum(t.logprob for t in u.tokens) / len(u.tokens) ** 0.5 for u in finals]
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(t.token for t in u.tokens) for u in finals}) == 3
    assert finals[0].usage.blocks_peak > 0
    assert sum(u.usage.blocks_peak for u in finals[1:]) == 0, "shared blocks are counted twice"


def test_a_beam_of_one_is_greedy(ops: Ops) -> None:
    prompt = random_prompt(np.random.default_rng(3), 20)
    greedy = run(tiny_engine(ops), [request(1, prompt, 20, ignore_eos=True, logprobs=0)])
    beam = run(tiny_engine(ops), [request(1, prompt, 20, ignore_eos=True, logprobs=0, beams=BeamParams(1))])
    assert beam[1, 0].essence == greedy[1, 0].essence


def test_a_poisoned_beam_fails_its_request_alone() -> None:
    """Wherever one of 16 beams takes the token POISON, the next step makes no numbers of it."""
    ops, model = NativeOps(), poisoned_model()
    healthy, failed = request(2, random_prompt(np.random.default_rng(4), 18), 8), 0
    wanted = run(tiny_engine(ops), [healthy])[2, 0].essence
    for seed in range(24):
        prompt = [t for t in random_prompt(np.random.default_rng(seed), 30) if t != POISON]
        engine = tiny_engine(ops, model=model, rows=32, num_blocks=400)
        answers = run(engine, [request(1, prompt, 6, 16, beams=BeamParams(16), logprobs=0), healthy])
        finishes = [answers[1, choice].finish for choice in range(16)]
        failed += finishes == [FinishReason.ERROR] * 16
        assert finishes == [FinishReason.ERROR] * 16 or FinishReason.ERROR not in finishes
        assert answers[2, 0].essence == wanted
        assert engine.scheduler.ledger.counts().held == 0
    assert failed >= 2


def test_streams_of_clients_end_whatever_happens() -> None:
    served = serve_tiny(num_blocks=40, rows=8)
    params = SamplerParams(max_tokens=10, temperature=0.0, beams=BeamParams(4), ignore_eos=True)

    async def scenario() -> None:
        whole = await read(await served.llm.submit(request_for([3, 4, 5], params, n=2)), 2)
        assert [told.finishes for told in whole] == [[FinishReason.LENGTH]] * 2
        assert whole[0].answer.tokens != whole[1].answer.tokens
        stream = await served.llm.submit(request_for([3, 4, 5], params, n=3))
        stream.cancel()
        assert {f for told in await read(stream, 3) for f in told.finishes} <= {
            FinishReason.CANCELLED,
            FinishReason.LENGTH,
        }

    try:
        asyncio.run(scenario())
        assert stats_of(served.llm).blocks_held == 0
    finally:
        served.llm.close()


def test_a_broken_step_ends_every_choice_of_a_search() -> None:
    engine = tiny_engine(NativeOps())
    engine.scheduler.submit(request(1, [5] * 20, 10, 3, beams=BeamParams(4), logprobs=0))
    for _ in range(3):
        engine.step()
    finals = engine.recover(RuntimeError("broken"))
    assert sorted(update.choice for update in finals) == [0, 1, 2]
    assert {update.finish for update in finals} == {FinishReason.ERROR}


def test_a_search_without_max_tokens_fits_the_pool() -> None:
    served = serve_tiny(num_blocks=20, rows=8)
    params = SamplerParams(temperature=0.0, beams=BeamParams(4), ignore_eos=True)

    async def scenario() -> None:
        (told,) = await read(await served.llm.submit(request_for([3] * 40, params)))
        assert 40 + len(told.answer.tokens) - 1 == (40 // 16 + (20 - 40 // 16) // 4) * 16

    try:
        asyncio.run(scenario())
    finally:
        served.llm.close()
