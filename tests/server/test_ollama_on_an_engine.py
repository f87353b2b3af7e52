"""Ollama's routes over the tiny model and real blocks: one path through the engine, so one set of bits."""

import json

import pytest
from tests.engine.served import serve_tiny
from tests.server.conftest import Edge

from octavo.server.app import ServerSettings

PROMPT = "onceuponatime"


@pytest.fixture(scope="module")
def tiny():
    """The application over the tiny model, which has no chat template, behind the engine's real client."""
    served = serve_tiny(rows=16)
    yield Edge(served.llm, ServerSettings())
    served.llm.close()


def generate(tiny, **fields):
    answer = tiny.post("/api/generate", {"model": "tiny", "prompt": PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"seed": 5}, {"seed": 7, "temperature": 1.3, "top_k": 0, "top_p": 1.0}]
)
def test_a_prompt_has_the_answer_that_completions_gives(tiny, options):
    [theirs] = tiny.complete(
        prompt=PROMPT, max_tokens=24, **({"temperature": 0.8, "top_k": 40, "top_p": 0.9} | options)
    ).json()["choices"]
    options = options | {"num_predict": 24}
    said = generate(tiny, options=options, stream=False).json()
    assert (said["response"], said["done_reason"]) == (theirs["text"], theirs["finish_reason"])
    assert said["prompt_eval_count"] == len(PROMPT)
    lines = [json.loads(line) for line in generate(tiny, options=options).text.splitlines()]
    assert "".join(line["response"] for line in lines) == theirs["text"]
    assert (lines[-1]["done_reason"], lines[-1]["eval_count"]) == (said["done_reason"], said["eval_count"])


def test_logprobs_are_those_of_chat_completions_tokens(tiny):
    asked = {"temperature": 0, "num_predict": 6}
    said = generate(tiny, options=asked, logprobs=True, top_logprobs=2, stream=False).json()
    [theirs] = tiny.complete(prompt=PROMPT, max_tokens=6, temperature=0, logprobs=2).json()["choices"]
    assert [entry["logprob"] for entry in said["logprobs"]] == theirs["logprobs"]["token_logprobs"]
    assert [len(entry["top_logprobs"]) for entry in said["logprobs"]] == [2] * said["eval_count"]


def test_a_chat_without_a_template_names_the_route_that_works(tiny):
    answer = tiny.post("/api/chat", {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
    assert (answer.status_code, "/api/generate" in answer.json()["error"]) == (400, True)


def test_nothing_is_left_running(tiny):
    generate(tiny, options={"num_predict": 3})
    assert tiny.get("/v1/requests").json()["data"] == []
