"""How measurements are printed: tables that a person reads, or JSON lines that a program does."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from octavo.cli.terminal import write

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_PIPE_WIDTH = 1000  # wider than any table


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]] = (), num_left: int = 1) -> Table:
    """A table whose first `num_left` columns are words, and the others numbers."""
    made = Table(title=title)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < num_left else "right")
    for row in rows:
        made.add_row(*row)
    return made


def print_all(*parts: Table | str) -> None:
    """Print tables and lines; what they say is no markup. In a pipe a table is as wide as it needs to be."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(highlight=False, markup=False, width=width)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def json_line(value: DataclassInstance | Mapping[str, object], under: str = "") -> str:
    """One line of JSON; `under` is the name of the one field that holds it."""
    plain = value if isinstance(value, Mapping) else dataclasses.asdict(value)
    return json.dumps({under: plain} if under else plain)


def print_json(*values: DataclassInstance | Mapping[str, object], under: str = "") -> None:
    """Print each as a line of JSON, at once."""
    for value in values:
        write(json_line(value, under) + "\n")
