"""A front end's side of the engine, which is in another process: a host for the submitter, grammars, and the
conversation store, all over one channel.

The channel's thread replaces the engine's thread of a single process: it passes the updates of a step to the
event loop in one call.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import cast

from octavo.config import StartOptions
from octavo.conversations.sessions import SessionSupport
from octavo.conversations.store import ConversationStore
from octavo.conversations.store_calls import RemoteStore
from octavo.engine.codec import decode_reply_as, reply_type
from octavo.engine.host import Receiver
from octavo.engine.port import Cancel, Command, ReplyT, Submit
from octavo.engine.requests import ModelFacts
from octavo.engine.submitter import REPLY_TIMEOUT_S
from octavo.errors import EngineStopped, OctavoError
from octavo.grammar import Grammar
from octavo.inspect.stats import EngineStats
from octavo.kv_events.identity import Identity
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import open_files, read_tokenizer
from octavo.routing.reports import Hello
from octavo.sampling.grammar_trials import TrialStopped
from octavo.sampling.grammars import Words
from octavo.serving.channel import (
    AnswerEnded,
    AnswerStarted,
    AnswerStopped,
    Call,
    CallStats,
    CallStore,
    Channel,
    CloseFeed,
    CompileGrammar,
    FindAnswer,
    FromEngine,
    GaveUp,
    LostRequests,
    Message,
    Post,
    ReadFeed,
    Reply,
    StopAnswer,
    StopElsewhere,
    Updates,
    Welcome,
    Withdraw,
    WithdrawRequest,
    encode_raw,
)
from octavo.serving.client import EngineClient
from octavo.serving.model_parts import prepared_tokenizer, words_of
from octavo.text.tokenizer import Tokenizer

MessageOf = Callable[[int], Message]  # from the number of a call
StopLocal = Callable[[str, str], Future[bool]]
PROCESS_ENDED = "the engine's process has ended"
_STOP_POLL_S = 0.05


class RemoteHost:
    """The host of an engine at the other end of a socket. Reads the welcome, which may not come before the
    model is loaded. Raises EngineStopped if none comes."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel[FromEngine](end, FromEngine, self._take, self._ended)
        welcome = self._channel.receive()
        if not isinstance(welcome, Welcome):
            raise EngineStopped(PROCESS_ENDED)
        self.welcome = welcome
        self.stop_ids, self.block_size = welcome.stop_ids, welcome.block_size
        ahead_s = welcome.store_time - welcome.monotonic
        self.store = RemoteStore(self._call_store, REPLY_TIMEOUT_S, ahead_s)
        self.stop_answer_here: StopLocal | None = None  # stops an answer of this process, if it is running
        self._lock = threading.Lock()  # guards _calls and _gave_up
        self._calls: dict[int, tuple[Future[object], object]] = {}  # without a reply; and the reply's type
        self._numbers = itertools.count()
        self._ids = itertools.count(welcome.first_id, welcome.num_ids)
        self._receiver: Receiver | None = None
        self._gave_up: str | None = None

    def join(self, receiver: Receiver) -> None:
        """Set the only receiver, and start to read the channel."""
        assert self._receiver is None
        self._receiver = receiver
        self._channel.start("octavo-engine-channel")

    @property
    def num_recoveries(self) -> int:
        """As `Host.num_recoveries`; a call to the engine's process."""
        return self.store.num_recoveries()

    def clock(self) -> float:
        """The engine's time: the clock is the same in all processes of a machine."""
        return time.perf_counter()

    def new_id(self) -> int:
        """The next of this front end's ids."""
        return next(self._ids)

    def send(self, command: Command[ReplyT]) -> Future[ReplyT]:
        """As `Host.send`; fails with EngineStopped if the engine's process has ended."""
        call = self._call(lambda number: Call(number, encode_raw(command)), reply_type(type(command)))
        return cast("Future[ReplyT]", call)

    def post(self, command: Command[ReplyT]) -> None:
        """As `Host.post`; does nothing if the engine's process has ended."""
        self._send(Post(encode_raw(command)))

    def submit(self, receiver: Receiver, command: Submit, held: object = None) -> Future[int]:
        """As `send`; the engine's process keeps the compiled grammar alive."""
        return self.send(command)

    def withdraw(self, request_id: int) -> None:
        """As `Host.withdraw`; sent after the request's command."""
        self._send(WithdrawRequest(request_id))

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """As `Host.cancel`; ignored if the request has ended."""
        self.post(Cancel(request_id, choice))

    def stats(self) -> Future[EngineStats]:
        """As `Host.stats`."""
        call = self._call(lambda number: CallStats(number, last=False), EngineStats)
        return cast("Future[EngineStats]", call)

    def last_stats(self) -> Future[EngineStats]:
        """As `Host.last_stats`, from the engine's process: counters of different front ends must not go
        back."""
        call = self._call(lambda number: CallStats(number, last=True), EngineStats)
        return cast("Future[EngineStats]", call)

    def end(self) -> None:
        """Does nothing: other front ends use the engine."""

    def close(self) -> None:
        """Close the channel; the engine cancels this front end's requests."""
        self._channel.close()

    # -- grammars and answers

    def compile(self, grammar: Grammar, *, only_check: bool) -> Future[object]:
        """Compile or check a grammar in the engine's process; the result is None."""
        return self._call(lambda number: CompileGrammar(number, encode_raw(grammar), only_check), None)

    def answer_began(self, tenant: str, answer_id: str) -> None:
        """Report an answer that another front end may stop."""
        self._send(AnswerStarted(tenant, answer_id))

    def answer_ended(self, tenant: str, answer_id: str) -> None:
        """Report the end of an answer."""
        self._send(AnswerEnded(tenant, answer_id))

    def is_answering(self, tenant: str, answer_id: str) -> bool:
        """Whether any front end is making it."""
        call = self._call(lambda number: FindAnswer(number, encode_raw([tenant, answer_id])), bool)
        try:
            return cast(bool, call.result(REPLY_TIMEOUT_S))
        except TimeoutError:
            raise EngineStopped("the engine's process does not answer") from None

    def stop_answer(self, tenant: str, answer_id: str) -> Future[bool]:
        """Stop it in the front end that is making it; the future is whether it was running."""
        call = self._call(lambda number: StopElsewhere(number, encode_raw([tenant, answer_id])), bool)
        return cast("Future[bool]", call)

    def read_feed(self, reader: int) -> Future[bytes | None]:
        """As `Reader.read`, of the reader of this number."""
        call = self._call(lambda number: ReadFeed(number, reader), bytes | None)
        return cast("Future[bytes | None]", call)

    def close_feed(self, reader: int) -> None:
        """As `Reader.close`."""
        self._send(CloseFeed(reader))

    # -- calls

    def _call_store(self, name: str, arguments: Sequence[object], reply: object) -> Future[object]:
        return self._call(lambda number: CallStore(number, name, encode_raw(arguments)), reply)

    def _call(self, message_of: MessageOf, reply: object) -> Future[object]:
        call: Future[object] = Future()
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = (call, reply)
        try:
            self._channel.send(message_of(number))
        except BaseException as error:
            with self._lock:
                waits = self._calls.pop(number, None) is not None
            if isinstance(error, EngineStopped):
                if waits:
                    call.set_exception(EngineStopped(self._gave_up or str(error)))
                return call
            raise
        call.add_done_callback(partial(self._withdraw_cancelled, number))
        return call

    def _withdraw_cancelled(self, number: int, call: Future[object]) -> None:
        if call.cancelled():
            with self._lock:
                self._calls.pop(number, None)
            self._send(Withdraw(number))

    def _send(self, message: Message) -> None:
        """Raises InvalidRequest for a message that is too long."""
        with contextlib.suppress(EngineStopped):  # the channel's thread handles it
            self._channel.send(message)

    # -- the channel's thread

    def _take(self, message: FromEngine) -> None:
        receiver = self._receiver
        assert receiver is not None
        match message:
            case Updates(updates):
                receiver.deliver(updates)
            case Reply(number, data):
                self._reply(number, data)
            case LostRequests(request_ids, reason):
                receiver.end_requests(request_ids, reason)
            case GaveUp(reason):
                self._give_up(reason)
            case StopAnswer(number, tenant, answer_id):
                self._stop_answer(number, tenant, answer_id)
            case _:
                raise AssertionError(f"a second {type(message).__name__}")

    def _reply(self, number: int, data: bytes) -> None:
        with self._lock:
            call, kind = self._calls.pop(number, (None, None))
        if call is None or not call.set_running_or_notify_cancel():
            return  # withdrawn
        try:
            call.set_result(decode_reply_as(kind, data))
        except OctavoError as error:
            call.set_exception(error)

    def _stop_answer(self, number: int, tenant: str, answer_id: str) -> None:
        stop = self.stop_answer_here
        if stop is None:
            self._send(AnswerStopped(number, False))
            return

        def send_result(stopped: Future[bool]) -> None:
            was_running = not stopped.cancelled() and stopped.exception() is None and stopped.result()
            self._send(AnswerStopped(number, was_running))

        stop(tenant, answer_id).add_done_callback(send_result)

    def _ended(self) -> None:
        self._give_up(self._gave_up or PROCESS_ENDED)

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._gave_up = reason
            calls, self._calls = list(self._calls.values()), {}
        for call, _ in calls:
            if call.set_running_or_notify_cancel():
                call.set_exception(EngineStopped(reason))
        if self._receiver is not None:
            self._receiver.give_up(reason)


