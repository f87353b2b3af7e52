"""Schemas by the hundred: how many are served, refused and cut, and every finished answer is valid by
`jsonschema`. `make test-schemas` runs it: the default model fills all of them in."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import jsonschema
import pytest
from tests.schemas.real_world import SCHEMAS
from tests.schemas.suite import cases

from octavo import LLM, SamplingParams
from octavo.config import StartOptions
from octavo.errors import InvalidRequest
from octavo.grammar import Grammar, GrammarKind, of_choices, of_schema, of_text
from octavo.sampling.grammars import Grammars

pytestmark = [pytest.mark.real_model, pytest.mark.schemas]

TOKENS_MAX = 512
# A small model writes a value as short as those that it has just written.
_SHOWN = (
    ('{"type": "integer"}', "7"),
    ('{"type": "number"}', "2.5"),
    ('{"type": "string"}', '"red"'),
    ('{"type": "array", "items": {"type": "boolean"}}', "[true]"),
    ('{"properties": {"foo": {"type": "integer"}}}', '{"foo": 3}'),
    ('{"type": ["null", "object"]}', "{}"),
)


def chat(*turns: str) -> str:
    """As the default model's template writes it, up to where the assistant begins."""
    roles = itertools.cycle(("user", "assistant"))
    said = (f"<|im_start|>{role}\n{turn}<|im_end|>\n" for role, turn in zip(roles, turns, strict=False))
    return "".join(said) + "<|im_start|>assistant\n"


def asked(schema: object) -> str:
    return f"An example of this schema: {json.dumps(schema)}"


def prompt_of(schema: object) -> str:
    shown = itertools.chain.from_iterable((asked(json.loads(one)), value) for one, value in _SHOWN)
    return chat(*shown, asked(schema))


@dataclass(slots=True)
class Count:
    """What became of some schemas."""

    finished: int = 0
    cut: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)  # by keyword
    wrong: list[str] = field(default_factory=list)  # finished answers that are not valid

    @property
    def served(self) -> int:
        return self.finished + len(self.cut)

    def told(self, name: str) -> str:
        total = self.served + self.refusals.total()
        return (
            f"{name}: {total} schemas, {self.served} served ({self.served / total:.0%}), {self.finished} "
            f"finished within {TOKENS_MAX} tokens ({self.finished / max(1, self.served):.0%} of the served), "
            f"refused by keyword: {dict(self.refusals.most_common())}"
        )


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(None, StartOptions(kv_memory_bytes=2**28, context_length=2048, max_seqs=32)) as llm:
        yield llm


def refused(grammars: Grammars, schema: object) -> InvalidRequest | None:
    """Why a schema is not served."""
    try:
        grammars.check(of_schema(schema))
    except InvalidRequest as error:
        return error
    return None


def count(llm: LLM, named: Sequence[tuple[str, object]], prompt: Callable[[str, object], str]) -> Count:
    """Have all of them filled in."""
    found, served = Count(), list[tuple[str, object, Grammar]]()
    grammars = llm.started.facts.grammars
    assert grammars is not None
    for name, schema in named:
        refusal = refused(grammars, schema)
        if refusal is not None:
            keyword = re.search(r"not supported: ([^ ,]+) \(at #", str(refusal))
            assert refusal.code == "unsupported_grammar"
            assert keyword is not None, f"it names no keyword: {refusal}"
            found.refusals[keyword[1]] += 1
        else:
            served.append((name, schema, of_schema(schema)))
    prompts = [prompt(name, schema) for name, schema, _ in served]
    params = [
        SamplingParams(max_tokens=TOKENS_MAX, temperature=0.0, grammar=grammar) for _, _, grammar in served
    ]
    for (name, schema, _), output in zip(served, llm.generate(prompts, params), strict=True):
        [choice] = output.outputs
        if choice.finish_reason != "stop":
            found.cut.append(f"{name} {json.dumps(schema)[:90]}: {choice.text[:60]}")
            continue
        found.finished += 1
        try:
            jsonschema.Draft202012Validator(schema).validate(json.loads(choice.text))  # type: ignore[arg-type]
        except (ValueError, jsonschema.ValidationError) as error:
            found.wrong.append(f"{name} {json.dumps(schema)[:200]}: {choice.text[:100]}: {str(error)[:80]}")
    return found


def test_real_schemas(llm: LLM) -> None:
    found = count(llm, list(SCHEMAS.items()), lambda name, schema: chat(f"Write {name}, short, as JSON."))
    print("\n" + found.told("real schemas"), *found.cut, *found.wrong, sep="\n  ")
    assert len(SCHEMAS) == 60
    assert found.wrong == []
    assert found.served == 60
    assert found.finished >= 0.9 * found.served


