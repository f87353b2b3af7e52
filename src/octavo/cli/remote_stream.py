"""A running server's streams, read from the command line: bytes as they come, and errors in its own words.

What the bytes mean, `top` (frames) and `server_answerer` (server-sent events) know. Who leaves the iteration
early closes it (`contextlib.aclosing`): that closes the connection, and so ends what runs for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.cli.remote import address_of, cannot_be_sent, headers_with, no_answer, words_of
from octavo.errors import OctavoError, RequestFailed, RequestTooLarge

if TYPE_CHECKING:
    import httpx2

_SILENT_S = 60.0  # then the connection is given up: the server says something every 15 s at least
_CONNECT_S = 10.0
_TOO_LARGE = ("context_length_exceeded", "kv_pool_exceeded", "kv_quota_exceeded")


class KeyRefused(RequestFailed):
    """The server does not take the key, so there is no sense in asking again."""


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A running server as the command line names it; `api_key` "": none."""

    url: str
    api_key: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a stream is asked for, and what comes then; `content` is that in a word, for errors."""

    path: str
    media_type: str
    content: str
    body: Mapping[str, object] | None = None  # None: it is a GET


async def stream_of(server: RemoteServer, wish: Wish) -> AsyncGenerator[bytes, None]:
    """The stream's bytes as they come. Raises RequestFailed with the server's words (KeyRefused where they
    are about the key, RequestTooLarge where about the context), or with what is wrong on the way to it."""
    import httpx2

    method = "GET" if wish.body is None else "POST"
    timeout, has_begun = httpx2.Timeout(_CONNECT_S, read=_SILENT_S), False
    try:
        async with (
            httpx2.AsyncClient(headers=headers_with(server.api_key), timeout=timeout) as client,
            client.stream(method, address_of(server.url, wish.path), json=wish.body) as answer,
        ):
            if answer.status_code >= 400:
                await answer.aread()
                raise refusal_of(server, wish, answer)
            if not answer.headers.get("content-type", "").startswith(wish.media_type):
                raise _something_else(server, wish, answer)
            has_begun = True
            async for data in answer.aiter_bytes():
                yield data
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        if not has_begun:
            raise no_answer(server.url, error) from None
        why = str(error) or type(error).__name__
        raise RequestFailed(f"{server.url} went away in the middle: {why}") from None
    except UnicodeError:
        raise cannot_be_sent() from None


def refusal_of(server: RemoteServer, wish: Wish, answer: httpx2.Response) -> OctavoError:
    """In the server's words, where it has some."""
    try:
        told = answer.json()
    except ValueError:
        told = None
    if not words_of(told):
        return _something_else(server, wish, answer)
    return KeyRefused(words_of(told)) if answer.status_code in (401, 403) else error_told(told)


def error_told(told: Mapping[str, object]) -> OctavoError:
    """The error that a server's JSON tells, in its words."""
    error, words = told["error"], words_of(told) or "the server tells an error without words"
    code = error.get("code") if isinstance(error, dict) else None
    return RequestTooLarge(words) if code in _TOO_LARGE else RequestFailed(words)


def _something_else(server: RemoteServer, wish: Wish, answer: httpx2.Response) -> RequestFailed:
    asked = address_of(server.url, wish.path)
    return RequestFailed(f"{asked} answered {answer.status_code} without {wish.content}; is it Octavo?")
