"""The gain and cost of guessed tokens: the same prompts with speculation off, whenever text repeats
(`ngram`), and only where it pays (`auto`). The real engine, a closed loop in one thread.

    cell    task x requests at once x mode; a round measures all of them
    round 1   editing 1: ngram auto off    editing 2: ngram auto off    ...
    round 2   editing 1: auto off ngram    ...                          the order of modes rotates

Every mode has its own engine over the same file, so `auto` keeps its measured step costs. Only one engine
steps at a time; all share the process's native threads. A ratio of a mode's speed to that of `off` is taken
within a round. No mode changes an answer: if an answer differs between cells or rounds, an AssertionError
names the cell.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.speculation.tasks import NUM_PROMPTS, TASKS, Prompt, chosen_tasks, prompts_of_task

from octavo.api.llm import LLM
from octavo.config import StartOptions
from octavo.engine.outputs import EngineStats
from octavo.engine.requests import render_chat
from octavo.errors import ConfigError, RequestFailed, shown
from octavo.params import SamplerParams
from octavo.text.continuation import encode_rendered
from octavo.types import ChatMessage, FinishReason

OFF = "off"
MODES = (OFF, "ngram", "auto")
CONCURRENCIES = (1, 2, 8, 32)
KV_MEMORY_BYTES = 2**30  # of each engine


@dataclass(frozen=True, slots=True)
class Scenario:
    """The cells to measure. Raises ConfigError for invalid ones."""

    tasks: tuple[str, ...] = TASKS
    concurrencies: tuple[int, ...] = CONCURRENCIES
    modes: tuple[str, ...] = MODES
    rounds: int = 9
    tokens: int = 200  # of an answer, at most
    weights: str = "auto"

    def __post_init__(self) -> None:
        chosen_tasks(self.tasks)
        for mode in self.modes:
            if mode not in MODES:
                raise ConfigError(f"--mode is {shown(mode)}; allowed: {', '.join(MODES)}")
        for count in self.concurrencies:
            if not 1 <= count <= NUM_PROMPTS:
                raise ConfigError(f"--concurrency is {count}; allowed: 1 to {NUM_PROMPTS}")
        if self.rounds < 1 or self.tokens < 1:
            raise ConfigError(f"rounds is {self.rounds} and tokens {self.tokens}; allowed: 1 and more")

    def options(self, mode: str) -> StartOptions:
        """Options of the engine for a mode."""
        return StartOptions(
            weights=self.weights,
            kv_memory_bytes=KV_MEMORY_BYTES,
            max_seqs=max(self.concurrencies),
            prefix_caching=False,
            pace=False,
            speculate=mode,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """A task, a concurrency and a mode."""

    task: str
    concurrency: int
    mode: str

    @property
    def name(self) -> str:
        """A display name."""
        return f"{self.task}, {self.concurrency} at once, {self.mode}"


@dataclass(frozen=True, slots=True)
class Run:
    """One round of a cell. A request decodes from its first token to its last."""

    output_tokens: int
    seconds: float
    decode_tokens: int  # after the first step with tokens, of all requests
    decode_seconds: float  # summed over requests
    steps: int
    drafted: int  # computed guesses
    accepted: int  # correct ones of them


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell over all its rounds: speeds and ratios are medians, the rest are sums. A ratio is None if `off`
    was not measured, decoding if several requests run at once or no answer had two tokens."""

    task: str
    concurrency: int
    mode: str
    rounds: int
    output_tokens: int
    tokens_per_second: float
    decode_tokens_per_second: float | None
    ratio: float | None  # of tokens_per_second to that of `off`, within a round
    ratio_lowest: float | None
    ratio_highest: float | None
    decode_ratio: float | None
    steps: int
    accepted_per_step: float
    drafted: int
    accepted: int
    acceptance: float  # share of drafted ones; 0 if there were none


@dataclass(frozen=True, slots=True)
class Summary:
    """A mode compared with `off` over all cells."""

    mode: str
    cells: int
    ratio_mean: float  # geometric
    ratio_lowest: float
    lowest_cell: str


@dataclass(slots=True)
class _Answer:
    """One request's tokens and their times, on the clock of `time.perf_counter`."""

    prompt_index: int
    token_ids: list[int] = field(default_factory=list)
    num_first: int = 0  # tokens of the first step that had any
    first_at: float = 0.0
    last_at: float = 0.0

    def extend(self, token_ids: Sequence[int], now: float) -> None:
        """Record new tokens."""
        if token_ids and not self.token_ids:
            self.num_first, self.first_at = len(token_ids), now
        if token_ids:
            self.last_at = now
        self.token_ids += token_ids


