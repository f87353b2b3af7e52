"""`octavo models`: list the fetched models, fetch one, and remove one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import options as opt
from octavo.cli.admin import Columns, Row, Yes, confirm_removal, number, show, text
from octavo.cli.terminal import show_progress
from octavo.errors import ModelNotFound
from octavo.units import format_age, format_bytes

if TYPE_CHECKING:
    from octavo.model.hub.cache import CachedModel

models_app = typer.Typer(help="List, fetch and remove models.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="As shown by `octavo models list`: an alias, or owner/name[:QUANT].",
        autocompletion=opt.complete_cached,
    ),
]
_ABSENT, _UNFINISHED = "absent", "unfinished"  # kinds of models that cannot be served


def _note(model: Row) -> str:
    if model["kind"] == _ABSENT:
        return f"not fetched yet: `octavo models pull {model['name']}`"
    if model["kind"] == _UNFINISHED:
        return "interrupted: `octavo models pull` continues"
    return "" if model["is_whole"] else "incomplete: `octavo models pull` fetches the rest"


COLUMNS: Columns = {
    "model": text("name"),
    "size": lambda model: format_bytes(number(model, "num_bytes")),
    "kind": lambda model: "" if model["kind"] in (_ABSENT, _UNFINISHED) else str(model["kind"]),
    "quant": text("quant"),
    "files": lambda model: f"{model['num_files']:,}" if number(model, "num_files") > 1 else "",
    "last used": lambda model: (
        f"{format_age(time.time() - number(model, 'used_at'))} ago" if model["used_at"] is not None else ""
    ),
    "note": _note,
    "path": text("path"),
}


@models_app.command("list")
def list_models(as_json: opt.AsJson = False) -> None:
    """List the fetched models and their paths, and the aliases that can be fetched."""
    from octavo.model.hub.alias import ALIASES
    from octavo.model.hub.cache import cached_models

    rows = rows_of(cached_models())
    if as_json:
        show(rows, COLUMNS, as_json=True)
        return
    here = {row["name"] for row in rows}
    absent = {"kind": _ABSENT, "num_files": 1, "used_at": None}
    rows += [
        {"name": name, "num_bytes": alias.member_bytes, **absent}
        for name, alias in ALIASES.items()
        if name not in here
    ]
    show(rows, COLUMNS, as_json=False)
    typer.echo("others: `octavo models pull owner/name[:QUANT]` fetches from Hugging Face")


@models_app.command("pull")
def pull(model: opt.Model = None, file: opt.File = None) -> None:
    """Fetch and check a model; an interrupted download continues where it stopped."""
    from octavo.model.hub.cache import bytes_of
    from octavo.model.hub.paths import resolve

    try:
        with show_progress() as report:
            found = resolve(opt.with_file(model, file), report)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues the download", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{found.name}: {format_bytes(bytes_of(found))}, {found.kind}, {found.path}")


@models_app.command("rm")
def remove(name: Name, yes: Yes = False) -> None:
    """Remove a model's files: one quantisation, or a whole repository."""
    from octavo.model.hub.cache import cached_models, find_cached, remove_cached

    found = find_cached(name, cached_models())
    confirm_removal(rows_of(found), COLUMNS, yes=yes)
    try:
        num_bytes = remove_cached(name, found)
    except OSError as error:
        raise ModelNotFound(f"{name} could not be removed: {error}") from error
    typer.echo(f"removed {name}; {format_bytes(num_bytes)} are free now")


def rows_of(models: Sequence[CachedModel]) -> list[Row]:
    """A row for each model."""
    return [dataclasses.asdict(each) | {"path": str(each.path)} for each in models]
