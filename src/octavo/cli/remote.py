"""Requests from the command line to a running server: JSON in and out, with the server's error messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import typer

from octavo.errors import InvalidRequest, OctavoError, RequestFailed

URL_VARIABLE = "OCTAVO_URL"
Url = Annotated[
    str, typer.Option(metavar="URL", envvar=URL_VARIABLE, help="The server's URL, with or without /v1.")
]
OtherUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        help="Use this running server instead of loading a model.",
        show_default=False,
    ),
]
ApiKey = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        envvar="OCTAVO_API_KEY",
        help="The server's API key, if it needs one.",
        show_default=False,
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The owning tenant, for an operator's key. Default: the key's tenant.",
        show_default=False,
    ),
]
DEFAULT_URL = "http://127.0.0.1:8000"
_TIMEOUT_S = 600.0  # a pin is answered when its prompt is computed


def send(
    url: str, api_key: str, method: str, path: str, body: dict[str, object] | None = None
) -> dict[str, object]:
    """Send a request; returns the answer's JSON object. Raises OctavoError with the server's message, or for
    a failed connection."""
    import httpx2

    address, headers = address_of(url, path), headers_with(api_key)
    try:
        answer = httpx2.request(method, address, json=body, headers=headers, timeout=_TIMEOUT_S)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise no_answer(url, error) from None
    except UnicodeError:
        raise cannot_be_sent() from None
    except ValueError:
        raise InvalidRequest("a number cannot be sent; allowed: finite numbers") from None
    try:
        found = answer.json()
    except ValueError:
        raise RequestFailed(f"{address} answered {answer.status_code} without JSON; is it Octavo?") from None
    if answer.status_code >= 400:
        raise RequestFailed(error_message(found) or f"{address} answered {answer.status_code}")
    if not isinstance(found, dict):
        raise OctavoError(f"the answer of {address} is not a JSON object")
    return found


def address_of(url: str, path: str) -> str:
    """The address of a route; `url` may end in /v1, as for OpenAI's clients."""
    return url.rstrip("/").removesuffix("/v1") + path


def is_typed(given: typer.Context, name: str) -> bool:
    """Whether a parameter comes from the command line, not from a default or a variable."""
    source = given.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def headers_with(api_key: str) -> dict[str, str]:
    """The headers for a key; "": no key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def no_answer(url: str, error: Exception) -> RequestFailed:
    """The error for a server that cannot be reached."""
    return RequestFailed(
        f"{url or 'an empty URL'} does not answer: {error or type(error).__name__}; is `octavo serve` "
        f"running there? (--url, or {URL_VARIABLE}, names another)"
    )


def cannot_be_sent() -> InvalidRequest:
    """The error for an argument that is not text, or a key that is not a valid header."""
    return InvalidRequest(
        "an argument, the URL or the key cannot be sent; allowed: UTF-8 text, and an ASCII key"
    )


def require_operator(kv: Mapping[str, object]) -> Mapping[str, object]:
    """Return an answer of /v1/kv. Raises InvalidRequest if it is a tenant's view, not an operator's."""
    if "counts" not in kv:
        raise InvalidRequest(f"the key is that of {kv.get('tenant')}; allowed: an operator's")
    return kv


def path_part(text: str, what: str) -> str:
    """A name, quoted as one part of a path. Raises InvalidRequest for an empty one, which would make the path
    of another object."""
    if not text:
        raise InvalidRequest(f"the {what} is empty; allowed: one that `octavo {what}s list` shows")
    if text in (".", ".."):  # clients and proxies remove these from paths
        return text.replace(".", "%2E")
    return _quote(text)


def _quote(text: str) -> str:
    return quote(text, safe="", errors="surrogateescape")  # an argument need not be text


def of_tenant(path: str, tenant: str | None) -> str:
    """The path of a tenant's object; None: of the key's tenant."""
    return path if tenant is None else f"{path}?tenant={_quote(tenant)}"


def fetch_list(url: str, api_key: str, path: str, tenant: str | None) -> list[dict[str, object]]:
    """The items of a list that the key may see; `tenant`: only that tenant's."""
    items = send(url, api_key, "GET", path).get("data")
    if not isinstance(items, list):
        raise RequestFailed(f"the answer of {address_of(url, path)} has no list; is it Octavo?")
    return [item for item in items if tenant in (None, item["tenant"])]


def error_message(answer: object) -> str:
    """The message of a JSON error; "": it has none."""
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
