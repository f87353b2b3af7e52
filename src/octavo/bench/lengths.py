"""Traces of requests as lengths of prompt and output: two synthetic ones, or a file.

The synthetic ones are not the data sets that they are named after: they are log-normal lengths, cut at a
maximum, with the means that the paper states for these data sets (Kwon et al. 2023, section 6.1). The spread
is ours, chosen so that chats have a heavy tail and instructions are short. All requests are there from the
beginning.

A trace of n requests takes the n quantiles in the middles of n equal shares, in random order: a small one has
the same means as a large one.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

from octavo.errors import ConfigError
from octavo.sim.policies import Job

REQUESTS_MAX = 100_000
ARRIVAL_MAX_S = 1e9


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of tokens, cut at `most`, whose mean after the cut is `mean`."""

    mean: float
    spread: float  # of the logarithm
    most: int


@dataclass(frozen=True, slots=True)
class LengthSource:
    """Where a synthetic trace takes its lengths from."""

    name: str
    prompt: Lengths
    output: Lengths


CHATS = LengthSource("chats (as ShareGPT)", Lengths(161, 1.2, 1024), Lengths(338, 0.9, 1024))
INSTRUCTIONS = LengthSource("instructions (as Alpaca)", Lengths(19, 0.5, 256), Lengths(58, 0.9, 512))
LONG_ANSWERS = LengthSource(
    "long answers", Lengths(64, 0.5, 256), Lengths(700, 0.5, 1024)
)  # those that grow most


@dataclass(frozen=True, slots=True)
class Trace:
    """A name for people, and requests."""

    name: str
    jobs: tuple[Job, ...]

    @property
    def prompt_mean(self) -> float:
        """Tokens of a prompt."""
        return sum(job.prompt for job in self.jobs) / len(self.jobs)

    @property
    def output_mean(self) -> float:
        """Tokens of an output."""
        return sum(job.output for job in self.jobs) / len(self.jobs)


def synthetic(source: LengthSource, count: int, seed: int, max_length: int) -> Trace:
    """`count` requests, the same for the same seed; no prompt and no output is above half of `max_length`."""
    generator = random.Random(f"{source.name} {seed}")
    prompts, outputs = (
        quantiles(replace(lengths, most=min(lengths.most, max_length // 2)), count)
        for lengths in (source.prompt, source.output)
    )
    generator.shuffle(prompts)
    generator.shuffle(outputs)
    return Trace(source.name, tuple(map(Job, prompts, outputs)))


def quantiles(lengths: Lengths, count: int) -> list[int]:
    """`count` lengths that stand for the distribution, ascending, each from 1 to the most."""
    normal = NormalDist(_log_median(lengths), lengths.spread)
    drawn = (math.exp(normal.inv_cdf((i + 0.5) / count)) for i in range(count))
    return [min(max(1, round(length)), lengths.most) for length in drawn]


def _log_median(lengths: Lengths) -> float:
    """The logarithm of the median that gives `lengths.mean` after the cut: by halving, since one grows with
    the other."""
    low, high = 0.0, math.log(lengths.most)
    while high - low > 1e-9:
        middle = (low + high) / 2
        if _cut_mean(middle, lengths) < lengths.mean:
            low = middle
        else:
            high = middle
    return low


def _cut_mean(log_median: float, lengths: Lengths) -> float:
    """E[min(X, most)] of a log-normal X."""
    cut, spread, below = math.log(lengths.most), lengths.spread, NormalDist().cdf
    kept = math.exp(log_median + spread**2 / 2) * below((cut - log_median - spread**2) / spread)
    return kept + lengths.most * (1 - below((cut - log_median) / spread))


def read_trace(path: Path, max_length: int, most: int | None = None) -> Trace:
    """The first `most` requests of a file with a line of JSON for each:
    `{"prompt": 161, "output": 338, "arrival": 0.5}`, arrival in seconds (0 where it is left out).

    Raises ConfigError, with the line that is wrong.
    """
    limit = REQUESTS_MAX if most is None else min(most, REQUESTS_MAX)
    jobs: list[Job] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in _written(lines):
                if len(jobs) == limit:
                    break
                jobs.append(_job(line, f"{path}, line {number}", max_length))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--trace {path} cannot be read: {error}") from None
    if not jobs:
        raise ConfigError(f"--trace {path} has no request; allowed: at least one line")
    return Trace(path.name, tuple(jobs))


def _written(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1."""
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _job(line: str, place: str, max_length: int) -> Job:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        given = None
    fields = given if isinstance(given, dict) else {}
    prompt, output = _count(fields.get("prompt")), _count(fields.get("output"))
    arrival = _time(fields.get("arrival", 0))
    if prompt is None or output is None or arrival is None:
        allowed = '{"prompt": n, "output": n, "arrival": s} with n from 1 and s from 0'
        raise ConfigError(f"{place}: {line.strip()[:80]}; allowed: {allowed}")
    if prompt + output > max_length:
        raise ConfigError(
            f"{place}: {prompt:,} and {output:,} tokens; allowed: {max_length:,} together (--max-length)"
        )
    return Job(prompt, output, arrival)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def _time(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < ARRIVAL_MAX_S else None
