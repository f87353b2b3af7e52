"""CORS: answers to browsers' preflights, and the headers that let a page read an answer.

Uses two instances of Starlette's middleware: one allows the pages that the operator named, the other allows
local pages, too. A refused preflight is logged with the flag that would allow it.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.dialects.error_shapes import error_response
from octavo.server.errors import HttpRefusal
from octavo.server.pages import LOCAL_PAGES, Pages
from octavo.server.settings import ServerSettings

_log = logging.getLogger("octavo.server")


class Preflights:
    """ASGI middleware. `app` is the guard (security.py): a preflight has no key, so it is answered here."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, methods: list[str], exposed_headers: list[str]
    ) -> None:
        self._app = app
        self._pages = Pages(settings)

        def cors(origin_regex: str | None) -> CORSMiddleware:
            return CORSMiddleware(
                app,
                allow_origins=settings.allowed_origins,
                allow_origin_regex=origin_regex,
                allow_methods=methods,
                allow_headers=["*"],
                allow_private_network=True,
                expose_headers=exposed_headers,
            )

        self._named_pages_cors = cors(None)
        self._local_pages_cors = cors(LOCAL_PAGES)  # allows the named ones, too

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin, requested = headers.get("origin"), headers.get("access-control-request-method")
        is_preflight = scope["method"] == "OPTIONS" and requested is not None
        if origin is None:
            await self._app(scope, receive, send)
            return
        method = requested if is_preflight and requested is not None else scope["method"]
        if is_preflight and not self._pages.allows(origin, scope, method):
            await self._refuse(origin, method, scope, receive, send)
            return
        allows_local = self._pages.allows_local(method, scope["path"])
        cors = self._local_pages_cors if allows_local else self._named_pages_cors
        await cors(scope, receive, send)

    async def _refuse(self, origin: str, method: str, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client") or ("an unknown address", 0)
        flag = "--allowed-origin " + (
            repr(origin[:100]) if origin != "null" else "URL, of a page with a name"
        )
        _log.warning(
            "refused: %s to %s %s from the page %r: foreign_host; %s would allow it",
            client[0],
            method[:10],
            scope["path"][:100],
            origin[:100],
            flag,
        )
        refusal = HttpRefusal(
            HTTPStatus.FORBIDDEN,
            f"the page {origin[:100]!r} may not send this request; allowed: pages that the server was "
            f"started with ({flag})",
            code="foreign_host",
        )
        await error_response(refusal, scope)(scope, receive, send)
