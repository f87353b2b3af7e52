"""`octavo pool`: the KV memory of a running server, looked at and resized."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from octavo.cli.remote import DEFAULT_URL, ApiKey, Url, ask, ask_whole_pool
from octavo.units import format_bytes, parse_bytes

pool_app = typer.Typer(
    name="pool", help="Look at and resize a running server's KV memory.", no_args_is_help=True
)


@pool_app.command("show")
def show(url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Its size, what it holds, and what it could grow to."""
    typer.echo(_line(ask_whole_pool(url, api_key)))


@pool_app.command("resize")
def resize(
    size: Annotated[str, typer.Argument(help="The new size, such as 512MiB.")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
) -> None:
    """Let the pool grow or shrink while it serves."""
    typer.echo(_line(ask(url, api_key, "PATCH", "/v1/kv", {"bytes": parse_bytes(size, "SIZE")})))


def _line(kv: dict[str, Any]) -> str:
    counts, per_block = kv["counts"], kv["bytes_per_block"]
    resident = format_bytes(kv["blocks_resident"] * per_block)
    why = (
        f"\nsmaller than the {kv['blocks_wanted']:,} asked for: {kv['why_smaller']}"
        if kv["why_smaller"]
        else ""
    )
    return (
        f"{counts['total']:,} blocks ({format_bytes(counts['total'] * per_block)}): {counts['held']:,} held, "
        f"{counts['cached']:,} cached, {counts['free']:,} free; can grow to {kv['capacity']:,} "
        f"({format_bytes(kv['capacity'] * per_block)}); {resident} in memory{why}"
    )
