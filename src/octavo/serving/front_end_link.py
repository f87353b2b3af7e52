"""The engine's side of its front ends: each is a client of the host, at the other end of a channel.

    channel's thread    Call, CallStore, CompileGrammar ...  -->  host, store, compilers
    writing thread      <-- Reply, Updates, LostRequests ... <-- outbox <-- engine's thread, compilers, disk

Only the writing thread waits for a front end. A front end that does not read is disconnected when its outbox
is full. When a front end disconnects, its requests are cancelled, its turns withdrawn, and its answers
dropped.
"""

from __future__ import annotations

import itertools
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import TypeVar, cast

import msgspec

from octavo.config import StartOptions
from octavo.conversations.sessions import SessionSupport
from octavo.conversations.store_calls import StoreCalls
from octavo.engine.codec import AnyCommand, encode_reply
from octavo.engine.compilers import Compilers
from octavo.engine.core import describe
from octavo.engine.host import EngineHost
from octavo.engine.port import Command, Submit
from octavo.engine.traffic import TrafficWriter
from octavo.errors import EngineStopped, OctavoError, RequestFailed
from octavo.grammar import Grammar
from octavo.sampling.grammars import CompiledGrammar, Grammars
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
    FromFrontEnd,
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
)
from octavo.serving.replica_feed import FeedSubscriber, ReplicaFeed
from octavo.serving.start import StartedEngine
from octavo.types import Update

OnGiveUp = Callable[[str], None]
_POLL_S = 0.05
OUTBOX_MAX = 2048  # messages; a front end reads some thousands a second
FirstT = TypeVar("FirstT")
ReplyT = TypeVar("ReplyT")

