"""smolagents: a model that must call, and a run of an agent that calls until its steps are used up."""

from common import KEY, MODEL, QUESTION, URL, tell
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

asked = []


@tool
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: its name
    """
    asked.append(city)
    return f"sunny in {city}"


model = OpenAIServerModel(model_id=MODEL, api_base=URL, api_key=KEY, temperature=0, max_tokens=200)
message = model.generate(
    [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}], tools_to_call_from=[get_weather]
)
agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=1, verbosity_level=0)
agent.run(QUESTION)
steps = [step for step in agent.memory.steps if getattr(step, "tool_calls", None)]
tell(calls=[call.function.name for call in message.tool_calls], steps=len(steps))
