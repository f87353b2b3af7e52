"""The offline benchmark measures what it says, over a fake model."""

import asyncio
import dataclasses
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from octavo.bench.offline import chosen, measure, merged, num_outside, prompts_of, quantile, w1, w2, w3
from octavo.cli import bench
from octavo.cli.bench import json_line, table_of
from octavo.config import StartOptions
from octavo.errors import ConfigError, RequestFailed
from octavo.server.testing import FakeModel


class CountingModel(FakeModel):
    """Remembers how many streams ran at once."""

    most = 0

    async def submit(self, prompt, params, **options):
        stream = await super().submit(prompt, params, **options)
        self.most = max(self.most, self.stats().running)
        return stream


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_a_closed_loop_keeps_that_many_in_flight(concurrency):
    model = CountingModel("x" * 20)
    report = asyncio.run(measure(model, w1(10, 16, 8, concurrency)))
    assert model.most == min(concurrency, 10)
    assert len(model.submitted) == 10
    assert report.output_tokens == 80
    assert report.prompt_tokens == 160
    assert report.output_tokens_per_s == pytest.approx(80 / report.seconds)


def test_every_answer_is_greedy_of_the_asked_length_and_ignores_its_end():
    model = FakeModel("x" * 20)
    asyncio.run(measure(model, w1(2, 16, 8, 1)))
    for stream in model.submitted:
        assert (stream.params.max_tokens, stream.params.ignore_eos, stream.params.greedy) == (8, True, True)


def test_w2_shares_its_prefix_and_nothing_else():
    prompts = prompts_of(w2(6, 20), 300)
    assert len({tuple(prompt[:20]) for prompt in prompts}) == 1
    assert len({tuple(prompt[20:]) for prompt in prompts}) == 6
    assert {len(prompt) for prompt in prompts} == {52}


def test_runs_share_no_prompt_and_repeat_themselves():
    first, second = w1(8, 16, 8, 1), w1(8, 16, 8, 4)
    assert prompts_of(first, 300) == prompts_of(first, 300)
    starts = [tuple(prompt[:8]) for workload in (first, second) for prompt in prompts_of(workload, 300)]
    assert len(set(starts)) == 16
    assert all(100 <= token < 300 for prompt in prompts_of(first, 300) for token in prompt)


def test_a_workload_that_cannot_fit_is_refused_before_it_runs():
    model = FakeModel(context_length=100)
    with pytest.raises(ConfigError, match="context"):
        asyncio.run(measure(model, w2(4, 512)))
    assert not model.submitted


def test_a_failed_request_fails_the_run():
    model = FakeModel()
    model.failure = "its logits were NaN"
    with pytest.raises(RequestFailed, match="NaN"):
        asyncio.run(measure(model, w1(4, 8, 4, 2)))


def test_reports_are_json_lines_and_a_table():
    report = asyncio.run(measure(FakeModel(), w1(2, 8, 4, 1)))
    assert json.loads(json_line(report))["workload"]["name"] == "W1"
    assert len(table_of([report, report]).columns) == 3


def test_planning_is_told_by_step_and_as_a_share_of_the_steps_of_the_run():
    class Stepping(FakeModel):
        """Each request is two steps of half a second, of which 5 ms are planning."""

        def stats(self):
            steps = 7 + 2 * len(self.submitted)
            return dataclasses.replace(
                super().stats(), steps=steps, step_seconds=0.5 * steps, schedule_seconds=0.005 * steps
            )

    report = asyncio.run(measure(Stepping(), w1(4, 8, 4, 2)))
    assert (report.steps, report.step_seconds) == (8, 4.0)
    assert report.plan_share == pytest.approx(0.01)
    console = Console(width=100, record=True)
    console.print(table_of([report]))
    assert "5.00 (1.0 %)" in console.export_text()


def test_quantiles():
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([1.0] * 19 + [9.0], 0.95) == 1.0
    assert quantile([1.0] * 18 + [9.0] * 2, 0.95) == 9.0
    assert quantile([], 0.5) == 0.0


def test_w3_sends_its_long_prompts_at_once():
    model = CountingModel("x" * 20, context_length=2000)
    report = asyncio.run(measure(model, w3(500, 4, 8)))
    assert model.most == 4
    assert {len(stream.prompt) for stream in model.submitted} == {500}
    assert (report.workload.name, report.output_tokens) == ("W3", 32)


