"""`octavo disk`: what a disk cache's folder holds, and how it is emptied."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.errors import ConfigError
from octavo.units import format_age, format_bytes

if TYPE_CHECKING:
    from octavo.executor.disk_folder import Namespace

disk_app = typer.Typer(
    name="disk", help="Look at and empty the folder of a disk cache.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Argument(help="The folder that --disk-cache names.")]


@disk_app.command("list")
def list_namespaces(folder: Folder) -> None:
    """What each model and setting keeps there, longest unused first."""
    from octavo.executor.disk_folder import bytes_free, survey

    folder = _looked_at(folder)
    for namespace in survey(folder):
        typer.echo(namespace_line(namespace))
    free = bytes_free(folder)
    typer.echo(f"{'an unknown size' if free is None else format_bytes(free)} free in {folder}")


@disk_app.command("clean")
def clean(
    folder: Folder,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    older_than: Annotated[
        int, typer.Option(help="Only what was not used for so many days.", min=0, max=100_000)
    ] = 0,
) -> None:
    """Remove what no process has open: blocks of this model as well as those of others."""
    from octavo.executor.disk_folder import remove, survey

    before = time.time() - older_than * 86_400
    old = [n for n in survey(_looked_at(folder)) if not n.in_use and n.used_at <= before]
    if not old:
        typer.echo(f"there is nothing to remove in {folder}")
        return
    for namespace in old:
        typer.echo(namespace_line(namespace))
    num_bytes = sum(namespace.num_bytes for namespace in old)
    if not yes:
        typer.confirm(f"remove these {len(old)} ({format_bytes(num_bytes)})?", abort=True)
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


def namespace_line(namespace: Namespace) -> str:
    """ "/kv/3f0c...e1: 20.0 GiB, 1,024 blocks, last used 3 days ago"."""
    blocks = "blocks not known" if namespace.num_blocks is None else f"{namespace.num_blocks:,} blocks"
    last = f"last used {format_age(time.time() - namespace.used_at)} ago"
    return f"{namespace.path}: {format_bytes(namespace.num_bytes)}, " + (
        "in use now" if namespace.in_use else f"{blocks}, {last}"
    )
