"""Responses by the official client against a real socket: typed, streamed, parsed, paged."""

from __future__ import annotations

import asyncio
import threading

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI, pydantic_function_tool
from pydantic import BaseModel
from tests.doubles.fake_model import FakeModel
from tests.waiting import LIMIT_S

from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings
from octavo.tools.formats import HERMES
from octavo.types import ToolCall

MODEL = "fake-model"


class Weather(BaseModel):
    """Where it is wanted."""

    city: str


@pytest.fixture(scope="module")
def model():
    return FakeModel()


@pytest.fixture(scope="module")
def url(model):
    """The base URL of a real server over a fake model, in a thread."""
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    server = build_server(model, ServerSettings(drain_timeout_s=1), lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    yield f"{base_url(listener)}/v1"
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def client(url, model):
    model.answer = "Hello wörld!"
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=10) as client:
        yield client


def test_created_retrieved_listed_and_deleted(client):
    first = client.responses.create(model=MODEL, input="hi", instructions="be brief")
    assert (first.output_text, first.status, first.usage.output_tokens) == ("Hello wörld!", "completed", 13)
    second = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": "more"}], previous_response_id=first.id
    )
    assert client.responses.retrieve(second.id) == second
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    client.responses.delete(first.id)
    with pytest.raises(NotFoundError, match="there is no response"):
        client.responses.retrieve(first.id)
    with pytest.raises(BadRequestError, match="allowed: to cancel one that is in progress"):
        client.responses.cancel(second.id)


def test_the_stream_helper_follows_text(client):
    with client.responses.stream(model=MODEL, input="hi") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert (text, final.output_text) == ("Hello wörld!", "Hello wörld!")
    raw = list(client.responses.create(model=MODEL, input="hi", stream=True))
    assert (raw[0].type, raw[-1].type) == ("response.created", "response.completed")
    assert [event.sequence_number for event in raw] == list(range(len(raw)))


def test_a_format_is_parsed_into_its_class_whole_and_streamed(client, model):
    model.answer = '{"city": "Köln"}'
    whole = client.responses.parse(model=MODEL, input="where", text_format=Weather)
    assert whole.output_parsed == Weather(city="Köln")
    with client.responses.stream(model=MODEL, input="where", text_format=Weather) as stream:
        assert stream.get_final_response().output_parsed == Weather(city="Köln")


def test_calls_are_parsed_and_answered(client, model):
    model.answer = HERMES.written([ToolCall("Weather", '{"city": "Köln"}')])
    function = pydantic_function_tool(Weather)["function"]
    tools = [{"type": "function", **function}]
    first = client.responses.parse(model=MODEL, input="weather?", tools=tools)
    [call] = first.output
    assert (call.type, call.name, call.arguments) == ("function_call", "Weather", '{"city": "Köln"}')
    with client.responses.stream(model=MODEL, input="weather?", tools=tools) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        [streamed] = stream.get_final_response().output
    assert "".join(deltas) == streamed.arguments == call.arguments
    model.answer = "12 degrees"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12 C"}
    by_id = client.responses.create(model=MODEL, input=[output], previous_response_id=first.id, tools=tools)
    by_items = client.responses.create(
        model=MODEL, input=[{"role": "user", "content": "weather?"}, *first.output, output], store=False
    )
    assert by_id.output_text == by_items.output_text == "12 degrees"


def test_the_asynchronous_client_and_errors_of_its_own(url, model):
    async def work():
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=10) as client:
            told = await client.responses.create(model=MODEL, input="hi")
            with pytest.raises(BadRequestError) as caught:
                await client.responses.create(model=MODEL, input="hi", temperature=9)
            assert caught.value.param == "temperature"
            async with client.responses.stream(model=MODEL, input="hi") as stream:
                return told, await stream.get_final_response()

    model.answer = "Hello wörld!"
    told, streamed = asyncio.run(work())
    assert told.output_text == streamed.output_text == "Hello wörld!"
