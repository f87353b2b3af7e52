"""The exactness contract: a request's tokens and logprobs are bit-identical whatever happens around it.

One parametrised test over backends, kinds of weights, threads and circumstances; the most valuable test
of the project.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from tests.tiny import (
    MIXED,
    MIXTURE,
    VOCAB,
    Answer,
    over_experts,
    over_kv_of,
    over_weights_of,
    pool_bytes,
    random_prompt,
    request,
    run,
    tiny_engine,
    tiny_model,
)

from octavo import _native
from octavo.engine.core import Engine
from octavo.kernels.contract import Ops, Routing
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps
from octavo.sampling.sampler import is_plain
from octavo.types import FinishReason, Request

CASES = 200
# How the tiny model's file would hold its weights.
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K", MIXED)


def backends() -> dict[str, Ops]:
    """The native ops over weights of every kind and KV of every kind, the slow reference over some; the name
    says which."""
    made: dict[str, Ops] = {}
    triples = [
        (ReferenceOps, "F32", "f32"),
        (ReferenceOps, "Q4_1", "f32"),
        (ReferenceOps, "F32", "bf16"),
        (ReferenceOps, "F32", "int8"),
        *((NativeOps, kind, "f32") for kind in KINDS),
        (NativeOps, "F32", "bf16"),
        (NativeOps, "F32", "int8"),
        (NativeOps, "Q4_1", "int8"),
    ]
    for backend, kind, kv in triples:
        ops = over_kv_of(kv, over_weights_of(kind, backend()))
        ops.name = f"{ops.name}-{kind}" if kv == "f32" else f"{ops.name}-{kind}-{kv}"
        made[ops.name] = ops
    mixtures = [
        (NativeOps, "Q4_1", Routing(1, "sigmoid", weighs_input=True)),
        (NativeOps, MIXED, Routing(4, "softmax_of_chosen")),
    ]
    for backend, kind, routing in mixtures:
        ops = over_experts(routing, over_weights_of(kind, backend()))
        ops.name = f"{ops.name}-{kind}-{routing.top_k}-of-7"
        made[ops.name] = ops
    return made


BACKENDS = backends()


def cases_for(ops: Ops) -> int:
    """All for float32; fewer for kinds that differ from it by a kernel, and in NumPy, which takes the time of
    all others together and runs the same engine."""
    if ops.name == "cpu-F32":
        return CASES
    if ops.name.startswith("reference-"):
        return 60 if ops.name == "reference-F32" else 12
    return 30 if ops.name.endswith("-of-7") else 60


@pytest.fixture(params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> Ops:
    return BACKENDS[request.param]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = _native.num_threads()
    _native.set_num_threads(request.param)
    yield request.param
    _native.set_num_threads(before)


@pytest.fixture
def threads_restored() -> Iterator[None]:
    before = _native.num_threads()
    yield
    _native.set_num_threads(before)


def case(seed: int, request_id: int = 1) -> Request:
    """A random request: greedy or sampled, penalties, filters, masks, prompt logprobs."""
    rng = np.random.default_rng(seed)
    params: dict[str, object] = {"seed": int(rng.integers(0, 2**40)), "ignore_eos": bool(rng.random() < 0.5)}
    if rng.random() < 0.6:
        params |= {"temperature": float(rng.uniform(0.3, 1.5)), "top_p": float(rng.uniform(0.5, 1.0))}
        params |= {"top_k": int(rng.choice([0, 5, 20])), "min_p": float(rng.choice([0.0, 0.05]))}
    if rng.random() < 0.3:
        params |= {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3}
    if rng.random() < 0.2:
        params |= {"prompt_logprobs": 2}
    length = int(rng.choice([1, 5, 15, 16, 17, 33, 70, 150, 300]))
    masks = np.random.default_rng([seed, 1])  # of its own, so that the other draws stay what they were
    if masks.random() < 0.3:
        params |= {"allowed_token_ids": tuple(random_prompt(masks, 12))}
    if masks.random() < 0.3:  # of few tokens, so that the output completes many of them
        few = [*params.get("allowed_token_ids", range(2, 97))][:10]  # type: ignore[misc]
        params |= {"banned_sequences": tuple((int(a), int(b)) for a, b in masks.choice(few, (60, 2)))}
    return request(request_id, random_prompt(rng, length), int(rng.integers(1, 20)), **params)


def crowd(seed: int, count: int) -> list[Request]:
    """Neighbours with ids from 100 on."""
    return [case(seed * 1000 + i, 100 + i) for i in range(count)]


def alone(ops: object, wanted: Request, **engine: object) -> Answer:
    return run(tiny_engine(ops, **engine), [wanted])[1, 0]


class Undisturbed:
    """Answers of requests run alone in whole prompts, remembered across circumstances."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], Answer] = {}

    def of(self, name: str, ops: object, seed: int) -> Answer:
        if (name, seed) not in self.known:
            self.known[name, seed] = alone(ops, case(seed), step_tokens=512)
        return self.known[name, seed]


