"""From texts and chats to tokens: in a few threads and processes that tenants share fairly, never on the
event loop."""

from __future__ import annotations

from asyncio import wrap_future
from collections.abc import Callable, Sequence
from typing import TypeVar

from octavo.engine.bad_words import bad_word_ids
from octavo.engine.fair_threads import FairThreads
from octavo.engine.requests import check_context, render_chat
from octavo.errors import RequestTooLarge
from octavo.text.continuation import TurnPrompt, compose, encode_rendered
from octavo.text.control import RenderedText
from octavo.text.template_helpers import HELPERS_MAX
from octavo.text.tokenizer import Tokenizer
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions

BYTES_PER_TOKEN_MAX = 128  # no usual vocabulary has longer tokens: caps text before tokenising
TOKENIZER_THREADS = 2

ResultT = TypeVar("ResultT")


class Encoder:
    """A model's tokenizer and chat template, for asyncio programs. `max_waiting`: waiting texts."""

    def __init__(self, tokenizer: Tokenizer, context_length: int, max_waiting: int) -> None:
        self.tokenizer = tokenizer
        self.token_bytes = tokenizer.token_bytes
        self.context_length = context_length
        self._tokenizers = FairThreads(TOKENIZER_THREADS, max_waiting, "octavo-tokenizer")
        self._renderers = FairThreads(HELPERS_MAX, max_waiting, "octavo-template")

    async def encode(self, text: str, *, tenant: str = "", add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt; its begin token only with `add_special_tokens`. Raises RequestTooLarge
        for more bytes than any valid prompt has, QueueFull when too many of the tenant's texts wait."""
        self._check_length(text)
        return await self._on_tokenizer_thread(
            tenant, lambda: self.tokenizer.encode(text, add_special_tokens)
        )

    async def encode_all(self, texts: Sequence[str], *, tenant: str = "") -> list[list[int]]:
        """Token ids of several prompts. Raises RequestTooLarge before encoding if one is longer than any
        valid prompt, or at the first with more tokens than the context."""
        for text in texts:
            self._check_length(text)
        encoded = list[list[int]]()
        for text in texts:
            encoded.append(await self.encode(text, tenant=tenant))
            check_context(len(encoded[-1]), self.context_length)
        return encoded

    async def encode_chat(
        self, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT, *, tenant: str = ""
    ) -> list[int]:
        """Token ids of a chat rendered with the model's own template. Raises InvalidRequest without a
        template, or if it refuses the messages; RequestTooLarge and QueueFull as `encode`."""
        rendered = await self._rendered(messages, options, tenant)
        return await self._on_tokenizer_thread(tenant, lambda: encode_rendered(self.tokenizer, rendered))

    async def compose(
        self,
        said: Sequence[int],
        messages: Sequence[ChatMessage],
        options: ChatOptions = DEFAULT_CHAT,
        *,
        tenant: str = "",
    ) -> TurnPrompt:
        """The prompt of a session's next turn. Raises as `encode_chat`."""
        rendered = await self._rendered(messages, options, tenant)
        return await self._on_tokenizer_thread(tenant, lambda: compose(self.tokenizer, said, rendered))

    async def _rendered(
        self, messages: Sequence[ChatMessage], options: ChatOptions, tenant: str
    ) -> RenderedText:
        """The chat rendered by the model's template, within the length of a valid prompt."""
        for message in messages:
            self._check_length(message.content)
        rendered = await wrap_future(
            self._renderers.submit(tenant, lambda: render_chat(self.tokenizer, messages, options))
        )
        self._check_length(rendered.text)
        return rendered

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The `banned_sequences` of these words; they are few and short enough for the event loop. Raises
        InvalidRequest for too many, too long and empty words."""
        return bad_word_ids(lambda text: self.tokenizer.encode(text, add_bos=False), words)

    def tokenizer_info(self) -> dict[str, object]:
        """The tokenizer's description for clients, as JSON values in the shape of vLLM's /tokenizer_info."""
        return self.tokenizer.info() | {"model_max_length": self.context_length}

    def close(self) -> None:
        """End the threads and processes."""
        self._renderers.close()
        self._tokenizers.close()
        self.tokenizer.close()

    async def _on_tokenizer_thread(self, tenant: str, encode: Callable[[], ResultT]) -> ResultT:
        """Raises QueueFull, or EngineStopped after `close`."""
        return await wrap_future(self._tokenizers.submit(tenant, encode))

    def _check_length(self, text: str) -> None:
        allowed = self.context_length * BYTES_PER_TOKEN_MAX
        if len(text) > allowed:
            raise RequestTooLarge(
                f"a text of {len(text):,} characters; allowed: {allowed:,}; this model's maximum context "
                f"length is {self.context_length:,} tokens (setting context_length)",
                param="prompt",
                code="context_length_exceeded",
            )
