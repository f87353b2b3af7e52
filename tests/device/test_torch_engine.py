"""Beams, drafts, grammars, poison and chats over torch's ops: the processor's tests, a few of their cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from tests.api import test_llm
from tests.api.test_llm import (  # noqa: F401
    test_a_greedy_row_without_numbers_fails_alone_though_nobody_asked_for_logits,
)
from tests.device.over_torch import TinyTorch
from tests.device.reusing import TorchInstead, torch_instead_of_native
from tests.engine import (
    chats,
    grammar_cases,
    served,
    test_beam_search,
    test_drafts_exactness,
    test_sessions,
)
from tests.engine.test_beam_search import (  # noqa: F401 - collected here, with the fixtures of this file
    test_a_beam_of_one_is_greedy,
    test_a_broken_step_ends_every_choice_of_a_search,
    test_a_prefix_hit_is_equal,
    test_alone_batched_chunked_preempted_and_overlapped_are_equal,
    test_hypotheses_are_told_once_best_first_and_differ,
    test_streams_of_clients_end_whatever_happens,
)
from tests.engine.test_client import (  # noqa: F401
    test_a_poisoned_request_fails_alone_and_its_blocks_are_not_found_again,
)
from tests.engine.test_drafts_exactness import (  # noqa: F401
    test_a_model_that_drafts_for_itself_is_always_right,
    test_garbage_takes_as_many_steps_as_none,
    test_the_truth_takes_as_many_fewer_steps_as_were_guessed,
)
from tests.engine.test_exactness import alone, case
from tests.engine.test_sessions import (  # noqa: F401
    test_every_turn_equals_its_tokens_as_a_plain_prompt,
)
from tests.tiny import tiny_model

from octavo.device import drawing
from octavo.device.sampler import is_drawn_on_device
from octavo.types import Request

BEAM_CASES, DRAFT_CASES, GRAMMAR_CASES = 8, 10, 8


@pytest.fixture(autouse=True, scope="module")
def over_torch() -> Iterator[None]:
    modules = (chats, grammar_cases, served, test_beam_search, test_drafts_exactness, test_llm)
    with torch_instead_of_native(*modules) as patch:
        patch.setattr(test_beam_search, "CASES", BEAM_CASES)
        yield


@pytest.fixture
def ops() -> TinyTorch:
    return TorchInstead()


def test_the_model_of_these_tests_is_torchs() -> None:
    """Else they would prove nothing."""
    tiny = served.serve_tiny()
    try:
        assert type(tiny.turnstile._inner).__module__ == "octavo.device.backend"
    finally:
        tiny.llm.close()


def test_what_the_device_draws_is_what_the_host_would_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise, filters and logprobs, to the bit; equal in any company would not show it."""
    own = TorchInstead()
    asked = [case(seed) for seed in range(60)]
    drawn = [alone(own, one).essence for one in asked if is_drawn(one)]
    assert len(drawn) >= 12
    assert sum(not one.params.greedy for one in asked if is_drawn(one)) >= 6
    monkeypatch.setattr(drawing, "is_drawn_on_device", lambda params, is_led: False)
    assert [alone(own, one).essence for one in asked if is_drawn(one)] == drawn


def is_drawn(one: Request) -> bool:
    return is_drawn_on_device(one.params, False)


def test_drafts_and_forced_tokens_change_no_bit() -> None:
    met: Counter[str] = Counter()
    own = TorchInstead()
    model = tiny_model(own)
    for seed in range(DRAFT_CASES):
        test_drafts_exactness.check_plain(own, model, seed, met)
    calm = grammar_cases.Undisturbed()
    for seed in range(GRAMMAR_CASES):
        test_drafts_exactness.check_grammar(calm, seed, met)
    print(f"\n{met}")
    assert met["drafted"] > met["accepted"] > 200
    assert met["preempted"] > 5
    assert met["preempted amid drafts"] > 0
    assert met["stopped with drafts"] > 0
    assert met["at a tenant's maximum"] > 2


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_drafts_change_no_bit_over_smaller_kinds_of_kv(kv: str) -> None:
    met: Counter[str] = Counter()
    own = TinyTorch(kv)
    model = tiny_model(own)
    for seed in range(300, 303):
        test_drafts_exactness.check_plain(own, model, seed, met)
    assert met["accepted"] > 20


def test_grammars_are_equal_alone_and_in_a_crowd() -> None:
    forced: list[int] = []
    assert grammar_cases.differences(grammar_cases.Undisturbed(), range(20, 28), forced.append) == []


@pytest.mark.parametrize("resumed", [False, True])
def test_suspended_killed_and_started_again_a_turn_is_equal(tmp_path, resumed: bool) -> None:  # type: ignore[no-untyped-def]
    test_sessions.test_suspended_killed_and_started_again_a_turn_is_equal_and_computes_a_block_at_most(
        tmp_path, resumed, False
    )
