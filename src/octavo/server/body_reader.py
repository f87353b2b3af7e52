"""Reads one large body in the worker process: the result is the fields that its route reads, or an error.

request   {"method", "path"} as JSON, a line break, the body
answer    "+" and the fields in pieces; or "-" and {"kind", "message", "param", "code"} of an error
"""

from __future__ import annotations

import json

from octavo.errors import InvalidRequest
from octavo.server.body import parse_json, validate
from octavo.server.errors import message_of
from octavo.server.json_pieces import to_pieces
from octavo.server.large_bodies import ACCEPTED, REFUSED, ModelSizes
from octavo.server.routes import match_route


def read_body(request: bytes, sizes: ModelSizes) -> bytes:
    """The answer, which may be an error."""
    try:
        return _accept(request, sizes)
    except InvalidRequest as error:
        return _refuse(error)
    except MemoryError:
        return _refuse(InvalidRequest("the body takes too much memory; allowed: fewer items"))
    except RecursionError:
        return _refuse(InvalidRequest("the body is nested too deeply", code="invalid_json"))


def _accept(request: bytes, sizes: ModelSizes) -> bytes:
    head, _, body = request.partition(b"\n")
    route = match_route(**json.loads(head)).route
    assert route is not None
    assert route.body is not None
    value = parse_json(body)
    if route.check is None:
        validate(route.body, value)
    else:
        route.check(value, sizes)
    read = {name: item for name, item in value.items() if name in route.fields}
    return ACCEPTED + to_pieces(read)


def _refuse(error: InvalidRequest) -> bytes:
    refusal = {
        "kind": type(error).__name__,
        "message": message_of(error),
        "param": error.param,
        "code": error.code,
    }
    return REFUSED + json.dumps(refusal).encode()
