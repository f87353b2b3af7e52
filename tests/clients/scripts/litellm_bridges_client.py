"""LiteLLM between APIs: what it is asked in one, it asks of the server in another."""

import asyncio

import litellm
from common import CITY, KEY, MODEL, QUESTION, ROOT, TEXT, URL, Person, tell

OPENAI = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY}
# A provider without a Responses API of its own: LiteLLM asks chat completions instead.
CHAT_ONLY = {**OPENAI, "model": f"lm_studio/{MODEL}"}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": ROOT, "api_key": KEY}
OLLAMA = {"model": f"ollama_chat/{MODEL}", "api_base": ROOT}
BRIEF = {"temperature": 0, "max_tokens": 60}
CHAT = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
FLAT = {"type": "function", "name": "get_weather", "parameters": CITY}
FORCED = {"messages": CHAT, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}


def called(answer: object) -> list[str]:
    """Name and arguments of the one call."""
    [call] = answer.choices[0].message.tool_calls
    return [call.function.name, call.function.arguments]


def responded(target: dict[str, str]) -> list[str]:
    """The one call of `litellm.responses()`."""
    answer = litellm.responses(
        input=QUESTION,
        tools=[FLAT],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_output_tokens=60,
        **target,
    )
    [call] = [item for item in answer.output if item.type == "function_call"]
    return [call.name, call.arguments]


def text_of(answer: object) -> str:
    return answer.choices[0].message.content


def streamed(target: dict[str, str]) -> list[str]:
    """The same answer, whole and in pieces."""
    asked = {"messages": [{"role": "user", "content": "Name a fruit."}], **BRIEF, **target}
    pieces = litellm.completion(stream=True, **asked)
    return [
        text_of(litellm.completion(**asked)),
        "".join(piece.choices[0].delta.content or "" for piece in pieces),
    ]


def typed(target: dict[str, str]) -> dict[str, object]:
    answer = litellm.completion(
        messages=[{"role": "user", "content": TEXT}], response_format=Person, **BRIEF, **target
    )
    return Person.model_validate_json(text_of(answer)).model_dump()


async def messages(target: dict[str, str]) -> list[str]:
    """Anthropic's messages, asked of LiteLLM."""
    tool = {"name": "get_weather", "input_schema": CITY}
    answer = await litellm.anthropic_messages(
        messages=CHAT, tools=[tool], tool_choice={"type": "tool", "name": "get_weather"}, **BRIEF, **target
    )
    [call] = [block for block in answer["content"] if block["type"] == "tool_use"]
    return [answer["stop_reason"], call["name"], call["input"]]


def embedded(target: dict[str, str]) -> list[int]:
    texts = ["A cat sleeps on the sofa.", "Bond yields rose on Tuesday."]
    return [len(one["embedding"]) for one in litellm.embedding(input=texts, **target).data]


AS_RESPONSES = {**OPENAI, "model": f"openai/responses/{MODEL}"}
tell(
    responses={"native": responded(OPENAI), "by_chat": responded(CHAT_ONLY)},
    chat_by_responses=called(litellm.completion(**FORCED, **BRIEF, **AS_RESPONSES)),
    anthropic={
        "call": called(litellm.completion(**FORCED, **BRIEF, **ANTHROPIC)),
        "text": streamed(ANTHROPIC),
    },
    messages={
        "native": asyncio.run(messages(ANTHROPIC)),
        "by_responses": asyncio.run(messages(OPENAI)),
        "by_chat": asyncio.run(messages(CHAT_ONLY)),
    },
    ollama={"text": streamed(OLLAMA), "person": typed(OLLAMA)},
    embeddings={
        "openai": embedded(OPENAI),
        "ollama": embedded({"model": f"ollama/{MODEL}", "api_base": ROOT}),
    },
)
