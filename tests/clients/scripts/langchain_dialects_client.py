"""LangChain's classes for Anthropic and for Ollama, which know nothing of OpenAI's API."""

from typing import Annotated

from common import KEY, MODEL, QUESTION, ROOT, TEXT, Person, tell
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from pydantic import Field


@tool
def get_weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


claude = ChatAnthropic(base_url=ROOT, api_key=KEY, model=MODEL, temperature=0, max_tokens=60)
forced = claude.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).invoke(QUESTION)
[call] = forced.tool_calls
chat = [HumanMessage(QUESTION), forced, ToolMessage("sunny in Paris", tool_call_id=call["id"])]
after = claude.bind_tools([get_weather]).invoke(chat)
greeting = [SystemMessage("You are brief."), HumanMessage("Name a fruit.")]
streamed = "".join(chunk.text for chunk in claude.stream(greeting))

llama = ChatOllama(base_url=ROOT, model=MODEL, temperature=0, num_predict=60)
typed = llama.with_structured_output(Person, method="json_schema").invoke(TEXT)
texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch."]
vectors = OllamaEmbeddings(base_url=ROOT, model=MODEL)
tell(
    call=[call["name"], call["args"]],
    answered=bool(after.text),
    whole=claude.invoke(greeting).text,
    streamed=streamed,
    usage=claude.invoke(greeting).usage_metadata["output_tokens"],
    person=claude.with_structured_output(Person).invoke(TEXT).model_dump(),
    ollama_person=typed.model_dump(),
    ollama=[llama.invoke(greeting).text, "".join(chunk.text for chunk in llama.stream(greeting))],
    ollama_sizes=[len(vector) for vector in vectors.embed_documents(texts)],
)
