"""`octavo disk`: list and clean the folder of a disk cache."""

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

disk_app = typer.Typer(help="List and clean the folder of a disk cache.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of --disk-cache.")]
COLUMNS: Columns = {
    "size": lambda row: format_bytes(number(row, "num_bytes")),
    "blocks": count("num_blocks"),
    "last used": lambda row: (
        "in use now" if row["in_use"] else f"{format_age(time.time() - number(row, 'used_at'))} ago"
    ),
    "folder": text("path"),
}


@disk_app.command("list")
def list_namespaces(folder: Folder, as_json: AsJson = False) -> None:
    """List the cache of each model and its settings, longest unused first."""
    from octavo.executor.disk_folder import bytes_free, survey

    folder = _check_folder(folder)
    show(_rows(survey(folder)), COLUMNS, as_json=as_json, none="the folder has no cache")
    if not as_json:
        free = bytes_free(folder)
        typer.echo(f"{'an unknown size' if free is None else format_bytes(free)} free in {folder}")


@disk_app.command("clean")
def clean(
    folder: Folder,
    yes: Yes = False,
    older_than: Annotated[
        int,
        typer.Option(metavar="DAYS", help="Only caches unused for so many days.", min=0, max=100_000),
    ] = 0,
) -> None:
    """Remove the caches, of all models and settings, that no process has open."""
    from octavo.executor.disk_folder import remove, survey

    before = time.time() - older_than * 86_400
    old = [n for n in survey(_check_folder(folder)) if not n.in_use and n.used_at <= before]
    if not old:
        typer.echo(f"there is nothing to remove in {folder}")
        return
    confirm_removal(_rows(old), COLUMNS, yes=yes)
    kept = [namespace for namespace in old if not remove(namespace)]
    for namespace in kept:
        typer.echo(f"{namespace.path} stays: a process opened it, or it could not be removed", err=True)
    typer.echo(f"removed {len(old) - len(kept)} of {len(old)}")
    if kept:
        raise typer.Exit(1)


def _check_folder(folder: Path) -> Path:
    """The folder without ~. Raises ConfigError if it cannot be read: else it would look empty."""
    try:
        found = folder.expanduser()
        os.listdir(found)
    except (OSError, RuntimeError) as error:  # RuntimeError: the home of an unknown user
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{folder} cannot be read: {why}; allowed: the folder of --disk-cache") from None
    return found


def _rows(namespaces: Sequence[Namespace]) -> list[Row]:
    return [dataclasses.asdict(each) | {"path": str(each.path)} for each in namespaces]


def namespace_line(namespace: Namespace) -> str:
    """ "/kv/3f0c...e1: 20.0 GiB, 1,024 blocks, last used 3 days ago"."""
    blocks = "unknown blocks" if namespace.num_blocks is None else f"{namespace.num_blocks:,} blocks"
    last = f"last used {format_age(time.time() - namespace.used_at)} ago"
    return f"{namespace.path}: {format_bytes(namespace.num_bytes)}, " + (
        "in use now" if namespace.in_use else f"{blocks}, {last}"
    )
