"""`octavo bench embeddings`: texts a second."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from octavo.bench.embeddings import EmbeddingsResult, fixed_texts, measure_embeddings
from octavo.bench.workloads import Embeddings
from octavo.cli.tables import print_all, print_json, table
from octavo.cli.terminal import phases, running_engine
from octavo.config import StartOptions
from octavo.errors import ConfigError
from octavo.params import Pooling


def write_texts(path: Path, count: int, words_max: int) -> None:
    """The texts as JSON lines, for a peer. Raises ConfigError if they cannot be written."""
    lines = [json.dumps({"text": text}) + "\n" for text in fixed_texts(count, words_max)]
    try:
        path.write_text("".join(lines))
    except OSError as error:
        raise ConfigError(f"--write-texts {path} cannot be written: {error}") from None


def run(model: str | None, options: StartOptions, wanted: Embeddings, *, as_json: bool) -> None:
    """Measure and print. Raises ConfigError."""
    texts = fixed_texts(wanted.texts, wanted.words)
    poolings = [Pooling(name) for name in dict.fromkeys(wanted.pooling)]
    with running_engine(model, replace(options, prefix_caching=False)) as llm, phases() as tell:
        results = measure_embeddings(llm, texts, poolings, wanted.rounds, tell)
    if as_json:
        print_json(*results)
    else:
        print_all(table_of(results))


def table_of(results: Sequence[EmbeddingsResult]) -> Table:
    """A row for each pooling."""
    first = results[0]
    title = (
        f"{first.num_texts:,} texts of {first.num_tokens:,} tokens, the longest "
        f"{first.longest_tokens:,}; medians of {len(first.seconds)} rounds"
    )
    rows = [
        (
            each.pooling,
            f"{each.texts_per_s:,.1f}",
            f"{each.tokens_per_s:,.0f}",
            f"{each.num_texts / max(each.seconds):,.1f}",
            f"{each.num_texts / min(each.seconds):,.1f}",
        )
        for each in results
    ]
    return table(title, ("pooling", "texts/s", "tokens/s", "lowest texts/s", "highest"), rows)
