"""What the official client's own types say of an answer and of the events of a stream."""

from __future__ import annotations

import inspect
import json
from typing import get_args

from openai.types import responses
from openai.types.responses import Response

EVENTS = {
    get_args(member.model_fields["type"].annotation)[0]: member
    for name, member in vars(responses).items()
    if inspect.isclass(member) and name.endswith("Event") and "type" in getattr(member, "model_fields", {})
}
LAST = ("response.completed", "response.incomplete", "response.failed")


def checked(body):
    """The answer, which has every field that the client's type wants, of its kind."""
    Response.model_validate(body)
    return body


def events_of(answer):
    """The events of a stream: typed, numbered, opened and closed in order, and no [DONE]."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.split("\n\n")[:-1]:
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        EVENTS[event["type"]].model_validate(event)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert [kind for kind in kinds if kind in LAST] == kinds[-1:]
    return events


def rebuilt(events):
    """The output that the deltas of a stream join to, and that its last events tell."""
    items = []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "response.content_part.added":
                items[event["output_index"]]["content"].append(event["part"])
            case "response.output_text.delta" | "response.reasoning_text.delta":
                part = items[event["output_index"]]["content"][event["content_index"]]
                part["text"] += event["delta"]
                if "logprobs" in part:
                    part["logprobs"] += event["logprobs"]
            case "response.function_call_arguments.delta":
                items[event["output_index"]]["arguments"] += event["delta"]
            case "response.output_item.done":
                items[event["output_index"]]["status"] = event["item"]["status"]
                assert items[event["output_index"]] == event["item"]
    assert items == events[-1]["response"]["output"]
    return items
