"""Answers from a running server, over OpenAI's routes, with one streamed connection per answer.

    messages, or a prompt --> body --> POST, stream --> chunks --> Pieces

Every request carries the whole conversation; the server's prefix cache finds the computed part. Stopping an
answer early closes its connection, so the server cancels it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from octavo.cli.answerer import Piece
from octavo.cli.remote import address_of, send
from octavo.cli.remote_stream import RemoteServer, StreamRequest, error_from_json, stream_of
from octavo.errors import RequestFailed
from octavo.params import SamplerParams
from octavo.sse_reader import events
from octavo.types import ChatMessage, Usage

JsonObject = dict[str, object]
# Sampling options of the commands, under the same names over HTTP.
SAMPLING_FIELDS: Final = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
# Thinking stays in the text, as with an engine in this process.
_PLAIN_THINKING: Final[Mapping[str, object]] = {"reasoning_format": "none"}
# Each chunk has the usage, so that it is known for a stopped answer.
_STREAM_FIELDS: Final[Mapping[str, object]] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


class ServerAnswerer:
    """Answers with a server's model."""

    def __init__(self, server: RemoteServer, params: SamplerParams) -> None:
        """Gets the served model's name. Raises RequestFailed, with the server's message if it sent one."""
        self._server = server
        self._sampling = sampling_fields(params)
        models = send(server.url, server.api_key, "GET", "/v1/models").get("data")
        first = models[0] if isinstance(models, list) and models else None
        model = first if isinstance(first, dict) else {}
        self._model, context_length = model.get("id"), model.get("max_model_len")
        if not isinstance(self._model, str) or not isinstance(context_length, int):
            address = address_of(server.url, "/v1/models")
            raise RequestFailed(f"{address} lists no model with a max_model_len; is it Octavo?")
        self._context_length = context_length

    @property
    def name(self) -> str:
        """The model's name and the server's URL."""
        return f"{self._model} at {self._server.url}"

    @property
    def context_length(self) -> int:
        """In tokens."""
        return self._context_length

    def has_chat_template(self) -> bool:
        """Whether the server's tokenizer has one. Raises RequestFailed."""
        return self._get("/tokenizer_info").get("chat_template") is not None

    def chat(self, messages: Sequence[ChatMessage]) -> AsyncGenerator[Piece, None]:
        """The next message. Raises OctavoError."""
        sent = [{"role": message.role, "content": message.content} for message in messages]
        return self._answer("/v1/chat/completions", {"messages": sent, **_PLAIN_THINKING})

    def complete(self, prompt: str) -> AsyncGenerator[Piece, None]:
        """The continuation of a text. Raises OctavoError."""
        return self._answer("/v1/completions", {"prompt": prompt})

    async def memory(self) -> str:
        """The use of the whole pool, or with a tenant's key, of the tenant's part. Raises RequestFailed."""
        kv = self._get("/v1/kv")
        size, counts = kv.get("block_size"), kv.get("counts")
        if isinstance(counts, dict):
            held, cached, free, total = (_number(counts, of) for of in ("held", "cached", "free", "total"))
            return f"{held:,} blocks held, {cached:,} cached, {free:,} free of {total:,} (of {size} tokens)"
        running, pinned = _number(kv, "held_by_sequences"), _number(kv, "held_by_pins")
        return (
            f"tenant {kv.get('tenant')} holds {running:,} blocks by running requests, {pinned:,} by pins "
            f"and sessions (of {size} tokens)"
        )

    def _get(self, path: str) -> JsonObject:
        return send(self._server.url, self._server.api_key, "GET", path)

    async def _answer(self, path: str, fields: JsonObject) -> AsyncGenerator[Piece, None]:
        """The answer's pieces, up to the server's end mark. Raises OctavoError."""
        body = {"model": self._model, **fields, **self._sampling, **_STREAM_FIELDS}
        request = StreamRequest(path, "text/event-stream", "events", body)
        async with aclosing(stream_of(self._server, request)) as chunks, aclosing(events(chunks)) as found:
            async for data in found:
                if data == b"[DONE]":
                    return
                piece = _parse_piece(_parse_event(data, self._server))
                if piece is not None:
                    yield piece
        raise RequestFailed(f"{self._server.url} closed the connection before the answer was complete")


def sampling_fields(params: SamplerParams) -> JsonObject:
    """The request's fields for these parameters, without those that have no value."""
    given = {name: getattr(params, name) for name in SAMPLING_FIELDS}
    return {name: value for name, value in given.items() if value not in (None, ())}


def _parse_event(data: bytes, server: RemoteServer) -> JsonObject:
    """An event's JSON. Raises OctavoError if it is not an object, or contains an error."""
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise RequestFailed(f"{server.url} sent an event that is not a JSON object; is it Octavo?")
    if "error" in event:
        raise error_from_json(event)
    return event


def _parse_piece(chunk: JsonObject) -> Piece | None:
    """A chunk's text and usage; None if it has neither, such as the first chunk."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    usage = _parse_usage(chunk.get("usage"))
    return Piece(str(text or ""), usage) if text or usage is not None else None


def _parse_usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    cached = _number(details, "cached_tokens") if isinstance(details, dict) else 0
    return Usage(_number(usage, "prompt_tokens"), _number(usage, "completion_tokens"), cached, 0)


def _number(fields: Mapping[str, object], name: str) -> int:
    """An integer field; 0 if it is missing."""
    value = fields.get(name)
    return value if isinstance(value, int) else 0
