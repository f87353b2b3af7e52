"""Every kind of wrong request to Ollama's routes gets a 4xx in its shape that names the field, quickly, while
another stream runs on."""

import asyncio
import json

import httpx
import pytest
from tests.waiting import LIMIT_S, until

MODEL = "fake-model"
HI = [{"role": "user", "content": "hi"}]
CHAT, GENERATE, EMBED = "/api/chat", "/api/generate", "/api/embed"


def chat(**fields):
    return CHAT, json.dumps({"model": MODEL, "messages": HI, **fields})


def generate(**fields):
    return GENERATE, json.dumps({"model": MODEL, "prompt": "hi", **fields})


def embed(**fields):
    return EMBED, json.dumps({"model": MODEL, "input": "hi", **fields})


def old(prompt):
    return "/api/embeddings", json.dumps({"model": MODEL, "prompt": prompt})


def options(**fields):
    return chat(options=fields)


def message(**fields):
    return chat(messages=[*HI, {"role": "assistant", "content": "", **fields}])


def called(call):
    return message(tool_calls=[call])


def argued(arguments):
    """A call with arguments that Python would not write."""
    path, body = called({"function": {"name": "f", "arguments": "HERE"}})
    return path, body.replace('"HERE"', arguments)


def tool(**function):
    return chat(tools=[{"type": "function", "function": function}])


