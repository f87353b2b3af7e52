"""A planner's forecast for traffic: figures as ranges over draws, and the highest load that meets the
targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.bench.load import LoadReport


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a figure over draws."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        """The range of one or more values."""
        ordered = sorted(values)
        return cls(ordered[0], ordered[len(ordered) // 2], ordered[-1])


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected figures. Times are in milliseconds, with the names of `bench serve --json`."""

    ttft_ms: dict[str, Range]  # mean, p50, p95, p99
    itl_ms: dict[str, Range]
    e2e_ms: dict[str, Range]
    output_tokens_per_s: Range
    good: Range  # share of the answers that meet the targets
    hit_rate: float  # of prompts' tokens
    blocks_peak: int
    blocks: int  # of the pool
    running_peak: int
    preemptions: int
    limit: str  # the most frequent reason why requests wait; "": they hardly do
    seconds: float  # of traffic
    refused: dict[str, int]
    why_refused: str  # the first refusal's message
    of_tenants: dict[str, dict[str, Range]]  # by tenant: "ttft_ms_p95", "itl_ms_mean" and "good"


def spread_of_tenant(reports: Sequence[LoadReport]) -> dict[str, Range]:
    """A tenant's figures in `Forecast.of_tenants`, over draws."""
    return {
        "ttft_ms_p95": Range.of([report.ttft_ms.p95 for report in reports]),
        "itl_ms_mean": Range.of([report.itl_ms.mean for report in reports]),
        "good": Range.of([report.good / max(1, report.requests) for report in reports]),
    }


@dataclass(frozen=True, slots=True)
class HighestLoad:
    """The highest rate or number of users that meets the targets, and the bound above it: the "targets", the
    range of the "search", or the range that the "calibration" covers."""

    number: float
    bound: str

    def in_words(self) -> str:
        """ "7.65", "64 or more" or "12 (above: not measured)"."""
        number = f"{self.number:.3g}"
        return {"search": f"{number} or more", "calibration": f"{number} (above: not measured)"}.get(
            self.bound, number
        )
