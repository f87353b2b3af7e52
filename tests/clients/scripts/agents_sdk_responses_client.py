"""OpenAI's Agents SDK with its default, /v1/responses: an agent that calls and goes on, a typed output,
events and a conversation that the server keeps."""

import asyncio
from typing import Annotated

from agents import (
    Agent,
    ModelSettings,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from common import FACTS, KEY, MODEL, QUESTION, TEXT, URL, Person, tell
from openai import AsyncOpenAI
from pydantic import Field

set_tracing_disabled(True)
set_default_openai_client(AsyncOpenAI(base_url=URL, api_key=KEY), use_for_tracing=False)
asked = []


@function_tool
def get_weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """The weather in a city."""
    asked.append(city)
    return f"sunny in {city}"


def settings(**more: object) -> ModelSettings:
    return ModelSettings(temperature=0, max_tokens=200, **more)


must = settings(tool_choice="required", parallel_tool_calls=False)
caller = Agent(name="caller", model=MODEL, tools=[get_weather], model_settings=must)
caller.tool_use_behavior = "stop_on_first_tool"
typed = Agent(name="typed", model=MODEL, output_type=Person, model_settings=settings())
plain = Agent(name="plain", model=MODEL, model_settings=settings(store=True))


async def main() -> None:
    called = await Runner.run(caller, QUESTION, max_turns=2)
    # What the agent has done goes back to the server, as the SDK writes it.
    went_on = await Runner.run(plain, [*called.to_input_list(), {"role": "user", "content": "Say thanks."}])
    person = await Runner.run(typed, TEXT)

    begun = await Runner.run(plain, FACTS + "Where does Anna live?")
    last = begun.last_response_id
    chained = await Runner.run(plain, "And where does she work?", previous_response_id=last)
    streamed = Runner.run_streamed(plain, "And where does she work?", previous_response_id=last)
    deltas = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            deltas += event.data.delta
    [first], [second] = begun.raw_responses, chained.raw_responses
    tell(
        asked=asked,
        said=called.final_output,
        went_on=bool(went_on.final_output),
        person=person.final_output.model_dump(),
        chained=chained.final_output,
        streamed=[streamed.final_output, deltas],
        tokens=first.usage.total_tokens,
        cached=second.usage.input_tokens_details.cached_tokens,
    )


asyncio.run(main())
