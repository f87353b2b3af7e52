"""Clients that speak other APIs than chat completions, as users run them: `/v1/responses`, `/v1/messages`,
Ollama's `/api`, `/v1/embeddings`. `make test-clients` installs what they need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.attack.house import House, serving
from tests.clients.told import ANNA, BLOCK, MODEL, PARIS, SIZE, told

pytestmark = [pytest.mark.real_model, pytest.mark.clients]


def test_openai_responses(house: House) -> None:
    found = told(house, "responses")
    assert found["text"]
    assert found["text"] == found["streamed"] == found["helped"] == found["retrieved"][0]
    assert all(found["answered"])
    assert found["instructions"] == ["You are a pirate.", None]
    assert found["retrieved"][1] == {"topic": "Anna"}
    assert json.loads(found["call"][1]) == json.loads(found["streamed_arguments"]) == PARIS[1]
    assert (found["call"][0], found["person"], found["gone"]) == (PARIS[0], ANNA, True)


def test_openai_responses_can_be_cancelled(house: House) -> None:
    assert told(house, "responses")["cancelled"] == ["cancelled"] * 3


def test_openai_responses_events_are_numbered_and_in_order(house: House) -> None:
    found = told(house, "responses")
    assert found["numbers"] == list(range(len(found["numbers"])))
    assert found["kinds"][:2] == ["response.created", "response.in_progress"]
    assert found["kinds"][-1] in ("response.completed", "response.incomplete")
    assert found["pieces"] > 1


def test_openai_responses_branches_compute_only_what_is_new(house: House) -> None:
    found = told(house, "responses")
    for cached, given in zip(found["cached"], found["inputs"], strict=True):
        assert found["tokens"] - BLOCK <= cached < given
    assert [role for role, _ in found["items"]] == ["user", "assistant", "user"]
    assert found["items"][0][1].endswith("Where does Anna live?")


def test_openai_embeddings(house: House) -> None:
    found = told(house, "embeddings")
    assert found["size"] == SIZE
    assert found["length"] == pytest.approx(1.0, abs=1e-5)
    assert found["same"] == [True, True, True]
    assert found["short"] < 1e-6
    assert found["far"] < found["near"] < 1.0
    prompt, total, tokens = found["usage"]
    assert prompt == total == tokens


def test_agents_sdk_with_its_default(house: House) -> None:
    found = told(house, "agents_sdk_responses")
    assert (found["asked"], found["said"], found["person"]) == (["Paris"], "sunny in Paris", ANNA)
    assert found["went_on"]
    assert found["chained"] == found["streamed"][0] == found["streamed"][1]
    assert found["cached"] >= found["tokens"] - BLOCK


def test_langchain_on_responses_and_embeddings(house: House) -> None:
    found = told(house, "langchain_responses")
    assert found["call"] == PARIS
    assert found["ways"] == {"json_schema": ANNA, "function_calling": ANNA}
    assert found["answered"]
    assert found["streamed"]
    assert found["query"]
    assert found["cached"] >= found["tokens"] - BLOCK
    assert found["sizes"] == [SIZE, 64]
    assert found["ids"] < 1e-6


def test_anthropic(house: House) -> None:
    found = told(house, "anthropic")
    [text] = set(found["text"])
    assert text
    assert found["stops"] == ["max_tokens", "max_tokens", "tool_use", "tool_use"]
    assert found["call"] == ["tool_use", *PARIS, True]
    assert found["streamed"] == PARIS
    assert (found["answered"], found["prefilled"]) == (["text"], True)
    assert json.loads(found["person"]) == ANNA
    assert found["stopped"] == ["stop_sequence", " "]
    assert found["models"] == [[MODEL], MODEL, MODEL, "model", True]


def test_anthropic_tokens_are_those_that_were_counted(house: House) -> None:
    found = told(house, "anthropic")
    assert found["usage"] == [True, True]
    assert found["counted"] == [True, True]


def test_anthropic_events_are_in_order(house: House) -> None:
    first, second, last, kinds = told(house, "anthropic")["events"]
    assert (first, second) == ("message_start", "content_block_start")
    assert last == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds) == {first, second, "content_block_delta", *last}


def test_anthropic_errors_are_the_librarys_own(house: House) -> None:
    unknown, *others = told(house, "anthropic")["errors"]
    assert unknown == ["NotFoundError", 404, "not_found_error", True]
    assert others == [["BadRequestError", 400, "invalid_request_error", True]] * 3


def test_keys_are_sent_as_each_library_sends_them(tmp_path: Path) -> None:
    with serving(tmp_path, "--api-key", "a-key") as house:
        assert told(house, "anthropic", key="a-key")["counted"] == [True, True]
        assert told(house, "responses", key="a-key")["gone"]
        with pytest.raises(AssertionError, match="AuthenticationError"):
            told(house, "anthropic", key="another")


def test_ollama(house: House) -> None:
    found = told(house, "ollama")
    assert found["answered"]
    assert found["same"]
    assert found["generated"]
    assert found["done"] == ["length", True, True]
    assert found["durations"]
    assert found["person"] == ANNA
    assert found["raw"]
    assert found["called"]
    assert found["called"] == found["streamed"]
    assert all(call == PARIS for call in found["called"])
    assert found["after"]
    assert found["vectors"] == [1, SIZE, 2, 64]
    assert found["length"] == pytest.approx(1.0, abs=1e-4)


def test_ollama_gets_what_is_served(house: House) -> None:
    found = told(house, "ollama")
    assert found["listed"] == found["running"] == [f"{MODEL}:latest"]
    assert found["capabilities"] == ["completion", "tools", "embedding"]
    assert found["parameters"] == 134_515_008
    assert found["loaded"] == "load"
    assert found["refused"] == 404
    assert "/api/pull is not supported" in found["pulled"]


def test_langchain_for_anthropic_and_ollama(house: House) -> None:
    found = told(house, "langchain_dialects")
    assert found["call"] == PARIS
    assert found["person"] == found["ollama_person"] == ANNA
    assert found["whole"]
    assert found["whole"] == found["streamed"]
    assert found["ollama"][0]
    assert found["ollama"][0] == found["ollama"][1]
    assert found["answered"]
    assert 0 < found["usage"] <= 60
    assert found["ollama_sizes"] == [SIZE, SIZE]


def test_llama_index_embeddings(house: House) -> None:
    found = told(house, "llama_index_embeddings", "llama-index")
    assert found["sizes"] == [SIZE, 64]
    assert found["many"]
    assert found["found"] == "Bond yields rose on Tuesday."
    assert found["score"] == pytest.approx(1.0, abs=1e-5)


def test_litellm_between_apis(house: House) -> None:
    found = told(house, "litellm_bridges")
    name, arguments = PARIS
    calls = [*found["responses"].values(), found["chat_by_responses"], found["anthropic"]["call"]]
    assert [[one, json.loads(text)] for one, text in calls] == [PARIS] * 4
    assert list(found["messages"].values()) == [["tool_use", name, arguments]] * 3
    for whole, pieces in (found["anthropic"]["text"], found["ollama"]["text"]):
        assert whole
        assert whole == pieces
    assert found["ollama"]["person"] == ANNA
    assert found["embeddings"] == {"openai": [SIZE, SIZE], "ollama": [SIZE, SIZE]}