def test_prefill_and_decode_are_told_apart():
    class Paced(FakeModel):
        """The first token comes after 60 ms, the others 5 ms apart."""

        async def submit(self, prompt, params, **options):
            stream = await super().submit(prompt, params, **options)

            async def slowly():
                await asyncio.sleep(0.06)
                async for delta in stream:
                    yield delta
                    await asyncio.sleep(0.005)

            return slowly()

    report = asyncio.run(measure(Paced("x" * 50), w1(2, 30, 11, 2)))
    uncached = report.prompt_tokens - report.cached_tokens
    assert report.prefill_seconds >= 0.06
    assert report.prefill_tokens_per_s == pytest.approx(uncached / report.prefill_seconds)
    assert report.decode_seconds >= 0.045
    # Ten tokens of each of two streams; some may fall into the prefill of the other on a busy machine.
    assert 10 <= report.decode_tokens_per_s * report.decode_seconds <= 20


def test_one_token_has_no_decode():
    report = asyncio.run(measure(FakeModel("x" * 20), w1(1, 16, 1, 1)))
    assert report.decode_tokens_per_s == 0
    assert report.prefill_tokens_per_s > 0


def test_spans_are_merged_and_times_outside_are_counted():
    union = merged([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0)])
    assert union == [(0.0, 3.0), (5.0, 6.0)]
    assert num_outside(union, [-1.0, 0.0, 2.5, 3.0, 4.0, 5.5, 7.0]) == 3
    assert num_outside([], [1.0]) == 1


def test_workloads_are_chosen_by_name():
    def names(*given, conc=None, prefix=64):
        found = chosen(
            given,
            num_requests=None,
            in_flight=conc,
            w1_tokens=(1, 2),
            w2_prefix=prefix,
            w3_tokens=(300, 4),
        )
        return [(each.name, each.concurrency) for each in found]

    assert names("W1", "W2") == [("W1", 1), ("W1", 8), ("W1", 32), ("W2", 32)]
    assert names("w3") == [("W3", 1), ("W3", 4)]
    assert names("W1", "W3", conc=[2]) == [("W1", 2), ("W3", 2)]
    assert names("W2", prefix=0) == []
    with pytest.raises(ConfigError, match="W1, W2, W3"):
        names("W9")


def test_each_run_has_its_own_number_of_requests():
    def numbers(*names, n, conc=None):
        found = chosen(
            names, num_requests=n, in_flight=conc, w1_tokens=(1, 2), w2_prefix=64, w3_tokens=(300, 4)
        )
        return [each.num_requests for each in found]

    assert numbers("W1", n=None) == [4, 16, 64]
    assert numbers("W1", "W2", n=[5]) == [5, 5, 5, 5]
    assert numbers("W1", n=[4, 7], conc=[1, 8]) == [4, 7]
    for names, given in ((("W1",), [1, 2]), (("W1", "W2"), [1, 2, 3])):
        with pytest.raises(ConfigError, match="once for each of the 3 --conc"):
            numbers(*names, n=given)


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_resolved_is_told_with_the_figures(monkeypatch, capsys, as_json):
    class Closable(FakeModel):
        def close(self):
            pass

    engine = {"weights": "int8", "weight_bytes": 1 << 20, "kv": "f32"}
    readying = SimpleNamespace(wait=lambda: waited.append(True))
    waited: list[bool] = []
    monkeypatch.setattr(bench, "build_engine", lambda *given: SimpleNamespace(readying=readying))
    monkeypatch.setattr(bench, "client_of", lambda *given: Closable())
    monkeypatch.setattr(bench, "resolved_settings", lambda *given: engine)
    bench.run(None, StartOptions(), [w1(2, 8, 4, 1)], as_json=as_json)
    assert waited  # for memory, which is not what is measured
    told = capsys.readouterr().out
    if as_json:
        first, second = map(json.loads, told.splitlines())
        assert first == {"engine": engine}
        assert second["workload"]["name"] == "W1"
    else:
        assert "weights int8, weight 1.0 MiB, kv f32" in told
