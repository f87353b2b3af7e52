"""What answers in the terminal, as `chat` and `generate` know it; and the answerer that is an engine in this
process. `server_answerer` has the other.

    chat(messages), complete(prompt) --> Pieces: text as it comes, and what the answer has cost so far

What was said is the caller's: an answerer keeps nothing between two answers. A caller that leaves an
iteration early closes it (`contextlib.aclosing`), which ends the answer.
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
    """More of an answer's text, perhaps none; `usage` None: not told yet."""

    text: str
    usage: Usage | None


class Answerer(Protocol):
    """Answers with the parameters that it was made with."""

    @property
    def name(self) -> str:
        """The model, and the server where there is one."""

    @property
    def context_length(self) -> int: ...

    def has_chat_template(self) -> bool:
        """Whether `chat` is of any use. Raises RequestFailed where nobody says."""

    def chat(self, messages: Sequence[ChatMessage]) -> AsyncGenerator[Piece, None]:
        """The next message. Raises OctavoError."""

    def complete(self, prompt: str) -> AsyncGenerator[Piece, None]:
        """What follows a text. Raises OctavoError."""

    async def memory(self) -> str:
        """The KV memory in words. Raises OctavoError."""


class EngineAnswerer:
    """An engine in this process answers."""

    def __init__(self, model: EngineClient, params: SamplerParams) -> None:
        self._model = model
        self._params = params

    @property
    def name(self) -> str:
        """The model's."""
        return self._model.name

    @property
    def context_length(self) -> int:
        """In tokens."""
        return self._model.context_length

    def has_chat_template(self) -> bool:
        """As the model's files say."""
        return self._model.has_chat_template

    def chat(self, messages: Sequence[ChatMessage]) -> AsyncGenerator[Piece, None]:
        """The next message. Raises OctavoError."""
        return self._answer(self._model.encode_chat(messages))

    def complete(self, prompt: str) -> AsyncGenerator[Piece, None]:
        """What follows a text. Raises OctavoError."""
        return self._answer(self._model.encode(prompt))

    async def memory(self) -> str:
        """Of the whole pool."""
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
