"""An answer on its way from a replica to its client: bytes as they come, and an orderly end where the replica
is lost.

    replica ... event | event | ev            the connection ends here
    client  ... event | event | error event   what is not whole is kept back, so the client can read the error

Of a stream of events only whole ones are passed on. Any other answer that is cut ends its connection, so that
no client takes it for a whole one. A client that leaves closes the connection to the replica, which cancels
the request there.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import AsyncExitStack

import aiohttp
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.cluster.fleet import Replica
from octavo.cluster.upstream import ReplicaLost, answer_headers
from octavo.errors import EngineStopped
from octavo.server.access import REPLICA_KEY
from octavo.server.dialects.error_shapes import (
    anthropic_error,
    is_anthropic_path,
    ollama_error,
    request_id_of,
)
from octavo.server.errors import JsonObject, error_body
from octavo.server.sse import DONE, encode_json, event, named_event, wait_for_disconnect

_BOUNDARIES = {"text/event-stream": b"\n\n", "application/x-ndjson": b"\n"}
_EVENT_BYTES_MAX = 4 << 20  # of one event that is kept back until it is whole
_WHOLE_BYTES_MAX = 64 << 20
_NUMBERED = b'"sequence_number":'
_NUMBER = re.compile(rb'"sequence_number":(\d+)')
_SIGNS_OF_LIFE = (b":", b"event: ping\n", b" ")  # of each API
_LOST = (aiohttp.ClientError, OSError, asyncio.IncompleteReadError)

REPLICA_HEADER = "x-octavo-replica"

_log = logging.getLogger("octavo.cluster")


class PassedAnswer(Response):
    """The answer of one replica. `stack`: what is let go when it has ended. `on_cut` is called where it is
    cut."""

    def __init__(
        self,
        received: aiohttp.ClientResponse,
        replica: Replica,
        on_cut: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(status_code=received.status)
        self.replica = replica
        self.raw_headers = [
            *answer_headers(received.raw_headers),
            (REPLICA_HEADER.encode(), replica.name.encode()),
        ]
        self._received = received
        self.stack = AsyncExitStack()
        self._on_cut = on_cut
        self._boundary = _BOUNDARIES.get(received.content_type, b"")
        self._why = f"{replica.name}, which made this answer, was lost before its end; send the request again"
        self._is_between = True  # two events, as far as bytes were passed on
        self._last = b""  # the events with numbers that were passed on last
        self._first = b""  # what has come and was not passed on

    def stop(self, why: str) -> None:
        """End it here, as if its replica was lost, with these words for its client."""
        self._why = why
        self._received.close()

    async def begin(self) -> bool:
        """Wait for the first bytes of a stream, before which its client has nothing of it, so that another
        replica may answer. A sign of life counts: clients must get it. Whether it is more than that. Raises
        ReplicaLost."""
        if not self._boundary:
            return False
        try:
            self._first = await self._next()
        except BaseException as error:
            await self._end()
            if isinstance(error, _Cut):
                raise ReplicaLost(self.replica, str(error)) from error
            raise
        return not self._first.startswith(_SIGNS_OF_LIFE)

    async def whole(self) -> Response:
        """The same as an answer that needs its replica no more. Raises EngineStopped."""
        try:
            body = await read_bounded(self._received)
        except _LOST as error:
            raise EngineStopped(self._why) from error
        finally:
            await self._end()
        answer = Response(body, self.status_code)
        answer.raw_headers = self.raw_headers
        return answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[REPLICA_KEY] = self.replica.name
        sender = asyncio.create_task(self._pass(scope, send))
        watcher = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sender, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sender.cancel()
            watcher.cancel()
            await asyncio.wait({sender, watcher})
            await self._end()
        error = None if sender.cancelled() else sender.exception()
        if error is not None and not isinstance(error, OSError):  # OSError: the client left while we wrote
            raise error

    async def _pass(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            await self._pass_body(send)
        except _Cut as cut:
            self._on_cut()
            _log.warning(
                "%s was lost within an answer to %s: %s", self.replica.name, scope["path"][:100], cut
            )
            if not (self._boundary and self._is_between):
                return  # without its end, by which the server closes the connection
            last = cut_event(scope, EngineStopped(self._why), self._last)
            await send({"type": "http.response.body", "body": last, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_body(self, send: Send) -> None:
        """Raises _Cut."""
        boundary, held = self._boundary, b""
        data = self._first or await self._next()
        while data:
            if boundary:
                data, held = self._whole_events(held, data)
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            data = await self._next()
        if held:
            await send({"type": "http.response.body", "body": held, "more_body": True})

    async def _next(self) -> bytes:
        """What has come since, at least a byte; nothing at the end. Raises _Cut."""
        try:
            return await self._received.content.readany()
        except _LOST as error:
            raise _Cut(str(error)) from error

    def _whole_events(self, held: bytes, data: bytes) -> tuple[bytes, bytes]:
        """What may be passed on, up to the end of an event, and what is kept back. One that is too large to
        be kept is passed on as it comes."""
        data = held + data if held else data
        stop = data.rfind(self._boundary, max(0, len(held) - 1))
        if stop >= 0:
            end, self._is_between = stop + len(self._boundary), True
            if _NUMBERED in data[:end]:
                self._last = data[:end]
            return data[:end], data[end:]
        if data.isspace():  # a sign of life
            return data, b""
        if self._is_between and len(data) <= _EVENT_BYTES_MAX:
            return b"", data
        self._is_between = False
        return data, b""

    async def _end(self) -> None:
        self._received.close()  # what is not read to its end is cancelled at its replica
        await self.stack.aclose()


class _Cut(Exception):
    """The replica was lost before the answer's end."""


async def read_bounded(received: aiohttp.ClientResponse) -> bytes:
    """A whole body. Raises EngineStopped for one that is larger than any answer of this kind."""
    pieces, size = list[bytes](), 0
    while piece := await received.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > _WHOLE_BYTES_MAX:
            raise EngineStopped(f"a replica's answer has more than {_WHOLE_BYTES_MAX:,} bytes")
    return b"".join(pieces)


def cut_event(scope: Scope, error: EngineStopped, last: bytes) -> bytes:
    """What ends a stream in the API of its path. `last`: the events that were sent last."""
    path = scope["path"]
    if is_anthropic_path(path):
        return named_event(anthropic_error(error, request_id_of(scope)))
    if path.startswith("/api/"):
        return encode_json(ollama_error(error)) + b"\n"
    if not path.startswith("/v1/responses"):
        return event(error_body(error)) + DONE
    told = error_body(error)["error"]
    assert isinstance(told, dict)
    numbers = _NUMBER.findall(last)
    numbered: JsonObject = {"sequence_number": int(numbers[-1]) + 1 if numbers else 0}
    return named_event(
        {"type": "error"} | {name: told[name] for name in ("code", "message", "param")} | numbered
    )
