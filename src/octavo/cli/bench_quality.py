"""`octavo bench quality`: the loss of quality of types of weights and KV, as a table or JSON lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from octavo.bench.quality import BASE, CHUNK, Quality, StorageChoice, measure
from octavo.bench.text import Sample, sample_text
from octavo.cli.terminal import print_all, print_json, probe_machine, show_progress, table, write
from octavo.config import HOST_KV_KINDS, WEIGHTS
from octavo.errors import ConfigError
from octavo.units import format_bytes

_COLUMNS = ("weights", "KV", "PPL", "KL mean", "+-", "KL p99", "top-1", "tok/s", "memory")


def run(
    model: str | None,
    base_model: str | None,
    weights: Sequence[str],
    kvs: Sequence[str],
    text: Path | None,
    num_chunks: int,
    threads: int | None,
    *,
    as_json: bool,
) -> None:
    """Measure every pair of a weight type and a KV type. Raises ConfigError, ModelError."""
    for setting, given, allowed in (("--weights", weights, WEIGHTS), ("--kv", kvs, HOST_KV_KINDS)):
        if not set(given) <= set(allowed):
            raise ConfigError(f"{setting} is {','.join(given)}; allowed: {', '.join(allowed)}")
    probe_machine()
    sample = sample_text(text)
    choices = [StorageChoice(each, kv) for each in weights for kv in kvs]
    with show_progress() as progress:
        found = measure(model, base_model, choices, sample.text, num_chunks, threads, progress)
    if as_json:
        about = {"text": sample.source, "digest": sample.digest}
        print_json(*(dataclasses.asdict(quality) | about for quality in found))
    else:
        print_all(table_of(found, sample))


def save_text(text: Path | None, target: Path) -> None:
    """Write the measured text, byte for byte, for other programs. Raises ConfigError."""
    sample = sample_text(text)
    try:
        target.write_bytes(sample.text.encode())
    except OSError as error:
        raise ConfigError(f"--write-text {target} cannot be written: {error}") from None
    write(f"{target}: {len(sample.text):,} characters of {sample.source}, digest {sample.digest}\n")


def table_of(found: Sequence[Quality], sample: Sample) -> Table:
    """A table with a row for each choice."""
    title = (
        f"octavo bench quality: {found[0].scored_tokens:,} tokens in {found[0].chunks} chunks of "
        f"{CHUNK}\n{sample.source}, digest {sample.digest}\n"
        f"KL: divergence in nats from {BASE.weights} weights and {BASE.kv} KV, +-: its standard error; "
        "top-1:\nsame likeliest token; tok/s: of prompts; memory: of weights"
    )
    rows = [
        (
            quality.weights,
            quality.kv,
            f"{quality.perplexity:.3f}",
            f"{quality.divergence_mean:.5f}",
            f"{quality.divergence_error:.5f}",
            f"{quality.divergence_p99:.4f}",
            f"{quality.top1_agreement:.2%}",
            f"{quality.prompt_tokens_per_s:.0f}",
            format_bytes(quality.weight_bytes),
        )
        for quality in found
    ]
    return table(title, _COLUMNS, rows, num_left=2)
