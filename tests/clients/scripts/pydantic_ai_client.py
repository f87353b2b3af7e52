"""pydantic-ai: a typed output, by a tool and by the server's own schema; as chat and as Responses."""

from common import KEY, MODEL, TEXT, URL, Person, tell
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=URL, api_key=KEY)
settings = {"temperature": 0.0, "max_tokens": 200, "parallel_tool_calls": False}
tell(
    **{
        api: [
            Agent(model, output_type=way, model_settings=settings).run_sync(TEXT).output.model_dump()
            for way in (Person, NativeOutput(Person))
        ]
        for api, model in {
            "chat": OpenAIChatModel(MODEL, provider=provider),
            "responses": OpenAIResponsesModel(MODEL, provider=provider),
        }.items()
    }
)
