"""What a front end and the engine's process say to each other, over a pair of sockets.

    front end    Call, Post, Withdraw, CallStore, Compile, ...   -->   engine's process
                 <--   Welcome, Reply, Updates, Lost, GaveUp, ...

    [ length, 4 bytes | msgpack ]

Both ends are processes of one server, so what cannot be read is a bug: it closes the channel, which costs the
front end its requests. Commands and their replies are encoded as everywhere else (`engine.codec`).
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


def raw(value: object) -> msgspec.Raw:
    """What is read by itself, so that one that cannot be read costs its own call alone. Raises InvalidRequest
    for what no message can carry."""
    try:
        return msgspec.Raw(msgspec.msgpack.encode(value))
    except (UnicodeEncodeError, OverflowError) as error:
        raise InvalidRequest(
            f"a value of the request cannot be passed on: {error}; allowed: text in Unicode without lone "
            "surrogates, whole numbers of 64 bits"
        ) from None


class Message(msgspec.Struct, frozen=True, tag=True):
    """Anything that is said. A `number` names a call; its reply has the same one."""


# -- of a front end


class Call(Message, frozen=True, tag=True):
    """Carry out a command, and reply."""

    number: int
    command: msgspec.Raw  # an `AnyCommand`


class Post(Message, frozen=True, tag=True):
    """Carry out a command."""

    command: msgspec.Raw


class Withdraw(Message, frozen=True, tag=True):
    """The caller has gone: what was not begun is not done."""

    number: int


class WithdrawRequest(Message, frozen=True, tag=True):
    """The request's submitter has gone."""

    request_id: int


class CallStats(Message, frozen=True, tag=True):
    """Counters and gauges; `last`: those that were told last, at once."""

    number: int
    last: bool


class CallStore(Message, frozen=True, tag=True):
    """Call a method of the store of conversations."""

    number: int
    method: str
    arguments: msgspec.Raw


class CompileGrammar(Message, frozen=True, tag=True):
    """Try a grammar and, unless it is only to be checked, compile it. Replies nothing."""

    number: int
    grammar: msgspec.Raw  # a `Grammar`
    only_check: bool


class AnswerBegan(Message, frozen=True, tag=True):
    """This front end makes an answer that another one may be asked to stop."""

    tenant: str
    answer_id: str


class AnswerEnded(Message, frozen=True, tag=True):
    """It does not run any more."""

    tenant: str
    answer_id: str


class IsAnswering(Message, frozen=True, tag=True):
    """Whether some front end makes this answer."""

    number: int
    answer: msgspec.Raw  # tenant and id


class AskToStop(Message, frozen=True, tag=True):
    """Stop an answer, wherever it is made. Replies whether it ran."""

    number: int
    answer: msgspec.Raw  # tenant and id


class AnswerStopped(Message, frozen=True, tag=True):
    """The reply of the front end that was asked to stop one."""

    number: int
    was_running: bool


class ReadFeed(Message, frozen=True, tag=True):
    """Reply with what waits of a replica's feed, as soon as there is something, to its reader of this number,
    which is opened with its first one. Replies None when it was cut off."""

    number: int
    reader: int


class CloseFeed(Message, frozen=True, tag=True):
    """That reader has gone."""

    reader: int


# -- of the engine's process


class Welcome(Message, frozen=True, tag=True):
    """The first message: what a front end must know of engine and model."""

    first_id: int  # of its requests, which are this one and every `num_ids`-th after it
    num_ids: int
    run_id: str  # of this start of the engine
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
    identity_key: bytes | None  # of KV events, where there are tenants
    event_source: EventSource | None
    store_time: float  # the store's clock at `monotonic`
    monotonic: float
    hello: Hello | None  # of a replica of a cluster


class StopAnswer(Message, frozen=True, tag=True):
    """Stop an answer that this front end makes."""

    number: int
    tenant: str
    answer_id: str


class Reply(Message, frozen=True, tag=True):
    """To a call; `data` as `codec.encode_reply` has it."""

    number: int
    data: bytes


class Updates(Message, frozen=True, tag=True):
    """Of one step, of this front end's requests."""

    updates: list[Update]


class Lost(Message, frozen=True, tag=True):
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
    | AnswerBegan
    | AnswerEnded
    | IsAnswering
    | AskToStop
    | AnswerStopped
    | ReadFeed
    | CloseFeed
)
FromEngine = Welcome | Reply | Updates | Lost | GaveUp | StopAnswer

MessageT = TypeVar("MessageT")


class Channel(Generic[MessageT]):
    """One end. A thread of its own reads; any thread may send.

    `take` gets each message on the reading thread; `ended` is called on it once, after the last one, when the
    other end has closed, or its process has ended.
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
        """Read, on a thread of this name."""
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
        """Write it. Raises InvalidRequest for one that is too long, EngineStopped when the other end has
        gone."""
        data = msgspec.msgpack.encode(message)
        if len(data) > MESSAGE_BYTES_MAX:
            raise InvalidRequest(f"a message of {len(data):,} bytes; allowed: {MESSAGE_BYTES_MAX:,}")
        try:
            with self._lock:
                self._socket.sendall(len(data).to_bytes(_HEADER_BYTES, "big") + data)
        except OSError as error:
            raise EngineStopped(f"the engine's process is gone: {error}") from None

    def close(self) -> None:
        """Both ends learn of it. Idempotent."""
        with contextlib.suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            while (message := self.receive()) is not None:
                self._take(message)
        except OSError:
            pass  # it was reset
        except Exception:
            log.exception("a message between a front end and the engine could not be handled")
        finally:
            self.close()
            self._ended()
            self._stream.close()
            self._socket.close()
