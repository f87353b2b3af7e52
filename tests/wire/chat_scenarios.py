"""OpenAI's chat completions."""

from __future__ import annotations

from tests.wire.exchange import Exchange, Finish, Leave, Scenario, alone, together

PATH = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ZONE = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city", "parameters": CITY},
}
TIME = {"type": "function", "function": {"name": "time", "parameters": ZONE}}
OBJECT = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["city", "size"],
    "additionalProperties": False,
}


def user(script: str) -> list[object]:
    """Messages that a script answers."""
    return [{"role": "user", "content": f"SAY:{script}"}]


def chat(name: str, script: str = "hello", **fields: object) -> Exchange:
    """One chat."""
    return Exchange(name=f"chat {name}", path=PATH, body={"messages": user(script), **fields})


_NAMED = {"type": "function", "function": {"name": "weather"}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": OBJECT, "strict": True}}

_ANSWERS = alone(
    chat("plain"),
    chat("with all that is harmless", model="scripted", temperature=0.7, top_p=0.9, user="u", seed=1, n=1),
    chat("streamed", stream=True),
    chat("streamed with usage", stream=True, stream_options={"include_usage": True}),
    chat("streamed with usage in each chunk", stream=True, stream_options={"continuous_usage_stats": True}),
    chat("streamed with characters of several tokens", "accents", stream=True),
    chat("two choices", n=2),
    chat("two choices streamed", n=2, stream=True),
    chat("two choices that differ", "digits", n=2, seed=7, temperature=1.0),
    chat("beam search", use_beam_search=True, n=2, max_tokens=4),
    chat("stop string", "count", stop=["three"]),
    chat("stop string streamed", "count", stop=["three", "four"], stream=True),
    chat("stop string that is kept", "count", stop="two", include_stop_str_in_output=True),
    chat("stop token", "count", stop_token_ids=[44]),
    chat("cut by max_tokens", "count", max_completion_tokens=3),
    chat("logprobs", logprobs=True),
    chat("logprobs with the likeliest", logprobs=True, top_logprobs=2),
    chat("logprobs streamed", logprobs=True, top_logprobs=1, stream=True),
    chat("token ids and prompt logprobs", return_token_ids=True, prompt_logprobs=0, max_tokens=1),
    chat(
        "gone on with",
        messages=[*user("hello"), {"role": "assistant", "content": "Hel"}],
        continue_final_message=True,
    ),
    chat("fails", "broken"),
    chat("fails in a stream", "broken", stream=True),
    chat("timeout", "long", timeout=0.05),
)
_TOOLS = alone(
    chat("tools auto", "call", tools=[WEATHER, TIME]),
    chat("tools auto and no call", tools=[WEATHER], tool_choice="auto"),
    chat("tools auto streamed", "text-and-call", tools=[WEATHER, TIME], stream=True),
    chat("tools required", "call", tools=[WEATHER, TIME], tool_choice="required"),
    chat(
        "tools required against the model",
        tools=[WEATHER],
        tool_choice="required",
        temperature=0,
        max_tokens=24,
    ),
    chat("tools named streamed", "call", tools=[WEATHER, TIME], tool_choice=_NAMED, stream=True),
    chat("tools none", tools=[WEATHER], tool_choice="none"),
    chat("tools in parallel", "two-calls", tools=[WEATHER, TIME]),
    chat("tools in parallel streamed", "two-calls", tools=[WEATHER, TIME], stream=True),
    chat("tools one at a time", "two-calls", tools=[WEATHER, TIME], parallel_tool_calls=False),
    chat("tools cut", "cut-call", tools=[WEATHER], max_tokens=18),
    chat(
        "tools with their results",
        "more",
        tools=[WEATHER],
        messages=[
            {"role": "user", "content": "Rome?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "SAY:more"},
        ],
    ),
)
_THINKING = alone(
    chat("thinking", "think"),
    chat("thinking streamed", "think", stream=True),
    chat("thinking off", "think", enable_thinking=False),
    chat("thinking left out", "think", include_reasoning=False),
    chat("thinking not split", "think", reasoning_format="none"),
    chat("thinking with a budget", "endless-thought", max_thinking_tokens=6),
    chat("thinking and tools streamed", "thought-and-call", tools=[WEATHER], stream=True),
)
_FORMATS = alone(
    chat("json schema", "object", response_format=_SCHEMA),
    chat("json schema streamed", "object", response_format=_SCHEMA, stream=True),
    chat("json schema behind thinking", "thought-and-object", response_format=_SCHEMA),
    chat("json object", "any-object", response_format={"type": "json_object"}),
    chat("regex", "number", guided_regex="[0-9]{4}"),
    chat("choice", "yes", structured_outputs={"choice": ["yes", "no"]}),
    chat("grammar", "yes", grammar='root ::= "yes" | "no"'),
    chat("grammar against the model", "yes", guided_choice=["maybe"], temperature=0),
    chat(
        "schema that cannot be followed",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object", "not": {"type": "string"}}},
        },
    ),
    chat("two formats", guided_regex="a", guided_choice=["b"]),
)
_REFUSED = together(
    "chats are refused",
    Exchange(name="chat with JSON that is none", path=PATH, body='{"messages": ['),
    Exchange(name="chat with a list", path=PATH, body=[1]),
    Exchange(name="chat without a body", path=PATH, method="POST"),
    Exchange(name="chat with NaN", path=PATH, body='{"temperature": NaN}'),
    Exchange(name="chat without messages", path=PATH, body={}),
    Exchange(
        name="chat as text/plain",
        path=PATH,
        body={"messages": user("hello")},
        headers=(("Content-Type", "text/plain"),),
    ),
    Exchange(name="chat with a body that is too large", path=PATH, body={"messages": "x" * 20_000}),
    chat("with a wrong type", temperature="warm"),
    chat("with a wrong type within", stop=["a", 1]),
    chat("with a wrong role", messages=[{"role": "wizard", "content": "hi"}]),
    chat("with an image", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    chat("with an unknown field", surprise=1, max_tokens=2),
    chat("with a field that is not built", mirostat=2),
    chat("with a field that belongs elsewhere", prompt="hi"),
    chat("out of bounds", temperature=-1),
    chat("with too many choices", n=65),
    chat("with too many logprobs", logprobs=True, top_logprobs=21),
    chat("with top_logprobs alone", top_logprobs=2),
    chat("with stream_options alone", stream_options={"include_usage": True}),
    chat("with an unknown model", model="gpt-4o"),
    chat("with too long a prompt", messages=[{"role": "user", "content": "x" * 1100}]),
    chat("with too many tokens", max_tokens=1020),
    chat("with a tool that is none", tools=[{"type": "function", "function": {"name": "a b"}}]),
    chat("with a tool that is not offered", tools=[TIME], tool_choice=_NAMED),
    chat("with budgets that differ", max_thinking_tokens=1, thinking_token_budget=2),
    Exchange(name="chat by GET", path=PATH),
    Exchange(name="chat with a slash more", path=PATH + "/", body={"messages": user("hello")}),
)
_LEFT = (
    Scenario(
        "chat is left",
        (
            Exchange(
                name="chat that its client leaves",
                path=PATH,
                body={"messages": user("long"), "stream": True},
                hold_after=4,
                chunks=4,
            ),
            Exchange(name="requests while a chat runs", path="/v1/requests", asks=True),
            Exchange(name="request that runs", path="/v1/requests/1", asks=True),
            Leave("chat that its client leaves"),
            Exchange(name="requests after a chat was left", path="/v1/requests"),
            Exchange(name="request that has ended", path="/v1/requests/1"),
        ),
    ),
    Scenario(
        "chat is awaited and left",
        (
            Exchange(
                name="chat that is not streamed and left",
                path=PATH,
                body={"messages": user("long")},
                hold_after=2,
            ),
            Leave("chat that is not streamed and left"),
            Exchange(name="requests after it was left", path="/v1/requests"),
        ),
    ),
    Scenario(
        "chats queue",
        (
            Exchange(
                name="chat that holds the queue",
                path=PATH,
                body={"messages": user("hello"), "n": 8},
                hold_after=1,
            ),
            Exchange(
                name="chat that is served later",
                path=PATH,
                body={"messages": user("more"), "max_tokens": 2},
                hold_after=1,
            ),
            Exchange(name="requests while one waits", path="/v1/requests", asks=True),
            Finish("chat that holds the queue"),
            Finish("chat that is served later"),
        ),
    ),
    Scenario(
        "prefix is found",
        (
            chat(
                "that fills blocks", messages=[{"role": "user", "content": "SAY:hello " + "the answer " * 12}]
            ),
            chat(
                "whose blocks are cached",
                messages=[
                    {"role": "user", "content": "SAY:hello " + "the answer " * 12},
                    {"role": "assistant", "content": "Hi"},
                    {"role": "user", "content": "SAY:more"},
                ],
            ),
            chat(
                "with a salt",
                cache_salt="s",
                messages=[{"role": "user", "content": "SAY:hello " + "the answer " * 12}],
            ),
        ),
    ),
)

CHAT = (*_ANSWERS, *_TOOLS, *_THINKING, *_FORMATS, *_REFUSED, *_LEFT)
