"""How often each latency was seen, as the live map is told: the same counts that a scrape gives."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from octavo.engine.outputs import Delta, EngineStats, TokenInfo
from octavo.server import metrics as module
from octavo.server.metrics import Metrics
from octavo.types import Usage


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def delta(count):
    return Delta(0, "", (TokenInfo(7, b"x"),) * count, Usage(1, 1, 0, 0))


def scraped(metrics, name):
    """The counts of one histogram, from a scrape: cumulative, as Prometheus has them."""
    text = metrics.render(EngineStats()).decode()
    return [
        float(count)
        for count in re.findall(rf'{name}_seconds_bucket{{le="[^"]*",model_name=""}} (\S+)', text)
    ]


def test_before_the_first_token_every_count_is_none():
    told = Metrics().latency()
    assert told.keys() == {"first", "between"}
    for histogram in told.values():
        assert len(histogram["counts"]) == len(histogram["upto"]) + 1
        assert set(histogram["counts"]) == {0}
        assert histogram["upto"] == sorted(histogram["upto"])


def test_each_latency_counts_once_in_its_own_bucket(clock):
    metrics = Metrics()
    watch = metrics.watch({})
    for now, count in ((0.3, 1), (0.304, 1), (0.364, 4), (9.0, 1)):
        clock.now = now
        watch.record(0, delta(count))
    told = metrics.latency()
    first = dict(zip([*told["first"]["upto"], None], told["first"]["counts"], strict=True))
    between = dict(zip([*told["between"]["upto"], None], told["between"]["counts"], strict=True))
    assert {bound: count for bound, count in first.items() if count} == {0.5: 1}
    assert {bound: count for bound, count in between.items() if count} == {0.005: 1, 0.025: 4, None: 1}


def test_they_are_the_differences_of_what_a_scrape_shows(clock):
    metrics = Metrics()
    for i in range(40):
        watch = metrics.watch({})
        for now in (i * 0.07, i * 0.01, 0.2):
            clock.now += now
            watch.record(0, delta(1))
    for name, key in (("octavo_time_to_first_token", "first"), ("octavo_inter_token", "between")):
        counts = metrics.latency()[key]["counts"]
        assert [sum(counts[: i + 1]) for i in range(len(counts))] == scraped(metrics, name)
        assert min(counts) >= 0
