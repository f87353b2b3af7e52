"""`octavo bench long`: a sequence larger than the pool, as a table or JSON lines."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from octavo.bench.long import LongRun, measure
from octavo.bench.workloads import LongSequence
from octavo.cli.tables import print_all, print_json, table
from octavo.cli.terminal import look_at_machine, phases
from octavo.config import StartOptions
from octavo.units import format_bytes

_NONE = "-"
_ROWS: tuple[tuple[str, Callable[[LongRun], str]], ...] = (
    ("blocks of the pool", lambda run: f"{run.pool_blocks:,}"),
    ("cold blocks", lambda run: f"{run.cold_blocks:,}"),
    ("prefill tok/s", lambda run: f"{run.prompt_tokens_per_s:,.0f}"),
    ("decode tok/s", lambda run: f"{run.tokens_per_s:.1f}"),
    ("read below a token", lambda run: format_bytes(run.bytes_offloaded)),
    (
        "of what the file gives",
        lambda run: _NONE if run.share_of_medium is None else f"{run.share_of_medium:.0%}",
    ),
    ("chats: longest gap alone, ms", lambda run: _ms(run.chat_gap_before_s)),
    ("chats: longest gap beside, ms", lambda run: _ms(run.chat_gap_beside_s)),
)


def run(model: str | None, options: StartOptions, sequence: LongSequence, *, as_json: bool) -> None:
    """Measure and print. Raises ConfigError."""
    look_at_machine()
    runs: list[LongRun] = []
    with phases() as tell:
        for one in measure(model, options, sequence, tell):
            runs.append(one)
            if as_json:
                print_json(one, under="run")
    if not as_json:
        print_all(table_of(runs, sequence))


def table_of(runs: list[LongRun], sequence: LongSequence) -> Table:
    """A column for each way of serving."""
    title = f"a prompt of {sequence.tokens:,} tokens"
    rows = [(name, *(words(one) for one in runs)) for name, words in _ROWS]
    return table(title, ("", *(one.configuration for one in runs)), rows)


def _ms(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds * 1000:.1f}"
