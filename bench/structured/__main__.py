"""`python -m bench.structured [MODEL]`: the cost of schemas, and the gain of forced tokens."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from bench.structured.structured import StructuredResult, measure_structured
from rich.console import Console
from rich.table import Table

from octavo.cli.main import run_command
from octavo.cli.terminal import probe_machine, show_progress, write


def run(model: str | None, rows: int, tokens: int, rounds: int, *, as_json: bool) -> None:
    """Measure all variants in each round, and print their medians."""
    probe_machine()
    with show_progress() as show:
        results = list(measure_structured(model, rows, tokens, rounds, show))
    if as_json:
        for each in results:
            write(json.dumps(asdict(each)) + "\n")
        return
    Console(highlight=False).print(table_of(results))


def table_of(results: list[StructuredResult]) -> Table:
    """A row for each variant."""
    table = Table(title=f"{results[0].rows} rows at once, medians")
    for column in ("variant", "tokens", "forced", "steps", "tokens/s", "masks, of a step"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for each in results:
        table.add_row(
            each.variant,
            f"{each.output_tokens:,}",
            f"{each.forced_tokens:,}",
            f"{each.steps:,}",
            f"{each.tokens_per_second:,.0f}",
            f"{each.mask_share:.1%}",
        )
    return table


def main(
    model: Annotated[str | None, typer.Argument(help="As for `octavo serve`.")] = None,
    rows: Annotated[int, typer.Option(help="Requests at once.", min=1, max=1024)] = 32,
    tokens: Annotated[
        int, typer.Option(help="Output tokens of a row, when rows are compared.", min=1, max=900)
    ] = 96,
    rounds: Annotated[int, typer.Option(help="Measured rounds, each with all variants.", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
) -> None:
    """Measure the cost of following schemas, and the gain of the tokens that they force."""
    run(model, rows, tokens, rounds, as_json=as_json)


if __name__ == "__main__":
    run_command(lambda: typer.run(main))
