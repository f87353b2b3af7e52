"""Outputs that follow grammars are exact: the same tokens and logprobs with what is forced taken along or
step by step, alone and in a crowd, in any chunks, preempted amid what was forced, forked, behind thinking."""

from __future__ import annotations

import pytest
from tests.engine.grammar_cases import Undisturbed, case, differences
from tests.tiny import run

from octavo.types import FinishReason

CASES = 200


@pytest.fixture(scope="module")
def calm() -> Undisturbed:
    return Undisturbed()


@pytest.mark.parametrize("part", range(4))
def test_two_hundred_random_cases_are_equal(calm: Undisturbed, part: int) -> None:
    forced: list[int] = []
    assert differences(calm, range(part, CASES, 4), forced.append) == []
    assert sum(forced) >= 3, "the cases met too few preemptions amid what was forced"


def test_the_cases_are_of_all_kinds(calm: Undisturbed) -> None:
    requests = [case(seed) for seed in range(CASES)]
    answers = [answer for seed in range(CASES) for answer in calm.of(seed).values()]
    assert sum(request.n == 4 for request in requests) >= 40
    assert sum(request.params.logprobs is not None for request in requests) >= 40
    assert sum(request.params.thinking is not None for request in requests) >= 30
    assert sum(answer.finish is FinishReason.LENGTH for answer in answers) >= 40
    assert sum(answer.finish is FinishReason.STOP for answer in answers) >= 100
    assert not [answer for answer in answers if answer.finish is FinishReason.ERROR and not answer.tokens]


def test_what_is_forced_saves_steps_and_changes_nothing(calm: Undisturbed) -> None:
    saved = 0
    for seed in range(0, CASES, 5):
        engine = calm.engine(step_tokens=512)
        answers = run(engine, [case(seed)])
        assert {key: answer.essence for key, answer in answers.items()} == {
            key: answer.essence for key, answer in calm.of(seed).items()
        }
        saved += engine.stats.forced_tokens
        slow = calm.engine(step_tokens=512, fast_forward=False)
        run(slow, [case(seed)])
        assert slow.stats.steps >= engine.stats.steps
    assert saved > 200


@pytest.mark.parametrize("step_tokens", [1, 2, 3, 7, 16])
def test_any_chunking_is_equal(calm: Undisturbed, step_tokens: int) -> None:
    for seed in range(0, CASES, 8):
        answers = run(calm.engine(step_tokens=step_tokens), [case(seed)])
        for key, wanted in calm.of(seed).items():
            assert answers[key].essence == wanted.essence, f"case {seed}"
