"""One route: method and path, access, body, and statuses."""

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
    """The key that a route needs."""

    OPEN = "open"  # none
    TENANT = "tenant"  # any known key
    OPERATOR = "operator"  # an operator's, or any if there are no tenants


class Spread(enum.Enum):
    """Where a cluster's relay sends the requests of a route. A single server answers all of them."""

    PREFIX = "prefix"  # to the replica with most of the prompt cached and a short wait
    LOAD = "load"  # to the replica with the shortest wait
    ID = "id"  # to the slot in the path's id
    ALL = "all"  # to every replica, merging their answers; to one with ?replica=
    REPLICA = "replica"  # to the one of ?replica=; a GET without it to that of the lowest slot
    RELAY = "relay"  # to none: the relay answers


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `errors` are statuses in addition to those of its access and body.

    A separate process checks large bodies with `check`, which raises what the handler would raise for the
    body alone; without it they are validated as `body`. The handler reads `more_fields` in addition to it.
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
    streams: bool = False  # answers with a stream for "stream": true
    stream_type: str = "text/event-stream"

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it, with parameters in braces."""
        return re.sub(r":path\}", "}", self.path)

    @property
    def fields(self) -> frozenset[str]:
        """The fields of a body that the handler reads."""
        own = () if self.body is None else self.body.model_fields
        return frozenset((*own, *self.more_fields))

    @property
    def statuses(self) -> tuple[int, ...]:
        """Every status of its answers."""
        found = {self.success, *self.errors}
        if self.access is not Access.OPEN:
            found |= {400, 401, 403}
        if self.body is not None:
            found |= {400, 408, 413}
        return tuple(sorted(found))
