"""A front end's side of the engine, which is in another process: a host for the submitter, grammars, and the
store of conversations, all over one channel.

The channel's thread does here what the engine's thread does in one process: it hands the updates of a step to
the event loop in one call.
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
    AnswerBegan,
    AnswerEnded,
    AnswerStopped,
    AskToStop,
    Call,
    CallStats,
    CallStore,
    Channel,
    CloseFeed,
    CompileGrammar,
    FromEngine,
    GaveUp,
    IsAnswering,
    Lost,
    Message,
    Post,
    ReadFeed,
    Reply,
    StopAnswer,
    Updates,
    Welcome,
    Withdraw,
    WithdrawRequest,
    raw,
)
from octavo.serving.client import EngineClient
from octavo.serving.model_parts import prepared_tokenizer, words_of
from octavo.text.tokenizer import Tokenizer

MessageOf = Callable[[int], Message]  # by the number of a call
StopLocal = Callable[[str, str], Future[bool]]
PROCESS_ENDED = "the engine's process has ended"
_STOP_POLL_S = 0.05


class RemoteHost:
    """The host of an engine at the other end of a socket. Reads the welcome, which may take until a model is
    loaded. Raises EngineStopped where none comes."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel[FromEngine](end, FromEngine, self._take, self._ended)
        welcome = self._channel.receive()
        if not isinstance(welcome, Welcome):
            raise EngineStopped(PROCESS_ENDED)
        self.welcome = welcome
        self.stop_ids, self.block_size = welcome.stop_ids, welcome.block_size
        ahead_s = welcome.store_time - welcome.monotonic
        self.store = RemoteStore(self._call_store, REPLY_TIMEOUT_S, ahead_s)
        # Set by who makes answers here: stops one, if it runs.
        self.stop_answer_here: StopLocal | None = None
        self._lock = threading.Lock()  # guards all below
        self._calls: dict[int, tuple[Future[object], object]] = {}  # without a reply, by number; its type
        self._numbers = itertools.count()
        self._ids = itertools.count(welcome.first_id, welcome.num_ids)
        self._receiver: Receiver | None = None
        self._gave_up: str | None = None

    def join(self, receiver: Receiver) -> None:
        """There is one; the channel is read from here on."""
        assert self._receiver is None
        self._receiver = receiver
        self._channel.start("octavo-engine-channel")

    @property
    def num_recoveries(self) -> int:
        """Asks for it."""
        return self.store.num_recoveries()

    def clock(self) -> float:
        """The same on all processes of a machine."""
        return time.perf_counter()

    def new_id(self) -> int:
        """Of those that are this front end's."""
        return next(self._ids)

    def send(self, command: Command[ReplyT]) -> Future[ReplyT]:
        """Fails with EngineStopped where the engine's process has ended."""
        call = self._call(lambda number: Call(number, raw(command)), reply_type(type(command)))
        return cast("Future[ReplyT]", call)

    def post(self, command: Command[ReplyT]) -> None:
        """Does nothing where the engine's process has ended."""
        self._say(Post(raw(command)))

    def submit(self, receiver: Receiver, command: Submit, held: object = None) -> Future[int]:
        """As `send`; the engine's process holds what is compiled."""
        return self.send(command)

    def withdraw(self, request_id: int) -> None:
        """Behind its command."""
        self._say(WithdrawRequest(request_id))

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """Ignored where it has ended."""
        self.post(Cancel(request_id, choice))

    def stats(self) -> Future[EngineStats]:
        """Asks for them."""
        call = self._call(lambda number: CallStats(number, last=False), EngineStats)
        return cast("Future[EngineStats]", call)

    def last_stats(self) -> Future[EngineStats]:
        """Of the engine's process, so that no two front ends tell counters that go back."""
        call = self._call(lambda number: CallStats(number, last=True), EngineStats)
        return cast("Future[EngineStats]", call)

    def end(self) -> None:
        """Others use the engine: nothing."""

    def close(self) -> None:
        """Its requests are cancelled."""
        self._channel.close()

    # -- grammars and answers

    def compile(self, grammar: Grammar, *, only_check: bool) -> Future[object]:
        """When it is compiled, or was found to be one that can be followed."""
        return self._call(lambda number: CompileGrammar(number, raw(grammar), only_check), None)

    def answer_began(self, tenant: str, answer_id: str) -> None:
        """Another front end may be asked to stop it."""
        self._say(AnswerBegan(tenant, answer_id))

    def answer_ended(self, tenant: str, answer_id: str) -> None:
        """No more."""
        self._say(AnswerEnded(tenant, answer_id))

    def is_answering(self, tenant: str, answer_id: str) -> bool:
        """Whether some front end makes it."""
        call = self._call(lambda number: IsAnswering(number, raw([tenant, answer_id])), bool)
        try:
            return cast(bool, call.result(REPLY_TIMEOUT_S))
        except TimeoutError:
            raise EngineStopped("the engine's process does not answer") from None

    def stop_answer(self, tenant: str, answer_id: str) -> Future[bool]:
        """Whether some front end made it, and has stopped."""
        call = self._call(lambda number: AskToStop(number, raw([tenant, answer_id])), bool)
        return cast("Future[bool]", call)

    def read_feed(self, reader: int) -> Future[bytes | None]:
        """As `Reader.read`."""
        call = self._call(lambda number: ReadFeed(number, reader), bytes | None)
        return cast("Future[bytes | None]", call)

    def close_feed(self, reader: int) -> None:
        """It reads no more."""
        self._say(CloseFeed(reader))

    # -- calls

    def _call_store(self, name: str, arguments: Sequence[object], reply: object) -> Future[object]:
        return self._call(lambda number: CallStore(number, name, raw(arguments)), reply)

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
            self._say(Withdraw(number))

    def _say(self, message: Message) -> None:
        """Raises InvalidRequest for what cannot be written."""
        with contextlib.suppress(EngineStopped):  # as the channel's thread learns
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
            case Lost(request_ids, reason):
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
            self._say(AnswerStopped(number, False))
            return

        def tell(stopped: Future[bool]) -> None:
            is_stopped = not stopped.cancelled() and stopped.exception() is None and stopped.result()
            self._say(AnswerStopped(number, is_stopped))

        stop(tenant, answer_id).add_done_callback(tell)

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
        """As `Reader`'s."""
        return self.host.read_feed(self.number)

    def close(self) -> None:
        """As `Reader`'s."""
        self.host.close_feed(self.number)


