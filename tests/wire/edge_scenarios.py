"""What is before every route: health, keys, hosts, origins, tenants, unknown routes, and the page."""

from __future__ import annotations

from tests.server.tenants import ALICE, BOSS
from tests.wire.chat_scenarios import PATH, user
from tests.wire.exchange import Exchange, Scenario, alone, together
from tests.wire.raw_http import Header
from tests.wire.servers import KEY

_BODY = {"messages": user("yes")}
_PAGE = "https://app.example"


def bearer(key: str) -> Header:
    """The header of a key."""
    return ("Authorization", f"Bearer {key}")


def preflight(name: str, origin: str, *more: Header, path: str = PATH) -> Exchange:
    """What a browser asks before a page's request."""
    headers = (("Origin", origin), ("Access-Control-Request-Method", "POST"), *more)
    return Exchange(name=name, path=path, method="OPTIONS", headers=headers)


_OPEN = together(
    "a server without keys",
    Exchange(name="health", path="/health"),
    Exchange(name="ping", path="/ping"),
    Exchange(name="health by HEAD", path="/health", method="HEAD"),
    Exchange(name="health by POST", path="/health", method="POST"),
    Exchange(name="version", path="/version"),
    Exchange(name="front for a program", path="/"),
    Exchange(name="front for a browser", path="/", headers=(("Accept", "text/html"),)),
    Exchange(name="page that is unknown", path="/ui/none.js"),
    Exchange(name="unknown route", path="/v2/none"),
    Exchange(name="path with a slash more", path="/health/"),
    Exchange(name="own request id", path="/health", headers=(("X-Request-Id", "mine-1"),)),
    Exchange(name="request id that is not taken", path="/health", headers=(("X-Request-Id", "two words"),)),
    Exchange(name="foreign host", path="/v1/models", host="rebound.example"),
    Exchange(name="foreign host and a message", path="/v1/messages", body={}, host="rebound.example"),
    Exchange(name="foreign host and health", path="/health", host="rebound.example"),
    Exchange(name="no host", path="/v1/models", host=None),
    Exchange(name="foreign origin", path=PATH, body=_BODY, headers=(("Origin", "https://evil.example"),)),
    Exchange(name="own origin", path="/v1/models", headers=(("Origin", "http://localhost:3000"),)),
    Exchange(name="request line with blanks", path="/health and more"),
    preflight("preflight without pages", _PAGE),
)
_KEYS = together(
    "a server with keys",
    Exchange(name="no key", path=PATH, body=_BODY),
    Exchange(name="no key for a message", path="/v1/messages", body={}),
    Exchange(name="no key for ollama", path="/api/tags"),
    Exchange(name="no key for health", path="/health"),
    Exchange(name="no key for an unknown route", path="/v2/none"),
    Exchange(name="wrong key", path="/v1/models", headers=(bearer("sk-wrong"),)),
    Exchange(name="right key", path="/v1/models", headers=(bearer(KEY),)),
    Exchange(name="right key in x-api-key", path="/api/version", headers=(("x-api-key", KEY),)),
    Exchange(
        name="page with a key",
        path=PATH,
        body={**_BODY, "stream": True},
        headers=(bearer(KEY), ("Origin", _PAGE)),
    ),
    Exchange(name="page without a key", path="/v1/models", headers=(("Origin", _PAGE),)),
    Exchange(
        name="other page with a key",
        path="/v1/models",
        headers=(bearer(KEY), ("Origin", "https://b.example")),
    ),
    preflight("preflight", _PAGE, ("Access-Control-Request-Headers", "authorization,content-type")),
    preflight("preflight of another page", "https://b.example"),
    preflight("preflight of a private network", _PAGE, ("Access-Control-Request-Private-Network", "true")),
    kind="keys",
)
_TENANTS = (
    Scenario(
        "tenants",
        (
            Exchange(name="tenant's chat", path=PATH, body=_BODY, headers=(bearer(ALICE),)),
            Exchange(name="tenant's pool", path="/v1/kv", headers=(bearer(ALICE),)),
            Exchange(name="tenant's requests", path="/v1/requests", headers=(bearer(ALICE),)),
            Exchange(name="tenant on an operator's route", path="/metrics", headers=(bearer(ALICE),)),
            Exchange(
                name="tenant's early priority",
                path=PATH,
                body={**_BODY, "priority": -5},
                headers=(bearer(ALICE),),
            ),
            Exchange(
                name="tenant who names another",
                path="/v1/kv/pins",
                headers=(bearer(ALICE),),
                body={"name": "a", "prompt": "x" * 40, "tenant": "bob"},
            ),
            Exchange(
                name="tenant's large request",
                path="/v1/completions",
                headers=(bearer(ALICE),),
                body={"prompt": "x" * 200},
            ),
            Exchange(
                name="tenant's control tokens",
                path=PATH,
                headers=(bearer(ALICE),),
                body={**_BODY, "allow_control_tokens": True},
            ),
            Exchange(name="operator's pool", path="/v1/kv", headers=(bearer(BOSS),)),
            Exchange(
                name="operator's pin for another",
                path="/v1/kv/pins",
                headers=(bearer(BOSS),),
                body={"name": "a", "prompt": "x" * 40, "tenant": "alice"},
            ),
            Exchange(name="unknown key among tenants", path="/v1/models", headers=(bearer("octavo-nobody"),)),
        ),
        "tenants",
    ),
)

_TOLD = (
    Scenario(
        "metrics",
        (
            Exchange(name="chat that is counted", path=PATH, body=_BODY),
            Exchange(name="chat that is counted as refused", path=PATH, body={}),
            Exchange(name="metrics", path="/metrics"),
        ),
    ),
)

DESCRIPTION = alone(
    Exchange(name="description of the routes", path="/openapi.json", is_long=True),
    Exchange(name="description of the routes for people", path="/docs"),
)
EDGE = (*_OPEN, *_KEYS, *_TENANTS, *_TOLD)
