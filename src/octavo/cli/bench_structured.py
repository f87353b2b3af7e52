"""`octavo bench structured`: what schemas cost, and what forced tokens save."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from octavo.bench.structured import StructuredResult, measure_structured
from octavo.cli.terminal import look_at_machine, phases, write


def run(model: str | None, rows: int, tokens: int, rounds: int, *, as_json: bool) -> None:
    """Measure all variants in turn and print their medians."""
    look_at_machine()
    with phases() as tell:
        results = list(measure_structured(model, rows, tokens, rounds, tell))
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
