"""`octavo pins`, `octavo sessions` and `octavo pool`: pins, sessions and the size of a running server's KV
memory. Each command calls one route and shows the answer."""

from __future__ import annotations

import sys
from typing import Annotated
from urllib.parse import urlencode

import typer

from octavo.cli.admin import Call, Columns, Row, count, number, server_command, show_one, text
from octavo.cli.remote import path_part, require_operator
from octavo.server.former_names import without_former_fields
from octavo.units import format_bytes, parse_bytes

pins_app = typer.Typer(help="Keep prompts in a running server's KV memory.", no_args_is_help=True)
sessions_app = typer.Typer(help="Manage chats whose KV memory a server keeps.", no_args_is_help=True)
pool_app = typer.Typer(help="Show and resize a running server's KV memory.", no_args_is_help=True)

PinName = Annotated[
    str, typer.Argument(metavar="NAME", help="1 to 64 letters, digits, dots, dashes and underscores.")
]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="As shown by `octavo sessions list`.")]
Ttl = Annotated[float, typer.Option(metavar="SECONDS", help="Time until it expires.")]
Replica = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The replica of a cluster, such as replica-1.", show_default=False),
]


def _left(row: Row) -> str:
    return f"{number(row, 'seconds_left'):,.0f} s"


def _blocks_as_bytes(pool: Row, name: str) -> str:
    return format_bytes(number(pool, name) * number(pool, "bytes_per_block"))


PINS: Columns = {
    "pin": text("name"),
    "tenant": text("tenant"),
    "blocks": count("num_blocks"),
    "tokens": count("num_tokens"),
    "strength": text("strength"),
    "state": lambda pin: "filling" if pin["filling"] else "held",
    "left": _left,
}
SESSIONS: Columns = {
    "session": text("id"),
    "tenant": text("tenant"),
    "state": text("state"),
    "tokens": count("num_tokens"),
    "blocks": count("num_blocks"),
    "in memory": lambda session: format_bytes(number(session, "bytes_in_pool")),
    "on disk": lambda session: format_bytes(number(session, "bytes_offloaded")),
    "left": _left,
    "note": text("note"),
}
POOL: Columns = {
    "blocks": count("total"),
    "size": lambda pool: _blocks_as_bytes(pool, "total"),
    "held": count("held"),
    "cached": count("cached"),
    "free": count("free"),
    "in memory": lambda pool: _blocks_as_bytes(pool, "blocks_resident"),
    "can grow to": lambda pool: f"{number(pool, 'capacity'):,} ({_blocks_as_bytes(pool, 'capacity')})",
}


# -- pins ----------------------------------------------------------------------------------------------------
@server_command(pins_app, "list", has_tenant=True)
def list_pins(call: Call) -> None:
    """List all pins, with their blocks and remaining time."""
    call.show(PINS, *call.fetch_list("/v1/kv/pins"), none="no pins")


@server_command(pins_app, "add")
def add_pin(
    call: Call,
    name: PinName,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text to keep (-: read from standard input).")
    ],
    ttl: Ttl = 3600.0,
    for_tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant",
            metavar="NAME",
            help="The owning tenant (shared: all), for an operator's key. Default: the key's tenant.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compute a prompt and keep its full blocks in memory."""
    body: dict[str, object] = {"name": name, "prompt": sys.stdin.read() if prompt == "-" else prompt}
    body |= {"ttl": ttl} if for_tenant is None else {"ttl": ttl, "tenant": for_tenant}
    call.show(PINS, call.send("POST", "/v1/kv/pins", body))


@server_command(pins_app, "renew", has_tenant=True)
def renew_pin(call: Call, name: PinName, ttl: Ttl = 3600.0) -> None:
    """Set a pin's expiry to --ttl seconds from now."""
    call.show(PINS, call.send("PATCH", f"/v1/kv/pins/{path_part(name, 'pin')}", {"ttl": ttl}))


@server_command(pins_app, "delete", has_tenant=True)
def delete_pin(call: Call, name: PinName) -> None:
    """Delete a pin; its blocks stay cached until they are evicted."""
    call.send("DELETE", f"/v1/kv/pins/{path_part(name, 'pin')}")
    call.show_deleted(name)


# -- sessions ------------------------------------------------------------------------------------------------
@server_command(sessions_app, "list", has_tenant=True)
def list_sessions(call: Call) -> None:
    """List all sessions, with their bytes in memory and on disk."""
    call.show(SESSIONS, *call.fetch_list("/v1/sessions"), none="no sessions")


@server_command(sessions_app, "show", has_tenant=True)
def show_session(call: Call, session: SessionId) -> None:
    """Show all fields of one session."""
    row = without_former_fields(call.send("GET", _path_of(session)))
    show_one(row, as_json=call.as_json)


@server_command(sessions_app, "fork", has_tenant=True)
def fork_session(
    call: Call,
    session: SessionId,
    turn: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The turn after which it continues. Default: the last.", show_default=False
        ),
    ] = None,
) -> None:
    """Make a session that continues from a turn of this one and shares its blocks."""
    body: dict[str, object] = {} if turn is None else {"turn": turn}
    call.show(SESSIONS, call.send("POST", f"{_path_of(session)}/fork", body))


@server_command(sessions_app, "suspend", has_tenant=True)
def suspend_session(call: Call, session: SessionId) -> None:
    """Store a session's blocks on disk; returns when they would survive a crash."""
    call.show(SESSIONS, call.send("POST", f"{_path_of(session)}/suspend"))


@server_command(sessions_app, "resume", has_tenant=True)
def resume_session(call: Call, session: SessionId) -> None:
    """Load a session's blocks into memory and hold them until its next turn ends."""
    call.show(SESSIONS, call.send("POST", f"{_path_of(session)}/resume"))


@server_command(sessions_app, "delete", has_tenant=True)
def delete_session(call: Call, session: SessionId) -> None:
    """Delete a session; its blocks stay cached until they are evicted."""
    call.send("DELETE", _path_of(session))
    call.show_deleted(session)


def _path_of(session: str) -> str:
    return f"/v1/sessions/{path_part(session, 'session')}"


# -- pool ----------------------------------------------------------------------------------------------------
@server_command(pool_app, "show")
def show_pool(call: Call, replica: Replica = None) -> None:
    """Show the pool's size, use and capacity."""
    _show_pool(call, require_operator(call.send("GET", _pool_of(replica))))


@server_command(pool_app, "resize")
def resize_pool(
    call: Call,
    size: Annotated[str, typer.Argument(metavar="SIZE", help="The new size, such as 512MiB.")],
    replica: Replica = None,
) -> None:
    """Resize the pool of a running server."""
    _show_pool(call, call.send("PATCH", _pool_of(replica), {"bytes": parse_bytes(size, "SIZE")}))


def _pool_of(replica: str | None) -> str:
    return "/v1/kv" if replica is None else f"/v1/kv?{urlencode({'replica': replica})}"


def _show_pool(call: Call, pool: Row) -> None:
    counts = pool["counts"]
    call.show(POOL, pool if call.as_json or not isinstance(counts, dict) else {**pool, **counts})
    if pool["why_smaller"] and not call.as_json:
        typer.echo(f"smaller than the {number(pool, 'blocks_wanted'):,} requested: {pool['why_smaller']}")
