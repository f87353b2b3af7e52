"""Every error that users see, as one tree. A message says what was given, what is allowed, what to change.

    OctavoError
    ├── InvalidRequest        the client's request is wrong                     HTTP 400
    │   ├── RequestTooLarge   it can never fit the context or the pool          HTTP 400
    │   ├── UnknownModel      it names a model that is not served               HTTP 404
    │   ├── UnknownPin        it names a pin that is not there                  HTTP 404
    │   └── UnknownSession    it names a session that is not there              HTTP 404
    ├── UnknownTenant         its tenant was removed from the tenants file      HTTP 401
    ├── QueueFull             too many requests are waiting; try again          HTTP 429
    ├── PinRefused            the pins' budget, or the pool, is too small       HTTP 409
    ├── SessionBusy           a turn of the session runs, or it moves           HTTP 409
    ├── SessionRefused        there is no room for it, or no disk cache         HTTP 409
    ├── ResizeRefused         the pool cannot become that small or that large   HTTP 409
    ├── TenantsRefused        guarantees do not fit the pool                    exit status 2
    ├── TimedOut              a deadline passed before the first token          HTTP 408
    ├── RequestFailed         this one request failed (its logits were NaN)     HTTP 500
    ├── EngineStopped         the engine drains or has stopped                  HTTP 503
    ├── DeviceLost            the GPU no longer responds                        exit status 1
    ├── ConfigError           a setting or a flag is wrong                      exit status 2
    └── ModelError            a model cannot be served                          exit status 1
        ├── ModelNotFound     no such file, folder, alias or repository, or no network
        ├── BadModelFile      the file is damaged or truncated, or states wrong sizes
        └── UnsupportedModel  a sound file of a family or type that Octavo does not support

Expected shortage (no free block, no free row) is a value, not an exception. A bug of ours is an
`AssertionError`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import islice
from numbers import Integral, Real
from operator import index

_SHOWN_CHARS_MAX = 80


class OctavoError(Exception):
    """The root of the tree; its text is for users."""


class InvalidRequest(OctavoError):
    """A parameter is wrong, or requests an unsupported feature; `param` names the field."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class RequestTooLarge(InvalidRequest):
    """Prompt plus `max_tokens` can never fit the context, the pool (code `kv_pool_exceeded`) or the tenant's
    bounds (`kv_quota_exceeded`), however long the request waits."""


class UnknownModel(InvalidRequest):
    """`model` is not the served one; the message names those that exist."""


class UnknownPin(InvalidRequest):
    """There is no pin of that name, or it is another tenant's."""


class UnknownSession(InvalidRequest):
    """There is no session of that id: it never was, has expired, was deleted or is another tenant's."""


class UnknownTenant(OctavoError):
    """The tenant was removed from the tenants file after its key was checked; nothing was queued."""


class SessionBusy(OctavoError):
    """A turn of the session runs already, or its blocks are being moved to or from disk."""


class SessionRefused(OctavoError):
    """A session cannot be made, forked, suspended or resumed: the tenant has too many, there is no disk
    cache, no room in its part for pinned blocks, or blocks were lost; the message says which."""


class PinRefused(OctavoError):
    """Pins would hold more than `pin_memory`, or leave too little for the largest request; the message names
    the missing blocks and their holders. Also a pin that was deleted or expired while it filled."""


class ResizeRefused(OctavoError):
    """The pool cannot become that small or that large; the message says what bounds it and why."""


class TenantsRefused(OctavoError):
    """Guarantees and bounds of tenants do not fit the pool with the admitted requests; nothing changed."""


class TimedOut(OctavoError):
    """A deadline of the request passed before its first token; the message says what it waited for."""


