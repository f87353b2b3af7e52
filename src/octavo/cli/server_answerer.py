"""A running server that answers in the terminal: OpenAI's routes, streamed, one connection for each answer.

    messages, or a prompt --> body --> POST, stream --> chunks --> Pieces

It sends what was said so far each time; the server finds what it has computed of it by itself. To leave an
answer early closes its connection, which ends it there too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from octavo.cli.answerer import Piece
from octavo.cli.remote import address_of, ask
from octavo.cli.remote_stream import RemoteServer, Wish, error_told, stream_of
from octavo.errors import RequestFailed
from octavo.params import SamplerParams
from octavo.sse_reader import events
from octavo.types import ChatMessage, Usage

JsonObject = dict[str, object]
# What the commands let one choose of the sampler: the same names here and over HTTP.
SAMPLING_FIELDS: Final = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
# Thinking stays in the text, as an engine in this process gives it; the usage comes with each chunk, so that
# it is known of an answer that was stopped.
_AS_HERE: Final[Mapping[str, object]] = {"reasoning_format": "none"}
_STREAMED: Final[Mapping[str, object]] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


class ServerAnswerer:
    """A server's model answers."""

    def __init__(self, server: RemoteServer, params: SamplerParams) -> None:
        """Asks what it serves. Raises RequestFailed, in its words where it has some."""
        self._server = server
        self._sampling = sampling_fields(params)
        models = ask(server.url, server.api_key, "GET", "/v1/models").get("data")
        first = models[0] if isinstance(models, list) and models else None
        told = first if isinstance(first, dict) else {}
        self._model, context_length = told.get("id"), told.get("max_model_len")
        if not isinstance(self._model, str) or not isinstance(context_length, int):
            asked = address_of(server.url, "/v1/models")
            raise RequestFailed(f"{asked} tells no model with its max_model_len; is it Octavo?")
        self._context_length = context_length

    @property
    def name(self) -> str:
        """The model's, and where it is."""
        return f"{self._model} at {self._server.url}"

    @property
    def context_length(self) -> int:
        """In tokens."""
        return self._context_length

    def has_chat_template(self) -> bool:
        """As the server's tokenizer tells. Raises RequestFailed."""
        return self._ask("/tokenizer_info").get("chat_template") is not None

    def chat(self, messages: Sequence[ChatMessage]) -> AsyncGenerator[Piece, None]:
        """The next message. Raises OctavoError."""
        shaped = [{"role": message.role, "content": message.content} for message in messages]
        return self._answer("/v1/chat/completions", {"messages": shaped, **_AS_HERE})

    def complete(self, prompt: str) -> AsyncGenerator[Piece, None]:
        """What follows a text. Raises OctavoError."""
        return self._answer("/v1/completions", {"prompt": prompt})

    async def memory(self) -> str:
        """Of the whole pool, or where the key is a tenant's, what it holds of it. Raises RequestFailed."""
        told = self._ask("/v1/kv")
        size, counts = told.get("block_size"), told.get("counts")
        if isinstance(counts, dict):
            held, cached, free, total = (_number(counts, of) for of in ("held", "cached", "free", "total"))
            return f"{held:,} blocks held, {cached:,} cached, {free:,} free of {total:,} (of {size} tokens)"
        running, pinned = _number(told, "held_by_sequences"), _number(told, "held_by_pins")
        return (
            f"tenant {told.get('tenant')} holds {running:,} blocks by running requests, {pinned:,} by pins "
            f"and sessions (of {size} tokens)"
        )

    def _ask(self, path: str) -> JsonObject:
        return ask(self._server.url, self._server.api_key, "GET", path)

    async def _answer(self, path: str, asked: JsonObject) -> AsyncGenerator[Piece, None]:
        """The answer's pieces, until the server says that it is whole. Raises OctavoError."""
        body = {"model": self._model, **asked, **self._sampling, **_STREAMED}
        wish = Wish(path, "text/event-stream", "events", body)
        async with aclosing(stream_of(self._server, wish)) as chunks, aclosing(events(chunks)) as told:
            async for data in told:
                if data == b"[DONE]":
                    return
                piece = _piece(_object(data, self._server))
                if piece is not None:
                    yield piece
        raise RequestFailed(f"{self._server.url} ended the connection before the answer was whole")


def sampling_fields(params: SamplerParams) -> JsonObject:
    """The fields of a request that ask for these parameters; what is left to the server is left out."""
    given = {name: getattr(params, name) for name in SAMPLING_FIELDS}
    return {name: value for name, value in given.items() if value not in (None, ())}


def _object(data: bytes, server: RemoteServer) -> JsonObject:
    """An event's JSON. Raises OctavoError: where it is none, and where it tells an error."""
    try:
        told = json.loads(data)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise RequestFailed(f"{server.url} sent an event that is no JSON object; is it Octavo?")
    if "error" in told:
        raise error_told(told)
    return told


def _piece(chunk: JsonObject) -> Piece | None:
    """What a chunk says; None: nothing, such as that an answer begins."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    usage = _usage(chunk.get("usage"))
    return Piece(str(text or ""), usage) if text or usage is not None else None


def _usage(told: object) -> Usage | None:
    if not isinstance(told, dict):
        return None
    details = told.get("prompt_tokens_details")
    cached = _number(details, "cached_tokens") if isinstance(details, dict) else 0
    return Usage(_number(told, "prompt_tokens"), _number(told, "completion_tokens"), cached, 0)


def _number(told: Mapping[str, object], name: str) -> int:
    """0 where there is none."""
    value = told.get(name)
    return value if isinstance(value, int) else 0
