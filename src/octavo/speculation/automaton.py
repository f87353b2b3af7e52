"""A suffix automaton over a sequence's own tokens: what followed the last occurrence of the current suffix.

Every state stands for a set of substrings that end at the same places; its link leads to the longest of their
suffixes that ends in more places. After each token the state of the whole text is `last`, so its link is the
longest suffix of the text that occurred before, of any length: no n has to be chosen.

    text   the cat sat . the cat            link of `last` = "the cat", which ended at 2 before
                                            draft: sat . the cat ...

The draft is copied from where that suffix was last the longest match, not from where it last ended inside a
longer one: that guesses better, in prose and in code (the log has figures).

A state's first transition is in arrays, and most states have no more; further ones are in a dict.

    length[s]  longest substring     link[s]  its longest suffix that occurs more often; -1: of the root
    end[s]     where to copy from    token[s], target[s]  its first transition; `more[s]`: the others

One token costs O(1), amortised, and a draft its length. Memory: at most 2 states of 20 bytes a token, and
dicts where texts branch, which are most of it: some 150 to 300 bytes a token. Source: Blumer et al. 1985; for
drafts: Hu et al., SAM Decoding, 2024.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from octavo.speculation.drafter import NO_DRAFT, Draft

_NONE = -1
_DICT_BYTES = sys.getsizeof({0: 0}) + 64  # a small dict and its numbers
_ENTRY_BYTES = 68  # an entry of the one large dict: the root's, with all tokens that occurred


class SuffixAutomaton:
    """A `Drafter` that copies from the sequence's own prompt and output."""

    name = "ngram"

    def __init__(self) -> None:
        self._text = array("i")
        self._last = 0  # the state of the whole text
        self._length, self._link, self._end = array("i", [0]), array("i", [_NONE]), array("i", [_NONE])
        self._token, self._target = array("i", [_NONE]), array("i", [_NONE])
        self._more: dict[int, dict[int, int]] = {}
        self._match, self._match_end = 0, _NONE  # what `draft` copies from

    @property
    def num_tokens(self) -> int:
        """Tokens read so far."""
        return len(self._text)

    @property
    def num_bytes(self) -> int:
        """Memory that it holds, approximately."""
        arrays = 4 * (len(self._text) + 5 * len(self._length))
        return arrays + _DICT_BYTES * len(self._more) + _ENTRY_BYTES * len(self._more.get(0, ()))

    def copy(self) -> SuffixAutomaton:
        """A copy for a fork. O(tokens)."""
        twin = object.__new__(SuffixAutomaton)
        twin._text, twin._last = self._text[:], self._last
        twin._length, twin._link, twin._end = self._length[:], self._link[:], self._end[:]
        twin._token, twin._target = self._token[:], self._target[:]
        twin._more = {state: dict(others) for state, others in self._more.items()}
        twin._match, twin._match_end = self._match, self._match_end
        return twin

    def extend(self, tokens: Sequence[int]) -> None:
        """Read tokens that follow those read before."""
        for token in tokens:
            self._push(token)

    def draft(self, limit: int) -> Draft:
        """What followed the longest suffix that occurred before, at its last place as the longest match. If
        that reaches the end of the text, the text repeats itself, and so does the draft."""
        if not self._match or limit < 1:
            return NO_DRAFT
        text, behind = self._text, self._match_end + 1
        tokens = text[behind : behind + limit]
        period = len(text) - behind
        while len(tokens) < limit:
            tokens.append(tokens[len(tokens) - period])
        return Draft(tuple(tokens), self._match)

    def _push(self, token: int) -> None:
        """Add a token: a state for the whole text, and a clone where a substring now ends in more places
        than others of its state."""
        place = len(self._text)
        self._text.append(token)
        length, link, last = self._length, self._link, self._last
        new = self._add(length[last] + 1, place)
        # 1. Suffixes that this token never followed.
        state = last
        while state != _NONE and (found := self._go(state, token)) == _NONE:
            self._lead(state, token, new)
            state = link[state]
        # 2. The longest suffix that it did follow.
        if state == _NONE:
            link[new] = 0
        elif length[found] == length[state] + 1:
            link[new] = found
        else:
            link[new] = self._clone(state, token, found)
            link[found] = link[new]
        self._last = new
        # 3. That match ended at an earlier place; its last end is now here.
        match = link[new]
        self._match, self._match_end = length[match], self._end[match]
        self._end[match] = place

    def _clone(self, state: int, token: int, found: int) -> int:
        """The new state, with those substrings of `found` that are no longer than `state` and the token."""
        clone = self._add(self._length[state] + 1, self._end[found])
        self._link[clone] = self._link[found]
        self._token[clone], self._target[clone] = self._token[found], self._target[found]
        if found in self._more:
            self._more[clone] = dict(self._more[found])
        while state != _NONE and self._go(state, token) == found:
            self._lead(state, token, clone)
            state = self._link[state]
        return clone

    def _add(self, length: int, end: int) -> int:
        self._length.append(length)
        self._link.append(_NONE)
        self._end.append(end)
        self._token.append(_NONE)
        self._target.append(_NONE)
        return len(self._length) - 1

    def _go(self, state: int, token: int) -> int:
        if self._token[state] == token:
            return self._target[state]
        more = self._more.get(state)
        return _NONE if more is None else more.get(token, _NONE)

    def _lead(self, state: int, token: int, target: int) -> None:
        if self._token[state] in (_NONE, token):
            self._token[state], self._target[state] = token, target
        else:
            self._more.setdefault(state, {})[token] = target
