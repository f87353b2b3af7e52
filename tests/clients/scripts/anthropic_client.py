"""anthropic: whole and streamed answers, tools and their results, thinking in history, structured output, a
beginning that the answer goes on with, counted tokens, models, errors."""

import anthropic
from anthropic import Anthropic
from common import CITY, KEY, MODEL, QUESTION, ROOT, TEXT, tell

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "The weather in a city", "strict": True, "input_schema": CITY}
client = Anthropic(base_url=ROOT, api_key=KEY, max_retries=0)
# The sampling fields are no arguments of newer versions.
asked = {"model": MODEL, "max_tokens": 200, "extra_body": {"temperature": 0}}
chat = [{"role": "user", "content": QUESTION}]
tools = {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}


def error_of(**fields: object) -> list[object]:
    """The class of an error, its status, the type in its body, and whether it names its request."""
    try:
        client.messages.create(**({"messages": chat, "model": MODEL, "max_tokens": 9} | fields))
    except anthropic.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.body["error"]["type"], bool(error.request_id)]
    return []


whole = client.messages.create(messages=chat, system="Be brief.", **asked)
with client.messages.stream(messages=chat, system="Be brief.", **asked) as stream:
    pieces = "".join(stream.text_stream)
    final = stream.get_final_message()
events = [event.type for event in client.messages.create(messages=chat, stream=True, **asked)]

called = client.messages.create(messages=chat, **tools, **asked)
with client.messages.stream(messages=chat, **tools, **asked) as stream:
    streamed = stream.get_final_message()
[call] = called.content
result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "22, sunny"}]}
thought = {"type": "thinking", "thinking": "I have to look.", "signature": "unsigned"}
chat_with_result = [
    *chat,
    {"role": "assistant", "content": [thought, *called.content]},
    {"role": "user", "content": [result, {"type": "text", "text": "Say it in a sentence."}]},
]
after = client.messages.create(messages=chat_with_result, tools=[TOOL], tool_choice={"type": "none"}, **asked)
counted = client.messages.count_tokens(messages=chat_with_result, tools=[TOOL], model=MODEL)

form = {"format": {"type": "json_schema", "schema": PERSON}}
person = client.messages.create(messages=[{"role": "user", "content": TEXT}], output_config=form, **asked)
begun = [*chat, {"role": "assistant", "content": "The weather in Paris is"}]
prefilled = client.messages.create(messages=begun, **asked)
counted_begun = client.messages.count_tokens(messages=begun, model=MODEL)
stopped = client.messages.create(
    messages=[{"role": "user", "content": "Count: 1, 2, 3"}], stop_sequences=[" ", "."], **asked
)
listed = [model.id for model in client.models.list()]
shown = client.models.retrieve(MODEL)


def tokens_in(message: anthropic.types.Message) -> int:
    """All of the prompt, computed or not."""
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


tell(
    text=[whole.content[0].text, pieces, final.content[0].text],
    stops=[whole.stop_reason, final.stop_reason, called.stop_reason, streamed.stop_reason],
    usage=[tokens_in(whole) == tokens_in(final), whole.usage.output_tokens == final.usage.output_tokens],
    events=[events[0], events[1], events[-3:], sorted(set(events))],
    call=[call.type, call.name, call.input, call.id.startswith("toolu_")],
    streamed=[streamed.content[0].name, streamed.content[0].input],
    answered=[block.type for block in after.content],
    counted=[counted.input_tokens == tokens_in(after), counted_begun.input_tokens == tokens_in(prefilled)],
    person=person.content[0].text,
    prefilled=bool(prefilled.content[0].text),
    stopped=[stopped.stop_reason, stopped.stop_sequence],
    models=[listed, shown.id, shown.display_name, shown.type, shown.created_at.year > 2000],
    errors=[
        error_of(model="gpt-17"),
        error_of(max_tokens=-1),
        error_of(messages=[{"role": "user", "content": "word " * 20_000}]),
        error_of(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    ],
)
