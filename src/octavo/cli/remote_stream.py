"""Streams of a running server, for the command line: their bytes, and the server's error messages.

`top` parses frames, `server_answerer` server-sent events. A caller that stops the iteration early must close
it (`contextlib.aclosing`): that closes the connection, so that the server cancels the request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.cli.remote import address_of, cannot_be_sent, error_message, headers_with, no_answer
from octavo.errors import OctavoError, RequestFailed, RequestTooLarge

if TYPE_CHECKING:
    import httpx2

_READ_TIMEOUT_S = 60.0  # the server sends something at least every 15 s
_CONNECT_S = 10.0
_TOO_LARGE = ("context_length_exceeded", "kv_pool_exceeded", "kv_quota_exceeded")


class KeyRefused(RequestFailed):
    """The server refuses the key: a retry would not help."""


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A running server; `api_key` "": none."""

    url: str
    api_key: str = ""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """The request for a stream, and the expected answer; `content` describes it in error messages."""

    path: str
    media_type: str
    content: str
    body: Mapping[str, object] | None = None  # None: a GET


async def stream_of(server: RemoteServer, request: StreamRequest) -> AsyncGenerator[bytes, None]:
    """The stream's bytes as they arrive. Raises RequestFailed with the server's message (KeyRefused for a
    wrong key, RequestTooLarge for a prompt that does not fit), or for a failed connection."""
    import httpx2

    method = "GET" if request.body is None else "POST"
    timeout, has_begun = httpx2.Timeout(_CONNECT_S, read=_READ_TIMEOUT_S), False
    try:
        async with (
            httpx2.AsyncClient(headers=headers_with(server.api_key), timeout=timeout) as client,
            client.stream(method, address_of(server.url, request.path), json=request.body) as answer,
        ):
            if answer.status_code >= 400:
                await answer.aread()
                raise error_of_answer(server, request, answer)
            if not answer.headers.get("content-type", "").startswith(request.media_type):
                raise _unexpected_answer(server, request, answer)
            has_begun = True
            async for data in answer.aiter_bytes():
                yield data
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        if not has_begun:
            raise no_answer(server.url, error) from None
        why = str(error) or type(error).__name__
        raise RequestFailed(f"the connection to {server.url} broke: {why}") from None
    except UnicodeError:
        raise cannot_be_sent() from None


def error_of_answer(server: RemoteServer, request: StreamRequest, answer: httpx2.Response) -> OctavoError:
    """The error of a failed request, with the server's message if it sent one."""
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not error_message(found):
        return _unexpected_answer(server, request, answer)
    return KeyRefused(error_message(found)) if answer.status_code in (401, 403) else error_from_json(found)


def error_from_json(answer: Mapping[str, object]) -> OctavoError:
    """The error in a server's JSON."""
    error, message = answer["error"], error_message(answer) or "the server sent an error without a message"
    code = error.get("code") if isinstance(error, dict) else None
    return RequestTooLarge(message) if code in _TOO_LARGE else RequestFailed(message)


def _unexpected_answer(
    server: RemoteServer, request: StreamRequest, answer: httpx2.Response
) -> RequestFailed:
    address = address_of(server.url, request.path)
    return RequestFailed(f"{address} answered {answer.status_code} without {request.content}; is it Octavo?")
