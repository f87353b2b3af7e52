"""The whole house through HTTP: the default model, the official client, real blocks."""

import asyncio
import concurrent.futures
import threading

import httpx
import pytest
from openai import OpenAI
from tests.engine.peek import stats_of
from tests.engine.served import Turnstile, is_cancelled
from tests.server.leaving import asking
from tests.waiting import LIMIT_S, wait_until

from octavo.config import StartOptions
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings
from octavo.serving.start import start_engine

pytestmark = pytest.mark.real_model

CONTEXT = 512


@pytest.fixture(scope="module")
def served():
    """The engine, with a pool of 64 blocks, and the base URL of a server over it."""
    options = StartOptions(
        context_length=CONTEXT, kv_memory_bytes=64 * 360 * 1024, max_seqs=16, step_tokens=128
    )
    llm = start_engine(None, options, lambda text: None)
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = build_server(llm, ServerSettings(drain_timeout_s=5), lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    yield llm, base_url(listener)
    server.should_exit = True
    thread.join(20)
    llm.close()
    assert not thread.is_alive()


@pytest.fixture
def client(served):
    with OpenAI(base_url=f"{served[1]}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_fluent_answer_streamed_and_whole_is_the_same(client, served):
    asked = {
        "model": served[0].name,
        "messages": [{"role": "user", "content": "How many days are in a week?"}],
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = client.chat.completions.create(**asked)
    streamed = client.chat.completions.create(**asked, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert "7 days" in text
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens <= 24


def test_prompt_logprobs_are_the_logprobs_of_the_same_tokens_sampled(client, served):
    name = served[0].name
    first = client.completions.create(
        model=name, prompt="Once upon a time", max_tokens=6, temperature=0, logprobs=0
    )
    text, sampled = first.choices[0].text, first.choices[0].logprobs
    again = client.completions.create(
        model=name, prompt="Once upon a time" + text, max_tokens=1, temperature=0, logprobs=0, echo=True
    )
    told = again.choices[0].logprobs
    assert told.token_logprobs[-7:-1] == sampled.token_logprobs
    assert told.tokens[-7:-1] == sampled.tokens
    assert "".join(told.tokens) == again.choices[0].text


def test_a_seed_repeats_itself_and_choice_zero_equals_n_one(client, served):
    asked = {"model": served[0].name, "prompt": "The sea", "max_tokens": 12, "seed": 11}
    alone = client.completions.create(**asked).choices[0].text
    several = [choice.text for choice in client.completions.create(**asked, n=3).choices]
    assert several[0] == alone
    assert len(set(several)) > 1


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False, "n": 3}])
def test_a_client_that_leaves_frees_its_blocks(served, fields):
    """The engine waits in a step, with the request, until it has been told that the client has left."""
    llm, url = served
    wait_until(lambda: llm.engine.idle)
    before, executor = stats_of(llm).output_tokens, llm.engine.executor
    turnstile = llm.engine.executor = Turnstile(executor)
    turnstile.permits = threading.Semaphore(8)
    try:
        with asking(url, {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, **fields}):
            wait_until(lambda: len(turnstile.plans) == 9)
            assert stats_of(llm).blocks_held > 0
        wait_until(lambda: is_cancelled(llm.engine))
        turnstile.permits.release(1000)
        wait_until(lambda: stats_of(llm).blocks_held == 0 and llm.engine.idle)
    finally:
        turnstile.permits.release(1000)
        llm.engine.executor = executor
    assert stats_of(llm).output_tokens - before < 400, "a choice ran to its end"


def test_more_requests_than_the_pool_holds_all_complete(served):
    llm, url = served

    def ask(i):
        body = {"prompt": [100 + i] * (20 + 5 * i), "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        return httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(ask, range(16)))
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [24] * 16
    wait_until(lambda: stats_of(llm).blocks_held == 0)
    assert answers[3]["choices"][0]["text"] == ask(3)["choices"][0]["text"]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [49_152]},
        {"prompt": [0] * (CONTEXT + 1)},
        {"prompt": "word " * 2000},
        {"prompt": ""},
        {"prompt": "a", "stop_token_ids": [10**6]},
    ],
)
def test_what_only_the_real_model_can_refuse_is_refused(served, fields):
    answer = httpx.post(f"{served[1]}/v1/completions", json=fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_ollamas_api_answers_as_chat_completions_does_and_shows_the_models_own_figures(served):
    llm, url = served
    chat = {"model": llm.name, "messages": [{"role": "user", "content": "What is a book?"}], "stream": False}
    asked = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 11, "max_tokens": 40}
    theirs = httpx.post(f"{url}/v1/chat/completions", json=chat | asked, timeout=60).json()
    ours = httpx.post(
        f"{url}/api/chat", json=chat | {"options": {"seed": 11, "num_predict": 40}}, timeout=60
    ).json()
    assert ours["message"]["content"] == theirs["choices"][0]["message"]["content"]
    assert (ours["prompt_eval_count"], ours["eval_count"]) == (
        theirs["usage"]["prompt_tokens"],
        theirs["usage"]["completion_tokens"],
    )
    shown = httpx.post(f"{url}/api/show", json={"model": llm.name}).json()
    # Its makers' figures.
    assert shown["model_info"]["general.parameter_count"] == 134_515_008
    assert (shown["model_info"]["llama.block_count"], shown["details"]["embedding_length"]) == (30, 576)
    assert shown["template"] == llm.tokenizer.chat_template.source
