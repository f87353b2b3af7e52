"""Whose request it is: decided by the guard from the key, never by anything else that a client sends. And
what follows from that: what it may call and see, and what it gets where it names nothing.

Without tenants everybody is "" and the operator.
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
    """Note whose key it was, and how routers read the tenant; the guard alone calls this."""
    scope[_TAG_KEY] = tag
    scope[SCOPE_KEY] = tenant.name
    scope[_ENTRY_KEY] = tenant


def tenant_of(request: Request) -> str:
    """The authenticated tenant; "" where there are none."""
    return str(request.scope.get(SCOPE_KEY, ""))


def tag_of(request: Request) -> str:
    """How routers read the tenant; "" without tenants, or where no KV events are published."""
    return str(request.scope.get(_TAG_KEY, ""))


def own_salt(request: Request, body: TermsBody) -> str:
    """`cache_salt`, "" for none. One that begins with the tenant's own tag, for routers, means the rest
    alone. Raises InvalidRequest."""
    return salt_without_tag(body.salt, tag_of(request))


def is_operator(request: Request) -> bool:
    """Whether the key is an operator's, or there are no tenants."""
    tenant = entry_of(request)
    return tenant is None or tenant.operator


def visible_tenant(request: Request) -> str | None:
    """The tenant whose things alone may be shown; None: everybody's."""
    return None if is_operator(request) else tenant_of(request)


def owner_of(request: Request, asked: str | None) -> str:
    """Whose thing is meant: one's own, or, for an operator, the named tenant's. Raises HttpRefusal."""
    own = tenant_of(request)
    if asked is None or asked == own:
        return own
    if SCOPE_KEY not in request.scope:
        raise InvalidRequest("tenant is given; allowed: none, this server has no tenants", param="tenant")
    if not is_operator(request):
        raise HttpRefusal(
            HTTPStatus.FORBIDDEN,
            f"tenant names another than {own}; allowed: leave it out, or use an operator's key",
            code="operators_only",
        )
    return asked


def engine_request(request: Request, body: TermsBody) -> EngineRequest:
    """The engine's request without prompt and parameters: tenant, priority, timeouts and salt as the client
    asks for them, and where it names nothing, as its tenant's entry says.

    Raises InvalidRequest for a priority earlier than the tenant may have: nobody outranks others by asking.
    """
    tenant, asked, salt = entry_of(request), body.timeouts, own_salt(request, body)
    if tenant is None:
        return EngineRequest(
            tenant=tenant_of(request), priority=body.engine_priority, timeouts=asked, cache_salt=salt
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
        own.total if asked.total is None else asked.total,
        own.queue if asked.queue is None else asked.queue,
        own.first_token if asked.first_token is None else asked.first_token,
    )
    return EngineRequest(tenant=tenant.name, priority=priority, timeouts=timeouts, cache_salt=salt)


def entry_of(request: Request) -> Tenant | None:
    """The tenant as the file had it when the request came in; None where there are no tenants."""
    found = request.scope.get(_ENTRY_KEY)
    assert found is None or isinstance(found, Tenant)
    return found
