"""The tenant of a request, which the guard derives from the key alone, and what follows from it: what the
request may call and see, and its defaults.

Without tenants every request has the tenant "" and an operator's rights.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.types import Scope

from octavo.errors import InvalidRequest
from octavo.kv_events.identity import salt_without_tag
from octavo.params import Timeouts
from octavo.server.errors import HttpRefusal
from octavo.server.openai_schema import TermsBody
from octavo.tenants import Tenant
from octavo.types import Request as EngineRequest

SCOPE_KEY = "octavo.tenant"
_ENTRY_KEY = "octavo.tenant.entry"
_TAG_KEY = "octavo.tenant.tag"


def set_auth_context(scope: Scope, tenant: Tenant, tag: str) -> None:
    """Set the tenant, and its tag in KV events; only the guard calls this."""
    scope[_TAG_KEY] = tag
    scope[SCOPE_KEY] = tenant.name
    scope[_ENTRY_KEY] = tenant


def tenant_of(request: Request) -> str:
    """The authenticated tenant; "" without tenants."""
    return str(request.scope.get(SCOPE_KEY, ""))


def tag_of(request: Request) -> str:
    """The tenant's tag in KV events; "" without tenants, or if no KV events are published."""
    return str(request.scope.get(_TAG_KEY, ""))


def own_salt(request: Request, body: TermsBody) -> str:
    """`cache_salt` without the tenant's own tag, which clients of routers put before it; "" for none. Raises
    InvalidRequest."""
    return salt_without_tag(body.salt, tag_of(request))


def is_operator(request: Request) -> bool:
    """Whether the key is an operator's, or there are no tenants."""
    tenant = entry_of(request)
    return tenant is None or tenant.operator


def visible_tenant(request: Request) -> str | None:
    """The only tenant whose objects the request may see; None: all tenants."""
    return None if is_operator(request) else tenant_of(request)


def owner_of(request: Request, named: str | None) -> str:
    """The tenant whose object is meant: its own, or the one that an operator named. Raises HttpRefusal."""
    own = tenant_of(request)
    if named is None or named == own:
        return own
    if SCOPE_KEY not in request.scope:
        raise InvalidRequest("tenant is given; allowed: none, this server has no tenants", param="tenant")
    if not is_operator(request):
        raise HttpRefusal(
            HTTPStatus.FORBIDDEN,
            f"tenant names another than {own}; allowed: leave it out, or use an operator's key",
            code="operators_only",
        )
    return named


def engine_request(request: Request, body: TermsBody) -> EngineRequest:
    """The engine's request without prompt and parameters: tenant, priority, timeouts and salt from the body,
    with defaults from the tenant's entry.

    Raises InvalidRequest for a priority above the tenant's limit.
    """
    tenant, given, salt = entry_of(request), body.timeouts, own_salt(request, body)
    if tenant is None:
        return EngineRequest(
            tenant=tenant_of(request), priority=body.engine_priority, timeouts=given, cache_salt=salt
        )
    priority = -tenant.priority if body.priority is None else body.engine_priority
    if -priority < tenant.priority_min:
        raise InvalidRequest(
            f"priority is {-priority}; allowed: {tenant.priority_min} or more, which run later (priority_min "
            "in the server's tenants file)",
            param="priority",
        )
    own = tenant.timeouts
    timeouts = Timeouts(
        own.total if given.total is None else given.total,
        own.queue if given.queue is None else given.queue,
        own.first_token if given.first_token is None else given.first_token,
    )
    return EngineRequest(tenant=tenant.name, priority=priority, timeouts=timeouts, cache_salt=salt)


def entry_of(request: Request) -> Tenant | None:
    """The tenant's entry in the file at the request's arrival; None without tenants."""
    found = request.scope.get(_ENTRY_KEY)
    assert found is None or isinstance(found, Tenant)
    return found
