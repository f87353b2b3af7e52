"""The driver of every text answer, streamed or whole.

    source.steps() --> codec.step() --> events --> framing.encode --> bytes      a stream
                                +-----> codec.whole()                            a whole answer

A codec writes an answer in the shape of one API. It builds the whole answer from the same steps as the events
of a stream, so a stream's deltas add up to the whole answer. The driver depends on no API and no engine.
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
    """How events become the bytes of a stream. A reader of `media_type` skips `keep_alive`."""

    encode: Callable[[JsonObject], bytes]
    last: bytes = b""  # after all events
    keep_alive: bytes = KEEP_ALIVE
    media_type: str = "text/event-stream"


class AnswerSource(Protocol[StepT_co]):
    """An answer that is being generated."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""

    def steps(self) -> AsyncGenerator[StepT_co, None]:
        """A step for each delta, as it arrives; raises OctavoError for an answer that fails."""

    def cancel(self) -> None:
        """Stop what still runs. The driver calls it once, at the end, in every case."""


class AnswerCodec(Protocol[StepT_contra]):
    """One answer in the shape of one API. A method's events are complete before the first of them is sent."""

    framing: Framing

    def begin(self) -> Sequence[JsonObject]:
        """The events before the first step."""
        return ()

    def step(self, step: StepT_contra) -> Sequence[JsonObject]:
        """The events of a step."""

    def end(self) -> Sequence[JsonObject]:
        """The events after the last step."""
        return ()

    def error(self, error: OctavoError) -> Sequence[JsonObject]:
        """The events that end a stream with an error; called after `begin`, in place of `end`."""

    def whole(self) -> JsonObject:
        """The whole answer; called after `end`."""


async def answer(
    request: Request, source: AnswerSource[StepT], codec: AnswerCodec[StepT], *, is_stream: bool
) -> Response:
    """The response. Cancels the source when the client disconnects. A whole answer raises ClientGone, and
    what `steps` raises."""
    if is_stream:
        framing = codec.framing
        return EventStream(
            _frames(source, codec),
            source.cancel,
            source.headers,
            keep_alive=framing.keep_alive,
            media_type=framing.media_type,
        )
    try:
        await until_disconnect(request, _read_all(source, codec))
    finally:
        source.cancel()
    return json_response(codec.whole(), headers=source.headers)


async def _frames(source: AnswerSource[StepT], codec: AnswerCodec[StepT]) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream, an event at a time; an error ends it with the codec's error events."""
    framing = codec.framing
    try:
        async with aclosing(source.steps()) as steps:
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


async def _read_all(source: AnswerSource[StepT], codec: AnswerCodec[StepT]) -> None:
    codec.begin()
    async with aclosing(source.steps()) as steps:
        async for step in steps:
            codec.step(step)
    codec.end()
