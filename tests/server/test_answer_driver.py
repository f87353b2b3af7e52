"""The driver of answers, with a codec that is no API's: what it sends, raises and cancels."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import OctavoError, RequestFailed
from octavo.server.answer_driver import AnswerCodec, Framing, answer
from octavo.server.errors import JsonObject


class Words:
    """Says words, and fails behind the last one where it shall."""

    def __init__(self, words: Sequence[str], *, fails: bool = False) -> None:
        self.headers = {"X-Words": "yes"}
        self.num_cancelled = 0
        self._words, self._fails = words, fails

    async def steps(self) -> AsyncGenerator[str, None]:
        for word in self._words:
            yield word
        if self._fails:
            raise RequestFailed("it broke")

    def cancel(self) -> None:
        self.num_cancelled += 1


class WordCodec(AnswerCodec[str]):
    """An event for each word that is not empty."""

    framing = Framing(
        lambda event: json.dumps(event).encode() + b"\n", last=b"that is all", media_type="text/x"
    )

    def __init__(self) -> None:
        self._said: list[str] = []

    def begin(self) -> Sequence[JsonObject]:
        return ({"begin": True},)

    def step(self, step: str) -> Sequence[JsonObject]:
        self._said.append(step)
        return ({"word": step},) if step else ()

    def end(self) -> Sequence[JsonObject]:
        return ({"end": True},)

    def error(self, error: OctavoError) -> Sequence[JsonObject]:
        return ({"error": str(error)},)

    def whole(self) -> JsonObject:
        return {"words": self._said}


def answered(words: Words, *, is_stream: bool) -> httpx.Response:
    """What a client gets."""

    async def route(request: Request) -> Response:
        return await answer(request, words, WordCodec(), is_stream=is_stream)

    async def ask() -> httpx.Response:
        app = Starlette()
        app.add_route("/", route)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://it") as client:
            return await client.get("/")

    return asyncio.run(ask())


def test_a_stream_is_the_events_of_the_beginning_of_each_step_and_of_the_end() -> None:
    words = Words(["a", "", "b"])
    found = answered(words, is_stream=True)
    assert found.text == '{"begin": true}\n{"word": "a"}\n{"word": "b"}\n{"end": true}\nthat is all'
    assert found.headers["content-type"].startswith("text/x")
    assert (found.headers["x-words"], words.num_cancelled) == ("yes", 1)


def test_an_error_ends_a_stream_in_place_of_the_end() -> None:
    words = Words(["a"], fails=True)
    found = answered(words, is_stream=True)
    assert found.text == '{"begin": true}\n{"word": "a"}\n{"error": "it broke"}\nthat is all'
    assert words.num_cancelled == 1


def test_a_whole_answer_is_made_of_the_same_steps() -> None:
    words = Words(["a", "", "b"])
    found = answered(words, is_stream=False)
    assert found.json() == {"words": ["a", "", "b"]}
    assert (found.headers["x-words"], words.num_cancelled) == ("yes", 1)


def test_a_whole_answer_raises_what_its_steps_raise() -> None:
    words = Words(["a"], fails=True)
    with pytest.raises(RequestFailed, match="it broke"):
        answered(words, is_stream=False)
    assert words.num_cancelled == 1
