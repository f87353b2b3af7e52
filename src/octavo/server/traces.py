"""Traces of requests at the HTTP edge: their beginning, the data of their end, and where they are sent.

    request  ├─ queue ──────────────┤├─ prefill ─┤├─ decode ──────┤
                  ├ transfer ┤

Only otel.py imports OpenTelemetry, and only tracing.py imports otel.py, if an endpoint is set. No span
contains prompts, answers or keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from octavo.errors import ConfigError
from octavo.params import SamplerParams
from octavo.types import FinishReason, Usage

_TRACES_PATH = "/v1/traces"  # OTLP's default path over HTTP
_URL_CHARS_MAX = 2048


@dataclass(frozen=True, slots=True)
class ChoiceTimes:
    """One choice of a finished request; times are of `time.perf_counter`. None: it did not get that far."""

    index: int  # over all prompts
    usage: Usage | None
    first_token: float | None  # when the HTTP edge received it
    last_token: float | None
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """A finished request. `num_choices` is per prompt; `params` is None where nothing was generated."""

    route: str
    status: int
    begun: float
    params: SamplerParams | None
    num_choices: int
    choices: tuple[ChoiceTimes, ...]


class RequestTrace(Protocol):
    """The trace of one request."""

    @property
    def header(self) -> str:
        """The value of `traceresponse`: trace, span, and whether it is recorded."""

    @property
    def trace_id(self) -> str:
        """The trace id as 32 hexadecimal digits."""

    def end(self, request: RequestEnd) -> None:
        """End the trace; another thread sends it. Never raises, never blocks."""


class Tracing(Protocol):
    """The tracer of one server."""

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace:
        """Begin the trace of a request; its headers may name a caller's trace as parent."""

    async def close(self) -> None:
        """Flush; gives up after a few seconds."""


def traces_url(endpoint: str) -> str:
    """The URL for traces: the endpoint, with OTLP's default path if it has none. Raises ConfigError."""
    try:
        parts = urlsplit(endpoint)
        is_known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port
        is_known = False
    if not is_known or len(endpoint) > _URL_CHARS_MAX or not endpoint.isascii() or " " in endpoint:
        raise ConfigError(
            f"--otel-endpoint is {endpoint[:80]!r}; allowed: the address of an OTLP collector over HTTP, "
            "such as http://127.0.0.1:4318"
        )
    return endpoint.rstrip("/") + _TRACES_PATH if parts.path in ("", "/") else endpoint
