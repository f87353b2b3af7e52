"""The calls of vLLM's `LLM`: every form of a prompt, chats, beams, embeddings, seeds, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from tests.api.talking import TalkingTokenizer
from tests.engine.served import LetterTokenizer, alone
from tests.tiny import CONTEXT, EOS

import octavo
from octavo import LLM, BeamSearchParams, PoolingParams, SamplingParams, StructuredOutputsParams
from octavo.api.outputs import RequestOutput
from octavo.errors import EngineStopped, InvalidRequest, OctavoError
from octavo.params import BeamParams
from octavo.types import ChatMessage, ChatOptions, ToolCall

GREEDY = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
ABC = LetterTokenizer().encode("abc")


@pytest.mark.parametrize(
    "prompts, texts",
    [
        ("abc", ["abc"]),
        (["abc"], ["abc"]),
        (("abc", "abc"), ["abc", "abc"]),
        ({"prompt": "abc"}, ["abc"]),
        ([{"prompt": "abc", "multi_modal_data": None}], ["abc"]),
        ({"prompt_token_ids": ABC}, [None]),
        ({"prompt_token_ids": tuple(ABC), "prompt": "its text"}, ["its text"]),
        (ABC, [None]),
        ([ABC, "abc"], [None, "abc"]),
        ([{"prompt": "abc"}, {"prompt_token_ids": ABC}], ["abc", None]),
    ],
)
def test_a_prompt_means_the_same_in_every_form(
    make_llm: Callable[..., LLM], prompts: object, texts: list[str | None]
) -> None:
    outputs = make_llm().generate(prompts, GREEDY)  # type: ignore[arg-type]
    (wanted,) = alone(ABC, 4, ignore_eos=True)
    assert [output.prompt for output in outputs] == texts
    for output in outputs:
        assert output.prompt_token_ids == ABC
        assert output.outputs[0].token_ids == wanted.tokens
        assert output.finished
    assert len({output.request_id for output in outputs}) == len(outputs)


@pytest.mark.parametrize(
    "prompt, said",
    [
        ({}, "a prompt is {}; allowed: text"),
        ({"prompt": 5}, 'a prompt\'s "prompt" is 5; allowed: text'),
        ({"prompt_token_ids": "abc"}, "a prompt is 'abc'; allowed|a prompt is 'abc'"),
        ({"prompt": "abc", "multi_modal_data": {"image": 5}}, "'multi_modal_data', which is not supported"),
        ({"prompt_embeds": [0.5]}, "'prompt_embeds', which is not supported"),
        ({"prompt": "abc", "cache_salt": 5}, "cache_salt is 5; allowed: text"),
    ],
)
def test_a_prompt_that_is_none_is_refused_with_what_is(
    make_llm: Callable[..., LLM], prompt: object, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        make_llm().generate(prompt, GREEDY)  # type: ignore[arg-type]


def test_a_salt_parts_what_is_cached(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    prompt = ABC * 20
    llm.generate({"prompt_token_ids": prompt}, GREEDY)
    (again,) = llm.generate({"prompt_token_ids": prompt}, GREEDY)
    (apart,) = llm.generate({"prompt_token_ids": prompt, "cache_salt": "mine"}, GREEDY)
    assert again.num_cached_tokens >= 32
    assert apart.num_cached_tokens == 0


def test_a_prompt_is_cut_from_the_left(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    long = ABC * CONTEXT
    cut = SamplingParams(max_tokens=1, truncate_prompt_tokens=2)
    assert llm.generate([long], cut)[0].prompt_token_ids == ABC[1:]
    full = SamplingParams(max_tokens=1, truncate_prompt_tokens=-1)
    assert llm.generate([long], full)[0].prompt_token_ids == long[-(CONTEXT - 1) :]
    told = {"truncate_prompt_tokens": 3, "add_special_tokens": False}
    (output,) = llm.generate([long], SamplingParams(max_tokens=1), tokenization_kwargs=told)
    assert output.prompt_token_ids == ABC
    with pytest.raises(InvalidRequest, match=r"tokenization_kwargs is .*; allowed: add_special_tokens"):
        llm.generate("abc", GREEDY, tokenization_kwargs={"padding": True})


def test_one_setting_seeds_all_requests_that_have_no_seed(make_llm: Callable[..., LLM]) -> None:
    def texts(seed: int | None) -> list[str]:
        params = SamplingParams(n=2, max_tokens=12, ignore_eos=True)
        outputs = make_llm(seed=seed).generate(["abc", "abc"], params)
        return [choice.text for output in outputs for choice in output.outputs]

    first = texts(7)
    assert texts(7) == first
    assert len(set(first)) == 4
    assert texts(8) != first
    own = SamplingParams(max_tokens=12, seed=3, ignore_eos=True)
    found = [make_llm(seed=seed).generate("abc", own)[0].outputs[0].text for seed in (7, 8, None)]
    assert len(set(found)) == 1


def test_priorities_are_vllms_lower_runs_earlier(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(rows=1)
    outputs = llm.generate(["abc", "abd", "abe"], GREEDY, priority=[5, 0, -5])
    ended = [output.metrics.finished_time for output in outputs]
    assert ended == sorted(ended, reverse=True)  # type: ignore[type-var]
    with pytest.raises(InvalidRequest, match="2 priorities for 1 prompts"):
        llm.generate("abc", GREEDY, priority=[1, 2])
    with pytest.raises(InvalidRequest, match="priority is 1001"):
        llm.generate("abc", GREEDY, priority=1001)


def test_a_chat_is_messages_as_openai_has_them(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(TalkingTokenizer())
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    for messages in (
        "abc",
        [{"role": "user", "content": "abc"}],
        [{"role": "user", "content": parts}],
        [[{"role": "developer", "content": "a"}, {"role": "user", "content": "bc"}]],
        [
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "c", "tool_call_id": "1"},
        ],
    ):
        (output,) = llm.chat(messages, GREEDY)  # type: ignore[arg-type]
        assert (output.prompt_token_ids, output.prompt) == (ABC, "abc")


def test_a_chats_options_reach_its_template(make_llm: Callable[..., LLM]) -> None:
    tokenizer = TalkingTokenizer()
    tool = {"type": "function", "function": {"name": "now"}}
    make_llm(tokenizer).chat(
        [{"role": "assistant", "content": "abc"}],
        GREEDY,
        use_tqdm=False,
        add_generation_prompt=False,
        continue_final_message=True,
        tools=[tool],
        chat_template_kwargs={"enable_thinking": False},
    )
    wanted = ChatOptions(False, True, {"enable_thinking": False}, tools=(tool,))
    assert tokenizer.chat_template.seen == [wanted]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "messages, options, said",
    [
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            {},
            "'image_url'; this model reads text only",
        ),
        ([{"role": "wizard", "content": "a"}], {}, r"messages\[0\].role is 'wizard'; allowed: system"),
        ([{"role": "user", "content": "a", "audio": {"id": 1}}], {}, r"messages\[0\] has 'audio'"),
        ([{"role": "user"}], {}, r"messages\[0\].content must be a string"),
        ("abc", {"chat_template": "{{ x }}"}, "chat_template is given; allowed: None"),
        ("abc", {"continue_final_message": True}, "are both True; allowed: one of them"),
        ("abc", {"tools": [{"name": "now"}]}, r"tools\[0\] is"),
        ("abc", {"lora_request": object()}, "lora_request is .* not supported"),
    ],
)
def test_what_no_chat_can_be_is_refused(
    make_llm: Callable[..., LLM], messages: object, options: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        make_llm(TalkingTokenizer()).chat(messages, GREEDY, **options)  # type: ignore[arg-type]


def test_messages_of_the_engines_own_are_taken(make_llm: Callable[..., LLM]) -> None:
    message = ChatMessage("assistant", "abc", tool_calls=(ToolCall("now", "{}"),))
    assert make_llm(TalkingTokenizer()).chat([message], GREEDY)[0].prompt == "abc"


def test_beams_are_those_of_the_engine_behind_their_prompt(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(DecodingTokenizer())
    prompts = ["abc", "de", "f"]
    for limit in (None, 1, 2):
        found = llm.beam_search(prompts, BeamSearchParams(3, 5), concurrency_limit=limit)
        for prompt, beams in zip(prompts, found, strict=True):
            ids = LetterTokenizer().encode(prompt)
            wanted = alone(ids, 5, 3, temperature=0.0, logprobs=0, beams=BeamParams(3))
            assert [one.tokens for one in beams.sequences] == [[*ids, *one.tokens] for one in wanted]
            for one in beams.sequences:
                places = zip(one.tokens[len(ids) :], one.logprobs, strict=True)
                assert one.cum_logprob == sum(place[token].logprob for token, place in places)
                assert one.cum_logprob <= beams.sequences[0].cum_logprob
                assert one.text.startswith(prompt)
    with pytest.raises(InvalidRequest, match="concurrency_limit is 0"):
        llm.beam_search("abc", BeamSearchParams(2, 2), concurrency_limit=0)


class DecodingTokenizer(LetterTokenizer):
    """It can also decode."""

    def decode(self, tokens: list[int], skip_special: bool = True) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode()


def test_an_embedding_is_of_length_one_and_the_same_alone_and_in_a_crowd(
    make_llm: Callable[..., LLM],
) -> None:
    llm = make_llm()
    together = llm.embed(["abc", "defg", {"prompt_token_ids": ABC}, "h"], use_tqdm=False)
    (own,) = llm.embed("abc")
    assert together[0].outputs == together[2].outputs == own.outputs
    assert together[1].outputs != own.outputs
    assert sum(number**2 for number in own.outputs.embedding) == pytest.approx(1.0, abs=1e-6)
    assert own.prompt_token_ids == ABC
    (raw,) = llm.embed("abc", pooling_params=PoolingParams(normalize=False))
    size = sum(number**2 for number in raw.outputs.embedding) ** 0.5
    assert [number / size for number in raw.outputs.embedding] == pytest.approx(own.outputs.embedding)
    (mean,) = llm.embed("abc", pooling_params=PoolingParams(pooling="mean"))
    assert mean.outputs != own.outputs
    assert own.outputs.hidden_size == len(raw.outputs.embedding)


@pytest.mark.parametrize("name", ["encode", "score", "classify", "reward"])
def test_what_needs_another_head_is_refused_with_what_there_is(
    make_llm: Callable[..., LLM], name: str
) -> None:
    with pytest.raises(InvalidRequest, match=rf"{name}\(\) is not supported: .*use instead: "):
        getattr(make_llm(), name)("abc", ["de", "f"], use_tqdm=False)


def test_several_can_be_aborted_and_one(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    ids = [llm.add_request(prompt, GREEDY) for prompt in ("abc", "de", "f")]
    llm.abort(ids[:2])
    llm.abort(ids[2])
    finishes = [delta.finish for _ in range(3) for _, delta in llm.step()]
    assert finishes == ["cancelled"] * 3
    assert llm.num_unfinished == 0


@pytest.mark.parametrize(
    "form",
    [
        lambda ids: [str(one) for one in ids],
        lambda ids: (ids[0], str(ids[1]), np.int64(ids[2])),
        lambda ids: (one for one in ids),
        lambda ids: np.array(ids),
    ],
)
def test_ids_are_numbers_or_what_outputs_have(
    make_llm: Callable[..., LLM], form: Callable[[list[int]], Iterable[int | str]]
) -> None:
    llm = make_llm()
    for _ in range(12):  # ids of two digits, which a walk over their characters would not find
        llm.generate("abc", GREEDY)
    ids = [llm.add_request(prompt, GREEDY) for prompt in ("abc", "de", "f", "g")]
    llm.abort(form(ids[:3]))
    llm.abort(str(ids[3]))
    finishes = [delta.finish for _ in range(3) for _, delta in llm.step()]
    assert finishes == ["cancelled"] * 4


@pytest.mark.parametrize("wrong", ["abc", "", "-1", "9" * 5000, b"1", 1.0, True, None, [None], [[1]], {1: 2}])
def test_what_is_no_id_is_refused_and_nothing_cancelled(make_llm: Callable[..., LLM], wrong: object) -> None:
    llm = make_llm()
    first = llm.add_request("abc", GREEDY)
    with pytest.raises(
        InvalidRequest, match=r"a request id is .*; allowed: the number that add_request gave"
    ):
        llm.abort([first, wrong] if isinstance(wrong, str) else wrong)  # type: ignore[arg-type]
    while llm.num_unfinished:
        finishes = [delta.finish for _, delta in llm.step()]
    assert finishes == ["length"]


@pytest.mark.parametrize("min_tokens", [0, 3, 700])
def test_an_output_that_would_pass_the_context_goes_to_its_end(
    make_llm: Callable[..., LLM], min_tokens: int
) -> None:
    llm = make_llm(num_blocks=64)
    prompt = ABC * ((CONTEXT - 6) // 3)
    params = SamplingParams(max_tokens=800, min_tokens=min_tokens, temperature=0.0, ignore_eos=True)
    fits, long = llm.generate(["abc", prompt], [GREEDY, params])
    assert [fits.outputs[0].finish_reason, long.outputs[0].finish_reason] == ["length", "length"]
    assert len(long.outputs[0].token_ids) == CONTEXT - len(prompt)
    assert params.max_tokens == 800
    with pytest.raises(InvalidRequest, match="the prompt has 513 tokens; allowed: 511"):
        llm.generate([ABC * 171], params)


def test_a_second_thread_is_refused_and_the_first_one_answered(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(TalkingTokenizer())
    calls: list[Callable[[], object]] = [
        lambda: llm.generate("abc", GREEDY),
        lambda: llm.chat("abc", GREEDY),
        lambda: llm.embed("abc"),
        lambda: llm.add_request("abc", GREEDY),
        llm.step,
    ]
    told: list[str] = []

    def call_all() -> None:
        for call in calls:
            try:
                call()
            except InvalidRequest as error:
                told.append(str(error))

    step, others = llm.engine.step, threading.Thread(target=call_all)

    def step_beside_others() -> object:
        if not told:  # the first thread stands in a step while the other one calls
            others.start()
            others.join(20)
        return step()

    llm.engine.step = step_beside_others  # type: ignore[method-assign, assignment]
    (output,) = llm.generate("abc", GREEDY)
    assert len(told) == len(calls)
    assert all("another thread is in generate" in text and "AsyncLLM" in text for text in told)
    llm.engine.step = step  # type: ignore[method-assign]
    (again,) = llm.generate("abc", GREEDY)
    assert again.outputs[0].token_ids == output.outputs[0].token_ids
    assert output.outputs[0].finish_reason == "length"


def test_priorities_may_be_numbers_of_numpy(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm()
    for priority in (np.int64(2), np.array([1, 2])):
        assert len(llm.generate(["abc", "de"], GREEDY, priority=priority)) == 2  # type: ignore[arg-type]


def test_outputs_end_at_the_models_own_end_without_a_stop_reason(make_llm: Callable[..., LLM]) -> None:
    params = SamplingParams(max_tokens=9, temperature=0.0, logit_bias={EOS: 100.0})
    (output,) = make_llm().generate("abc", params)
    choice = output.outputs[0]
    assert (choice.finish_reason, choice.stop_reason, choice.token_ids, choice.text) == (
        "stop",
        None,
        [EOS],
        "",
    )


def test_everything_says_so_after_close(make_llm: Callable[..., LLM]) -> None:
    llm = make_llm(TalkingTokenizer())
    llm.close()
    calls: list[Callable[[], object]] = [
        lambda: llm.generate("abc"),
        lambda: llm.chat("abc"),
        lambda: llm.embed("abc"),
        lambda: llm.beam_search("abc", BeamSearchParams(2, 2)),
        lambda: llm.add_request("abc"),
    ]
    for call in calls:
        with pytest.raises(EngineStopped, match="this LLM was closed"):
            call()


def test_all_that_octavo_exports_is_there_and_documented_errors_are_octavos() -> None:
    for name in octavo.__all__:
        assert getattr(octavo, name) is not None
    assert set(octavo.__all__) <= set(dir(octavo))
    assert not hasattr(octavo, "EngineClient")
    with pytest.raises(OctavoError):
        StructuredOutputsParams()
    assert RequestOutput is octavo.RequestOutput
