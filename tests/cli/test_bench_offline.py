"""The offline benchmark measures what it says, over a fake engine."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from rich.console import Console
from tests.engine.served import started_tiny
from typer.testing import CliRunner

import octavo
from octavo.bench import offline
from octavo.bench.offline import (
    measure,
    merged,
    num_outside,
    prompts_of,
    quantile,
    w1,
    w2,
    w3,
    workloads_of,
)
from octavo.bench.workloads import OfflineOptions
from octavo.cli import bench
from octavo.cli.bench import offline_table
from octavo.cli.main import app
from octavo.cli.terminal import json_line
from octavo.config import StartOptions
from octavo.engine.outputs import Delta, EngineStats, TokenInfo
from octavo.engine.requests import ModelFacts
from octavo.errors import ConfigError, RequestFailed
from octavo.params import SamplerParams
from octavo.types import FinishReason, Usage

FAILED = Usage(0, 0, 0, 0)


class FakeLLM:
    """Each step gives every unfinished request one token (where `uneven`, but for one of three), and takes
    `pause_s` on its clock `now`, the first `first_s` more."""

    def __init__(
        self, context_length: int = 512, pause_s: float = 0.0, first_s: float = 0.0, *, uneven: bool = False
    ) -> None:
        self.started = SimpleNamespace(
            facts=ModelFacts("fake", context_length, 300), runner=SimpleNamespace(wait_ready=self._wait)
        )
        self.added: list[tuple[list[int], SamplerParams]] = []
        self.failure = ""
        self.in_flight: list[tuple[int, int]] = []  # at each step: requests added, and unfinished
        self.waited = self.closed = False
        self.now = 0.0
        self._pause_s, self._first_s, self._uneven = pause_s, first_s, uneven
        self._left: dict[int, int] = {}

    @property
    def engine(self) -> SimpleNamespace:
        """Each request is two steps of half a second, of which 5 ms are planning."""
        steps = 7 + 2 * len(self.added)
        values = {each.name: 0 for each in dataclasses.fields(EngineStats)}
        values |= {"steps": steps, "step_seconds": 0.5 * steps, "schedule_seconds": 0.005 * steps}
        return SimpleNamespace(stats=EngineStats(**values))

    @property
    def num_unfinished(self) -> int:
        return len(self._left)

    def add_request(self, prompt: list[int], params: SamplerParams) -> int:
        self.added.append((prompt, params))
        self._left[len(self.added)] = params.max_tokens or 0
        return len(self.added)

    def generate(self, prompts: list[list[int]], params: SamplerParams) -> None:
        assert (len(prompts), params.max_tokens) == (1, 8)

    def step(self) -> list[tuple[int, Delta]]:
        self.now += self._pause_s + self._first_s
        self._first_s = 0.0
        self.in_flight.append((len(self.added), len(self._left)))
        deltas = []
        for request_id in list(self._left):
            if self._uneven and (request_id + len(self.in_flight)) % 3 == 0:
                continue
            if self.failure:
                deltas.append((request_id, Delta(0, "", (), FAILED, FinishReason.ERROR, error=self.failure)))
                continue
            prompt, params = self.added[request_id - 1]
            self._left[request_id] -= 1
            told = (params.max_tokens or 0) - self._left[request_id]
            finish = None if self._left[request_id] else FinishReason.LENGTH
            usage = Usage(len(prompt), told, 0, 0)
            deltas.append((request_id, Delta(0, "x", (TokenInfo(120, b"x"),), usage, finish)))
            if finish is not None:
                del self._left[request_id]
        return deltas

    def close(self) -> None:
        self.closed = True

    def _wait(self) -> None:
        assert not self.added
        self.waited = True


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_a_closed_loop_keeps_that_many_in_flight(concurrency):
    llm = FakeLLM(uneven=True)
    report = measure(llm, w1(10, 16, 8, concurrency))
    while_there_are_more = {unfinished for added, unfinished in llm.in_flight if added < 10}
    assert while_there_are_more == ({concurrency} if concurrency < 10 else set())
    assert max(unfinished for _, unfinished in llm.in_flight) == min(concurrency, 10)
    assert [prompt for prompt, _ in llm.added] == prompts_of(w1(10, 16, 8, concurrency), 300)
    assert report.output_tokens == 80
    assert report.prompt_tokens == 160
    assert report.output_tokens_per_s == pytest.approx(80 / report.seconds)


def test_every_answer_is_greedy_of_the_asked_length_and_ignores_its_end():
    llm = FakeLLM()
    measure(llm, w1(2, 16, 8, 1))
    for _, params in llm.added:
        assert (params.max_tokens, params.ignore_eos, params.greedy) == (8, True, True)


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
    llm = FakeLLM(context_length=100)
    with pytest.raises(ConfigError, match="context"):
        measure(llm, w2(4, 512))
    assert not llm.added


def test_a_failed_request_fails_the_run():
    llm = FakeLLM()
    llm.failure = "its logits were NaN"
    with pytest.raises(RequestFailed, match="NaN"):
        measure(llm, w1(4, 8, 4, 2))


def test_reports_are_json_lines_and_a_table():
    report = measure(FakeLLM(), w1(2, 8, 4, 1))
    assert json.loads(json_line(report))["workload"]["name"] == "W1"
    assert len(offline_table([report, report]).columns) == 3


def test_planning_is_reported_by_step_and_as_a_share_of_the_steps_of_the_run():
    report = measure(FakeLLM(), w1(4, 8, 4, 2))
    assert (report.steps, report.step_seconds) == (8, 4.0)
    assert report.plan_share == pytest.approx(0.01)
    console = Console(width=100, record=True)
    console.print(offline_table([report]))
    assert "5.00 (1.0 %)" in console.export_text()


def test_quantiles():
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([1.0] * 19 + [9.0], 0.95) == 1.0
    assert quantile([1.0] * 18 + [9.0] * 2, 0.95) == 9.0
    assert quantile([], 0.5) == 0.0


def test_w3_sends_its_long_prompts_at_once():
    llm = FakeLLM(context_length=2000)
    report = measure(llm, w3(500, 4, 8))
    assert llm.in_flight[0] == (4, 4)
    assert {len(prompt) for prompt, _ in llm.added} == {500}
    assert (report.workload.name, report.output_tokens) == ("W3", 32)


def test_prefill_and_decode_are_distinguished(monkeypatch):
    llm = FakeLLM(pause_s=0.005, first_s=0.06)
    monkeypatch.setattr(offline, "time", SimpleNamespace(perf_counter=lambda: llm.now))
    report = measure(llm, w1(2, 30, 11, 2))
    assert report.prefill_seconds == pytest.approx(0.065)
    assert report.prefill_tokens_per_s == pytest.approx(60 / 0.065)
    assert report.decode_seconds == pytest.approx(0.05)
    assert report.decode_tokens_per_s == pytest.approx(20 / 0.05)
    assert report.first_token_p50_s == pytest.approx(0.065)
    assert report.between_p50_s == pytest.approx(0.005)


def test_one_token_has_no_decode():
    report = measure(FakeLLM(), w1(1, 16, 1, 1))
    assert report.decode_tokens_per_s == 0
    assert report.prefill_tokens_per_s > 0


def test_spans_are_merged_and_times_outside_are_counted():
    union = merged([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0)])
    assert union == [(0.0, 3.0), (5.0, 6.0)]
    assert num_outside(union, [-1.0, 0.0, 2.5, 3.0, 4.0, 5.5, 7.0]) == 3
    assert num_outside([], [1.0]) == 1


def test_workloads_are_those_that_were_asked_for_in_order():
    def names(**wanted):
        return [(each.name, each.concurrency) for each in workloads_of(OfflineOptions(**wanted))]

    assert names() == [("W1", 1), ("W1", 8), ("W1", 32), ("W2", 32)]
    assert names(workload=("long",)) == [("W3", 1), ("W3", 4)]
    assert names(workload=("independent", "long"), conc=(2,)) == [("W1", 2), ("W3", 2)]
    assert names(workload=("shared-prefix",), prefix=0) == []
    with pytest.raises(ConfigError, match="workload is 'W9'; allowed: independent, shared-prefix, long"):
        OfflineOptions(workload=("W9",))


def test_a_workload_is_chosen_by_either_of_its_names(monkeypatch):
    seen = []
    monkeypatch.setattr(
        bench, "run_offline", lambda model, engine, workloads, *, as_json: seen.append(workloads)
    )
    for words in (["W1", "w3"], ["independent", "long"]):
        flags = [part for word in words for part in ("--workload", word)]
        result = CliRunner().invoke(app, ["bench", "offline", *flags, "--conc", "1", "--conc", "2"])
        assert result.exception is None, result.exception
    assert seen[0] == seen[1]
    assert [each.name for each in seen[0]] == ["W1", "W1", "W3", "W3"]


def test_each_run_has_its_own_number_of_requests():
    def numbers(**wanted):
        return [each.num_requests for each in workloads_of(OfflineOptions(**wanted))]

    alone = ("independent",)
    assert numbers(workload=alone) == [4, 16, 64]
    assert numbers(n=(5,)) == [5, 5, 5, 5]
    assert numbers(workload=alone, n=(4, 7), conc=(1, 8)) == [4, 7]
    for workload, given in ((alone, (1, 2)), ((*alone, "shared-prefix"), (1, 2, 3))):
        with pytest.raises(ConfigError, match="once for each of the 3 --conc"):
            OfflineOptions(workload=workload, n=given)


def test_a_real_engine_is_measured(monkeypatch) -> None:
    monkeypatch.setattr(octavo.api.llm, "build_engine", lambda *given: started_tiny())
    llm = octavo.LLM()
    report = measure(llm, w1(5, 20, 6, 2))
    llm.close()
    assert (report.output_tokens, report.prompt_tokens) == (30, 100)
    assert report.steps == llm.engine.stats.steps >= 15


def test_a_run_that_fails_lets_go_of_the_engine(monkeypatch) -> None:
    llm = FakeLLM()
    llm.failure = "its logits were NaN"
    monkeypatch.setattr(bench, "LLM", lambda *given: llm)
    monkeypatch.setattr(bench, "resolved_settings", lambda *given: {})
    with pytest.raises(RequestFailed, match="NaN"):
        bench.run_offline(None, StartOptions(), [w1(2, 8, 4, 1)], as_json=True)
    assert llm.closed


@pytest.mark.parametrize("as_json", [True, False])
def test_what_was_resolved_is_reported_with_the_figures(monkeypatch, capsys, as_json):
    llm = FakeLLM()
    engine = {"weights": "int8", "weight_bytes": 1 << 20, "kv": "f32"}
    monkeypatch.setattr(bench, "LLM", lambda *given: llm)
    monkeypatch.setattr(bench, "resolved_settings", lambda *given: engine)
    bench.run_offline(None, StartOptions(), [w1(2, 8, 4, 1)], as_json=as_json)
    assert llm.waited  # for memory, which is not what is measured
    assert llm.closed
    told = capsys.readouterr().out
    if as_json:
        first, second = map(json.loads, told.splitlines())
        assert first == {"engine": engine}
        assert second["workload"]["name"] == "W1"
    else:
        assert "weights int8, weight 1.0 MiB, kv f32" in told
