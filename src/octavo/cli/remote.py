"""A running server, asked from the command line: JSON in and out, and errors in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import typer

from octavo.errors import InvalidRequest, OctavoError, RequestFailed

URL_VARIABLE = "OCTAVO_URL"
Url = Annotated[
    str, typer.Option(metavar="URL", envvar=URL_VARIABLE, help="The server's address, with /v1 or without.")
]
OtherUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        help="Ask this running server, and load no model here.",
        show_default=False,
    ),
]
ApiKey = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        envvar="OCTAVO_API_KEY",
        help="The server's key, where it wants one.",
        show_default=False,
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The tenant whose it is, with an operator's key. Default: the key's own.",
        show_default=False,
    ),
]
DEFAULT_URL = "http://127.0.0.1:8000"
_TIMEOUT_S = 600.0  # a pin's prompt is computed before it answers


def ask(
    url: str, api_key: str, method: str, path: str, body: dict[str, object] | None = None
) -> dict[str, object]:
    """The server's answer. Raises OctavoError with its words, or with what is wrong on the way to it."""
    import httpx2

    whole, headers = address_of(url, path), headers_with(api_key)
    try:
        answer = httpx2.request(method, whole, json=body, headers=headers, timeout=_TIMEOUT_S)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise no_answer(url, error) from None
    except UnicodeError:
        raise cannot_be_sent() from None
    except ValueError:
        raise InvalidRequest("a number cannot be sent: allowed are finite ones") from None
    try:
        told = answer.json()
    except ValueError:
        raise RequestFailed(f"{whole} answered {answer.status_code} without JSON; is it Octavo?") from None
    if answer.status_code >= 400:
        raise RequestFailed(words_of(told) or f"{whole} answered {answer.status_code}")
    if not isinstance(told, dict):
        raise OctavoError(f"{whole} answered something else than an object")
    return told


def address_of(url: str, path: str) -> str:
    """A route of the server; `url` may end in /v1, as clients write it."""
    return url.rstrip("/").removesuffix("/v1") + path


def is_typed(given: typer.Context, name: str) -> bool:
    """Whether a parameter stands in the command line, and is neither a default nor a variable's."""
    source = given.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def headers_with(api_key: str) -> dict[str, str]:
    """The headers of a request with that key; "": there is none."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def no_answer(url: str, error: Exception) -> RequestFailed:
    """What went wrong on the way to the server, in words."""
    return RequestFailed(
        f"{url or 'an empty URL'} does not answer: {error or type(error).__name__}; is `octavo serve` "
        f"running there? (--url, or {URL_VARIABLE}, names another)"
    )


def cannot_be_sent() -> InvalidRequest:
    """What a person gave is no text, or the key no header."""
    return InvalidRequest(
        "an argument, the address, or the key cannot be sent: allowed are UTF-8 text, and a key of ASCII"
    )


def require_operator(told: Mapping[str, object]) -> Mapping[str, object]:
    """What /v1/kv told, which is the whole. Raises InvalidRequest where the key is not an operator's."""
    if "counts" not in told:
        raise InvalidRequest(f"the key is that of {told.get('tenant')}; allowed: an operator's")
    return told


def path_part(text: str, what: str) -> str:
    """A name as one part of a path, whatever it holds. Raises InvalidRequest for none: the path would be that
    of another thing."""
    if not text:
        raise InvalidRequest(f"the {what} is empty; allowed: one that `octavo {what}s list` shows")
    if text in (".", ".."):  # which an address otherwise loses on the way
        return text.replace(".", "%2E")
    return _quoted(text)


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogateescape")  # an argument may be no text


def of_tenant(path: str, tenant: str | None) -> str:
    """The path of a thing that is that tenant's; None: the key's own."""
    return path if tenant is None else f"{path}?tenant={_quoted(tenant)}"


def listed(url: str, api_key: str, path: str, tenant: str | None) -> list[dict[str, object]]:
    """What the key may see of a list; or of it, what is that tenant's."""
    things = ask(url, api_key, "GET", path).get("data")
    if not isinstance(things, list):
        raise RequestFailed(f"{address_of(url, path)} lists nothing; is it Octavo?")
    return [thing for thing in things if tenant in (None, thing["tenant"])]


def words_of(told: object) -> str:
    """The message of an answer that is an error; "": it has none."""
    error = told.get("error") if isinstance(told, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
