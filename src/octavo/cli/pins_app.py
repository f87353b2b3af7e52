"""`octavo pins`: the pins of a running server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from octavo.cli.remote import DEFAULT_URL, ApiKey, Url, ask, path_part

pins_app = typer.Typer(
    name="pins", help="Keep prompts in a running server's KV memory.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="1 to 64 letters, digits, dots, dashes and underscores.")]
Ttl = Annotated[float, typer.Option(help="Seconds that it lasts.")]


@pins_app.command("list")
def list_pins(url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """All pins, with their blocks and the time that is left."""
    pins = ask(url, api_key, "GET", "/v1/kv/pins")["data"]
    assert isinstance(pins, list)
    if not pins:
        typer.echo("no pins")
    for pin in pins:
        typer.echo(_line(pin))


@pins_app.command("add")
def add_pin(
    name: Name,
    prompt: Annotated[str, typer.Argument(help="The text to keep (- reads standard input).")],
    ttl: Ttl = 3600.0,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
) -> None:
    """Compute a prompt and keep its full blocks."""
    text = sys.stdin.read() if prompt == "-" else prompt
    typer.echo(_line(ask(url, api_key, "POST", "/v1/kv/pins", {"name": name, "prompt": text, "ttl": ttl})))


@pins_app.command("renew")
def renew_pin(name: Name, ttl: Ttl = 3600.0, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Let a pin last `--ttl` seconds from now."""
    typer.echo(_line(ask(url, api_key, "PATCH", f"/v1/kv/pins/{path_part(name)}", {"ttl": ttl})))


@pins_app.command("delete")
def delete_pin(name: Name, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Let a pin go; its blocks stay cached until they are needed."""
    ask(url, api_key, "DELETE", f"/v1/kv/pins/{path_part(name)}")
    typer.echo(f"{name} is not pinned any more")


def _line(pin: dict[str, object]) -> str:
    state = "filling" if pin["filling"] else "held"
    left = float(str(pin["seconds_left"]))
    return (
        f"{pin['name']}: {pin['num_blocks']:,} blocks of {pin['num_tokens']:,} tokens, {pin['strength']}, "
        f"{state}, {left:,.0f} s left"
    )
