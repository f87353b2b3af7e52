"""`python -m bench.speculation [MODEL]`: the gain and cost of guessed tokens on six tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from bench.speculation.speculation import (
    CONCURRENCIES,
    MODES,
    OFF,
    CellResult,
    Scenario,
    Summary,
    measure_speculation,
    summaries_of,
    written_prompts,
)
from bench.speculation.tasks import chosen_tasks
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from octavo.cli.main import run_command
from octavo.cli.terminal import probe_machine, show_progress, write
from octavo.errors import ConfigError

_COLUMNS = (
    "task",
    "at\nonce",
    "mode",
    "tok/s",
    "over off\n(lowest-highest)",
    "decoding\ntok/s",
    "right\na step",
    "of all",
)
_TO_THE_LEFT = ("task", "mode")


def run(model: str | None, scenario: Scenario, *, as_json: bool) -> None:
    """Measure all cells round after round; print them, and a line for each mode."""
    probe_machine()
    with show_progress() as show:
        results = measure_speculation(model, scenario, show)
    summaries = summaries_of(results)
    if as_json:
        for result in results:
            write(json.dumps(asdict(result)) + "\n")
        for summary in summaries:
            write(json.dumps({"summary": asdict(summary)}) + "\n")
        return
    Console(highlight=False).print(table_of(results))
    for summary in summaries:
        write(line_of(summary) + "\n")


def write_prompts(model: str | None, scenario: Scenario, path: Path) -> None:
    """Write the prompts as JSON lines, for other programs. Raises ConfigError if the file cannot be
    written."""
    probe_machine()
    lines = [json.dumps(prompt) + "\n" for prompt in written_prompts(model, scenario)]
    try:
        path.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--write-prompts {path} cannot be written: {error}") from None


def table_of(results: Sequence[CellResult]) -> Table:
    """A row for each cell, a rule between tasks."""
    table = Table(
        title=f"medians, rounds: {results[0].rounds}", box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False
    )
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in _TO_THE_LEFT else "right", no_wrap=True)
    for result, following in zip(results, [*results[1:], None], strict=True):
        is_compared = result.mode != OFF
        table.add_row(
            result.task,
            str(result.concurrency),
            result.mode,
            f"{result.tokens_per_second:,.0f}",
            _over_off(result) if is_compared else "",
            _decoding(result),
            f"{result.accepted_per_step:.2f}" if is_compared else "",
            f"{result.acceptance:.0%}" if result.drafted else "",
            end_section=following is None or following.task != result.task,
        )
    return table


def line_of(summary: Summary) -> str:
    """ "auto: 1.34 times as fast as off over 24 cells (geometric mean); lowest 0.98: chat, 8 at once"."""
    return (
        f"{summary.mode}: {summary.ratio_mean:.2f} times as fast as off over {summary.cells} cells "
        f"(geometric mean); lowest {summary.ratio_lowest:.2f}: {summary.lowest_cell}"
    )


def _over_off(result: CellResult) -> str:
    if result.ratio is None:
        return ""
    return f"{result.ratio:.2f} ({result.ratio_lowest:.2f}-{result.ratio_highest:.2f})"


def _decoding(result: CellResult) -> str:
    if result.decode_tokens_per_second is None:
        return ""
    speed = f"{result.decode_tokens_per_second:,.0f}"
    is_compared = result.mode != OFF and result.decode_ratio is not None
    return f"{speed} ({result.decode_ratio:.2f})" if is_compared else speed


def main(
    model: Annotated[str | None, typer.Argument(help="As for `octavo serve`.")] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="editing, quoting, extraction, retrieval, chat, random; repeatable. Default: all."),
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(help="Requests in flight, at most 32; repeatable. Default: 1, 2, 8, 32.", min=1, max=32),
    ] = None,
    mode: Annotated[
        list[str] | None, typer.Option(help="off, ngram or auto; repeatable. Default: all.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Measured rounds, each with all cells.", min=1)] = 9,
    tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1, max=900)] = 200,
    weights: Annotated[str, typer.Option(help="How weights are held.")] = "auto",
    prompts: Annotated[
        Path | None,
        typer.Option("--write-prompts", help="Write the prompts as JSON lines to this file, and exit."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines.")] = False,
) -> None:
    """Measure the gain of guessed tokens: answers that quote their prompts, chats, and random tokens."""
    scenario = Scenario(
        tasks=chosen_tasks(task),
        concurrencies=tuple(dict.fromkeys(concurrency or CONCURRENCIES)),
        modes=tuple(dict.fromkeys(mode or MODES)),
        rounds=rounds,
        tokens=tokens,
        weights=weights,
    )
    if prompts is not None:
        write_prompts(model, scenario, prompts)
        return
    run(model, scenario, as_json=as_json)


if __name__ == "__main__":
    run_command(lambda: typer.run(main))