@dataclass(frozen=True, slots=True)
class RemoteReader:
    """A reader of the feed of the engine's process."""

    host: RemoteHost
    number: int

    def read(self) -> Future[bytes | None]:
        """As `Reader.read`."""
        return self.host.read_feed(self.number)

    def close(self) -> None:
        """As `Reader.close`."""
        self.host.close_feed(self.number)


class RemoteFeed:
    """The feed of the engine's process."""

    def __init__(self, host: RemoteHost, hello: Hello) -> None:
        self.hello = hello
        self._host, self._numbers = host, itertools.count()

    def open(self) -> RemoteReader:
        """As `Feed.open`."""
        return RemoteReader(self._host, next(self._numbers))


class RemoteGrammars:
    """A front end's `Grammars`: the engine's process checks and compiles them."""

    def __init__(self, host: RemoteHost, words: Callable[[], Words]) -> None:
        self._host = host
        self._load_words = words
        self._words: Words | None = None

    def known(self, grammar: Grammar) -> None:
        """None: compiled grammars are in the engine's process."""

    def check(self, grammar: Grammar, stop: Event | None = None) -> None:
        """As `Grammars.check`."""
        self._wait(self._host.compile(grammar, only_check=True), stop)

    def compile(self, grammar: Grammar, stop: Event | None = None) -> None:
        """As `Grammars.compile`; the result stays in the engine's process."""
        self._wait(self._host.compile(grammar, only_check=False), stop)

    def token_bytes(self, token: int) -> bytes:
        """As `Grammars.token_bytes`."""
        self._words = self._words or self._load_words()
        return self._words.token_bytes[token]

    def close(self) -> None:
        """Does nothing: the grammars belong to the engine."""

    def _wait(self, call: Future[object], stop: Event | None) -> None:
        while True:
            try:
                call.result(_STOP_POLL_S)
            except TimeoutError:
                if stop is not None and stop.is_set():
                    call.cancel()
                    raise TrialStopped from None
            else:
                return


