"""`python -m bench.rows [MODEL]`: the step of 1 to 17 rows of a model, as a table or JSON lines."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from bench.rows.rows import measure_rows
from rich.console import Console
from rich.table import Table

from octavo import _native
from octavo.cli.main import run_command
from octavo.cli.terminal import probe_machine, show_progress, write
from octavo.engine.available import available_cores

_COLUMNS = ("rows", "one chunk", "sequences", "vocabulary", "dearer than more")
_ROUNDS = 15


def main(
    model: Annotated[str | None, typer.Argument(help="As for `octavo serve`.")] = None,
    weights: Annotated[str, typer.Option(help="How weights are held.")] = "auto",
    kv: Annotated[str, typer.Option(help="How K and V are held.")] = "bf16",
    context: Annotated[int, typer.Option(help="Positions before the rows.", min=1)] = 256,
    threads: Annotated[int | None, typer.Option(help="Default: one per core.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
) -> None:
    """Measure the whole step of 1 to 17 rows: no count should cost more than a larger one."""
    probe_machine()
    _native.set_num_threads(threads or available_cores())
    table = Table(title=f"1 to 17 rows, {_native.simd_probe()['chosen']}: medians")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    with show_progress() as show:
        for cost in measure_rows(model, weights, kv, range(1, 18), context, _ROUNDS, show):
            if as_json:
                write(json.dumps(dataclasses.asdict(cost)) + "\n")
            times = (cost.chunk_s, cost.sequences_s, cost.vocabulary_s)
            dearer = f"{cost.dearer:.2f}" if cost.dearer > 1 else ""
            table.add_row(str(cost.rows), *(f"{each * 1000:.2f} ms" for each in times), dearer)
    if not as_json:
        Console(highlight=False).print(table)


if __name__ == "__main__":
    run_command(lambda: typer.run(main))
