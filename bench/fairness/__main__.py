"""`python -m bench.fairness [MODEL]`: the effect of a flood on a quiet tenant, as a table or JSON lines."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from bench.fairness.fairness import Scenario, SituationResult, bound_s, measure
from rich.console import Console
from rich.table import Table

from octavo.bench.offline import quantile
from octavo.cli.main import run_command
from octavo.cli.terminal import probe_machine, show_progress, write
from octavo.config import StartOptions
from octavo.serving.start import start_engine
from octavo.units import parse_bytes


def run(model: str | None, options: StartOptions, scenario: Scenario, *, as_json: bool) -> None:
    """Measure the three situations on one engine and print them."""
    probe_machine()
    with show_progress() as show:
        llm = start_engine(model, options, show)
        try:
            show("a quiet tenant alone, during a flood, and during a flood without tenants")
            found = asyncio.run(measure(llm, scenario))
        finally:
            llm.close()
    if as_json:
        for each in found:
            write(json.dumps(line_of(each, found)) + "\n")
    else:
        Console(highlight=False).print(table_of(found))


def line_of(found: SituationResult, all_of_them: list[SituationResult]) -> dict[str, object]:
    """One situation as JSON; times in seconds."""
    return {
        "situation": found.situation,
        "first_token_p50_s": quantile(sorted(found.first_token_s), 0.5),
        "first_token_p95_s": found.first_token_p95_s,
        "step_p95_s": found.step_p95_s,
        "allowed_p95_s": bound_s(all_of_them[0], found),
        "steps_until_admitted": max(found.admitted_steps, default=0),
        "flood_tokens_per_s": found.flood_tokens / found.seconds,
        "flood_blocks": found.flood_blocks,
        "flood_maximum": found.flood_maximum,
    }


def table_of(found: list[SituationResult]) -> Table:
    """A row for each situation."""
    table = Table(title="A quiet tenant during a flood")
    for column in (
        "situation", "first token p50 / p95, ms", "allowed p95, ms", "step p95, ms", "steps until admitted",
        "flood tok/s", "flood's blocks / maximum",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "situation" else "right")
    for each in found:
        line = line_of(each, found)
        maximum = "" if each.flood_maximum is None else f" / {each.flood_maximum:,}"
        table.add_row(
            each.situation,
            f"{1000 * quantile(sorted(each.first_token_s), 0.5):,.0f} / {1000 * each.first_token_p95_s:,.0f}",
            "" if each is found[0] else f"{1000 * bound_s(found[0], each):,.0f}",
            f"{1000 * each.step_p95_s:,.0f}" if each.between_s else "",
            f"{line['steps_until_admitted']}",
            f"{each.flood_tokens / each.seconds:,.0f}" if each.flood_tokens else "",
            f"{each.flood_blocks:,}{maximum}" if each.between_s else "",
        )
    return table


def main(
    model: Annotated[str | None, typer.Argument(help="As for `octavo serve`.")] = None,
    clients: Annotated[int, typer.Option(help="Clients of the flooding tenant.", min=1)] = 48,
    requests: Annotated[int, typer.Option(help="Requests of the quiet tenant.", min=1)] = 40,
    kv_memory: Annotated[str, typer.Option(help="KV memory of the engine.")] = "64MiB",
    max_seqs: Annotated[int, typer.Option(help="Most running sequences.", min=1)] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
) -> None:
    """Measure the effect of a flooding tenant on a quiet one, with quotas and fair turns and without."""
    options = StartOptions(
        backend="native",
        kv_memory_bytes=parse_bytes(kv_memory, "--kv-memory"),
        max_seqs=max_seqs,
        speculate="off",
    )
    run(model, options, Scenario(clients=clients, requests=requests), as_json=as_json)


if __name__ == "__main__":
    run_command(lambda: typer.run(main))
