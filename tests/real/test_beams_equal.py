"""Beam search on the real model: the same hypotheses as transformers, on the same weights in float32."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.real.test_default_model import NEAR_TIE, TEXT

from octavo import LLM, BeamParams, SamplingParams
from octavo.engine.requests import render_chat
from octavo.text.continuation import encode_rendered
from octavo.types import ChatMessage

pytestmark = [pytest.mark.full, pytest.mark.real_model]

MAX_TOKENS = 24
CHATS = ("What is an octavo? Answer in one sentence.", "Name a colour.")


@dataclass(frozen=True)
class Theirs:
    """What transformers found: hypotheses best first, their scores, and how many steps came before the first
    in which two neighbours among the candidates nearly tied."""

    outputs: list[list[int]]
    scores: list[float]
    steps_before_tie: int


def prompts(llm: LLM) -> list[list[int]]:
    """One that goes on for ever, and chats whose answers end."""
    text = llm.tokenizer.encode(TEXT)
    chats = [render_chat(llm.tokenizer, [ChatMessage("user", chat)]) for chat in CHATS]
    return [text[:33], *(encode_rendered(llm.tokenizer, chat) for chat in chats)]


def search(oracle, prompt: list[int], beams: BeamParams, ends: list[int], max_tokens: int) -> Theirs:  # type: ignore[no-untyped-def]
    import torch

    gaps: list[float] = []
    plain = type(oracle)._get_top_k_continuations

    def watched(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        best = plain(self, *args, **kwargs)
        gaps.append((best[0][0, :-1] - best[0][0, 1:]).min().item())
        return best

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(type(oracle), "_get_top_k_continuations", watched)
        found = oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=beams.width,
            num_return_sequences=beams.width,
            length_penalty=beams.length_penalty,
            early_stopping=beams.early_stopping,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=-1,
            output_scores=True,
            return_dict_in_generate=True,
        )
    outputs = [[t for t in row[len(prompt) :].tolist() if t != -1] for row in found.sequences]
    before = next((step for step, gap in enumerate(gaps) if gap < NEAR_TIE), max_tokens)
    return Theirs(outputs, found.sequences_scores.tolist(), before)


@pytest.mark.parametrize(
    "width, length_penalty, early_stopping",
    [(2, 1.0, False), (4, 1.0, True), (6, 0.0, "never"), (4, 2.0, "never"), (6, -0.5, False)],
)
def test_beams_equal_transformers(
    llm: LLM,
    oracle,  # type: ignore[no-untyped-def]
    width: int,
    length_penalty: float,
    early_stopping: bool,
) -> None:
    beams = BeamParams(width, length_penalty, early_stopping)
    ends = sorted(llm.engine.scheduler.config.stop_ids)
    steps = ended = 0
    for prompt in prompts(llm):
        theirs, max_tokens = search(oracle, prompt, beams, ends, MAX_TOKENS), MAX_TOKENS
        if theirs.steps_before_tie < MAX_TOKENS:
            max_tokens = theirs.steps_before_tie
            assert max_tokens > 2, "a tie at once: nothing is compared"
            theirs = search(oracle, prompt, beams, ends, max_tokens)
        params = SamplingParams(n=width, max_tokens=max_tokens, temperature=0.0, logprobs=0, beams=beams)
        ours = llm.generate([prompt], params)[0].outputs
        scores = [(c.cumulative_logprob or 0.0) / len(c.token_ids) ** length_penalty for c in ours]
        assert scores == pytest.approx(theirs.scores, abs=1e-3 * max(1.0, *map(abs, scores)))
        outputs = [choice.token_ids for choice in ours]
        gaps = [a - b for a, b in zip(theirs.scores, theirs.scores[1:], strict=False)]
        if min(gaps) < NEAR_TIE:  # between hypotheses of different lengths
            assert sorted(outputs) == sorted(theirs.outputs)
        else:
            assert outputs == theirs.outputs
        for choice in ours:
            assert choice.finish_reason == ("stop" if choice.token_ids[-1] in ends else "length")
            ended += choice.finish_reason == "stop"
        steps += max_tokens
    print(f"\nwidth {width}: {steps} steps equal, {ended} hypotheses ended by themselves")
    assert ended or length_penalty > 1, "no hypothesis ended: penalties and stopping were not met"
