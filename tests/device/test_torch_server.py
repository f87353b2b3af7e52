"""The server over torch's ops: the official client, beams and scored prompts, and a crowd that changes
nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI
from tests.device.reusing import torch_instead_of_native
from tests.engine import served as of_engine
from tests.engine.served import Served
from tests.server.test_beam_routes import (  # noqa: F401 - collected here, with the fixtures of this file
    ASKED,
    client,
    served,
    test_a_client_that_leaves_frees_the_blocks_of_all_beams,
    test_the_best_of_a_search_come_ranked_whole_and_streamed,
)
from tests.server.test_options_on_an_engine import (  # noqa: F401
    test_a_loglikelihood_as_lm_eval_asks_for_it_is_that_of_the_tokens_asked_about,
    test_a_prompt_scores_the_same_whether_or_not_an_answer_follows,
    test_the_best_of_many_are_the_likeliest_of_the_same_choices,
    test_token_ids_that_are_reported_continue_a_prompt_exactly,
    tiny,
)

from octavo.executor.executor import DeviceExecutor

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True, scope="module")
def over_torch() -> Iterator[None]:
    with torch_instead_of_native(of_engine):
        yield


def test_the_server_of_these_tests_is_torchs(served: Served) -> None:  # noqa: F811
    """Else they would prove nothing."""
    assert isinstance(served.turnstile._inner, DeviceExecutor)


@pytest.mark.parametrize("stream", [True, False])
def test_alone_and_in_a_crowd_a_client_gets_the_same_text_and_logprobs(client: OpenAI, stream: bool) -> None:  # noqa: F811
    def ask(index: int) -> list[tuple[str, float]]:
        sampling = {"temperature": 1.0, "seed": index} if index % 2 else {"temperature": 0.0}
        asked = ASKED | {"prompt": ASKED["prompt"][index % 5 :] * (1 + index), "max_tokens": 12}
        answer = client.completions.create(**asked, **sampling, logprobs=2, stream=stream)  # type: ignore[call-overload]
        told = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        pairs = [(c.logprobs.tokens, c.logprobs.token_logprobs) for c in told if c.logprobs is not None]
        return [pair for tokens, logprobs in pairs for pair in zip(tokens, logprobs, strict=True)]

    alone = [ask(index) for index in range(9)]
    with ThreadPoolExecutor(9) as threads:
        together = list(threads.map(ask, range(9)))
    assert together == alone
    assert len({str(answer) for answer in alone}) == 9
