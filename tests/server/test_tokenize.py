"""The tokenizer over HTTP, in vLLM's shapes."""

import asyncio

import httpx
import pytest
from tests.waiting import turns


def test_a_text_is_tokenised_in_vllms_shape(edge):
    assert edge.post("/tokenize", {"prompt": "hö", "model": "fake-model"}).json() == {
        "count": 3,
        "max_model_len": 1000,
        "tokens": [104, 195, 182],
        "token_strs": None,
    }
    told = edge.post("/tokenize", {"prompt": "hö", "return_token_strs": True}).json()
    assert told["token_strs"] == ["h", "bytes:\\xc3", "bytes:\\xb6"]


def test_a_long_text_is_reported_whole(edge):
    text = 'abcdefghij"\\ü' * 800
    told = edge.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert bytes(told["tokens"]) == text.encode()
    assert told["count"] == len(told["token_strs"]) == len(text.encode())
    assert told["token_strs"][:12] == list('abcdefghij"\\')


def test_others_go_on_while_a_long_text_is_reported(edge):
    num_turns = 0

    async def count():
        nonlocal num_turns
        while True:
            num_turns += 1
            await turns()

    async def ask(size):
        nonlocal num_turns
        transport = httpx.ASGITransport(edge.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            counter = asyncio.create_task(count())
            await turns()
            num_turns = 0
            answer = await client.post("/tokenize", json={"prompt": "a" * size})
            counter.cancel()
            assert answer.json()["count"] == size
            return num_turns

    assert asyncio.run(ask(16_000)) >= asyncio.run(ask(1)) + 3


@pytest.mark.parametrize("given, wanted", [({}, True), ({"add_special_tokens": False}, False)])
def test_the_begin_token_is_the_clients_choice(edge, given, wanted):
    assert edge.post("/tokenize", {"prompt": "", **given}).json()["tokens"] == []
    assert edge.model.encodings[0].add_special_tokens == wanted


def test_a_chat_is_tokenised_as_its_prompt_would_be(edge):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    tokens = edge.post("/tokenize", body).json()["tokens"]
    edge.post("/v1/chat/completions", body)
    assert tuple(tokens) == edge.model.submitted[0].prompt


def test_tokens_become_text_again(edge):
    assert edge.post("/detokenize", {"tokens": [104, 195, 182, 299]}).json() == {"prompt": "hö<299>"}
    assert edge.post("/detokenize", {"tokens": [195]}).json() == {"prompt": "\ufffd"}
    assert edge.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    "path, body, param",
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a" * 20_000}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**40]}, "tokens"),
        ("/detokenize", {"tokens": [1] * 1001}, "tokens"),
    ],
)
def test_what_no_prompt_could_be_is_refused_by_name(edge, path, body, param):
    answer = edge.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert edge.model.encodings == []


@pytest.mark.parametrize("path, body", [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})])
def test_another_model_is_unknown(edge, path, body):
    assert edge.post(path, body | {"model": "gpt-17"}).status_code == 404


def test_what_lm_eval_asks_of_a_remote_tokenizer_is_answered(edge):
    info = edge.get("/tokenizer_info").json()
    assert "chat_template" in info
    for name in ("eos_token", "bos_token"):
        text = info[name]
        if text is not None:
            tokens = edge.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
            assert edge.post("/detokenize", {"tokens": tokens}).json()["prompt"] == text
