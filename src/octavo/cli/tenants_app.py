"""`octavo tenants`: make keys for a tenants file, check the file, and list a running server's tenants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.admin import Call, Columns, Row, count, server_command, show, show_one, text
from octavo.cli.options import AsJson
from octavo.cli.remote import require_operator

if TYPE_CHECKING:
    from octavo.tenants import Tenant

tenants_app = typer.Typer(help="Manage a server's tenants and their bounds.", no_args_is_help=True)

FILE: Columns = {
    "tenant": text("name"),
    "keys": lambda tenant: str(tenant["keys"]),
    "operator": lambda tenant: "yes" if tenant["operator"] else "",
    "bounds": lambda tenant: ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in tenant.items()
        if name not in ("name", "keys", "operator") and value is not None
    ),
}
USE: Columns = {
    "tenant": lambda use: str(use["name"] or "(no tenant)"),
    "held": count("blocks_held"),
    "pinned": count("blocks_pinned"),
    "guaranteed": count("guaranteed"),
    "maximum": count("maximum"),
    "running": count("running"),
    "waiting": count("waiting"),
}


@tenants_app.command("new-key")
def show_new_key(as_json: AsJson = False) -> None:
    """Make a new key, shown once, and its line for the tenants file."""
    from octavo.tenants import digest_of, new_key

    key = new_key()
    digest = digest_of(key).hex()
    if as_json:
        show_one({"key": key, "key_sha256": digest}, as_json=True)
        return
    typer.echo(f"key, for the client (shown once):  {key}")
    typer.echo("line, for its tenant in the file:")
    typer.echo(f'key_sha256 = "{digest}"')


@tenants_app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The tenants file.")], as_json: AsJson = False
) -> None:
    """Check a tenants file as a server would, and show its tenants."""
    from octavo.tenants import read_tenants

    tenants = read_tenants(file)
    show([_row(tenant) for tenant in tenants.all], FILE, as_json=as_json, none="no tenants")
    if not as_json and not any(tenant.operator for tenant in tenants.all):
        typer.echo("no tenant is an operator: no key may resize the pool or read /metrics")


@server_command(tenants_app, "list")
def list_tenants(call: Call) -> None:
    """List the blocks that each tenant of a server holds; needs an operator's key."""
    uses = require_operator(call.send("GET", "/v1/kv"))["tenants"]
    call.show(USE, *(uses if isinstance(uses, list) else ()), none="no tenants")


def _row(tenant: Tenant) -> Row:
    """A tenant's entry of the file; None: not in the file."""
    from octavo.tenants import Amount

    bounds, times = tenant.bounds, tenant.timeouts
    values: dict[str, object] = {
        "guaranteed": bounds.guaranteed,
        "maximum": bounds.maximum,
        "request_maximum": bounds.request_maximum,
        "session_maximum": bounds.session_maximum,
        "disk": bounds.disk,
        "max_running": bounds.max_running,
        "max_queue": bounds.max_queue,
        "timeout": times.total,
        "queue_timeout": times.queue,
        "ttft_timeout": times.first_token,
        "weight": bounds.weight,
        "priority": tenant.priority,
        "priority_min": tenant.priority_min,
    }
    shown = {name: str(value) if isinstance(value, Amount) else value for name, value in values.items()}
    return {"name": tenant.name, "operator": tenant.operator, "keys": len(tenant.digests), **shown}
