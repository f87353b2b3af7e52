"""The synchronous front door: outputs in order, refusals before anything runs, an engine that works after an
error."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.engine.served import FACTS, POISON, LetterTokenizer, Turnstile, alone, poisoned_model
from tests.tiny import CONTEXT, VOCAB, random_prompt, request, run, tiny_engine

import octavo.engine.llm
from octavo import LLM, SamplingParams
from octavo.config import StartOptions
from octavo.errors import InvalidRequest, ModelNotFound, RequestFailed, RequestTooLarge
from octavo.kernels.native_ops import NativeOps
from octavo.scheduler.check import check_scheduler
from octavo.types import ChatMessage, FinishReason

NEVER_POISON = {"logit_bias": ((POISON, -100.0),)}


class Template:
    """Renders a chat as its contents; refuses an empty one."""

    def render(self, messages: list[ChatMessage], *, add_generation_prompt: bool) -> str:
        assert add_generation_prompt
        if not messages:
            raise InvalidRequest("an empty chat", param="messages")
        return "".join(message.content for message in messages)


class TalkingTokenizer(LetterTokenizer):
    """With a chat template."""

    chat_template = Template()  # type: ignore[assignment]


@pytest.fixture
def make_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def make(tokenizer: LetterTokenizer | None = None, **engine: object) -> LLM:
        def build(model: object, options: StartOptions, progress: object) -> object:
            tiny = tiny_engine(NativeOps(), **engine)  # type: ignore[arg-type]
            loaded = types.SimpleNamespace(tokenizer=tokenizer or LetterTokenizer())
            return types.SimpleNamespace(engine=tiny, loaded=loaded, facts=FACTS)

        monkeypatch.setattr(octavo.engine.llm, "build_engine", build)
        made.append(LLM())
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    fields = {"temperature": 0.0, "logprobs": 3, "ignore_eos": True, **fields}
    return SamplingParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


def prompt_of(seed: int, length: int) -> list[int]:
    return [token % POISON for token in random_prompt(np.random.default_rng(seed), length)]


def nothing_is_left(llm: LLM) -> None:
    assert llm.engine.idle
    assert llm.engine.scheduler.memory.counts().held == 0
    check_scheduler(llm.engine.scheduler)


@pytest.mark.parametrize("depth", [0, 1])
def test_outputs_come_in_the_order_of_prompts_however_many(make_llm: Callable[..., LLM], depth: int) -> None:
    llm = make_llm(depth=depth, rows=3, max_waiting=3)
    prompts = [prompt_of(i, 5 + i) for i in range(20)]
    lengths = [1 + i * 7 % 13 for i in range(20)]
    outputs = llm.generate(prompts, [greedy(length) for length in lengths])
    assert [list(output.prompt_token_ids) for output in outputs] == prompts
    for output, prompt, length in zip(outputs, prompts, lengths, strict=True):
        (wanted,) = alone(prompt, length, ignore_eos=True)
        assert output.choices[0].token_ids == wanted.tokens
        assert output.choices[0].finish is FinishReason.LENGTH
        assert output.choices[0].usage.num_output == length
    nothing_is_left(llm)


def test_no_prompts_make_no_outputs(make_llm: Callable[..., LLM]) -> None:
    assert make_llm().generate([], greedy(4)) == []


def test_text_is_tokenised_and_stop_strings_end_each_choice(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    whole = llm.generate(["octavo"], greedy(40, temperature=1.0, seed=5), n=3)[0]
    assert whole.prompt_token_ids == tuple(LetterTokenizer().encode("octavo"))
    stop = whole.choices[1].text[6:8]
    cut = llm.generate(["octavo"], greedy(40, temperature=1.0, seed=5, stop=(stop,)), n=3)[0]
    for before, after in zip(whole.choices, cut.choices, strict=True):
        assert after.text == before.text.partition(stop)[0]
        assert after.stop == (stop if stop in before.text else None)
        assert after.finish is (FinishReason.STOP if stop in before.text else FinishReason.LENGTH)
    nothing_is_left(llm)


@pytest.mark.parametrize(
    "wrong, fields, error",
    [
        ([], {}, InvalidRequest),
        ([VOCAB], {}, InvalidRequest),
        ([5] * CONTEXT, {}, RequestTooLarge),
        ([5], {"max_tokens": CONTEXT}, RequestTooLarge),
        ([5], {"stop_token_ids": (VOCAB,)}, InvalidRequest),
    ],
)
def test_one_wrong_prompt_is_refused_before_any_runs(
    make_llm: Callable[..., LLM], wrong: list[int], fields: dict[str, object], error: type[Exception]
) -> None:
    llm = make_llm()
    params = greedy(**{"max_tokens": 4, **fields})  # type: ignore[arg-type]
    with pytest.raises(error):
        llm.generate([[5, 6], wrong], params if fields else greedy(4))
    assert llm.engine.stats.steps == 0
    nothing_is_left(llm)


def test_as_many_params_as_prompts(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(ValueError, match="2 params for 3 prompts"):
        make_llm().generate([[5], [6], [7]], [greedy(4)] * 2)


def test_more_choices_than_rows_are_refused(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(InvalidRequest, match="max_seqs"):
        make_llm(rows=4).generate([[5]], greedy(4), n=5)


def test_a_chat_needs_a_template_and_one_that_takes_it(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(InvalidRequest, match="template"):
        make_llm().chat([[ChatMessage("user", "abc")]], greedy(4))
    llm = make_llm(TalkingTokenizer())
    with pytest.raises(InvalidRequest, match="an empty chat"):
        llm.chat([[ChatMessage("user", "abc")], []], greedy(4))
    assert llm.engine.stats.steps == 0
    said = llm.chat([[ChatMessage("user", "abc"), ChatMessage("user", "de")]], greedy(4))[0]
    assert said.prompt_token_ids == tuple(LetterTokenizer().encode("abcde"))
    assert len(said.choices[0].token_ids) == 4


@pytest.mark.parametrize("depth", [0, 1])
def test_a_failed_request_ends_the_call_and_the_next_call_works(
    make_llm: Callable[..., LLM], depth: int
) -> None:
    llm = make_llm(model=poisoned_model(), depth=depth, rows=4)
    prompts = [prompt_of(i, 20) for i in range(8)]
    with pytest.raises(RequestFailed):
        llm.generate([*prompts, [*prompts[0], POISON]], greedy(30, **NEVER_POISON))
    nothing_is_left(llm)
    output = llm.generate([prompts[3]], greedy(9, **NEVER_POISON))[0]
    (wanted,) = alone(prompts[3], 9, ignore_eos=True, **NEVER_POISON)
    assert output.choices[0].token_ids == wanted.tokens


def test_a_greedy_row_without_numbers_fails_alone_though_nobody_asked_for_logits() -> None:
    engine = tiny_engine(NativeOps(), model=poisoned_model())
    wanted = [request(i, prompt_of(i, 5 + i), 6, logprobs=None) for i in range(5)]
    wanted[2] = request(2, [*prompt_of(2, 5), POISON], 6, logprobs=None)
    answers = run(engine, wanted)
    assert answers.pop((2, 0)).finish is FinishReason.ERROR
    for (request_id, _), answer in answers.items():
        sound = run(tiny_engine(NativeOps(), model=poisoned_model()), [wanted[request_id]])
        assert answer.tokens == sound[request_id, 0].tokens
        assert len(answer.tokens) > 1


def test_a_model_that_cannot_be_had_is_the_callers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*given: object) -> object:
        raise ModelNotFound("no such file: /nowhere")

    monkeypatch.setattr(octavo.engine.llm, "build_engine", build)
    with pytest.raises(ModelNotFound, match="nowhere"):
        LLM("/nowhere")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_call_that_broke_leaves_nothing_behind(
    make_llm: Callable[..., LLM], error: type[BaseException]
) -> None:
    llm = make_llm()
    turnstile = Turnstile(llm.engine.executor)
    llm.engine.executor = turnstile
    submit = turnstile.submit

    def break_in_the_fifth_step(plan):  # type: ignore[no-untyped-def]
        if len(turnstile.plans) == 4:
            turnstile.plans.clear()
            turnstile.submit = submit  # type: ignore[method-assign]
            raise error("the step broke")
        return submit(plan)

    turnstile.submit = break_in_the_fifth_step  # type: ignore[method-assign]
    with pytest.raises((RequestFailed, error)):
        llm.generate([prompt_of(1, 20), prompt_of(2, 20)], greedy(30))
    nothing_is_left(llm)
    output = llm.generate([prompt_of(3, 20)], greedy(9))[0]
    assert output.choices[0].token_ids == alone(prompt_of(3, 20), 9, ignore_eos=True)[0].tokens
