"""Words that must not be said, as the token sequences that say them: vLLM's `bad_words`.

A word is banned at the beginning of a text and behind a space, where a tokenizer spells it otherwise. Another
spelling, in pieces that the tokenizer would not choose for the word alone, is not: a model can still say the
word that way, and a word may be part of a longer one that is then banned, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.errors import InvalidRequest, require_range
from octavo.params import BANNED_SEQUENCE_TOKENS_MAX

BAD_WORDS_MAX = 64
BAD_WORD_CHARS_MAX = 256


def bad_word_ids(encode: Callable[[str], Sequence[int]], words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The `banned_sequences` of these words: each without a space before it, and with one where that is as
    many tokens and begins with another. `encode` adds no begin token. Raises InvalidRequest for too many, too
    long and empty ones."""
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
