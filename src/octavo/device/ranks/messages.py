"""The messages between rank 0 and the other ranks: frames over Unix socket pairs.

    commands    rank 0 --> rank r    one after another; some are answered
    transfers   rank 0 <-> rank r    block moves, on a thread of their own; each is answered
    pulse       rank 0 <-- rank r    a heartbeat, twice a second, and errors

Commands concern rows and blocks: none holds sampling parameters, grammars or keys. Frames are bounded, and
decoding checks every type.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Generic, TypeVar, cast

import msgspec
import numpy as np

from octavo.executor.batch import StepShape
from octavo.kernels.contract import Ints

FRAME_BYTES_MAX = 64 << 20
_HEADER_BYTES = 4


class Message(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A command of rank 0."""


class Load(Message, frozen=True, tag=True, gc=False):
    """Read the rank's part of a model. Answered with its bytes."""

    name: str
    path: str
    kind: str
    context_length: int | None


class Allocate(Message, frozen=True, tag=True, gc=False):
    """Rows, and a pool of so many blocks. Answered."""

    kv: str
    block_size: int
    num_blocks: int
    max_rows: int
    context_length: int


class Release(Message, frozen=True, tag=True, gc=False):
    """Free rows and pool. Answered."""


class Measure(Message, frozen=True, tag=True, gc=False):
    """Report the bytes that are free for blocks. Answered."""


class Warm(Message, frozen=True, tag=True, gc=False):
    """Prepare what steps of up to so many tokens need."""

    step_tokens: int


class WarmMore(Message, frozen=True, tag=True, gc=False):
    """Prepare one more piece."""


class Prepare(Message, frozen=True, tag=True, gc=False):
    """A plan's writes of tokens and tables, and the arrays of its step (`StepShape`), all int32."""

    indices: bytes
    values: bytes
    shape: tuple[bytes, bytes, bytes, bytes, bytes, bytes]


class CopyBlocks(Message, frozen=True, tag=True, gc=False):
    """Copy whole blocks, in order."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


class ForkRow(Message, frozen=True, tag=True, gc=False):
    """Copy the parent's row to the child's."""

    parent: int
    child: int


class Run(Message, frozen=True, tag=True, gc=False):
    """Compute the prepared step."""


class Project(Message, frozen=True, tag=True, gc=False):
    """Logits of so many rows, which rank 0 broadcasts."""

    num_rows: int


class Append(Message, frozen=True, tag=True, gc=False):
    """Write so many tokens, which rank 0 broadcasts, into rows."""

    num_tokens: int


class Fence(Message, frozen=True, tag=True, gc=False):
    """Transfers with this number run after all commands before it."""

    number: int


class Close(Message, frozen=True, tag=True, gc=False):
    """End the rank's process."""


AnyMessage = (
    Load
    | Allocate
    | Release
    | Measure
    | Warm
    | WarmMore
    | Prepare
    | CopyBlocks
    | ForkRow
    | Run
    | Project
    | Append
    | Fence
    | Close
)


class MoveBlocks(msgspec.Struct, frozen=True, gc=False):
    """Copy the rank's share of blocks to the shared memory, block i to place i, or from there."""

    fence: int
    is_store: bool
    blocks: tuple[int, ...]


class Start(msgspec.Struct, frozen=True):
    """A rank's parameters, in the command line of its process."""

    rank: int
    num_ranks: int
    device: str
    weights: str
    rendezvous: str
    timeout_s: float


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The result of a command; `error`: why it was refused, in words for users."""

    value: int = 0
    error: str = ""


class Pulse(msgspec.Struct, frozen=True, gc=False):
    """A rank's heartbeat. `failed`: why it ends now."""

    memory_bytes: int = 0
    waited_s: float = 0.0  # for other ranks, since its start
    is_waiting: bool = False
    is_loading: bool = False
    failed: str = ""


ReceivedT = TypeVar("ReceivedT")


class Channel(Generic[ReceivedT]):
    """One end of a socket pair. One thread sends, and one receives."""

    def __init__(self, end: socket.socket, received: object) -> None:
        """`received`: the type of received messages."""
        self._socket = end
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(received)

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Raises OSError if the other end is gone."""
        data = msgspec.msgpack.encode(message)
        assert len(data) <= FRAME_BYTES_MAX
        self._socket.sendall(len(data).to_bytes(_HEADER_BYTES, "big") + data)

    def receive(self) -> ReceivedT:
        """The next message. Raises EOFError if the other end is gone, ValueError for a malformed frame."""
        length = int.from_bytes(self._read(_HEADER_BYTES), "big")
        if length > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {length:,} bytes; allowed: {FRAME_BYTES_MAX:,}")
        return cast(ReceivedT, self._decoder.decode(self._read(length)))

    def bound(self, seconds: float) -> None:
        """Set a timeout for all later waits, which then raise OSError."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Shut down: a wait for a frame at either end fails."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, count: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < count:
            piece = self._socket.recv(count - len(pieces))
            if not piece:
                raise EOFError("the other end is gone")
            pieces += piece
        return bytes(pieces)


def encode_shape(shape: StepShape) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
    """A step's arrays, in the order of its fields."""
    return (
        shape.table_rows.tobytes(),
        shape.starts.tobytes(),
        shape.offsets.tobytes(),
        shape.token_chunks.tobytes(),
        shape.positions.tobytes(),
        shape.logit_rows.tobytes(),
    )


def decode_shape(arrays: tuple[bytes, bytes, bytes, bytes, bytes, bytes]) -> StepShape:
    """The shape that `encode_shape` encoded."""
    return StepShape(*map(ints, arrays))


def ints(data: bytes) -> Ints:
    """int32, writable."""
    return np.frombuffer(data, np.int32).copy()
