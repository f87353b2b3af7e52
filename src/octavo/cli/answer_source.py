"""The source of a command's answers: an engine in this process, or a server.

    MODEL                      an engine here; if OCTAVO_URL names a server, a line says that it is not used
    --url, or OCTAVO_URL       the server, with its own model and engine settings
    neither                    an engine here, with the default model

Contradictory options are refused before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from octavo.cli.answerer import Answerer, EngineAnswerer
from octavo.cli.flags import parameters_of
from octavo.cli.remote import URL_VARIABLE, is_typed
from octavo.cli.remote_stream import RemoteServer
from octavo.cli.server_answerer import ServerAnswerer
from octavo.cli.terminal import running_engine
from octavo.config import StartOptions
from octavo.errors import ConfigError, shown

if TYPE_CHECKING:
    from octavo.params import SamplerParams


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """An engine in this process; `model` None: the default model."""

    model: str | None
    options: StartOptions


AnswerSource = LocalEngine | RemoteServer


def choose_source(
    given: typer.Context, local: LocalEngine, url: str | None, api_key: str, named_by: str = ""
) -> AnswerSource:
    """The source that a command's options select. Raises ConfigError for options that contradict each
    other."""
    named_by = named_by or ("--url" if is_typed(given, "url") else URL_VARIABLE)
    if url is not None and local.model is not None and named_by == "--url":
        raise ConfigError(
            f"the model {shown(local.model)} and --url are both given; allowed: one of them (a server has "
            "its own model)"
        )
    if url is not None and local.model is None:
        _refuse_engine_options(given, named_by, url)
        return RemoteServer(url, api_key)
    if is_typed(given, "api_key"):
        raise ConfigError("--api-key is given without a server; allowed: with --url, without a model")
    if url is not None:
        typer.echo(f"{local.model} is loaded here; the server of {URL_VARIABLE} is not used", err=True)
    return local


@contextmanager
def open_answerer(source: AnswerSource, params: SamplerParams) -> Iterator[Answerer]:
    """The source's answerer. Raises OctavoError if the engine fails to start or the server is silent."""
    if isinstance(source, RemoteServer):
        yield ServerAnswerer(source, params)
        return
    with running_engine(source.model, source.options) as llm:
        yield EngineAnswerer(llm, params)


def _refuse_engine_options(given: typer.Context, named_by: str, url: str) -> None:
    engine = {"file", *parameters_of(StartOptions)}
    params = [each for each in given.command.params if each.name in engine]
    typed = [each.opts[0] for each in params if each.name is not None and is_typed(given, each.name)]
    if typed:
        instead = "leave out --url" if named_by == "--url" else "name a MODEL, which is then loaded here"
        raise ConfigError(
            f"{', '.join(typed)}: the server's engine has its own settings ({named_by} is {url}); allowed: "
            f"leave these options out, or {instead}"
        )
