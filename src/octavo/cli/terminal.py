"""What commands share: progress on standard error, text on standard output, a closed engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console

from octavo.errors import ConfigError
from octavo.types import Notice

if TYPE_CHECKING:
    from octavo.config import StartOptions
    from octavo.engine.traffic import TrafficWriter
    from octavo.kernels.probe import Machine
    from octavo.routing.slots import ReplicaStart
    from octavo.serving.client import EngineClient
    from octavo.serving.start import PoliciesOf

LOG_INTERVAL_S = 2.0


@contextmanager
def running_engine(
    model: str | None,
    options: StartOptions,
    policies_of: PoliciesOf | None = None,
    traffic: TrafficWriter | None = None,
    progress: Callable[[str], None] | None = None,
    replica: ReplicaStart | None = None,
) -> Iterator[EngineClient]:
    """A started engine, with tenants' bounds and a file of its traffic if there are any; phases of the start
    go to `progress`, else they are shown on standard error while they last."""
    from octavo.serving.start import start_engine

    look_at_machine()
    with phases() if progress is None else nullcontext(progress) as report:
        llm = start_engine(model, options, report, policies_of, traffic, replica)
    try:
        yield llm
    finally:
        llm.close()


@contextmanager
def phases() -> Iterator[Callable[[str], None]]:
    """Tell what is going on: a status line in a terminal, in a log a plain line every two seconds; a `Notice`
    is a line of its own in either."""
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    if is_screen(console):
        with console.status("starting ...") as status:
            yield lambda text: console.print(text) if isinstance(text, Notice) else status.update(text)
        return
    told = time.monotonic()

    def tell(text: str) -> None:
        nonlocal told
        if isinstance(text, Notice):
            console.print(text)
        elif time.monotonic() - told >= LOG_INTERVAL_S:
            told = time.monotonic()
            console.print(text)

    yield tell


def is_screen(console: Console) -> bool:
    """Whether lines can be drawn again there: a terminal, and none that only types (TERM=dumb)."""
    return console.is_terminal and not console.is_dumb_terminal


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
