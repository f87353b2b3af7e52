"""Outputs that follow grammars are exact: the same tokens and logprobs with what is forced taken along or
step by step, alone and in a crowd, in any chunks, preempted amid what was forced, forked, behind thinking."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.engine import grammar_cases
from tests.engine.grammar_cases import case
from tests.exactness import Answers, Subject, essences, in_random
from tests.tiers import full
from tests.tiny import run

from octavo.kernels.native_ops import NativeOps
from octavo.types import FinishReason

CASES, PARTS = 200, 8


@pytest.fixture(scope="module")
def subject() -> Subject:
    return grammar_cases.subject(NativeOps())


@pytest.mark.parametrize("part", [0, *map(full, range(1, PARTS))])
def test_random_cases_are_equal(subject: Subject, part: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(part, CASES, PARTS):
        assert in_random(subject, seed, met) == []
    assert met["preempted amid forced tokens"] >= 1, met


@pytest.mark.full
def test_the_cases_are_of_all_kinds(subject: Subject) -> None:
    requests = [case(seed) for seed in range(CASES)]
    answers = [alone for seed in range(CASES) for alone in in_whole(subject, seed).values()]
    assert sum(request.n == 4 for request in requests) >= 40
    assert sum(request.params.logprobs is not None for request in requests) >= 40
    assert sum(request.params.thinking is not None for request in requests) >= 30
    assert sum(answer.finish is FinishReason.LENGTH for answer in answers) >= 40
    assert sum(answer.finish is FinishReason.STOP for answer in answers) >= 100
    assert not [
        answer
        for answer in answers
        if answer.finish in (FinishReason.ERROR, FinishReason.DEAD_END) and not answer.tokens
    ]


def in_whole(subject: Subject, seed: int) -> Answers:
    """A case by itself, its prompt whole."""
    return run(subject.engine(step_tokens=512), [case(seed)])


def test_what_is_forced_saves_steps_and_changes_nothing(subject: Subject) -> None:
    saved = 0
    for seed in range(0, CASES, 10):
        engine = subject.engine(step_tokens=512)
        assert essences(run(engine, [case(seed)]), case(seed)) == subject.alone(seed)
        saved += engine.stats.forced_tokens
        slow = subject.engine(step_tokens=512, fast_forward=False)
        run(slow, [case(seed)])
        assert slow.stats.steps >= engine.stats.steps
    assert saved > 100


@pytest.mark.parametrize("step_tokens", [full(1), 2, full(3), 7, full(16)])
def test_any_chunking_is_equal(subject: Subject, step_tokens: int) -> None:
    for seed in range(0, CASES, 8):
        answers = run(subject.engine(step_tokens=step_tokens), [case(seed)])
        assert essences(answers, case(seed)) == subject.alone(seed), f"case {seed}"
