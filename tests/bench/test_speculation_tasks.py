"""`python -m bench.speculation`: its prompts are the same every time, and its figures are what it says."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from bench.speculation import speculation
from bench.speculation.__main__ import line_of, table_of
from bench.speculation.speculation import (
    Answers,
    Cell,
    CellResult,
    Run,
    Scenario,
    cells_of,
    measure_speculation,
    num_requests,
    result_of,
    summaries_of,
    taken_in_round,
)
from bench.speculation.tasks import (
    CODE_CHARS,
    NUM_PROMPTS,
    PASSAGE_CHARS,
    TASKS,
    chosen_tasks,
    commonest_name,
    functions,
    passages,
    prompts_of_task,
)

from octavo.config import StartOptions
from octavo.engine.outputs import Delta, EngineStats, TokenInfo
from octavo.errors import ConfigError
from octavo.params import SamplerParams
from octavo.types import FinishReason, Usage

FOLDER = Path(__file__).parents[2] / "bench/compare"
VOCAB = 1000


@pytest.mark.parametrize("task", TASKS)
def test_a_task_has_the_same_prompts_every_time_and_all_of_them_differ(task: str) -> None:
    prompts = prompts_of_task(task, 200, VOCAB)
    assert prompts == prompts_of_task(task, 200, VOCAB)
    assert len({(prompt.text, prompt.token_ids) for prompt in prompts}) == NUM_PROMPTS == len(prompts)
    assert {prompt.params.max_tokens for prompt in prompts} == {200}


def test_an_unknown_task_is_reported_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'writing'; allowed: editing, quoting, .*random"):
        chosen_tasks(["chat", "writing"])
    with pytest.raises(ConfigError, match="allowed: editing"):
        prompts_of_task("writing", 200, VOCAB)
    assert chosen_tasks(["chat", "editing"]) == ("editing", "chat")
    assert chosen_tasks(None) == TASKS


def test_only_chats_and_random_tokens_are_drawn_and_only_random_tokens_go_on_for_ever() -> None:
    for task in TASKS:
        params = [prompt.params for prompt in prompts_of_task(task, 8, VOCAB)]
        assert all(each.greedy for each in params) == (task not in ("chat", "random"))
        assert all(each.greedy or each.seed is not None for each in params)
        assert {each.ignore_eos for each in params} == {task == "random"}
        assert all((each.grammar is not None) == (task == "extraction") for each in params)


def test_random_tokens_are_in_the_vocabulary_however_small_it_is() -> None:
    for prompt in prompts_of_task("random", 8, 50):
        assert 0 <= min(prompt.token_ids) <= max(prompt.token_ids) < 50


def test_pieces_have_the_stated_size_and_the_renamed_name_is_in_them() -> None:
    for code in functions():
        assert CODE_CHARS[0] <= len(code) <= CODE_CHARS[1]
        assert commonest_name(code) in code
    assert all(PASSAGE_CHARS[0] <= len(text) <= PASSAGE_CHARS[1] for text in passages(PASSAGE_CHARS))
    assert commonest_name("def f(row, column):\n    return row + row * column + os") == "row"


def test_all_reports_are_read_with_one_schema() -> None:
    prompts = prompts_of_task("extraction", 200, VOCAB)
    (grammar,) = {prompt.params.grammar for prompt in prompts}
    assert grammar is not None
    ships = json.loads(grammar.text)["properties"]["ships"]
    assert ships["minItems"] == ships["maxItems"] == prompts[0].text.count(", master ")


def test_modes_are_interleaved_in_every_round() -> None:
    scenario = Scenario(tasks=("chat",), concurrencies=(1, 2))
    first = [[cell.mode for cell in cells_of(scenario, number)][:3] for number in range(4)]
    assert first == [
        ["off", "ngram", "auto"],
        ["ngram", "auto", "off"],
        ["auto", "off", "ngram"],
        ["off", "ngram", "auto"],
    ]
    assert [cell.concurrency for cell in cells_of(scenario, 0)] == [1, 1, 1, 2, 2, 2]


def test_rounds_take_the_next_prompts_and_enough_for_those_at_once() -> None:
    assert [num_requests(count) for count in speculation.CONCURRENCIES] == [2, 4, 16, 32]
    assert num_requests(20) == 32
    requests = speculation.requests_of(Untemplated(), "random", 8)  # type: ignore[arg-type]
    taken = [[each.prompt_index for each in taken_in_round(requests, 8, number)] for number in range(3)]
    assert taken == [list(range(16, 32)), list(range(16)), list(range(16, 32))]


class Untemplated:
    """As much of an LLM as random prompts need."""

    class started:
        class facts:
            vocab_size = VOCAB


class FakeLLM(Untemplated):
    """Answers every prompt with its first tokens reversed: one each step, or two with guesses, both right."""

    def __init__(self, model: str | None, options: StartOptions, tell: object) -> None:
        self.width = 1 if options.speculate == "off" else 2
        self.engine = SimpleNamespace(stats=EngineStats())
        self.left: dict[int, list[int]] = {}
        self.most, self.closed = 0, False

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *raised: object) -> None:
        self.closed = True

    @property
    def num_unfinished(self) -> int:
        return len(self.left)

    def add_request(self, prompt: tuple[int, ...], params: SamplerParams) -> int:
        request_id = self.engine.stats.requests_finished + len(self.left)
        self.left[request_id] = list(prompt[: params.max_tokens])
        self.most = max(self.most, len(self.left))
        return request_id

    def step(self) -> list[tuple[int, Delta]]:
        deltas, before, drafted = [], self.engine.stats, 0
        for request_id, left in self.left.items():
            taken = [left.pop() for _ in range(min(self.width, len(left)))]
            drafted += len(taken) - 1
            infos = tuple(TokenInfo(token, b"") for token in taken)
            finish = None if left else FinishReason.LENGTH
            deltas.append((request_id, Delta(0, "", infos, Usage(0, 0, 0, 0), finish)))
        self.left = {request_id: left for request_id, left in self.left.items() if left}
        counts = {"ngram": before.draft_tokens.get("ngram", 0) + drafted}
        self.engine.stats = replace(
            before,
            steps=before.steps + 1,
            requests_finished=before.requests_finished + len(deltas) - len(self.left),
            draft_tokens=counts,
            accepted_draft_tokens=counts,
        )
        return deltas


def test_all_cells_are_measured_in_turn_and_the_first_round_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[FakeLLM] = []

    def make(*given: object) -> FakeLLM:
        made.append(FakeLLM(*given))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(speculation, "LLM", make)
    told: list[str] = []
    scenario = Scenario(("random",), (1, 8), ("off", "auto"), rounds=2, tokens=6)
    found = measure_speculation(None, scenario, told.append)
    assert [(each.concurrency, each.mode) for each in found] == [
        (1, "off"),
        (1, "auto"),
        (8, "off"),
        (8, "auto"),
    ]
    assert [each.output_tokens for each in found] == [24, 24, 192, 192]
    assert [each.steps for each in found] == [24, 12, 24, 12]
    assert [each.drafted for each in found] == [0, 12, 0, 96]
    assert [each.accepted_per_step for each in found] == [0.0, 1.0, 0.0, 8.0]
    assert all(each.ratio is not None and each.rounds == 2 for each in found)
    assert told[4] == "round 1 of 2: random, 1 at once, auto ..."
    assert len(told) == 12
    assert [(llm.most, llm.closed) for llm in made] == [(8, True), (8, True)]


def test_a_mode_that_changes_an_answer_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(FakeLLM):
        def add_request(self, prompt: tuple[int, ...], params: SamplerParams) -> int:
            wrong = prompt[: params.max_tokens][:-1] + (0,) * (self.width - 1) + prompt[5:6]
            return super().add_request(wrong, params)

    monkeypatch.setattr(speculation, "LLM", Wrong)
    with pytest.raises(AssertionError, match="random, 1 at once, auto: the answer to prompt"):
        measure_speculation(None, Scenario(("random",), (1,), ("off", "auto"), 1, 6))


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"modes": ("off", "often")}, "--mode is 'often'; allowed: off, ngram, auto"),
        ({"concurrencies": (33,)}, "--concurrency is 33; allowed: 1 to 32"),
        ({"tasks": ("writing",)}, "--task is 'writing'"),
        ({"rounds": 0}, "rounds is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Scenario(**wrong)  # type: ignore[arg-type]


def run(seconds: float, decode_seconds: float = 1.0, drafted: int = 0, accepted: int = 0) -> Run:
    return Run(100, seconds, 90, decode_seconds, 100 - accepted, drafted, accepted)


def test_a_ratio_is_taken_within_a_round() -> None:
    off, auto = Cell("chat", 1, "off"), Cell("chat", 1, "auto")
    runs = {
        off: [run(1.0, 0.9), run(4.0, 3.6), run(2.0, 1.8)],
        auto: [run(1.0, 0.9, 10, 5), run(1.0, 0.9, 30, 20), run(1.0, 0.9)],
    }
    result = result_of(auto, runs)
    assert (result.ratio, result.ratio_lowest, result.ratio_highest) == (2.0, 1.0, 4.0)
    assert (result.tokens_per_second, result.decode_tokens_per_second) == (100.0, 100.0)
    assert result.decode_ratio == 2.0
    assert (result.output_tokens, result.steps, result.drafted, result.accepted) == (300, 275, 40, 25)
    assert result.acceptance == 0.625
    assert result.accepted_per_step == 25 / 275
    base = result_of(off, runs)
    assert (base.ratio, base.tokens_per_second, base.acceptance) == (1.0, 50.0, 0.0)


def test_without_off_there_is_no_ratio_and_at_several_at_once_no_decoding() -> None:
    cell = Cell("chat", 2, "auto")
    result = result_of(cell, {cell: [run(1.0)]})
    assert (result.ratio, result.ratio_lowest, result.decode_ratio) == (None, None, None)
    assert result.decode_tokens_per_second is None
    assert summaries_of([result]) == []


def test_answers_of_one_token_have_no_decoding() -> None:
    cell = Cell("chat", 1, "off")
    result = result_of(cell, {cell: [Run(2, 1.0, 0, 0.0, 2, 0, 0)]})
    assert (result.decode_tokens_per_second, result.decode_ratio) == (None, None)


def results(*ratios: float) -> list[CellResult]:
    """Of `auto`, one for each ratio, at 1, 2, ... at once."""
    found = []
    for count, ratio in enumerate(ratios, 1):
        off, auto = Cell("chat", count, "off"), Cell("chat", count, "auto")
        runs = {off: [run(1.0)], auto: [run(1.0 / ratio)]}
        found += [result_of(off, runs), result_of(auto, runs)]
    return found


def test_the_summary_is_a_geometric_mean_and_the_lowest_cell() -> None:
    (summary,) = summaries_of(results(2.0, 0.5, 8.0))
    assert (summary.mode, summary.cells, summary.ratio_lowest) == ("auto", 3, 0.5)
    assert math.isclose(summary.ratio_mean, 2.0)
    assert summary.lowest_cell == "chat, 2 at once, auto"
    assert line_of(summary).startswith("auto: 2.00 times as fast as off over 3 cells")


def test_the_table_has_a_row_for_each_cell() -> None:
    assert table_of(results(2.0, 0.5)).row_count == 4


def test_an_answer_that_depends_on_its_cell_is_refused_with_both_names() -> None:
    def answer(*tokens: int) -> speculation._Answer:
        return speculation._Answer(7, list(tokens))

    answers = Answers()
    answers.check(Cell("chat", 1, "off"), [answer(1, 2, 3)])
    answers.check(Cell("chat", 8, "auto"), [answer(1, 2, 3)])
    answers.check(Cell("quoting", 8, "auto"), [answer(9)])
    both = r"chat, 1 at once, ngram: .*prompt 7 .*chat, 1 at once, off: .*token 2"
    with pytest.raises(AssertionError, match=both):
        answers.check(Cell("chat", 1, "ngram"), [answer(1, 2, 4)])
    with pytest.raises(AssertionError, match="token 2"):
        answers.check(Cell("chat", 1, "auto"), [answer(1, 2)])


def test_decoding_begins_behind_the_first_step_with_tokens() -> None:
    answer = speculation._Answer(0)
    for tokens, now in (([], 1.0), ([5, 6], 2.0), ([7], 3.0), ([], 4.0)):
        answer.extend(tokens, now)
    assert (answer.token_ids, answer.num_first, answer.first_at, answer.last_at) == ([5, 6, 7], 2, 2.0, 3.0)


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script that runs peers, as `python bench/compare/speculation.py` would find its neighbours."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("speculation")
    for name in ("peers", "speculation"):
        sys.modules.pop(name, None)


def test_peers_that_are_missing_are_left_out_with_a_line(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OCTAVO_PEERS", str(tmp_path))
    model = tmp_path / "no.gguf"
    assert compare.server_pairs("ngram-simple", model, []) == []
    assert compare.lookup_pairs(model, [], tmp_path) == []
    assert compare.vllm_pairs(tmp_path / "prompts", [], tmp_path) == []
    assert capsys.readouterr().err.count("left out") == 3


def test_what_peers_print_is_read(compare: ModuleType) -> None:
    timings = {
        "prompt_ms": 500.0,
        "predicted_ms": 1500.0,
        "predicted_n": 31,
        "draft_n": 9,
        "draft_n_accepted": 6,
    }
    told = compare.served_answer("quoting", {"tokens": [1, 2], "timings": timings})
    assert told == compare.Answer("quoting", (1, 2), 31, 2.0, 1.5, 9, 6)
    out = "\n\nThe prompt, and the output.\n\n"
    err = (
        "0.00.1 I encoded   12 tokens in    0.250 seconds, speed:   48.000 t/s\n"
        "0.00.2 I decoded   31 tokens in    1.500 seconds, speed:   20.667 t/s\n"
        "0.00.2 I n_drafted    = 9\n0.00.2 I n_accept     = 6\n"
    )
    looked_up = compare.Answer("quoting", "The prompt, and the output.", 31, 1.75, 1.5, 9, 6)
    assert compare.lookup_answer("quoting", out, err) == looked_up
    assert compare.lookup_answer("quoting", out + err, "") == looked_up
    assert compare.lookup_answer("quoting", out, "") is None


def test_outputs_that_changed_are_counted_and_speeds_are_over_all_prompts(compare: ModuleType) -> None:
    def answer(output: tuple[int, ...], seconds: float) -> object:
        return compare.Answer("editing", output, 11, seconds, seconds / 2, 10, 5)

    pairs = [(answer((1, 2), 2.0), answer((1, 2), 1.0)), (answer((3,), 2.0), answer((4,), 1.0))]
    (line,) = compare.lines_of("it", pairs)
    assert (line.without, line.with_it, line.ratio, line.decode_with) == (5.5, 11.0, 2.0, 20.0)
    assert (line.changed, line.prompts, line.acceptance) == (1, 2, 0.5)
    assert compare.is_same("all of it", "all of it and more")
    assert not compare.is_same("all of it", "all of that")
    assert "1 of 2" in compare.table_of([line])


def test_our_own_lines_set_both_modes_alongside_off(compare: ModuleType) -> None:
    rows = [json.loads(json.dumps(asdict(result))) for result in results(2.0)]
    (line,) = compare.our_lines_of([*rows, {"summary": {}}])
    assert (line.program, line.task, line.without, line.with_it) == ("octavo auto", "chat", 100.0, 200.0)
    assert (line.ratio, line.changed, line.prompts) == (2.0, None, 2)
