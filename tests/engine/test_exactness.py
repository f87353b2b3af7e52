"""The exactness contract: a request's tokens and logprobs are bit-identical whatever happens around it.

Over backends, kinds of weights, threads and circumstances; the most valuable tests of the project. The
harness is `tests.exactness`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from tests.drawn import crowd, plain
from tests.exactness import Preempter, Subject, in_random
from tests.tiers import full
from tests.tiny import (
    MIXED,
    MIXTURE,
    VOCAB,
    Answer,
    over_weights_of,
    pool_bytes,
    random_prompt,
    request,
    run,
    tiny_engine,
    tiny_model,
)

from octavo.engine.core import Engine
from octavo.kernels.contract import Ops
from octavo.kernels.native_ops import NativeOps
from octavo.sampling.sampler import is_plain
from octavo.types import FinishReason, Request


def cases_for(ops: Ops) -> int:
    """Of one part; fewer in NumPy, which takes the time of all others together and runs the same engine."""
    return 6 if ops.name.startswith("reference-") else 25


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    """By the ops' names: what a case comes to alone is computed once."""
    return {}


@pytest.fixture
def subject(ops: Ops, subjects: dict[str, Subject]) -> Subject:
    return subjects.setdefault(ops.name, Subject(ops, plain, crowd))


def alone(ops: object, wanted: Request, **engine: object) -> Answer:
    return run(tiny_engine(ops, **engine), [wanted])[1, 0]


def test_the_mixture_holds_every_kind_of_its_own() -> None:
    held = tiny_model(over_weights_of(MIXED, NativeOps())).weights.bytes_by_kind
    assert held.keys() == set(MIXTURE)


@pytest.mark.parametrize("part", [0, *map(full, range(1, 4))])
def test_alone_batched_chunked_hit_preempted_and_overlapped_are_equal(subject: Subject, part: int) -> None:
    met: Counter[str] = Counter()
    count = cases_for(subject.ops)
    for seed in range(part * count, (part + 1) * count):
        assert in_random(subject, seed, met) == []
        answer_tokens = subject.tokens(seed)[0]
        params = plain(seed).params
        assert set(answer_tokens) <= set(params.allowed_token_ids or range(VOCAB))
        assert not {*pairwise(answer_tokens)} & {*params.banned_sequences}
    assert met["preempted"] >= count // 3, met
    assert count < 20 or met["cached"] >= 1, met  # so few in NumPy meet none
    assert met["masked"] >= count // 5, met


@pytest.mark.parametrize("step_tokens", [full(1), 7, full(16), full(100)])
def test_any_chunking_of_the_prompt_is_equal(subject: Subject, threads: int, step_tokens: int) -> None:
    for seed in range(0, 4 * cases_for(subject.ops), 10):
        answer = run(subject.engine(step_tokens=step_tokens), [plain(seed)])[1, 0]
        assert [answer.essence] == subject.alone(seed)


def test_a_full_prefix_hit_is_equal(ops: Ops, threads: int) -> None:
    rng = np.random.default_rng(3)
    for length in (17, 32, 33, 64, 255, 256, 257, 300):
        prompt = random_prompt(rng, length)
        engine = tiny_engine(ops)
        first = run(engine, [request(1, prompt, 12)])[1, 0]
        second = run(engine, [request(2, prompt, 12)])[2, 0]
        assert second.cached == (length - 1) // 16 * 16
        assert first.essence == second.essence


@pytest.mark.parametrize("depth, caching", [(0, True), (1, False), full(0, False), full(1, True)])
def test_preempted_at_every_step_is_equal(ops: Ops, depth: int, caching: bool) -> None:
    for seed in (2, 5, 11, 24, 33):  # the last two with masks, sampled and greedy
        wanted = alone(ops, plain(seed))
        for step in range(1, 12):
            engine = tiny_engine(ops, depth=depth, step_tokens=20, prefix_caching=caching)
            answer = run(engine, [plain(seed)], Preempter(engine, {step, step + 3}))[1, 0]
            assert answer.essence == wanted.essence
            engine.executor.close()


@pytest.mark.parametrize("depth, masked", [(0, True), (1, False), full(0, False), full(1, True)])
def test_choice_0_of_n_equals_n_1_and_choices_are_equal_in_any_company(
    ops: Ops, depth: int, masked: bool
) -> None:
    rng = np.random.default_rng(9)
    sampled: dict[str, object] = {"temperature": 1.0, "seed": 7}
    if masked:
        sampled |= {"allowed_token_ids": (*range(5, 30),), "banned_sequences": ((9,), (*range(5, 7),))}
    for length in (5, 16, 31, 70):
        prompt = random_prompt(rng, length)
        one = run(tiny_engine(ops), [request(1, prompt, 15, **sampled)])
        three = run(tiny_engine(ops), [request(1, prompt, 15, n=3, **sampled)])
        engine = tiny_engine(ops, num_blocks=24, step_tokens=9, depth=depth)
        crowded = run(engine, [*crowd(length, 4), request(1, prompt, 15, n=3, **sampled)])
        assert one[1, 0].essence == three[1, 0].essence
        for choice in range(3):
            assert crowded[1, choice].essence == three[1, choice].essence
            assert not masked or set(three[1, choice].tokens) <= {*range(5, 30)} - {9}
        assert three[1, 0].tokens != three[1, 1].tokens != three[1, 2].tokens
        engine.executor.close()


