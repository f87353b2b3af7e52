"""A grammar over a vocabulary of bytes and some longer tokens: what it allows, forces, refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.grammars import KeptGrammars

from octavo.errors import InvalidRequest, QueueFull
from octavo.grammar import Grammar, GrammarKind, of_choices, of_schema, of_text
from octavo.sampling import grammars as module
from octavo.sampling.grammar_refusals import place_of
from octavo.sampling.grammar_trials import GrammarTrials, Verdict
from octavo.sampling.grammars import CompiledGrammar, Grammars, Matcher, Words
from octavo.tools.definitions import tool_use
from octavo.tools.formats import HERMES
from octavo.tools.grammars import calls_grammar

LONGER = [b"cat", b"car", b'{"', b'": ', b"ab"]
END = 256 + len(LONGER)


def encode(text: str) -> list[int]:
    """The longest token first."""
    data, tokens = text.encode(), []
    while data:
        longer = next((i for i, piece in enumerate(LONGER) if data.startswith(piece)), None)
        tokens.append(data[0] if longer is None else 256 + longer)
        data = data[1 if longer is None else len(LONGER[longer]) :]
    return tokens


def words() -> Words:
    pieces = [bytes([i]) for i in range(256)] + LONGER + [b"<end>"]
    return Words(pieces, [END], [END], encode)


@pytest.fixture
def kept() -> KeptGrammars:
    """For what matchers do."""
    return KeptGrammars(words)


@pytest.fixture(scope="module")
def tried() -> Iterator[Grammars]:
    """One for all that is refused: its process starts once."""
    made = Grammars(words)
    yield made
    made.close()


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> Grammars:
    """Each trial says yes, and that the grammar takes 1 MiB."""
    monkeypatch.setattr(GrammarTrials, "try_grammar", lambda *_, **__: Verdict(1 << 20))
    return Grammars(words)


def allowed(matcher: Matcher) -> set[int]:
    scores = np.zeros(END + 1, np.float32)
    matcher.mask(scores)
    return set(np.flatnonzero(scores == 0).tolist())


def test_what_is_forced_is_all_that_is_allowed_and_its_end_is_the_end_token(kept: KeptGrammars) -> None:
    slow = kept.begin(of_choices(["cats!"]), [])
    fast = slow.copy()
    tokens = []
    while not slow.is_at_end:
        [token] = allowed(slow)
        assert slow.accept(token) == ""
        tokens.append(token)
    assert allowed(slow) == {END}
    assert fast.forced() == [*tokens, END] == [*encode("cats!"), END]


def test_a_copy_goes_its_own_way_and_tokens_put_a_new_matcher_where_an_old_one_was(
    kept: KeptGrammars,
) -> None:
    grammar = of_choices(["cat", "cow", "dog"])
    one = kept.begin(grammar, [])
    two = one.copy()
    assert one.accept(ord("c")) == ""
    assert two.accept(ord("d")) == ""
    assert ord("o") in allowed(one) & allowed(two)
    assert ord("a") in allowed(one) - allowed(two)
    again = kept.begin(grammar, [ord("d")])
    assert allowed(again) == allowed(two)


def test_a_token_that_is_not_allowed_is_reported(kept: KeptGrammars) -> None:
    assert kept.begin(of_choices(["cat"]), []).accept(ord("x")) != ""


def test_equal_grammars_are_compiled_once_also_by_threads_at_once(untried: Grammars) -> None:
    made = list[CompiledGrammar]()
    threads = [
        threading.Thread(target=lambda: made.append(untried.compile(of_schema({"type": "object"}))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 8
    assert len(set(map(id, made))) == 1
    assert untried.stats.count == 1


def number(index: int) -> Grammar:
    return of_schema({"type": "integer", "minimum": index})


def test_what_a_request_holds_stays_compiled_and_what_nothing_holds_leaves_for_others(
    untried: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPILED_BYTES_MAX", 3 << 20)
    held = untried.compile(number(0))
    for index in range(1, 9):
        untried.compile(number(index))
        assert untried.num_bytes <= 3 << 20
    assert untried.known(number(0)) is held
    untried.begin(number(0), [])
    assert untried.known(number(3)) is None
    assert untried.known(number(8)) is not None


def test_grammars_in_use_are_bounded_and_a_tenant_has_half(
    untried: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPILED_BYTES_MAX", 4 << 20)
    monkeypatch.setattr(module, "TENANT_BYTES_MAX", 2 << 20)
    held = [untried.compile(number(index).of_tenant("a")) for index in range(2)]
    with pytest.raises(QueueFull, match="take 2 MiB, and this one takes 1; allowed: 2 MiB"):
        untried.compile(number(2).of_tenant("a"))
    held += [untried.compile(number(index).of_tenant("b")) for index in (3, 4)]
    with pytest.raises(QueueFull):
        untried.compile(number(5).of_tenant("c"))
    del held[0]
    untried.compile(number(2).of_tenant("a"))


def test_a_tenant_s_grammars_that_nothing_uses_make_room_for_its_others(
    untried: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TENANT_BYTES_MAX", 2 << 20)
    other = untried.compile(number(0).of_tenant("b"))
    for index in range(9):
        untried.compile(number(index).of_tenant("a"))
    assert untried.num_bytes == 3 << 20
    assert untried.known(other.grammar) is other


def test_a_row_whose_grammar_nothing_holds_fails_alone(untried: Grammars) -> None:
    matcher = untried.begin(number(1), [])
    assert "given up" in matcher.mask(np.zeros(END + 1, np.float32))
    assert not matcher.allows(ord("1"))
    assert matcher.only() is None
    assert "given up" in matcher.copy().accept(ord("1"))


def test_a_grammar_whose_shared_states_are_used_up_is_compiled_again_and_rows_of_before_go_on(
    untried: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MASKS_MAX", 3)
    held = untried.compile(of_choices(["cat", "dog"]))
    matcher = untried.begin(held.grammar, [])
    for _ in range(3):
        allowed(matcher)
    assert untried.known(held.grammar) is None
    assert allowed(untried.begin(held.grammar, [])) == allowed(matcher)  # a preempted row of the same request
    fresh = untried.compile(held.grammar)
    assert fresh is not held
    assert untried.known(held.grammar) is fresh


def test_what_one_row_makes_of_a_grammar_ends_no_row_that_comes_later(
    untried: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module._LIMITS, "max_lexer_states", 300)
    grammar = of_text(GrammarKind.REGEX, "(x|y)*x(x|y){9}z", "regex")
    held = untried.compile(grammar)
    rng, matcher, why = np.random.default_rng(0), untried.begin(grammar, []), ""
    while not why:
        why = matcher.mask(np.zeros(END + 1, np.float32)) or matcher.accept(int(rng.choice([*b"xy"])))
    assert "states" in why
    again = untried.compile(grammar)
    assert again is not held
    assert {*b"xy"} <= allowed(untried.begin(grammar, []))


def test_tenants_do_not_share_what_is_compiled(untried: Grammars) -> None:
    one, two = untried.compile(number(1).of_tenant("a")), untried.compile(number(1).of_tenant("b"))
    assert one is not two
    assert untried.begin(one.grammar, [])._compiled is one


def test_what_was_refused_once_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = []

    def refuse(*given: object, **_: object) -> Verdict:
        trials.append(given)
        return Verdict(why_not="too large", is_final=len(trials) > 1)

    monkeypatch.setattr(GrammarTrials, "try_grammar", refuse)
    grammars = Grammars(words)
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="json_schema cannot be followed: too large"):
            grammars.check(number(1))
    assert len(trials) == 2  # the first was refused for what the machine did
    assert grammars.stats.refusals == {"other": 3}


def test_masks_that_take_long_are_charged_for_what_they_leave(
    untried: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = untried.compile(of_choices(["cat", "dog"]))
    before = held.num_bytes
    matcher = untried.begin(held.grammar, [])
    monkeypatch.setattr(module, "_MASK_SECONDS_FREE", -0.01)
    allowed(matcher)
    assert before + (10 << 20) <= held.num_bytes <= before + (32 << 20)
    for _ in range(9):
        allowed(matcher)
    assert held.num_bytes == before + (32 << 20)
    assert untried.known(held.grammar) is None


def test_a_limit_that_is_met_later_is_named(kept: KeptGrammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._LIMITS, "max_lexer_states", 30)
    monkeypatch.setitem(module._LIMITS, "precompute_large_lexemes", False)
    matcher = kept.begin(of_text(GrammarKind.REGEX, "(x|y)*x(x|y){9}z", "regex"), [])
    why = ""
    for token in b"xyxxyxyyxyxxyyxyxyxyyxxy" * 20:
        why = matcher.mask(np.zeros(END + 1, np.float32)) or matcher.accept(token)
        if why:
            break
    assert "states" in why or "limit" in why or "fuel" in why


@pytest.mark.parametrize(
    "grammar, why",
    [
        (of_schema({"type": "object", "properties": {"a": {"not": {}}}}), r"not \(at #/properties/a\)"),
        (of_schema({"anyOf": [{"type": "null"}, {"type": "array", "uniqueItems": True}]}), r"at #/anyOf/1\)"),
        (
            of_schema({"properties": {"if": {"if": True, "then": {"maxLength": 1}}}}),
            r"if \(at #/properties/if\)",
        ),
        (of_schema({"type": "frog"}), "Invalid type: frog"),
        (of_text(GrammarKind.REGEX, "(", "regex"), "unclosed group"),
        (of_text(GrammarKind.LARK, "start: foo", "guided_grammar"), 'unknown name: "foo"'),
        (of_text(GrammarKind.GBNF, "root ::= missing", "grammar"), "'missing' not found"),
    ],
)
def test_a_refusal_names_the_keyword_and_its_place(tried: Grammars, grammar: Grammar, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        tried.check(grammar)
    assert refused.value.param == grammar.param


def test_names_of_properties_and_values_are_no_keywords() -> None:
    schema = {"properties": {"not": {"enum": ["not"], "default": {"not": 1}}}, "items": [{}, {"not": {}}]}
    assert place_of(schema, "not") == "#/items/1"
    assert place_of({"const": {"not": 1}}, "not") is None


@pytest.mark.parametrize("given", [None, [], [""], ["a", 3], "abc", [""] * 2000])
def test_choices_that_are_none_are_refused(given: object) -> None:
    with pytest.raises(InvalidRequest):
        of_choices(given)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (
            {"properties": {"a": {"oneOf": [{"minimum": 1}, {"maximum": 2}]}}},
            "oneOf (at #/properties/a): oneOf",
        ),
        ({"items": {"type": "string", "format": "regex"}}, "format (at #/items): Unknown format: regex"),
        ({"$ref": "http://localhost/x.json"}, "$ref (at #)"),
        ({"items": {"minProperties": 3, "required": ["a"]}}, "minProperties (at #/items)"),
        (False, "false (at #)"),
    ],
)
def test_a_keyword_is_named_whatever_the_library_says(tried: Grammars, schema: object, says: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        tried.check(of_schema(schema))
    assert raised.value.code == "unsupported_grammar"
    assert f"not supported: {says}" in str(raised.value)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"minProperties": 2, "required": ["a"]},
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
                for kind in "ab"
            ]
        },
    ],
)
def test_what_can_be_followed_after_all_is_served(tried: Grammars, schema: object) -> None:
    """As pydantic writes a union that a field tells apart; `true` allows everything."""
    tried.check(of_schema(schema))


def test_a_schema_nested_too_deep_is_refused_before_anything_walks_it() -> None:
    schema: dict[str, object] = {"minProperties": 9}
    for _ in range(500):
        schema = {"not": schema}
    with pytest.raises(InvalidRequest, match="nested deeper than 128 levels"):
        of_schema(schema)


@pytest.mark.full
def test_512_tools_of_1_mib_together_can_be_called(tried: Grammars) -> None:
    def parameters(tool: int) -> dict[str, object]:
        kinds = (
            {"enum": ["alpha", "beta"]},
            {"type": "integer"},
            {"type": "array", "items": {"type": "string"}},
        )
        fields = {f"field_{tool}_{i}": kinds[i % 3] | {"description": "d" * 40} for i in range(17)}
        return {"type": "object", "properties": fields, "required": list(fields)[:2]}

    tools = [
        {"type": "function", "function": {"name": f"tool_{i}", "parameters": parameters(i)}}
        for i in range(512)
    ]
    assert 900_000 < len(json.dumps(tools)) < 1 << 20
    use = tool_use(tools, "required", None)
    assert use is not None
    grammar = calls_grammar(use, HERMES, None, lambda text: None, tried.check)
    assert grammar is not None
    held = tried.compile(grammar)
    matcher = tried.begin(held.grammar, [])
    for token in encode(
        '<tool_call>\n{"name": "tool_511", "arguments": {"field_511_0": "beta", "field_511_1": 7'
    ):
        assert matcher.accept(token) == ""
