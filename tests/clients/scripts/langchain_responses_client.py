"""LangChain on /v1/responses and /v1/embeddings."""

from typing import Annotated

import tiktoken
from common import FACTS, KEY, MODEL, QUESTION, TEXT, URL, Person, tell, token_ids
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import Field


@tool
def get_weather(city: Annotated[str, Field(max_length=20)]) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


class ServersTokenizer:
    """LangChain counts and sends tokens: OpenAI's, unless it is given the tokenizer that the server has."""

    def encode_ordinary(self, text: str) -> list[int]:
        return token_ids(text)


llm = ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, temperature=0, max_tokens=60, use_responses_api=True)
caller = llm.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
called = caller.invoke(QUESTION)
[call] = called.tool_calls
chat = [HumanMessage(QUESTION), called, ToolMessage("sunny in Paris", tool_call_id=call["id"])]
after = llm.bind_tools([get_weather], tool_choice="none").invoke(chat)
ways = {
    way: llm.with_structured_output(Person, method=way).invoke(TEXT).model_dump()
    for way in ("json_schema", "function_calling")
}
whole = llm.invoke(FACTS)
streamed = "".join(chunk.text for chunk in llm.stream(FACTS))
chain = llm.bind(previous_response_id=whole.response_metadata["id"])
second = chain.invoke("Where does she live?")

texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch."]
options = {"base_url": URL, "api_key": KEY, "model": MODEL}
as_text = OpenAIEmbeddings(check_embedding_ctx_length=False, **options)
tiktoken.encoding_for_model = lambda name: ServersTokenizer()
as_ids = OpenAIEmbeddings(**options)
short = OpenAIEmbeddings(check_embedding_ctx_length=False, dimensions=64, **options)
tell(
    call=[call["name"], call["args"]],
    answered=bool(after.text),
    ways=ways,
    streamed=streamed == whole.text,
    tokens=whole.usage_metadata["total_tokens"],
    cached=second.usage_metadata["input_token_details"]["cache_read"],
    query=as_text.embed_query(texts[0]) == as_text.embed_documents(texts)[0],
    ids=max(
        abs(a - b)
        for one, other in zip(as_text.embed_documents(texts), as_ids.embed_documents(texts), strict=True)
        for a, b in zip(one, other, strict=True)
    ),
    sizes=[len(as_text.embed_query(texts[0])), len(short.embed_query(texts[0]))],
)
