"""Beam search through HTTP: what a client may ask for, and the official client against the real engine."""

import asyncio
import threading

import httpx
import pytest
from openai import BadRequestError, OpenAI
from tests.engine.peek import stats_of
from tests.engine.served import serve_tiny
from tests.waiting import LIMIT_S, wait_until

from octavo.params import BeamParams
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings


@pytest.fixture(scope="module")
def served():
    """The tiny model behind the engine's real client."""
    served = serve_tiny(rows=16)
    yield served
    served.llm.close()


@pytest.fixture(scope="module")
def client(served):
    """The official client of a server over it."""
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = build_server(served.llm, ServerSettings(drain_timeout_s=1), lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    with OpenAI(
        base_url=f"{base_url(listener)}/v1", api_key="none", max_retries=0, timeout=20
    ) as openai_client:
        yield openai_client
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


ASKED = {"model": "tiny", "prompt": "onceuponatime", "max_tokens": 8}


def test_the_best_of_a_search_come_ranked_whole_and_streamed(client):
    beams = {"use_beam_search": True, "beam_width": 4, "length_penalty": 0.0, "ignore_eos": True}
    whole = client.completions.create(**ASKED, n=3, logprobs=0, extra_body=beams)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in whole.choices} == {"length"}
    sums = [sum(choice.logprobs.token_logprobs) for choice in whole.choices]
    assert sums == sorted(sums, reverse=True)
    assert whole.usage.completion_tokens == 24
    texts = ["", "", ""]
    for chunk in client.completions.create(**ASKED, n=3, stream=True, extra_body=beams):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    greedy = client.completions.create(
        **ASKED, temperature=0, logprobs=0, extra_body={"ignore_eos": True}
    ).choices[0]
    assert sums[0] >= sum(greedy.logprobs.token_logprobs)


def test_a_client_that_leaves_frees_the_blocks_of_all_beams(client, served):
    body = {**ASKED, "max_tokens": 200, "use_beam_search": True, "beam_width": 8, "ignore_eos": True}
    permits = served.turnstile.permits = threading.Semaphore(20)
    with (
        httpx.Client() as plain,
        plain.stream("POST", f"{client.base_url}completions", json=body | {"stream": True}),
    ):
        wait_until(lambda: stats_of(served.llm).blocks_held > 0)
        wait_until(lambda: permits._value == 0)  # the search is in its middle, and waits
    served.turnstile.permits = None
    permits.release(2)
    wait_until(lambda: stats_of(served.llm).blocks_held == 0)


@pytest.mark.parametrize(
    "param, fields",
    [
        ("temperature", {"temperature": 0.7}),
        ("top_p", {"top_p": 0.9}),
        ("stop", {"stop": ["x"]}),
        ("logprobs", {"logprobs": 3}),
        ("prompt_logprobs", {"prompt_logprobs": 1}),
        ("presence_penalty", {"presence_penalty": 1.0}),
        ("n", {"n": 5, "beam_width": 4}),
        ("beam_width", {"beam_width": 17}),
        ("beam_width", {"beam_width": 0}),
        ("early_stopping", {"early_stopping": "soon"}),
        ("length_penalty", {"length_penalty": 11}),
    ],
)
def test_what_means_nothing_with_beams_is_refused_by_name(client, param, fields):
    with pytest.raises(BadRequestError) as refused:
        client.post("/completions", body={**ASKED, "use_beam_search": True, **fields}, cast_to=object)
    assert refused.value.body["param"] == param
    assert "allowed" in refused.value.body["message"]


@pytest.mark.parametrize("fields", [{"beam_width": 4}, {"length_penalty": 2.0}, {"early_stopping": True}])
def test_fields_of_beam_search_without_it_are_refused(edge, fields):
    answer = edge.chat(**fields)
    assert answer.status_code == 400
    assert "use_beam_search" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields, beams",
    [
        ({}, BeamParams(2)),
        ({"n": 3}, BeamParams(3)),
        ({"n": 1, "beam_width": 5}, BeamParams(5)),
        ({"length_penalty": 0.5, "early_stopping": "never"}, BeamParams(2, 0.5, "never")),
        ({"early_stopping": True, "temperature": 0}, BeamParams(2, 1.0, True)),
    ],
)
def test_the_engine_is_asked_for_the_search(edge, model, fields, beams):
    assert edge.chat(use_beam_search=True, **fields).status_code == 200
    [stream] = model.submitted
    assert stream.params.beams == beams
    assert stream.params.temperature == 0.0


def test_a_search_that_is_switched_off_is_none(edge, model):
    assert edge.chat(use_beam_search=False, length_penalty=1.0, early_stopping=False).status_code == 200
    assert model.submitted[0].params.beams is None
