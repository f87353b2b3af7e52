"""Guessed tokens with the default model: the same answers in fewer steps, and what clients are told of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from tests.waiting import LIMIT_S

from octavo import LLM, CompletionOutput, SamplingParams
from octavo.config import StartOptions
from octavo.grammar import of_schema
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings
from octavo.serving.start import start_engine

pytestmark = [pytest.mark.full, pytest.mark.real_model]

SMALL = {"kv_memory_bytes": 2**26, "context_length": 1024}
CODE = "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n"
VERSE = "The boy stood on the burning deck, whence all but he had fled. "
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GREEDY = SamplingParams(max_tokens=60, temperature=0.0, logprobs=2)
PROMPTS_AND_PARAMS = [
    (CODE + "    return area(width, height) * depth\n\n" + CODE, GREEDY),
    (VERSE * 4, GREEDY),
    (VERSE * 4, SamplingParams(max_tokens=60, temperature=0.6, seed=5, logprobs=0)),
    (VERSE * 3, SamplingParams(max_tokens=60, temperature=0.0, repetition_penalty=1.1, stop=("fled",))),
    ("Anna is 31, Bert is 40. As JSON:", SamplingParams(max_tokens=60, grammar=of_schema(RECORD), seed=3)),
    ("One two three four one two three", SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)),
]


def answers(speculate: str) -> tuple[list[list[CompletionOutput]], int]:
    """Of all prompts together, one and three choices each; and the steps that the verse takes alone."""
    prompts = [prompt for prompt, _ in PROMPTS_AND_PARAMS]
    params = [own for _, own in PROMPTS_AND_PARAMS]
    with LLM(None, StartOptions(speculate=speculate, **SMALL)) as llm:  # type: ignore[arg-type]
        thrice = [replace(own, n=3) for own in params]
        outputs = [*llm.generate(prompts, params), *llm.generate(prompts, thrice)]
        before = llm.engine.stats.steps
        outputs += llm.generate(prompts[1], params[1])
        return [output.outputs for output in outputs], llm.engine.stats.steps - before


def test_the_default_model_says_the_same_in_fewer_steps() -> None:
    plain, plain_steps = answers("off")
    for mode in ("ngram", "auto"):
        guessed, steps = answers(mode)
        for before, after in zip(plain, guessed, strict=True):
            for one, other in zip(before, after, strict=True):
                assert one.token_ids == other.token_ids
                assert one.logprobs == other.logprobs
                assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
                assert one.stop_reason == other.stop_reason
        usages = [choice.usage for choices in guessed for choice in choices]
        assert all(usage.num_accepted <= usage.num_drafted for usage in usages)
        assert sum(usage.num_accepted for usage in usages) > 0
        assert steps < plain_steps / 2


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that guesses."""
    llm = start_engine(None, StartOptions(speculate="ngram", **SMALL), lambda text: None)  # type: ignore[arg-type]
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = build_server(llm, ServerSettings(drain_timeout_s=5), lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    yield base_url(listener)
    server.should_exit = True
    thread.join(20)
    llm.close()


BODY = {"prompt": VERSE * 4, "max_tokens": 48, "temperature": 0, "logprobs": 1, "ignore_eos": True}


def complete(url: str, **fields: object) -> dict[str, object]:
    answer = httpx.post(f"{url}/v1/completions", json={**BODY, **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_usage_shows_what_was_guessed_and_a_request_can_do_without(url: str) -> None:
    guessed, plain = complete(url), complete(url, speculate=False)
    assert guessed["choices"] == plain["choices"]
    usage = guessed["usage"]
    assert 0 < usage["accepted_draft_tokens"] <= usage["draft_tokens"]  # type: ignore[index]
    assert plain["usage"]["draft_tokens"] == plain["usage"]["accepted_draft_tokens"] == 0  # type: ignore[index]


def test_tokens_that_come_together_are_one_event_with_their_logprobs_in_order(url: str) -> None:
    events = []
    with httpx.stream("POST", f"{url}/v1/completions", json={**BODY, "stream": True}, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line[6:])["choices"][0])
    whole = complete(url)["choices"][0]  # type: ignore[index]
    assert "".join(event["text"] for event in events) == whole["text"]
    told = [event["logprobs"] for event in events if event["logprobs"]]
    assert [token for each in told for token in each["tokens"]] == whole["logprobs"]["tokens"]
    assert [value for each in told for value in each["token_logprobs"]] == whole["logprobs"]["token_logprobs"]
    assert max(len(each["tokens"]) for each in told) > 1
    assert len(events) < 48


def test_metrics_count_guesses_by_drafter(url: str) -> None:
    complete(url)
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    counts = {line.split("{")[0]: float(line.split()[-1]) for line in lines if 'drafter="ngram"' in line}
    assert 0 < counts["octavo_accepted_draft_tokens_total"] <= counts["octavo_draft_tokens_total"]


def test_speculate_takes_true_or_false(url: str) -> None:
    answer = httpx.post(f"{url}/v1/completions", json={**BODY, "speculate": "often"}, timeout=60)
    assert answer.status_code == 400
    assert "speculate" in answer.text
