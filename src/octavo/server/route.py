"""One route: what exists, who may call it, what it takes and how it can answer."""

from __future__ import annotations

import enum
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from octavo.server.errors import JsonObject
from octavo.server.generation import Edge
from octavo.server.openai_schema import ModelBounds

Handler = Callable[[Edge, Request], Awaitable[Response]]
Check = Callable[[JsonObject, ModelBounds], object]


class Access(enum.Enum):
    """Whose key opens a route."""

    OPEN = "open"  # nobody's is needed
    TENANT = "tenant"  # any known one
    OPERATOR = "operator"  # an operator's, or any where there are no tenants


class Spread(enum.Enum):
    """Where a cluster's relay sends a route's requests. A server alone answers all of them itself."""

    PREFIX = "prefix"  # where most of the prompt is cached and the wait is short
    LOAD = "load"  # where the wait is short
    ID = "id"  # to the slot that the path's id names
    ALL = "all"  # to every replica, and their answers are merged; to one with ?replica=
    REPLICA = "replica"  # to the one of ?replica=; a GET without it to that of the lowest slot
    RELAY = "relay"  # the relay answers itself


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `errors` are statuses beyond those that its access and body bring.

    A process checks large bodies with `check`, which raises what the handler would of the body alone; without
    it they are validated as `body`. `more_fields` are those that the handler reads and `body` has not.
    """

    method: str
    path: str
    handler: Handler
    access: Access
    summary: str
    spread: Spread
    body: type[BaseModel] | None = None
    check: Check | None = None
    more_fields: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    success: int = 200
    content_type: str = "application/json"
    errors: tuple[int, ...] = ()
    streams: bool = False  # with "stream": true it answers in a stream
    stream_type: str = "text/event-stream"

    @property
    def template(self) -> str:
        """The path with its parameters in braces, as OpenAPI writes it."""
        return re.sub(r":path\}", "}", self.path)

    @property
    def fields(self) -> frozenset[str]:
        """The fields of a body that the handler reads; it ignores others."""
        own = () if self.body is None else self.body.model_fields
        return frozenset((*own, *self.more_fields))

    @property
    def statuses(self) -> tuple[int, ...]:
        """Every status that it can answer with."""
        found = {self.success, *self.errors}
        if self.access is not Access.OPEN:
            found |= {400, 401, 403}
        if self.body is not None:
            found |= {400, 408, 413}
        return tuple(sorted(found))