def test_five_hundred_schemas_in_the_manner_of_the_test_suite(llm: LLM) -> None:
    all_cases = cases()
    found = count(llm, all_cases, lambda name, schema: prompt_of(schema))
    print("\n" + found.told("schemas of every keyword"), *found.cut, *found.wrong, sep="\n  ")
    assert len(all_cases) == 500
    assert found.wrong == []
    assert found.served >= 0.6 * 500
    assert found.finished >= 0.9 * found.served


REGEXES = [
    r"[0-9]{3}-[0-9]{4}",
    r"(yes|no|maybe)",
    r"[A-Z][a-z]{2,8}",
    r"#[0-9a-f]{6}",
    r"\d{4}-\d{2}-\d{2}",
    r"[a-z]{1,5}@[a-z]{1,5}\.(com|org)",
    r"(\+\d{1,2}-)?\d{6,9}",
    r"a*b{2}",
    r"v\d\.\d\.\d",
    r"[aeiou]{3,6}",
    r"(Mon|Tues|Fri)day",
    r"\([a-z]{1,6},[0-9]\)",
    r"-?[1-9][0-9]{0,4}",
    r"[^a-z\s]{2,4}",
    r"(ab|cd){1,4}",
    r"\w{3,9}\.(py|cpp)",
    r"0x[0-9A-F]{1,8}",
    r"[A-Z]{2}\d{2}(_\d{4}){2}",
    r"(true|false)",
    r".{1,12}",
]
CHOICES = (
    ("yes", "no"),
    ("positive", "negative", "neutral"),
    ("a", "ab", "abc"),
    ("Paris", "Parisian", "London"),
    ("1", "10", "100"),
    ("left", "right"),
    ("über", "unter"),
    ('"quoted"', "plain"),
    ("a b", "a  b"),
    ("x",),
)
GRAMMARS = (  # what it is written in, the grammar, and the same as a regular expression
    (GrammarKind.GBNF, 'root ::= "a" | "b"', "a|b"),
    (GrammarKind.GBNF, 'root ::= [0-9]+ "." [0-9]', r"[0-9]+\.[0-9]"),
    (GrammarKind.GBNF, 'root ::= word (" " word)?\nword ::= [a-z] [a-z] [a-z]', "[a-z]{3}( [a-z]{3})?"),
    (GrammarKind.GBNF, 'root ::= "(" [xy] ")" | "-"', r"\([xy]\)|-"),
    (GrammarKind.GBNF, 'root ::= "say: " ("hi" | "bye") "!"?', "say: (hi|bye)!?"),
    (GrammarKind.LARK, 'start: "yes" | "no"', "yes|no"),
    (GrammarKind.LARK, 'start: WORD ", " WORD\nWORD: /[a-z]{2,4}/', "[a-z]{2,4}, [a-z]{2,4}"),
    (GrammarKind.LARK, 'start: item{1,3}\nitem: "<" /[0-9]/ ">"', "(<[0-9]>){1,3}"),
    (GrammarKind.LARK, 'start: "a" b?\nb: "b" "c"', "a(bc)?"),
    (GrammarKind.LARK, 'start: /[A-Z]{3}/ ("-" /[0-9]{2}/)?', "[A-Z]{3}(-[0-9]{2})?"),
)


def test_regular_expressions_choices_and_grammars(llm: LLM) -> None:
    grammars = [of_text(GrammarKind.REGEX, text, "regex") for text in REGEXES]
    grammars += [of_choices(list(words)) for words in CHOICES]
    grammars += [of_text(kind, text, "grammar") for kind, text, _ in GRAMMARS]
    patterns = [*REGEXES, *("|".join(map(re.escape, words)) for words in CHOICES)]
    patterns += [pattern for _, _, pattern in GRAMMARS]
    params = [SamplingParams(max_tokens=64, temperature=1.0, seed=1, grammar=one) for one in grammars]
    prompts = [chat(f"An example of {pattern}") for pattern in patterns]
    cut = 0
    for pattern, output in zip(patterns, llm.generate(prompts, params), strict=True):
        [choice] = output.outputs
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, choice.text), (pattern, choice.text)
        else:
            cut += 1
    print(f"\nregular expressions, choices, grammars: {len(patterns)} served, {cut} cut")
    assert cut <= 0.1 * len(patterns)
