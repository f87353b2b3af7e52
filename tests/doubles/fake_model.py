"""A served model without an engine: answers are a pure function of the prompt, and everything done to it is
recorded.

For tests of the HTTP edge, here and elsewhere. Tokens are bytes: token t < 256 is the byte t.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace
from tests.doubles.fake_answers import FakeAnswers
from tests.doubles.fake_sessions import FakeSessions
from tests.doubles.views import a_glimpse, a_pin, a_pool, a_request, a_sequence
from tests.waiting import turns

from octavo.engine.bad_words import bad_word_ids
from octavo.engine.outputs import (
    BlockCounts,
    BlockView,
    ChatMessage,
    Delta,
    EngineStats,
    Glimpse,
    MapView,
    ModelCard,
    PinRequest,
    PinView,
    PoolView,
    RequestView,
    TenantPolicy,
    TenantUse,
    TokenInfo,
)
from octavo.errors import (
    EngineStopped,
    OctavoError,
    ResizeRefused,
    UnknownPin,
)
from octavo.kv_events.identity import Identity
from octavo.params import Pooling, SamplerParams, Timeouts
from octavo.server.prompts import too_long
from octavo.types import DEFAULT_CHAT, ChatOptions, FinishReason, Request, Usage

VOCAB_SIZE = 300
FAKE_CARD = ModelCard(
    "llama", 134_515_008, "Q8_0", 143_000_000, 0, 576, 30, 9, 3, VOCAB_SIZE, 1000, "{{ messages }}", "0f" * 32
)


class Hold(Protocol):
    """What a held stream waits for; an `asyncio.Event` is one."""

    async def wait(self) -> object: ...


class FakeModel:
    """Answers every prompt with `answer`, byte by byte, then stops; `max_tokens` and stop strings cut it.

    `hold` makes streams wait after their first token until it is set, for tests of disconnects and drains.
    `refusal` is raised by every submit; `failure` ends every stream with an error instead of a reason;
    `times_out_after` ends every stream after so many tokens, for lack of time; `gave_up` is why its engine
    would have ended by itself.
    """

    def __init__(self, answer: str = "Hello wörld!", context_length: int = 1000) -> None:
        self.answer = answer
        self.submitted: list[FakeStream] = []
        self.encodings: list[Encoding] = []
        self.chats: list[Sequence[ChatMessage]] = []  # that were encoded
        self.hold: Hold | None = None
        self.refusal: OctavoError | None = None
        self.failure = ""
        self.times_out_after: int | None = None
        self.control = FakeControl(self)
        self.answers = FakeAnswers()
        self.sessions = FakeSessions(self)
        self.card = FAKE_CARD
        self.identity = Identity()
        self.event_source = None
        self.gave_up: str | None = None
        self.generates = True
        self.drained = False
        self._context_length = context_length
        self._ids = itertools.count()

    @property
    def name(self) -> str:
        """Always the same."""
        return "fake-model"

    @property
    def context_length(self) -> int:
        """As given."""
        return self._context_length

    @property
    def vocab_size(self) -> int:
        """Bytes and a few more."""
        return VOCAB_SIZE

    @property
    def has_chat_template(self) -> bool:
        """It joins messages."""
        return True

    async def encode(self, text: str, *, tenant: str = "", add_special_tokens: bool = True) -> list[int]:
        """UTF-8, with no begin token to add."""
        self._check_length(text)
        self.encodings.append(Encoding(text, tenant, add_special_tokens))
        return list(text.encode())

    async def encode_all(self, texts: Sequence[str], *, tenant: str = "") -> list[list[int]]:
        """UTF-8."""
        for text in texts:
            self._check_length(text)
        return [await self.encode(text, tenant=tenant) for text in texts]

    async def encode_chat(
        self, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT, *, tenant: str = ""
    ) -> list[int]:
        """role:content lines; the last one ends where it is to be continued."""
        text = "".join(f"{message.role}:{message.content}\n" for message in messages)
        text = text[:-1] if options.continue_final_message else text
        self._check_length(text)
        self.encodings.append(Encoding(text, tenant, False, options))
        self.chats.append(messages)
        return list(text.encode())

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """As the engine makes them, of bytes."""
        return bad_word_ids(str.encode, words)

    def token_bytes(self, token: int) -> bytes:
        """The byte, or a placeholder's name."""
        return bytes([token]) if token < 256 else f"<{token}>".encode()

    def tokenizer_info(self) -> dict[str, object]:
        """A few of what a real one has."""
        return {"tokenizer_class": "Bytes", "bos_token": None, "eos_token": "<299>", "chat_template": "{}"}

    @property
    def compilers(self) -> FakeModel:
        return self

    async def compiled(self, params: SamplerParams, tenant: str) -> None:
        """It follows none."""

    async def submit(
        self,
        request: Request,
    ) -> FakeStream:
        """A stream of the answer."""
        prompt, params = request.prompt, request.params
        if self.refusal is not None:
            raise self.refusal
        if self.drained:
            raise EngineStopped("the engine is draining")
        self.checked(request)
        stream = FakeStream(
            self,
            next(self._ids),
            prompt,
            params,
            request.n,
            request.priority,
            request.timeouts,
            request.tenant,
            request.cache_salt,
        )
        self.submitted.append(stream)
        return stream

    def checked(self, request: Request) -> Request:
        """It looks at the length alone."""
        output = 0 if request.params.pooling is not None else 1
        if len(request.prompt) + output > self._context_length:
            raise too_long(
                f"{len(request.prompt):,} tokens and max_tokens", "max_tokens", self._context_length
            )
        return request

    @property
    def num_open(self) -> int:
        """Of what was submitted, what has not ended."""
        return sum(not stream.ended and not stream.cancelled for stream in self.submitted)

    async def stats(self, timeout_s: float = 0.0) -> EngineStats:
        """Counts of what was submitted."""
        return EngineStats(
            running=self.num_open, blocks_total=10, blocks_held=3, blocks_cached=2, blocks_free=5
        )

    async def drain(self, timeout_s: float) -> bool:
        """Refuse from now on; what has not ended in time is cancelled, and its clients are told."""
        self.drained = True
        running = [stream for stream in self.submitted if not stream.ended and not stream.cancelled]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for stream in running:
                    await stream.has_ended.wait()
        left = [stream for stream in running if not stream.ended]
        for stream in left:
            stream.cut.set()
        return not left

    def _check_length(self, text: str) -> None:
        if len(text) > self._context_length * 16:
            raise too_long(f"the prompt has {len(text):,} bytes", "prompt", self._context_length)


