"""Guessing tokens changes no token and no logprob: random cases against one step at a time.

Drafters that know the truth, the truth with one error, nothing, or quote the sequence itself; greedy and
sampled, penalties, masks, grammars, stops amid a draft, preempted and resumed, several choices, tiny pools,
tenants at their maximum.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tests.drawn import BACKENDS, varied, varied_crowd
from tests.engine import grammar_cases
from tests.engine.drafting import AskingDrafter, EagerSpeculator, Oracle
from tests.exactness import Subject, in_random
from tests.tiers import cells, full
from tests.tiny import random_prompt, request, run, tiny_engine, tiny_model

from octavo.kernels.contract import Ops
from octavo.kernels.native_ops import NativeOps
from octavo.speculation.drafter import Draft
from octavo.speculation.speculator import Speculation, Speculator

CASES = 40  # of one part


def with_drafts(subject: Subject, seeds: range) -> Counter[str]:
    """What the cases met; every one of them is equal to itself without drafts."""
    met: Counter[str] = Counter()
    for seed in seeds:
        assert in_random(subject, seed, met, drafts=True) == []
    return met


def subject_of(ops: Ops) -> Subject:
    """Random requests of all kinds but grammars."""
    return Subject(ops, varied, varied_crowd)


@pytest.mark.parametrize("part", [0, *map(full, range(1, 5))])
def test_with_drafts_random_cases_equal_one_step_at_a_time(part: int) -> None:
    seeds = range(part * CASES, (part + 1) * CASES)
    met = with_drafts(subject_of(NativeOps()), seeds)
    met += with_drafts(grammar_cases.subject(NativeOps()), seeds[: CASES // 2])
    assert met["drafted"] > 40 * CASES, met
    assert met["drafted"] > met["accepted"] > 15 * CASES, met
    assert met["preempted"] > CASES // 3, met
    assert met["preempted amid drafts"] > CASES // 10, met
    assert met["stopped with drafts"] > CASES // 5, met
    assert met["at a tenant's maximum"] >= CASES // 4, met


@pytest.mark.parametrize("name", cells([name for name in BACKENDS if "of-7" not in name], ["cpu-Q4_1-int8"]))
def test_every_kind_of_weights_and_kv_equals_one_step_at_a_time(name: str) -> None:
    met = with_drafts(subject_of(BACKENDS[name]), range(300, 306 if name.startswith("reference") else 312))
    assert met["accepted"] > 50, met


def test_the_truth_takes_as_many_fewer_steps_as_were_guessed() -> None:
    """And the same tokens: 61 tokens behind a prompt in one step, then 17 a step."""
    ops = NativeOps()
    prompt = random_prompt(np.random.default_rng(0), 20)
    wanted = request(1, prompt, 62, ignore_eos=True)
    plain = tiny_engine(ops)
    answer = run(plain, [wanted])
    oracle = Oracle()
    oracle.add((*wanted.prompt, *answer[1, 0].tokens))
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
    oracle.add((*wanted.prompt, *run(tiny_engine(ops), [wanted])[1, 0].tokens))
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
