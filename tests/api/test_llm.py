"""The synchronous front door: outputs in order, refusals before anything runs, an engine that works after an
error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
from tests.api.talking import TalkingTokenizer
from tests.engine.served import POISON, LetterTokenizer, Turnstile, alone, poisoned_model
from tests.tiny import CONTEXT, VOCAB, random_prompt, request, run, settle, tiny_engine

import octavo.api.driver
import octavo.api.llm
from octavo import LLM, SamplingParams
from octavo.engine.assemble import Assembler
from octavo.engine.outputs import Delta
from octavo.errors import (
    EngineStopped,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    RequestFailed,
    RequestTooLarge,
)
from octavo.executor.host import HostStore
from octavo.kernels.contract import KvShape
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_block
from octavo.params import SamplerParams
from octavo.retention.transfers import Transfers
from octavo.types import ChatMessage, FinishReason, Request

NEVER_POISON = {"logit_bias": ((POISON, -100.0),)}


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    fields = {"temperature": 0.0, "logprobs": 3, "ignore_eos": True, **fields}
    return SamplingParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


def prompt_of(seed: int, length: int) -> list[int]:
    return [token % POISON for token in random_prompt(np.random.default_rng(seed), length)]


def nothing_is_left(llm: LLM) -> None:
    assert llm.engine.idle
    assert llm.engine.scheduler.ledger.counts().held == 0
    llm.engine.scheduler.check()


@pytest.mark.parametrize("depth", [0, 1])
def test_outputs_come_in_the_order_of_prompts_however_many(make_llm: Callable[..., LLM], depth: int) -> None:
    llm = make_llm(depth=depth, rows=3, max_waiting=3)
    prompts = [prompt_of(i, 5 + i) for i in range(20)]
    lengths = [1 + i * 7 % 13 for i in range(20)]
    outputs = llm.generate(prompts, [greedy(length) for length in lengths])
    assert [output.prompt_token_ids for output in outputs] == prompts
    for output, prompt, length in zip(outputs, prompts, lengths, strict=True):
        (wanted,) = alone(prompt, length, ignore_eos=True)
        assert output.outputs[0].token_ids == wanted.tokens
        assert output.outputs[0].finish_reason == "length"
        assert output.outputs[0].usage.num_output == length
    nothing_is_left(llm)


def test_no_prompts_make_no_outputs(make_llm: Callable[..., LLM]) -> None:
    assert make_llm().generate([], greedy(4)) == []


def test_text_is_tokenised_and_stop_strings_end_each_choice(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    whole = llm.generate(["octavo"], greedy(40, n=3, temperature=1.0, seed=5))[0]
    assert whole.prompt_token_ids == LetterTokenizer().encode("octavo")
    stop = whole.outputs[1].text[6:8]
    cut = llm.generate(["octavo"], greedy(40, n=3, temperature=1.0, seed=5, stop=stop))[0]
    for before, after in zip(whole.outputs, cut.outputs, strict=True):
        assert after.text == before.text.partition(stop)[0]
        assert after.stop_reason == (stop if stop in before.text else None)
        assert after.finish_reason == ("stop" if stop in before.text else "length")
    nothing_is_left(llm)


@pytest.mark.parametrize(
    "wrong, fields, error",
    [
        ([], {}, InvalidRequest),
        ([VOCAB], {}, InvalidRequest),
        ([5] * CONTEXT, {}, RequestTooLarge),
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
    with pytest.raises(InvalidRequest, match="2 sampling_params for 3 prompts"):
        make_llm().generate([[5], [6], [7]], [greedy(4)] * 2)


def test_more_choices_than_rows_are_refused(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(InvalidRequest, match="max_seqs"):
        make_llm(rows=4).generate([[5]], greedy(4, n=5))


def test_a_chat_needs_a_template_and_one_that_takes_it(make_llm: Callable[..., LLM]) -> None:
    with pytest.raises(InvalidRequest, match="template"):
        make_llm().chat([[ChatMessage("user", "abc")]], greedy(4))
    llm = make_llm(TalkingTokenizer())
    with pytest.raises(InvalidRequest, match="an empty chat"):
        llm.chat([[ChatMessage("user", "abc")], []], greedy(4))
    assert llm.engine.stats.steps == 0
    said = llm.chat([[ChatMessage("user", "abc"), ChatMessage("user", "de")]], greedy(4))[0]
    assert said.prompt_token_ids == LetterTokenizer().encode("abcde")
    assert len(said.outputs[0].token_ids) == 4


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
    assert output.outputs[0].token_ids == wanted.tokens


def test_a_greedy_row_without_numbers_fails_alone_though_no_one_asked_for_logits() -> None:
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

    monkeypatch.setattr(octavo.api.llm, "build_engine", build)
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
    assert output.outputs[0].token_ids == alone(prompt_of(3, 20), 9, ignore_eos=True)[0].tokens


def turned(llm: LLM, each_step: Callable[[], None] = lambda: None) -> dict[int, list[Delta]]:
    """The deltas of all requests that were added, by request, until none is unfinished."""
    deltas: dict[int, list[Delta]] = {}
    while llm.num_unfinished:
        for request_id, delta in llm.step():
            deltas.setdefault(request_id, []).append(delta)
        each_step()
    return deltas


@pytest.mark.parametrize("depth", [0, 1])
def test_who_steps_gets_what_generate_gives_whenever_requests_are_added(
    make_llm: Callable[..., LLM], depth: int
) -> None:
    llm = make_llm(depth=depth, rows=3)
    prompts = [prompt_of(i, 5 + i) for i in range(9)]
    unsent, ids, most = list(enumerate(prompts)), {}, 0

    def keep_two_in_flight() -> None:
        nonlocal most
        while unsent and llm.num_unfinished < 2:
            i, prompt = unsent.pop(0)
            ids[llm.add_request(prompt, greedy(1 + i * 7 % 13))] = i
        most = max(most, llm.engine.stats.running)

    keep_two_in_flight()
    deltas = turned(llm, keep_two_in_flight)
    assert most == 2
    assert sorted(ids[request_id] for request_id in deltas) == list(range(9))
    for request_id, own in deltas.items():
        i = ids[request_id]
        (wanted,) = alone(prompts[i], 1 + i * 7 % 13, ignore_eos=True)
        assert [info.token for delta in own for info in delta.tokens] == wanted.tokens
        assert [delta.finish for delta in own if delta.finish] == [FinishReason.LENGTH]
    assert llm.step() == []
    nothing_is_left(llm)


def test_a_stop_string_ends_a_request_before_the_engine_does(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    whole = llm.generate(["octavo"], greedy(40))[0].outputs[0].text
    llm.add_request("octavo", greedy(40, n=2, stop=(whole[6:8],)))
    (deltas,) = turned(llm).values()
    for choice in (0, 1):
        text = "".join(delta.text for delta in deltas if delta.choice == choice)
        assert text == whole.partition(whole[6:8])[0]
    assert llm.engine.has_work
    assert llm.step() == []  # it learns that nobody wants the rest
    nothing_is_left(llm)


def test_a_cancelled_request_ends_and_the_others_go_on(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    first, second = (llm.add_request(prompt_of(i, 9), greedy(12)) for i in (1, 2))
    llm.step()
    llm.cancel(first)
    llm.cancel(4321)
    deltas = turned(llm)
    assert deltas[first][-1].finish is FinishReason.CANCELLED
    assert deltas[second][-1].finish is FinishReason.LENGTH
    nothing_is_left(llm)


def test_a_failed_request_ends_alone_for_who_steps(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(model=poisoned_model())
    bad = llm.add_request([5, POISON], greedy(6, **NEVER_POISON))
    good = llm.add_request(prompt_of(3, 20), greedy(6, **NEVER_POISON))
    deltas = turned(llm)
    assert deltas[bad][-1].finish is FinishReason.ERROR
    assert deltas[bad][-1].error
    (wanted,) = alone(prompt_of(3, 20), 6, ignore_eos=True, **NEVER_POISON)
    assert [info.token for delta in deltas[good] for info in delta.tokens] == wanted.tokens


def test_what_is_wrong_is_refused_when_it_is_added(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(rows=2, max_waiting=2)
    with pytest.raises(RequestTooLarge):
        llm.add_request([5] * CONTEXT, greedy(4))
    assert llm.num_unfinished == 0
    for _ in range(2):
        llm.add_request([5, 6], greedy(4))
    with pytest.raises(QueueFull, match="allowed: 2"):
        llm.add_request([5, 6], greedy(4))
    assert llm.num_unfinished == 2
    with pytest.raises(InvalidRequest, match="2 requests that were added are unfinished"):
        llm.generate([[5, 6]], greedy(4))
    assert len(turned(llm)) == 2
    assert len(llm.generate([[5, 6]], greedy(4))[0].outputs[0].token_ids) == 4


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["the step", "its deltas"])
def test_a_step_that_broke_loses_what_was_added_and_no_more(
    make_llm: Callable[..., LLM], depth: int, error: type[BaseException], place: str
) -> None:
    llm = make_llm(depth=depth)
    llm.add_request(prompt_of(1, 20), greedy(30))
    llm.step()
    broken = (llm.engine, "step") if place == "the step" else (Assembler, "take")
    with mock.patch.object(*broken, side_effect=error("it broke")), pytest.raises(error, match="it broke"):
        turned(llm)
    assert llm.num_unfinished == 0
    nothing_is_left(llm)
    llm.add_request(prompt_of(3, 20), greedy(9))
    (deltas,) = turned(llm).values()
    (wanted,) = alone(prompt_of(3, 20), 9, ignore_eos=True)
    assert [info.token for delta in deltas for info in delta.tokens] == wanted.tokens


class GatedStore(HostStore):
    """Reads wait while the gate is shut."""

    gate = threading.Event()

    def find(self, slot: int, name: bytes) -> memoryview | None:
        return super().find(slot, name) if self.gate.wait(10) else None


def test_a_step_waits_for_a_transfer_and_for_a_new_request(make_llm: Callable[..., LLM]) -> None:
    size = bytes_per_block(KvShape(2, 2, 16, 16, "f32"))
    llm = make_llm(num_blocks=30, store=GatedStore(400 * size, size), num_host=400)
    prompts, gate = [prompt_of(i, 100) for i in range(8)], GatedStore.gate
    gate.set()
    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        first = [llm.generate([prompt], greedy(12))[0].outputs[0].token_ids for prompt in prompts]
        settle(llm.engine)
        gate.clear()
        stored = llm.add_request(prompts[0], greedy(12))
        while not llm.engine.idle:
            assert llm.step() == []
        assert llm.engine.scheduler.transfers.in_flight  # nothing is left to compute until it is here
        added = llm.add_request([5, 6, 7], greedy(3))
        deltas: list[Delta] = []
        while len(deltas) < 3:
            deltas += [delta for request_id, delta in llm.step() if request_id == added]
        assert not llm.engine.scheduler.transfers.num_failed  # it did not wait until the reads gave up
        wait = llm.engine.inbox.wait

        def open_and_wait() -> None:
            gate.set()
            wait()

        with mock.patch.object(llm.engine.inbox, "wait", open_and_wait):
            answer = turned(llm)[stored]
        settle(llm.engine)
    assert [info.token for delta in answer for info in delta.tokens] == first[0]
    assert llm.engine.scheduler.transfers.num_loaded
    assert not llm.engine.scheduler.transfers.num_failed, "no step has waited, and the read gave up"
    nothing_is_left(llm)


def test_closing_drops_what_is_unfinished(make_llm: Callable[..., LLM]) -> None:
    size = bytes_per_block(KvShape(2, 2, 16, 16, "f32"))
    llm = make_llm(store=HostStore(400 * size, size), num_host=400)
    llm.add_request(prompt_of(1, 40), greedy(100))
    llm.step()
    llm.close()
    assert llm.num_unfinished == 0
    assert llm.engine.stats.output_tokens == 1  # nothing was computed for nobody
    assert llm.engine.scheduler.transfers.num_stored == 2
    nothing_is_left(llm)


def test_one_prompt_is_answered_once(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    tokens = LetterTokenizer().encode("octavo")
    wanted = llm.generate([tokens], greedy(4))[0].outputs[0].token_ids
    for prompt in ("octavo", ["octavo"], tokens, tuple(tokens), np.array(tokens), [np.array(tokens)]):
        (output,) = llm.generate(prompt, greedy(4))  # type: ignore[arg-type]
        assert output.outputs[0].token_ids == wanted
        assert output.prompt_token_ids == tokens
        assert all(type(token) is int for token in output.prompt_token_ids)
    nothing_is_left(llm)


def test_one_chat_is_answered_once(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(TalkingTokenizer())
    for messages in ([{"role": "user", "content": "abc"}], (ChatMessage("user", "abc"),)):
        (one,) = llm.chat(messages, greedy(4))
        (also,) = llm.chat([messages], [greedy(4)])
        assert one.prompt_token_ids == also.prompt_token_ids == LetterTokenizer().encode("abc")
    assert llm.chat([], greedy(4)) == []


def test_params_may_be_left_out_and_are_vllms_defaults_then(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(TalkingTokenizer())
    asked: list[object] = []
    checked = octavo.api.driver.checked

    def note(request: Request, *rest: object) -> object:
        asked.append(request.params)
        return checked(request, *rest)  # type: ignore[arg-type]

    with mock.patch.object(octavo.api.driver, "checked", note):
        llm.generate(["abc", "de"])
        llm.chat([ChatMessage("user", "abc")])
        llm.add_request("abc")
        turned(llm)
    assert asked == [SamplerParams(max_tokens=16)] * 4


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda llm: llm.generate(5), "prompts is 5; allowed: text, .*a list of token ids, or a list of"),
        (lambda llm: llm.generate(None), "prompts is None; allowed: text"),
        (lambda llm: llm.generate(b"abc"), "prompts is b'abc'; allowed: text"),
        (lambda llm: llm.generate([5, "abc"]), "a prompt holds 'abc'; allowed: a list of token ids"),
        (lambda llm: llm.generate(["abc", 5]), "a prompt is 5; allowed: text"),
        (lambda llm: llm.generate([[5.5]]), "a prompt holds 5.5; allowed: a list of token ids"),
        (
            lambda llm: llm.generate("abc", {"max_tokens": 5}),
            "sampling_params holds .*; allowed: Sampling",
        ),
        (lambda llm: llm.generate("abc", [greedy(4), 5]), "params holds 5; allowed: SamplingParams"),
        (lambda llm: llm.add_request(["abc"]), "a prompt holds 'abc'; allowed: a list of token ids"),
        (lambda llm: llm.add_request("abc", 5), "params holds 5; allowed: SamplingParams"),
        (lambda llm: llm.chat(5), "messages is 5; allowed: a list of messages, or a list of such"),
        (lambda llm: llm.chat({"role": "user"}), "messages is .*; allowed: a list of messages"),
        (lambda llm: llm.chat([5]), "a chat is 5; allowed: a list of messages"),
        (lambda llm: llm.chat([["hello"]]), "a chat message is 'hello'; allowed: ChatMessage, or a dict"),
    ],
)
def test_what_is_no_prompt_is_refused_with_what_is(
    make_llm: Callable[..., LLM], call: Callable[[LLM], object], said: str
) -> None:
    llm = make_llm(TalkingTokenizer())
    with pytest.raises(InvalidRequest, match=said):
        call(llm)
    assert llm.engine.stats.steps == 0
    nothing_is_left(llm)


def test_after_close_everything_says_so_and_closing_again_is_fine(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(TalkingTokenizer(), depth=1)
    llm.add_request("abc", greedy(100))
    llm.close()
    llm.close()
    for call in (
        lambda: llm.generate("abc", greedy(4)),
        lambda: llm.chat([ChatMessage("user", "abc")], greedy(4)),
        lambda: llm.add_request("abc", greedy(4)),
        llm.step,
    ):
        with pytest.raises(EngineStopped, match="this LLM was closed"):
            call()
    assert llm.num_unfinished == 0


def test_leaving_a_with_statement_closes_and_hides_no_error(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()

    def use() -> None:
        with llm as entered:
            assert entered is llm
            assert len(llm.generate("abc", greedy(4))) == 1
            raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="the caller's own"):
        use()
    with pytest.raises(EngineStopped):
        llm.step()