@dataclass(frozen=True, slots=True)
class Encoding:
    """What was tokenised for whom; `options` where it was a chat."""

    text: str
    tenant: str
    add_special_tokens: bool
    options: ChatOptions | None = None


class FakeStream:
    """One submission, and what became of it."""

    def __init__(
        self,
        model: FakeModel,
        request_id: int,
        prompt: tuple[int, ...],
        params: SamplerParams,
        n: int,
        priority: int,
        timeouts: Timeouts,
        tenant: str,
        cache_salt: str = "",
    ) -> None:
        self.timeouts = timeouts
        self.cache_salt = cache_salt
        self.tenant = tenant
        self.prompt = prompt
        self.params = params
        self.n = n
        self.priority = priority
        self.cancelled = False
        self.has_ended = asyncio.Event()
        self.cut = asyncio.Event()  # the engine ends it
        self._model = model
        self._request_id = request_id

    @property
    def request_id(self) -> int:
        """A small integer."""
        return self._request_id

    @property
    def ended(self) -> bool:
        """Its last delta was made."""
        return self.has_ended.is_set()

    @ended.setter
    def ended(self, value: bool) -> None:
        self.has_ended.set() if value else self.has_ended.clear()

    def cancel(self) -> None:
        """Recorded, unless it has ended already; it goes on with no hold."""
        self.cancelled = self.cancelled or not self.ended
        if self.cancelled:
            self.cut.set()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """All choices in turn, a token each; text lags behind tokens inside a character."""
        if self.params.pooling is not None:
            yield await self._pooled(self.params.pooling)
            return
        text, finish, stop = self._answer()
        data = text.encode()
        held = [b""] * self.n
        for infos in self._prompt_logprobs():
            yield Delta(0, "", (), Usage(len(self.prompt), 0, 0, 0), prompt_logprobs=infos)
        for place in range(len(data)):
            if place == self._model.times_out_after:
                for choice in range(self.n):
                    usage = Usage(len(self.prompt), place, 0, 0)
                    yield Delta(
                        choice, "", (), usage, FinishReason.TIMEOUT, error="timeout passed after 1.00 s"
                    )
                self.ended = True
                return
            last = place == len(data) - 1
            for choice in range(self.n):
                whole, held[choice] = _split(held[choice] + data[place : place + 1])
                failed = last and self._model.failure
                yield Delta(
                    choice,
                    whole.decode() if not last else (whole + held[choice]).decode(errors="replace"),
                    (self._info(data[place], self.params.logprobs),),
                    Usage(len(self.prompt), place + 1, len(self.prompt) // 2, 0),
                    finish=(FinishReason.ERROR if failed else finish) if last else None,
                    stop=stop if last else None,
                    error=self._model.failure if failed else "",
                )
            if self._model.hold is not None and not await self._until_let_go(self._model.hold):
                self.ended = True
                for choice in range(self.n):
                    usage = Usage(len(self.prompt), place + 1, 0, 0)
                    yield Delta(choice, "", (), usage, FinishReason.CANCELLED)
                return
            await turns()
        self.ended = True

    async def _pooled(self, pooling: Pooling) -> Delta:
        """The one delta of a prompt whose embedding is wanted."""
        usage, finish, error = Usage(len(self.prompt), 0, len(self.prompt) // 2, 0), FinishReason.LENGTH, ""
        if self._model.hold is not None and not await self._until_let_go(self._model.hold):
            finish = FinishReason.CANCELLED
        elif self._model.times_out_after is not None:
            finish, error = FinishReason.TIMEOUT, "timeout passed after 1.00 s"
        elif self._model.failure:
            finish, error = FinishReason.ERROR, self._model.failure
        self.ended = True
        made = fake_embedding(self.prompt, pooling) if finish is FinishReason.LENGTH else b""
        return Delta(0, "", (), usage, finish, error=error, embedding=made)

    async def _until_let_go(self, hold: Hold) -> bool:
        """True when the model goes on, False when the engine has ended this stream."""
        waits = [asyncio.ensure_future(hold.wait()), asyncio.ensure_future(self.cut.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self.cut.is_set()

    def _answer(self) -> tuple[str, FinishReason, str | None]:
        text, finish, stop = self._model.answer, FinishReason.STOP, None
        for candidate in self.params.stop:
            before, found, _ = text.partition(candidate)
            if found:
                text, stop = before, candidate
        limit = self._model.context_length - len(self.prompt)
        limit = limit if self.params.max_tokens is None else min(limit, self.params.max_tokens)
        if len(text.encode()) > limit:
            return text.encode()[:limit].decode(errors="replace"), FinishReason.LENGTH, None
        return text, finish, stop

    def _info(self, token: int, top: int | None) -> TokenInfo:
        if top is None:
            return TokenInfo(token, bytes([token]))
        beside = tuple((token + i, self._model.token_bytes(token + i), -0.5 - i) for i in range(top))
        return TokenInfo(token, bytes([token]), -0.5, beside)

    def _prompt_logprobs(self) -> Iterator[tuple[TokenInfo, ...]]:
        """A slice per token, from the second on, as a prompt in small chunks would give them."""
        if self.params.prompt_logprobs is not None:
            for token in self.prompt[1:]:
                yield (self._info(token, self.params.prompt_logprobs),)


class FakeControl:
    """Pins in a dictionary, and a pool of ten blocks that never changes. `policies` are the tenants'."""

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self._pins: dict[tuple[str, str], PinView] = {}
        self.orders: list[PinRequest] = []
        self.policies: tuple[TenantPolicy, ...] = ()

    async def kv(self, tenant: str | None = None) -> PoolView:
        """Three held, two cached, five free; of a tenant its pins and streams."""
        pins = tuple(await self.pins(tenant))
        if tenant is not None:
            running = len(await self.requests(tenant))
            own = {"tenant": tenant, "held_by_sequences": running, "running": running, "totals": None}
            return a_pool(now=7.0, pins=pins, **own)
        uses = Counter(stream.tenant for stream in self._model.submitted if not stream.ended)
        tenants = tuple(TenantUse(name, count, blocks_held=2) for name, count in uses.items())
        return a_pool(now=7.0, held_by_sequences=3, running=1, pins=pins, tenants=tenants)

    async def set_tenants(self, policies: Sequence[TenantPolicy]) -> None:
        """Taken, unless the guarantees are more than the ten blocks."""
        if sum(policy.guaranteed for policy in policies) > 10:
            raise ResizeRefused("the guarantees do not fit 10 blocks")
        self.policies = tuple(policies)

    async def map(self, tenant: str | None = None) -> MapView:
        """The same, drawn; all of it is nobody's but the operator's."""
        if tenant is not None:
            return MapView("." * 10, (-1,) * 10, ())
        return MapView("sssc.c....", (0, 0, 0, -1, -1, -1, -1, -1, -1, -1), ("request 0, choice 0",))

    async def glimpse(self, offloaded_from: int, tenant: str | None = None) -> Glimpse:
        """Ten blocks that nobody holds, and the pins."""
        pins = tuple(await self.pins(tenant))
        totals = {} if tenant is None else {"totals": None}
        return a_glimpse([None] * 20, now=7.0, num_blocks=10, offloaded=bytes(10), pins=pins, **totals)

    async def requests(self, tenant: str | None = None) -> list[RequestView]:
        """What was submitted and runs."""
        live = [stream for stream in self._model.submitted if not stream.ended]
        return [self._view(stream) for stream in live if tenant in (None, stream.tenant)]

    async def request(self, request_id: int, tenant: str | None = None) -> RequestView | None:
        """One of them."""
        found = [view for view in await self.requests(tenant) if view.request_id == request_id]
        table = (BlockView(4, 2, True),)
        return replace(found[0], sequences=(a_sequence(table=table),)) if found else None

    async def resize(self, num_blocks: int) -> PoolView:
        """To at most 20."""
        if not 4 <= num_blocks <= 20:
            raise ResizeRefused(f"a pool of {num_blocks} blocks was asked for; allowed: 4 to 20")
        return a_pool(now=7.0, counts=BlockCounts(num_blocks, 3, 1, num_blocks - 4))

    async def pins(self, tenant: str | None = None) -> list[PinView]:
        """In order of creation."""
        return [pin for pin in self._pins.values() if tenant in (None, pin.tenant)]

    async def pin(self, order: PinRequest) -> PinView:
        """Held at once."""
        if self._model.refusal is not None:
            raise self._model.refusal
        self.orders.append(order)
        blocks, tokens = len(order.tokens) // 16, len(order.tokens)
        times = {"now": 0.0, "created": 0.0, "expires": order.ttl_s}
        view = a_pin(order.name, order.tenant, num_blocks=blocks, num_tokens=tokens, num_held=0, **times)
        self._pins[order.tenant, order.name] = view
        return view

    async def renew_pin(self, tenant: str, name: str, ttl_s: float) -> PinView:
        """With the new time."""
        self._pins[tenant, name] = replace(self._find(tenant, name), expires=ttl_s)
        return self._pins[tenant, name]

    async def unpin(self, tenant: str, name: str) -> PinView:
        """Gone."""
        view = self._find(tenant, name)
        del self._pins[tenant, name]
        return view

    def _find(self, tenant: str, name: str) -> PinView:
        if (tenant, name) not in self._pins:
            raise UnknownPin(f"there is no pin named {name!r}", param="name")
        return self._pins[tenant, name]

    def _view(self, stream: FakeStream) -> RequestView:
        sequence = a_sequence(num_computed=0, num_prompt=len(stream.prompt), num_output=0, num_cached=0)
        whose = {"tenant": stream.tenant, "priority": stream.priority}
        return a_request(stream.request_id, sequence, now=1.0, arrival=0.0, **whose)


def fake_embedding(prompt: Sequence[int], pooling: Pooling) -> bytes:
    """As many numbers as the fake model's card says: of the last token, or of all."""
    seen = prompt[-1:] if pooling is Pooling.LAST else prompt
    numbers = array("f", [0.0]) * FAKE_CARD.hidden_size
    for token in seen:
        for place in range(4):
            numbers[(token * 7 + place * place) % len(numbers)] += (1.0 + place) / len(seen)
    return numbers.tobytes()


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Whole characters, and the bytes of an unfinished one."""
    for size in range(min(4, len(data)) + 1):
        try:
            data[: len(data) - size].decode()
        except UnicodeDecodeError:
            continue
        return data[: len(data) - size], data[len(data) - size :]
    return data, b""
