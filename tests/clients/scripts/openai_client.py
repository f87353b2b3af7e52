"""openai: parse(), required, named and streamed tools, a tool's result."""

from common import KEY, MODEL, QUESTION, TEXT, URL, Person, tell
from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
client = OpenAI(base_url=URL, api_key=KEY)
asked = {"model": MODEL, "temperature": 0, "max_tokens": 200}
parsed = client.chat.completions.parse(
    messages=[{"role": "user", "content": TEXT}], response_format=Person, **asked
)
chat = [{"role": "user", "content": QUESTION}]
tools = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
whole = client.chat.completions.create(messages=chat, **tools, **asked).choices[0]
name, arguments = "", ""
for chunk in client.chat.completions.create(messages=chat, stream=True, **tools, **asked):
    for call in chunk.choices[0].delta.tool_calls or []:
        name += call.function.name or ""
        arguments += call.function.arguments or ""
call = whole.message.tool_calls[0]
chat += [whole.message, {"role": "tool", "tool_call_id": call.id, "content": "22 degrees, sunny"}]
after = client.chat.completions.create(messages=chat, tools=[TOOL], tool_choice="none", **asked)
with client.chat.completions.stream(messages=chat[:1], **tools, **asked) as stream:
    final = stream.get_final_completion().choices[0]
tell(
    person=parsed.choices[0].message.parsed.model_dump(),
    call=[call.function.name, call.function.arguments],
    streamed=[name, arguments],
    helper=[final.message.tool_calls[0].function.name, final.message.tool_calls[0].function.arguments],
    finish=whole.finish_reason,
    answered=bool(after.choices[0].message.content),
)
