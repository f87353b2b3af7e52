"""What the commands that look after servers, models and caches share: how a server is asked, and how things
are shown.

    @server_command(pins_app, "renew", has_tenant=True)         --url, --api-key, --json, and --tenant
    def renew_pin(call: Call, name: PinName, ...) -> None:      come with `call`; the rest is its own

    columns   title -> the words of a row       one row a line, columns under their titles; a column that
                                                says nothing in any row is left out
    --json    the rows themselves               one object a line and nothing else

It knows no route and no file: `server_apps` and the apps of tenants, models and disks do.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Concatenate, ParamSpec

import typer

from octavo.cli.options import AsJson
from octavo.cli.remote import DEFAULT_URL, ApiKey, Tenant, Url, ask, listed, of_tenant
from octavo.cli.top_text import Column, clean, table
from octavo.errors import RequestFailed

P = ParamSpec("P")
Row = Mapping[str, object]
Columns = Mapping[str, Callable[[Row], str]]

Yes = Annotated[bool, typer.Option("--yes", help="Remove without asking.")]
_ENDLESS = 1_000_000  # a line is never cut: what it says can be copied


@dataclass(frozen=True, slots=True)
class Call:
    """One command's server, key and tenant (None: the key's own), and how it shows what it was told."""

    url: str
    api_key: str
    as_json: bool
    tenant: str | None = None

    def ask(self, method: str, path: str, body: dict[str, object] | None = None) -> Row:
        """The server's answer about a thing of that tenant. Raises OctavoError."""
        return ask(self.url, self.api_key, method, of_tenant(path, self.tenant), body)

    def listed(self, path: str) -> Sequence[Row]:
        """What the key may see of a list, and of it what is that tenant's. Raises OctavoError."""
        return listed(self.url, self.api_key, path, self.tenant)

    def show(self, columns: Columns, *rows: Row, none: str = "") -> None:
        """Print the rows; `none` says that there are none."""
        show(rows, columns, as_json=self.as_json, none=none)

    def tell_deleted(self, name: str) -> None:
        """Print that it is gone."""
        typer.echo(json.dumps({"deleted": name}) if self.as_json else f"{name} is deleted")


def server_command(
    app: typer.Typer, name: str, *, has_tenant: bool = False
) -> Callable[[Callable[Concatenate[Call, P], None]], None]:
    """Make a function a command that asks a server: it is called with a `Call` and its own parameters."""
    shared: dict[str, tuple[object, object]] = {"tenant": (Tenant, None)} if has_tenant else {}
    shared |= {"url": (Url, DEFAULT_URL), "api_key": (ApiKey, ""), "as_json": (AsJson, False)}

    def register(function: Callable[Concatenate[Call, P], None]) -> None:
        def command(
            url: str, api_key: str, as_json: bool, tenant: str | None = None, *args: P.args, **own: P.kwargs
        ) -> None:
            function(Call(url, api_key, as_json, tenant), *args, **own)

        # What typer reads: the function's own parameters, and those that all share.
        kind = inspect.Parameter.KEYWORD_ONLY
        its_own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [parameter.replace(kind=kind) for parameter in its_own]
        parameters += [
            inspect.Parameter(each, kind, default=default, annotation=annotation)
            for each, (annotation, default) in shared.items()
        ]
        command.__dict__["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        app.command(name, help=inspect.getdoc(function))(command)

    return register


def show(rows: Sequence[Row], columns: Columns, *, as_json: bool, none: str = "") -> None:
    """Print the rows; `none` says that there are none."""
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
    elif rows:
        for line in lines_of(rows, columns):
            typer.echo(line)
    elif none:
        typer.echo(none)


def show_one(thing: Row, *, as_json: bool) -> None:
    """Print all that is known of one thing, a field a line."""
    if as_json:
        typer.echo(json.dumps(thing))
        return
    width = max(map(len, thing), default=0)
    for name, value in thing.items():
        typer.echo(f"{name:{width}}  {clean(value)}")


def lines_of(rows: Sequence[Row], columns: Columns) -> list[str]:
    """The titles, and a line for each row."""
    shown = [Column(title, [clean(words(row)) for row in rows]) for title, words in columns.items()]
    drawn = table([column for column in shown if any(column.cells)], _ENDLESS)
    return [drawn.head, *drawn.rows]


def confirm_removal(rows: Sequence[Row], columns: Columns, *, yes: bool) -> None:
    """Show what would go, and ask unless `yes`. Leaves the command with status 1 where the answer is no."""
    show(rows, columns, as_json=False)
    if not yes:
        typer.confirm(f"remove {'this' if len(rows) == 1 else f'these {len(rows)}'}?", abort=True)


def count(name: str) -> Callable[[Row], str]:
    """The words of a column of numbers: "" where there is none."""
    return lambda row: "" if row.get(name) is None else f"{number(row, name):,}"


def text(name: str) -> Callable[[Row], str]:
    """The words of a column of texts."""
    return lambda row: str(row.get(name) or "")


def number(row: Row, name: str) -> float:
    """That field as a number. Raises RequestFailed where it is none."""
    value = row.get(name)
    if not isinstance(value, (int, float)):
        raise RequestFailed(f"the answer has no number {name}; is the server an Octavo?")
    return value
