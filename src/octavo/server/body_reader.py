"""What the process for large bodies makes of one: an error in a sentence, or the fields that its route reads.

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
    """The answer; whatever is wrong with the body is one too."""
    try:
        return _accepted(request, sizes)
    except InvalidRequest as error:
        return _refused(error)
    except MemoryError:
        return _refused(InvalidRequest("the body takes too much memory; allowed: fewer items"))
    except RecursionError:
        return _refused(InvalidRequest("the body is nested too deeply", code="invalid_json"))


def _accepted(request: bytes, sizes: ModelSizes) -> bytes:
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


def _refused(error: InvalidRequest) -> bytes:
    sentence = {
        "kind": type(error).__name__,
        "message": message_of(error),
        "param": error.param,
        "code": error.code,
    }
    return REFUSED + json.dumps(sentence).encode()