log = logging.getLogger("octavo.front_ends")


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts that all front ends of an engine share."""

    host: EngineHost
    grammars: Grammars | None
    sessions: SessionSupport
    compilers: Compilers
    feed: ReplicaFeed | None = None  # of a replica of a cluster
    links: list[FrontEndLink] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards `links`, and their `answers`

    def link_of(self, tenant: str, answer_id: str) -> FrontEndLink | None:
        """The front end that is making this answer."""
        with self.lock:
            return next((link for link in self.links if (tenant, answer_id) in link.answers), None)


class FrontEnds:
    """The front ends of one engine, at most `count` at a time. `traffic`: as for `EngineHost`."""

    def __init__(
        self,
        started: StartedEngine,
        options: StartOptions,
        count: int,
        on_give_up: OnGiveUp,
        traffic: TrafficWriter | None = None,
    ) -> None:
        engine, facts = started.engine, started.facts
        self._started, self._count = started, count
        self._max_open = options.max_queue + engine.config.max_rows
        grammars = facts.grammars if isinstance(facts.grammars, Grammars) else None
        self.host = EngineHost(engine, self._max_open, grammars, on_give_up, traffic)
        self._compilers = Compilers(facts, self._max_open)
        self._shared = SharedParts(self.host, grammars, started.sessions, self._compilers, started.feed)
        self._run_id = secrets.token_hex(8)

    def add(self, end: socket.socket, index: int) -> FrontEndLink:
        """Connect the front end at the other end of this socket: number `index`, or its replacement."""
        started, facts, path = self._started, self._started.facts, self._started.path
        store = started.sessions.store
        welcome = Welcome(
            first_id=self._next_id(index),
            num_ids=self._count,
            run_id=self._run_id,
            model_name=facts.name,
            model_path="" if path is None else str(path.path),
            model_kind="" if path is None else path.kind,
            context_length=facts.context_length,
            vocab_size=facts.vocab_size,
            card=facts.card,
            stop_ids=self.host.stop_ids,
            block_size=self.host.block_size,
            max_open=self._max_open,
            session_ttl_s=started.sessions.ttl_s,
            has_disk=started.sessions.sync is not None,
            identity_key=facts.identity.key,
            event_source=facts.event_source,
            store_time=store.now(),
            monotonic=time.monotonic(),
            hello=None if started.feed is None else started.feed.hello,
        )
        return FrontEndLink(self._shared, end, welcome)

    def _next_id(self, index: int) -> int:
        """The first id of this front end beyond all ids used so far."""
        rounds = -(-(self.host.last_id - index) // self._count)
        return index + 1 + max(0, rounds) * self._count

    def wait_until_gone(self, timeout_s: float) -> None:
        """Wait until all have disconnected, for at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self._shared.links and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the engine. Each channel closes after its last message is written."""
        self._started.sessions.store.close()  # its file is under the disk cache's lock
        self.host.close()
        self._compilers.close()
        with self._shared.lock:
            links = list(self._shared.links)
        for link in links:
            link.close()


class FrontEndLink:
    """One front end. The welcome is the first message of its channel."""

    def __init__(self, shared: SharedParts, end: socket.socket, welcome: Welcome) -> None:
        self.answers: set[tuple[str, str]] = set()  # its answers, by tenant and id
        self._shared, self._host = shared, shared.host
        sessions = shared.sessions
        self._store = StoreCalls(sessions.store, sessions.sync, lambda: self._host.num_recoveries)
        self._lock = threading.Lock()  # guards the next three
        self._withdrawals: dict[
            int, Callable[[], object]
        ] = {}  # by number of a call without a reply: withdraws it
        self._compiling: dict[int, bool] = {}  # by request that waits for its grammar: whether it is wanted
        self._pending_stops: dict[int, Future[bool]] = {}  # `StopAnswer` without a reply, by number
        self._readers: dict[int, FeedSubscriber] = {}  # of the feed, by number; used by the channel's thread
        self._is_disconnected = False
        self._numbers = itertools.count()
        self._outbox: queue.Queue[Message | None] = queue.Queue(OUTBOX_MAX)
        self._channel = Channel[FromFrontEnd](end, FromFrontEnd, self._take, self._on_disconnect)
        self._host.join(self)
        with shared.lock:
            shared.links.append(self)
        self._put(welcome)
        name = f"octavo-front-end-{welcome.first_id}"
        self._channel.start(name)
        threading.Thread(target=self._write, name=f"{name}-out", daemon=True).start()

    # -- a receiver of the host: any thread

    def deliver(self, updates: list[Update]) -> None:
        """Send one step's updates."""
        self._put(Updates(updates))

    def end_requests(self, request_ids: Collection[int], reason: str) -> None:
        """Report that these requests are lost."""
        self._put(LostRequests(list(request_ids), reason))

    def give_up(self, reason: str) -> None:
        """Report that the engine has ended by itself."""
        self._put(GaveUp(reason))

    def close(self) -> None:
        """Close the channel after the messages in the outbox are written."""
        self._put(None)

    def stop_answer(self, tenant: str, answer_id: str) -> Future[bool]:
        """Stop an answer of this front end; the future is whether it was running. False if the front end has
        disconnected."""
        reply: Future[bool] = Future()
        with self._lock:
            number = next(self._numbers)
            self._pending_stops[number] = reply
        self._put(StopAnswer(number, tenant, answer_id))
        if self._is_disconnected:
            self._answer_stopped(number, False)
        return reply

    # -- the channel's thread

    def _take(self, message: FromFrontEnd) -> None:
        match message:
            case Call(number, data):
                self._reply(number, partial(self._execute, number, data))
            case Post(data):
                self._host.post(_command_of(data))
            case Withdraw(number):
                with self._lock:
                    withdraw = self._withdrawals.get(number, lambda: None)
                withdraw()
            case WithdrawRequest(request_id):
                with self._lock:
                    if request_id in self._compiling:
                        self._compiling[request_id] = False
                self._host.withdraw(request_id)
            case CallStats(number, last):
                self._reply(number, self._host.last_stats if last else self._host.stats)
            case CallStore(number, method, arguments):
                self._reply(number, lambda: self._store.answer(method, arguments))
            case CompileGrammar(number, data, only_check):
                self._reply(number, partial(self._compile, number, data, only_check))
            case AnswerStarted(tenant, answer_id):
                with self._shared.lock:
                    self.answers.add((tenant, answer_id))
            case AnswerEnded(tenant, answer_id):
                with self._shared.lock:
                    self.answers.discard((tenant, answer_id))
            case FindAnswer(number, answer):
                self._reply(number, lambda: self._find_maker(answer)[0] is not None)
            case StopElsewhere(number, answer):
                self._reply(number, partial(self._stop_elsewhere, answer))
            case AnswerStopped(number, was_running):
                self._answer_stopped(number, was_running)
            case ReadFeed(number, reader):
                self._reply(number, partial(self._read_feed, reader))
            case CloseFeed(reader):
                if (found := self._readers.pop(reader, None)) is not None:
                    found.close()

    def _execute(self, number: int, data: msgspec.Raw) -> Future[object]:
        command = _command_of(data)
        if isinstance(command, Submit):
            return cast("Future[object]", self._submit(number, command))
        return self._host.send(command)

    def _submit(self, number: int, command: Submit) -> Future[int]:
        """Queue the request. A grammar that was dropped since its compilation is compiled again."""
        grammar, grammars = command.request.params.grammar, self._shared.grammars
        if grammar is None or grammars is None:
            return self._host.submit(self, command)
        known = grammars.known(grammar)
        if known is not None:
            return self._host.submit(self, command, known)
        request_id = command.request.request_id
        with self._lock:
            self._compiling[request_id] = True

        def go_on(compiled: CompiledGrammar) -> Future[int]:
            with self._lock:
                if not self._compiling.get(request_id):
                    raise EngineStopped("the request was withdrawn")
            return self._host.submit(self, command, compiled)

        def forget(_: object) -> None:
            with self._lock:
                self._compiling.pop(request_id, None)

        try:
            queued = _then(self._compiled_soon(number, grammar), go_on)
        except BaseException:
            forget(None)
            raise
        queued.add_done_callback(forget)
        return queued

    def _compiled_soon(self, number: int, grammar: Grammar) -> Future[CompiledGrammar]:
        """Compile on a compiler's thread. Raises QueueFull."""
        grammars, stop = self._shared.grammars, Event()
        assert grammars is not None
        with self._lock:
            self._withdrawals[number] = stop.set
        return self._shared.compilers.start(grammar.tenant, lambda: grammars.compile(grammar, stop), stop)

    def _compile(self, number: int, data: msgspec.Raw, only_check: bool) -> object:
        grammars, stop = self._shared.grammars, Event()
        grammar = msgspec.msgpack.decode(data, type=Grammar)
        assert grammars is not None
        if not only_check:
            if grammars.known(grammar) is not None:
                return None
            return _then(self._compiled_soon(number, grammar), lambda compiled: _done(None))
        with self._lock:
            self._withdrawals[number] = stop.set
        checked = self._shared.compilers.start(grammar.tenant, lambda: grammars.check(grammar, stop), stop)
        return _then(checked, lambda verdict: _done(None))

    def _read_feed(self, reader: int) -> Future[bytes | None]:
        feed = self._shared.feed
        assert feed is not None
        if reader not in self._readers:
            self._readers[reader] = feed.open()
        return self._readers[reader].read()

    def _find_maker(self, answer: msgspec.Raw) -> tuple[FrontEndLink | None, tuple[str, str]]:
        """The front end that is making the answer, and the answer's tenant and id."""
        key = msgspec.msgpack.decode(answer, type=tuple[str, str])
        return self._shared.link_of(*key), key

    def _stop_elsewhere(self, answer: msgspec.Raw) -> object:
        maker, key = self._find_maker(answer)
        return False if maker is None else maker.stop_answer(*key)

    def _answer_stopped(self, number: int, was_running: bool) -> None:
        with self._lock:
            reply = self._pending_stops.pop(number, None)
        if reply is not None and reply.set_running_or_notify_cancel():
            reply.set_result(was_running)

    def _on_disconnect(self) -> None:
        """The channel has ended: cancel the front end's requests and calls.

        Calls of `stop_answer` that wait for it get False.
        """
        self._is_disconnected = True
        with self._shared.lock:
            self._shared.links.remove(self)
        with self._lock:
            withdrawals, pending_stops = list(self._withdrawals.values()), list(self._pending_stops)
        self._host.leave(self)  # first, so that it refuses requests whose grammar is being compiled
        for withdraw in withdrawals:
            withdraw()
        for number in pending_stops:
            self._answer_stopped(number, False)
        self._store.leave()
        for reader in self._readers.values():
            reader.close()
        self._put(None)  # ends the writing thread

    # -- replies

    def _reply(self, number: int, work: Callable[[], object]) -> None:
        """Reply with the result or the error of `work`; if it returns a future, with the future's."""
        try:
            found = work()
        except Exception as error:
            with self._lock:
                self._withdrawals.pop(number, None)
            if not isinstance(error, OctavoError):
                log.exception("a call of a front end failed")
            self._send_reply(
                number, error if isinstance(error, OctavoError) else RequestFailed(describe(error))
            )
            return
        if not isinstance(found, Future):
            self._send_reply(number, found)
            return
        with self._lock:
            self._withdrawals.setdefault(number, found.cancel)
        found.add_done_callback(partial(self._reply_done, number))

    def _reply_done(self, number: int, done: Future[object]) -> None:
        with self._lock:
            self._withdrawals.pop(number, None)
        if done.cancelled():
            return  # the caller has left
        error = done.exception()
        if error is None:
            self._send_reply(number, done.result())
        else:
            self._send_reply(
                number, error if isinstance(error, OctavoError) else RequestFailed(describe(error))
            )

    def _send_reply(self, number: int, reply: object) -> None:
        try:
            data = encode_reply(reply)
        except OctavoError as error:  # the reply is too long
            data = encode_reply(error)
        self._put(Reply(number, data))

    # -- the writing thread

    def _put(self, message: Message | None) -> None:
        try:
            self._outbox.put_nowait(message)
        except queue.Full:
            if not self._is_disconnected:
                log.error("a front end left %d messages unread, and is disconnected", OUTBOX_MAX)
            self._channel.close()

    def _write(self) -> None:
        try:
            while (message := self._outbox.get()) is not None:
                self._channel.send(message)
        except EngineStopped:
            pass  # the front end has disconnected; the channel's thread handles it
        except Exception:
            log.exception("a front end is disconnected: a message of the engine could not be written")
        self._channel.close()


def _command_of(data: msgspec.Raw) -> Command[object]:
    return cast(Command[object], msgspec.msgpack.decode(data, type=AnyCommand))


def _then(first: Future[FirstT], follow: Callable[[FirstT], Future[ReplyT]]) -> Future[ReplyT]:
    """The result of the future that `follow` makes of the first one's result."""
    whole: Future[ReplyT] = Future()

    def fail(error: BaseException) -> None:
        if whole.set_running_or_notify_cancel():
            whole.set_exception(error)

    def finish(done: Future[ReplyT]) -> None:
        error = EngineStopped("it was withdrawn") if done.cancelled() else done.exception()
        if error is not None:
            fail(error)
        elif whole.set_running_or_notify_cancel():
            whole.set_result(done.result())

    def go_on(done: Future[FirstT]) -> None:
        try:
            follow(done.result()).add_done_callback(finish)
        except BaseException as error:  # noqa: BLE001 - the caller gets it, CancelledError too
            fail(error)

    first.add_done_callback(go_on)
    return whole


def _done(value: ReplyT) -> Future[ReplyT]:
    done: Future[ReplyT] = Future()
    done.set_result(value)
    return done
