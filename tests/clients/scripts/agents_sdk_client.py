"""OpenAI's Agents SDK on chat completions: a tool that must be called, and a typed output."""

from typing import Annotated

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from common import KEY, MODEL, QUESTION, TEXT, URL, Person, tell
from openai import AsyncOpenAI
from pydantic import Field

set_tracing_disabled(True)
asked = []


@function_tool
def get_weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """The weather in a city."""
    asked.append(city)
    return f"sunny in {city}"


model = OpenAIChatCompletionsModel(model=MODEL, openai_client=AsyncOpenAI(base_url=URL, api_key=KEY))
settings = ModelSettings(temperature=0, max_tokens=200, tool_choice="required", parallel_tool_calls=False)
caller = Agent(name="caller", model=model, tools=[get_weather], model_settings=settings)
caller.tool_use_behavior = "stop_on_first_tool"
said = Runner.run_sync(caller, QUESTION, max_turns=2).final_output
typed = Agent(
    name="typed", model=model, output_type=Person, model_settings=ModelSettings(temperature=0, max_tokens=200)
)
tell(asked=asked, said=said, person=Runner.run_sync(typed, TEXT).final_output.model_dump())
