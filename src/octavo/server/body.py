"""Request bodies: read with a limit, parsed safely, then validated against a schema.

A framework's own parsing has no limit on size or depth, and its errors have another shape. So the routes read
the raw request.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
import zlib
from collections.abc import Iterator
from http import HTTPStatus
from typing import NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from octavo.errors import InvalidRequest
from octavo.server.errors import HttpRefusal, JsonObject
from octavo.server.field_list import field_list
from octavo.server.generation import Edge, until_disconnect
from octavo.server.large_bodies import is_large
from octavo.server.tenant import tenant_of

_READ_TIMEOUT_S = 60.0
_FIELDS_MAX = 1024  # of a body
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's, of the supported encodings
_PIECE_BYTES = 1 << 20

BodyT = TypeVar("BodyT", bound=BaseModel)


async def read_json(edge: Edge, request: Request) -> JsonObject:
    """The body as a JSON object, whatever its content type (OpenAI's servers ignore it too). A large body is
    already checked as its route would, and has only the fields that the route reads.

    Raises HttpRefusal (413, 408), InvalidRequest, QueueFull and ClientGone. Starlette's ClientDisconnect
    passes through.
    """
    chunks = await decompress_body(request, await read_raw(request, edge.body_bytes_max), edge.body_bytes_max)
    if not is_large(chunks):
        return parse_json(b"".join(chunks))
    fields = edge.large_bodies.read(tenant_of(request), request.method, request.scope["path"], chunks)
    return await until_disconnect(request, fields)


def parse_json(body: bytes) -> JsonObject:
    """A JSON object from bytes; anything else raises InvalidRequest. O(bytes)."""
    too_large: list[str] = []  # numbers beyond float64

    def as_float(text: str) -> float:
        if math.isinf(number := float(text)):
            too_large.append(text)
        return number

    try:
        text = body.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=as_float)
        if "\\u" in text:
            # Half a surrogate pair is legal in a JSON escape but is not text: it cannot be tokenised, or
            # encoded in an answer.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise _not_json("it is not UTF-8") from None
    except UnicodeEncodeError:
        raise _not_json("a string holds half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise _not_json(str(error)) from None
    except ValueError:  # Python's limit on the digits of an integer
        raise _not_json(f"a number has more than {sys.get_int_max_str_digits():,} digits") from None
    if not isinstance(value, dict):
        raise _not_json("allowed: an object, {...}")
    if len(value) > _FIELDS_MAX:
        raise _not_json(f"it has {len(value):,} fields; allowed: up to {_FIELDS_MAX:,}")
    if too_large and (path := _path_of_infinity(value)):  # a prompt or an answer may repeat it
        raise InvalidRequest(
            f"{path} is {too_large[0][:40]}, which is too large; allowed: numbers that float64 holds",
            param=re.split(r"[.[]", path)[0],
            code="invalid_json",
        )
    return value


def _path_of_infinity(body: JsonObject) -> str:
    """The path of the first infinite number, such as options.stop[3]; "" for none. O(values before it)."""
    stack = [_items_of("", body)]
    while stack:
        for path, value in stack[-1]:
            if isinstance(value, float) and math.isinf(value):
                return path
            if isinstance(value, dict | list):
                stack.append(_items_of(path, value))
                break
        else:
            stack.pop()
    return ""


def _items_of(path: str, value: JsonObject | list[object]) -> Iterator[tuple[str, object]]:
    """The items, each with its path."""
    if isinstance(value, dict):
        return ((f"{path}.{key}" if path else key, item) for key, item in value.items())
    return ((f"{path}[{index}]", item) for index, item in enumerate(value))


def validate(schema: type[BodyT], body: JsonObject) -> BodyT:
    """`body` as `schema`; the first error becomes one sentence that names the field. Unsupported fields are
    refused first."""
    field_list(schema).check(body)
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        field = str(first["loc"][0]) if first["loc"] else None
        message = f"{path or 'the body'}: {first['msg'].removeprefix('Value error, ')}"
        raise InvalidRequest(message, param=field, code="invalid_type") from None


async def decompress_body(request: Request, chunks: list[bytes], bytes_max: int) -> list[bytes]:
    """The body without its Content-Encoding; refused as soon as it becomes too large. Raises InvalidRequest
    and HttpRefusal (413, 415)."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return chunks
    if encoding not in _WINDOW_BITS:
        raise HttpRefusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding is {encoding[:40]!r}; allowed: gzip, deflate, or none",
            code="unsupported_encoding",
        )
    unpacker, unpacked, size = zlib.decompressobj(_WINDOW_BITS[encoding]), list[bytes](), 0
    try:
        for chunk in chunks:
            while chunk:
                if unpacker.eof:
                    raise zlib.error("there is something behind its end")
                piece = unpacker.decompress(chunk, _PIECE_BYTES)
                chunk, size = unpacker.unconsumed_tail, size + len(piece)
                unpacked.append(piece)
                if size > bytes_max:
                    raise _too_large(bytes_max)
                await asyncio.sleep(0)  # other streams run between pieces
        unpacked.append(unpacker.flush())
        if unpacker.unused_data:
            raise zlib.error("there is something behind its end")
    except zlib.error as error:
        raise InvalidRequest(f"the body is no {encoding}: {error}", code="invalid_encoding") from None
    if not unpacker.eof:
        raise InvalidRequest(f"the body is no whole {encoding}: it ends too early", code="invalid_encoding")
    return unpacked


async def read_raw(request: Request, bytes_max: int) -> list[bytes]:
    """The raw body in pieces; refused as soon as its header or its size shows that it is too large. Raises
    HttpRefusal (413, 408)."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > bytes_max):
        raise _too_large(bytes_max)
    received, size = list[bytes](), 0
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            async for chunk in request.stream():
                received.append(chunk)
                size += len(chunk)
                if size > bytes_max:
                    raise _too_large(bytes_max)
    except TimeoutError:
        raise HttpRefusal(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body did not arrive within {_READ_TIMEOUT_S:.0f} s",
            code="body_timeout",
            headers={"Connection": "close"},
        ) from None
    return received


def _refuse_constant(name: str) -> NoReturn:
    raise _not_json(f"{name} is not a JSON number")


def _not_json(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the body is not the JSON that this route takes: {reason}", code="invalid_json")


def _too_large(bytes_max: int) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {bytes_max:,} bytes",
        code="body_too_large",
        headers={"Connection": "close"},
    )