class RemoteFeed:
    """The feed of the engine's process."""

    def __init__(self, host: RemoteHost, hello: Hello) -> None:
        self.hello = hello
        self._host, self._numbers = host, itertools.count()

    def open(self) -> RemoteReader:
        """As `Feed`'s."""
        return RemoteReader(self._host, next(self._numbers))


class RemoteGrammars:
    """What a front end has in place of `Grammars`: they are tried and compiled in the engine's process."""

    def __init__(self, host: RemoteHost, words: Callable[[], Words]) -> None:
        self._host = host
        self._load_words = words
        self._words: Words | None = None

    def known(self, grammar: Grammar) -> None:
        """Not here."""

    def check(self, grammar: Grammar, stop: Event | None = None) -> None:
        """As `Grammars.check`."""
        self._wait(self._host.compile(grammar, only_check=True), stop)

    def compile(self, grammar: Grammar, stop: Event | None = None) -> None:
        """As `Grammars.compile`; the engine's process holds what is compiled."""
        self._wait(self._host.compile(grammar, only_check=False), stop)

    def token_bytes(self, token: int) -> bytes:
        """As `Grammars.token_bytes`."""
        self._words = self._words or self._load_words()
        return self._words.token_bytes[token]

    def close(self) -> None:
        """They are the engine's."""

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
    """A client of the engine at the other end, with a tokenizer of its own. Raises EngineStopped, or
    ModelError where the model's files cannot be read any more."""
    host = RemoteHost(end)
    welcome = host.welcome
    path = ModelPath(welcome.model_name, Path(welcome.model_path), welcome.model_kind)
    tokenizer = prepared_tokenizer(read_tokenizer(open_files(path)), options)
    tokenizer.start_threads()
    return client_over(host, tokenizer), host


def client_over(host: RemoteHost, tokenizer: Tokenizer) -> EngineClient:
    """The same over a tokenizer that is there."""
    welcome = host.welcome
    grammars = RemoteGrammars(host, lambda: words_of(tokenizer, welcome.vocab_size))
    known = (welcome.model_name, welcome.context_length, welcome.vocab_size, grammars, welcome.card)
    facts = ModelFacts(*known, Identity(welcome.identity_key), welcome.event_source)
    store, sync = host.store, host.store.sync_blocks if welcome.has_disk else None
    # It has all that conversations use of a store.
    sessions = SessionSupport(cast(ConversationStore, store), welcome.session_ttl_s, sync)
    client = EngineClient(host, tokenizer, facts, welcome.max_open, sessions)
    client.feed = None if welcome.hello is None else RemoteFeed(host, welcome.hello)
    return client
