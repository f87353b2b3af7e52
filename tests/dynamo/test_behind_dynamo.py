"""Two of our workers behind Dynamo 1.6.1: `make test-dynamo`."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.dynamo.cluster import DYNAMO, MODEL, Cluster, cluster, skip_unless_alone
from tests.waiting import wait_until

pytestmark = pytest.mark.dynamo
ROOT = Path(__file__).parents[2]
BLOCK = 16
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_numbers = count()


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory) -> Iterator[Cluster]:
    skip_unless_alone()
    with cluster(tmp_path_factory.mktemp("dynamo")) as made:
        yield made


def chat(text: str, **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}


def long_text() -> str:
    """Some 150 tokens that no other test has sent."""
    return f"Story {next(_numbers)}. " + " ".join(
        f"In {year} the sea was calm." for year in range(1900, 1915)
    )


def answer(client: httpx.Client, body: Mapping[str, object], path: str = CHAT) -> dict:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def told(dynamo: Cluster, text: str, salt: str | None = None) -> dict:
    """A long prompt's answer, with the worker that gave it, once the router knows its blocks."""
    before = dynamo.events_applied()
    nvext = {"extra_fields": ["worker_id", "timing"]} | ({} if salt is None else {"cache_salt": salt})
    found = answer(dynamo.frontend, chat(text, nvext=nvext))
    if cached(found) == 0:
        wait_until(lambda: dynamo.events_applied() > before)
    return found


def worker_of(found: dict) -> int:
    return found["nvext"]["worker_id"]["decode_worker_id"]


