"""Agent frameworks on chat completions, as users run them: typed outputs and tool calls. The default model is
small: calls that are required, functions that are named and schemas are what can be relied on.
`make test-clients` installs what they need."""

from __future__ import annotations

import pytest
from tests.attack.house import House
from tests.clients.told import ANNA, told

pytestmark = [pytest.mark.real_model, pytest.mark.clients]


def test_openai(house: House) -> None:
    found = told(house, "openai")
    assert found["person"] == ANNA
    assert found["call"] == found["streamed"] == found["helper"] == ["get_weather", '{"city": "Paris"}']
    assert (found["finish"], found["answered"]) == ("tool_calls", True)


def test_langchain(house: House) -> None:
    found = told(house, "langchain")
    for calls in (found["calls"], found["named"]):
        assert [(call["name"], call["args"]) for call in calls] == [("get_weather", {"city": "Paris"})]
    assert found["ways"] == {"json_schema": ANNA, "function_calling": ANNA}
    assert found["json_mode"]


def test_llama_index(house: House) -> None:
    found = told(house, "llama_index", "llama-index")
    assert found["person"] == ANNA
    assert found["calls"][0] == ["get_weather", {"city": "Paris"}]


def test_pydantic_ai(house: House) -> None:
    assert told(house, "pydantic_ai") == {"chat": [ANNA, ANNA], "responses": [ANNA, ANNA]}


def test_instructor(house: House) -> None:
    assert told(house, "instructor") == dict.fromkeys(("TOOLS", "JSON_SCHEMA", "RESPONSES_TOOLS"), ANNA)


def test_agents_sdk(house: House) -> None:
    assert told(house, "agents_sdk") == {"asked": ["Paris"], "said": "sunny in Paris", "person": ANNA}


def test_smolagents(house: House) -> None:
    found = told(house, "smolagents")
    assert set(found["calls"]) == {"get_weather"}
    assert found["steps"] == 1


def test_litellm(house: House) -> None:
    found = told(house, "litellm")
    assert set(found["calls"]) == {"get_weather"}
    assert found["person"] == ANNA
