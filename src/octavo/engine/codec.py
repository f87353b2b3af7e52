"""The encoding of a command, and of its reply: for another process, or for a recording.

    [ version | kind | msgpack ]        kind: 0 a command or a reply, 1 a refusal

Both are bounded before they are decoded, and decoding checks every type. So any bytes make a valid command or
an InvalidRequest.
"""

from __future__ import annotations

from functools import cache
from typing import cast, get_args

import msgspec

from octavo import errors
from octavo.engine import port
from octavo.engine.port import Command, ReplyT
from octavo.errors import InvalidRequest, OctavoError, QueueFull

VERSION = 2
COMMAND_BYTES_MAX = 64 << 20  # the longest prompt, with its session's tokens, and a grammar
REPLY_BYTES_MAX = 256 << 20  # a glimpse of the largest pool

AnyCommand = (
    port.Submit
    | port.FitRequest
    | port.StopTurn
    | port.Cancel
    | port.SetTenants
    | port.Resize
    | port.SetTarget
    | port.ReadMemory
    | port.FinishTransfer
    | port.FindPin
    | port.DropPin
    | port.RenewPin
    | port.Unpin
    | port.CheckTenant
    | port.RestoreSession
    | port.ForkSession
    | port.ForgetSession
    | port.RenewSession
    | port.SuspendSession
    | port.FindSlots
    | port.LoseBlocks
    | port.ConfirmSuspended
    | port.AbandonSuspension
    | port.ViewStats
    | port.ViewLoad
    | port.ViewKv
    | port.ViewGlimpse
    | port.ViewRequests
    | port.ViewPins
    | port.ViewSessions
)

_VALUE, _REFUSAL = bytes([VERSION, 0]), bytes([VERSION, 1])


class Refusal(msgspec.Struct, frozen=True):
    """An OctavoError, as data."""

    kind: str  # the name of its class
    text: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: OctavoError) -> Refusal:
        """A class outside the error tree is encoded as the nearest class in it."""
        kind = next(base for base in type(error).__mro__ if getattr(errors, base.__name__, None) is base)
        if isinstance(error, InvalidRequest):
            return cls(kind.__name__, str(error), error.param, error.code)
        if isinstance(error, QueueFull):
            return cls(kind.__name__, str(error), retry_after_s=error.retry_after_s)
        return cls(kind.__name__, str(error))

    def to_error(self) -> OctavoError:
        """The error; a class outside the tree becomes an OctavoError."""
        kind = getattr(errors, self.kind, OctavoError)
        if not (isinstance(kind, type) and issubclass(kind, OctavoError)):
            return OctavoError(self.text)
        if issubclass(kind, InvalidRequest):
            return kind(self.text, param=self.param, code=self.code)
        if issubclass(kind, QueueFull) and self.retry_after_s is not None:
            return kind(self.text, retry_after_s=self.retry_after_s)
        return kind(self.text)


def encode_command(command: Command[ReplyT]) -> bytes:
    """Raises InvalidRequest where it has more than `COMMAND_BYTES_MAX`."""
    data = _VALUE + msgspec.msgpack.encode(command)
    _check_length("command", data, COMMAND_BYTES_MAX)
    return data


def decode_command(data: bytes) -> AnyCommand:
    """Raises InvalidRequest for what is none, and as the values in it do."""
    _check_length("command", data, COMMAND_BYTES_MAX)
    _check_head("command", data, (_VALUE,))
    return cast(AnyCommand, _decode("command", data, AnyCommand))


def encode_reply(reply: object) -> bytes:
    """A reply, or the OctavoError in its place. Raises InvalidRequest for more than `REPLY_BYTES_MAX`."""
    if isinstance(reply, OctavoError):
        data = _REFUSAL + msgspec.msgpack.encode(Refusal.of(reply))
    else:
        data = _VALUE + msgspec.msgpack.encode(reply)
    _check_length("reply", data, REPLY_BYTES_MAX)
    return data


def decode_reply(command: type[Command[ReplyT]], data: bytes) -> ReplyT:
    """The reply to a command of this kind. Raises as `decode_reply_as`."""
    return cast(ReplyT, decode_reply_as(reply_type(command), data))


def decode_reply_as(kind: object, data: bytes) -> object:
    """The reply of that type. Raises the error that was encoded in its place, or InvalidRequest for what is
    no such reply."""
    _check_length("reply", data, REPLY_BYTES_MAX)
    _check_head("reply", data, (_VALUE, _REFUSAL))
    if data.startswith(_REFUSAL):
        raise cast(Refusal, _decode("reply", data, Refusal)).to_error()
    return _decode("reply", data, kind)


@cache
def reply_type(command: type[Command[ReplyT]]) -> object:
    """The type argument of `Command[ReplyT]`."""
    [base] = command.__orig_bases__  # type: ignore[attr-defined]
    [reply] = get_args(base)
    return reply


@cache
def _decoder(kind: object) -> msgspec.msgpack.Decoder[object]:
    return msgspec.msgpack.Decoder(kind)


def _decode(what: str, data: bytes, kind: object) -> object:
    try:
        return _decoder(kind).decode(memoryview(data)[len(_VALUE) :])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"these bytes are no {what}: {error}") from None


def _check_length(what: str, data: bytes, most: int) -> None:
    if len(data) > most:
        raise InvalidRequest(f"a {what} of {len(data):,} bytes; allowed: {most:,}")


def _check_head(what: str, data: bytes, allowed: tuple[bytes, ...]) -> None:
    if not data.startswith(allowed):
        raise InvalidRequest(
            f"the {what} begins with bytes {data[:2].hex(' ') or 'none'}; allowed: "
            f"{' or '.join(head.hex(' ') for head in allowed)} (version {VERSION})"
        )
