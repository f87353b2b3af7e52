"""The exactness contract over torch's ops: the very tests of the processor's backends, on torch's CPU."""

from __future__ import annotations

import pytest
from tests.device.over_torch import TinyTorch
from tests.engine import test_exactness
from tests.engine.test_exactness import (  # noqa: F401 - collected here, with the fixtures of this file
    Undisturbed,
    test_a_full_prefix_hit_is_equal,
    test_a_greedy_token_is_masked_whether_its_logprob_is_wanted_or_not,
    test_a_greedy_token_is_the_same_whether_its_logprob_is_wanted_or_not,
    test_alone_batched_chunked_hit_preempted_and_overlapped_are_equal,
    test_any_chunking_of_the_prompt_is_equal,
    test_choice_0_of_n_equals_n_1_and_choices_are_equal_in_any_company,
    test_every_row_slot_of_a_tile_is_equal,
    test_preempted_at_every_step_is_equal,
    test_what_unused_slots_hold_never_matters,
    test_who_forbids_every_token_fails_alone_and_what_it_computed_stays_findable,
    threads_restored,
    undisturbed,
)

OPS = {kv: TinyTorch(kv) for kv in ("f32", "bf16", "fp16", "int8", "fp8")}


@pytest.fixture(params=OPS)
def ops(request: pytest.FixtureRequest) -> TinyTorch:
    return OPS[request.param]


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_exactness, "cases_for", lambda ops: 12)


@pytest.fixture
def threads() -> int:
    return 1
