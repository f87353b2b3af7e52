"""The offline benchmark measures what it says, over a fake model."""

import asyncio
import json

import pytest

from octavo.bench.offline import measure, prompts_of, quantile, w1, w2
from octavo.cli.bench import json_line, table_of
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
    assert table_of([report, report]).row_count == 2


def test_quantiles():
    assert quantile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([1.0] * 19 + [9.0], 0.95) == 1.0
    assert quantile([1.0] * 18 + [9.0] * 2, 0.95) == 9.0
    assert quantile([], 0.5) == 0.0
