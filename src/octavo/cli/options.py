"""Options that several commands share: the model, sampling, the size of a cluster.

`flags.with_settings` makes the flags of an engine's and a server's settings. To complete a model's name a
shell runs the command at each tab, so nothing here loads a heavy module or uses the network.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Annotated

import typer

from octavo.errors import ConfigError, OctavoError, shown
from octavo.params import SamplerParams
from octavo.setting import setting


def complete_model(incomplete: str) -> list[str]:
    """The aliases and the fetched models whose names begin so."""
    from octavo.model.hub.alias import ALIASES

    names = dict.fromkeys([*ALIASES, *complete_cached(incomplete)])
    return [name for name in names if name.startswith(incomplete)]


def complete_cached(incomplete: str) -> list[str]:
    """The fetched models whose names begin so; none if the cache cannot be read."""
    from octavo.model.hub.cache import cached_models

    with contextlib.suppress(OctavoError, OSError):
        return [model.name for model in cached_models() if model.name.startswith(incomplete)]
    return []


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Alias, .gguf file, folder, or Hugging Face id; folder:Q4_K_M and owner/name:Q4_K_M select one "
        "of several files. Default: smollm2-135m.",
        show_default=False,
        autocompletion=complete_model,
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        metavar="NAME.gguf",
        help="The file to use if MODEL is a folder or a repository with several.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only, one object per line.")]


@dataclass(frozen=True, slots=True)
class Sampling:
    """A command's sampling options; `SamplerParams` checks the bounds."""

    max_tokens: int | None = setting(
        None, "Maximum number of tokens to generate.", unset="until the model ends", group="Sampling"
    )
    temperature: float = setting(1.0, "0 takes the likeliest token.")
    top_p: float = setting(1.0, "Sample from the likeliest tokens with this total probability; 1 keeps all.")
    top_k: int = setting(0, "Sample from the k likeliest tokens; 0 keeps all.")
    seed: int | None = setting(None, "The same seed gives the same text.", unset="random")
    stop: tuple[str, ...] = setting((), "Stop before this text; repeatable.")

    @property
    def params(self) -> SamplerParams:
        """The engine's parameters. Raises InvalidRequest."""
        return SamplerParams(**dataclasses.asdict(self))


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Replicas of a cluster and their nodes; `ClusterSpec` checks the bounds."""

    replicas: int | None = setting(None, "Number of replicas.", unset="1", group="Cluster")
    min_replicas: int | None = setting(None, "With --max-replicas: scale replicas with the load.", unset="1")
    max_replicas: int | None = setting(None, "Maximum number of replicas.", unset="as many as --min-replicas")
    requests_per_replica: int = setting(
        8, "Running and waiting requests per replica that scaling aims at, with --max-replicas."
    )
    replicas_per_node: int | None = setting(
        None,
        "Replicas per node, which share its threads and memory.",
        unset="as many as the nodes need",
    )
    relays_per_node: int = setting(2, "Relay processes per node, which accept clients on one port.")
    private_network: bool = setting(
        False, "Let replicas listen on their nodes' addresses, for relays on other machines."
    )


def with_file(model: str | None, file: str | None) -> str | None:
    """The model with the file of `--file`. Raises ConfigError if it cannot have such a file."""
    if file is None:
        return model
    from octavo.model.hub import paths

    return paths.with_file(model, file)


def parse_numbers(text: str, flag: str) -> tuple[int, ...]:
    """ "1,8,32" as (1, 8, 32). Raises ConfigError unless all are integers from 1 to 999,999,999."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) >= 1 for part in parts):
        raise ConfigError(f"{flag} is {shown(text)}; allowed: numbers of at least 1, such as 1,8,32")
    return tuple(int(part) for part in parts)
