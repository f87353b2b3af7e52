"""What a client sends, as data, and how a scenario of them runs against a server."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.wire.normalise import Normaliser
from tests.wire.raw_http import Connection, Header, RawResponse
from tests.wire.servers import Served

JSON: Header = ("Content-Type", "application/json")
_RUN = re.compile(r"(.)\1{99,}")
_BREAKS = re.compile(r"\n+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its response. A body that is no text is sent as JSON. Names such as <resp-1>, in a path
    or a body, stand for ids of earlier answers of the scenario.

    `hold_after`: after so many steps the engine is held; `chunks` chunks are read then, and the connection
    stays open until a `Leave` or `Finish`. Where it is held already, it first takes this request. `asks`:
    while it is held, this one waits for an answer between steps, so one more may pass. `gathers`: so many of
    the engine's requests are made of it, and handed over together. `is_long`: the JSON of its answer is
    written on many lines, behind the digest of its text.
    """

    name: str
    path: str
    body: str | Mapping[str, object] | list[object] | None = None
    method: str = ""
    headers: tuple[Header, ...] = ()
    host: str | None = "127.0.0.1"
    hold_after: int | None = None
    chunks: int = 0
    asks: bool = False
    gathers: int = 1
    is_long: bool = False

    @property
    def verb(self) -> str:
        """POST where there is a body."""
        return self.method or ("GET" if self.body is None else "POST")

    @property
    def text(self) -> str:
        """The body as text."""
        if self.body is None or isinstance(self.body, str):
            return self.body or ""
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Leave:
    """The client of this exchange closes its connection; the engine goes on."""

    name: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The engine goes on, and the rest of this exchange's answer is read."""

    name: str


Step = Exchange | Leave | Finish


@dataclass(frozen=True, slots=True)
class Scenario:
    """Exchanges with one server, one after the other. `kind`: open, keys, tenants or disk."""

    name: str
    steps: tuple[Step, ...]
    kind: str = "open"

    @property
    def exchanges(self) -> list[Exchange]:
        """Its exchanges."""
        return [step for step in self.steps if isinstance(step, Exchange)]


def alone(*exchanges: Exchange, kind: str = "open") -> tuple[Scenario, ...]:
    """A scenario for each."""
    return tuple(Scenario(one.name, (one,), kind) for one in exchanges)


def together(name: str, *exchanges: Exchange, kind: str = "open") -> tuple[Scenario, ...]:
    """One scenario, of exchanges that change nothing, as those that are refused."""
    return (Scenario(name, exchanges, kind),)


def run_scenario(scenario: Scenario, served: Served) -> dict[str, str]:
    """The texts of its exchanges, by name."""
    run = _Run(served)
    for step in scenario.steps:
        if isinstance(step, Exchange):
            run.send(step)
        else:
            run.end(step)
    assert not run.held, f"{scenario.name} leaves a connection open"
    return run.texts


class _Run:
    def __init__(self, served: Served) -> None:
        self.texts: dict[str, str] = {}
        self.held: dict[str, tuple[Exchange, Connection]] = {}
        self._served = served
        self._normaliser = Normaliser()

    def send(self, exchange: Exchange) -> None:
        """Send it, and read its answer, or the beginning of that."""
        gate, inbox = self._served.gate, self._served.inbox
        holds, meets_held = exchange.hold_after is not None, bool(self.held)
        if meets_held and (exchange.asks or holds):
            gate.wait_held()
        elif holds:
            gate.allow(exchange.hold_after)
        inbox.gather(exchange.gathers)
        inbox.forget()
        connection = Connection(self._served.port)
        self.texts[exchange.name] = self._request_text(exchange)
        body = self._normaliser.real(exchange.text).encode()
        path = self._normaliser.real(exchange.path)
        connection.send(exchange.verb, path, headers_of(exchange, body), body)
        if meets_held and (exchange.asks or holds):
            inbox.wait()
            gate.allow(exchange.hold_after or 1)
        if holds:
            gate.wait_held()
            if exchange.chunks:
                connection.read_head()
                connection.read_chunks(exchange.chunks)
                self._response_text(connection.response)  # what comes meanwhile may name its ids
            self.held[exchange.name] = exchange, connection
            return
        connection.read_head()
        connection.read_body()
        self._end(exchange, connection)

    def end(self, step: Leave | Finish) -> None:
        """The other end of an exchange that was held."""
        exchange, connection = self.held.pop(step.name)
        if isinstance(step, Leave):
            self._served.gate.wait_held()
            self._served.inbox.forget()
            connection.close()
            self._served.inbox.wait()  # for what the server makes of it
            connection.response.was_left = True
        self._served.gate.allow(None)
        if isinstance(step, Finish):
            if not connection.response.status_line:
                connection.read_head()
            connection.read_body()
        self._end(exchange, connection)

    def _end(self, exchange: Exchange, connection: Connection) -> None:
        response = connection.response
        if not response.was_left:
            connection.finish()
        if exchange.is_long:
            response.chunks = [_on_lines(self._normaliser.of(response.body.decode()))]
        self.texts[exchange.name] += self._response_text(response)

    def _request_text(self, exchange: Exchange) -> str:
        lines = [f"{exchange.verb} {exchange.path} HTTP/1.1"]
        for name, value in headers_of(exchange, exchange.text.encode()):
            lines.append(f"{name}: {'<of the body>' if name == 'Content-Length' else value}")
        if exchange.text:
            lines += ["", *_shown(exchange.text)]
        return "".join(f"> {line}".rstrip() + "\n" for line in lines)

    def _response_text(self, response: RawResponse) -> str:
        if response.was_left and not response.status_line:
            return "< (the client left)\n"
        length = response.length
        lines = [f"< {response.status_line}"]
        for name, value in response.headers:
            lines.append(f"< {name}: {self._normaliser.header(name, value, length)}")
        lines.append("<")
        for chunk in response.chunks:
            first, *rest = _shown(self._normaliser.of(chunk.decode(errors="backslashreplace")))
            lines += [f"<+ {first}", *(f"<  {line}" for line in rest)]
        if response.was_left:
            lines.append("< (the client left)")
        return "\n".join(lines) + "\n"


def _on_lines(body: str) -> bytes:
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f"<{digest[:16]}>\n{json.dumps(json.loads(body), ensure_ascii=False, indent=1)}".encode()


def _shown(text: str) -> list[str]:
    """A body as lines: a line break is written as a sign, and long runs of one character are counted."""
    text = _RUN.sub(lambda run: f"<{run.group(1)} {len(run.group()):,} times>", text)
    return _BREAKS.sub(lambda run: "⏎" * len(run.group()) + "\n", text).removesuffix("\n").split("\n")


def headers_of(exchange: Exchange, body: bytes) -> list[Header]:
    """All that are sent: Host, those that are given, and what a body needs."""
    host = [] if exchange.host is None else [("Host", exchange.host)]
    given = list(exchange.headers)
    names = {name.lower() for name, _ in given}
    if body and "content-type" not in names:
        given.append(JSON)
    if body or exchange.verb in ("POST", "PATCH", "PUT"):
        given.append(("Content-Length", str(len(body))))
    return [*host, *given]
