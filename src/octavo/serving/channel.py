"""The messages between a front end and the engine's process, and the channel that carries them over a socket
pair.

    front end    Call, Post, Withdraw, CallStore, Compile, ...   -->   engine's process
                 <--   Welcome, Reply, Updates, LostRequests, GaveUp, ...

    [ length, 4 bytes | msgpack ]

Both ends are processes of one server, so a message that does not decode is a bug: the channel is closed, and
the front end loses its requests. Commands and their replies use the encoding of `engine.codec`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from octavo.engine.outputs import ModelCard
from octavo.errors import EngineStopped, InvalidRequest
from octavo.kv_events.identity import EventSource
from octavo.routing.reports import Hello
from octavo.types import Update

log = logging.getLogger("octavo.front_ends")

_HEADER_BYTES = 4
_BUFFER_BYTES = 1 << 18
MESSAGE_BYTES_MAX = 2 << 30


def encode_raw(value: object) -> msgspec.Raw:
    """A value that the receiver decodes separately, so that a failure ends only its own call. Raises
    InvalidRequest for a value that no message can carry."""
    try:
        return msgspec.Raw(msgspec.msgpack.encode(value))
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidRequest(
            f"a value of the request cannot be passed on: {error}; allowed: text in Unicode without lone "
            "surrogates, whole numbers of 64 bits"
        ) from None


class Message(msgspec.Struct, frozen=True, tag=True):
    """The base class. A `number` identifies a call, and its reply has the same one."""


# -- from a front end


class Call(Message, frozen=True, tag=True):
    """Execute a command, and reply."""

    number: int
    command: msgspec.Raw  # an `AnyCommand`


class Post(Message, frozen=True, tag=True):
    """Execute a command."""

    command: msgspec.Raw


class Withdraw(Message, frozen=True, tag=True):
    """The caller has left: a call that was not begun is dropped."""

    number: int


class WithdrawRequest(Message, frozen=True, tag=True):
    """The request's submitter has left."""

    request_id: int


class CallStats(Message, frozen=True, tag=True):
    """Reply with counters and gauges; `last`: immediately, with those of the last reply."""

    number: int
    last: bool


class CallStore(Message, frozen=True, tag=True):
    """Call a method of the conversation store."""

    number: int
    method: str
    arguments: msgspec.Raw


class CompileGrammar(Message, frozen=True, tag=True):
    """Check a grammar and, unless `only_check`, compile it. The reply is None."""

    number: int
    grammar: msgspec.Raw  # a `Grammar`
    only_check: bool


class AnswerStarted(Message, frozen=True, tag=True):
    """This front end has begun an answer that clients of other front ends may stop."""

    tenant: str
    answer_id: str


class AnswerEnded(Message, frozen=True, tag=True):
    """The answer has ended."""

    tenant: str
    answer_id: str


class FindAnswer(Message, frozen=True, tag=True):
    """Reply whether any front end is making this answer."""

    number: int
    answer: msgspec.Raw  # tenant and id


class StopElsewhere(Message, frozen=True, tag=True):
    """Stop an answer of any front end. Replies whether it was running."""

    number: int
    answer: msgspec.Raw  # tenant and id


class AnswerStopped(Message, frozen=True, tag=True):
    """The front end's reply to `StopAnswer`."""

    number: int
    was_running: bool


class ReadFeed(Message, frozen=True, tag=True):
    """Reply with the frames that wait for this reader of the replica's feed, as soon as there are any. The
    first message opens the reader. Replies None if it was cut off."""

    number: int
    reader: int


class CloseFeed(Message, frozen=True, tag=True):
    """The reader has left."""

    reader: int


# -- from the engine's process


class Welcome(Message, frozen=True, tag=True):
    """The first message: facts about the engine and the model."""

    first_id: int  # the front end's request ids are this one and every `num_ids`-th after it
    num_ids: int
    run_id: str  # identifies this start of the engine
    model_name: str
    model_path: str
    model_kind: str
    context_length: int
    vocab_size: int
    card: ModelCard
    stop_ids: frozenset[int]
    block_size: int
    max_open: int
    session_ttl_s: float
    has_disk: bool
    identity_key: bytes | None  # of KV events, if there are tenants
    event_source: EventSource | None
    store_time: float  # the store's clock at `monotonic`
    monotonic: float
    hello: Hello | None  # if it is a replica of a cluster


class StopAnswer(Message, frozen=True, tag=True):
    """Stop an answer of this front end."""

    number: int
    tenant: str
    answer_id: str


class Reply(Message, frozen=True, tag=True):
    """The reply to a call; `data` is encoded by `codec.encode_reply`."""

    number: int
    data: bytes


class Updates(Message, frozen=True, tag=True):
    """One step's updates of this front end's requests."""

    updates: list[Update]


class LostRequests(Message, frozen=True, tag=True):
    """No update of these requests will come."""

    request_ids: list[int]
    reason: str


class GaveUp(Message, frozen=True, tag=True):
    """The engine has ended by itself."""

    reason: str


FromFrontEnd = (
    Call
    | Post
    | Withdraw
    | WithdrawRequest
    | CallStats
    | CallStore
    | CompileGrammar
    | AnswerStarted
    | AnswerEnded
    | FindAnswer
    | StopElsewhere
    | AnswerStopped
    | ReadFeed
    | CloseFeed
)
FromEngine = Welcome | Reply | Updates | LostRequests | GaveUp | StopAnswer

MessageT = TypeVar("MessageT")


class Channel(Generic[MessageT]):
    """One end. Its own thread reads; any thread may send.

    The reading thread calls `take` with each message, and `ended` once after the last one, when the other end
    has closed or its process has ended.
    """

    def __init__(
        self,
        end: socket.socket,
        messages: object,
        take: Callable[[MessageT], None],
        ended: Callable[[], None],
    ) -> None:
        self._socket = end
        self._stream = end.makefile("rb", _BUFFER_BYTES)
        self._decoder = msgspec.msgpack.Decoder(messages)
        self._take = take
        self._ended = ended
        self._lock = threading.Lock()  # held while a frame is written

    def start(self, name: str) -> None:
        """Start the reading thread, with this name."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def receive(self) -> MessageT | None:
        """The next message; None after the last one."""
        header = self._stream.read(_HEADER_BYTES)
        length = int.from_bytes(header, "big")
        data = self._stream.read(length) if len(header) == _HEADER_BYTES else b""
        if len(header) < _HEADER_BYTES or len(data) < length:
            return None
        return self._decoder.decode(data)  # type: ignore[no-any-return]  # what `messages` says

    def send(self, message: Message) -> None:
        """Write a message. Raises InvalidRequest if it is too long, EngineStopped if the other end has
        closed."""
        data = msgspec.msgpack.encode(message)
        if len(data) > MESSAGE_BYTES_MAX:
            raise InvalidRequest(f"a message of {len(data):,} bytes; allowed: {MESSAGE_BYTES_MAX:,}")
        try:
            with self._lock:
                self._socket.sendall(len(data).to_bytes(_HEADER_BYTES, "big") + data)
        except OSError as error:
            raise EngineStopped(f"the engine's process is gone: {error}") from None

    def close(self) -> None:
        """Shut the connection down; both ends notice. Idempotent."""
        with contextlib.suppress(OSError):  # the other end closed first
            self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            while (message := self.receive()) is not None:
                self._take(message)
        except OSError:
            pass  # the connection was reset
        except Exception:
            log.exception("a message between a front end and the engine could not be handled")
        finally:
            self.close()
            self._ended()
            self._stream.close()
            self._socket.close()
