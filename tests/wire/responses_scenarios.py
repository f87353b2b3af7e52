"""OpenAI's responses."""

from __future__ import annotations

from tests.wire.chat_scenarios import CITY, OBJECT, ZONE
from tests.wire.exchange import Exchange, Finish, Leave, Scenario, alone, together

PATH = "/v1/responses"
_WEATHER = {"type": "function", "name": "weather", "description": "Of a city", "parameters": CITY}
_TIME = {"type": "function", "name": "time", "parameters": ZONE}
_SCHEMA = {"format": {"type": "json_schema", "name": "place", "schema": OBJECT, "strict": True}}
_LOGPROBS = ["message.output_text.logprobs"]


def respond(name: str, script: str = "hello", **fields: object) -> Exchange:
    """One response."""
    return Exchange(name=f"response {name}", path=PATH, body={"input": f"SAY:{script}", **fields})


_FIRST = "/v1/responses/resp_<resp-1>"

_ANSWERS = alone(
    respond("plain"),
    respond("streamed", stream=True),
    respond("not stored", store=False, instructions="Be brief.", metadata={"a": "b"}, user="u"),
    respond("cut", "count", max_output_tokens=3),
    respond("cut streamed", "count", max_output_tokens=3, stream=True),
    respond("logprobs", include=_LOGPROBS, top_logprobs=1, max_output_tokens=2),
    respond("logprobs streamed", include=_LOGPROBS, max_output_tokens=2, stream=True),
    respond("thinking", "think"),
    respond("thinking streamed", "think", stream=True, reasoning={"effort": "low"}),
    respond("call", "call", tools=[_WEATHER], tool_choice="required"),
    respond("call streamed", "text-and-call", tools=[_WEATHER], stream=True),
    respond("calls streamed", "two-calls", tools=[_WEATHER, _TIME], stream=True),
    respond("json schema", "object", text=_SCHEMA),
    respond("stop string", "count", stop=["three"]),
    respond("fails", "broken"),
    respond("fails in a stream", "broken", stream=True),
    respond("timeout streamed", "long", timeout=0.05, stream=True),
    respond(
        "of items",
        input=[
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "SAY:more"}]},
        ],
    ),
)
_REFUSED = together(
    "responses are refused",
    respond("of nothing", input=None),
    respond("of an image", input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
    respond("with a wrong type", temperature="warm"),
    respond("with a field that is not built", background=True),
    respond("with an unknown field", surprise=1, max_output_tokens=1),
    respond("with a hosted tool", tools=[{"type": "web_search"}]),
    respond("with an unknown model", model="gpt-4o"),
    respond("with an unknown previous one", previous_response_id="resp_unknown"),
    respond("with too long an input", input="x" * 1100),
    Exchange(name="response that is unknown", path="/v1/responses/resp_unknown"),
    Exchange(name="response by PUT", path=PATH, method="PUT", body={}),
)
_STORED = (
    Scenario(
        "responses are stored",
        (
            respond("that is stored"),
            Exchange(name="response shown", path=_FIRST),
            respond("that goes on", "more", previous_response_id="resp_<resp-1>"),
            respond("that goes on streamed", "yes", previous_response_id="resp_<resp-2>", stream=True),
            respond(
                "that goes on with other instructions",
                "yes",
                previous_response_id="resp_<resp-1>",
                instructions="Be brief.",
            ),
            Exchange(name="response items", path="/v1/responses/resp_<resp-2>/input_items"),
            Exchange(
                name="response items in order, a page",
                path="/v1/responses/resp_<resp-2>/input_items?order=asc&limit=1",
            ),
            Exchange(name="response items with a wrong limit", path=f"{_FIRST}/input_items?limit=0"),
            Exchange(name="response streamed again", path=f"{_FIRST}?stream=true"),
            Exchange(name="response cancelled too late", path=f"{_FIRST}/cancel", method="POST"),
            Exchange(name="response deleted", path=_FIRST, method="DELETE"),
            Exchange(name="response after it was deleted", path=_FIRST),
            respond(
                "of a reference",
                input=[
                    {"type": "item_reference", "id": "msg_<resp-2>_0"},
                    {"role": "user", "content": "SAY:yes"},
                ],
            ),
        ),
    ),
    Scenario(
        "a call is answered",
        (
            respond("that calls", "call", tools=[_WEATHER]),
            Exchange(
                name="response to a call's result",
                path=PATH,
                body={
                    "previous_response_id": "resp_<resp-1>",
                    "tools": [_WEATHER],
                    "input": [{"type": "function_call_output", "call_id": "<call-1>", "output": "SAY:more"}],
                },
            ),
            Exchange(
                name="response to a call that is unknown",
                path=PATH,
                body={
                    "previous_response_id": "resp_<resp-1>",
                    "tools": [_WEATHER],
                    "input": [{"type": "function_call_output", "call_id": "call_x", "output": "SAY:more"}],
                },
            ),
        ),
    ),
    Scenario(
        "a response is cancelled",
        (
            Exchange(
                name="response that is cancelled",
                path=PATH,
                body={"input": "SAY:long", "stream": True},
                hold_after=3,
                chunks=6,
            ),
            Exchange(name="response in progress", path=_FIRST),
            respond("that goes on too early", previous_response_id="resp_<resp-1>"),
            Exchange(name="response cancelled", path=f"{_FIRST}/cancel", method="POST", asks=True),
            Finish("response that is cancelled"),
            Exchange(name="response after it was cancelled", path=_FIRST),
            Exchange(name="requests after a response was cancelled", path="/v1/requests"),
        ),
    ),
    Scenario(
        "a response is left",
        (
            Exchange(
                name="response that its client leaves",
                path=PATH,
                body={"input": "SAY:long", "stream": True},
                hold_after=3,
                chunks=5,
            ),
            Leave("response that its client leaves"),
            Exchange(name="requests after a response was left", path="/v1/requests"),
        ),
    ),
)

RESPONSES = (*_ANSWERS, *_REFUSED, *_STORED)
