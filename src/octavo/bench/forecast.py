"""What a planner says of traffic: figures as ranges over draws, and the highest load that is served well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.bench.load import LoadReport


@dataclass(frozen=True, slots=True)
class Range:
    """A figure over draws."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        """Of at least one."""
        ordered = sorted(values)
        return cls(ordered[0], ordered[len(ordered) // 2], ordered[-1])


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to be expected. Times are in milliseconds, named as `bench serve --json` names them."""

    ttft_ms: dict[str, Range]  # mean, p50, p95, p99
    itl_ms: dict[str, Range]
    e2e_ms: dict[str, Range]
    output_tokens_per_s: Range
    good: Range  # part of the answers that keep the targets
    hit_rate: float  # of prompts' tokens
    blocks_peak: int
    blocks: int  # that there are
    running_peak: int
    preemptions: int
    limit: str  # what keeps requests waiting most; "" nothing does
    seconds: float  # of traffic
    refused: dict[str, int]
    why_refused: str  # the first one
    of_tenants: dict[str, dict[str, Range]]  # "ttft_ms_p95", "itl_ms_mean" and "good" of each


def spread_of_tenant(reports: Sequence[LoadReport]) -> dict[str, Range]:
    """Its figures in `Forecast.of_tenants`, over draws."""
    return {
        "ttft_ms_p95": Range.of([report.ttft_ms.p95 for report in reports]),
        "itl_ms_mean": Range.of([report.itl_ms.mean for report in reports]),
        "good": Range.of([report.good / max(1, report.requests) for report in reports]),
    }


@dataclass(frozen=True, slots=True)
class Highest:
    """A number of requests or users that is served well, and what a higher one meets: "targets", the end of
    the "search", or of what the "calibration" covers."""

    number: float
    bound: str

    def in_words(self) -> str:
        """ "7.65", "64 or more" or "12 (above: not measured)"."""
        number = f"{self.number:.3g}"
        return {"search": f"{number} or more", "calibration": f"{number} (above: not measured)"}.get(
            self.bound, number
        )
