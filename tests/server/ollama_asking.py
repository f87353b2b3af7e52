"""Asking the API of Ollama, and reading what it answers."""

import json

from octavo.types import ToolCall

MODEL = "fake-model"
HI = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
CALLS = [ToolCall("get_weather", '{"city": "Köln"}'), ToolCall("now", "{}")]
FIGURES = {
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
}


def chat(edge, **fields):
    return edge.post("/api/chat", {"model": MODEL, "messages": HI, **fields})


def generate(edge, **fields):
    return edge.post("/api/generate", {"model": MODEL, "prompt": "hi", **fields})


def lines(answer):
    """The objects of a stream."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def whole(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def params(edge):
    return edge.model.submitted[-1].params
