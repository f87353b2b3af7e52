"""LiteLLM: a required call, and a schema."""

import litellm
from common import KEY, MODEL, QUESTION, TEXT, URL, Person, tell

CITY = {"type": "string", "maxLength": 20}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
    },
}
asked = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY, "temperature": 0, "max_tokens": 200}
called = litellm.completion(
    messages=[{"role": "user", "content": QUESTION}], tools=[TOOL], tool_choice="required", **asked
)
typed = litellm.completion(messages=[{"role": "user", "content": TEXT}], response_format=Person, **asked)
tell(
    calls=[call.function.name for call in called.choices[0].message.tool_calls],
    person=Person.model_validate_json(typed.choices[0].message.content).model_dump(),
)
