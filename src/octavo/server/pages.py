"""Which web pages may ask, by the Origin header that their browser sends.

    the server's own pages        the same scheme, host and port
    pages that the operator named (--allowed-origin)
    pages of this machine         without keys and on loopback: http://localhost:*, app://, tauri:// and
                                  vscode-webview://, as Ollama lets them in; for routes of inference alone

A page of this machine must have asked by a preflight: what a browser sends without one (a form, text/plain)
is refused. `Origin: null` is no page's name.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from octavo.server.hosts import hostname, is_loopback
from octavo.server.settings import ServerSettings

LOCAL_PAGES: Final = (
    r"https?://(?:(?:[a-z0-9-]+\.)?localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?"
    r"|(?:app|tauri|vscode-webview|vscode-file)://[A-Za-z0-9._-]{1,200}"
)
CONTAINERS_HOST: Final = "host.docker.internal"  # this machine, for a container on it
_LOCAL_PAGE = re.compile(LOCAL_PAGES)
_INFERENCE: Final = frozenset(
    {
        *(("GET", path) for path in ("/v1/models", "/api/tags", "/api/ps", "/api/version")),
        *(("POST", path) for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")),
        *(("POST", path) for path in ("/v1/messages", "/v1/messages/count_tokens")),
        *(("POST", path) for path in ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings")),
        *(("POST", path) for path in ("/api/show", "/tokenize", "/detokenize")),
    }
)
_PORTS: Final = {"http": "80", "https": "443"}


class Pages:
    """The pages that may ask one server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._named = frozenset(origin.lower() for origin in settings.allowed_origins)
        self._behind_proxies = frozenset(hostname(name) or "" for name in settings.allowed_hosts)
        has_keys = bool(settings.keys) or settings.roster is not None
        self._lets_local_in = not has_keys and is_loopback(settings.host)

    def lets_local_in(self, method: str, path: str) -> bool:
        """Whether pages of this machine may ask for that."""
        return self._lets_local_in and (method, path) in _INFERENCE

    def may_ask(self, origin: str, scope: Scope, method: str) -> bool:
        """Whether the page may ask for the scope's path by this method, after a preflight."""
        if origin.lower() in self._named or "*" in self._named:
            return True
        if self.lets_local_in(method, scope["path"]) and _LOCAL_PAGE.fullmatch(origin):
            return True
        return self._is_own(origin, scope)

    def may_send(self, origin: str, scope: Scope) -> bool:
        """Whether this very request of the page may be answered."""
        if not self.may_ask(origin, scope, scope["method"]):
            return False
        is_trusted = origin.lower() in self._named or "*" in self._named or self._is_own(origin, scope)
        return is_trusted or scope["method"] == "GET" or _is_json(Headers(scope=scope))

    def _is_own(self, origin: str, scope: Scope) -> bool:
        """Whether the page is the server's own. Behind a proxy that speaks TLS, the host is named by
        --allowed-host."""
        page_scheme, _, page = origin.lower().partition("://")
        host, scheme = Headers(scope=scope).get("host", "").lower(), str(scope.get("scheme", "http"))
        if page_scheme not in _PORTS or hostname(page) is None:
            return False
        if page_scheme != scheme and hostname(host) not in self._behind_proxies:
            return False
        return _with_port(page, page_scheme) == _with_port(host, page_scheme)


def _with_port(host: str, scheme: str) -> str:
    return host if re.search(r":[0-9]{1,5}\Z", host) else f"{host}:{_PORTS[scheme]}"


def _is_json(headers: Headers) -> bool:
    """Whether a browser sends this only after a preflight."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
