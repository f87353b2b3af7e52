"""Beams, drafts, grammars, poison and chats over torch's ops: the processor's tests, a few of their cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from tests.api import test_llm
from tests.api.test_llm import (  # noqa: F401
    test_a_greedy_row_without_numbers_fails_alone_though_no_one_asked_for_logits,
)
from tests.device.over_torch import TinyTorch
from tests.device.reusing import TorchInstead, torch_instead_of_native
from tests.drawn import plain, varied, varied_crowd
from tests.engine import (
    chats,
    grammar_cases,
    served,
    test_beam_search,
    test_drafts_exactness,
    test_sessions,
)
from tests.engine.test_beam_search import (  # noqa: F401 - collected here, with the fixtures of this file
    searches,
    test_a_beam_of_one_is_greedy,
    test_a_broken_step_ends_every_choice_of_a_search,
    test_a_prefix_hit_is_equal,
    test_hypotheses_are_reported_once_best_first_and_differ,
    test_streams_of_clients_end_whatever_happens,
)
from tests.engine.test_client import (  # noqa: F401
    test_a_poisoned_request_fails_alone_and_its_blocks_are_not_found_again,
)
from tests.engine.test_drafts_exactness import (  # noqa: F401
    test_a_model_that_drafts_for_itself_is_always_right,
    test_garbage_takes_as_many_steps_as_none,
    test_the_truth_takes_as_many_fewer_steps_as_were_guessed,
    with_drafts,
)
from tests.engine.test_exactness import alone
from tests.engine.test_sessions import (  # noqa: F401
    test_every_turn_equals_its_tokens_as_a_plain_prompt,
)
from tests.exactness import Subject, in_random

from octavo.device import forward
from octavo.device.sampler import is_drawn_on_device
from octavo.executor.executor import DeviceExecutor
from octavo.types import Request

pytestmark = pytest.mark.full

BEAM_CASES, DRAFT_CASES, GRAMMAR_CASES = 8, 12, 8


@pytest.fixture(autouse=True, scope="module")
def over_torch() -> Iterator[None]:
    modules = (chats, served, test_beam_search, test_drafts_exactness, test_llm)
    with torch_instead_of_native(*modules):
        yield


@pytest.fixture
def ops() -> TinyTorch:
    return TorchInstead()


def test_the_model_of_these_tests_is_torchs() -> None:
    """Else they would prove nothing."""
    tiny = served.serve_tiny()
    try:
        assert isinstance(tiny.turnstile._inner, DeviceExecutor)
    finally:
        tiny.llm.close()


def test_what_the_device_draws_is_what_the_host_would_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise, filters and logprobs, to the bit; equal in any company would not show it."""
    own = TorchInstead()
    asked = [plain(seed) for seed in range(60)]
    drawn = [alone(own, one).essence for one in asked if is_drawn(one)]
    assert len(drawn) >= 12
    assert sum(not one.params.greedy for one in asked if is_drawn(one)) >= 6
    monkeypatch.setattr(forward, "is_drawn_on_device", lambda params, is_constrained: False)
    assert [alone(own, one).essence for one in asked if is_drawn(one)] == drawn


def is_drawn(one: Request) -> bool:
    return is_drawn_on_device(one.params, False)


def test_searches_are_equal_in_any_circumstances() -> None:
    met = searches(TorchInstead(), range(BEAM_CASES))
    assert met["preempted itself"] >= 1, met
    assert met["stopped"] >= 1, met


def test_drafts_and_forced_tokens_change_no_bit() -> None:
    own = TorchInstead()
    met = with_drafts(Subject(own, varied, varied_crowd), range(DRAFT_CASES))
    met += with_drafts(grammar_cases.subject(own), range(GRAMMAR_CASES))
    assert met["drafted"] > met["accepted"] > 200, met
    assert met["preempted"] > 5, met
    assert met["preempted amid drafts"] > 0, met
    assert met["stopped with drafts"] > 0, met
    assert met["at a tenant's maximum"] > 2, met


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_drafts_change_no_bit_over_smaller_kinds_of_kv(kv: str) -> None:
    met = with_drafts(Subject(TinyTorch(kv), varied, varied_crowd), range(300, 303))
    assert met["accepted"] > 20, met


def test_grammars_are_equal_alone_and_in_a_crowd() -> None:
    own = grammar_cases.subject(TorchInstead())
    assert [found for seed in range(20, 28) for found in in_random(own, seed, Counter())] == []


@pytest.mark.parametrize("resumed", [False, True])
def test_suspended_killed_and_started_again_a_turn_is_equal(tmp_path, resumed: bool) -> None:  # type: ignore[no-untyped-def]
    test_sessions.test_suspended_killed_and_started_again_a_turn_is_equal_and_computes_a_block_at_most(
        tmp_path, resumed, False
    )
