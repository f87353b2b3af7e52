"""Suspended sessions of the real server outlive kill -9: their next turns compute their new tokens and at
most one block of old ones."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from bench.sessions.sessions import Scenario, measure, serving

pytestmark = [pytest.mark.full, pytest.mark.real_model]

WORDS = ("--kv-memory", "64MiB", "--disk-size", "256MiB")
BLOCK = 16


def test_suspended_sessions_compute_a_block_of_old_tokens_at_most(tmp_path: Path) -> None:
    turns = measure(WORDS, tmp_path, Scenario(sessions=4, lines=20, output=12), lambda text: None)
    assert len(turns) == 4
    for turn in turns:
        assert turn.said > 150
        assert turn.old_recomputed <= BLOCK
        assert turn.cached_tokens <= turn.said < turn.prompt_tokens


def test_a_session_that_was_not_suspended_is_remembered_and_equal_to_a_server_that_never_died(
    tmp_path: Path,
) -> None:
    messages = [{"role": "user", "content": "Tell me of the history of printing, in a few words."}]

    def say(url: str, session: str, words: str | None) -> tuple[object, str]:
        if words is not None:
            messages.append({"role": "user", "content": words})
        body = {
            "messages": messages,
            "session": session,
            "max_tokens": 24,
            "temperature": 0,
            "logprobs": True,
        }
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        return choice, answer.headers["x-octavo-session"]

    words = (*WORDS, "--disk-cache", str(tmp_path))
    with serving(words) as server:
        first, session = say(server.url, "new", None)
        messages.append({"role": "assistant", "content": first["message"]["content"]})  # type: ignore[index]
        listed = server.ask("GET", "/v1/sessions")["data"]
        assert [one["id"] for one in listed] == [session]  # type: ignore[index,union-attr]
        server.ask("POST", f"/v1/sessions/{session}/suspend")
    with serving(words) as server:
        after_kill, same = say(server.url, session, "And of paper?")
        assert same == session
    with serving(WORDS) as server:
        first_again, session = say_alone(server.url, messages[:1])
        assert first_again == first
        body = {
            "messages": messages,
            "session": session,
            "max_tokens": 24,
            "temperature": 0,
            "logprobs": True,
        }
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).json()
        assert "fallback" not in answer["session"]
        assert answer["choices"][0] == after_kill


def say_alone(url: str, messages: list[dict[str, str]]) -> tuple[object, str]:
    body = {"messages": messages, "session": "new", "max_tokens": 24, "temperature": 0, "logprobs": True}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0], answer.headers["x-octavo-session"]
