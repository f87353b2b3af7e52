"""`octavo models`: what the caches hold, fetching a model before it is needed, and removing one."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import options as opt
from octavo.cli.terminal import phases
from octavo.errors import ModelNotFound
from octavo.units import format_age, format_bytes

if TYPE_CHECKING:
    from octavo.model.hub.cache import CachedModel

models_app = typer.Typer(name="models", help="List, fetch and remove models.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="As `octavo models list` shows it: an alias, owner/name[:QUANT]."),
]


@models_app.command("list")
def list_models(as_json: opt.AsJson = False) -> None:
    """What was fetched and where it is; and the aliases that can be had."""
    from octavo.model.hub.alias import ALIASES
    from octavo.model.hub.cache import cached_models

    found = cached_models()
    for model in found:
        typer.echo(json_line(model) if as_json else model_line(model, time.time()))
    here = {model.name for model in found}
    for name in (name for name in ALIASES if name not in here and not as_json):
        size = format_bytes(ALIASES[name].member_bytes)
        typer.echo(f"{name}: {size}, not here yet; `octavo models pull {name}` fetches it")
    if not as_json:
        typer.echo("any other: `octavo models pull owner/name[:QUANT]`, from Hugging Face")


@models_app.command("pull")
def pull(model: opt.Model = None, file: opt.File = None) -> None:
    """Fetch a model, checked and ready to be served; an interrupted fetch goes on where it ended."""
    from octavo.model.hub.cache import bytes_of
    from octavo.model.hub.paths import resolve

    try:
        with phases() as report:
            found = resolve(opt.named(model, file), report)
    except KeyboardInterrupt:
        typer.echo("stopped; what was fetched stays, and the same command goes on from there", err=True)
        raise typer.Exit(130) from None
    typer.echo(f"{found.name}: {format_bytes(bytes_of(found))}, {found.kind}, {found.path}")


@models_app.command("rm")
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a model from the caches: one quantisation, or all that is there of a repository."""
    from octavo.model.hub.cache import cached_models, find_cached, remove_cached

    found = find_cached(name, cached_models())
    for model in found:
        typer.echo(model_line(model, time.time()))
    if not yes:
        typer.confirm(f"remove {'this' if len(found) == 1 else f'these {len(found)}'}?", abort=True)
    try:
        num_bytes = remove_cached(name, found)
    except OSError as error:
        raise ModelNotFound(f"{name} could not be removed: {error}") from error
    typer.echo(f"removed {name}; {format_bytes(num_bytes)} are free now")


def model_line(model: CachedModel, now: float) -> str:
    """ "owner/name:Q4_K_M: 4.4 GiB, gguf Q4_K_M, 2 files, last used 3 days ago, /home/...gguf"."""
    parts = [format_bytes(model.num_bytes)]
    if model.kind == "unfinished":
        parts.append("of an interrupted fetch; the same `octavo models pull` goes on from there")
    else:
        parts.append(f"{model.kind} {model.quant or '(quantisation not known)'}")
        if not model.is_whole:
            parts.append("not whole: `octavo models pull` fetches what is missing")
    if model.num_files > 1:
        parts.append(f"{model.num_files:,} files")
    parts += [f"last used {format_age(now - model.used_at)} ago", str(model.path)]
    return f"{model.name}: {', '.join(parts)}"


def json_line(model: CachedModel) -> str:
    """One model as one line of JSON."""
    return json.dumps(dataclasses.asdict(model) | {"path": str(model.path)})
