"""A guide constrains one row's output: its budget of thinking, and a grammar from some token on.

    OPENING --<think>--> THINKING --</think>, or the budget is used up--> FREE or IN_GRAMMAR
       |                                                                     (a whole output's grammar)
       +--anything else--> FREE --a trigger was written--> IN_GRAMMAR

Tokens are forbidden only IN_GRAMMAR, and while tokens are dictated; otherwise a row is sampled as if it had
no guide. A guide is a pure function of the output's tokens: a preempted row feeds them again to restore its
state. It knows tokens and their bytes, and uses logits only to mask them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import numpy as np

from octavo.grammar import Grammar, Thinking, ThinkingState
from octavo.kernels.contract import Floats
from octavo.params import SamplerParams
from octavo.sampling.grammars import Grammars, Matcher

_BLANKS_MAX = 16  # bytes of white space before a trigger at the start


class _Phase(enum.Enum):
    OPENING = enum.auto()
    THINKING = enum.auto()
    FREE = enum.auto()
    IN_GRAMMAR = enum.auto()


def needs_guide(params: SamplerParams) -> bool:
    """Whether a row with these parameters has a guide."""
    return params.grammar is not None or (
        params.thinking is not None and params.thinking.max_tokens is not None
    )


def guide_of(params: SamplerParams, grammars: Grammars | None, output: Sequence[int]) -> Guide | None:
    """The guide of a row whose output so far is `output`; None: it has none."""
    if not needs_guide(params):
        return None
    assert grammars is not None, "a row with a guide, and nothing that knows the model's tokens"
    guide = Guide(grammars, params.grammar, params.thinking)
    for token in output:
        guide.accept(token)
    return guide


class Guide:
    """The state of one row. Mutable; only the row's executor calls it."""

    def __init__(self, grammars: Grammars, grammar: Grammar | None, thinking: Thinking | None) -> None:
        self._grammars = grammars
        self._grammar = grammar
        self._thinking = thinking
        self._phase = _Phase.FREE
        self._matcher: Matcher | None = None
        self._dictated: list[int] = []  # forced next tokens, in order
        self._num_thought = 0  # tokens of thinking
        self._is_watching = False  # in FREE: for a trigger
        self.was_allowed = True  # whether the token checked last was allowed: predicts the next one
        self._recent = _Recent(grammars.token_bytes)
        assert thinking is None or thinking.state is not None, "where the output begins is not resolved"
        state = ThinkingState.NONE if thinking is None else thinking.state
        if state is ThinkingState.INSIDE:
            self._think()
        elif state is ThinkingState.MAYBE:
            self._phase = _Phase.OPENING
            if self._has_whole_grammar and thinking is not None and thinking.always:
                self._dictated = grammars.encode(thinking.begin)
            elif self._has_whole_grammar:
                self._matcher = self._begin()
        else:
            self._answer()

    def copy(self) -> Guide:
        """A copy for a fork."""
        twin = object.__new__(Guide)
        twin._grammars, twin._grammar, twin._thinking = self._grammars, self._grammar, self._thinking
        twin._phase, twin._num_thought = self._phase, self._num_thought
        twin._matcher = None if self._matcher is None else self._matcher.copy()
        twin._dictated, twin._is_watching = list(self._dictated), self._is_watching
        twin._recent, twin.was_allowed = self._recent.copy(), self.was_allowed
        return twin

    @property
    def is_free(self) -> bool:
        """True if any token is allowed next."""
        return self._matcher is None and not self._dictated

    @property
    def is_constrained(self) -> bool:
        """True once the grammar applies: forced tokens may be appended to a sample."""
        return self._phase is _Phase.IN_GRAMMAR and not self._dictated

    def only(self) -> int | None:
        """The only allowed next token; None: several are."""
        if self._dictated:
            return self._dictated[0]
        if self._matcher is None or self._opening_token() is not None:
            return None
        return self._matcher.only()

    def allows(self, token: int) -> bool:
        """Whether this token is allowed next: the same as in the mask, and much cheaper."""
        if self._dictated:
            return token == self._dictated[0]
        self.was_allowed = (
            self._matcher is None or token == self._opening_token() or self._matcher.allows(token)
        )
        return self.was_allowed

    def mask(self, scores: Floats) -> str:
        """Make impossible in `scores` (V,) what may not come next. Returns why the grammar cannot go on, or
        ""."""
        only = self.only()
        if only is not None:
            kept = scores[only]
            scores[:] = -np.inf
            scores[only] = kept
        elif self._matcher is not None:
            opening = self._opening_token()
            kept = None if opening is None else scores[opening]
            why_not = self._matcher.mask(scores)
            if opening is not None and kept is not None:
                scores[opening] = kept
            return why_not
        return ""

    def accept(self, token: int) -> str:
        """Accept a sampled token. Returns why the grammar cannot go on, or ""."""
        if self._phase is _Phase.IN_GRAMMAR and not self._dictated:
            assert self._matcher is not None
            return self._matcher.accept(token)
        if self._dictated:
            self._dictated.pop(0)
        match self._phase:
            case _Phase.OPENING:
                return self._accept_opening(token)
            case _Phase.THINKING:
                self._accept_thought(token)
            case _Phase.FREE:
                self._watch(token)
            case _Phase.IN_GRAMMAR:
                pass  # a dictated token before the first one of the grammar
        return ""

    def forced(self) -> list[int]:
        """Accept and return the forced next tokens, possibly none."""
        return self._matcher.forced() if self.is_constrained and self._matcher is not None else []

    @property
    def _has_whole_grammar(self) -> bool:
        return self._grammar is not None and not self._grammar.triggers

    def _begin(self) -> Matcher:
        assert self._grammar is not None
        return self._grammars.begin(self._grammar, ())

    def _opening_token(self) -> int | None:
        """The token that opens the thinking, if it is allowed next in addition to the grammar's tokens."""
        if self._phase is not _Phase.OPENING or self._recent.tokens or self._thinking is None:
            return None
        tokens = self._grammars.encode(self._thinking.begin)
        return tokens[0] if len(tokens) == 1 else None

    def _accept_opening(self, token: int) -> str:
        assert self._thinking is not None
        self._recent.push(token)
        begin, text = self._thinking.begin.encode(), self._recent.text.lstrip()
        if text.startswith(begin):
            self._matcher = None
            self._think()
        elif self._matcher is not None:
            self._phase = _Phase.IN_GRAMMAR
            return self._matcher.accept(token)
        elif not begin.startswith(text):
            tokens = self._recent.tokens
            self._answer()
            for one in tokens:
                self._watch(one)
        return ""

    def _think(self) -> None:
        self._phase = _Phase.THINKING
        self._recent.clear()
        self._end_thinking_at_the_budget()

    def _accept_thought(self, token: int) -> None:
        assert self._thinking is not None
        self._num_thought += 1
        end = self._thinking.end.encode()
        self._recent.push(token)
        place = self._recent.text.find(end)
        if place < 0:
            self._recent.keep(len(end) - 1)
            self._end_thinking_at_the_budget()
            return
        rest = self._recent.text[place + len(end) :]
        self._dictated = []
        self._answer()
        if self._has_whole_grammar and not rest:
            self._dictated = self._grammars.encode(self._thinking.separator)

    def _end_thinking_at_the_budget(self) -> None:
        thinking = self._thinking
        assert thinking is not None
        if thinking.max_tokens == self._num_thought:
            self._dictated = self._grammars.encode(thinking.end)

    def _answer(self) -> None:
        """The thinking has ended, or was skipped."""
        self._recent.clear()
        if self._has_whole_grammar:
            self._phase = _Phase.IN_GRAMMAR
            self._matcher = self._begin()
        else:
            self._phase = _Phase.FREE
            self._is_watching = self._grammar is not None

    def _watch(self, token: int) -> None:
        """Check for a trigger; if there is one, feed the text from there on to the grammar."""
        if not self._is_watching:
            return
        assert self._grammar is not None
        triggers = [text.encode() for text in self._grammar.triggers]
        self._recent.push(token)
        place = self._place_of_one(triggers)
        if place is None:
            if not self._grammar.at_start:
                self._recent.keep(max(map(len, triggers)) - 1)
            return
        matcher = self._begin()
        if all(not matcher.accept(one) for one in self._recent.since(place)):
            self._matcher, self._phase = matcher, _Phase.IN_GRAMMAR
        elif self._grammar.at_start:
            self._is_watching = False
        else:
            self._recent.clear()

    def _place_of_one(self, triggers: Sequence[bytes]) -> int | None:
        """The place of a trigger in the recent text. If it must begin the output, and does not, watching
        ends."""
        text = self._recent.text
        assert self._grammar is not None
        if not self._grammar.at_start:
            return min((place for one in triggers if (place := text.find(one)) >= 0), default=None)
        stripped = text.lstrip()
        blanks = len(text) - len(stripped)
        if stripped.startswith(tuple(triggers)):
            return blanks
        self._is_watching = blanks <= _BLANKS_MAX and any(one.startswith(stripped) for one in triggers)
        return None


class _Recent:
    """The last tokens of an output, and their text."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self.tokens: list[int] = []
        self.text = b""

    def copy(self) -> _Recent:
        twin = _Recent(self._token_bytes)
        twin.tokens, twin.text = list(self.tokens), self.text
        return twin

    def push(self, token: int) -> None:
        self.tokens.append(token)
        self.text += self._token_bytes(token)

    def clear(self) -> None:
        self.tokens, self.text = [], b""

    def keep(self, num_bytes: int) -> None:
        """Drop the first tokens, as long as the others have so many bytes."""
        while self.tokens and len(self.text) - (size := len(self._token_bytes(self.tokens[0]))) >= num_bytes:
            self.text = self.text[size:]
            del self.tokens[0]

    def since(self, place: int) -> list[int]:
        """The tokens from the one with the byte at `place` on."""
        end = 0
        for index, token in enumerate(self.tokens):
            end += len(self._token_bytes(token))
            if end > place:
                return self.tokens[index:]
        return []
