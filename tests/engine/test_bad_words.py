"""Words that must not be said: the token sequences that they become."""

from __future__ import annotations

import pytest
from tests.text.vocabularies import byte_level_reference
from tokenizers import pre_tokenizers

from octavo.engine.bad_words import BAD_WORDS_MAX, bad_word_ids
from octavo.errors import InvalidRequest
from octavo.text.model_templates import ModelTemplates
from octavo.text.tokenizer import SpecialTokens, Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Byte-level BPE that wants a begin token before plain prompts."""
    backend = byte_level_reference(pre_tokenizers.ByteLevel(add_prefix_space=False))
    special = SpecialTokens(0, 0, frozenset([0]), frozenset([0, 1, 2]), begin_ids=(0,))
    return Tokenizer(
        backend, special, byte_level=True, strips_leading_space=False, templates=ModelTemplates()
    )


def banned(tokenizer: Tokenizer, words: list[str]) -> tuple[tuple[int, ...], ...]:
    return bad_word_ids(lambda text: tokenizer.encode(text, add_bos=False), words)


def test_a_word_is_banned_alone_and_behind_a_space_without_a_begin_token(tokenizer: Tokenizer) -> None:
    sequences = banned(tokenizer, ["every", "token"])
    spelled = [b"".join(map(tokenizer.token_bytes, sequence)) for sequence in sequences]
    assert set(spelled) >= {b"every", b"token"}
    assert set(spelled) <= {b"every", b" every", b"token", b" token"}


def test_the_spelling_behind_a_space_counts_where_it_is_as_long_and_begins_otherwise(
    tokenizer: Tokenizer,
) -> None:
    """vLLM's rule, stupidly."""
    seen = set()
    for word in ("the", "fox", "every", "block", "holds", "tokens", "says", "where", "is", "x", "zebra"):
        plain, spaced = (tuple(tokenizer.encode(text, add_bos=False)) for text in (word, " " + word))
        both = len(plain) == len(spaced) and plain[0] != spaced[0]
        assert banned(tokenizer, [word]) == ((plain, spaced) if both else (plain,))
        assert banned(tokenizer, ["  " + word]) == banned(tokenizer, [word])
        seen.add(both)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([""], "allowed: 1 to 256"),
        (["x" * 257], "allowed: 1 to 256"),
        (["  "], "is 0 tokens; allowed: 1 to 64"),
        (["\u4e16" * 200], "tokens; allowed: 1 to 64"),
        (["a"] * (BAD_WORDS_MAX + 1), "number of bad_words is 65; allowed: 0 to 64"),
    ],
)
def test_bad_words_are_bounded(tokenizer: Tokenizer, words: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        banned(tokenizer, words)
