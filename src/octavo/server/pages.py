"""Which web pages may send requests, by the Origin header of their browser.

    the server's own pages        the same scheme, host and port
    pages that the operator named (--allowed-origin)
    local pages                   without keys and on loopback: http://localhost:*, app://, tauri:// and
                                  vscode-webview://, as in Ollama; for inference routes only

A local page needs a preflight: requests that browsers send without one (a form, text/plain) are refused.
`Origin: null` matches no page.
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
CONTAINERS_HOST: Final = "host.docker.internal"  # a container's name for its host
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
    """The pages that may send requests to one server."""

    def __init__(self, settings: ServerSettings) -> None:
        self._named = frozenset(origin.lower() for origin in settings.allowed_origins)
        self._behind_proxies = frozenset(hostname(name) or "" for name in settings.allowed_hosts)
        has_keys = bool(settings.keys) or settings.roster is not None
        self._allows_local = not has_keys and is_loopback(settings.host)

    def allows_local(self, method: str, path: str) -> bool:
        """Whether local pages may use this route."""
        return self._allows_local and (method, path) in _INFERENCE

    def allows(self, origin: str, scope: Scope, method: str) -> bool:
        """Whether the page may send this method to the scope's path, after a preflight."""
        if origin.lower() in self._named or "*" in self._named:
            return True
        if self.allows_local(method, scope["path"]) and _LOCAL_PAGE.fullmatch(origin):
            return True
        return self._is_own(origin, scope)

    def allows_request(self, origin: str, scope: Scope) -> bool:
        """Whether this request of the page may be answered."""
        if not self.allows(origin, scope, scope["method"]):
            return False
        is_trusted = origin.lower() in self._named or "*" in self._named or self._is_own(origin, scope)
        return is_trusted or scope["method"] == "GET" or _is_json(Headers(scope=scope))

    def _is_own(self, origin: str, scope: Scope) -> bool:
        """Whether the page is the server's own. Behind a TLS proxy, the host must be an --allowed-host."""
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
    """Whether browsers send this content type only after a preflight."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
