"""Outputs that follow a grammar, by the default model: valid, and the same tokens however they came to be."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.config import StartOptions
from octavo.errors import InvalidRequest
from octavo.grammar import Grammar, GrammarKind, Thinking, ThinkingState, of_choices, of_schema, of_text

pytestmark = pytest.mark.full

PROMPT = "Anna is 31 years old, lives in Rome and likes green and red. As JSON:"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 16}, "is_capital": {"type": "boolean"}},
            "required": ["city", "is_capital"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "colours", "address"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(None, StartOptions(kv_memory_bytes=2**26, context_length=1024)) as llm:
        yield llm


def told(llm: LLM, prompt: str, params: SamplingParams) -> list[tuple[list[int], str]]:
    [output] = llm.generate([prompt], params)
    return [(choice.token_ids, choice.text) for choice in output.outputs]


def slowly(llm: LLM, prompt: str, params: SamplingParams) -> list[tuple[list[int], str]]:
    """Token by token: what a grammar forces costs a step each."""
    runner = llm.engine.executor._runner  # type: ignore[attr-defined]
    forced = llm.engine.stats.forced_tokens
    runner.walker.fast_forward = False
    try:
        return told(llm, prompt, params)
    finally:
        runner.walker.fast_forward = True
        assert llm.engine.stats.forced_tokens == forced


def test_a_schema_is_followed_and_forced_tokens_cost_no_step(llm: LLM) -> None:
    params = SamplingParams(max_tokens=200, temperature=0.0, grammar=of_schema(PERSON))
    before = llm.engine.stats.steps
    [(tokens, text)] = told(llm, PROMPT, params)
    steps = llm.engine.stats.steps - before
    value = json.loads(text)
    assert (value["age"], list(value)) == (31, list(PERSON["properties"]))
    assert steps < 0.7 * len(tokens)
    assert slowly(llm, PROMPT, params) == [(tokens, text)]


@pytest.mark.parametrize("seed", range(8))
def test_the_same_tokens_with_and_without_fast_forward_alone_and_in_a_crowd(llm: LLM, seed: int) -> None:
    chance = random.Random(seed)
    choices, anything = of_choices(["yes, indeed", "no, never", "perhaps"]), of_schema({"type": "object"})
    grammar = chance.choice([of_schema(PERSON), choices, anything])
    params = SamplingParams(
        max_tokens=chance.choice([7, 40, 90]),
        temperature=chance.choice([0.0, 0.7, 1.3]),
        top_p=chance.choice([1.0, 0.9]),
        repetition_penalty=chance.choice([1.0, 1.2]),
        seed=seed,
        grammar=grammar,
    )
    params.n = n = chance.choice([1, 4])
    alone = told(llm, PROMPT, params)
    assert slowly(llm, PROMPT, params) == alone
    asked = replace(params, logprobs=2)
    [output] = llm.generate([PROMPT], asked)
    assert [(choice.token_ids, choice.text) for choice in output.outputs] == alone
    assert all(len(choice.logprobs or []) == len(choice.token_ids) for choice in output.outputs)
    others = [f"{i} and {seed} birds" for i in range(6)]
    plain = SamplingParams(max_tokens=30, temperature=0.0)
    crowd = llm.generate([PROMPT, *others], [replace(params, n=1), *[plain] * 6])
    if n == 1:
        assert [(crowd[0].outputs[0].token_ids, crowd[0].outputs[0].text)] == alone
    told_alone = [o.outputs[0].text for o in llm.generate(others, plain)]
    assert [o.outputs[0].text for o in crowd[1:]] == told_alone


def test_a_sequence_that_is_preempted_at_every_step_goes_on_in_its_grammar(llm: LLM) -> None:
    params = SamplingParams(max_tokens=120, temperature=0.9, seed=5, grammar=of_schema(PERSON))
    alone = told(llm, PROMPT, params)
    scheduler, step = llm.engine.scheduler, llm.engine.step

    def preempting() -> object:
        updates = step()
        for sequence in list(scheduler.live.running):
            if len(sequence.tokens) > sequence.num_prompt:
                scheduler.preemption.preempt_all([sequence], None)
        return updates

    llm.engine.step = preempting  # type: ignore[method-assign, assignment]
    try:
        again = told(llm, PROMPT, params)
    finally:
        llm.engine.step = step  # type: ignore[method-assign]
    assert scheduler.live.num_preemptions > 3
    assert again == alone


@pytest.mark.parametrize(
    "grammar, pattern",
    [
        (of_text(GrammarKind.REGEX, r"\d{3}-\d{4}", "regex"), r"\d{3}-\d{4}"),
        (of_choices(["left", "right"]), "left|right"),
        (of_text(GrammarKind.GBNF, 'root ::= ("a" | "b")+ "!"', "grammar"), "[ab]+!"),
        (of_text(GrammarKind.LARK, 'start: "x" DIGIT+\nDIGIT: /[0-9]/', "guided_grammar"), "x[0-9]+"),
    ],
)
def test_every_kind_of_grammar_is_followed(llm: LLM, grammar: Grammar, pattern: str) -> None:
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=1, grammar=grammar)
    [output] = llm.generate(["Choose:"], params)
    choice = output.outputs[0]
    if choice.finish_reason == "stop":
        assert re.fullmatch(pattern, choice.text)
    else:
        assert choice.finish_reason == "length"


def test_what_is_cut_says_so_and_a_stop_string_cuts_within_a_forced_run(llm: LLM) -> None:
    grammar = of_choices(["the quick brown fox jumps over the lazy dog"])
    cut = llm.generate(["Say it:"], SamplingParams(max_tokens=4, temperature=0.0, grammar=grammar))[0]
    assert (cut.outputs[0].finish_reason, len(cut.outputs[0].token_ids)) == ("length", 4)
    stopped = SamplingParams(max_tokens=40, temperature=0.0, grammar=grammar, stop=(" fox",))
    choice = llm.generate(["Say it:"], stopped)[0].outputs[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("the quick brown", "stop", " fox")


@pytest.mark.parametrize(
    "grammar, why",
    [
        (of_schema({"type": "object", "not": {"type": "string"}}), "not"),
        (of_text(GrammarKind.REGEX, "(", "regex"), "regex"),
        (of_text(GrammarKind.GBNF, "root ::= missing", "grammar"), "missing"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_reason(llm: LLM, grammar: Grammar, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        llm.generate(["x"], SamplingParams(max_tokens=4, grammar=grammar))
    assert refused.value.param == grammar.param


def test_what_is_asked_of_one_token_is_what_the_mask_says_of_all(llm: LLM) -> None:
    """The sampler asks whether a token is allowed before it asks for all that are: the answers must be the
    same, in every state, for every token; also where canonical tokens alone may spell what is forced."""
    grammars = llm.started.facts.grammars
    assert grammars is not None
    rng = np.random.default_rng(0)
    lark = of_text(GrammarKind.LARK, 'start: "international" ("e" | "is" /[a-z]{2,5}/)', "grammar")
    size, num_forced, num_open = llm.started.facts.vocab_size, 0, 0
    for grammar in (
        of_schema(PERSON),
        of_schema({"type": "object"}),
        of_choices(["yes, indeed", "yes"]),
        lark,
    ):
        held = grammars.compile(grammar)
        matcher = grammars.begin(held.grammar, ())
        for _ in range(25):
            scores = np.zeros(size, np.float32)
            matcher.mask(scores)
            allowed = np.flatnonzero(scores == 0)
            only = matcher.only()
            num_forced, num_open = num_forced + (only is not None), num_open + (only is None)
            tried = range(size) if only is None and rng.random() < 0.3 else rng.integers(0, size, 500)
            tried = [*map(int, tried), *map(int, allowed[:100])]
            assert [matcher.allows(token) for token in tried] == (scores[tried] == 0).tolist()
            assert only is None or allowed.tolist() == [only]
            if matcher.is_at_end:
                break
            assert matcher.accept(int(rng.choice(allowed))) == ""
    assert min(num_forced, num_open) > 10


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thinking_ends_at_its_budget_and_the_answer_follows_its_schema(llm: LLM, budget: int) -> None:
    thinking = Thinking(ThinkingState.INSIDE, budget)
    params = SamplingParams(
        max_tokens=200, temperature=0.7, seed=4, grammar=of_schema(PERSON), thinking=thinking
    )
    [(tokens, text)] = told(llm, PROMPT, params)
    thought, end, answer = text.partition("</think>\n\n")
    encode = llm.started.loaded.tokenizer.encode
    assert end
    assert len(tokens) > budget
    assert tokens[budget:][: len(encode("</think>", add_bos=False))] == encode("</think>", add_bos=False)
    assert list(json.loads(answer)) == list(PERSON["properties"])
    assert slowly(llm, PROMPT, params) == [(tokens, text)]
    assert bool(thought) == bool(budget)