def connect(end: socket.socket, options: StartOptions) -> tuple[EngineClient, RemoteHost]:
    """A client of the engine at the other end, with its own tokenizer. Raises EngineStopped, or ModelError if
    the model's files can no longer be read."""
    host = RemoteHost(end)
    welcome = host.welcome
    path = ModelPath(welcome.model_name, Path(welcome.model_path), welcome.model_kind)
    tokenizer = prepared_tokenizer(read_tokenizer(open_files(path)), options)
    tokenizer.start_threads()
    return client_over(host, tokenizer), host


def client_over(host: RemoteHost, tokenizer: Tokenizer) -> EngineClient:
    """A client over this host and tokenizer."""
    welcome = host.welcome
    grammars = RemoteGrammars(host, lambda: words_of(tokenizer, welcome.vocab_size))
    known = (welcome.model_name, welcome.context_length, welcome.vocab_size, grammars, welcome.card)
    facts = ModelFacts(*known, Identity(welcome.identity_key), welcome.event_source)
    store, sync = host.store, host.store.sync_blocks if welcome.has_disk else None
    # It has all methods of the store that conversations use.
    sessions = SessionSupport(cast(ConversationStore, store), welcome.session_ttl_s, sync)
    client = EngineClient(host, tokenizer, facts, welcome.max_open, sessions)
    client.feed = None if welcome.hello is None else RemoteFeed(host, welcome.hello)
    return client
