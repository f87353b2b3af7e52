"""Input and output that commands share: progress on standard error; text, tables and JSON lines on standard
output; and a running engine."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from octavo.errors import ConfigError
from octavo.types import Notice

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from octavo.config import StartOptions
    from octavo.engine.traffic import TrafficWriter
    from octavo.kernels.probe import Machine
    from octavo.routing.slots import ReplicaStart
    from octavo.serving.client import EngineClient
    from octavo.serving.start import PoliciesOf

LOG_INTERVAL_S = 2.0
_PIPE_WIDTH = 1000  # wider than any table


@contextmanager
def running_engine(
    model: str | None,
    options: StartOptions,
    policies_of: PoliciesOf | None = None,
    traffic: TrafficWriter | None = None,
    progress: Callable[[str], None] | None = None,
    replica: ReplicaStart | None = None,
) -> Iterator[EngineClient]:
    """A started engine, closed at the end, with the tenants' bounds and a traffic file if given. `progress`
    receives the phases of the start; None: they are shown on standard error."""
    from octavo.serving.start import start_engine

    probe_machine()
    with show_progress() if progress is None else nullcontext(progress) as report:
        llm = start_engine(model, options, report, policies_of, traffic, replica)
    try:
        yield llm
    finally:
        llm.close()


@contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """A function that shows progress: as a status line in a terminal, in a log at most every two seconds. A
    `Notice` is always printed on a line of its own."""
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    if is_screen(console):
        with console.status("starting ...") as status:
            yield lambda text: console.print(text) if isinstance(text, Notice) else status.update(text)
        return
    printed_at = time.monotonic()

    def report(text: str) -> None:
        nonlocal printed_at
        if isinstance(text, Notice):
            console.print(text)
        elif time.monotonic() - printed_at >= LOG_INTERVAL_S:
            printed_at = time.monotonic()
            console.print(text)

    yield report


def is_screen(console: Console) -> bool:
    """Whether lines can be redrawn: on a terminal that is not TERM=dumb."""
    return console.is_terminal and not console.is_dumb_terminal


def probe_machine() -> Machine:
    """The machine's processor and memory. Raises ConfigError for a wrong OCTAVO_ISA."""
    from octavo.kernels.probe import probe

    try:
        return probe()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def write(text: str) -> None:
    """Write text unchanged, without markup or wrapping, and flush it."""
    sys.stdout.write(text)
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]] = (), num_left: int = 1) -> Table:
    """A table; its first `num_left` columns are aligned left, those of numbers right."""
    made = Table(title=title)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < num_left else "right")
    for row in rows:
        made.add_row(*row)
    return made


def print_all(*parts: Table | str) -> None:
    """Print tables and lines, without markup. In a pipe a table has its full width."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(highlight=False, markup=False, width=width)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def json_line(value: DataclassInstance | Mapping[str, object], under: str = "") -> str:
    """One line of JSON; with `under`, an object whose only field has that name."""
    plain = value if isinstance(value, Mapping) else dataclasses.asdict(value)
    return json.dumps({under: plain} if under else plain)


def print_json(*values: DataclassInstance | Mapping[str, object], under: str = "") -> None:
    """Print each value as a line of JSON, and flush it."""
    for value in values:
        write(json_line(value, under) + "\n")
