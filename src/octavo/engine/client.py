"""The asynchronous client: requests in, streams of deltas out. Event loops on one side, the engine thread on
the other.

    await llm.submit(...) -> inbox -> engine thread -> one callback per step -> call_soon_threadsafe -> stream

Whatever can be refused is refused before the inbox: limits, context, pool, queue. Long texts are tokenised,
and grammars compiled, in a few threads that tenants share fairly, never on the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from asyncio import wrap_future
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from octavo.engine.answers import Answers, with_grammars
from octavo.engine.assemble import Assembler, Vocabulary
from octavo.engine.bad_words import bad_word_ids
from octavo.engine.compilers import Compilers
from octavo.engine.control import Control
from octavo.engine.core import Ask, Engine, Submit, ask, inspector_of
from octavo.engine.fair_threads import FairThreads
from octavo.engine.loop import EngineLoop
from octavo.engine.outputs import ChatMessage, EngineStats
from octavo.engine.pending_acks import PendingAcks
from octavo.engine.requests import (
    ModelFacts,
    check_context,
    encode_rendered,
    make_request,
    render_chat,
)
from octavo.engine.sessions import Sessions, SessionSupport
from octavo.engine.stream import DeltaStream, call_soon, end_all
from octavo.engine.turns import Composed, TurnRecorder, compose
from octavo.errors import DeviceLost, EngineStopped, QueueFull, RequestFailed, RequestTooLarge
from octavo.inspect.inspector import Inspector
from octavo.params import NO_TIMEOUTS, SamplerParams, Timeouts
from octavo.retention.client_pins import PinOrder
from octavo.retention.limits import share_of
from octavo.sampling.grammars import CompiledGrammar
from octavo.scheduler.scheduler import Scheduler
from octavo.text.control import Rendered
from octavo.text.template_helpers import HELPERS_MAX
from octavo.text.tokenizer import Tokenizer
from octavo.types import DEFAULT_CHAT, ChatOptions, Request, Update

BYTES_PER_TOKEN_MAX = 128  # no vocabulary that matters has longer tokens: caps text before tokenising
TOKENIZER_THREADS = 2
ANSWER_TIMEOUT_S = 60.0  # for a question to the ledger: a step takes less

AnswerT = TypeVar("AnswerT")


class EngineClient:
    """A served model for asyncio programs, of which the HTTP edge is one; `start_engine` makes one."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        max_queue: int,
        sessions: SessionSupport | None = None,
    ) -> None:
        self.facts, self.card = facts, facts.card
        self.tokenizer = tokenizer
        self._engine = engine
        self._max_open = max_queue + engine.scheduler.config.max_rows
        self._vocabulary = Vocabulary(tokenizer.token_bytes, tokenizer.special_ids)
        self._ids, self._lock = itertools.count(1), threading.Lock()
        self._streams: dict[int, DeltaStream] = {}  # guarded by _lock: requests that the engine has not ended
        self._left: dict[int, int] = {}  # guarded by _lock: choices without a final update
        self._answers = PendingAcks()
        self._closed: str | None = None  # why nothing is taken any more
        self._tokenizers = FairThreads(TOKENIZER_THREADS, self._max_open, "octavo-tokenizer")
        self._renderers = FairThreads(HELPERS_MAX, self._max_open, "octavo-template")
        self.compilers = Compilers(facts, self._max_open)
        self.gave_up: str | None = None  # why the engine ended by itself, after repeated failures
        self.control = Control(self)
        self.answers = Answers(tokenizer, facts.grammars, self.compilers.run)
        self._session_support = sessions or SessionSupport()
        self.sessions = Sessions(self, self._session_support)
        self._loop = EngineLoop(engine, self._deliver, self._recovered, self._give_up)
        self._loop.start()

    @property
    def name(self) -> str:
        """The model's name in /v1/models."""
        return self.facts.name

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together, at most."""
        return self.facts.context_length

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._engine.scheduler.ledger.block_size

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""
        return self.facts.vocab_size

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can work."""
        return self.tokenizer.chat_template is not None

    async def encode(self, text: str, *, tenant: str = "", add_special_tokens: bool = True) -> list[int]:
        """Token ids of a plain prompt; its begin token only with `add_special_tokens`. Raises RequestTooLarge
        for more bytes than any prompt that fits has, QueueFull when too many of the tenant's texts wait."""
        self._check_length(text)
        return await self._on_tokenizer_thread(
            tenant, lambda: self.tokenizer.encode(text, add_special_tokens)
        )

    async def encode_all(self, texts: Sequence[str], *, tenant: str = "") -> list[list[int]]:
        """Token ids of several prompts. Raises RequestTooLarge before it encodes any when one is longer than
        any that fits, or at the first whose tokens are more than the context holds."""
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
        """Token ids of a chat rendered with the model's own template, as `options` say. Raises InvalidRequest
        when there is no template or it refuses the messages; RequestTooLarge and QueueFull as `encode`."""
        rendered = await self._rendered(messages, options, tenant)
        return await self._on_tokenizer_thread(tenant, lambda: encode_rendered(self.tokenizer, rendered))

    async def compose(
        self,
        said: Sequence[int],
        messages: Sequence[ChatMessage],
        options: ChatOptions = DEFAULT_CHAT,
        *,
        tenant: str = "",
    ) -> Composed:
        """The prompt of a session's next turn. Raises as `encode_chat`."""
        rendered = await self._rendered(messages, options, tenant)
        return await self._on_tokenizer_thread(tenant, lambda: compose(self.tokenizer, said, rendered))

    async def _rendered(self, messages: Sequence[ChatMessage], options: ChatOptions, tenant: str) -> Rendered:
        """The chat as the model's template writes it, no longer than any that fits."""
        for message in messages:
            self._check_length(message.content)
        rendered = await wrap_future(
            self._renderers.submit(tenant, lambda: render_chat(self.tokenizer, messages, options))
        )
        self._check_length(rendered.text)
        return rendered

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The `banned_sequences` that keep these words out of an answer; they are few and short enough for
        the event loop. Raises InvalidRequest for too many, too long and empty ones."""
        return bad_word_ids(lambda text: self.tokenizer.encode(text, add_bos=False), words)

    def tokenizer_info(self) -> dict[str, object]:
        """What a client needs to tokenise alike, as JSON values in the shape of vLLM's /tokenizer_info."""
        return self.tokenizer.info() | {"model_max_length": self.context_length}

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for."""
        return self.tokenizer.token_bytes(token)

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
    ) -> DeltaStream:
        """Queue a request. `cache_salt`, of up to 256 characters: it shares prefix blocks with the tenant's
        requests of the same salt alone, and with nothing that is pinned. Raises InvalidRequest,
        RequestTooLarge, QueueFull, EngineStopped; then nothing was queued."""
        compiled = await self.compilers.compiled(params, tenant)
        request = make_request(
            next(self._ids),
            prompt,
            params,
            self._engine,
            self.facts,
            n=n,
            priority=priority,
            tenant=tenant,
            timeouts=timeouts,
            cache_salt=cache_salt,
        )
        if tenant:
            return await self._submit_asking(request, compiled)
        # Under one lock: `_recovered` finds every request in the inbox or in the engine's hands.
        return self._open(request, lambda: self._loop.submit(request), compiled=compiled)

    async def _submit_asking(self, request: Request, compiled: CompiledGrammar | None) -> DeltaStream:
        """The same for a tenant's, whose own bounds only the engine's thread can check: waits until that has
        taken it. Raises what it refuses with."""
        request_id = request.request_id
        answer = self._answers.open(request_id)
        try:
            stream = self._open(request, lambda: self._loop.submit(request, answer), compiled=compiled)
            await wrap_future(answer)
        except BaseException:
            self._forget(request_id)
            self._loop.cancel(request_id)  # should it have been taken, and we not have waited
            raise
        finally:
            self._answers.close(request_id)
        return stream

    async def submit_pin(self, order: PinOrder) -> DeltaStream:
        """Keep a pin's budget and queue the request that fills it: both, or neither and an error as `submit`
        raises, or PinRefused."""
        params = SamplerParams(max_tokens=1, temperature=0.0)
        request = make_request(
            next(self._ids),
            order.tokens,
            params,
            self._engine,
            self.facts,
            tenant=order.tenant,
            fills_pin=order.pin_name,
        )

        def open_and_submit(scheduler: Scheduler, now: float) -> None:
            scheduler.tenants.check_known(order.tenant)  # first: idle sessions give way to a pin
            scheduler.client_pins.open(order, request.request_id, now)
            try:
                scheduler.submit(request)
            except BaseException:
                scheduler.client_pins.give_up(request)
                raise

        return await self._ask_to_submit(request, open_and_submit)

    async def submit_turn(
        self,
        prompt: Sequence[int],
        params: SamplerParams,
        recorder: TurnRecorder,
        submit: Callable[[Scheduler, Request], None],
        *,
        session_id: str,
        session_ttl: float,
        priority: int = 0,
        tenant: str = "",
        timeouts: Timeouts = NO_TIMEOUTS,
    ) -> DeltaStream:
        """Queue the turn of a session, which `recorder` follows; `submit` does it, on the engine's thread.
        Raises what that raises, QueueFull or EngineStopped."""
        compiled = await self.compilers.compiled(params, tenant)
        request = make_request(
            next(self._ids),
            prompt,
            params,
            self._engine,
            self.facts,
            priority=priority,
            tenant=tenant,
            timeouts=timeouts,
            session=session_id,
            session_ttl=session_ttl,
        )

        def stop(num_told: int) -> None:
            self.tell(lambda s, now: s.session_holds.stop_turn(session_id, request.request_id, num_told))

        recorder.stop = stop

        def submit_fitted(scheduler: Scheduler, now: float) -> None:
            # Only here it is known what of the room is the session's own.
            fitted = request if params.max_tokens is not None else scheduler.session_holds.fitted(request)
            submit(scheduler, fitted)

        return await self._ask_to_submit(request, submit_fitted, recorder, compiled)

    async def _ask_to_submit(
        self,
        request: Request,
        question: Callable[[Scheduler, float], None],
        recorder: TurnRecorder | None = None,
        compiled: CompiledGrammar | None = None,
    ) -> DeltaStream:
        """The stream of a request that `question` queues; undone where that raises."""
        request_id, answers = request.request_id, list[Future[None]]()

        def put() -> None:
            answers.append(ask(self._engine.inbox, question, request_id))

        # Under one lock, as in `submit`: a request whose stream `_recovered` has ended must not run.
        stream = self._open(request, put, recorder, compiled)
        try:
            await self._answer_to(answers[0])
        except BaseException:
            self._forget(request_id)
            self._loop.cancel(request_id)  # should it have been queued, and we not have waited
            raise
        return stream

    async def ask(
        self, question: Callable[[Scheduler, float], AnswerT], *, only_reads: bool = False
    ) -> AnswerT:
        """What the scheduler answers between two steps. Raises what `question` raises, or EngineStopped."""
        with self._lock:
            if self._closed is not None and not self._streams:
                raise EngineStopped(self._closed)
            answer = ask(self._engine.inbox, question, only_reads=only_reads)
        return await self._answer_to(answer)

    async def look(self, question: Callable[[Inspector, float], AnswerT]) -> AnswerT:
        """The same of one that only reads."""
        return await self.ask(lambda scheduler, now: question(inspector_of(scheduler), now), only_reads=True)

    async def _answer_to(self, answer: Future[AnswerT]) -> AnswerT:
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that meets the answer.
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await wrap_future(answer)
        except TimeoutError:
            raise EngineStopped(
                f"the engine did not answer within {ANSWER_TIMEOUT_S:.0f} s: it stopped, or hangs in a step"
            ) from None

    def tell(self, change: Callable[[Scheduler, float], object]) -> None:
        """Ask, and wait for no answer."""
        ask(self._engine.inbox, change)

    def _open(
        self,
        request: Request,
        send: Callable[[], None],
        recorder: TurnRecorder | None = None,
        compiled: CompiledGrammar | None = None,
    ) -> DeltaStream:
        """The stream of a request, noted before `send` queues it. Raises QueueFull or EngineStopped."""
        loop, assembler = asyncio.get_running_loop(), Assembler(request, self._vocabulary, compiled)
        stream = DeltaStream(request.request_id, loop, assembler, self._cancel)
        stream.tenant, stream.recorder = request.tenant, recorder
        with self._lock:
            if self._closed is not None:
                raise EngineStopped(self._closed)
            num_tenants = self._engine.scheduler.ledger.quotas.num_tenants
            own = (other.tenant == request.tenant for other in self._streams.values())
            if len(self._streams) >= self._max_open and sum(own) >= share_of(self._max_open, num_tenants):
                raise QueueFull(
                    f"too many requests are waiting or running; allowed: {self._max_open:,} "
                    "(settings max_queue and max_seqs); try again shortly"
                )
            self._streams[request.request_id] = stream
            self._left[request.request_id] = request.n
            send()
        return stream

    def _forget(self, request_id: int) -> None:
        """A request that was never queued."""
        with self._lock:
            self._streams.pop(request_id, None)
            self._left.pop(request_id, None)

    def stats(self) -> EngineStats:
        """A snapshot between two steps."""
        grammars = self.facts.grammars
        return self._engine.stats if grammars is None else with_grammars(self._engine.stats, grammars)

    @property
    def engine(self) -> Engine:
        """For benchmarks and tests: the engine that the thread turns."""
        return self._engine

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests; True when the running ones ended in time, else they were cancelled."""
        with self._lock:
            self._closed = self._closed or "the server is shutting down and takes no more requests"
        deadline = time.monotonic() + timeout_s
        while self._streams and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        left = list(self._streams)
        for request_id in left:
            self._loop.cancel(request_id)
        while self._streams and time.monotonic() < deadline + 5.0:
            await asyncio.sleep(0.02)
        return not left

    def close(self) -> None:
        """Stop the engine's thread after the step that runs. Streams still open end with an error."""
        with self._lock:
            self._closed = self._closed or "the engine has stopped"
        self._loop.end()
        self._session_support.store.close()  # its file is under the disk cache's lock
        self._loop.stop()
        self._renderers.close()
        self._tokenizers.close()
        self.compilers.close()
        self.tokenizer.close()
        self._end_all(self._closed)

    async def _on_tokenizer_thread(self, tenant: str, encode: Callable[[], AnswerT]) -> AnswerT:
        """Raises QueueFull, or EngineStopped after `close`."""
        return await wrap_future(self._tokenizers.submit(tenant, encode))

    def _check_length(self, text: str) -> None:
        allowed = self.facts.context_length * BYTES_PER_TOKEN_MAX
        if len(text) > allowed:
            raise RequestTooLarge(
                f"a text of {len(text):,} characters; allowed: {allowed:,}; this model's maximum context "
                f"length is {self.facts.context_length:,} tokens (setting context_length)",
                param="prompt",
                code="context_length_exceeded",
            )

    def _cancel(self, request_id: int, choice: int | None) -> None:
        with self._lock:
            if request_id in self._streams:
                self._loop.cancel(request_id, choice)

    def _deliver(self, updates: list[Update]) -> None:
        """On the engine thread, once per step: group by event loop, one call into each."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[DeltaStream, list[Update]]]] = {}
        by_stream: dict[int, list[Update]] = {}
        for update in updates:
            by_stream.setdefault(update.request_id, []).append(update)
        with self._lock:
            for request_id, own in by_stream.items():
                stream = self._streams.get(request_id)
                if stream is None:
                    continue
                by_loop.setdefault(stream.loop, []).append((stream, own))
                self._left[request_id] -= sum(update.finish is not None for update in own)
                if self._left[request_id] == 0:
                    del self._streams[request_id], self._left[request_id]
        for loop, work in by_loop.items():
            if not call_soon(loop, work):
                for stream, _ in work:
                    stream.cancel()  # its event loop was closed: it has no reader
                    stream.abandon()

    def _recovered(self, updates: list[Update], error: BaseException) -> None:
        """On the engine thread, after a broken step: end every stream that the engine had taken.

        `updates` are the finals of those that were still live. A request that the broken step had just ended,
        or was just taking, is not among them, and would wait for ever. What is still in the inbox will be
        served.
        """
        self._deliver(updates)
        inbox = self._engine.inbox
        with self._lock:
            unread = inbox.drain()
            for command in unread:
                inbox.put(command)
            unread_ids = {command.request.request_id for command in unread if isinstance(command, Submit)}
            unread_ids |= {
                command.request_id
                for command in unread
                if isinstance(command, Ask) and command.request_id is not None
            }
            lost = {i: stream for i, stream in self._streams.items() if i not in unread_ids}
            for request_id in lost:
                del self._streams[request_id], self._left[request_id]
        reason = f"the engine found its own state broken and started afresh: {_describe(error)}"
        self._answers.fail(lost, RequestFailed(reason))
        end_all(lost, reason)

    def _give_up(self, error: BaseException) -> None:
        often = "" if isinstance(error, DeviceLost) else " after repeated failures"
        reason = f"the engine has stopped{often}: {_describe(error)}"
        with self._lock:
            self._closed = self.gave_up = reason
        self._end_all(reason)

    def _end_all(self, reason: str) -> None:
        for command in self._engine.inbox.drain():
            if isinstance(command, Ask):
                command.fail(EngineStopped(reason))
        with self._lock:
            streams, self._streams = self._streams, {}
            self._left.clear()
        self._answers.fail(streams, EngineStopped(reason))
        end_all(streams, reason)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
