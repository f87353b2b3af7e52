"""ollama: chat and generate, whole and streamed; tools, a schema, what is served, embeddings, an error."""

import json
import math

from common import MODEL, QUESTION, TEXT, URL, tell
from ollama import Client, ResponseError

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: its name
    """
    return f"sunny in {city}"


client = Client(host=URL.removesuffix("/v1"))
options = {"temperature": 0, "num_predict": 60}
chat = [{"role": "user", "content": "Who was Aldus Manutius?"}]
whole = client.chat(MODEL, messages=chat, options=options)
pieces = list(client.chat(MODEL, messages=chat, options=options, stream=True))
extracted = client.chat(
    MODEL, messages=[{"role": "user", "content": TEXT}], format=SCHEMA, options=options
).message.content
made = client.generate(f"{MODEL}:latest", prompt=QUESTION, system="Be brief.", options=options)
parts = list(client.generate(MODEL, prompt=QUESTION, system="Be brief.", options=options, stream=True))
raw = client.generate(MODEL, prompt="Once upon a", raw=True, options={"temperature": 0, "num_predict": 5})

# Ollama has no word for calls that must come, and the default model makes few by itself: it is told the call.
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
asked = [
    {"role": "system", "content": "You call functions. Answer only with <tool_call>."},
    {"role": "user", "content": f"Repeat: {CALL}"},
]
tools = {"tools": [get_weather], "options": options}
called = client.chat(MODEL, messages=asked, **tools).message
streamed = [
    call
    for piece in client.chat(MODEL, messages=asked, stream=True, **tools)
    for call in piece.message.tool_calls or []
]
history = [
    {"role": "user", "content": QUESTION},
    called,
    {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")},
]
after = client.chat(MODEL, messages=history, **tools)

single = client.embed(MODEL, input="a book")
both = client.embed(MODEL, input=["a book", "a page"], dimensions=64)
shown, listed, running = client.show(MODEL), client.list().models, client.ps().models
try:
    client.chat("no-such-model", messages=chat)
    refused = 0
except ResponseError as error:
    refused = error.status_code
try:
    client.pull(MODEL)
    pulled = ""
except ResponseError as error:
    pulled = error.error
tell(
    same=whole.message.content == "".join(piece.message.content or "" for piece in pieces),
    answered=bool(whole.message.content),
    done=[whole.done_reason, pieces[-1].done, whole.eval_count == pieces[-1].eval_count],
    durations=all(
        (whole.total_duration, whole.prompt_eval_duration, whole.eval_duration, whole.prompt_eval_count)
    ),
    person=json.loads(extracted),
    generated=made.response == "".join(part.response for part in parts),
    raw=raw.response,
    called=[[call.function.name, call.function.arguments] for call in called.tool_calls or []],
    streamed=[[call.function.name, call.function.arguments] for call in streamed],
    after=bool(after.message.content or after.message.tool_calls),
    vectors=[
        len(single.embeddings),
        len(single.embeddings[0]),
        len(both.embeddings),
        len(both.embeddings[0]),
    ],
    length=round(math.hypot(*single.embeddings[0]), 4),
    loaded=client.chat(MODEL, messages=[]).done_reason,
    capabilities=shown.capabilities,
    parameters=shown.modelinfo["general.parameter_count"],
    listed=[model.model for model in listed],
    running=[model.model for model in running],
    refused=refused,
    pulled=pulled,
)
