"""What rank 0 tells the other ranks, and how it travels: frames over Unix socket pairs.

    commands    rank 0 --> rank r    one after the other; some are answered
    transfers   rank 0 <-> rank r    blocks that move, on a thread of their own; each is answered
    pulse       rank 0 <-- rank r    that it lives, twice a second, and what went wrong

A command is about rows and blocks: no sampler's setting, grammar or key is in one. Frames are bounded, and
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
    """A command of rank 0's."""


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
    """Rows and pool go. Answered."""


class Measure(Message, frozen=True, tag=True, gc=False):
    """How many bytes are free for blocks. Answered."""


class Warm(Message, frozen=True, tag=True, gc=False):
    """Make ready what steps of up to so many tokens need."""

    step_tokens: int


class WarmMore(Message, frozen=True, tag=True, gc=False):
    """One more piece of it."""


class Prepare(Message, frozen=True, tag=True, gc=False):
    """What a plan changes in tokens and tables, and the arrays of its step (`StepShape`), all int32."""

    indices: bytes
    values: bytes
    shape: tuple[bytes, bytes, bytes, bytes, bytes, bytes]


class CopyBlocks(Message, frozen=True, tag=True, gc=False):
    """Copy whole blocks, in order."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


class ForkRow(Message, frozen=True, tag=True, gc=False):
    """The child's row becomes the parent's."""

    parent: int
    child: int


class Run(Message, frozen=True, tag=True, gc=False):
    """Compute the step that was prepared."""


class Project(Message, frozen=True, tag=True, gc=False):
    """Logits of so many rows, which rank 0 broadcasts."""

    num_rows: int


class Append(Message, frozen=True, tag=True, gc=False):
    """So many tokens that rank 0 broadcasts stand in rows now."""

    num_tokens: int


class Fence(Message, frozen=True, tag=True, gc=False):
    """Transfers that name this number come behind all before it."""

    number: int


class Close(Message, frozen=True, tag=True, gc=False):
    """End."""


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
    """The rank's share of blocks goes to the shared memory, block i to place i, or comes from there."""

    fence: int
    is_store: bool
    blocks: tuple[int, ...]


class Start(msgspec.Struct, frozen=True):
    """What a rank is, in the command line of its process."""

    rank: int
    num_ranks: int
    device: str
    weights: str
    rendezvous: str
    timeout_s: float


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What a command came to; `error`: it was refused, in words for a person."""

    value: int = 0
    error: str = ""


class Pulse(msgspec.Struct, frozen=True, gc=False):
    """A rank lives. `failed`: why it ends now."""

    memory_bytes: int = 0
    waited_s: float = 0.0  # for other ranks, since its start
    is_waiting: bool = False
    is_loading: bool = False
    failed: str = ""


ReceivedT = TypeVar("ReceivedT")


class Channel(Generic[ReceivedT]):
    """One end of a socket pair. One thread sends, and one receives."""

    def __init__(self, end: socket.socket, received: object) -> None:
        """`received`: the type of what comes."""
        self._socket = end
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(received)

    def fileno(self) -> int:
        """Of the socket."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Raises OSError where the other end is gone."""
        data = msgspec.msgpack.encode(message)
        assert len(data) <= FRAME_BYTES_MAX
        self._socket.sendall(len(data).to_bytes(_HEADER_BYTES, "big") + data)

    def receive(self) -> ReceivedT:
        """The next one. Raises EOFError where the other end is gone, ValueError for what is no frame."""
        length = int.from_bytes(self._read(_HEADER_BYTES), "big")
        if length > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {length:,} bytes; allowed: {FRAME_BYTES_MAX:,}")
        return cast(ReceivedT, self._decoder.decode(self._read(length)))

    def bound(self, seconds: float) -> None:
        """From now on nothing waits longer; OSError."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """What waits for a frame at either end has none."""
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
    """The same again."""
    return StepShape(*map(ints, arrays))


def ints(data: bytes) -> Ints:
    """int32, which may be written to."""
    return np.frombuffer(data, np.int32).copy()
