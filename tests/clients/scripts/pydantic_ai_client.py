"""pydantic-ai: a typed output, by a tool and by the server's own schema."""

from typing import Annotated

from common import KEY, MODEL, TEXT, URL, tell
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    """Extracted from a text."""

    name: Annotated[str, Field(max_length=20)]
    age: Annotated[int, Field(ge=0, le=150)]


model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key=KEY))
settings = {"temperature": 0.0, "max_tokens": 200, "parallel_tool_calls": False}
by_tool = Agent(model, output_type=Person, model_settings=settings).run_sync(TEXT)
native = Agent(model, output_type=NativeOutput(Person), model_settings=settings).run_sync(TEXT)
tell(by_tool=by_tool.output.model_dump(), native=native.output.model_dump())