def test_a_row_of_a_full_step_is_equal_in_its_first_and_last_slots(ops: Ops, threads: int) -> None:
    """Every slot of every tile is compared by the kernels' own tests; here the engine fills whole tiles."""
    prompt = random_prompt(np.random.default_rng(1), 9)
    wanted = alone(ops, request(1, prompt, 3)).essence
    for before in (1, 15, 16, 39):
        others = [request(100 + i, random_prompt(np.random.default_rng(i), 1), 3) for i in range(before)]
        engine = tiny_engine(ops, rows=48, step_tokens=512)
        assert run(engine, [*others, request(1000, prompt, 3)])[1000, 0].essence == wanted


def test_a_greedy_token_is_the_same_whether_its_logprob_is_wanted_or_not(ops: Ops, threads: int) -> None:
    """Where no row of a step wants more than its token, no logits are ever written down."""

    def requests(logprobs: Sequence[int | None]) -> list[Request]:
        prompts = [random_prompt(np.random.default_rng(i), 3 + 9 * i) for i in range(len(logprobs))]
        return [
            request(i, prompt, 9, n=1 + i % 2, min_tokens=i % 3, logprobs=wanted)
            for i, (prompt, wanted) in enumerate(zip(prompts, logprobs, strict=True))
        ]

    def tokens_of(engine: Engine, logprobs: Sequence[int | None]) -> list[list[int]]:
        answers = run(engine, requests(logprobs))
        return [answers[key].tokens for key in sorted(answers)]

    wanted = tokens_of(tiny_engine(ops), [3] * 6)
    assert tokens_of(tiny_engine(ops), [None, 3, None, None, 3, None]) == wanted
    engine = tiny_engine(ops)
    sampler = engine.executor._runner._sampler  # type: ignore[attr-defined]
    sampled, sample = [], sampler.sample
    sampler.sample = lambda logits, rows: sampled.append(rows) or sample(logits, rows)
    assert tokens_of(engine, [None] * 6) == wanted
    assert 0 < len(sampled) < engine.stats.steps - 5
    for rows in sampled:
        assert not all(is_plain(row.params, row.num_output) for row in rows)


def test_a_greedy_token_is_masked_whether_its_logprob_is_wanted_or_not(ops: Ops) -> None:
    """A row with masks is never answered by the argmax that writes no logits down."""
    prompt = random_prompt(np.random.default_rng(4), 9)
    free = run(tiny_engine(ops), [request(1, prompt, 9, logprobs=None)])[1, 0].tokens
    banned = tuple((first, second) for first, second in pairwise(free))
    for masks in (
        {"allowed_token_ids": (*range(10, 60),)},
        {"banned_sequences": banned},
        {"banned_sequences": ((free[0],),), "allowed_token_ids": (*free, 50, 51)},
    ):
        wanted = run(tiny_engine(ops), [request(1, prompt, 9, logprobs=3, **masks)])[1, 0].tokens
        got = run(tiny_engine(ops), [request(1, prompt, 9, logprobs=None, **masks)])[1, 0].tokens
        assert got == wanted != free
        assert set(got) <= set(masks.get("allowed_token_ids", range(VOCAB)))


@pytest.mark.parametrize("depth", [0, 1])
def test_who_forbids_every_token_fails_alone_and_what_it_computed_stays_findable(
    ops: Ops, depth: int
) -> None:
    """Nothing is wrong with its blocks: a client takes no prefix from others by asking for the impossible."""
    prompt = random_prompt(np.random.default_rng(6), 40)
    engine = tiny_engine(ops, depth=depth)
    wanted = run(engine, [request(1, prompt, 6)])[1, 0]
    ends = request(2, prompt, 6, allowed_token_ids=(7,), banned_sequences=((7, 7),))
    answers = run(engine, [request(3, prompt, 6), ends])
    assert answers[2, 0].finish is FinishReason.DEAD_END
    assert answers[2, 0].tokens == [7]
    again = run(engine, [request(4, prompt, 6)])[4, 0]
    assert again.cached == 32
    assert wanted.essence == answers[3, 0].essence == again.essence
    engine.executor.close()


def test_what_unused_slots_hold_never_matters(ops: Ops) -> None:
    wanted = alone(ops, plain(3)).essence
    engine = tiny_engine(ops)
    pool = pool_bytes(engine)
    pool[...] = 0xFF  # as a number, or a scale of one, NaN
    assert run(engine, [plain(3)])[1, 0].essence == wanted


def test_prompts_that_are_scored_in_one_step_have_their_own_logprobs(ops: Ops) -> None:
    rng = np.random.default_rng(8)
    scored = [request(i, random_prompt(rng, 5 + 9 * i), 2, prompt_logprobs=2) for i in range(3)]
    together = run(tiny_engine(ops, step_tokens=512), [scored[0], request(9, [5] * 7, 2), *scored[1:]])
    for one in scored:
        [alone] = run(tiny_engine(ops), [one]).values()
        assert together[one.request_id, 0].essence == alone.essence
        assert len(alone.prompt_bits) == len(one.prompt) - 1
