"""The one driver of every answer that is text: as a stream, or whole.

    running.steps() --> codec.step() --> events --> framing.encode --> bytes      a stream
                                 +-----> codec.whole()                            else

A codec is the shape that one API gives to an answer. It makes the whole answer of the same steps as the
events of a stream, so the deltas of a stream join to the whole. The driver knows no API, and no engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import OctavoError
from octavo.server.errors import JsonObject, json_response
from octavo.server.generation import until_disconnect
from octavo.server.sse import KEEP_ALIVE, EventStream

StepT_co = TypeVar("StepT_co", covariant=True)
StepT_contra = TypeVar("StepT_contra", contravariant=True)
StepT = TypeVar("StepT")


@dataclass(frozen=True, slots=True)
class Framing:
    """How events become the bytes of a stream. `keep_alive` is what a reader of `media_type` skips."""

    encode: Callable[[JsonObject], bytes]
    last: bytes = b""  # behind all events
    keep_alive: bytes = KEEP_ALIVE
    media_type: str = "text/event-stream"


class Running(Protocol[StepT_co]):
    """An answer that is being made."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""

    def steps(self) -> AsyncGenerator[StepT_co, None]:
        """What each delta says, as it comes; raises OctavoError for an answer that fails."""

    def cancel(self) -> None:
        """Stop what still runs. The driver calls it once, in the end, whatever happened."""


class AnswerCodec(Protocol[StepT_contra]):
    """One answer in the shape of one API. What a method returns is complete before any of it is sent."""

    framing: Framing

    def begin(self) -> Sequence[JsonObject]:
        """The events before the first step: none, where an API has nothing to say yet."""
        return ()

    def step(self, step: StepT_contra) -> Sequence[JsonObject]:
        """The events of a step."""

    def end(self) -> Sequence[JsonObject]:
        """The events behind the last step: none, where the last step has said all."""
        return ()

    def error(self, error: OctavoError) -> Sequence[JsonObject]:
        """The events that end a stream with an error, after `begin` and before `end`."""

    def whole(self) -> JsonObject:
        """The complete answer, after `end`."""


async def answer(
    request: Request, running: Running[StepT], codec: AnswerCodec[StepT], *, is_stream: bool
) -> Response:
    """The response; cancels what runs when the client leaves. A whole answer raises what `steps` raises, and
    ClientGone."""
    if is_stream:
        framing = codec.framing
        return EventStream(
            _frames(running, codec),
            running.cancel,
            running.headers,
            keep_alive=framing.keep_alive,
            media_type=framing.media_type,
        )
    try:
        await until_disconnect(request, _read_all(running, codec))
    finally:
        running.cancel()
    return json_response(codec.whole(), headers=running.headers)


async def _frames(running: Running[StepT], codec: AnswerCodec[StepT]) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream, one event each; an error ends it in order."""
    framing = codec.framing
    try:
        async with aclosing(running.steps()) as steps:
            for event in codec.begin():
                yield framing.encode(event)
            async for step in steps:
                for event in codec.step(step):
                    yield framing.encode(event)
        last = codec.end()
    except OctavoError as error:
        last = codec.error(error)
    for event in last:
        yield framing.encode(event)
    if framing.last:
        yield framing.last


async def _read_all(running: Running[StepT], codec: AnswerCodec[StepT]) -> None:
    codec.begin()
    async with aclosing(running.steps()) as steps:
        async for step in steps:
            codec.step(step)
    codec.end()