@dataclass(frozen=True, slots=True)
class _Request:
    """A prompt in tokens."""

    prompt_index: int
    token_ids: Sequence[int]
    params: SamplerParams


def measure_speculation(
    model: str | None, scenario: Scenario, show: Callable[[str], None] = lambda text: None
) -> list[CellResult]:
    """Measure all cells. Raises ConfigError, ModelError, RequestFailed, and AssertionError if an answer
    depends on its cell."""
    runs: dict[Cell, list[Run]] = {}
    answers = Answers()
    with ExitStack() as stack:
        llms = {
            mode: stack.enter_context(LLM(model, scenario.options(mode), show)) for mode in scenario.modes
        }
        requests = {
            task: requests_of(next(iter(llms.values())), task, scenario.tokens) for task in scenario.tasks
        }
        for number in range(scenario.rounds + 1):
            for cell in cells_of(scenario, number):
                show(f"round {number} of {scenario.rounds}: {cell.name} ...")
                taken = taken_in_round(requests[cell.task], cell.concurrency, number)
                run, found = _measure(llms[cell.mode], cell, taken)
                answers.check(cell, found)
                runs.setdefault(cell, []).append(run)
    kept = {cell: each[1:] for cell, each in runs.items()}  # the first round is the warm-up
    return [result_of(cell, kept) for cell in cells_of(scenario, 0)]


def cells_of(scenario: Scenario, number: int) -> Iterator[Cell]:
    """The cells in the order of a round: the modes of a task are adjacent, and their order rotates from round
    to round."""
    shift = number % len(scenario.modes)
    modes = scenario.modes[shift:] + scenario.modes[:shift]
    for task, concurrency, mode in itertools.product(scenario.tasks, scenario.concurrencies, modes):
        yield Cell(task, concurrency, mode)


def num_requests(concurrency: int) -> int:
    """Requests of a cell in a round: 2, 4, 16 and 32 for 1, 2, 8 and 32 at once."""
    return max(concurrency, min(2 * concurrency, NUM_PROMPTS))


def taken_in_round(requests: Sequence[_Request], concurrency: int, number: int) -> list[_Request]:
    """The next of the task's prompts, the same for all modes. Round 1 begins with the first."""
    begin, count = (number - 1) * num_requests(concurrency), num_requests(concurrency)
    return [requests[place % len(requests)] for place in range(begin, begin + count)]


def requests_of(llm: LLM, task: str, tokens: int) -> list[_Request]:
    """A task's prompts for a model."""
    prompts = prompts_of_task(task, tokens, llm.started.facts.vocab_size)
    return [_Request(index, tokens_of(llm, prompt), prompt.params) for index, prompt in enumerate(prompts)]


def tokens_of(llm: LLM, prompt: Prompt) -> Sequence[int]:
    """The text in the model's chat template; without a template, the text itself."""
    if prompt.token_ids:
        return prompt.token_ids
    if llm.tokenizer.chat_template is None:
        return llm.tokenizer.encode(prompt.text)
    return encode_rendered(llm.tokenizer, render_chat(llm.tokenizer, [ChatMessage("user", prompt.text)]))


def written_prompts(model: str | None, scenario: Scenario) -> Iterator[Mapping[str, object]]:
    """The prompts as text and tokens, with their sampling parameters, for other programs. Raises ConfigError,
    ModelError."""
    with LLM(model, scenario.options(OFF)) as llm:
        for task in scenario.tasks:
            for request in requests_of(llm, task, scenario.tokens):
                params = request.params
                yield {
                    "task": task,
                    "index": request.prompt_index,
                    "text": llm.tokenizer.decode(request.token_ids, skip_special=False),
                    "token_ids": list(request.token_ids),
                    "max_tokens": params.max_tokens,
                    "temperature": params.temperature,
                    "seed": params.seed,
                    "ignore_eos": params.ignore_eos,
                    "json_schema": None if params.grammar is None else params.grammar.text,
                }


def _measure(llm: LLM, cell: Cell, requests: Sequence[_Request]) -> tuple[Run, list[_Answer]]:
    before, begun = llm.engine.stats, time.perf_counter()
    answers = _answered(llm, cell, requests)
    seconds, after = time.perf_counter() - begun, llm.engine.stats
    run = Run(
        sum(len(answer.token_ids) for answer in answers),
        seconds,
        sum(len(answer.token_ids) - answer.num_first for answer in answers),
        sum(answer.last_at - answer.first_at for answer in answers),
        after.steps - before.steps,
        _drafted(after) - _drafted(before),
        _accepted(after) - _accepted(before),
    )
    return run, answers


