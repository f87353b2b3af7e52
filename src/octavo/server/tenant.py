"""Whose request it is: decided by the guard from the key, never by anything else that a client sends."""

from __future__ import annotations

from starlette.requests import Request

SCOPE_KEY = "octavo.tenant"


def tenant_of(request: Request) -> str:
    """The authenticated tenant; "" where there are none."""
    return str(request.scope.get(SCOPE_KEY, ""))
