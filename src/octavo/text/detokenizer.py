"""Text from a stream of tokens: a character is emitted once its last byte is known, never a part of it."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class IncrementalDetokenizer:
    """Converts tokens to text. For any split, the pieces together equal all bytes decoded at once.

    Bytes that are not UTF-8 become U+FFFD, as with `bytes.decode(errors="replace")`. Tokens in `skip` (the
    special ones) have no text. With `strip_leading_space` one space at the very beginning is dropped, which
    SentencePiece models need if the text starts with the first token; a continuation of a prompt keeps it.
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
        """The text of an unfinished character at the end of the output."""
        return self._clean(self._decoder.decode(b"", final=True))

    def _clean(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
