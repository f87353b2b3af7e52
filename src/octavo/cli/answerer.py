"""The interface through which `chat` and `generate` get answers, implemented for an engine in this process;
`server_answerer` implements it for a server.

    chat(messages), complete(prompt) --> Pieces: new text, and the answer's usage so far

An answerer keeps no state between answers: the caller has the conversation. A caller that stops an iteration
early must close it (`contextlib.aclosing`), which cancels the answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from octavo.errors import RequestFailed
from octavo.types import ChatMessage, FinishReason, Request, Usage

if TYPE_CHECKING:
    from octavo.params import SamplerParams
    from octavo.serving.client import EngineClient


@dataclass(frozen=True, slots=True)
class Piece:
    """More text of an answer, possibly none; `usage` None: not known yet."""

    text: str
    usage: Usage | None


class Answerer(Protocol):
    """Answers prompts; the sampling parameters are fixed."""

    @property
    def name(self) -> str:
        """The model's name, and the server's URL if there is one."""

    @property
    def context_length(self) -> int: ...

    def has_chat_template(self) -> bool:
        """Whether `chat` is supported. Raises RequestFailed if the server does not report it."""

    def chat(self, messages: Sequence[ChatMessage]) -> AsyncGenerator[Piece, None]:
        """The next message. Raises OctavoError."""

    def complete(self, prompt: str) -> AsyncGenerator[Piece, None]:
        """The continuation of a text. Raises OctavoError."""

    async def memory(self) -> str:
        """The use of the KV memory, for people. Raises OctavoError."""


class EngineAnswerer:
    """Answers with an engine in this process."""

    def __init__(self, model: EngineClient, params: SamplerParams) -> None:
        self._model = model
        self._params = params

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def context_length(self) -> int:
        """In tokens."""
        return self._model.context_length

    def has_chat_template(self) -> bool:
        """Whether the model's files have one."""
        return self._model.has_chat_template

    def chat(self, messages: Sequence[ChatMessage]) -> AsyncGenerator[Piece, None]:
        """The next message. Raises OctavoError."""
        return self._answer(self._model.encode_chat(messages))

    def complete(self, prompt: str) -> AsyncGenerator[Piece, None]:
        """The continuation of a text. Raises OctavoError."""
        return self._answer(self._model.encode(prompt))

    async def memory(self) -> str:
        """The use of the whole pool."""
        stats = await self._model.stats()
        return (
            f"{stats.blocks_held:,} blocks held, {stats.blocks_cached:,} cached, "
            f"{stats.blocks_free:,} free of {stats.blocks_total:,} (of {stats.block_size} tokens)"
        )

    async def _answer(self, prompt: Awaitable[list[int]]) -> AsyncGenerator[Piece, None]:
        stream = await self._model.submit(Request(prompt=tuple(await prompt), params=self._params))
        try:
            async for delta in stream:
                if delta.finish in (FinishReason.ERROR, FinishReason.DEAD_END):
                    raise RequestFailed(delta.error)
                yield Piece(delta.text, delta.usage)
        finally:
            stream.cancel()
