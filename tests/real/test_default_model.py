"""The real model on real text, against transformers on the same weights."""

from __future__ import annotations

import pytest
from tests.tiny import bits_of

from octavo import LLM, RequestOutput, SamplingParams
from octavo.types import ChatMessage, SampledToken

pytestmark = [pytest.mark.full, pytest.mark.real_model]

TEXT = (
    "The history of printing starts as early as 3500 BC, when the Persian and Mesopotamian "
    "civilizations used cylinder seals to certify documents written in clay. Other early forms include "
    "block seals, hammered coinage, pottery imprints, and cloth printing. Initially a method of "
    "printing patterns on cloth such as silk, woodblock printing for texts on paper originated in Tang "
    "China by the 7th century, leading to the spread of book production and woodblock printing in other"
    " parts of Asia such as Korea and Japan. A sheet folded three times makes a gathering of sixteen "
    "pages, which printers call an octavo. "
)
NEAR_TIE = 1e-4


def prompts(llm: LLM) -> list[list[int]]:
    """20 prompts of 5 to 700 tokens: every one begins elsewhere in the text."""
    tokens = llm.tokenizer.encode(TEXT * 12)
    lengths = [5, 8, 13, 16, 17, 24, 32, 33, 48, 64, 65, 100, 128, 160, 200, 256, 300, 450, 600, 700]
    return [tokens[start : start + length] for start, length in enumerate(lengths)]


def test_greedy_text_equals_transformers_token_by_token(llm: LLM, oracle) -> None:  # type: ignore[no-untyped-def]
    import torch

    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    ties = []
    for output in llm.generate(prompts(llm), params):
        tokens = output.outputs[0].token_ids
        assert len(tokens) == 64
        with torch.no_grad():
            ids = torch.tensor([[*output.prompt_token_ids, *tokens]])
            logits = oracle(ids).logits[0, len(output.prompt_token_ids) - 1 : -1]
        for position, token in enumerate(tokens):
            margin = (logits[position].max() - logits[position, token]).item()
            assert margin < NEAR_TIE, f"prompt of {len(output.prompt_token_ids)}, output {position}: {margin}"
            if margin > 0:
                ties.append((len(output.prompt_token_ids), position, margin))
    print(f"\n20 prompts, 1,280 tokens equal; near ties decided otherwise: {ties}")


def test_logprobs_equal_transformers(llm: LLM, oracle) -> None:  # type: ignore[no-untyped-def]
    import torch

    prompt = prompts(llm)[10]
    params = SamplingParams(max_tokens=4, temperature=0.0, logprobs=5, prompt_logprobs=1)
    output = llm.generate([prompt], params)[0]
    choice = output.outputs[0]
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *choice.token_ids]])
        wanted = torch.log_softmax(oracle(ids).logits[0].double(), -1)
    for i, (token, told) in enumerate(zip(choice.token_ids, choice.logprobs or [], strict=True)):
        row = wanted[len(prompt) - 1 + i]
        assert told[token].logprob == pytest.approx(row[token].item(), abs=2e-4)
        ranked = sorted((one.rank, other) for other, one in told.items() if one.rank is not None)
        assert ranked == list(enumerate(torch.topk(row, 5).indices.tolist(), 1))
    assert choice.cumulative_logprob == pytest.approx(
        sum(told[token].logprob for token, told in zip(choice.token_ids, choice.logprobs or [], strict=True))
    )
    first, *rest = output.prompt_logprobs or []
    assert first is None
    for i, (token, told) in enumerate(zip(prompt[1:], rest, strict=True)):
        assert told is not None
        assert told[token].logprob == pytest.approx(wanted[i, token].item(), abs=2e-4)


def test_chat_answers_in_fluent_text(llm: LLM) -> None:
    chat = [ChatMessage("user", "What is the capital of France?")]
    answer = llm.chat([chat], SamplingParams(max_tokens=40, temperature=0.0))[0]
    assert "Paris" in answer.outputs[0].text
    assert answer.outputs[0].finish_reason == "stop"
    assert answer.outputs[0].stop_reason is None


def test_batched_hit_preempted_and_alone_are_bit_equal_on_the_real_model(llm: LLM) -> None:
    some = [prompts(llm)[i] for i in (0, 4, 9, 13, 16)]
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=3, logprobs=2)

    def essence(output: RequestOutput) -> list[bytes]:
        choice = output.outputs[0]
        told = zip(choice.token_ids, choice.logprobs or [], strict=True)
        tops = [(t, at[t].logprob, tuple((o, one.logprob) for o, one in at.items())) for t, at in told]
        return [bits_of(SampledToken(*each)) for each in tops]

    alone = [essence(llm.generate([prompt], params)[0]) for prompt in some]
    together = llm.generate(some, params)
    for one, output in zip(alone, together, strict=True):
        assert essence(output) == one
        assert output.num_cached_tokens == (len(output.prompt_token_ids) - 1) // 16 * 16