def _answered(llm: LLM, cell: Cell, requests: Sequence[_Request]) -> list[_Answer]:
    """Answer every request: when one answer ends, the next request is sent."""
    answers: dict[int, _Answer] = {}
    unsent = list(reversed(requests))
    while unsent or llm.num_unfinished:
        while unsent and llm.num_unfinished < cell.concurrency:
            request = unsent.pop()
            request_id = llm.add_request(request.token_ids, request.params)
            answers[request_id] = _Answer(request.prompt_index)
        deltas = llm.step()
        now = time.perf_counter()
        for request_id, delta in deltas:
            if delta.finish is FinishReason.ERROR:
                raise RequestFailed(f"{cell.name}: {delta.error}")
            answers[request_id].extend([info.token for info in delta.tokens], now)
    return list(answers.values())


def _drafted(stats: EngineStats) -> int:
    return sum(stats.draft_tokens.values())


def _accepted(stats: EngineStats) -> int:
    return sum(stats.accepted_draft_tokens.values())


class Answers:
    """The first answer to each prompt."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], tuple[Cell, list[int]]] = {}

    def check(self, cell: Cell, answers: Sequence[_Answer]) -> None:
        """Raise AssertionError unless these are the same as all before, token for token."""
        for answer in answers:
            given = (cell, answer.token_ids)
            first, tokens = self._first.setdefault((cell.task, answer.prompt_index), given)
            if tokens != answer.token_ids:
                pairs = enumerate(zip(tokens, answer.token_ids, strict=False))
                shorter = min(len(tokens), len(answer.token_ids))
                place = next((place for place, (one, other) in pairs if one != other), shorter)
                raise AssertionError(
                    f"{cell.name}: the answer to prompt {answer.prompt_index} is not that of {first.name}: "
                    f"they part at token {place}"
                )


def result_of(cell: Cell, runs: Mapping[Cell, Sequence[Run]]) -> CellResult:
    """Medians over a cell's rounds; ratios to the runs of `off` in the same rounds, where there are any."""
    own = runs[cell]
    base = runs.get(Cell(cell.task, cell.concurrency, OFF), ())
    ratios = [_ratio(_speed(run), _speed(other)) for run, other in zip(own, base, strict=False)]
    known = [ratio for ratio in ratios if ratio is not None]
    is_alone = cell.concurrency == 1
    decode_ratios = [
        _ratio(_decode_speed(run), _decode_speed(other)) for run, other in zip(own, base, strict=False)
    ]
    steps, drafted = sum(run.steps for run in own), sum(run.drafted for run in own)
    accepted = sum(run.accepted for run in own)
    return CellResult(
        task=cell.task,
        concurrency=cell.concurrency,
        mode=cell.mode,
        rounds=len(own),
        output_tokens=sum(run.output_tokens for run in own),
        tokens_per_second=statistics.median(map(_speed, own)),
        decode_tokens_per_second=_median(map(_decode_speed, own)) if is_alone else None,
        ratio=_median(ratios),
        ratio_lowest=min(known, default=None),
        ratio_highest=max(known, default=None),
        decode_ratio=_median(decode_ratios) if is_alone else None,
        steps=steps,
        accepted_per_step=accepted / steps if steps else 0.0,
        drafted=drafted,
        accepted=accepted,
        acceptance=accepted / drafted if drafted else 0.0,
    )


def summaries_of(results: Sequence[CellResult]) -> list[Summary]:
    """The summary of each mode with ratios, except `off`."""
    summaries = []
    for mode in MODES[1:]:
        ratios = {
            Cell(each.task, each.concurrency, mode): each.ratio
            for each in results
            if each.mode == mode and each.ratio is not None
        }
        if ratios:
            lowest = min(ratios, key=ratios.__getitem__)
            mean = statistics.geometric_mean(ratios.values())
            summaries.append(Summary(mode, len(ratios), mean, ratios[lowest], lowest.name))
    return summaries


def _speed(run: Run) -> float:
    return run.output_tokens / run.seconds


def _decode_speed(run: Run) -> float | None:
    """Decoding speed; None if no answer had a second token."""
    return run.decode_tokens / run.decode_seconds if run.decode_seconds > 0.0 else None


def _ratio(speed: float | None, base: float | None) -> float | None:
    return None if speed is None or base is None or base == 0.0 else speed / base


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
