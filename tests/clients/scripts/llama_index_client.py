"""LlamaIndex: a structured prediction, and a required call."""

from typing import Annotated

from common import KEY, MODEL, QUESTION, TEXT, URL, Person, tell
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import Field


def get_weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


llm = OpenAILike(
    model=MODEL,
    api_base=URL,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    temperature=0,
    max_tokens=200,
)
person = llm.structured_predict(Person, PromptTemplate("{text}"), text=TEXT)
answer = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg=QUESTION, tool_required=True)
calls = llm.get_tool_calls_from_response(answer)
tell(person=person.model_dump(), calls=[[call.tool_name, call.tool_kwargs] for call in calls])
