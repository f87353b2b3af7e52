"""Forbidden words as token sequences: vLLM's `bad_words`.

A word is banned at the beginning of a text and after a space, where its tokens differ. Other tokenisations of
it, which the tokenizer would not choose for the word alone, are not banned: a model can still produce the
word that way. A word may also be the start of a longer one, which is then banned too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.errors import InvalidRequest, require_range
from octavo.params import BANNED_SEQUENCE_TOKENS_MAX

BAD_WORDS_MAX = 64
BAD_WORD_CHARS_MAX = 256


def bad_word_ids(encode: Callable[[str], Sequence[int]], words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The `banned_sequences` of these words: each without a space before it, and with one if that has as many
    tokens and another first token. `encode` adds no begin token. Raises InvalidRequest for too many, too long
    and empty words."""
    require_range("number of bad_words", len(words), 0, BAD_WORDS_MAX, param="bad_words")
    sequences: list[tuple[int, ...]] = []
    for word in words:
        require_range("length of a bad word", len(word), 1, BAD_WORD_CHARS_MAX, param="bad_words")
        plain, spaced = (tuple(encode(before + word.lstrip())) for before in ("", " "))
        if not 1 <= len(plain) <= BANNED_SEQUENCE_TOKENS_MAX:
            raise InvalidRequest(
                f"the bad word {word!r:.80} is {len(plain)} tokens; allowed: 1 to "
                f"{BANNED_SEQUENCE_TOKENS_MAX}",
                param="bad_words",
            )
        sequences.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            sequences.append(spaced)
    return tuple(sequences)
