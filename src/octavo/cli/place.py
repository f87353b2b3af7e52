"""Where a command's answers come from, as the command line says: an engine in this process, or a server.

    MODEL                      here; a server that OCTAVO_URL names is not asked, and that is said
    --url, or OCTAVO_URL       there: the model and the engine's settings are the server's
    neither                    here, the default model

What contradicts itself is refused before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from octavo.cli.answerer import Answerer, EngineAnswerer
from octavo.cli.given import parameters_of
from octavo.cli.remote import URL_VARIABLE, is_typed
from octavo.cli.remote_stream import RemoteServer
from octavo.cli.server_answerer import ServerAnswerer
from octavo.cli.terminal import running_engine
from octavo.config import StartOptions
from octavo.errors import ConfigError, shown

if TYPE_CHECKING:
    from octavo.params import SamplerParams


@dataclass(frozen=True, slots=True)
class Here:
    """An engine in this process; `model` None: the default one."""

    model: str | None
    options: StartOptions


Place = Here | RemoteServer


def place_of(given: typer.Context, here: Here, url: str | None, api_key: str, named_by: str = "") -> Place:
    """The place that a command's options name. Raises ConfigError for options that contradict each other."""
    named_by = named_by or ("--url" if is_typed(given, "url") else URL_VARIABLE)
    if url is not None and here.model is not None and named_by == "--url":
        raise ConfigError(
            f"the model {shown(here.model)} and --url are both given; allowed: one of them (a server answers "
            "with the model that it serves)"
        )
    if url is not None and here.model is None:
        _refuse_engine_options(given, named_by, url)
        return RemoteServer(url, api_key)
    if is_typed(given, "api_key"):
        raise ConfigError("--api-key is given, and no server is asked; allowed: with --url, without a model")
    if url is not None:
        typer.echo(f"{here.model} is loaded here; the server of {URL_VARIABLE} is not asked", err=True)
    return here


@contextmanager
def answering(place: Place, params: SamplerParams) -> Iterator[Answerer]:
    """What answers there. Raises OctavoError where an engine does not start, or a server does not answer."""
    if isinstance(place, RemoteServer):
        yield ServerAnswerer(place, params)
        return
    with running_engine(place.model, place.options) as llm:
        yield EngineAnswerer(llm, params)


def _refuse_engine_options(given: typer.Context, named_by: str, url: str) -> None:
    engine = {"file", *parameters_of(StartOptions)}
    params = [each for each in given.command.params if each.name in engine]
    typed = [each.opts[0] for each in params if each.name is not None and is_typed(given, each.name)]
    if typed:
        instead = "leave out --url" if named_by == "--url" else "name a MODEL, which is then loaded here"
        raise ConfigError(
            f"{', '.join(typed)}: the engine is the server's ({named_by} is {url}), which has the settings "
            f"that it was started with; allowed: leave out what is the engine's, or {instead}"
        )
