"""`octavo disk`: what a disk cache's folder holds, and how it is emptied."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.admin import Columns, Row, Yes, confirm_removal, count, number, show, text
from octavo.cli.options import AsJson
from octavo.errors import ConfigError
from octavo.units import format_age, format_bytes

if TYPE_CHECKING:
    from octavo.executor.disk_folder import Namespace

disk_app = typer.Typer(help="Look at and empty the folder of a disk cache.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that --disk-cache names.")]
COLUMNS: Columns = {
    "size": lambda kept: format_bytes(number(kept, "num_bytes")),
    "blocks": count("num_blocks"),
    "last used": lambda kept: (
        "in use now" if kept["in_use"] else f"{format_age(time.time() - number(kept, 'used_at'))} ago"
    ),
    "folder": text("path"),
}


@disk_app.command("list")
def list_namespaces(folder: Folder, as_json: AsJson = False) -> None:
    """List what each model and setting keeps there, longest unused first."""
    from octavo.executor.disk_folder import bytes_free, survey

    folder = _looked_at(folder)
    show(_rows(survey(folder)), COLUMNS, as_json=as_json, none="nothing is kept there")
    if not as_json:
        free = bytes_free(folder)
        typer.echo(f"{'an unknown size' if free is None else format_bytes(free)} free in {folder}")


@disk_app.command("clean")
def clean(
    folder: Folder,
    yes: Yes = False,
    older_than: Annotated[
        int,
        typer.Option(metavar="DAYS", help="Only what was not used for so many days.", min=0, max=100_000),
    ] = 0,
) -> None:
    """Remove what no process has open, of every model and setting."""
    from octavo.executor.disk_folder import remove, survey

    before = time.time() - older_than * 86_400
    old = [n for n in survey(_looked_at(folder)) if not n.in_use and n.used_at <= before]
    if not old:
        typer.echo(f"there is nothing to remove in {folder}")
        return
    confirm_removal(_rows(old), COLUMNS, yes=yes)
    kept = [namespace for namespace in old if not remove(namespace)]
    for namespace in kept:
        typer.echo(f"{namespace.path} stays: a process has opened it, or it could not be removed", err=True)
    typer.echo(f"removed {len(old) - len(kept)} of {len(old)}")
    if kept:
        raise typer.Exit(1)


def _looked_at(folder: Path) -> Path:
    """The folder, which is there and can be read. Raises ConfigError: nothing found would else look like
    nothing kept."""
    try:
        found = folder.expanduser()
        os.listdir(found)
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody's home
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"{folder} cannot be looked at: {why}; allowed: the folder that --disk-cache names"
        ) from None
    return found


def _rows(namespaces: Sequence[Namespace]) -> list[Row]:
    return [dataclasses.asdict(each) | {"path": str(each.path)} for each in namespaces]


def namespace_line(namespace: Namespace) -> str:
    """ "/kv/3f0c...e1: 20.0 GiB, 1,024 blocks, last used 3 days ago"."""
    blocks = "blocks not known" if namespace.num_blocks is None else f"{namespace.num_blocks:,} blocks"
    last = f"last used {format_age(time.time() - namespace.used_at)} ago"
    return f"{namespace.path}: {format_bytes(namespace.num_bytes)}, " + (
        "in use now" if namespace.in_use else f"{blocks}, {last}"
    )
