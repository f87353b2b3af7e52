"""A client of any OpenAI-compatible endpoint that measures streamed answers: the time of each chunk, and
errors.

    POST /completions        {"prompt": [ids], "stream": true, ...}     data: {...} lines, then data: [DONE]
    POST /chat/completions   {"messages": [...], "stream": true, ...}

A failure of the endpoint does not raise: it becomes an `Answer` with an error, and a load test counts it. In
chats a chunk counts if it has text. In completions an empty chunk counts too, since a token may be half a
character, unless it ends the answer. The number of tokens is that of the endpoint's usage, if it sends one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httpx2

from octavo.errors import ConfigError, RequestFailed
from octavo.sse_reader import events

_DETAIL_CHARS = 200
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to send requests. `url` ends in /v1, as in OpenAI's clients; `model` "": the first listed one."""

    url: str
    model: str = ""
    api_key: str = ""
    timeout_s: float = 600.0  # without a byte
    ignore_eos: bool = True

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the URL is {self.url!r}; allowed: http:// or https://, ending in /v1")


@dataclass(slots=True)
class Answer:
    """One request's measurements, on the clock of `time.perf_counter`; `error` "": it succeeded."""

    begun: float
    asked: int  # output tokens
    chunks: list[float] = field(default_factory=list)  # times of those with output
    ended: float = 0.0
    tokens: int = 0
    text: str = ""
    error: str = ""  # its kind
    detail: str = ""  # the endpoint's message

    def fail(self, kind: str, detail: str = "") -> None:
        """Record the error, unless there is an earlier one."""
        if not self.error:
            self.error, self.detail = kind, " ".join(detail.split())[:_DETAIL_CHARS]


class Client:
    """Connections to one endpoint; an async context manager. `transport` replaces the network in tests."""

    def __init__(self, endpoint: Endpoint, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self._endpoint = endpoint
        self.model = endpoint.model
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._http = httpx2.AsyncClient(
            base_url=endpoint.url.rstrip("/") + "/",
            headers=headers,
            timeout=httpx2.Timeout(endpoint.timeout_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        """Open, and look up the model's name. Raises RequestFailed if the endpoint lists none."""
        if not self.model:
            self.model = await self._first_model()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def complete(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        """Continue a prompt of token ids."""
        return await self._stream("completions", {"prompt": list(prompt)}, max_tokens)

    async def chat(self, messages: Messages, max_tokens: int) -> Answer:
        """Answer a chat."""
        return await self._stream("chat/completions", {"messages": list(messages)}, max_tokens)

    async def _first_model(self) -> str:
        try:
            response = await self._http.get("models")
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
        except (httpx2.HTTPError, ValueError, LookupError, TypeError) as error:
            raise RequestFailed(
                f"{self._endpoint.url}/models does not list a model: {type(error).__name__} {error}; "
                "check the URL (it ends in /v1) and --api-key, or give --model"
            ) from None

    async def _stream(self, path: str, content: Mapping[str, object], max_tokens: int) -> Answer:
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **content,
        }
        if self._endpoint.ignore_eos:
            body["ignore_eos"] = True
        answer = Answer(time.perf_counter(), max_tokens)
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    detail = (await response.aread()).decode(errors="replace")
                    answer.fail(f"HTTP {response.status_code}", detail)
                else:
                    await _read(response, answer)
        except httpx2.HTTPError as error:
            answer.fail(type(error).__name__, str(error))
        answer.ended = time.perf_counter()
        if not answer.error and not answer.tokens:
            answer.fail("empty answer")
        return answer


async def _read(response: httpx2.Response, answer: Answer) -> None:
    """Read events until the stream ends."""
    finished = False
    async for data in events(response.aiter_bytes()):
        if data == b"[DONE]":
            finished = True
            break
        try:
            body = json.loads(data)
        except ValueError:
            answer.fail("not JSON", data.decode(errors="replace"))
            return
        if not isinstance(body, dict) or "error" in body:
            answer.fail("error in the stream", json.dumps(body))
            return
        finished |= _take(body, answer)
    if not finished:
        answer.fail("stream cut off", f"after {len(answer.chunks)} chunks")


def _take(body: Mapping[str, object], answer: Answer) -> bool:
    """Record one event. Returns whether it has a finish reason."""
    usage, choices = body.get("usage"), body.get("choices")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        answer.tokens = usage["completion_tokens"]
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    choice = choices[0]
    finish = choice.get("finish_reason") is not None
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    # The first chunk of a chat has a role and no token; an empty chunk of a completion stands for one.
    if text or (delta is None and not finish):
        answer.chunks.append(time.perf_counter())
        answer.text += text if isinstance(text, str) else ""
        if not isinstance(usage, dict):
            answer.tokens += 1
    return finish
