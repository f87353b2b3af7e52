"""`octavo pins`: the pins of a running server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from octavo.cli.remote import DEFAULT_URL, ApiKey, Tenant, Url, ask, listed, of_tenant, path_part, whose

pins_app = typer.Typer(
    name="pins", help="Keep prompts in a running server's KV memory.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="1 to 64 letters, digits, dots, dashes and underscores.")]
Ttl = Annotated[float, typer.Option(help="Seconds that it lasts.")]


@pins_app.command("list")
def list_pins(tenant: Tenant = None, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """All pins, with their blocks and the time that is left."""
    pins = listed(url, api_key, "/v1/kv/pins", tenant)
    if not pins:
        typer.echo("no pins")
    for pin in pins:
        typer.echo(_line(pin))


@pins_app.command("add")
def add_pin(
    name: Name,
    prompt: Annotated[str, typer.Argument(help="The text to keep (- reads standard input).")],
    ttl: Ttl = 3600.0,
    tenant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whom it is for, with an operator's key (shared: for all); else for the key's own.",
            show_default=False,
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
) -> None:
    """Compute a prompt and keep its full blocks."""
    text = sys.stdin.read() if prompt == "-" else prompt
    body: dict[str, object] = {"name": name, "prompt": text, "ttl": ttl}
    if tenant is not None:
        body["tenant"] = tenant
    typer.echo(_line(ask(url, api_key, "POST", "/v1/kv/pins", body)))


@pins_app.command("renew")
def renew_pin(
    name: Name, ttl: Ttl = 3600.0, tenant: Tenant = None, url: Url = DEFAULT_URL, api_key: ApiKey = ""
) -> None:
    """Let a pin last `--ttl` seconds from now."""
    typer.echo(_line(ask(url, api_key, "PATCH", _path_of(name, tenant), {"ttl": ttl})))


@pins_app.command("delete")
def delete_pin(name: Name, tenant: Tenant = None, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Let a pin go; its blocks stay cached until they are needed."""
    ask(url, api_key, "DELETE", _path_of(name, tenant))
    typer.echo(f"{name} is not pinned any more")


def _path_of(name: str, tenant: str | None) -> str:
    return of_tenant(f"/v1/kv/pins/{path_part(name, 'pin')}", tenant)


def _line(pin: dict[str, object]) -> str:
    state = "filling" if pin["filling"] else "held"
    left = float(str(pin["seconds_left"]))
    return (
        f"{pin['name']}{whose(pin)}: {pin['num_blocks']:,} blocks of {pin['num_tokens']:,} tokens, "
        f"{pin['strength']}, {state}, {left:,.0f} s left"
    )
