"""Random requests whose outputs follow grammars, over a vocabulary of 97 tokens: letters, and some longer
pieces, so that what is forced has one spelling of several."""

from __future__ import annotations

import numpy as np
from tests.exactness import Subject
from tests.grammars import KeptGrammars
from tests.tiny import EOS, VOCAB, random_prompt, request

from octavo.grammar import Grammar, GrammarKind, Thinking, ThinkingState, of_choices, of_schema, of_text
from octavo.kernels.contract import Ops
from octavo.sampling.grammars import Words
from octavo.types import Request

LONGER = ["name", '": ', '{"', "abc", '", "', "true", "false", "is", "ing", "the ", "12", "number"]
LETTERS = sorted(set(map(chr, range(32, 127))) - set("~^|@#$%&*;=+"))
PIECES = [b"", b"", *(letter.encode() for letter in LETTERS), *(piece.encode() for piece in LONGER)]
assert len(PIECES) == VOCAB


def encode(text: str) -> list[int]:
    """The longest piece first; letters that have no token are left out."""
    tokens: list[int] = []
    place = 0
    by_length = sorted(range(2, VOCAB), key=lambda token: -len(PIECES[token]))
    data = text.encode()
    while place < len(data):
        token = next((one for one in by_length if data.startswith(PIECES[one], place)), None)
        place += 1 if token is None else len(PIECES[token])
        tokens += [] if token is None else [token]
    return tokens


def new_grammars() -> KeptGrammars:
    """Over that vocabulary."""
    return KeptGrammars(lambda: Words(PIECES, [], [EOS], encode))


def _schema(rng: np.random.Generator) -> Grammar:
    text = {"type": "string", "maxLength": int(rng.integers(1, 9))}
    options = [
        text,
        {"type": "boolean"},
        {"enum": ["the number", "abcabc"]},
        {"type": "integer", "maximum": 99},
    ]
    names = ["name", "is the number", "abc", "a"][: int(rng.integers(1, 5))]
    fields = {name: options[int(rng.integers(4))] for name in names}
    return of_schema(
        {"type": "object", "properties": fields, "required": names, "additionalProperties": False}
    )


def grammar_of(rng: np.random.Generator) -> Grammar:
    """A random one."""
    match int(rng.integers(6)):
        case 0 | 1:
            return _schema(rng)
        case 2:
            return of_choices(["naming the number 12", "naming", "true: abcabcabc", "is it false or true"])
        case 3:
            return of_text(GrammarKind.REGEX, "(abc(12)?name ){2,5}[a-f]{1,6}ing", "regex")
        case 4:
            rule = 'start: ("is " /[a-z]{1,4}/ ", the number 12 is here" | "abc") (" and " /[0-9]{2}/)?'
            return of_text(GrammarKind.LARK, rule, "grammar")
    # Begins where the model happens to write one of these letters.
    rule = 'start: /[^a-m]+/? /[a-m]/ "number is " ("true" | "false") " in the naming " /[x-z]{1,3}/'
    return Grammar(GrammarKind.LARK, rule, "tools", tuple("abcdefghijklm"))


def case(seed: int, request_id: int = 1, n: int | None = None) -> Request:
    """A random request that follows a grammar, or has a budget for its thinking, or both."""
    rng = np.random.default_rng([seed, 7])
    params: dict[str, object] = {"seed": int(rng.integers(0, 2**40)), "logprobs": None}
    if rng.random() < 0.3:
        params["logprobs"] = 2
    if rng.random() < 0.6:
        params |= {"temperature": float(rng.uniform(0.3, 1.5))}
        if rng.random() < 0.4:
            params |= {"top_p": 0.9, "top_k": int(rng.choice([0, 20]))}
    if rng.random() < 0.3:
        params |= {"repetition_penalty": 1.2, "presence_penalty": 0.5}
    if rng.random() < 0.2:
        params["min_tokens"] = int(rng.integers(1, 12))
    if rng.random() < 0.2:
        params["stop_token_ids"] = (int(rng.integers(2, VOCAB)),)
    if rng.random() < 0.25:
        state = ThinkingState.INSIDE if rng.random() < 0.6 else ThinkingState.MAYBE
        params["thinking"] = Thinking(state, int(rng.integers(0, 9)), begin="a", end="the ")
    if rng.random() < 0.9 or "thinking" not in params:
        params["grammar"] = grammar = grammar_of(rng)
        if not grammar.triggers:
            params.pop("min_tokens", None)  # which would be refused
    masks = np.random.default_rng([seed, 11])  # of its own: the other draws stay what they are
    if masks.random() < 0.15:
        params["banned_sequences"] = (
            (int(masks.integers(2, VOCAB)),),
            (*map(int, masks.integers(2, VOCAB, 2)),),
        )
    length = int(rng.choice([1, 5, 15, 16, 17, 33, 70]))
    choices = n or (4 if rng.random() < 0.3 else 1)
    return request(request_id, random_prompt(rng, length), int(rng.integers(1, 60)), choices, **params)


def neighbours(seed: int, count: int) -> list[Request]:
    """With grammars, and plain ones, with ids from 100 on."""
    rng = np.random.default_rng([seed, 8])
    plain = [request(200 + i, random_prompt(rng, 9), 20, logprobs=None) for i in range(count // 2)]
    return [*(case(seed * 1000 + i, 100 + i) for i in range(count - count // 2)), *plain]


def subject(ops: Ops) -> Subject:
    """The tiny model, whose outputs follow grammars."""
    return Subject(ops, case, neighbours, grammars=new_grammars())
