"""`python -m tests.endurance [MODEL]`: many mixed requests, a small pool, and whether anything grows."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from tests.endurance.steady import Look, grown, spread
from tests.endurance.steady import run as run_requests

from octavo.cli.main import run_command
from octavo.cli.terminal import probe_machine, show_progress, write
from octavo.config import StartOptions
from octavo.serving.start import start_engine
from octavo.units import parse_bytes

LOOKS = 10


def run(model: str | None, options: StartOptions, num_requests: int, *, as_json: bool) -> None:
    """Send the requests and print what was there meanwhile."""
    probe_machine()
    with show_progress() as tell:
        llm = start_engine(model, options, tell)
        try:
            looks = asyncio.run(run_requests(llm, num_requests, -(-num_requests // LOOKS), tell))
        finally:
            llm.close()
    if as_json:
        for each in looks:
            write(json.dumps(asdict(each)) + "\n")
        return
    console = Console(highlight=False)
    console.print(table_of(looks))
    first = min(2, len(looks) - 1)
    console.print(
        f"resident size from {looks[first].requests:,} requests on: flat to {spread(looks, first):.1%}"
    )
    names = grown(looks, first)
    console.print(
        f"indexes that grew since: {', '.join(names) if names else 'none'} of {len(looks[-1].indexes):,}"
    )


def table_of(looks: list[Look]) -> Table:
    """A row for each look."""
    table = Table(title="Requests of mixed kinds through a small pool")
    for column in (
        "requests",
        "resident, MiB",
        "objects",
        "entries of all indexes",
        "preemptions",
        "evictions",
    ):
        table.add_column(column, justify="right")
    for each in looks:
        table.add_row(
            f"{each.requests:,}",
            f"{each.resident_bytes / 2**20:,.1f}",
            f"{each.objects:,}",
            f"{sum(each.indexes.values()):,}",
            f"{each.preemptions:,}",
            f"{each.evictions:,}",
        )
    return table


def main(
    model: Annotated[str | None, typer.Argument(help="As for `octavo serve`.")] = None,
    requests: Annotated[int, typer.Option(help="Requests of mixed kinds.", min=10)] = 10_000,
    kv_memory: Annotated[str, typer.Option(help="KV memory of the engine.")] = "8MiB",
    disk_cache: Annotated[str | None, typer.Option(help="Folder of the disk cache. Default: none.")] = None,
    disk_size: Annotated[str, typer.Option(help="Size of the disk cache's file.")] = "64MiB",
    max_seqs: Annotated[int, typer.Option(help="Sequences that run at once.", min=1)] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
) -> None:
    """Send requests of mixed kinds through a small pool; see whether memory or any index grows."""
    options = StartOptions(
        backend="native",
        kv_memory_bytes=parse_bytes(kv_memory, "--kv-memory"),
        disk_cache=disk_cache,
        disk_size_bytes=parse_bytes(disk_size, "--disk-size"),
        max_seqs=max_seqs,
        speculate="off",
    )
    run(model, options, requests, as_json=as_json)


if __name__ == "__main__":
    run_command(lambda: typer.run(main))
