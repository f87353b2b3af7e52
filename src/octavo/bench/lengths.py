"""Traces of requests as lengths of prompt and output: synthetic ones, or those that `traces` has read.

The synthetic ones are not the data sets that they are named after. Their lengths are log-normal, cut at a
maximum, with the means that the paper states for these data sets (Kwon et al. 2023, section 6.1). The spread
is our choice: chats have a heavy tail, and instructions are short. All requests arrive at the start.

The lengths of a trace of n requests are the midpoint quantiles of n equal shares, in random order, so a small
trace has the same means as a large one.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from statistics import NormalDist

from octavo.bench.traces import TrafficTrace
from octavo.sim.policies import Job


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of tokens, cut at `most`, whose mean after the cut is `mean`."""

    mean: float
    spread: float  # of the logarithm
    most: int


@dataclass(frozen=True, slots=True)
class LengthSource:
    """The distributions of a synthetic trace."""

    name: str
    prompt: Lengths
    output: Lengths


CHATS = LengthSource("chats (as ShareGPT)", Lengths(161, 1.2, 1024), Lengths(338, 0.9, 1024))
INSTRUCTIONS = LengthSource("instructions (as Alpaca)", Lengths(19, 0.5, 256), Lengths(58, 0.9, 512))
LONG_ANSWERS = LengthSource(
    "long answers", Lengths(64, 0.5, 256), Lengths(700, 0.5, 1024)
)  # these sequences grow most


@dataclass(frozen=True, slots=True)
class Trace:
    """A display name, and requests."""

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
    """`count` requests, the same for the same seed; prompts and outputs are at most half of `max_length`."""
    generator = random.Random(f"{source.name} {seed}")
    prompts, outputs = (
        quantiles(replace(lengths, most=min(lengths.most, max_length // 2)), count)
        for lengths in (source.prompt, source.output)
    )
    generator.shuffle(prompts)
    generator.shuffle(outputs)
    return Trace(source.name, tuple(map(Job, prompts, outputs)))


def quantiles(lengths: Lengths, count: int) -> list[int]:
    """`count` lengths that represent the distribution, ascending, each from 1 to `most`."""
    normal = NormalDist(_log_median(lengths), lengths.spread)
    drawn = (math.exp(normal.inv_cdf((i + 0.5) / count)) for i in range(count))
    return [min(max(1, round(length)), lengths.most) for length in drawn]


def _log_median(lengths: Lengths) -> float:
    """The logarithm of the median that gives `lengths.mean` after the cut, by bisection: the mean grows with
    the median."""
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
    cut, spread, cdf = math.log(lengths.most), lengths.spread, NormalDist().cdf
    kept = math.exp(log_median + spread**2 / 2) * cdf((cut - log_median - spread**2) / spread)
    return kept + lengths.most * (1 - cdf((cut - log_median) / spread))


def lengths_of(trace: TrafficTrace) -> Trace:
    """The lengths and arrivals of a trace from a file."""
    return Trace(
        trace.name,
        tuple(Job(request.prompt, request.output, request.arrival_s) for request in trace.requests),
    )
