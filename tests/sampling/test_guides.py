"""A guide over a small vocabulary: thinking and its budget, triggers, and the grammar behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.grammars import KeptGrammars

from octavo.grammar import Grammar, GrammarKind, Thinking, ThinkingState, of_choices
from octavo.params import SamplerParams
from octavo.sampling.grammars import Words
from octavo.sampling.guides import Guide, guide_of

PIECES = [b"<think>", b"</think>", b"\n\n", b"<call>", b"x<", b".</think>"]
THINK, CLOSE, BLANK, CALL, X_LESS, DOT_CLOSE = range(256, 256 + len(PIECES))
END = 256 + len(PIECES)
ANSWER = of_choices(["yes", "no"])
LAZY = Grammar(GrammarKind.LARK, 'start: /[^<]+/? "<call>" ("a" | "bb") "</call>"', triggers=("<call>",))


def encode(text: str) -> list[int]:
    data, tokens = text.encode(), []
    while data:
        longer = next((i for i, piece in enumerate(PIECES[:4]) if data.startswith(piece)), None)
        tokens.append(data[0] if longer is None else 256 + longer)
        data = data[1 if longer is None else len(PIECES[longer]) :]
    return tokens


@pytest.fixture
def grammars() -> KeptGrammars:
    pieces = [bytes([i]) for i in range(256)] + PIECES + [b"<end>"]
    return KeptGrammars(lambda: Words(pieces, [END], [END], encode))


def guide(
    grammars: KeptGrammars,
    grammar: Grammar | None,
    state: ThinkingState | None = None,
    budget: int | None = None,
    output: list[int] | None = None,
) -> Guide:
    thinking = None if state is None else Thinking(state, budget)
    made = guide_of(SamplerParams(grammar=grammar, thinking=thinking), grammars, output or [])
    assert made is not None
    return made


def may_come(made: Guide) -> set[int] | None:
    """None: anything."""
    if made.is_free:
        return None
    scores = np.zeros(END + 1, np.float32)
    made.mask(scores)
    return set(np.flatnonzero(scores == 0).tolist())


def feed(made: Guide, tokens: list[int]) -> None:
    for token in tokens:
        assert made.accept(token) == ""


def test_nothing_leads_a_row_that_neither_has_a_grammar_nor_a_budget(grammars: KeptGrammars) -> None:
    assert guide_of(SamplerParams(thinking=Thinking(ThinkingState.INSIDE)), grammars, []) is None


def test_a_grammar_begins_behind_the_thinking_that_the_prompt_opened(grammars: KeptGrammars) -> None:
    made = guide(grammars, ANSWER, ThinkingState.INSIDE)
    feed(made, encode("hm, no <thi"))
    assert may_come(made) is None
    feed(made, [CLOSE])
    assert may_come(made) == {BLANK}
    assert not made.is_constrained  # a dictated token costs a step
    feed(made, [BLANK])
    assert made.is_constrained
    assert may_come(made) == {ord("y"), ord("n")}


def test_what_closes_the_thinking_may_be_a_part_of_a_token(grammars: KeptGrammars) -> None:
    made = guide(grammars, ANSWER, ThinkingState.INSIDE)
    feed(made, [*encode("hm"), DOT_CLOSE, BLANK])
    assert may_come(made) == {ord("y"), ord("n")}


def test_the_model_may_open_its_thinking_where_the_prompt_leaves_it_to_it(grammars: KeptGrammars) -> None:
    made = guide(grammars, ANSWER, ThinkingState.MAYBE)
    assert may_come(made) == {THINK, ord("y"), ord("n")}
    twin = made.copy()
    feed(made, [THINK])
    assert may_come(made) is None
    feed(twin, [ord("n")])
    assert may_come(twin) == {ord("o")}


@pytest.mark.parametrize("budget", [None, 0])
def test_before_a_grammar_of_a_model_that_always_thinks_its_thinking_is_opened(
    grammars: KeptGrammars, budget: int | None
) -> None:
    thinking = Thinking(ThinkingState.MAYBE, budget, begin="<a><m>", end="<e>", separator="<f>", always=True)
    made = guide_of(SamplerParams(grammar=ANSWER, thinking=thinking), grammars, [])
    assert made is not None
    for letter in b"<a><m>":
        assert may_come(made) == {letter}
        feed(made, [letter])
    if budget is None:
        assert may_come(made) is None
        feed(made, encode("hm<e>"))
    for letter in b"<f>" if budget is None else b"<e><f>":
        assert may_come(made) == {letter}
        feed(made, [letter])
    assert may_come(made) == {ord("y"), ord("n")}
    free = guide_of(SamplerParams(thinking=replace(thinking, max_tokens=3)), grammars, [])
    assert free is not None
    assert may_come(free) is None  # without a grammar the model decides


@pytest.mark.parametrize("state", [ThinkingState.INSIDE, ThinkingState.MAYBE])
@pytest.mark.parametrize("grammar", [ANSWER, None])
def test_a_budget_ends_the_thinking_after_so_many_tokens(
    grammars: KeptGrammars, state: ThinkingState, grammar: Grammar | None
) -> None:
    made = guide(grammars, grammar, state, 3)
    feed(made, [THINK] if state is ThinkingState.MAYBE else [])
    feed(made, encode("ab"))
    assert may_come(made) is None
    feed(made, [ord("c")])
    assert may_come(made) == {CLOSE}
    feed(made, [CLOSE])
    assert may_come(made) == (None if grammar is None else {BLANK})


def test_a_budget_of_nothing_closes_at_once_and_an_output_that_does_not_think_has_none(
    grammars: KeptGrammars,
) -> None:
    assert may_come(guide(grammars, None, ThinkingState.INSIDE, 0)) == {CLOSE}
    made = guide(grammars, None, ThinkingState.MAYBE, 0)
    feed(made, encode("Hello, this is long"))
    assert may_come(made) is None


@pytest.mark.parametrize("before", [encode("hm "), [], [*encode("hm "), X_LESS], encode("1 < 2, <c")])
def test_a_trigger_begins_a_grammar_with_the_token_that_has_its_first_byte(
    grammars: KeptGrammars, before: list[int]
) -> None:
    made = guide(grammars, LAZY)
    feed(made, before)
    assert may_come(made) is None
    feed(made, encode("call>") if before[-1:] == [X_LESS] else [CALL])
    assert may_come(made) == {ord("a"), ord("b")}
    feed(made, encode("bb"))
    assert made.forced()[-1] == END


def test_a_call_that_does_not_fit_its_grammar_is_free_text(grammars: KeptGrammars) -> None:
    grammar = Grammar(GrammarKind.LARK, 'start: "<call>a"', triggers=("call>",))
    made = guide(grammars, grammar)
    feed(made, encode("call>"))
    assert may_come(made) is None
    strict_start = Grammar(GrammarKind.LARK, 'start: "{a" ("b" | "c")', triggers=("{a",), at_start=True)
    made = guide(grammars, strict_start)
    feed(made, encode("so {a"))
    assert may_come(made) is None
    made = guide(grammars, strict_start)
    feed(made, encode("{a"))
    assert may_come(made) == {ord("b"), ord("c")}


@pytest.mark.parametrize("state", [None, *ThinkingState])
@pytest.mark.parametrize("grammar", [ANSWER, LAZY])
def test_tokens_put_a_new_guide_where_an_old_one_was(
    grammars: KeptGrammars, state: ThinkingState | None, grammar: Grammar
) -> None:
    """As after a preemption, at every place; and a copy stands there too."""
    made = guide(grammars, grammar, state, 4)
    output: list[int] = []
    rng = np.random.default_rng(0)
    for _ in range(40):
        again, twin = guide(grammars, grammar, state, 4, output), made.copy()
        assert may_come(made) == may_come(again) == may_come(twin)
        assert made.is_constrained == again.is_constrained == twin.is_constrained
        options = may_come(made) or set(encode("a<call> </think><think>"))
        if options == {END}:
            return
        output.append(int(rng.choice(sorted(options))))
        feed(made, output[-1:])
