"""`python -m bench.watching [MODEL]`: the cost of a reader of the live map's stream, as tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from bench.watching.watching import FeedCost, Round, Scene, draw, serve
from rich.console import Console
from rich.table import Table

from octavo.bench.offline import quantile
from octavo.bench.workloads import LoadProfile
from octavo.cli.main import run_command
from octavo.cli.terminal import probe_machine, show_progress, write
from octavo.engine.outputs import EngineStats
from octavo.server.feeds import pause_s
from octavo.server.frame_rows import stats_row
from octavo.server.frames import FrameWriter
from octavo.server.metrics import Metrics

CONCURRENCY = 32


def run(words: Sequence[str], scene: Scene, tokens: int, rounds: int, *, as_json: bool) -> None:
    """Measure and print; `words` are options of the server. Raises RequestFailed."""
    probe_machine()
    console, turns = Console(highlight=False), list[Round]()
    with show_progress() as show:
        drawn = draw(scene, FrameWriter({}), other_fields(), pause_s, show)
        if as_json:
            write(json.dumps({"drawn": asdict(drawn)}) + "\n")
        else:
            console.print(drawn_table(drawn, scene))
        for turn in serve([*words], LoadProfile(output=tokens), CONCURRENCY, rounds, show) if rounds else ():
            turns.append(turn)
            if as_json:
                write(json.dumps({"served": line_of(turn)}) + "\n")
    if turns and not as_json:
        console.print(served_table(turns))
        console.print(verdict(turns))


def other_fields() -> Callable[[int], Mapping[str, object]]:
    """The other fields of the operator's feed: counters, which change with every step, and latencies."""
    latency = Metrics(EngineStats).latency()
    return lambda steps: {"stats": stats_row(EngineStats(steps=steps)), "latency": latency}


def drawn_table(drawn: FeedCost, scene: Scene) -> Table:
    """A row for each figure."""
    table = Table(
        title=f"One glimpse of {drawn.blocks:,} blocks, {drawn.requests} requests, {drawn.streams} streams\n"
        f"a real ledger and scheduler, synthetic tokens, {scene.step_s * 1000:g} ms a step on a virtual clock"
    )
    table.add_column("")
    table.add_column("", justify="right")
    for name, text in (
        (
            "glimpse on the engine's thread, ms: p50 / p95",
            f"{drawn.glimpse_ms:.2f} / {drawn.glimpse_p95_ms:.2f}",
        ),
        ("frame written, ms: p50 / p95", f"{drawn.frame_ms:.2f} / {drawn.frame_p95_ms:.2f}"),
        ("a snapshot, bytes", f"{drawn.snapshot_bytes:,}"),
        ("a frame of changes, bytes", f"{drawn.frame_bytes:,.0f}"),
        ("frames a second", f"{drawn.frames_per_s:.1f}"),
        ("bytes a second", f"{drawn.bytes_per_s:,.0f}"),
        ("blocks taken by the streams a second", f"{drawn.blocks_per_s:.0f}"),
    ):
        table.add_row(name, text)
    return table


def served_table(turns: Sequence[Round]) -> Table:
    """A row for each round."""
    table = Table(title=f"W1 at {CONCURRENCY} at once over HTTP, with a reader of the stream and without")
    for column in ("round", "alone, tok/s", "watched, tok/s", "ratio", "frames/s", "KiB/s"):
        table.add_column(column, justify="right")
    for index, turn in enumerate(turns):
        table.add_row(
            str(index + 1),
            f"{turn.alone.output_tokens_per_s:.1f}",
            f"{turn.watched.output_tokens_per_s:.1f}",
            f"{turn.ratio:.3f}",
            f"{turn.read.frames / turn.read.seconds:.1f}",
            f"{turn.read.bytes / turn.read.seconds / 1024:.1f}",
        )
    return table


def verdict(turns: Sequence[Round]) -> str:
    """The median ratio, between the lowest and the highest."""
    ratios = sorted(turn.ratio for turn in turns)
    return (
        f"tokens a second with a reader over those without: {quantile(ratios, 0.5):.3f} in the median, "
        f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
    )


def line_of(turn: Round) -> dict[str, object]:
    """One round as JSON."""
    return {
        "alone_tokens_per_s": turn.alone.output_tokens_per_s,
        "watched_tokens_per_s": turn.watched.output_tokens_per_s,
        "ratio": turn.ratio,
        "frames_per_s": turn.read.frames / turn.read.seconds,
        "bytes_per_s": turn.read.bytes / turn.read.seconds,
    }


def main(
    model: Annotated[str | None, typer.Argument(help="As for `octavo serve`.")] = None,
    rounds: Annotated[
        int, typer.Option(help="Rounds over HTTP, each with a reader and without; 0: none.", min=0)
    ] = 5,
    tokens: Annotated[int, typer.Option(help="Tokens of an answer over HTTP.", min=1, max=900)] = 128,
    blocks: Annotated[
        int, typer.Option(help="Blocks of the pool in the scene without a server.", max=2_000_000)
    ] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
) -> None:
    """Measure the cost of a client of the live map: a glimpse, its bytes, and the other clients' speed."""
    words = [*([model] if model else []), "--speculate", "off"]
    run(words, Scene(blocks), tokens, rounds, as_json=as_json)


if __name__ == "__main__":
    run_command(lambda: typer.run(main))