def cached(found: dict) -> int:
    return found["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_equal_prompts_go_to_one_worker_and_hit_what_the_router_foresaw(dynamo):
    for _ in range(4):
        text = long_text()
        first, *rest = [told(dynamo, text) for _ in range(4)]
        assert cached(first) // BLOCK <= 3  # what all prompts of the template begin with
        for found in rest:
            num_prompt = found["usage"]["prompt_tokens"]
            assert worker_of(found) == worker_of(first)
            assert cached(found) == (num_prompt - 1) // BLOCK * BLOCK
            foreseen = found["nvext"]["timing"]["kv_hit_rate"]
            assert round(foreseen * -(-num_prompt // BLOCK)) == num_prompt // BLOCK


def test_prompts_of_another_salt_hit_nothing(dynamo):
    text = long_text()
    told(dynamo, text)
    assert cached(told(dynamo, text)) > 0
    assert cached(told(dynamo, text, salt="one")) == 0
    salted = told(dynamo, text, salt="one")
    assert cached(salted) > 0
    assert salted["nvext"]["timing"]["kv_hit_rate"] > 0.5
    assert cached(told(dynamo, text, salt="two")) == 0


GREEDY = {"temperature": 0, "max_tokens": 24}
SEEDED = {"temperature": 0.7, "top_p": 0.9, "seed": 5, "max_tokens": 24}


@pytest.mark.parametrize(
    "fields",
    [
        GREEDY,
        SEEDED,
        SEEDED | {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1, "presence_penalty": 0.3},
        GREEDY | {"stop": [" vast", "qq"]},
        GREEDY | {"stop": [" vast"], "include_stop_str_in_output": True},
        GREEDY | {"stop_token_ids": [30]},
        GREEDY | {"stop": [" sea"], "min_tokens": 10},
        SEEDED | {"ignore_eos": True, "max_tokens": 120},
    ],
)
def test_answers_are_octavos_own_bit_for_bit(dynamo, fields):
    body = chat("Tell me about the sea", **fields)
    theirs, ours = answer(dynamo.frontend, body), answer(dynamo.octavo, body)
    for name in ("prompt_tokens", "completion_tokens"):
        assert theirs["usage"][name] == ours["usage"][name]
    (their_choice,), (our_choice,) = theirs["choices"], ours["choices"]
    assert their_choice["message"]["content"] == our_choice["message"]["content"]
    assert their_choice["finish_reason"] == our_choice["finish_reason"]


def test_plain_prompts_and_streams_are_octavos_own(dynamo):
    body = {"model": MODEL, "prompt": "Once upon a time", **SEEDED}
    theirs, ours = answer(dynamo.frontend, body, COMPLETIONS), answer(dynamo.octavo, body, COMPLETIONS)
    assert theirs["choices"][0]["text"] == ours["choices"][0]["text"]
    with streamed(dynamo.frontend, chat("Tell me about the sea", **SEEDED)) as chunks:
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    whole = answer(dynamo.octavo, chat("Tell me about the sea", **SEEDED))
    assert text == whole["choices"][0]["message"]["content"]


def test_logprobs_are_octavos_own(dynamo):
    body = chat("Tell me about the sea", **SEEDED, logprobs=True, top_logprobs=3)
    theirs = answer(dynamo.frontend, body)["choices"][0]["logprobs"]["content"]
    ours = answer(dynamo.octavo, body)["choices"][0]["logprobs"]["content"]
    assert [(one["token"], np.float32(one["logprob"])) for one in theirs] == [
        (one["token"], np.float32(one["logprob"])) for one in ours
    ]
    for their, our in zip(theirs, ours, strict=True):
        # The frontend adds the token itself, where it is none of the likeliest.
        assert [(top["token"], np.float32(top["logprob"])) for top in their["top_logprobs"][:3]] == [
            (top["token"], np.float32(top["logprob"])) for top in our["top_logprobs"]
        ]


def test_logprobs_of_the_prompt_are_octavos_own(dynamo):
    body = chat("Tell me about the sea", temperature=0)
    theirs = answer(dynamo.frontend, body | {"prompt_logprobs": 1})["prompt_logprobs"]
    tokens = answer(dynamo.octavo, body, f"{CHAT}/render")["token_ids"]
    plain = {"model": MODEL, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": 1}
    ours = answer(dynamo.octavo, plain, COMPLETIONS)["choices"][0]["prompt_logprobs"]

    def bare(positions: list) -> list:
        """The logprobs by token, without what each server adds."""
        return [one and {token: np.float32(of["logprob"]) for token, of in one.items()} for one in positions]

    assert bare(theirs) == bare(ours)
    assert theirs[0] is None


@pytest.mark.parametrize(
    "fields, follows",
    [
        (
            {"guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
            lambda text: isinstance(json.loads(text)["a"], int),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "array", "items": {"type": "boolean"}}},
                }
            },
            lambda text: all(isinstance(item, bool) for item in json.loads(text)),
        ),
        ({"guided_choice": ["red", "blue"]}, lambda text: text in ("red", "blue")),
        ({"guided_regex": "[0-9]{4}"}, lambda text: len(text) == 4 and text.isdigit()),
        ({"guided_grammar": 'root ::= "yes" | "no"'}, lambda text: text in ("yes", "no")),
    ],
)
def test_guided_answers_follow_what_they_must(dynamo, fields, follows):
    body = chat("Tell me about the sea", max_tokens=120, seed=3, **fields)
    (choice,) = answer(dynamo.frontend, body)["choices"]
    assert choice["finish_reason"] == "stop"
    assert follows(choice["message"]["content"])


@pytest.mark.parametrize(
    "name, fields",
    [
        ("n", {"n": 2}),
        ("guided_json", {"guided_json": {"type": "bogus"}}),
        ("logprobs", {"top_logprobs": 99}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(dynamo, name, fields):
    reply = dynamo.frontend.post(CHAT, json=chat("Hello", logprobs=True, **fields))
    assert reply.status_code == 400
    assert name in reply.json()["message"]


def test_a_client_that_leaves_frees_its_blocks(dynamo):
    body = chat("Tell me about the sea", max_tokens=7000, ignore_eos=True)
    with streamed(dynamo.frontend, body) as chunks:
        next(chunks)
        wait_until(lambda: any(worker.blocks_held() for worker in dynamo.workers))
    left = time.monotonic()
    wait_until(lambda: not any(worker.blocks_held() for worker in dynamo.workers))
    assert time.monotonic() - left < 10  # the whole answer takes more than half a minute


def test_a_worker_keeps_its_promises_to_dynamos_runtime(dynamo):
    command = [DYNAMO, "-m", "tests.dynamo.lifecycle"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    kept = ["broke off", "cancelled", "published", "cleaned up"]
    assert [line for line in run.stdout.splitlines() if line in kept] == kept, run.stderr


def test_others_go_on_when_a_worker_is_killed(dynamo):
    """The last test: one worker is gone then."""
    texts: dict[int, str] = {}  # a prompt that each worker has
    with ThreadPoolExecutor(8) as pool:  # one after another would all go where the template's blocks are
        prompts = [long_text() for _ in range(8)]
        for text, found in zip(prompts, pool.map(lambda text: told(dynamo, text), prompts), strict=True):
            texts[worker_of(found)] = text
    stays, dies = dynamo.workers
    kept, lost = texts[stays.worker_id()], texts[dies.worker_id()]
    with streamed(dynamo.frontend, chat(kept, max_tokens=200, ignore_eos=True)) as chunks:
        next(chunks)
        dies.process.kill()
        assert list(chunks)[-1]["choices"][0]["finish_reason"] == "length"
    for _ in range(4):  # at once, while the router still counts on both
        assert cached(answer(dynamo.frontend, chat(kept))) > 0
    wait_until(lambda: dynamo.num_workers() == 1)
    ours = answer(dynamo.octavo, chat(lost, **GREEDY))["choices"][0]["message"]["content"]
    for _ in range(4):
        theirs = answer(dynamo.frontend, chat(lost, **GREEDY))
        assert theirs["choices"][0]["message"]["content"] == ours


@contextmanager
def streamed(client: httpx.Client, body: Mapping[str, object]) -> Iterator[Iterator[dict]]:
    """The chunks of an answer; leaving the block closes the connection."""
    with client.stream("POST", CHAT, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200

        def chunks() -> Iterator[dict]:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    assert "choices" in chunk, line
                    yield chunk

        yield chunks()
