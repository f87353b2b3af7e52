"""Streams an answer from a replica to its client, and ends it in order when the replica is lost.

    replica ... event | event | ev            the connection ends here
    client  ... event | event | error event   the partial event is dropped, so the client can parse the error

Only whole events of a stream are passed on. Any other answer that is cut closes its connection, so that no
client takes it for complete. A client that disconnects closes the connection to the replica, which cancels
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
_EVENT_BYTES_MAX = 4 << 20  # of an event that is buffered until it is whole
_WHOLE_BYTES_MAX = 64 << 20
_NUMBERED = b'"sequence_number":'
_NUMBER = re.compile(rb'"sequence_number":(\d+)')
_KEEP_ALIVES = (b":", b"event: ping\n", b" ")  # of each API
_LOST = (aiohttp.ClientError, OSError, asyncio.IncompleteReadError)

REPLICA_HEADER = "x-octavo-replica"

_log = logging.getLogger("octavo.cluster")


class RelayedAnswer(Response):
    """The answer of one replica. `stack`: what its end releases. `on_cut` is called if the replica is lost
    within the answer."""

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
        self._is_between = True  # the bytes that were passed on end with an event
        self._last = b""  # the last numbered events that were passed on
        self._first = b""  # read by `begin`, not passed on yet

    def stop(self, why: str) -> None:
        """End the answer as if its replica was lost, with this text for its client."""
        self._why = why
        self._received.close()

    async def begin(self) -> bool:
        """Wait for the first bytes of a stream: until then another replica may answer. A keep-alive counts,
        as clients must get it. Returns whether the bytes are more than a keep-alive. Raises ReplicaLost."""
        if not self._boundary:
            return False
        try:
            self._first = await self._next()
        except BaseException as error:
            await self._end()
            if isinstance(error, _Cut):
                raise ReplicaLost(self.replica, str(error)) from error
            raise
        return not self._first.startswith(_KEEP_ALIVES)

    async def whole(self) -> Response:
        """Read the rest, and return an answer that no longer needs its replica. Raises EngineStopped."""
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
        if error is not None and not isinstance(error, OSError):  # OSError: the client disconnected
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
                return  # the missing end makes the server close the connection
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
        """The next bytes; empty at the end. Raises _Cut."""
        try:
            return await self._received.content.readany()
        except _LOST as error:
            raise _Cut(str(error)) from error

    def _whole_events(self, held: bytes, data: bytes) -> tuple[bytes, bytes]:
        """Split into bytes to pass on, up to the end of an event, and bytes to hold back. An event that is
        too large to hold is passed on as it comes."""
        data = held + data if held else data
        stop = data.rfind(self._boundary, max(0, len(held) - 1))
        if stop >= 0:
            end, self._is_between = stop + len(self._boundary), True
            if _NUMBERED in data[:end]:
                self._last = data[:end]
            return data[:end], data[end:]
        if data.isspace():  # a keep-alive
            return data, b""
        if self._is_between and len(data) <= _EVENT_BYTES_MAX:
            return b"", data
        self._is_between = False
        return data, b""

    async def _end(self) -> None:
        self._received.close()  # an unfinished request is cancelled at its replica
        await self.stack.aclose()


class _Cut(Exception):
    """The replica was lost before the answer's end."""


async def read_bounded(received: aiohttp.ClientResponse) -> bytes:
    """Read a whole body. Raises EngineStopped if it exceeds 64 MiB."""
    pieces, size = list[bytes](), 0
    while piece := await received.content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > _WHOLE_BYTES_MAX:
            raise EngineStopped(f"a replica's answer has more than {_WHOLE_BYTES_MAX:,} bytes")
    return b"".join(pieces)


def cut_event(scope: Scope, error: EngineStopped, last: bytes) -> bytes:
    """The error event of the path's API, which ends a stream. `last`: the last numbered events that were
    sent."""
    path = scope["path"]
    if is_anthropic_path(path):
        return named_event(anthropic_error(error, request_id_of(scope)))
    if path.startswith("/api/"):
        return encode_json(ollama_error(error)) + b"\n"
    if not path.startswith("/v1/responses"):
        return event(error_body(error)) + DONE
    fields = error_body(error)["error"]
    assert isinstance(fields, dict)
    numbers = _NUMBER.findall(last)
    numbered: JsonObject = {"sequence_number": int(numbers[-1]) + 1 if numbers else 0}
    return named_event(
        {"type": "error"} | {name: fields[name] for name in ("code", "message", "param")} | numbered
    )
