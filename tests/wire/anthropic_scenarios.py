"""Anthropic's messages."""

from __future__ import annotations

from tests.wire.chat_scenarios import CITY, OBJECT, ZONE, user
from tests.wire.exchange import Exchange, Leave, Scenario, alone, together

PATH = "/v1/messages"
_WEATHER = {"name": "weather", "description": "Of a city", "input_schema": CITY}
_TIME = {"name": "time", "input_schema": ZONE}
_VERSION = (("anthropic-version", "2023-06-01"),)


def message(name: str, script: str = "hello", **fields: object) -> Exchange:
    """One message."""
    body = {"max_tokens": 100, "messages": user(script), **fields}
    return Exchange(name=f"message {name}", path=PATH, body=body, headers=_VERSION)


def count(name: str, **fields: object) -> Exchange:
    """One count of tokens."""
    return Exchange(name=f"count {name}", path=f"{PATH}/count_tokens", body=fields, headers=_VERSION)


_THINKS = {"type": "enabled", "budget_tokens": 50}

_ANSWERS = alone(
    message("plain"),
    message("streamed", stream=True),
    message(
        "with a system message", "more", system=[{"type": "text", "text": "Be brief."}], model="scripted"
    ),
    message("stop sequence", "count", stop_sequences=["three"]),
    message("stop sequence streamed", "count", stop_sequences=["three"], stream=True),
    message("cut", "count", max_tokens=3),
    message(
        "cut by the context", max_tokens=500, messages=[{"role": "user", "content": "x" * 990 + " SAY:long"}]
    ),
    message("begun", messages=[*user("hello"), {"role": "assistant", "content": "Hel"}]),
    message("thinking", "think", thinking=_THINKS),
    message("thinking streamed", "think", thinking=_THINKS, stream=True),
    message("thinking omitted", "think", thinking={"type": "adaptive", "display": "omitted"}),
    message("call", "call", tools=[_WEATHER, _TIME]),
    message("call streamed", "text-and-call", tools=[_WEATHER], stream=True),
    message("calls streamed", "two-calls", tools=[_WEATHER, _TIME], tool_choice={"type": "any"}, stream=True),
    message(
        "call of a tool", "call", tools=[_WEATHER, _TIME], tool_choice={"type": "tool", "name": "weather"}
    ),
    message(
        "thinking and call streamed", "thought-and-call", tools=[_WEATHER], thinking=_THINKS, stream=True
    ),
    message("call cut", "cut-call", tools=[_WEATHER], max_tokens=18),
    message(
        "to a tool's result",
        "more",
        tools=[_WEATHER],
        messages=[
            {"role": "user", "content": "Rome?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "SAY:more"}],
            },
        ],
    ),
    message("fails", "broken"),
    message("fails in a stream", "broken", stream=True),
    message("json schema", "object", output_config={"format": {"type": "json_schema", "schema": OBJECT}}),
)
_REFUSED = together(
    "messages are counted and refused",
    count("plain", messages=user("hello")),
    count("with tools", messages=user("hello"), tools=[_WEATHER], system="Be brief."),
    count("of nothing"),
    message("without max_tokens", max_tokens=None),
    message("out of bounds", temperature=1.5),
    message("with a wrong type", top_k="all"),
    message("with an unknown field", surprise=1, max_tokens=1),
    message("with a field that is not built", container="c"),
    message("with a thread", thread="t"),
    message("with an image", messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]),
    message("with an unknown model", model="claude"),
    message("with too long a prompt", messages=[{"role": "user", "content": "x" * 1100}]),
    message(
        "with a result of nothing",
        messages=[
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9", "content": "x"}]},
        ],
    ),
    Exchange(name="message with JSON that is none", path=PATH, body="{"),
    Exchange(name="message by GET", path=PATH),
    Exchange(name="message on an unknown route", path=f"{PATH}/batches", body={}),
    Exchange(
        name="message with a session's header",
        path=PATH,
        body={"max_tokens": 1, "messages": user("hello")},
        headers=(("X-Octavo-Session", "new"),),
    ),
)
_LEFT = Scenario(
    "a message is left",
    (
        Exchange(
            name="message that its client leaves",
            path=PATH,
            body={"max_tokens": 500, "messages": user("long"), "stream": True},
            hold_after=3,
            chunks=4,
        ),
        Leave("message that its client leaves"),
        Exchange(name="requests after a message was left", path="/v1/requests"),
    ),
)

ANTHROPIC = (*_ANSWERS, *_REFUSED, _LEFT)
