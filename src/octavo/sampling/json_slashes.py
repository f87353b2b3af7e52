r"""A slash in JSON may have a backslash before it (RFC 8259, 7), which the library does not support.

    {"a": "x     {"a": "x\          {"a": "x\/y
    one state    two: as written,   one: the library has read {"a": "x/y
                 and as if it were
                 not there

If a token ends inside an escape there are two states. Tokens that begin with a slash may follow in the
second, all others in the first. A token with a whole escaped slash is read as if it had a plain slash. In
JSON only strings have backslashes, and the text around tool calls has none; this does not apply to regular
expressions and grammars of clients.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import llguidance
import numpy as np
from llguidance.numpy import fill_next_token_bitmask

from octavo.kernels.contract import Ints

_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


class Slashes:
    """The tokens of a vocabulary that matter for escaped slashes. Made once; O(vocabulary)."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._of_byte = {token[0]: index for index, token in enumerate(token_bytes) if len(token) == 1}
        self.first = frozenset(i for i, token in enumerate(token_bytes) if token[:1] == b"/")
        self.last = frozenset(i for i, token in enumerate(token_bytes) if token[-1:] == b"\\")
        self.first_words = np.zeros((1, -(-len(token_bytes) // 32)), np.int32)
        bits = self.first_words.view(np.uint8)[0]
        for token in self.first:
            bits[token // 8] |= 1 << (token % 8)
        # Tokens with an escaped slash, as tokens of the text that they are read as.
        self.holding = {
            index: read
            for index, token in enumerate(token_bytes)
            if rb"\/" in token and index not in self.last and (read := self._tokens_of(_as_read(token)))
        }

    def begins_escape(self, token: int, is_inside: bool) -> bool:
        """Whether this token ends inside an escape; `is_inside`: it begins inside one."""
        text = self._token_bytes[token]
        num_backslashes = len(text) - len(text.rstrip(b"\\"))
        return (num_backslashes + (is_inside and num_backslashes == len(text))) % 2 == 1

    def without_last(self, token: int) -> list[int]:
        """Tokens of all of a token's text but its last byte."""
        return self._tokens_of(self._token_bytes[token][:-1])

    def _tokens_of(self, text: bytes) -> list[int]:
        """The tokens of single bytes; empty if the vocabulary lacks one."""
        tokens = [self._of_byte.get(byte, -1) for byte in text]
        return tokens if min(tokens, default=0) >= 0 else []


NO_SLASHES = Slashes(())  # for text that is not JSON


class SlashMatcher:
    """A library's matcher for text with escaped slashes. Mutable, like the matcher."""

    def __init__(self, inner: llguidance.LLMatcher, slashes: Slashes) -> None:
        self._inner = inner
        self._slashes = slashes
        self._is_inside = False  # inside an escape, after its backslash
        self._without: llguidance.LLMatcher | None = None  # the state without that backslash

    def deep_copy(self) -> SlashMatcher:
        """A copy for a fork."""
        twin = SlashMatcher(self._inner.deep_copy(), self._slashes)
        twin._is_inside = self._is_inside
        twin._without = None if self._without is None else self._without.deep_copy()
        return twin

    def fill(self, words: Ints) -> None:
        """Set the bits in `words` (1, V/32) of the tokens that may come next."""
        fill_next_token_bitmask(self._inner, words)
        if self._without is not None:
            others = np.zeros_like(words)
            fill_next_token_bitmask(self._without, others)
            words |= others & self._slashes.first_words
        elif self._slashes.holding and not self._is_inside and not self.compute_ff_tokens():
            bits = words.view(np.uint8)[0]
            for token, read in self._slashes.holding.items():
                if self._takes(read):
                    bits[token // 8] |= 1 << (token % 8)

    def allows(self, token: int) -> bool:
        """Whether this token is allowed next."""
        if self._takes([token]):
            return True
        if self._is_inside:
            return self._is_slash(token)
        read = self._slashes.holding.get(token)
        return read is not None and self._takes(read)

    def consume_token(self, token: int) -> bool:
        """Accept it. False if it is not allowed."""
        is_inside, without, self._is_inside, self._without = self._is_inside, self._without, False, None
        if without is not None and token in self._slashes.first and not self._takes([token]):
            self._inner = without
        read = self._slashes.holding.get(token)
        if read is not None and not is_inside and not self._takes([token]):
            return self._inner.consume_tokens(read)
        if token not in self._slashes.last or not self._slashes.begins_escape(token, is_inside):
            return self._inner.consume_token(token)
        before = self._inner.deep_copy()
        if not self._inner.consume_token(token):
            return False
        self._is_inside = True
        rest = self._slashes.without_last(token)
        if not before.is_stopped() and (not rest or before.consume_tokens(rest)):
            self._without = before
        return True

    def consume_tokens(self, tokens: Sequence[int]) -> bool:
        """Accept all of them."""
        return all(self.consume_token(token) for token in tokens)

    def compute_ff_tokens(self) -> list[int]:
        """The forced next tokens."""
        return self._inner.compute_ff_tokens()

    def is_stopped(self) -> bool:
        """Whether only an end token is allowed."""
        return self._inner.is_stopped()

    def is_error(self) -> bool:
        """Whether it cannot go on."""
        return self._inner.is_error()

    def get_error(self) -> str:
        """Why it cannot go on."""
        return self._inner.get_error()

    def _takes(self, tokens: list[int]) -> bool:
        return self._inner.validate_tokens(tokens) == len(tokens)

    def _is_slash(self, token: int) -> bool:
        """Whether it ends the escape with a slash."""
        return (
            self._without is not None
            and token in self._slashes.first
            and self._without.validate_tokens([token]) == 1
        )


def _as_read(token: bytes) -> bytes:
    return _ESCAPE.sub(lambda escape: b"/" if escape[1] == b"/" else escape[0], token)
