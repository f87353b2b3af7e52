"""What a double cannot show of a request's options: the same server over the tiny model and real blocks."""

import pytest
from tests.engine.served import serve_tiny
from tests.server.conftest import Edge

from octavo.server.app import ServerSettings

PROMPT = "onceuponatime"


@pytest.fixture(scope="module")
def tiny():
    """The application over the tiny model behind the engine's real client."""
    served = serve_tiny(rows=16)
    yield Edge(served.llm, ServerSettings())
    served.llm.close()


def choices_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def complete(tiny, **fields):
    return choices_of(tiny.complete(**{"prompt": PROMPT, "max_tokens": 8} | fields))


def mean(choice):
    logprobs = choice["logprobs"]["token_logprobs"]
    return sum(logprobs) / len(logprobs)


def test_a_prompt_scores_the_same_whether_or_not_an_answer_follows(tiny):
    [alone] = complete(tiny, max_tokens=0, echo=True, logprobs=2)
    [followed] = complete(tiny, max_tokens=4, echo=True, logprobs=2, ignore_eos=True)
    for part in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert alone["logprobs"][part] == followed["logprobs"][part][: len(PROMPT)]
        assert len(alone["logprobs"][part]) == len(PROMPT)
    assert alone["text"] == PROMPT
    [streamed] = complete(tiny, max_tokens=0, echo=True, logprobs=2)
    assert streamed == alone


def test_a_prompt_may_be_scored_whatever_ends_the_token_that_is_dropped(tiny):
    [choice] = complete(tiny, max_tokens=0, echo=True, stop=list("abcdefghijklmno"), temperature=0)
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (PROMPT, "length", None)


def test_the_best_of_many_are_the_likeliest_of_the_same_choices(tiny):
    asked = {"seed": 3, "ignore_eos": True, "temperature": 1.5}
    every = complete(tiny, n=6, logprobs=0, **asked)
    ranked = sorted(every, key=mean, reverse=True)
    assert [mean(choice) for choice in ranked] != [mean(choice) for choice in every]
    best = complete(tiny, n=2, best_of=6, logprobs=0, **asked)
    assert [choice["text"] for choice in best] == [choice["text"] for choice in ranked[:2]]
    assert [choice["logprobs"] for choice in best] == [choice["logprobs"] for choice in ranked[:2]]
    assert [choice["index"] for choice in best] == [0, 1]
    [silent] = complete(tiny, best_of=6, **asked)
    assert silent["text"] == ranked[0]["text"]
    assert silent["logprobs"] is None


def test_token_ids_that_are_reported_continue_a_prompt_exactly(tiny):
    asked = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    [whole] = complete(tiny, **asked)
    [begun] = complete(tiny, **asked, max_tokens=3)
    ids = begun["prompt_token_ids"] + begun["token_ids"]
    [continued] = complete(tiny, **asked, prompt=ids, max_tokens=5)
    assert begun["token_ids"] + continued["token_ids"] == whole["token_ids"]
    assert tiny.post("/tokenize", {"prompt": PROMPT}).json()["tokens"] == whole["prompt_token_ids"]


def test_a_loglikelihood_as_lm_eval_asks_for_it_is_that_of_the_tokens_asked_about(tiny):
    """Token-id prompts in one request, one token to be thrown away, sums over [ctxlen:-1]."""
    context = tiny.post("/tokenize", {"prompt": PROMPT, "add_special_tokens": False}).json()["tokens"]
    [greedy] = complete(
        tiny, prompt=context, max_tokens=3, temperature=0, logprobs=1, ignore_eos=True, return_token_ids=True
    )
    likeliest = greedy["token_ids"]
    other = [likeliest[0], (likeliest[1] + 1) % 26, likeliest[2]]
    asked = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    told = complete(tiny, prompt=[context + likeliest, context + other], **asked)
    sums, are_greedy = [], []
    for choice in told:
        logprobs = choice["logprobs"]["token_logprobs"][len(context) : -1]
        tops = choice["logprobs"]["top_logprobs"][len(context) : -1]
        sums.append(sum(logprobs))
        are_greedy.append(all(own == max(top.values()) for own, top in zip(logprobs, tops, strict=True)))
    assert sums[0] == pytest.approx(sum(greedy["logprobs"]["token_logprobs"]), abs=1e-6)
    assert sums[1] < sums[0]
    assert are_greedy == [True, False]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [1] * 3000},
        {"prompt": "a" * 100_000},
    ],
)
def test_an_overlong_prompt_is_reported_in_the_words_that_clients_look_for(tiny, fields):
    error = tiny.complete(**fields).json()["error"]
    assert "this model's maximum context length is" in error["message"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("n", [1, 2])
def test_max_tokens_beyond_the_context_are_cut_to_it_and_that_is_reported(tiny, n):
    length = tiny.get("/v1/models").json()["data"][0]["max_model_len"]
    answer = tiny.complete(prompt=[1] * (length - 3), max_tokens=100_000, n=n, ignore_eos=True)
    body = answer.json()
    assert answer.headers["X-Octavo-Max-Tokens-Cut-To"] == "3"
    assert body["usage"]["max_tokens_cut_to"] == 3
    assert body["usage"]["completion_tokens"] == 3 * n
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}
    fits = tiny.complete(prompt=[1] * (length - 3), max_tokens=3)
    assert "max_tokens_cut_to" not in fits.json()["usage"]
    assert "X-Octavo-Max-Tokens-Cut-To" not in fits.headers


def test_a_prompt_that_leaves_no_room_is_refused_too(tiny):
    length = tiny.get("/v1/models").json()["data"][0]["max_model_len"]
    error = tiny.complete(prompt=[1] * length).json()["error"]
    assert "this model's maximum context length is" in error["message"]
