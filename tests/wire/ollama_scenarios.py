"""Ollama's API."""

from __future__ import annotations

from tests.wire.chat_scenarios import OBJECT, TIME, WEATHER, user
from tests.wire.exchange import Exchange, Leave, Scenario, alone, together


def talk(name: str, script: str = "hello", **fields: object) -> Exchange:
    """One chat."""
    body = {"model": "scripted", "messages": user(script), **fields}
    return Exchange(name=f"ollama chat {name}", path="/api/chat", body=body)


def generate(name: str, script: str = "hello", **fields: object) -> Exchange:
    """One prompt."""
    body = {"model": "scripted:latest", "prompt": f"SAY:{script};", **fields}
    return Exchange(name=f"ollama generate {name}", path="/api/generate", body=body)


def vectors(name: str, route: str = "/api/embed", **fields: object) -> Exchange:
    """One request for vectors."""
    return Exchange(name=f"ollama {name}", path=route, body={"model": "scripted", **fields})


_ANSWERS = alone(
    talk("plain", stream=False),
    talk("streamed"),
    talk("stop string", "count", options={"stop": ["three"]}, stream=False),
    talk("cut", "count", options={"num_predict": 3}),
    talk("logprobs", logprobs=True, top_logprobs=1, stream=False),
    talk("logprobs streamed", logprobs=True, options={"num_predict": 2}),
    talk("thinking", "think", think=True, stream=False),
    talk("thinking streamed", "think", think="low"),
    talk("thinking off", "think", think=False, stream=False),
    talk("call", "call", tools=[WEATHER, TIME], stream=False),
    talk("call streamed", "text-and-call", tools=[WEATHER]),
    talk("calls streamed", "two-calls", tools=[WEATHER, TIME]),
    talk("call cut", "cut-call", tools=[WEATHER], options={"num_predict": 18}),
    talk(
        "to a tool's result",
        "more",
        stream=False,
        tools=[WEATHER],
        messages=[
            {"role": "user", "content": "Rome?"},
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
            },
            {"role": "tool", "tool_name": "weather", "content": "SAY:more"},
        ],
    ),
    talk("fails", "broken", stream=False),
    talk("fails in a stream", "broken"),
    talk("json", "any-object", format="json", stream=False),
    talk("json schema", "object", format=OBJECT),
    talk("of nothing", messages=[]),
    talk("that unloads", messages=[], keep_alive=0),
    generate("plain", stream=False),
    generate("streamed"),
    generate("with a system message", system="Be brief.", stream=False),
    generate("raw", raw=True, stream=False),
    generate("raw streamed", "count", raw=True, options={"stop": "three", "temperature": 0}),
    generate("json schema", "object", format=OBJECT, stream=False),
    generate("thinking streamed", "think"),
    generate("of nothing", prompt=""),
    vectors("embed", input="Hello"),
    vectors("embed two texts", input=["Hello", "world"], dimensions=2),
    vectors("embed nothing"),
    vectors("embeddings", "/api/embeddings", prompt="Hello"),
)
_REFUSED = together(
    "ollama's models are told, requests refused",
    Exchange(name="ollama tags", path="/api/tags"),
    Exchange(name="ollama ps", path="/api/ps"),
    Exchange(name="ollama version", path="/api/version"),
    Exchange(name="ollama show", path="/api/show", body={"model": "scripted"}),
    Exchange(name="ollama pull", path="/api/pull", body={"model": "x"}),
    Exchange(name="ollama delete", path="/api/delete", method="DELETE", body={"model": "x"}),
    talk("without a model", model=None),
    talk("with an unknown model", model="llama3"),
    talk("with a wrong type", stream="yes"),
    talk("with an unknown field", surprise=1, stream=False, options={"num_predict": 1, "surprise": 2}),
    talk("with an option that is not built", options={"mirostat": 1}),
    talk("with an option out of bounds", options={"temperature": -1}),
    talk("with too long a context", options={"num_ctx": 4096}),
    talk("with too long a prompt", messages=[{"role": "user", "content": "x" * 1100}]),
    talk("with an image", messages=[{"role": "user", "content": "hi", "images": ["aGk="]}]),
    generate("with a suffix", suffix="x"),
    Exchange(name="ollama chat with JSON that is none", path="/api/chat", body="{"),
    Exchange(name="ollama chat by GET", path="/api/chat"),
    Exchange(name="ollama unknown route", path="/api/blobs"),
)
_LEFT = Scenario(
    "an ollama chat is left",
    (
        Exchange(
            name="ollama chat that its client leaves",
            path="/api/chat",
            body={"model": "scripted", "messages": user("long")},
            hold_after=3,
            chunks=2,
        ),
        Leave("ollama chat that its client leaves"),
        Exchange(name="requests after an ollama chat was left", path="/v1/requests"),
    ),
)

OLLAMA = (*_ANSWERS, *_REFUSED, _LEFT)
