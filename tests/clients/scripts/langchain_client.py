"""LangChain: bind_tools, and the three ways of with_structured_output."""

from typing import Annotated

from common import KEY, MODEL, QUESTION, TEXT, URL, Person, tell
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import Field


@tool
def get_weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


llm = ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, temperature=0, max_tokens=200)
calls = (
    llm.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).invoke(QUESTION).tool_calls
)
named = llm.bind_tools([get_weather], tool_choice="get_weather").invoke(QUESTION).tool_calls
ways = {
    way: llm.with_structured_output(Person, method=way).invoke(TEXT).model_dump()
    for way in ("json_schema", "function_calling")
}
loose = llm.with_structured_output(None, method="json_mode").invoke(f"{TEXT} Name and age as JSON.")
tell(calls=calls, named=named, ways=ways, json_mode=isinstance(loose, dict))
