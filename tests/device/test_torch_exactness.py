"""The exactness contract over torch's ops: the very tests of the processor's backends, on torch's CPU.

What takes long is spread over circumstances and kinds of KV.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.device.over_torch import TinyTorch
from tests.drawn import crowd, plain
from tests.engine import test_exactness
from tests.engine.test_exactness import (  # noqa: F401 - collected here, with the fixtures of this file
    subject,
    subjects,
    test_a_full_prefix_hit_is_equal,
    test_a_greedy_token_is_masked_whether_its_logprob_is_wanted_or_not,
    test_a_greedy_token_is_the_same_whether_its_logprob_is_wanted_or_not,
    test_a_row_of_a_full_step_is_equal_in_its_first_and_last_slots,
    test_any_chunking_of_the_prompt_is_equal,
    test_who_forbids_every_token_fails_alone_and_what_it_computed_stays_findable,
)
from tests.exactness import Subject, in_random

pytestmark = pytest.mark.full

OPS = {kv: TinyTorch(kv) for kv in ("f32", "bf16", "fp16", "int8", "fp8")}
CASES = 6


@pytest.fixture(params=["f32", "bf16", "int8"])
def ops(request: pytest.FixtureRequest) -> TinyTorch:
    return OPS[request.param]


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_exactness, "cases_for", lambda ops: CASES)


@pytest.fixture
def threads() -> int:
    return 1


@pytest.mark.parametrize("kv", OPS)
def test_alone_batched_chunked_hit_preempted_and_overlapped_are_equal(kv: str) -> None:
    met: Counter[str] = Counter()
    own = Subject(OPS[kv], plain, crowd)
    for seed in range(CASES):
        assert in_random(own, seed, met) == []
    assert met["preempted"] >= CASES // 2
    assert met["in a crowd"] >= CASES // 4
    assert met["cached"] >= 1


@pytest.mark.parametrize("kv", OPS)
def test_what_unused_slots_hold_never_matters(kv: str) -> None:
    test_exactness.test_what_unused_slots_hold_never_matters(OPS[kv])


@pytest.mark.parametrize("kv,depth,caching", [("f32", 0, True), ("bf16", 0, False), ("int8", 1, False)])
def test_preempted_at_every_step_is_equal(kv: str, depth: int, caching: bool) -> None:
    test_exactness.test_preempted_at_every_step_is_equal(OPS[kv], depth, caching)


@pytest.mark.parametrize("kv,depth,masked", [("f32", 0, True), ("bf16", 1, False), ("int8", 1, True)])
def test_choice_0_of_n_equals_n_1_and_choices_are_equal_in_any_company(
    kv: str, depth: int, masked: bool
) -> None:
    test_exactness.test_choice_0_of_n_equals_n_1_and_choices_are_equal_in_any_company(OPS[kv], depth, masked)
