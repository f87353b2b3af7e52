"""The latency benchmark measures what it says, over a fake model."""

import asyncio
import itertools
import json
from types import SimpleNamespace

import pytest
from tests.doubles.fake_model import FakeModel
from tests.waiting import turns

from octavo.bench import latency
from octavo.bench.latency import Run, measure, summarise
from octavo.bench.workloads import Latency
from octavo.cli import bench
from octavo.config import StartOptions
from octavo.errors import ConfigError, RequestFailed

SCENARIO = Latency(streams=3, own=8, before=20, prompt=200, rounds=2)


def run(before_s, while_s, first_s=1.0):
    return Run("a", 0, before_s, before_s, while_s, 2 * while_s, while_s, first_s, 10)


def test_every_stream_runs_before_the_long_prompt_comes_and_all_end():
    model = FakeModel("x" * 3000, context_length=5000)
    measured = asyncio.run(measure(model, SCENARIO, "chunked", 0))
    assert [len(stream.prompt) for stream in model.submitted] == [8, 8, 8, 200]
    assert all(stream.cancelled or stream.ended for stream in model.submitted)
    assert all(stream.params.ignore_eos and stream.params.greedy for stream in model.submitted)
    assert model.submitted[-1].params.max_tokens == 1
    assert measured.tokens_while >= 3
    assert 0 < measured.before_p50_s <= measured.before_p95_s
    assert 0 < measured.while_p50_s <= measured.while_p95_s <= measured.while_max_s


def test_a_gap_while_the_prompt_is_computed_is_seen_and_not_before(monkeypatch):
    clock = itertools.count()  # a tick with each look at it

    class SlowFirst(FakeModel):
        """The long prompt holds everybody up for 1,000 ticks."""

        async def submit(self, request):
            stream = await super().submit(request)
            if len(request.prompt) == SCENARIO.prompt:
                self.hold = asyncio.Event()
                await turns(9)  # the streams stop here too
                for _ in range(1000):
                    next(clock)
                self.hold.set()
            return stream

    monkeypatch.setattr(latency, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    model = SlowFirst("x" * 3000, context_length=5000)
    measured = asyncio.run(measure(model, SCENARIO, "whole", 0))
    assert measured.while_max_s >= 1000
    assert measured.before_p95_s < 100
    assert measured.first_token_s >= 1000


def test_rounds_and_configurations_share_no_prompt():
    model = FakeModel("x" * 3000, context_length=5000)
    for name, index in (("chunked", 0), ("chunked", 1), ("whole", 0)):
        asyncio.run(measure(model, SCENARIO, name, index))
    starts = {stream.prompt[:8] for stream in model.submitted}
    assert len(starts) == len(model.submitted)


def test_streams_that_end_too_early_fail_the_run():
    with pytest.raises(ConfigError, match="--prompt"):
        asyncio.run(measure(FakeModel("x" * 20), SCENARIO, "chunked", 0))


def test_a_failed_request_fails_the_run():
    model = FakeModel("x" * 21)
    model.failure = "its logits were NaN"
    with pytest.raises(RequestFailed, match="NaN"):
        asyncio.run(measure(model, SCENARIO, "chunked", 0))


def test_ratios_are_taken_within_a_run_and_their_median_is_reported():
    summary = summarise([run(1.0, 2.0), run(10.0, 15.0), run(1.0, 9.0)])
    assert summary.p50_ratio == 2.0
    assert summary.p95_ratio == 4.0
    assert summary.before_p50_s == 1.0
    assert summary.while_p50_s == 9.0
    assert summary.rounds == 3


def test_too_few_tokens_before_are_refused():
    with pytest.raises(ConfigError, match="16"):
        Latency(before=15)


@pytest.mark.parametrize("as_json", [True, False])
def test_both_configurations_run_in_turns_and_are_reported(monkeypatch, capsys, as_json):
    seen = []

    class Started:
        loaded = backend = None

    class Closable(FakeModel):
        def close(self):
            seen.append("closed")

    def client_of(started, options):
        seen.append((options.step_tokens, options.pace))
        return Closable("x" * 3000, context_length=9000)

    monkeypatch.setattr(bench, "build_engine", lambda *given: Started())
    monkeypatch.setattr(bench, "engine_over", lambda *given: Started())
    monkeypatch.setattr(bench, "client_of", client_of)
    bench.run_latency(None, StartOptions(), SCENARIO, as_json=as_json)
    assert seen == [(512, None), (4096, False), "closed", "closed"]
    told = capsys.readouterr().out
    if not as_json:
        assert "median of 2 rounds" in told
        return
    lines = [json.loads(line) for line in told.splitlines()]
    order = [line["run"]["configuration"] for line in lines if "run" in line]
    assert order == [bench.CHUNKED, bench.WHOLE] * 2
    assert [line["summary"]["configuration"] for line in lines[4:]] == [bench.CHUNKED, bench.WHOLE]
