"""Grammars over a model's tokens: compiled once, then a matcher for each row says which tokens may come next.

    Grammar --compile, off the event loop--> prototype --copy--> Matcher of a row --copy--> of a fork

Where the grammar forces text, its canonical tokens are the only ones that may come: so tokens that are taken
without a step (fast-forward) are those that sampling would have had to take, whatever the logits say. A
matcher that has come to its end allows the model's end token alone. It knows tokens and their bytes, no
logits. Source: llguidance (Earley parser over a lexer of regular expression derivatives), whose limits are
deterministic: they count work, not time.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import llguidance
import numpy as np
from llguidance.gbnf_to_lark import gbnf_to_lark
from llguidance.numpy import fill_next_token_bitmask

from octavo.errors import InvalidRequest
from octavo.grammar import Grammar, GrammarKind
from octavo.kernels.contract import Floats

GRAMMARS_MAX = 256  # that are kept compiled
FORCED_MAX = 256  # tokens of one forced run that are taken at once
_JSON_OPTIONS: dict[str, object] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class Matcher:
    """Where one row stands in its grammar. Mutable; only the row's executor calls it."""

    def __init__(self, inner: llguidance.LLMatcher, num_words: int, end_id: int) -> None:
        self._inner = inner
        self._num_words = num_words
        self._end_id = end_id

    def copy(self) -> Matcher:
        """For a fork."""
        return Matcher(self._inner.deep_copy(), self._num_words, self._end_id)

    def mask(self, scores: Floats) -> None:
        """Make impossible in `scores` (V,) what may not come next."""
        words = np.zeros((1, self._num_words), np.int32)
        fill_next_token_bitmask(self._inner, words)
        allowed = np.unpackbits(words.view(np.uint8)[0], bitorder="little")[: scores.shape[0]]
        scores[allowed == 0] = -np.inf

    def only(self) -> int | None:
        """The token that must come next; None where several may."""
        if self._inner.is_stopped():
            return None if self._inner.is_error() else self._end_id
        tokens = self._inner.compute_ff_tokens()
        return tokens[0] if tokens else None

    def allows(self, token: int) -> bool:
        """Whether this token may come next: the same as in the mask, for a hundredth of what that costs."""
        only = self.only()
        return self._inner.validate_tokens([token]) == 1 if only is None else token == only

    def accept(self, token: int) -> str:
        """A sampled token. Returns why the grammar cannot go on, or ""; that it may be an end token."""
        if self._inner.is_stopped() and not self._inner.is_error():
            return ""  # behind the end: only the end token could come
        if self._inner.consume_token(token):
            return ""
        return self._inner.get_error() or "the grammar does not allow a token that was sampled"

    def forced(self) -> list[int]:
        """The tokens that must come next, canonical ones, perhaps none. They are accepted."""
        tokens = list(self._inner.compute_ff_tokens()[:FORCED_MAX])
        if tokens and not self._inner.consume_tokens(tokens):
            return []
        if self._inner.is_stopped() and not self._inner.is_error():
            tokens.append(self._end_id)
        return tokens

    @property
    def is_at_end(self) -> bool:
        """True when nothing but an end token may come."""
        return bool(self._inner.is_stopped())


@dataclass(slots=True)
class CompileStats:
    """What compiling has cost since the start, and which keywords of schemas were refused."""

    count: int = 0
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)  # by keyword; "other" where none is to blame


@dataclass(frozen=True, slots=True)
class Words:
    """What a vocabulary is to a grammar. `token_bytes`: of special tokens too, as they are written."""

    token_bytes: Sequence[bytes]
    special_ids: Sequence[int]
    end_ids: Sequence[int]
    encode: Callable[[str], list[int]]


