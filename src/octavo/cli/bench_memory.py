"""`octavo bench memory`: wasted and shared KV memory, as tables or JSON lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.table import Table

from octavo.bench.lengths import CHATS, INSTRUCTIONS, LONG_ANSWERS, Trace, lengths_of, synthetic
from octavo.bench.memory import Bookkeeping, Row, Scattered, Sharing, Waste, Worked, measure
from octavo.bench.oversubscribed import Oversubscribed
from octavo.bench.traces import read_trace
from octavo.bench.workloads import Memory
from octavo.cli.terminal import print_all, print_json, show_progress, table
from octavo.units import format_bytes

# Numbers of requests: for waste, enough to fill the pool many times with every policy; for sharing, with
# several answers each; and for oversubscription.
_NUM_REQUESTS = {CHATS: (240, 80, 240), INSTRUCTIONS: (1600, 400, 800), LONG_ANSWERS: (0, 0, 120)}
_SHARING_DIVISOR = 3  # one of so many requests measures sharing
_BEAMS_DIVISOR = 10  # and one of so many of these is searched, by a real model

_SHARES: tuple[tuple[str, Callable[[Waste], str]], ...] = (
    ("token states", lambda row: f"{row.result.stored:.1%}"),
    ("reserved", lambda row: f"{row.result.reserved:.1%}"),
    ("internal", lambda row: f"{row.result.internal:.1%}"),
    ("external, others", lambda row: f"{row.result.external:.1%}"),
    ("requests at once", lambda row: f"{row.result.running:.2f}"),
    ("most at once", lambda row: f"{row.result.running_max:,}"),
    ("steps", lambda row: f"{row.result.steps:,}"),
    ("preemptions", lambda row: f"{row.result.preemptions:,}"),
)


def run(
    settings: Memory, trace: Path | None, num_requests: int | None, *, beams: bool, as_json: bool
) -> None:
    """Measure and print; `beams`: also beam searches with the default model, which take minutes. Raises
    ConfigError."""
    rows: list[Row] = []
    traces, shared, crowded = _traces(settings, trace, num_requests)
    with show_progress() as progress:
        for row in _measured(traces, shared, settings, progress, crowded, beams=beams):
            rows.append(row)
            if as_json:
                print_json(row, under=type(row).__name__.lower())
    if not as_json:
        print_all(*tables_of(rows, traces, settings))


def _measured(
    traces: list[Trace],
    shared: list[Trace],
    settings: Memory,
    progress: Callable[[str], None],
    crowded: list[Trace],
    *,
    beams: bool,
) -> Iterator[Row]:
    yield from measure(traces, shared, settings, progress, crowded)
    if beams:
        from octavo.bench.beams import measure_beams

        fewer = [
            dataclasses.replace(trace, jobs=trace.jobs[: max(1, len(trace.jobs) // _BEAMS_DIVISOR)])
            for trace in shared
        ]
        yield from measure_beams(None, fewer, settings, progress)


def tables_of(rows: Sequence[Row], traces: Sequence[Trace], settings: Memory) -> list[Table]:
    """A table for each kind of row; of waste, one for each trace."""
    waste = [row for row in rows if isinstance(row, Waste)]
    return [
        *(
            _waste_table([row for row in waste if row.trace == trace.name], trace, settings)
            for trace in traces
        ),
        _worked_table([row for row in rows if isinstance(row, Worked)]),
        *(_scattered_table(row) for row in rows if isinstance(row, Scattered)),
        _bookkeeping_table([row for row in rows if isinstance(row, Bookkeeping)]),
        _sharing_table([row for row in rows if isinstance(row, Sharing)], settings),
        *_oversubscribed_tables([row for row in rows if isinstance(row, Oversubscribed)]),
    ]


def _traces(settings: Memory, path: Path | None, count: int | None) -> tuple[list[Trace], ...]:
    """The traces for waste, shorter ones for sharing, and those for oversubscription."""
    if path is not None:
        trace = lengths_of(read_trace(path, most=count, longest=settings.max_length))
        part = max(1, len(trace.jobs) // _SHARING_DIVISOR)
        return [trace], [dataclasses.replace(trace, jobs=trace.jobs[:part])], [trace]

    def synthetic_traces(index: int) -> list[Trace]:
        given = None if count is None else (count, max(1, count // _SHARING_DIVISOR), count)
        return [
            synthetic(source, (given or usual)[index], settings.seed, settings.max_length)
            for source, usual in _NUM_REQUESTS.items()
            if usual[index]
        ]

    return synthetic_traces(0), synthetic_traces(1), synthetic_traces(2)


def _waste_table(rows: Sequence[Waste], trace: Trace, settings: Memory) -> Table:
    """A table with a column for each policy."""
    return table(
        f"{trace.name}: {len(trace.jobs):,} requests\n"
        f"on average {trace.prompt_mean:.0f} tokens in and {trace.output_mean:.0f} out, "
        f"{settings.max_length:,} at most\n"
        f"{rows[0].num_slots:,} slots, blocks of {settings.block_size}",
        ("share of memory", *(row.result.policy.replace(" ", "\n") for row in rows)),
        [(name, *map(value, rows)) for name, value in _SHARES],
    )


def _worked_table(rows: Sequence[Worked]) -> Table:
    columns = ("one sequence", "blocks", "slots wasted", "wasted", "wasted if reserved")
    cells = [
        (
            f"{row.tokens:,} of {row.maximum:,}",
            f"{row.num_blocks} of {row.block_size}",
            str(row.slots_wasted),
            f"{row.share_wasted:.1%}",
            f"{row.share_wasted_reserved:.1%}",
        )
        for row in rows
    ]
    return table("A sequence in blocks, and in a reservation for the maximum length", columns, cells)


def _scattered_table(row: Scattered) -> Table:
    contiguous = (
        "contiguous, first fit",
        f"{row.largest_hole:,}",
        _yes(row.contiguous_serves),
        "one run" if row.contiguous_serves else "",
    )
    paged = (
        f"blocks of {row.block_size}",
        "any free block",
        _yes(row.paged_serves),
        f"{row.blocks_taken} blocks in {row.runs_taken} runs" if row.paged_serves else "",
    )
    return table(
        f"A request of {row.wanted:,} tokens in a memory with {row.num_free:,} free slots",
        ("memory", "largest hole", "served", "from"),
        [contiguous, paged],
    )


def _bookkeeping_table(rows: Sequence[Bookkeeping]) -> Table:
    columns = ("block size", "blocks", "KV", "ledger", "bytes a block", "ledger / KV")
    cells = [
        (
            str(row.block_size),
            f"{row.num_blocks:,}",
            format_bytes(row.kv_bytes),
            format_bytes(row.ledger_bytes),
            f"{row.bytes_per_block:.0f}",
            f"{row.share:.3%}",
        )
        for row in rows
    ]
    title = "The ledger of a full pool (SmolLM2-135M, bfloat16 KV), every block published"
    return table(title, columns, cells)


def _sharing_table(rows: Sequence[Sharing], settings: Memory) -> Table:
    """A table with a row for each trace and a column for each number of answers."""
    widths = sorted({row.width for row in rows})
    made = table(
        f"Blocks saved by sharing among the answers to one prompt, blocks of {settings.block_size}",
        ("trace", "method", *(f"n = {width}" for width in widths)),
    )
    for trace, method in dict.fromkeys((row.trace, row.method) for row in rows):
        own = [row for row in rows if (row.trace, row.method) == (trace, method)]
        cells = {row.width: f"{row.saved:.1%}" for row in own}
        name = f"{trace}\n{own[0].num_requests:,} requests"
        made.add_row(name, method, *(cells.get(width, "") for width in widths))
    return made


def _oversubscribed_tables(rows: Sequence[Oversubscribed]) -> list[Table]:
    """A table for each kind of machine: throughput, gaps and concurrent requests, relative to an admission
    with known lengths."""
    tables = []
    for costs in dict.fromkeys(row.costs for row in rows):
        own = [row for row in rows if row.costs == costs]
        made = table(
            f"{own[0].demand:g} times more demand than blocks, {costs},\n"
            "relative to an admission with known lengths, which never preempts",
            ("trace", "tier", "throughput", "p99 gap", "at once", "preempted\n(kept)", "again"),
        )
        for row in own:
            made.add_row(
                row.trace.split(" (")[0],
                _yes(row.tier),
                f"{row.throughput_ratio:.1%}",
                f"{row.gap_p99_ratio:.2f}x",
                f"{row.running:.1f}\nof {row.running_best:.1f}",
                f"{row.preemptions:,}\n({row.kept:,})",
                f"{row.recomputed / row.tokens:.1%}",
            )
        tables.append(made)
    return tables


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
