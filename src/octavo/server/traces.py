"""Traces of requests, as the edge knows them: when they begin, what is told at their end, and who takes it.

    request  ├─ queue ──────────────┤├─ prefill ─┤├─ decode ──────┤
                  ├ transfer ┤

Nothing here knows OpenTelemetry: otel.py does, which tracing.py imports where an endpoint is set.
Prompts, answers and keys are in no span.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from octavo.errors import ConfigError
from octavo.params import SamplerParams
from octavo.types import FinishReason, Usage

_TRACES_PATH = "/v1/traces"  # where OTLP over HTTP takes them, unless the endpoint says otherwise
_URL_CHARS_MAX = 2048


@dataclass(frozen=True, slots=True)
class ChoiceTimes:
    """What became of one choice; times are of `time.perf_counter`. None: it did not come so far."""

    index: int  # over all prompts
    usage: Usage | None
    first_token: float | None  # when the edge saw it
    last_token: float | None
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """A request that is over. `num_choices` are each prompt's; `params` None: nothing was generated."""

    route: str
    status: int
    begun: float
    params: SamplerParams | None
    num_choices: int
    choices: tuple[ChoiceTimes, ...]


class RequestTrace(Protocol):
    """One request's."""

    @property
    def header(self) -> str:
        """What the answer tells in `traceresponse`: trace, span, and whether it is recorded."""

    @property
    def trace_id(self) -> str:
        """As 32 hexadecimal digits."""

    def end(self, told: RequestEnd) -> None:
        """It is over; what is sent leaves later, on another thread. Never raises, never waits."""


class Tracing(Protocol):
    """Takes the traces of one server."""

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace:
        """A request came with these headers, perhaps as part of a caller's trace."""

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""


def traces_url(endpoint: str) -> str:
    """Where traces are sent: the endpoint, with OTLP's path where it names none. Raises ConfigError."""
    try:
        parts = urlsplit(endpoint)
        is_known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        is_known = False
    if not is_known or len(endpoint) > _URL_CHARS_MAX or not endpoint.isascii() or " " in endpoint:
        raise ConfigError(
            f"--otel-endpoint is {endpoint[:80]!r}; allowed: the address of an OTLP collector over HTTP, "
            "such as http://127.0.0.1:4318"
        )
    return endpoint.rstrip("/") + _TRACES_PATH if parts.path in ("", "/") else endpoint
