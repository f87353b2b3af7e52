"""`octavo tenants`: keys for a tenants file, and the file itself looked at before a server reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.remote import DEFAULT_URL, ApiKey, Url, ask_whole_pool

if TYPE_CHECKING:
    from octavo.tenants import Tenant

tenants_app = typer.Typer(
    name="tenants", help="Who may use a server, and how much of it.", no_args_is_help=True
)


@tenants_app.command("new-key")
def show_new_key() -> None:
    """Print a new key, which is nowhere kept, and the line that lets it in."""
    from octavo.tenants import digest_of, new_key

    key = new_key()
    typer.echo(f"key, for the client (shown once):  {key}")
    typer.echo("line, for its tenant in the file:")
    typer.echo(f'key_sha256 = "{digest_of(key).hex()}"')


@tenants_app.command("check")
def check(file: Annotated[Path, typer.Argument(help="The tenants file.")]) -> None:
    """Read a tenants file as a server would, and show what it says."""
    from octavo.tenants import read_tenants

    tenants = read_tenants(file)
    for tenant in tenants.all:
        typer.echo(f"{tenant.name}: {', '.join(_facts(tenant))}")
    if not any(tenant.operator for tenant in tenants.all):
        typer.echo("nobody is an operator: no key may resize the pool or read /metrics")


@tenants_app.command("list")
def list_tenants(url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """What each tenant of a running server holds and may hold; with an operator's key."""
    told = ask_whole_pool(url, api_key)
    if not told["tenants"]:
        typer.echo("no tenants")
    for use in told["tenants"]:
        typer.echo(
            f"{use['name'] or '(no tenant)'}: {use['blocks_held']:,} blocks held, {use['blocks_pinned']:,} "
            f"pinned, {_of(use.get('guaranteed'))} guaranteed, {_of(use.get('maximum'))} at most; "
            f"{use['running']:,} running, {use['waiting']:,} waiting"
        )


def _of(bound: int | None) -> str:
    return "-" if bound is None else f"{bound:,}"


def _facts(tenant: Tenant) -> list[str]:
    """What is said of it, and nothing where nothing is said."""
    bounds, times, keys = tenant.bounds, tenant.timeouts, len(tenant.digests)
    facts = ["operator"] if tenant.operator else []
    facts.append(f"{keys} keys" if keys != 1 else "1 key")
    for name, given in (
        ("guaranteed", bounds.guaranteed),
        ("maximum", bounds.maximum),
        ("request_maximum", bounds.request_maximum),
        ("session_maximum", bounds.session_maximum),
        ("disk", bounds.disk),
        ("max_running", bounds.max_running),
        ("max_queue", bounds.max_queue),
        ("timeout", times.total),
        ("queue_timeout", times.queue),
        ("ttft_timeout", times.first_token),
    ):
        if given is not None:
            facts.append(f"{name} {given:,}" if isinstance(given, int) else f"{name} {given}")
    facts.append(f"weight {bounds.weight:g}")
    facts.append(f"priority {tenant.priority}, from {tenant.priority_min} on")
    return facts
