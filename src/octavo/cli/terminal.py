"""What commands share: progress on standard error, text on standard output, a closed engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.config import StartOptions
    from octavo.engine.client import AsyncLLM
    from octavo.kernels.probe import Machine


@contextmanager
def running_engine(model: str | None, options: StartOptions) -> Iterator[AsyncLLM]:
    """A started engine; phases of the start are shown on standard error while they last."""
    from octavo.engine.start import start_engine

    look_at_machine()
    console = Console(stderr=True)
    with console.status("starting ...") as status:
        llm = start_engine(model, options, lambda text: status.update(text))
    try:
        yield llm
    finally:
        llm.close()


def look_at_machine() -> Machine:
    """The machine, with a wrong OCTAVO_ISA as the ConfigError that it is."""
    from octavo.kernels.probe import probe

    try:
        return probe()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def write(text: str) -> None:
    """Text as it is, at once: no markup, no wrapping."""
    sys.stdout.write(text)
    sys.stdout.flush()
