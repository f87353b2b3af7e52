"""JavaScript clients, as users run them. `make test-clients-node` installs what they need."""

from __future__ import annotations

import pytest
from tests.attack.house import House
from tests.clients.told import ANNA, BLOCK, MODEL, PARIS, SIZE, told_by_node

pytestmark = [pytest.mark.real_model, pytest.mark.clients]


def test_ai_sdk(house: House) -> None:
    found = told_by_node(house, "ai_sdk")
    assert found["person"] == ANNA
    assert found["calls"][0] == PARIS


def test_ai_sdk_with_its_default_provider(house: House) -> None:
    found = told_by_node(house, "ai_sdk_openai")
    assert found["person"] == ANNA
    assert found["calls"] == found["streamed_calls"] == [PARIS]
    assert found["results"] == ["sunny in Paris"]
    assert found["answered"]
    assert found["text"]
    assert found["text"] == found["streamed"]
    assert found["finish"][0] == found["finish"][1]
    assert found["finish"][2] == "tool-calls"
    assert found["cached"] >= found["tokens"] - BLOCK
    assert found["warnings"] == []
    assert found["sizes"] == [SIZE] * 3
    assert found["same"] == pytest.approx(1.0, abs=1e-6)
    assert found["near"] < 1.0


def test_openai_in_javascript(house: House) -> None:
    found = told_by_node(house, "responses")
    assert found["text"]
    assert found["text"] == found["streamed"] == found["helped"]
    assert found["call"] == PARIS
    assert found["cached"] >= found["tokens"] - BLOCK
    assert found["answered"]
    assert found["retrieved"]
    assert found["same"]
    assert (found["person"], found["gone"]) == (ANNA, 404)
    assert [role for role, _ in found["items"]] == ["user", "assistant", "user"]
    assert found["sizes"] == [SIZE, 64]


def test_anthropic_in_javascript(house: House) -> None:
    found = told_by_node(house, "anthropic")
    [text] = set(found["text"])
    assert text
    assert found["stops"] == ["max_tokens", "max_tokens", "tool_use", "tool_use"]
    assert found["call"] == found["streamed"] == PARIS
    assert (found["answered"], found["counted"]) == (["text"], True)
    assert (found["person"], found["models"]) == (ANNA, [MODEL])
    assert found["error"] == [True, 404, "not_found_error"]


def test_ollama_in_javascript(house: House) -> None:
    found = told_by_node(house, "ollama")
    assert found["answered"]
    assert found["same"]
    assert found["generated"]
    assert found["done"] == ["length", True, True]
    assert found["person"] == ANNA
    assert found["called"]
    assert all(call == PARIS for call in found["called"])
    assert found["after"]
    assert found["vectors"] == [2, SIZE]
    assert found["listed"] == found["running"] == [f"{MODEL}:latest"]
    assert found["version"]
    assert found["capabilities"] == ["completion", "tools", "embedding"]
    assert found["refused"] == 404
