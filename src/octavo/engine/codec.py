"""The commands that another process or a recording may contain, and the encoding of their replies.

    [ version | kind | msgpack ]        kind: 0 a reply, 1 a refusal

A reply is bounded before it is decoded, and decoding checks every type. So any bytes make a valid reply or an
InvalidRequest.
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


def encode_reply(reply: object) -> bytes:
    """A reply, or the OctavoError in its place. Raises InvalidRequest for more than `REPLY_BYTES_MAX`."""
    if isinstance(reply, OctavoError):
        data = _REFUSAL + msgspec.msgpack.encode(Refusal.of(reply))
    else:
        data = _VALUE + msgspec.msgpack.encode(reply)
    _check_length(data)
    return data


def decode_reply_as(kind: object, data: bytes) -> object:
    """The reply of that type. Raises the error that was encoded in its place, or InvalidRequest for what is
    no such reply."""
    _check_length(data)
    if not data.startswith((_VALUE, _REFUSAL)):
        raise InvalidRequest(
            f"the reply begins with bytes {data[:2].hex(' ') or 'none'}; allowed: {_VALUE.hex(' ')} or "
            f"{_REFUSAL.hex(' ')} (version {VERSION})"
        )
    is_refusal = data.startswith(_REFUSAL)
    try:
        reply = _decoder(Refusal if is_refusal else kind).decode(memoryview(data)[len(_VALUE) :])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"these bytes are no reply: {error}") from None
    if is_refusal:
        raise cast(Refusal, reply).to_error()
    return reply


@cache
def reply_type(command: type[Command[ReplyT]]) -> object:
    """The type argument of `Command[ReplyT]`."""
    [base] = command.__orig_bases__  # type: ignore[attr-defined]
    [reply] = get_args(base)
    return reply


@cache
def _decoder(kind: object) -> msgspec.msgpack.Decoder[object]:
    return msgspec.msgpack.Decoder(kind)


def _check_length(data: bytes) -> None:
    if len(data) > REPLY_BYTES_MAX:
        raise InvalidRequest(f"a reply of {len(data):,} bytes; allowed: {REPLY_BYTES_MAX:,}")
