"""What clients of the engine see: deltas of text, statistics, and the protocol that the HTTP edge is
written against."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.engine.answers import AnswersView
from octavo.engine.model_card import ModelCard
from octavo.engine.stats import EngineStats
from octavo.inspect.glimpse import Glimpse, PinGlimpse, RequestGlimpse, TableGlimpse
from octavo.inspect.own_views import OwnKvView
from octavo.inspect.session_views import SessionBlocks
from octavo.inspect.uses import TenantUse
from octavo.inspect.views import BlockView, KvView, MapView, PinView, RequestView, SequenceView, TierView
from octavo.memory.ledger import BlockCounts
from octavo.memory.quota import TenantPolicy
from octavo.params import NO_TIMEOUTS, SamplerParams, Timeouts
from octavo.retention.client_pins import PinOrder
from octavo.retention.pins import Strength
from octavo.retention.session_table import SessionState
from octavo.scheduler.sequence import State
from octavo.step.events import Event
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions, FinishReason, Usage

__all__ = [
    "BlockCounts",
    "BlockView",
    "ChatMessage",
    "Delta",
    "EngineStats",
    "Event",
    "Glimpse",
    "KvView",
    "MapView",
    "ModelCard",
    "OwnKvView",
    "PinGlimpse",
    "PinOrder",
    "PinView",
    "RequestGlimpse",
    "RequestView",
    "ResponsesView",
    "SequenceView",
    "ServedModel",
    "SessionBlocks",
    "SessionState",
    "SessionView",
    "State",
    "StoredResponse",
    "Stream",
    "Strength",
    "TableGlimpse",
    "TenantPolicy",
    "TenantUse",
    "TierView",
    "TokenInfo",
    "Turn",
    "TurnTaker",
]


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token as a client sees it: its id, its own bytes, its raw logprob, and the likeliest (id, bytes,
    logprob).

    `logprob` is None where it was not asked for, or for the first token of a prompt, which nothing predicts.
    """

    token: int
    data: bytes
    logprob: float | None = None
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice gained since its last delta. Exactly one delta per choice has `finish` set.

    `text` may lag behind `tokens`: bytes of an unfinished character and a possible beginning of a stop
    string are held back until they are decided. `stop` is the stop string or token id that ended the choice.
    """

    choice: int
    text: str
    tokens: tuple[TokenInfo, ...]
    usage: Usage  # of this choice
    finish: FinishReason | None = None
    stop: str | int | None = None
    error: str = ""
    prompt_logprobs: tuple[TokenInfo, ...] = ()
    embedding: bytes = b""  # of the prompt, where the request wants it: float32, as the machine has them


class Stream(Protocol):
    """Deltas of one request, all choices interleaved; ends after each choice's final delta.

    Leaving the iteration early must be followed by `cancel()`, which frees the request's blocks within two
    steps.
    """

    @property
    def request_id(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    def cancel(self) -> None:
        """Stop generating; idempotent, thread-safe, never raises."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """A chat session. Times are in seconds."""

    session_id: str
    tenant: str
    num_tokens: int  # said so far: prompts and outputs of its turns
    num_turns: int  # that have ended
    age: float
    seconds_left: float  # until it is forgotten, unless a turn comes before
    blocks: SessionBlocks


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a session that was taken."""

    session_id: str
    prompt: tuple[int, ...]
    reused_tokens: int  # of the prompt: they were said before, and were not tokenised again
    fallback: str  # why there are none, though something was said before
    stream: Stream

    def told(self) -> dict[str, object]:
        """As the client is told."""
        told: dict[str, object] = {"id": self.session_id, "reused_tokens": self.reused_tokens}
        return told | ({"fallback": self.fallback} if self.fallback else {})


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that a client can go on from. `document` is what the server made of it."""

    response_id: str
    document: bytes


class TurnTaker(Protocol):
    """What takes the turns of conversations that are kept."""

    async def turn(
        self,
        tenant: str,
        session_id: str,
        messages: Sequence[ChatMessage],
        params: SamplerParams,
        *,
        priority: int = 0,
        timeouts: Timeouts = NO_TIMEOUTS,
        options: ChatOptions = DEFAULT_CHAT,
    ) -> Turn: ...


class ResponsesView(TurnTaker, Protocol):
    """Stored responses as the HTTP edge sees them; `octavo.engine.responses.Responses` is the real one, and
    says what each raises."""

    @property
    def unstored(self) -> TurnTaker:
        """Turns that go on from a response, of which nothing is kept."""

    async def create(
        self, tenant: str, response_id: str, document: bytes, previous_id: str | None = None
    ) -> None: ...

    def drop(self, tenant: str, response_id: str) -> None: ...

    def attach(self, tenant: str, response_id: str, document: bytes) -> bool: ...

    def find(self, tenant: str, response_id: str) -> StoredResponse: ...

    async def delete(self, tenant: str, response_id: str) -> None: ...


class SessionsView(TurnTaker, Protocol):
    """Sessions as the HTTP edge sees them; `octavo.engine.sessions.Sessions` is the real one, and says what
    each raises."""

    @property
    def responses(self) -> ResponsesView:
        """Stored responses, which are kept as sessions are."""

    async def create(self, tenant: str, ttl_s: float | None) -> SessionView: ...

    def count(self, tenant: str | None) -> int: ...

    async def all(self, tenant: str | None, limit: int | None) -> list[SessionView]: ...

    async def find(self, tenant: str, session_id: str) -> SessionView: ...

    def tokens(self, tenant: str, session_id: str) -> tuple[int, ...]: ...

    async def delete(self, tenant: str, session_id: str) -> SessionView: ...

    async def fork(
        self, tenant: str, session_id: str, turn: int | None = None, ttl_s: float | None = None
    ) -> SessionView: ...

    async def suspend(self, tenant: str, session_id: str) -> SessionView: ...

    async def resume(self, tenant: str, session_id: str) -> SessionView: ...


class ControlView(Protocol):
    """Pool, requests and pins as the HTTP edge sees them; `octavo.engine.control.Control` is the real one,
    and says what each raises."""

    async def kv(self) -> KvView: ...

    async def own_kv(self, tenant: str) -> OwnKvView: ...

    # None: everybody's; else nothing but that tenant's.
    async def map(self, tenant: str | None = None) -> MapView: ...

    async def glimpse(self, below_from: int, tenant: str | None = None) -> Glimpse: ...

    async def requests(self, tenant: str | None = None) -> list[RequestView]: ...

    async def request(self, request_id: int, tenant: str | None = None) -> RequestView | None: ...

    async def set_tenants(self, policies: Sequence[TenantPolicy]) -> None: ...

    async def resize(self, num_blocks: int) -> KvView: ...

    async def pins(self, tenant: str | None = None) -> list[PinView]: ...

    async def pin(self, order: PinOrder) -> PinView: ...

    async def renew_pin(self, tenant: str, name: str, ttl_s: float) -> PinView: ...

    async def unpin(self, tenant: str, name: str) -> PinView: ...


class ServedModel(Protocol):
    """What the HTTP edge needs of an engine. `octavo.engine.client.EngineClient` is the real one."""

    @property
    def name(self) -> str:
        """The model's name in /v1/models."""

    @property
    def context_length(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def has_chat_template(self) -> bool: ...

    @property
    def card(self) -> ModelCard:
        """The model in figures."""

    async def encode(self, text: str, *, tenant: str = "", add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt (with the model's begin token, if it wants one and `add_special_tokens`
        lets it); on threads that tenants share fairly.

        Raises RequestTooLarge when the text has more bytes than any prompt that fits could have, QueueFull
        when too many of the tenant's texts wait.
        """

    async def encode_all(self, texts: Sequence[str], *, tenant: str = "") -> list[list[int]]:
        """The same of several prompts, one after the other. Raises RequestTooLarge before it encodes any when
        one is too long as text, and at the first that has more tokens than the context."""

    async def encode_chat(
        self, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT, *, tenant: str = ""
    ) -> list[int]:
        """Token ids of a chat rendered with the model's own template, as `options` say.

        Raises InvalidRequest when there is no template or the template refuses the messages,
        RequestTooLarge and QueueFull as above.
        """

    def tokenizer_info(self) -> dict[str, object]:
        """What a client needs to tokenise alike, as JSON values in the shape of vLLM's /tokenizer_info."""

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The `banned_sequences` that keep these words out of an answer. Raises InvalidRequest for too many,
        too long and empty ones."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for."""

    async def submit(
        self,
        prompt: Sequence[int],
        params: SamplerParams,
        *,
        n: int = 1,
        priority: int = 0,
        tenant: str = "",
        timeouts: Timeouts = NO_TIMEOUTS,
        cache_salt: str = "",
    ) -> Stream:
        """Queue a request. `cache_salt`, of up to 256 characters: it shares prefix blocks with the tenant's
        requests of the same salt alone, and with nothing that is pinned. Raises InvalidRequest,
        RequestTooLarge, QueueFull, EngineStopped; then nothing was queued."""

    def stats(self) -> EngineStats: ...

    @property
    def control(self) -> ControlView:
        """Views of pool and requests, and pins."""

    @property
    def sessions(self) -> SessionsView:
        """Chats whose blocks are kept between their turns."""

    @property
    def answers(self) -> AnswersView:
        """How calls and thinking stand in its answers."""

    @property
    def gave_up(self) -> str | None:
        """Why the engine ended by itself, after repeated failures; None while it works or was told to end."""

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests, let the running ones end (True) or cancel what is left after the timeout
        (False)."""
