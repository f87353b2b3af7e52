"""The real model on real text, against transformers on the same weights."""

from __future__ import annotations

import pytest
from tests.tiny import bits_of

from octavo import LLM, SamplerParams
from octavo.types import ChatMessage, SampledToken

pytestmark = pytest.mark.real_model

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

    params = SamplerParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    ties = []
    for output in llm.generate(prompts(llm), params):
        tokens = output.choices[0].token_ids
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
    params = SamplerParams(max_tokens=4, temperature=0.0, logprobs=5, prompt_logprobs=1)
    choice = llm.generate([prompt], params)[0].choices[0]
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *choice.token_ids]])
        wanted = torch.log_softmax(oracle(ids).logits[0].double(), -1)
    for i, info in enumerate(choice.tokens):
        row = wanted[len(prompt) - 1 + i]
        assert info.logprob == pytest.approx(row[info.token].item(), abs=2e-4)
        best = torch.topk(row, 5)
        assert [token for token, _, _ in info.top] == best.indices.tolist()
    assert len(choice.prompt_logprobs) == len(prompt) - 1
    for i, info in enumerate(choice.prompt_logprobs):
        assert info.token == prompt[i + 1]
        assert info.logprob == pytest.approx(wanted[i, info.token].item(), abs=2e-4)


def test_chat_answers_in_fluent_text(llm: LLM) -> None:
    chat = [ChatMessage("user", "What is the capital of France?")]
    answer = llm.chat([chat], SamplerParams(max_tokens=40, temperature=0.0))[0]
    assert "Paris" in answer.text
    assert answer.choices[0].finish == "stop"


def test_batched_hit_preempted_and_alone_are_bit_equal_on_the_real_model(llm: LLM) -> None:
    some = [prompts(llm)[i] for i in (0, 4, 9, 13, 16)]
    params = SamplerParams(max_tokens=24, temperature=0.8, seed=3, logprobs=2)

    def essence(prompt: list[int]) -> list[bytes]:
        infos = llm.generate([prompt], params)[0].choices[0].tokens
        return [
            bits_of(SampledToken(i.token, i.logprob or 0.0, tuple((t, p) for t, _, p in i.top)))
            for i in infos
        ]

    alone = [essence(prompt) for prompt in some]
    together = llm.generate(some, params)
    for one, output in zip(alone, together, strict=True):
        infos = output.choices[0].tokens
        crowd = [
            bits_of(SampledToken(i.token, i.logprob or 0.0, tuple((t, p) for t, _, p in i.top)))
            for i in infos
        ]
        assert crowd == one
        assert output.choices[0].usage.num_cached == (len(output.prompt_token_ids) - 1) // 16 * 16
