"""Text from tokens, as they come: a character is given out when its last byte is there, never half of it."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class IncrementalDetokenizer:
    """Turns tokens into text. Whatever the split, the pieces together equal the whole bytes decoded at once.

    Bytes that can be no UTF-8 become U+FFFD, as `bytes.decode(errors="replace")` does it. Tokens in `skip`
    (the special ones) have no text. With `strip_leading_space` one space at the very beginning is dropped,
    which SentencePiece models need when the text starts with the first token; a continuation of a prompt
    keeps it.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        skip: frozenset[int] = frozenset(),
        *,
        strip_leading_space: bool = False,
    ) -> None:
        self._token_bytes = token_bytes
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = strip_leading_space

    def push(self, token: int) -> str:
        """The text that this token completes; often its own, "" in the middle of a character."""
        if token in self._skip:
            return ""
        return self._clean(self._decoder.decode(self._token_bytes(token)))

    def finish(self) -> str:
        """What an unfinished character at the end comes to; the end of the text."""
        return self._clean(self._decoder.decode(b"", final=True))

    def _clean(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
