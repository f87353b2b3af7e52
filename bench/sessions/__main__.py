"""`python -m bench.sessions [MODEL]`: the cost of a suspended chat's next turn after kill -9."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from bench.sessions.sessions import Scenario, SecondTurn, measure
from rich.console import Console

from octavo.bench.offline import quantile
from octavo.cli.main import run_command


def run(words: Sequence[str], folder: str | None, scenario: Scenario, *, as_json: bool) -> None:
    """Measure and print. Without a given folder, the disk cache is in a temporary one."""
    console = Console(stderr=True, highlight=False)
    with tempfile.TemporaryDirectory() as temporary, console.status("starting a server") as status:
        turns = measure(words, Path(folder or temporary), scenario, status.update)
    out = Console(highlight=False, soft_wrap=True)
    if as_json:
        for turn in turns:
            out.print_json(json.dumps(asdict(turn)), indent=None)
        return
    for line in lines_of(turns):
        out.print(line)


def lines_of(turns: Sequence[SecondTurn]) -> list[str]:
    """The report."""
    said, new = [turn.said for turn in turns], [turn.prompt_tokens - turn.said for turn in turns]
    resumed = [turn.seconds_resumed * 1000 for turn in turns]
    again = [turn.seconds_recomputed * 1000 for turn in turns]
    times = f"{sum(again) / sum(resumed):.1f} times as long" if sum(resumed) else "no text came first"
    return [
        f"{len(turns)} sessions suspended, the server killed with -9 and started again",
        f"said before: {quantile(said, 0.5):,.0f} tokens (p50), {max(said, default=0):,} at most; "
        f"new in the next turn: {quantile(new, 0.5):,.0f}",
        f"old tokens computed again: {max((turn.old_recomputed for turn in turns), default=0)} at most",
        f"time to first token, resumed:    p50 {quantile(resumed, 0.5):8,.1f} ms   "
        f"p95 {quantile(resumed, 0.95):8,.1f} ms",
        f"time to first token, recomputed: p50 {quantile(again, 0.5):8,.1f} ms   "
        f"p95 {quantile(again, 0.95):8,.1f} ms   ({times})",
    ]


def main(
    model: Annotated[str | None, typer.Argument(help="As for `octavo serve`.")] = None,
    n: Annotated[int, typer.Option("--n", help="Suspended chats.", min=1, max=1000)] = 50,
    lines: Annotated[
        int, typer.Option(help="Lines of the first question, about 12 tokens each.", min=1)
    ] = 60,
    out: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 32,
    folder: Annotated[
        str | None, typer.Option(help="Folder for the disk cache. Default: a temporary one.")
    ] = None,
    kv_memory: Annotated[str, typer.Option(help="KV memory of the servers.")] = "256MiB",
    disk_size: Annotated[str, typer.Option(help="Size of the disk cache's file.")] = "2GiB",
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
) -> None:
    """Suspend chats, kill the server with -9, start it again, and measure the next turns."""
    words = [*([model] if model else []), "--kv-memory", kv_memory, "--disk-size", disk_size]
    run(words, folder, Scenario(n, lines, out), as_json=as_json)


if __name__ == "__main__":
    run_command(lambda: typer.run(main))