@pytest.fixture(scope="module")
def undisturbed() -> Undisturbed:
    return Undisturbed()


def test_the_mixture_holds_every_kind_of_its_own() -> None:
    held = tiny_model(over_weights_of(MIXED, NativeOps())).weights.bytes_by_kind
    assert held.keys() == set(MIXTURE)


@pytest.mark.usefixtures("threads_restored")
def test_alone_batched_chunked_hit_preempted_and_overlapped_are_equal(
    ops: Ops, undisturbed: Undisturbed
) -> None:
    model = tiny_model(ops)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    seen = {"preempted": 0, "cached": 0, "masked": 0}
    num_cases = cases_for(ops)
    for seed in range(num_cases):
        wanted = undisturbed.of(ops.name, ops, seed).essence  # type: ignore[attr-defined]
        _native.set_num_threads(1 + seed % 2)
        step_tokens, block_size = int(rng.choice([5, 16, 37, 64])), int(rng.choice([16, 32]))
        engine = tiny_engine(
            ops,  # type: ignore[arg-type]
            model=model,
            step_tokens=step_tokens,
            depth=int(rng.integers(0, 2)),
            num_blocks=int(rng.choice([320 // block_size + 1, 480 // block_size, 200])),
            rows=int(rng.choice([2, 5, 16])),
            block_size=block_size,
        )
        requests = [case(seed), *crowd(seed, int(rng.integers(0, 6)))]
        if rng.random() < 0.5:  # an equal prompt before it: prefix hits, or waiting for a leader
            requests.append(request(0, case(seed).prompt, 2, temperature=1.0))
        rng.shuffle(requests)
        answers = run(engine, requests, preempt_at(engine, {int(s) for s in rng.integers(1, 40, 4)}))
        answer = answers[1, 0]
        assert answer.essence == wanted, f"case {seed}, {step_tokens} tokens a step"
        params = case(seed).params
        allowed = params.allowed_token_ids or range(VOCAB)
        assert set(answer.tokens) <= set(allowed)
        assert not {*pairwise(answer.tokens)} & {*params.banned_sequences}
        seen["masked"] += params.allowed_token_ids is not None or bool(params.banned_sequences)
        seen["preempted"] += any(a.preemptions for a in answers.values())
        seen["cached"] += answer.cached > 0
        engine.executor.close()
    assert seen["preempted"] >= num_cases // 50, "the cases met too few preemptions"
    assert seen["cached"] >= num_cases // 20, "the cases met too few prefix hits"
    assert seen["masked"] >= num_cases // 5, "the cases met too few masks"


@pytest.mark.parametrize("step_tokens", [1, 7, 16, 100])
def test_any_chunking_of_the_prompt_is_equal(
    ops: Ops, threads: int, undisturbed: Undisturbed, step_tokens: int
) -> None:
    for seed in range(0, cases_for(ops), 10):
        wanted = undisturbed.of(ops.name, ops, seed).essence  # type: ignore[attr-defined]
        assert alone(ops, case(seed), step_tokens=step_tokens).essence == wanted


def test_a_full_prefix_hit_is_equal(ops: object, threads: int) -> None:
    rng = np.random.default_rng(3)
    for length in (17, 32, 33, 64, 255, 256, 257, 300):
        prompt = random_prompt(rng, length)
        engine = tiny_engine(ops)  # type: ignore[arg-type]
        first = run(engine, [request(1, prompt, 12)])[1, 0]
        second = run(engine, [request(2, prompt, 12)])[2, 0]
        assert second.cached == (length - 1) // 16 * 16
        assert first.essence == second.essence


def preempt_at(engine: Engine, steps: set[int]):  # type: ignore[no-untyped-def]
    def between(step: int) -> None:
        if step in steps and engine.scheduler.live.running:
            engine.scheduler.preemption.preempt(
                engine.scheduler.live.running[-1], engine.scheduler.live.running[0]
            )

    return between


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("caching", [True, False])
def test_preempted_at_every_step_is_equal(ops: object, depth: int, caching: bool) -> None:
    for seed in (2, 5, 11, 24, 33):  # the last two with masks, sampled and greedy
        wanted = alone(ops, case(seed))
        for step in range(1, 12):
            engine = tiny_engine(ops, depth=depth, step_tokens=20, prefix_caching=caching)  # type: ignore[arg-type]
            answer = run(engine, [case(seed)], preempt_at(engine, {step, step + 3}))[1, 0]
            assert answer.essence == wanted.essence
            engine.executor.close()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_choice_0_of_n_equals_n_1_and_choices_are_equal_in_any_company(
    ops: object, depth: int, masked: bool
) -> None:
    rng = np.random.default_rng(9)
    sampled: dict[str, object] = {"temperature": 1.0, "seed": 7}
    if masked:
        sampled |= {"allowed_token_ids": (*range(5, 30),), "banned_sequences": ((9,), (*range(5, 7),))}
    for length in (5, 16, 31, 70):
        prompt = random_prompt(rng, length)
        one = run(tiny_engine(ops), [request(1, prompt, 15, **sampled)])  # type: ignore[arg-type]
        three = run(tiny_engine(ops), [request(1, prompt, 15, n=3, **sampled)])  # type: ignore[arg-type]
        engine = tiny_engine(ops, num_blocks=24, step_tokens=9, depth=depth)  # type: ignore[arg-type]
        crowded = run(engine, [*crowd(length, 4), request(1, prompt, 15, n=3, **sampled)])
        assert one[1, 0].essence == three[1, 0].essence
        for choice in range(3):
            assert crowded[1, choice].essence == three[1, choice].essence
            assert not masked or set(three[1, choice].tokens) <= {*range(5, 30)} - {9}
        assert three[1, 0].tokens != three[1, 1].tokens != three[1, 2].tokens
        engine.executor.close()


def test_every_row_slot_of_a_tile_is_equal(ops: object, threads: int) -> None:
    """The same request behind 0 to 40 others in one step: its rows land in every slot of every tile."""
    prompt = random_prompt(np.random.default_rng(1), 9)
    wanted = alone(ops, request(1, prompt, 3)).essence
    for before in range(40):
        others = [request(100 + i, random_prompt(np.random.default_rng(i), 1), 3) for i in range(before)]
        engine = tiny_engine(ops, rows=48, step_tokens=512)  # type: ignore[arg-type]
        assert run(engine, [*others, request(1000, prompt, 3)])[1000, 0].essence == wanted


def test_a_greedy_token_is_the_same_whether_its_logprob_is_wanted_or_not(ops: object, threads: int) -> None:
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

    wanted = tokens_of(tiny_engine(ops), [3] * 6)  # type: ignore[arg-type]
    assert tokens_of(tiny_engine(ops), [None, 3, None, None, 3, None]) == wanted  # type: ignore[arg-type]
    engine = tiny_engine(ops)  # type: ignore[arg-type]
    sampler = engine.executor._runner._sampler  # type: ignore[attr-defined]
    sampled, sample = [], sampler.sample
    sampler.sample = lambda logits, rows: sampled.append(rows) or sample(logits, rows)
    assert tokens_of(engine, [None] * 6) == wanted
    assert 0 < len(sampled) < engine.stats.steps - 5
    for rows in sampled:
        assert not all(is_plain(row.params, row.num_output) for row in rows)


def test_a_greedy_token_is_masked_whether_its_logprob_is_wanted_or_not(ops: object) -> None:
    """A row with masks is never answered by the argmax that writes no logits down."""
    prompt = random_prompt(np.random.default_rng(4), 9)
    plain = run(tiny_engine(ops), [request(1, prompt, 9, logprobs=None)])[1, 0].tokens  # type: ignore[arg-type]
    banned = tuple((first, second) for first, second in pairwise(plain))
    for masks in (
        {"allowed_token_ids": (*range(10, 60),)},
        {"banned_sequences": banned},
        {"banned_sequences": ((plain[0],),), "allowed_token_ids": (*plain, 50, 51)},
    ):
        wanted = run(tiny_engine(ops), [request(1, prompt, 9, logprobs=3, **masks)])[1, 0].tokens  # type: ignore[arg-type]
        got = run(tiny_engine(ops), [request(1, prompt, 9, logprobs=None, **masks)])[1, 0].tokens  # type: ignore[arg-type]
        assert got == wanted != plain
        assert set(got) <= set(masks.get("allowed_token_ids", range(VOCAB)))


@pytest.mark.parametrize("depth", [0, 1])
def test_who_forbids_every_token_fails_alone_and_what_it_computed_stays_findable(
    ops: object, depth: int
) -> None:
    """Nothing is wrong with its blocks: a client takes no prefix from others by asking for the impossible."""
    prompt = random_prompt(np.random.default_rng(6), 40)
    engine = tiny_engine(ops, depth=depth)  # type: ignore[arg-type]
    wanted = run(engine, [request(1, prompt, 6)])[1, 0]
    ends = request(2, prompt, 6, allowed_token_ids=(7,), banned_sequences=((7, 7),))
    answers = run(engine, [request(3, prompt, 6), ends])
    assert answers[2, 0].finish is FinishReason.ERROR
    assert answers[2, 0].tokens == [7]
    again = run(engine, [request(4, prompt, 6)])[4, 0]
    assert again.cached == 32
    assert wanted.essence == answers[3, 0].essence == again.essence
    engine.executor.close()


def test_what_unused_slots_hold_never_matters(ops: object) -> None:
    wanted = alone(ops, case(3)).essence
    engine = tiny_engine(ops)  # type: ignore[arg-type]
    pool = pool_bytes(engine)
    pool[...] = 0xFF  # as a number, or a scale of one, NaN
    assert run(engine, [case(3)])[1, 0].essence == wanted
