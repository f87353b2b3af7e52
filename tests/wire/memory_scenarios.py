"""Sessions, pins, and what the ledger tells."""

from __future__ import annotations

from tests.wire.chat_scenarios import PATH, user
from tests.wire.exchange import Exchange, Finish, Scenario

_LONG = "the answer is " * 10 + "SAY:hello;"
_ONE = "/v1/sessions/<session-1>"


def turn(name: str, script: str, session: str, **fields: object) -> Exchange:
    """One turn of a session."""
    return Exchange(name=name, path=PATH, body={"messages": user(script), "session": session, **fields})


def get(name: str, path: str) -> Exchange:
    """One look."""
    return Exchange(name=name, path=path)


def pin(name: str, /, **fields: object) -> Exchange:
    """One new pin."""
    return Exchange(name=name, path="/v1/kv/pins", body=fields)


_SAID = [*user("hello"), {"role": "assistant", "content": "Hello world!"}]
_SESSIONS = Scenario(
    "sessions",
    (
        Exchange(name="session made", path="/v1/sessions", body={"ttl": 600.0}),
        get("session shown", _ONE),
        turn("session's first turn", "hello", "<session-1>"),
        turn(
            "session's second turn streamed",
            "more",
            "<session-1>",
            messages=[*_SAID, *user("more")],
            stream=True,
        ),
        Exchange(
            name="session named by a header",
            path=PATH,
            body={"messages": user("yes")},
            headers=(("X-Octavo-Session", "new"),),
        ),
        get("sessions", "/v1/sessions"),
        get("sessions, one of them", "/v1/sessions?limit=1"),
        get("sessions with a wrong limit", "/v1/sessions?limit=none"),
        Exchange(name="session forked", path=f"{_ONE}/fork", body={"turn": 1}),
        Exchange(name="session forked at a turn that is none", path=f"{_ONE}/fork", body={"turn": 9}),
        turn("session's fork goes on", "yes", "<session-3>", messages=[*_SAID, *user("yes")]),
        Exchange(name="session suspended without a disk", path=f"{_ONE}/suspend", method="POST"),
        Exchange(name="session resumed", path=f"{_ONE}/resume", method="POST"),
        turn("session that is rewritten", "yes", "<session-1>"),
        Exchange(name="session deleted", path=_ONE, method="DELETE"),
        get("session after it was deleted", _ONE),
        turn("session that is unknown", "yes", "<session-1>"),
        turn("session of two choices", "yes", "new", n=2),
        turn("session without a name", "yes", ""),
        Exchange(name="session with an unknown field", path="/v1/sessions", body={"name": "x"}),
        Exchange(name="session with a wrong ttl", path="/v1/sessions", body={"ttl": 0}),
        Exchange(name="session by PUT", path="/v1/sessions", method="PUT", body={}),
    ),
)
_OLLAMA = Scenario(
    "an ollama session",
    (
        Exchange(
            name="ollama session's first turn",
            path="/api/chat",
            headers=(("X-Octavo-Session", "new"),),
            body={"model": "scripted", "messages": user("hello"), "stream": False},
        ),
        get("sessions of ollama", "/v1/sessions"),
    ),
)
_BUSY = Scenario(
    "a session is busy",
    (
        Exchange(
            name="turn that runs",
            path=PATH,
            body={"messages": user("hello"), "session": "new", "stream": True},
            hold_after=2,
            chunks=3,
        ),
        Exchange(
            name="turn that comes too early",
            path=PATH,
            asks=True,
            body={"messages": user("yes"), "session": "<session-1>"},
        ),
        Finish("turn that runs"),
    ),
)
_DISK = Scenario(
    "a session is suspended",
    (
        turn("session's long turn", "hello", "new", messages=[{"role": "user", "content": _LONG}]),
        Exchange(name="session suspended", path=f"{_ONE}/suspend", method="POST"),
        get("session while it is suspended", _ONE),
        Exchange(name="session resumed from disk", path=f"{_ONE}/resume", method="POST"),
        turn(
            "session's turn after it was resumed",
            "yes",
            "<session-1>",
            messages=[
                {"role": "user", "content": _LONG},
                {"role": "assistant", "content": "Hello world!"},
                *user("yes"),
            ],
        ),
    ),
    "disk",
)
_PINS = Scenario(
    "pins",
    (
        pin("pin of a prompt", name="greeting", prompt=_LONG, ttl=60.0),
        pin("pin of messages", name="chat", messages=user("hello"), strength="warm"),
        pin("pin of tokens", name="tokens", tokens=list(range(65, 85))),
        get("pins", "/v1/kv/pins"),
        Exchange(
            name="pinned prompt is found", path="/v1/completions", body={"prompt": _LONG, "max_tokens": 2}
        ),
        get("pool with pins", "/v1/kv"),
        get("map with pins", "/v1/kv/map"),
        Exchange(name="pin renewed", path="/v1/kv/pins/greeting", method="PATCH", body={"ttl": 120.0}),
        Exchange(name="pin deleted", path="/v1/kv/pins/greeting", method="DELETE"),
        Exchange(name="pin deleted twice", path="/v1/kv/pins/greeting", method="DELETE"),
        pin("pin with a taken name", name="tokens", prompt=_LONG),
        pin("pin with a wrong name", name="a b", prompt=_LONG),
        pin("pin of too few tokens", name="short", prompt="hi"),
        pin("pin beyond the budget", name="large", prompt="x" * 900),
        pin("pin of two prompts", name="two", prompt="a", tokens=[1]),
        pin("pin of unknown strength", name="soft", prompt=_LONG, strength="soft"),
        pin("pin with an unknown field", name="a", prompt=_LONG, surprise=1),
        pin("pin without a name", prompt=_LONG),
    ),
)
_POOL = Scenario(
    "the pool",
    (
        get("pool", "/v1/kv"),
        get("map", "/v1/kv/map"),
        get("requests", "/v1/requests"),
        get("request that is unknown", "/v1/requests/99"),
        Exchange(name="pool resized", path="/v1/kv", method="PATCH", body={"blocks": 80}),
        Exchange(
            name="pool resized beyond its capacity", path="/v1/kv", method="PATCH", body={"blocks": 1000}
        ),
        Exchange(name="pool resized by nothing", path="/v1/kv", method="PATCH", body={}),
        get("pool after it was resized", "/v1/kv"),
    ),
)

MEMORY = (_SESSIONS, _OLLAMA, _BUSY, _DISK, _PINS, _POOL)
