"""Guessing tokens changes no token and no logprob: 300 random cases against one step at a time.

Drafters that know the truth, the truth with one error, nothing, or quote the sequence itself; greedy and
sampled, penalties, masks, grammars, stops amid a draft, preempted and resumed, several choices, tiny pools,
tenants at their maximum.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tests.engine import grammar_cases
from tests.engine.drafting import KINDS, AskingDrafter, EagerSpeculator, Oracle
from tests.engine.test_exactness import case
from tests.tiny import (
    VOCAB,
    Answer,
    over_kv_of,
    over_weights_of,
    random_prompt,
    request,
    run,
    tiny_engine,
    tiny_model,
)

from octavo.engine.core import Engine
from octavo.kernels.contract import Ops
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps
from octavo.memory.quota import TenantPolicy
from octavo.model.spec import Model
from octavo.speculation.drafter import Draft
from octavo.speculation.speculator import Speculation, Speculator
from octavo.types import FinishReason, Request

PLAIN_CASES, GRAMMAR_CASES = 200, 100
Answers = dict[tuple[int, int], Answer]


def varied(seed: int, request_id: int = 1) -> Request:
    """A random case of the exactness contract, here also with several choices, tokens that stop it, and
    without logprobs, which lets greedy rows do without logits."""
    one = case(seed, request_id)
    rng = np.random.default_rng([seed, 2])
    params = one.params
    if rng.random() < 0.4:
        params = dataclasses.replace(params, logprobs=None)
    if rng.random() < 0.4 and params.allowed_token_ids is None:
        params = dataclasses.replace(params, stop_token_ids=(*map(int, rng.integers(2, VOCAB, 9)),))
    if rng.random() < 0.3:
        params = dataclasses.replace(params, min_tokens=int(rng.integers(0, 9)))
    choices = int(rng.choice([1, 1, 3]))
    return dataclasses.replace(one, params=params, n=choices, max_tokens=int(rng.integers(1, 40)))


def told(oracle: Oracle, requests: Sequence[Request], answers: Answers) -> None:
    """Let the oracle know what these came to."""
    for one in requests:
        for choice in range(one.n):
            oracle.add((*one.prompt, *answers[one.request_id, choice].tokens))


def preempt_at(engine: Engine, steps: set[int], met: Counter[str]) -> Callable[[int], None]:
    """Preempt the last of the running sequences at some steps, rather one whose drafts are in flight."""

    def between(step: int) -> None:
        running = engine.scheduler.live.running
        if step in steps and running:
            victim = next((s for s in running if s.num_guessed), running[-1])
            met["preempted amid drafts"] += victim.num_guessed > 0
            engine.scheduler.preemption.preempt(victim, running[0])

    return between


def speculator_of(seed: int, oracle: Oracle) -> Speculator:
    """Of a case: each kind of drafter in turn, and the one that is served with."""
    kind = (*KINDS, "automaton")[seed % (len(KINDS) + 1)]
    if kind == "automaton":
        return Speculator(Speculation.NGRAM)
    return EagerSpeculator(oracle, kind, seed, all_of_them=seed % 2 == 0)


def essences(answers: Answers, wanted: Request) -> list[object]:
    return [answers[wanted.request_id, choice].essence for choice in range(wanted.n)]


def count(met: Counter[str], answers: Answers) -> None:
    for answer in answers.values():
        met["drafted"] += answer.drafted
        met["accepted"] += answer.accepted
        met["preempted"] += answer.preemptions
        met["stopped with drafts"] += answer.accepted > 0 and answer.finish is FinishReason.STOP


def test_with_drafts_300_random_cases_equal_one_step_at_a_time() -> None:
    met: Counter[str] = Counter()
    ops = NativeOps()
    model = tiny_model(ops)
    for seed in range(PLAIN_CASES):
        check_plain(ops, model, seed, met)
    calm = grammar_cases.Undisturbed()
    for seed in range(GRAMMAR_CASES):
        check_grammar(calm, seed, met)
    assert met["drafted"] > 20_000
    assert met["drafted"] > met["accepted"] > 5_000
    assert met["preempted"] > 100
    assert met["preempted amid drafts"] > 20
    assert met["stopped with drafts"] > 50
    assert met["at a tenant's maximum"] > 20


def check_plain(ops: Ops, model: Model, seed: int, met: Counter[str]) -> None:
    """A case in a crowd, with drafts, against itself without any."""
    rng = np.random.default_rng([seed, 3])
    wanted = varied(seed)
    others = [varied(seed * 1000 + i, 100 + i) for i in range(int(rng.integers(0, 5)))]
    requests = [wanted, *others]
    oracle = Oracle()
    calm = run(tiny_engine(ops, model=model, step_tokens=512), requests)
    told(oracle, requests, calm)
    alone = run(tiny_engine(ops, model=model, step_tokens=512), [wanted])
    engine = tiny_engine(
        ops,
        model=model,
        step_tokens=int(rng.choice([5, 16, 37, 64])),
        depth=int(rng.integers(0, 2)),
        num_blocks=int(rng.choice([22, 30, 200])),
        rows=int(rng.choice([3, 5, 16])),
        speculator=speculator_of(seed, oracle),
    )
    if seed % 4 == 0:
        most = max(22, int(rng.integers(22, 30)))
        engine.scheduler.tenants.set_policies([TenantPolicy("a", guaranteed=0, maximum=min(most, 22))])
        requests = [dataclasses.replace(one, tenant="a") for one in requests]
    rng.shuffle(requests)  # type: ignore[arg-type]
    answers = run(engine, requests, preempt_at(engine, {int(s) for s in rng.integers(1, 30, 4)}, met))
    assert essences(answers, wanted) == essences(alone, wanted), f"case {seed}"
    met["at a tenant's maximum"] += seed % 4 == 0
    count(met, answers)
    engine.executor.close()


def check_grammar(calm: grammar_cases.Undisturbed, seed: int, met: Counter[str]) -> None:
    """A case whose output follows a grammar: what is forced, and drafts behind it."""
    rng = np.random.default_rng([seed, 4])
    wanted, others = grammar_cases.case(seed), grammar_cases.neighbours(seed, int(rng.integers(0, 4)))
    oracle = Oracle()
    told(oracle, others, run(calm.engine(step_tokens=512), others) if others else {})
    told(oracle, [wanted], calm.of(seed))
    engine = calm.engine(**grammar_cases.settings_of(seed), speculator=speculator_of(seed, oracle))
    requests = [wanted, *others]
    rng.shuffle(requests)  # type: ignore[arg-type]
    answers = run(engine, requests, preempt_at(engine, {int(s) for s in rng.integers(1, 30, 4)}, met))
    assert essences(answers, wanted) == essences(calm.of(seed), wanted), f"case {seed} with a grammar"
    count(met, answers)
    engine.executor.close()


def backends() -> dict[str, Ops]:
    kinds = [(kind, "f32") for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")]
    kinds += [("Q4_1", "bf16"), ("Q4_1", "int8"), ("F32", "int8")]
    made: dict[str, Ops] = {
        f"cpu-{w}-{kv}": over_kv_of(kv, over_weights_of(w, NativeOps())) for w, kv in kinds
    }
    made["reference-F32-f32"] = ReferenceOps()
    return made


BACKENDS = backends()


@pytest.mark.parametrize("name", BACKENDS)
def test_every_kind_of_weights_and_kv_equals_one_step_at_a_time(name: str) -> None:
    ops = BACKENDS[name]
    model, met = tiny_model(ops), Counter[str]()
    for seed in range(300, 308 if name.startswith("reference") else 320):
        check_plain(ops, model, seed, met)
    assert met["accepted"] > 100


def test_the_truth_takes_as_many_fewer_steps_as_were_guessed() -> None:
    """And the same tokens: 61 tokens behind a prompt in one step, then 17 a step."""
    ops = NativeOps()
    prompt = random_prompt(np.random.default_rng(0), 20)
    wanted = request(1, prompt, 62, ignore_eos=True)
    plain = tiny_engine(ops)
    answer = run(plain, [wanted])
    oracle = Oracle()
    told(oracle, [wanted], answer)
    engine = tiny_engine(ops, speculator=EagerSpeculator(oracle, "truth", 0, all_of_them=True))
    guessed = run(engine, [wanted])
    assert guessed[1, 0].essence == answer[1, 0].essence
    # The last token is never guessed: nothing would be computed behind it.
    assert (engine.stats.steps, plain.stats.steps) == (1 + 4, 62)
    assert guessed[1, 0].drafted == guessed[1, 0].accepted == 57


def test_garbage_takes_as_many_steps_as_none() -> None:
    ops = NativeOps()
    wanted = request(1, random_prompt(np.random.default_rng(1), 20), 30, ignore_eos=True)
    plain = tiny_engine(ops)
    answer = run(plain, [wanted])
    oracle = Oracle()
    engine = tiny_engine(ops, speculator=EagerSpeculator(oracle, "garbage", 0, all_of_them=True))
    guessed = run(engine, [wanted])
    assert guessed[1, 0].essence == answer[1, 0].essence
    assert engine.stats.steps >= plain.stats.steps - guessed[1, 0].accepted
    assert guessed[1, 0].drafted > 300


def test_who_asks_for_no_guesses_gets_none() -> None:
    ops = NativeOps()
    wanted = request(1, random_prompt(np.random.default_rng(2), 20), 30, speculate=False)
    oracle = Oracle()
    told(oracle, [wanted], run(tiny_engine(ops), [wanted]))
    engine = tiny_engine(ops, speculator=EagerSpeculator(oracle, "truth", 0, all_of_them=True))
    assert run(engine, [wanted])[1, 0].drafted == 0


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    """The seam for a draft model: nothing but a `Drafter` is asked for."""
    ops = NativeOps()
    model = tiny_model(ops)
    wanted = request(1, random_prompt(np.random.default_rng(3), 20), 30, ignore_eos=True)
    answer = run(tiny_engine(ops, model=model), [wanted])[1, 0]

    def ask(tokens: list[int], limit: int) -> Draft:
        asked = request(1, tokens, min(limit, 5), ignore_eos=True, logprobs=None)
        return Draft(tuple(run(tiny_engine(NativeOps(), model=model), [asked])[1, 0].tokens), 30)

    speculator = Speculator(Speculation.NGRAM, lambda: AskingDrafter("model", ask))
    engine = tiny_engine(ops, model=model, speculator=speculator)
    drafted = run(engine, [wanted])[1, 0]
    assert drafted.essence == answer.essence
    assert drafted.drafted == drafted.accepted == 24
    assert speculator.accepted == {"model": 24}
    assert engine.stats.steps == 6
