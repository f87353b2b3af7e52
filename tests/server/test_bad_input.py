"""Every kind of wrong request gets an OpenAI-shaped 4xx, and the server goes on."""

import json

import pytest

from octavo.errors import EngineStopped, QueueFull
from octavo.server.openai_schema import CompletionBody

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return CHAT, json.dumps({"messages": MESSAGES, **fields})


def complete(**fields):
    return COMPLETIONS, json.dumps({"prompt": "hi", **fields})


def messages(*items):
    return CHAT, json.dumps({"messages": list(items)})


# name: (route and raw body, status, param)
CASES = {
    "unknown model": (chat(model="gpt-17"), 404, "model"),
    "model of a wrong type": (chat(model=5), 400, "model"),
    "not JSON": ((CHAT, "hello"), 400, None),
    "empty body": ((CHAT, ""), 400, None),
    "a list": ((CHAT, "[]"), 400, None),
    "a bare number": ((CHAT, "3"), 400, None),
    "not UTF-8": ((CHAT, b'{"messages": "\xff\xfe"}'), 400, None),
    "half a surrogate pair": ((COMPLETIONS, '{"prompt": "\\ud83d"}'), 400, None),
    "nested 100,000 deep": ((CHAT, '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}"), 400, None),
    "nested objects 30,000 deep": ((CHAT, '{"a":' * 30_000 + "1" + "}" * 30_000), 400, None),
    "nested 500 deep": ((CHAT, '{"messages":' + "[" * 500 + "]" * 500 + "}"), 400, "messages"),
    "NaN": ((CHAT, '{"messages": [], "temperature": NaN}'), 400, None),
    "Infinity": ((CHAT, '{"messages": [], "temperature": -Infinity}'), 400, None),
    "a float beyond float64": ((COMPLETIONS, '{"prompt": "a", "temperature": 1e999}'), 400, "temperature"),
    "a number of 10,000 digits": ((COMPLETIONS, '{"prompt": "a", "seed": ' + "9" * 10_000 + "}"), 400, None),
    "a number of 4,000 digits": ((COMPLETIONS, '{"prompt": "a", "seed": ' + "9" * 4_000 + "}"), 400, "seed"),
    "temperature of 4,000 digits": (
        (COMPLETIONS, '{"prompt": "a", "temperature": ' + "9" * 4_000 + "}"),
        400,
        "temperature",
    ),
    "a role nested 900 deep": (
        (CHAT, '{"messages": [{"role":' + "[" * 900 + "]" * 900 + "}]}"),
        400,
        "messages",
    ),
    "escapes nested 900 deep": (
        (CHAT, '{"messages": "\\u0041", "x":' + "[" * 900 + "]" * 900 + "}"),
        400,
        "messages",
    ),
    "more messages than the context": (messages(*MESSAGES * 1001), 400, "messages"),
    "no messages": ((CHAT, "{}"), 400, "messages"),
    "empty messages": (messages(), 400, "messages"),
    "messages of a wrong type": ((CHAT, '{"messages": "hi"}'), 400, "messages"),
    "a message that is a string": (messages("hi"), 400, "messages"),
    "an unknown role": (messages({"role": "robot", "content": "hi"}), 400, "messages"),
    "no content": (messages({"role": "user"}), 400, "messages"),
    "an image": (
        messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}),
        400,
        "messages",
    ),
    "tools": (chat(tools=[{"type": "function"}]), 400, "tools"),
    "an unknown response_format": (chat(response_format={"type": "yaml"}), 400, "response_format"),
    "two formats": (chat(guided_regex="a", grammar='root ::= "a"'), 400, "guided_regex and grammar"),
    "a chat template of the client's": (chat(chat_template="{{ x }}"), 400, "chat_template"),
    "negative max_tokens": (chat(max_tokens=-1), 400, "max_tokens"),
    "zero max_tokens": (complete(max_tokens=0), 400, "max_tokens"),
    "huge max_tokens": (complete(max_tokens=10**30), 400, "max_tokens"),
    "max_tokens as text": (complete(max_tokens="5"), 400, "max_tokens"),
    "max_tokens as a bool": (complete(max_tokens=True), 400, "max_tokens"),
    "max_tokens with a fraction": (complete(max_tokens=1.5), 400, "max_tokens"),
    "max_completion_tokens too small": (chat(max_completion_tokens=0), 400, "max_tokens"),
    "negative temperature": (chat(temperature=-0.1), 400, "temperature"),
    "huge temperature": (chat(temperature=1e300), 400, "temperature"),
    "negative top_p": (chat(top_p=-0.1), 400, "top_p"),
    "top_p above one": (chat(top_p=1.01), 400, "top_p"),
    "top_k below -1": (chat(top_k=-2), 400, "top_k"),
    "n of zero": (chat(n=0), 400, "n"),
    "n of a million": (complete(n=1_000_000), 400, "n"),
    "best_of below n": (complete(n=3, best_of=2), 400, "best_of"),
    "best_of of a million": (complete(best_of=1_000_000), 400, "best_of"),
    "best_of above n in a stream": (complete(n=1, best_of=2, stream=True), 400, "best_of"),
    "best_of above n with beams": (complete(best_of=2, use_beam_search=True), 400, "best_of"),
    "a thousand choices made of several prompts": (complete(prompt=["a"] * 100, best_of=64), 400, "n"),
    "zero max_tokens and min_tokens": (complete(max_tokens=0, echo=True, min_tokens=1), 400, "min_tokens"),
    "zero max_tokens in a chat": (chat(max_tokens=0), 400, "max_tokens"),
    "an empty session": (chat(session=""), 400, "session"),
    "a session that is a number": (chat(session=7), 400, "session"),
    "a session of a completion": (complete(session="new"), 400, "session"),
    "an empty cache_salt": (chat(cache_salt=""), 400, "cache_salt"),
    "a long cache_salt": (complete(cache_salt="s" * 1025), 400, "cache_salt"),
    "cache_salt with a session": (chat(cache_salt="s", session="new"), 400, "cache_salt"),
    "no allowed token": (complete(allowed_token_ids=[]), 400, "allowed_token_ids"),
    "an allowed token outside the vocabulary": (complete(allowed_token_ids=[300]), 400, "allowed_token_ids"),
    "more allowed tokens than there are": (complete(allowed_token_ids=[1] * 301), 400, "allowed_token_ids"),
    "allowed tokens with beams": (
        complete(allowed_token_ids=[1], use_beam_search=True),
        400,
        "allowed_token_ids",
    ),
    "an empty bad word": (complete(bad_words=[""]), 400, "bad_words"),
    "a long bad word": (complete(bad_words=["a" * 257]), 400, "bad_words"),
    "many bad words": (complete(bad_words=["a"] * 129), 400, "bad_words"),
    "bad words with beams": (complete(bad_words=["a"], use_beam_search=True), 400, "bad_words"),
    "two repetition penalties": (
        complete(repeat_penalty=1.1, repetition_penalty=1.2),
        400,
        "repeat_penalty",
    ),
    "a message that is begun and goes on": (
        chat(add_generation_prompt=True, continue_final_message=True),
        400,
        "continue_final_message",
    ),
    "many template variables": (
        chat(chat_template_kwargs=dict.fromkeys(map(str, range(65)))),
        400,
        "chat_template_kwargs",
    ),
    "template variables of a wrong type": (chat(chat_template_kwargs=[1]), 400, "chat_template_kwargs"),
    "a long text among prompts": (complete(prompt=["a", "b" * 20_000]), 400, "prompt"),
    "too many token ids after a text": (complete(prompt=["a", [1] * 1001]), 400, "prompt"),
    "too many logprobs": (complete(logprobs=21), 400, "logprobs"),
    "too many top_logprobs": (chat(logprobs=True, top_logprobs=50), 400, "top_logprobs"),
    "top_logprobs alone": (chat(top_logprobs=3), 400, "top_logprobs"),
    "ten thousand stop strings": (complete(stop=["a"] * 10_000), 400, "stop"),
    "a stop string of 10,000 characters": (complete(stop="a" * 10_000), 400, "stop"),
    "a stop that is a number": (complete(stop=3), 400, "stop"),
    "a stop token outside the vocabulary": (complete(stop_token_ids=[300]), 400, "stop_token_ids"),
    "fifty thousand wrong stop tokens": (complete(stop_token_ids=["a"] * 50_000), 400, "stop_token_ids"),
    "twenty thousand wrong biases": (
        complete(logit_bias=dict.fromkeys(map(str, range(20_000)), "a")),
        400,
        "logit_bias",
    ),
    "logit_bias of a word": (complete(logit_bias={"hello": 1}), 400, "logit_bias"),
    "logit_bias outside the vocabulary": (complete(logit_bias={"999999": 1}), 400, "logit_bias"),
    "logit_bias too strong": (complete(logit_bias={"3": 1000}), 400, "logit_bias"),
    "min_tokens above max_tokens": (complete(max_tokens=2, min_tokens=3), 400, "min_tokens"),
    "stream_options without stream": (chat(stream_options={"include_usage": True}), 400, "stream_options"),
    "priority out of range": (chat(priority=10**9), 400, "priority"),
    "no prompt": ((COMPLETIONS, "{}"), 400, "prompt"),
    "an empty prompt": (complete(prompt=""), 400, "prompt"),
    "an empty list of tokens": (complete(prompt=[[]]), 400, "prompt"),
    "a prompt that is an object": (complete(prompt={}), 400, "prompt"),
    "a token id outside the vocabulary": (complete(prompt=[1, 300]), 400, "prompt"),
    "a negative token id": (complete(prompt=[-1]), 400, "prompt"),
    "a huge token id": (complete(prompt=[10**40]), 400, "prompt"),
    "text among token ids": (complete(prompt=[1, "a"]), 400, "prompt"),
    "a thousand prompts": (complete(prompt=["a"] * 1000), 400, "prompt"),
    "a thousand choices of several prompts": (
        complete(prompt=["a"] * 100, n=64),
        400,
        "n",
    ),
    "more token ids than the context": (complete(prompt=[1] * 1001), 400, "prompt"),
    "a text beyond the context": (complete(prompt="a" * 20_000), 400, "prompt"),
    "two thousand fields": (complete(**dict.fromkeys(map(str, range(2_000)))), 400, None),
    "a late number beyond float64": (
        (COMPLETIONS, '{"prompt": "a", "x": [[], {"a": [1, {"b": 1e999}]}]}'),
        400,
        "x",
    ),
    "a body over the cap": ((CHAT, " " * 400_001), 413, None),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_input_is_refused_in_openais_shape(edge, name):
    (path, body), status, param = CASES[name]
    answer = edge.request("POST", path, content=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert 10 < len(error["message"]) < 700
    assert not [stream for stream in edge.model.submitted if not stream.cancelled]
    assert edge.complete().status_code == 200


@pytest.mark.parametrize(
    "field", ["seed", "temperature", "n", "stop", "logit_bias", "messages", "nothing known"]
)
def test_a_number_of_too_many_digits_is_reported_in_words_of_json(edge, field):
    for given in ("{}", "-{}", "[{}]", '{{"5": {}}}'):
        body = '{"messages": [], "' + field + '": ' + given.format("9" * 5_000) + "}"
        answer = edge.request("POST", CHAT, content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].endswith("a number has more than 4,300 digits")


@pytest.mark.parametrize("digits", [400, 4_300])
@pytest.mark.parametrize("field", sorted(set(CompletionBody.model_fields) - {"model"}))
def test_a_number_of_many_digits_is_no_fault_of_the_server_in_any_field(edge, field, digits):
    for given in ("{}", "-{}", "[{}]", '{{"5": {}}}', "{}.5", "1e{}"):
        body = '{"prompt": "hi", "' + field + '": ' + given.format("9" * digits) + "}"
        answer = edge.request("POST", COMPLETIONS, content=body)
        if given.startswith("{{") and field in ("guided_json", "json_schema"):
            continue  # a schema with a keyword that means nothing
        assert answer.status_code == 400, given[:9]
        assert len(answer.json()["error"]["message"]) < 700


@pytest.mark.parametrize(
    "route",
    [
        ("POST", "/v1/kv/pins", '{"name": "a", "prompt": "x", "ttl": %s}'),
        ("POST", "/v1/kv/pins", '{"name": "a", "tokens": [%s]}'),
        ("PATCH", "/v1/kv/pins/a", '{"ttl": %s}'),
        ("PATCH", "/v1/kv", '{"blocks": %s}'),
        ("PATCH", "/v1/kv", '{"bytes": %s}'),
        ("POST", "/v1/sessions", '{"ttl": %s}'),
        ("GET", "/v1/sessions?limit=%s", ""),
    ],
)
def test_so_it_is_on_every_other_route(edge, route):
    method, path, body = route
    for digits in (400, 4_300, 5_000):
        given = "9" * digits
        answer = edge.request(method, path.replace("%s", given), content=body.replace("%s", given))
        assert answer.status_code == 400, digits
        assert "sys." not in answer.json()["error"]["message"]


def test_a_body_over_the_cap_is_refused_without_content_length(edge):
    async def endless():
        sent = 0
        while True:
            sent += 1
            assert sent < 50, "the whole body was read"
            yield b" " * 10_000

    answer = edge.request("POST", CHAT, content=endless())
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


def test_unknown_routes_and_wrong_methods_are_openai_shaped(edge):
    for method, path, status in [
        ("GET", "/v1/nothing", 404),
        ("GET", "/redoc", 404),
        ("GET", "/v1/kv/", 404),
        ("DELETE", "/v1/sessions/", 404),
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/models/nothing/here", 404),
    ]:
        answer = edge.request(method, path)
        assert answer.status_code == status, path
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_wrong_content_type_is_tolerated(edge):
    answer = edge.request(
        "POST", COMPLETIONS, content='{"prompt": "a"}', headers={"Content-Type": "text/plain"}
    )
    assert answer.status_code == 200


def test_unknown_fields_and_nulls_are_ignored(edge):
    answer = edge.chat(temperature=None, n=None, stop=None, tools=None, user="me", service_tier="auto", zzz=1)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "refusal, status, code",
    [
        (QueueFull("1,024 requests are waiting"), 429, "queue_full"),
        (EngineStopped("the engine is draining"), 503, "engine_stopped"),
    ],
)
def test_shortage_is_not_the_clients_fault(edge, refusal, status, code):
    edge.model.refusal = refusal
    answer = edge.chat()
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert ("Retry-After" in answer.headers) == (status == 429)


def test_when_a_later_prompt_is_refused_the_earlier_ones_are_cancelled(edge):
    answer = edge.complete(prompt=["a", "b" * 1000], max_tokens=5)
    assert answer.status_code == 400
    assert [stream.cancelled for stream in edge.model.submitted] == [True]


def test_a_bug_says_nothing_of_its_inside(edge):
    edge.model.refusal = ZeroDivisionError("secret")
    answer = edge.chat()
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text