class QueueFull(OctavoError):
    """`max_queue` requests wait already, or a tenant has its share of them, or the first token would come too
    late; nothing was queued, and `Retry-After` says when to try again."""

    def __init__(self, text: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class RequestFailed(OctavoError):
    """This one request failed while running (its logits were not numbers), and failed alone."""


class EngineStopped(OctavoError):
    """The server is shutting down, or gave up after repeated failures; in Python, a closed `LLM`."""


class DeviceLost(OctavoError):
    """The GPU no longer responds (an illegal access, a driver's fault): only a new process helps."""


class ConfigError(OctavoError):
    """A setting, a file of settings or a flag of a command is wrong."""


class ModelError(OctavoError):
    """A model cannot be served; raised as one of its three subclasses."""


class ModelNotFound(ModelError):
    """No such file, folder, alias or repository, or no network."""


class BadModelFile(ModelError):
    """A file is damaged or truncated, or states wrong sizes."""


class UnsupportedModel(ModelError):
    """A sound file of a family, quantisation or rope kind that Octavo does not support."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without additions of libraries; its class name if it has no text."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def shown(given: object) -> str:
    """A given value for a message: always short, also an integer that Python refuses to print. O(shown part),
    except for texts."""
    try:
        text = repr(_beginning(given, [_SHOWN_CHARS_MAX]))
    except ValueError:
        return "a number too long to be printed"
    return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 3] + "..."


def wrong_value(what: str, given: object, allowed: str, *, param: str | None = None) -> InvalidRequest:
    """The refusal of a value. `what` is its place, such as "messages[3].role", whose first name is the
    request's parameter unless `param` says otherwise."""
    name = re.split(r"[.[]", what)[0] if param is None else param
    return InvalidRequest(f"{what} is {shown(given)}; allowed: {allowed}", param=name)


def unsupported(message: str, param: str | None = None) -> InvalidRequest:
    """The refusal of a missing feature that would change the answer; `message` names an alternative."""
    return InvalidRequest(message, param=param, code="unsupported_parameter")


def _beginning(given: object, left: list[int]) -> object:
    """The first values of lists and dictionaries, each of which takes at least one character of text."""
    left[0] -= 1
    if type(given) is list:
        return [_beginning(item, left) for item in given[:_SHOWN_CHARS_MAX] if left[0] > 0]
    if type(given) is dict:
        return {key: _beginning(item, left) for key, item in islice(given.items(), left[0]) if left[0] > 0}
    return given


def require_range(
    name: str,
    given: float,
    low: float,
    high: float,
    *,
    whole: bool = False,
    error: type[InvalidRequest] = InvalidRequest,
    hint: str = "",
    param: str | None = None,
) -> None:
    """Raise `error` unless `given` is a number, `whole` or any, and low <= given <= high (NaN never passes);
    the message says what is allowed. `param`: the field, if `name` is not just the field."""
    if not (is_number(given, whole=whole) and low <= given <= high):
        if whole and is_number(given) and not is_number(given, whole=True):
            hint = "a whole number"
        message = f"{name} is {shown(given)}; allowed: {low:,} to {high:,}"
        raise error(message + (f" ({hint})" if hint else ""), param=param or name)


def is_number(given: object, *, whole: bool = False) -> bool:
    """Whether it is a number; unlike in Python, True and False are not."""
    return isinstance(given, Integral if whole else Real) and not isinstance(given, bool)


def as_items(
    name: str, given: object, allowed: str, most: int, *, of: str, least: int = 0
) -> tuple[object, ...]:
    """The items of a list, tuple, set or array. Raises InvalidRequest, which says what is `allowed`, for
    other types (also text and mappings), and for less than `least` or more than `most` items."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Collection):
        raise wrong_value(name, given, allowed, param=name)
    require_range(of, len(given), least, most, param=name)
    return tuple(given)


def as_tokens(name: str, given: object, most: int, *, of: str, least: int = 0) -> tuple[int, ...]:
    """As `as_items`, for token ids; whether the model has them is checked later."""
    allowed = "a list of token ids"
    items = as_items(name, given, allowed, most, of=of, least=least)
    for item in items:
        if not is_number(item, whole=True):
            raise InvalidRequest(f"{name} holds {shown(item)}; allowed: {allowed}", param=name)
    return tuple(map(index, items))  # type: ignore[arg-type]
