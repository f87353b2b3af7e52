"""The web page: the files of `ui/`, served without a build step or external resources.

The files are public, so they need no key; the page fetches its data with the user's key. The content security
policy allows no scripts but these files, so that text from clients and tenants cannot run as script.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib import resources
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from octavo.server.errors import HttpRefusal
from octavo.server.generation import Edge

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
        ".txt": "text/plain; charset=utf-8",
    }
)
_HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-cache",  # browsers revalidate each time: a new version shows at once
        "Vary": "Accept-Encoding",
    }
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page, plain and gzipped."""

    plain: bytes
    packed: bytes
    media_type: str
    tag: str


def page_file(name: str) -> PageFile | None:
    """The page's file of that name; third-party files are in vendor/."""
    return _files().get(name)


async def front(edge: Edge, request: Request) -> Response:
    """GET /: redirects browsers to the page; for Ollama's clients, its status text."""
    if request.method == "HEAD" or "text/html" not in request.headers.get("accept", ""):
        return Response("Ollama is running", media_type="text/plain", headers={"Vary": "Accept"})
    return RedirectResponse("/ui", status_code=HTTPStatus.TEMPORARY_REDIRECT, headers={"Vary": "Accept"})


async def page(edge: Edge, request: Request) -> Response:
    """GET /ui."""
    return _answer("index.html", request)


async def asset(edge: Edge, request: Request) -> Response:
    """GET /ui/{name}: scripts, style and licences."""
    return _answer(request.path_params["name"], request)


def _answer(name: str, request: Request) -> Response:
    file = page_file(name)
    if file is None:
        raise HttpRefusal(
            HTTPStatus.NOT_FOUND, f"the page has no file {name[:80]!r}; it begins at /ui", code="not_found"
        )
    headers = dict(_HEADERS) | {"ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.packed, headers=headers, media_type=file.media_type)
    return Response(file.plain, headers=headers, media_type=file.media_type)


@cache
def _files() -> dict[str, PageFile]:
    """Every file of the page by name, so that a client's path never reaches the file system."""
    found = {}
    for folder in ("", "vendor/"):
        for entry in resources.files("octavo.server").joinpath(f"ui/{folder}").iterdir():
            media_type = next((_TYPES[end] for end in _TYPES if entry.name.endswith(end)), None)
            if media_type is not None:
                data = entry.read_bytes()
                tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
                found[folder + entry.name] = PageFile(data, gzip.compress(data, 9, mtime=0), media_type, tag)
    return found