class _AsLibraryWantsIt:
    """A tokenizer as llguidance asks for one."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self.eos_token_id = words.end_ids[0]
        self.bos_token_id = None
        self.tokens = list(words.token_bytes)
        self.special_token_ids = list(words.special_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        return self._words.encode(text if isinstance(text, str) else text.decode())


class Grammars:
    """Compiles grammars for one vocabulary. Any thread."""

    def __init__(self, words: Callable[[], Words]) -> None:
        self._ask_words = words  # once, when the first grammar comes: it costs a fifth of a second
        self._words: Words | None = None
        self._lock = threading.Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._end_id = -1
        self.stats = CompileStats()  # guarded by _lock
        self._compiled: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()

    @property
    def words(self) -> Words:
        """The vocabulary."""
        with self._lock:
            self._words = self._words or self._ask_words()
            return self._words

    def check(self, grammar: Grammar) -> None:
        """Compile it, or raise InvalidRequest, which says what is wrong with it. May take long."""
        self._prototype(grammar)

    def token_bytes(self, token: int) -> bytes:
        """Of a token of the vocabulary; a special one as it is written."""
        return self.words.token_bytes[token]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, as the model's tokenizer makes them."""
        return self.words.encode(text)

    def begin(self, grammar: Grammar, output: Sequence[int]) -> Matcher:
        """A matcher that has accepted these tokens."""
        prototype = self._prototype(grammar)
        with self._lock:
            inner = prototype.deep_copy()
        assert self._tokenizer is not None
        matcher = Matcher(inner, -(-self._tokenizer.vocab_size // 32), self._end_id)
        for token in output:
            matcher.accept(token)
        return matcher

    def _prototype(self, grammar: Grammar) -> llguidance.LLMatcher:
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found
            tokenizer = self._tokenizer or self._open()
        _refuse_repeated_names(grammar)
        begun = time.perf_counter()
        prototype = llguidance.LLMatcher(
            tokenizer,
            _in_the_librarys_form(grammar),
            log_level=0,
            limits=llguidance.LLParserLimits(
                max_grammar_size=200_000, max_lexer_states=50_000, verbose_errors=False
            ),
        )
        keywords = _unknown_keywords(prototype.get_error()) if prototype.is_error() else []
        with self._lock:
            self.stats.count += 1
            self.stats.seconds += time.perf_counter() - begun
            self.stats.refusals.update(_counted(keywords) if prototype.is_error() else [])
        if prototype.is_error():
            raise InvalidRequest(
                f"{grammar.param} cannot be followed: {_why(grammar, prototype.get_error(), keywords)}",
                param=grammar.param,
                code="unsupported_grammar",
            )
        with self._lock:
            self._compiled[grammar] = prototype
            if len(self._compiled) > GRAMMARS_MAX:
                self._compiled.popitem(last=False)
        return prototype

    def _open(self) -> llguidance.LLTokenizer:
        words = self._words = self._words or self._ask_words()
        wrapper = llguidance.TokenizerWrapper(_AsLibraryWantsIt(words))
        self._end_id = words.end_ids[0]
        self._tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=len(words.token_bytes), eos_token=list(words.end_ids)
        )
        return self._tokenizer


# Of JSON Schema, that the library may refuse.
_KEYWORDS = frozenset(
    (
        *("oneOf", "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired"),
        *("dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "$anchor"),
        *(
            "$ref",
            "$dynamicRef",
            "$dynamicAnchor",
            "$recursiveRef",
            "$id",
            "format",
            "multipleOf",
            "additionalItems",
        ),
    )
)
# What the library says where a keyword's value is what it does not know.
_SAID_OF = {
    "oneOf": "oneOf constraints are not supported",
    "format": "Unknown format",
    "$ref": "URI reference|not present in a registry|[Uu]nresolvable|Pointer",
}
_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_ONE = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains")
_OF_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")


def _unknown_keywords(message: str) -> list[str]:
    """The schema's keywords that the library says it does not know, or cannot follow."""
    found = re.fullmatch(r"Unimplemented keys: (\[.*\])", message.strip())
    if found is not None:
        return [str(key) for key in json.loads(found.group(1))]
    return [keyword for keyword, words in _SAID_OF.items() if re.search(words, message)][:1]


def _counted(keywords: list[str]) -> list[str]:
    """As metrics name them: a client's own words are none of them."""
    return [key if key in _KEYWORDS else "other" for key in keywords] or ["other"]


def _why(grammar: Grammar, message: str, keywords: list[str]) -> str:
    """The library's reason, with the places of a schema's keywords that it does not know."""
    if not keywords or grammar.kind is not GrammarKind.JSON_SCHEMA:
        return message
    schema = json.loads(grammar.text)
    places = [place_of(schema, key) for key in keywords]
    named = ", ".join(
        f"{key} (at {place})" if place else key for key, place in zip(keywords, places, strict=True)
    )
    said = "" if message.startswith("Unimplemented") else f": {message.splitlines()[0]}"
    return f"not supported: {named}{said}"


def _refuse_repeated_names(grammar: Grammar) -> None:
    """Raise InvalidRequest for a number of properties that repeated names could make up: no grammar knows
    which names were written."""
    if grammar.kind is not GrammarKind.JSON_SCHEMA or '"minProperties"' not in grammar.text:
        return

    def repeats(schema: Mapping[str, object]) -> bool:
        least, named = schema.get("minProperties"), schema.get("required")
        count = len(named) if isinstance(named, list) else 0
        return isinstance(least, int) and least > count + 1

    place = place_where(json.loads(grammar.text), repeats)
    if place is not None:
        raise InvalidRequest(
            f"{grammar.param} cannot be followed: not supported: minProperties (at {place}) of more than the "
            "required ones and one",
            param=grammar.param,
            code="unsupported_grammar",
        )


def place_of(schema: object, keyword: str, at: str = "#") -> str | None:
    """Where a schema first uses this keyword, as a JSON pointer; names of properties and values do not count.
    O(schema)."""
    return place_where(schema, lambda one: keyword in one, at)


def place_where(schema: object, is_it: Callable[[Mapping[str, object]], bool], at: str = "#") -> str | None:
    """Where the first of a schema's schemas is that is so, as a JSON pointer. O(schema)."""
    if not isinstance(schema, dict):
        return None
    if is_it(schema):
        return at
    inner: list[tuple[object, str]] = []
    for key in _OF_NAMES:
        if isinstance(schema.get(key), dict):
            inner += [(value, f"{at}/{key}/{name}") for name, value in schema[key].items()]
    inner += [(schema[key], f"{at}/{key}") for key in _OF_ONE if key in schema]
    for key in _OF_MANY:
        if isinstance(schema.get(key), list):
            inner += [(value, f"{at}/{key}/{index}") for index, value in enumerate(schema[key])]
    return next((place for value, where in inner if (place := place_where(value, is_it, where))), None)


def _in_the_librarys_form(grammar: Grammar) -> str:
    try:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                return llguidance.LLMatcher.grammar_from_json_schema(grammar.text, overrides=_JSON_OPTIONS)  # type: ignore[arg-type]
            case GrammarKind.REGEX:
                return llguidance.LLMatcher.grammar_from_regex(grammar.text)
            case GrammarKind.GBNF:
                return llguidance.LLMatcher.grammar_from_lark(gbnf_to_lark(grammar.text))
            case GrammarKind.LARK:
                return llguidance.LLMatcher.grammar_from_lark(grammar.text)
    except Exception as error:  # noqa: BLE001 - the converter of GBNF raises nothing more special
        raise InvalidRequest(f"{grammar.param} cannot be read: {error}", param=grammar.param) from None