# name: (route and raw body, status, what the message names)
CASES = {
    "not JSON": ((CHAT, "hello"), 400, "JSON"),
    "an empty body": ((GENERATE, ""), 400, "JSON"),
    "a list": ((EMBED, "[]"), 400, "an object"),
    "not UTF-8": ((CHAT, b'{"model": "\xff"}'), 400, "UTF-8"),
    "nested 100,000 deep": ((CHAT, '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}"), 400, "deep"),
    "a body over the cap": ((CHAT, " " * 400_001), 413, "larger than"),
    "no model": ((CHAT, json.dumps({"messages": HI})), 400, "model is required"),
    "an empty model": (chat(model=""), 400, "model is required"),
    "a model that is a number": (generate(model=5), 400, "model"),
    "another model": (chat(model="llama3"), 404, "model 'llama3' not found"),
    "another model of vectors": (embed(model="llama3"), 404, "model 'llama3' not found"),
    "a model of 10,000 letters": (chat(model="a" * 10_000), 404, "not found"),
    "messages that are a text": (chat(messages="hi"), 400, "messages"),
    "messages that are zero": (chat(messages=0), 400, "messages"),
    "messages that are an object": (chat(messages={}), 400, "messages"),
    "a message that is a text": (chat(messages=["hi"]), 400, "messages[0]"),
    "a message without a role": (chat(messages=[{"content": "hi"}]), 400, "messages[0].role"),
    "an unknown role": (chat(messages=[{"role": "narrator", "content": "hi"}]), 400, "messages[0].role"),
    "a role that is a list": (chat(messages=[{"role": [], "content": "hi"}]), 400, "messages[0].role"),
    "content in parts": (message(content=[{"type": "text", "text": "hi"}]), 400, "messages[1].content"),
    "thinking that is a number": (message(thinking=3), 400, "messages[1].thinking"),
    "images in a message": (message(images=["aGk="]), 400, "messages[1].images"),
    "images of a prompt": (generate(images=["aGk="]), 400, "images"),
    "more messages than the context": (chat(messages=HI * 1001), 400, "maximum context length"),
    "calls that are an object": (message(tool_calls={}), 400, "messages[1].tool_calls"),
    "two hundred calls": (message(tool_calls=[{}] * 200), 400, "up to 128"),
    "a call without a function": (called({}), 400, "messages[1].tool_calls[0]"),
    "a call without a name": (called({"function": {"arguments": {}}}), 400, "messages[1].tool_calls[0]"),
    "arguments as text": (
        called({"function": {"name": "f", "arguments": "{}"}}),
        400,
        "messages[1].tool_calls[0]",
    ),
    "an id that is a number": (called({"id": 7, "function": {"name": "f"}}), 400, "tool_calls[0].id"),
    "arguments nested deep": (argued('{"a":' * 300 + "1" + "}" * 300), 400, "nested deeper"),
    "arguments with a number beyond float64": (argued('{"a": 1e999}'), 400, "too large"),
    "a tool's name that is a number": (
        chat(messages=[{"role": "tool", "content": "a", "tool_name": 3}]),
        400,
        "messages[0].tool_name",
    ),
    "tools that are a text": (chat(tools="f"), 400, "tools"),
    "a tool without a name": (tool(), 400, "tools[0].function.name"),
    "a tool of another type": (chat(tools=[{"type": "web_search"}]), 400, "tools[0]"),
    "a thousand tools": (chat(tools=[{}] * 1000), 400, "tools"),
    "parameters that are a text": (tool(name="f", parameters="x"), 400, "tools[0].function.parameters"),
    "a format that is a word": (chat(format="xml"), 400, "format"),
    "a format that is a number": (generate(format=3), 400, "format"),
    "a stream that is a text": (chat(stream="yes"), 400, "stream"),
    "thinking very hard": (chat(think="very"), 400, "think"),
    "thinking of a model that does not": (generate(think="low"), 400, "think"),
    "a think that is a number": (chat(think=3), 400, "think"),
    "options that are a list": (chat(options=[]), 400, "options"),
    "temperature as text": (options(temperature="hot"), 400, "options.temperature"),
    "temperature too high": (options(temperature=3), 400, "options.temperature"),
    "temperature beyond float64": (
        (CHAT, '{"model": "fake-model", "messages": [{"role": "user", "content": "a"}], '
               '"options": {"temperature": 1e999}}'),
        400,
        "options.temperature",
    ),
    "top_p below zero": (options(top_p=-1), 400, "options.top_p"),
    "top_k of a half": (options(top_k=0.5), 400, "options.top_k"),
    "top_k below minus one": (options(top_k=-2), 400, "options.top_k"),
    "min_p above one": (options(min_p=1.5), 400, "options.min_p"),
    "a context below zero": (options(num_ctx=-1), 400, "options.num_ctx"),
    "a context that is a text": (embed(options={"num_ctx": "big"}), 400, "options.num_ctx"),
    "a seed of 30 digits": (options(seed=10**30), 400, "options.seed"),
    "a seed of 4,000 digits": (
        (GENERATE, '{"model": "fake-model", "prompt": "a", "options": {"seed": ' + "9" * 4000 + "}}"),
        400,
        "options.seed",
    ),
    "a stop that is a number": (options(stop=3), 400, "options.stop"),
    "ten thousand stop strings": (options(stop=["a"] * 10_000), 400, "options.stop"),
    "a stop string of 10,000 characters": (options(stop="a" * 10_000), 400, "stop"),
    "a repeat_penalty of zero": (options(repeat_penalty=0), 400, "options.repeat_penalty"),
    "a presence_penalty of nine": (options(presence_penalty=9), 400, "options.presence_penalty"),
    "a frequency_penalty as a list": (options(frequency_penalty=[]), 400, "options.frequency_penalty"),
    "mirostat": (options(mirostat=2), 400, "options.mirostat"),
    "too many top_logprobs": (chat(logprobs=True, top_logprobs=50), 400, "top_logprobs"),
    "logprobs as a number": (chat(logprobs=5), 400, "logprobs"),
    "a prompt that is a list": (generate(prompt=["a"]), 400, "prompt"),
    "a prompt beyond the context": (generate(prompt="a" * 20_000), 400, "maximum context length"),
    "a raw prompt beyond the context": (
        generate(prompt="a" * 2000, raw=True), 400, "maximum context length"),
    "a system that is a number": (generate(system=3), 400, "system"),
    "a raw prompt with a system": (generate(raw=True, system="Be brief."), 400, "system"),
    "raw as text": (generate(raw="yes"), 400, "raw"),
    "a suffix": (generate(suffix="}"), 400, "suffix"),
    "a template": (generate(template="{{ .Prompt }}"), 400, "template"),
    "a context of tokens": (generate(context=[1, 2]), 400, "context"),
    "half a surrogate pair": ((GENERATE, '{"model": "fake-model", "prompt": "\\ud83d"}'), 400, "surrogate"),
    "an input that is a number": (embed(input=3), 400, "input"),
    "an input of zero": (embed(input=0), 400, "input"),
    "an input of token ids": (embed(input=[1, 2]), 400, "input"),
    "an empty text among inputs": (embed(input=["a", ""]), 400, "input"),
    "three thousand inputs": (embed(input=["a"] * 3000), 400, "input"),
    "an input that must not be cut": (embed(input="a" * 1001, truncate=False), 400, "maximum context length"),
    "minus one dimension": (embed(dimensions=-1), 400, "dimensions"),
    "more dimensions than there are": (embed(dimensions=577), 400, "dimensions"),
    "dimensions as text": (embed(dimensions="all"), 400, "dimensions"),
    "an old prompt that is a list": (old(["a"]), 400, "prompt"),
    "an old prompt beyond the context": (old("a" * 1001), 400, "maximum context length"),
    "showing no model": (("/api/show", "{}"), 400, "model is required"),
    "showing another model": (("/api/show", '{"model": "x"}'), 404, "model 'x' not found"),
    "showing all tensors": (("/api/show", '{"model": "fake-model", "verbose": true}'), 400, "verbose"),
    "pulling": (("/api/pull", '{"model": "llama3"}'), 400, "octavo serve"),
    "pushing": (("/api/push", '{"model": "llama3"}'), 400, "/api/push"),
    "creating": (("/api/create", '{"model": "a", "from": "b"}'), 400, "/api/create"),
    "copying": (("/api/copy", '{"source": "a", "destination": "b"}'), 400, "--served-name"),
    "a route that there is not": (("/api/blobs/sha256:0", ""), 404, "no route"),
    "a method that there is not": (("/api/tags", ""), 405, "POST"),
}  # fmt: skip


def test_wrong_requests_are_refused_in_ollamas_shape_while_a_stream_runs_on(edge):
    """All on one event loop, beside one chat that is held after its first token."""

    async def scenario():
        edge.model.hold = asyncio.Event()
        transport = httpx.ASGITransport(edge.app, raise_app_exceptions=False)
        answers = {}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            running = asyncio.create_task(client.post(CHAT, json={"model": MODEL, "messages": HI}))
            await until(lambda: edge.model.submitted)
            for name, ((path, body), _, _) in CASES.items():
                async with asyncio.timeout(LIMIT_S):  # what is not refused waits as the stream does
                    answers[name] = await client.post(path, content=body)
            assert not running.done()
            left = [stream for stream in edge.model.submitted[1:] if not stream.cancelled]
            edge.model.hold.set()
            return answers, left, await running

    answers, left, ran = asyncio.run(scenario())
    assert len(answers) >= 40
    wrong = {}
    for name, (_, status, words) in CASES.items():
        answer = answers[name]
        told = answer.json()
        is_right = set(told) == {"error"} and 10 < len(told["error"]) < 700 and words in told["error"]
        if answer.status_code != status or not is_right:
            wrong[name] = (answer.status_code, told)
    assert wrong == {}
    assert left == []
    objects = [json.loads(line) for line in ran.text.splitlines()]
    assert "".join(one["message"]["content"] for one in objects) == "Hello wörld!"
    assert objects[-1]["done"]


def test_deleting_is_refused_with_what_to_do(edge):
    answer = edge.request("DELETE", "/api/delete", json={"model": MODEL})
    assert (answer.status_code, answer.json()["error"].startswith("/api/delete")) == (400, True)


def test_options_that_ollama_bounds_otherwise_are_taken_as_there(edge):
    """A context that is larger, any num_predict, and a window of penalties, of which 0 is none."""
    for given in ({"num_ctx": 131_072}, {"num_predict": 0}, {"num_predict": -3}, {"num_predict": 10**6}):
        assert edge.post(CHAT, {"model": MODEL, "messages": HI, "options": given}).status_code == 200
    for window, penalty in ((0, 1.0), (64, 1.1), (-1, 1.1)):
        given = {"repeat_last_n": window, "repeat_penalty": 1.1, "presence_penalty": 0.0}
        assert edge.post(CHAT, {"model": MODEL, "messages": HI, "options": given}).status_code == 200
        assert edge.model.submitted[-1].params.repetition_penalty == penalty


@pytest.mark.parametrize("name, value", [("penalize_newline", 0)])
def test_an_option_of_penalties_means_nothing_without_one(edge, name, value):
    """Clients that send all of Ollama's defaults are served."""
    none = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    for more in ({}, none):
        answer = edge.post(CHAT, {"model": MODEL, "messages": HI, "options": {name: value, **more}})
        assert answer.status_code == 200, answer.text
    for penalty in ({"repeat_penalty": 1.1}, {"presence_penalty": 0.5}, {"frequency_penalty": -0.5}):
        answer = edge.post(CHAT, {"model": MODEL, "messages": HI, "options": {name: value, **penalty}})
        assert (answer.status_code, name in answer.json().get("error", "")) == (400, True)
