"""Requests to a server, and tables, for the commands about servers, models and caches.

    @server_command(pins_app, "renew", has_tenant=True)         `call` has --url, --api-key, --json, and
    def renew_pin(call: Call, name: PinName, ...) -> None:      --tenant; the others are the command's own

    columns   title -> text of a row            one row per line; columns without any text are left out
    --json    the rows themselves               one object per line and nothing else

The routes and files are in `server_apps` and in the apps of tenants, models and disks.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Concatenate, ParamSpec

import typer

from octavo.cli.options import AsJson
from octavo.cli.remote import DEFAULT_URL, ApiKey, Tenant, Url, fetch_list, of_tenant, send
from octavo.cli.top_text import Column, clean, table
from octavo.errors import RequestFailed

P = ParamSpec("P")
Row = Mapping[str, object]
Columns = Mapping[str, Callable[[Row], str]]

Yes = Annotated[bool, typer.Option("--yes", help="Remove without confirmation.")]
_WIDTH_MAX = 1_000_000  # no line is cut, so that its text can be copied


@dataclass(frozen=True, slots=True)
class Call:
    """One command's server, key and tenant (None: the key's), and the form of its output."""

    url: str
    api_key: str
    as_json: bool
    tenant: str | None = None

    def send(self, method: str, path: str, body: dict[str, object] | None = None) -> Row:
        """Send a request about an object of the tenant; returns the answer. Raises OctavoError."""
        return send(self.url, self.api_key, method, of_tenant(path, self.tenant), body)

    def fetch_list(self, path: str) -> Sequence[Row]:
        """The tenant's items of a list, or all that the key may see. Raises OctavoError."""
        return fetch_list(self.url, self.api_key, path, self.tenant)

    def show(self, columns: Columns, *rows: Row, none: str = "") -> None:
        """Print the rows, or `none` if there are none."""
        show(rows, columns, as_json=self.as_json, none=none)

    def show_deleted(self, name: str) -> None:
        """Print that an object was deleted."""
        typer.echo(json.dumps({"deleted": name}) if self.as_json else f"{name} is deleted")


def server_command(
    app: typer.Typer, name: str, *, has_tenant: bool = False
) -> Callable[[Callable[Concatenate[Call, P], None]], None]:
    """Register a function as a command that sends requests to a server, which get a `Call` and its own
    parameters."""
    shared: dict[str, tuple[object, object]] = {"tenant": (Tenant, None)} if has_tenant else {}
    shared |= {"url": (Url, DEFAULT_URL), "api_key": (ApiKey, ""), "as_json": (AsJson, False)}

    def register(function: Callable[Concatenate[Call, P], None]) -> None:
        def command(
            url: str, api_key: str, as_json: bool, tenant: str | None = None, *args: P.args, **own: P.kwargs
        ) -> None:
            function(Call(url, api_key, as_json, tenant), *args, **own)

        # The signature that typer reads: the function's parameters, then the shared ones.
        kind = inspect.Parameter.KEYWORD_ONLY
        own_parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [parameter.replace(kind=kind) for parameter in own_parameters]
        parameters += [
            inspect.Parameter(each, kind, default=default, annotation=annotation)
            for each, (annotation, default) in shared.items()
        ]
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, help=inspect.getdoc(function))(command)

    return register


def show(rows: Sequence[Row], columns: Columns, *, as_json: bool, none: str = "") -> None:
    """Print the rows, or `none` if there are none."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
    elif rows:
        for line in lines_of(rows, columns):
            typer.echo(line)
    elif none:
        typer.echo(none)


def show_one(row: Row, *, as_json: bool) -> None:
    """Print all fields of one object, one per line."""
    if as_json:
        typer.echo(json.dumps(row))
        return
    width = max(map(len, row), default=0)
    for name, value in row.items():
        typer.echo(f"{name:{width}}  {clean(value)}")


def lines_of(rows: Sequence[Row], columns: Columns) -> list[str]:
    """The titles, and a line for each row."""
    shown = [Column(title, [clean(cell(row)) for row in rows]) for title, cell in columns.items()]
    drawn = table([column for column in shown if any(column.cells)], _WIDTH_MAX)
    return [drawn.head, *drawn.rows]


def confirm_removal(rows: Sequence[Row], columns: Columns, *, yes: bool) -> None:
    """Show what would be removed, and ask for confirmation unless `yes`. A refusal ends the command with
    status 1."""
    show(rows, columns, as_json=False)
    if not yes:
        typer.confirm(f"remove {'this' if len(rows) == 1 else f'these {len(rows)}'}?", abort=True)


def count(name: str) -> Callable[[Row], str]:
    """The cells of a column of numbers; "" for a missing one."""
    return lambda row: "" if row.get(name) is None else f"{number(row, name):,}"


def text(name: str) -> Callable[[Row], str]:
    """The cells of a column of texts."""
    return lambda row: str(row.get(name) or "")


def number(row: Row, name: str) -> float:
    """A field's number. Raises RequestFailed if it has none."""
    value = row.get(name)
    if not isinstance(value, (int, float)):
        raise RequestFailed(f"the answer has no number {name}; is it Octavo?")
    return value
