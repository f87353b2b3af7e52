"""Authentication: by key if there are keys, else by checks of Host and Origin that browsers cannot bypass.

With tenants the key identifies the tenant. A tenant that is no operator may call only routes with
`Access.TENANT`.

A web page can make its visitor's browser send requests to loopback, directly or by pointing its own name at
127.0.0.1 (DNS rebinding). Such requests have the page's name in Host or Origin. Without keys, foreign names
are therefore refused, except those that the operator lists and, for inference, local pages (pages.py). A
numeric address in Host is safe: it cannot be rebound. `/health` and `/ping` are open for probes and reveal
nothing.
"""

from __future__ import annotations

import hmac
import logging
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.kv_events.identity import Identity
from octavo.server.dialects.error_shapes import error_response
from octavo.server.errors import BAD_KEY, WANTS_KEY, HttpRefusal
from octavo.server.hosts import hostname, is_address
from octavo.server.pages import CONTAINERS_HOST, Pages
from octavo.server.replica import KEY_HEADER
from octavo.server.route import Access
from octavo.server.routes import match_of, match_replica_route, tenant_areas
from octavo.server.settings import ServerSettings
from octavo.server.tenant import set_auth_context
from octavo.server.tenant_registry import TenantRegistry
from octavo.tenants import digest_of

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})

_log = logging.getLogger("octavo.server")


class Guard:
    """ASGI middleware that passes a request on, or answers 401 or 403, on every route."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, identity: Identity) -> None:
        self._app = app
        self._identity = identity
        self._roster = settings.roster
        self._digests = tuple(digest_of(key) for key in settings.keys)
        listed = {hostname(name) or "" for name in settings.allowed_hosts}
        self._names = (_LOOPBACK | {settings.host.lower()} | listed) - _WILDCARDS
        self._pages = Pages(settings)
        self._any_address = settings.host in _WILDCARDS
        self._is_replica = settings.replica is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal_of(scope)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        client = scope.get("client") or ("an unknown address", 0)
        _log.warning("refused: %s to %s: %s", client[0], scope["path"][:100], refusal.code)
        await error_response(refusal, scope)(scope, receive, send)

    def _refusal_of(self, scope: Scope) -> HttpRefusal | None:
        if scope["type"] != "http":
            return _no_websocket()
        if match_of(scope).access is Access.OPEN:
            return None
        if self._roster is not None:
            return _authenticate_tenant(scope, self._roster, self._identity)
        return self.refusal(scope)

    def refusal(self, scope: Scope) -> HttpRefusal | None:
        """The refusal of a request, or None, on a server without tenants."""
        headers = Headers(scope=scope)
        if self._digests:
            return None if self._has_key(headers) else _bad_key()
        if self._is_replica:
            return None  # the cluster's key was checked; no page has it
        host = hostname(headers.get("host", ""))
        is_container = host == CONTAINERS_HOST and self._pages.allows_local(scope["method"], scope["path"])
        if not is_container and not self._is_ours(host):
            return _foreign("Host", headers.get("host", ""))
        origin = headers.get("origin")
        return (
            None
            if origin is None or self._pages.allows_request(origin, scope)
            else _foreign("Origin", origin)
        )

    def _has_key(self, headers: Headers) -> bool:
        """Whether a key of the request is known; compares all keys, each in constant time."""
        matches = [
            hmac.compare_digest(digest_of(given), known)
            for given in _keys_of(headers)
            for known in self._digests
        ]
        return any(matches)

    def _is_ours(self, host: str | None) -> bool:
        if host is None:
            return False
        return host in self._names or (self._any_address and is_address(host))


class ClusterGuard:
    """ASGI middleware that answers 403 to requests without the cluster's key, probes included."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._has_key(scope):
            if scope["type"] == "http":
                match_replica_route(scope)
            await self._app(scope, receive, send)
            return
        refusal = HttpRefusal(
            HTTPStatus.FORBIDDEN,
            f"this is one replica of a cluster, and the header {KEY_HEADER} has not the cluster's key; "
            "allowed: requests to the cluster's own address",
            code="cluster_key",
        )
        await error_response(refusal, scope)(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get(KEY_HEADER, "")
        return hmac.compare_digest(given.encode(errors="replace"), self._key)


def _authenticate_tenant(scope: Scope, roster: TenantRegistry, identity: Identity) -> HttpRefusal | None:
    """Set the tenant in the scope and return None, or return the refusal."""
    found = [roster.tenants.of_key(key) for key in _keys_of(Headers(scope=scope))]
    tenant = next((one for one in found if one is not None), None)
    if tenant is None:
        return _bad_key()
    if not tenant.operator and match_of(scope).access is not Access.TENANT:
        return HttpRefusal(
            HTTPStatus.FORBIDDEN,
            f"{scope['method']} {scope['path'][:100]} is not for this key; allowed: "
            f"{', '.join(tenant_areas())}; all else needs an operator's key",
            code="operators_only",
        )
    set_auth_context(scope, tenant, identity.tenant_tag(tenant.name))
    return None


def _keys_of(headers: Headers) -> list[str]:
    """The keys of a request: from the Authorization header, then from x-api-key."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    bearer = given.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, headers.get("x-api-key", "").strip()) if key]


def _bad_key() -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.UNAUTHORIZED,
        "this server needs a valid API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
        code=BAD_KEY,
        headers=WANTS_KEY,
    )


def _foreign(header: str, given: str) -> HttpRefusal:
    option = "--allowed-host" if header == "Host" else "--allowed-origin"
    return HttpRefusal(
        HTTPStatus.FORBIDDEN,
        f"the {header} header names {given[:100]!r}; without API keys only this machine's own names are "
        f"served (start the server with {option} to name others, or with --api-key)",
        code="foreign_host",
    )


def _no_websocket() -> HttpRefusal:
    return HttpRefusal(HTTPStatus.FORBIDDEN, "this server speaks no WebSocket", code="no_websocket")
