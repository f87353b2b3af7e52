"""Plain strings of JSON may be written with any escape of RFC 8259; what a model writes is what is read."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.grammars import KeptGrammars

from octavo.grammar import ANY_OBJECT, Grammar, GrammarKind, of_schema, of_text
from octavo.sampling.grammars import Matcher, Words
from octavo.tools.definitions import tool_use
from octavo.tools.formats import HERMES
from octavo.tools.grammars import calls_grammar

LONGER = [b"\\/", b'"\\/', b"/x", b"\\\\", b"x\\", b":\\/\\/"]
END = 256 + len(LONGER)


def words() -> Words:
    pieces = [bytes([i]) for i in range(256)] + LONGER + [b"<end>"]
    return Words(pieces, [END], [END], lambda text: list(text.encode()))


@pytest.fixture
def kept() -> KeptGrammars:
    return KeptGrammars(words)


def of_strings(**more: object) -> Grammar:
    schema = {"type": "object", "properties": {"a": {"type": "string", **more}}, "required": ["a"]}
    return of_schema(schema | {"additionalProperties": False})


def refused_at(matcher: Matcher, text: str) -> str:
    """What is left of a text where its next byte may not come: by the mask and by the single question, which
    must agree."""
    for place, token in enumerate(text.encode()):
        scores = np.zeros(END + 1, np.float32)
        assert matcher.mask(scores) == ""
        assert (scores[token] == 0) == matcher.allows(token)
        if not matcher.allows(token):
            return text[place:]
        assert matcher.accept(token) == ""
    return ""


WRITTEN = [
    r'{"a": "caf\u00e9 \u4f60\u597d"}',
    r'{"a": "x\/y"}',
    r'{"a": "\/\/\\\/"}',
    r'{"a": "\\"}',
    r'{"a": "\ud83d\ude00"}',
    r'{"a": "\u0041\n\t\"\\\u0007"}',
]


@pytest.mark.parametrize("text", WRITTEN)
def test_every_escape_may_be_written(kept: KeptGrammars, text: str) -> None:
    json.loads(text)
    for grammar in (of_strings(), of_schema(ANY_OBJECT), of_strings(maxLength=20)):
        matcher = kept.begin(grammar, [])
        assert refused_at(matcher, text) == ""
        assert matcher.is_at_end or matcher.allows(END)


def test_names_that_are_free_may_be_escaped_too(kept: KeptGrammars) -> None:
    assert refused_at(kept.begin(of_schema(ANY_OBJECT), []), r'{"caf\u00e9\/": {"x\/": ["\/"]}}') == ""


def test_arguments_of_tools_may_be_escaped(kept: KeptGrammars) -> None:
    properties = {"url": {"type": "string"}}
    tool = {"name": "open", "parameters": {"type": "object", "properties": properties, "required": ["url"]}}
    use = tool_use([{"type": "function", "function": tool}], "required", False)
    assert use is not None
    grammar = calls_grammar(use, HERMES, None, lambda text: None, lambda grammar: None)
    assert grammar is not None
    text = r'<tool_call>\n{"name": "open", "arguments": {"url": "a:\/\/b\u00e9"}}'.replace(r"\n", "\n", 1)
    assert refused_at(kept.begin(grammar, []), text) == ""


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (r'{"a": "\x', "x"),
        (r'{"a": "\u00g', "g"),
        (r'{"a": "\ud83d!', "!"),  # half of a pair
        (r'{"a": "\\/\q', "q"),
        (r'{"a": "x"\/', r"\/"),  # outside of strings
    ],
)
def test_what_is_no_json_stays_impossible(kept: KeptGrammars, text: str, left: str) -> None:
    assert refused_at(kept.begin(of_strings(), []), text) == left


def test_an_escaped_slash_counts_as_one_character(kept: KeptGrammars) -> None:
    assert refused_at(kept.begin(of_strings(maxLength=2), []), r'{"a": "\/\/"}') == ""
    assert refused_at(kept.begin(of_strings(maxLength=2), []), r'{"a": "\/\/\/"}') == r'\/"}'


def test_a_slash_that_may_not_come_may_not_come_escaped(kept: KeptGrammars) -> None:
    assert refused_at(kept.begin(of_strings(pattern=r'^[a-z"]*$'), []), r'{"a": "a\/b"}') == r'/b"}'
    assert refused_at(kept.begin(of_strings(enum=["a/b"]), []), r'{"a": "a\/b"}') == r'\/b"}'


@pytest.mark.parametrize("token", range(256, END))
def test_tokens_that_hold_a_slash_or_end_in_a_backslash_are_taken_whole(
    kept: KeptGrammars, token: int
) -> None:
    """The mask and the single question agree, and behind it the text goes on."""
    before, piece = b'{"a": ', (words().token_bytes[token])
    before += b"" if piece.startswith(b'"') else b'"'
    matcher = kept.begin(of_schema(ANY_OBJECT), list(before))
    scores = np.zeros(END + 1, np.float32)
    matcher.mask(scores)
    assert scores[token] == 0
    assert matcher.allows(token)
    assert matcher.accept(token) == ""
    rest = '/y"}' if piece.endswith(b"x\\") else 'y"}'
    assert refused_at(matcher, rest) == ""
    said = json.loads(before + piece + rest.encode())
    assert said["a"].endswith("y")


def test_a_copy_amid_an_escape_goes_its_own_way(kept: KeptGrammars) -> None:
    one = kept.begin(of_strings(), list(rb'{"a": "x\ '.rstrip()))
    two = one.copy()
    assert refused_at(one, '/x"}') == ""
    assert refused_at(two, 'u00e9"}') == ""


def test_a_longer_token_that_begins_with_the_slash_may_follow_the_backslash(kept: KeptGrammars) -> None:
    matcher = kept.begin(of_strings(), list(rb'{"a": "\ '.rstrip()))
    longer = 256 + LONGER.index(b"/x")
    assert matcher.allows(longer)
    assert matcher.accept(longer) == ""
    assert refused_at(matcher, '"}') == ""


def test_a_client_s_own_grammar_has_no_such_rule(kept: KeptGrammars) -> None:
    matcher = kept.begin(of_text(GrammarKind.REGEX, r"(/|\\n)+", "regex"), [])
    assert refused_at(matcher, r"/\/") == "/"
