"""`octavo sessions`: the chat sessions of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli.remote import DEFAULT_URL, ApiKey, Tenant, Url, ask, listed, of_tenant, path_part, whose
from octavo.units import format_bytes

sessions_app = typer.Typer(
    name="sessions", help="Chats whose KV memory is kept between their turns.", no_args_is_help=True
)

Id = Annotated[str, typer.Argument(help="As the server chose it: `octavo sessions list`.")]


@sessions_app.command("list")
def list_sessions(tenant: Tenant = None, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """All sessions, with their bytes and where those are."""
    sessions = listed(url, api_key, "/v1/sessions", tenant)
    if not sessions:
        typer.echo("no sessions")
    for session in sessions:
        typer.echo(line_of(session))


@sessions_app.command("show")
def show_session(session: Id, tenant: Tenant = None, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Everything about one session."""
    for name, value in ask(url, api_key, "GET", _path_of(session, "", tenant)).items():
        typer.echo(f"{name:18s} {value}")


@sessions_app.command("fork")
def fork_session(
    session: Id,
    turn: Annotated[
        int | None, typer.Option(help="After which of its turns; else the last.", show_default=False)
    ] = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
) -> None:
    """Make a session that goes on from a turn of this one, and holds the same blocks."""
    body: dict[str, object] = {} if turn is None else {"turn": turn}
    typer.echo(line_of(ask(url, api_key, "POST", _path_of(session, "/fork", tenant), body)))


@sessions_app.command("suspend")
def suspend_session(session: Id, tenant: Tenant = None, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Send a session's blocks to disk; returns when all of it survives a crash."""
    typer.echo(line_of(ask(url, api_key, "POST", _path_of(session, "/suspend", tenant))))


@sessions_app.command("resume")
def resume_session(session: Id, tenant: Tenant = None, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Bring a session's blocks back into memory and hold them there until its next turn has ended."""
    typer.echo(line_of(ask(url, api_key, "POST", _path_of(session, "/resume", tenant))))


@sessions_app.command("delete")
def delete_session(session: Id, tenant: Tenant = None, url: Url = DEFAULT_URL, api_key: ApiKey = "") -> None:
    """Forget a session; its blocks stay cached until they are needed."""
    ask(url, api_key, "DELETE", _path_of(session, "", tenant))
    typer.echo(f"{session} is deleted")


def _path_of(session: str, action: str, tenant: str | None) -> str:
    return of_tenant(f"/v1/sessions/{path_part(session, 'session')}{action}", tenant)


def line_of(session: dict[str, object]) -> str:
    """One session in a line."""
    in_pool, below = int(str(session["bytes_in_pool"])), int(str(session["bytes_below"]))
    note = f" ({session['note']})" if session["note"] else ""
    return (
        f"{session['id']}{whose(session)}: {session['state']}, {session['num_tokens']:,} tokens, "
        f"{session['num_blocks']:,} blocks in {session['tier']}: {format_bytes(in_pool)} in memory, "
        f"{format_bytes(below)} on disk, {float(str(session['seconds_left'])):,.0f} s left{note}"
    )
