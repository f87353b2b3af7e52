"""SentencePiece vocabularies, BPE and unigram, with pieces from GGUF metadata or a `tokenizer.model` file.

    text -> the model's character map -> spaces collapsed -> " " as "▁", one more in front -> pieces

The algorithm is SentencePiece's own: BPE merges the two neighbours whose piece scores highest, unigram
chooses the likeliest pieces; a character without a piece becomes its bytes (<0xNN>), and user-defined pieces
match first, the longest at each place. No file lists the merges: they are recovered from the scores (0.1 s
for 32,000 pieces).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from octavo.errors import BadModelFile
from octavo.text.encoding import panics_as
from octavo.text.growth import charsmap_growth

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "▁"
CHARSMAP_BYTES_MAX = 16 << 20
# The sum of the lengths of all tokens; real vocabularies have a hundredth of it.
SQUARES_MAX = 1 << 30
_USER_SCORE = -0.1  # SentencePiece's: logarithms of probabilities are far lower
_BYTE_NAME = "<(?=0x[0-9A-F]{2}>)"
_NOT_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")


class Prefix(Enum):
    """Where a space is put in front of a text."""

    NONE = "none"
    EACH = "each"  # of every text between control tokens
    FIRST = "first"  # of the beginning alone, unless it begins with a space


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary. `tokens[i]` is the text of id i, `scores[i]` its log probability or the order of its
    merge, `types[i]` one of the kinds above."""

    source: str
    tokens: Sequence[str]
    scores: np.ndarray
    types: np.ndarray
    unknown: int
    is_unigram: bool = False
    prefix: Prefix = Prefix.EACH
    collapses_spaces: bool = False
    charsmap: bytes = b""  # SentencePiece's own, of characters to others
    strips_behind: bool = False  # a control token includes the blanks after it, as in Phi-3
    isolates: bool = False  # user-defined pieces belong to the model's own text, not to tokens added later
    begin: int | None = None  # of a text
    end: int | None = None


def sentencepiece_backend(
    pieces: Pieces, ids: Mapping[str, int], added: Sequence[AddedToken] = ()
) -> tokenizers.Tokenizer:
    """The library's tokenizer, with control and user-defined pieces as added tokens. `added` come before
    these, and may be new ones, whose ids follow those of the pieces. Raises BadModelFile."""
    backend = tokenizers.Tokenizer(_unigram(pieces) if pieces.is_unigram else _bpe(pieces, ids))
    backend.normalizer = normalizers.Sequence(_normalizers(pieces))
    cuts = _cuts(pieces)
    if cuts:
        backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    strip = [] if pieces.prefix is Prefix.NONE else [decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    add_tokens(backend, added)
    _add_pieces(backend, pieces)
    return backend


def special_ids_of(pieces: Pieces) -> list[int]:
    """The ids of the control pieces, and of the unknown ones."""
    special: list[int] = np.flatnonzero((pieces.types == CONTROL) | (pieces.types == UNKNOWN)).tolist()
    return special


def _bpe(pieces: Pieces, ids: Mapping[str, int]) -> models.BPE:
    merges = merges_from_scores(pieces.tokens, pieces.scores, ids, pieces.types == NORMAL)
    return models.BPE(
        vocab=dict(ids),
        merges=merges,
        unk_token=pieces.tokens[pieces.unknown],
        fuse_unk=True,
        byte_fallback=True,
        ignore_merges=bool(_isolated(pieces)),  # such a piece has no merges, and is kept whole
    )


def _unigram(pieces: Pieces) -> models.Unigram:
    """User-defined pieces are likelier than any pieces that could replace them. Pieces that no text becomes
    get the lowest score, but not less: the library scores an unknown character by the lowest of all."""
    normal = pieces.types == NORMAL
    if not normal.any():
        raise BadModelFile(f"{pieces.source} has no ordinary pieces")
    scores = np.where(normal, pieces.scores, pieces.scores[normal].min())
    scores[pieces.types == USER_DEFINED] = _USER_SCORE
    vocabulary = list(zip(pieces.tokens, scores.tolist(), strict=True))
    has_bytes = bool((pieces.types == BYTE).any())
    try:
        return models.Unigram(vocabulary, pieces.unknown, has_bytes)
    except Exception as error:  # the library raises nothing narrower
        raise BadModelFile(f"{pieces.source}: {error!s:.300}") from error


def _normalizers(pieces: Pieces) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if pieces.charsmap:
        if len(pieces.charsmap) > CHARSMAP_BYTES_MAX:
            raise BadModelFile(
                f"{pieces.source}: a character map of {len(pieces.charsmap):,} bytes; "
                f"allowed: {CHARSMAP_BYTES_MAX:,}"
            )
        with panics_as(BadModelFile, pieces.source):
            try:
                charsmap_growth(pieces.charsmap)
                steps.append(normalizers.Precompiled(pieces.charsmap))
            except Exception as error:  # the library raises nothing narrower
                raise BadModelFile(
                    f"{pieces.source}: its character map is not sound: {error!s:.200}"
                ) from error
    if pieces.collapses_spaces:
        steps.append(normalizers.Replace(Regex(r"\A +"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    steps.append(normalizers.Replace(" ", SPACE))
    if pieces.prefix is Prefix.EACH:
        steps.append(normalizers.Prepend(SPACE))
    if pieces.collapses_spaces:
        steps.append(normalizers.Replace(Regex(rf"{SPACE}+\z"), ""))  # also a marker that the text contains
    return steps


def _cuts(pieces: Pieces) -> list[pre_tokenizers.PreTokenizer]:
    """The places where pieces end independent of their scores."""
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if pieces.prefix is Prefix.FIRST:
        cuts.append(pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False))
    isolated = _isolated(pieces)
    if pieces.is_unigram or isolated:
        # Otherwise the library would take the name of a byte in a text for the byte.
        cuts.append(pre_tokenizers.Split(Regex(_BYTE_NAME), "merged_with_previous"))
    if isolated:
        longest = sorted(isolated, key=len, reverse=True)
        cuts.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, longest))), "isolated"))
    return cuts


def _isolated(pieces: Pieces) -> list[str]:
    """User-defined pieces that must match after all normalising: earlier, those with a space could not match,
    and the text after one would get another space in front. The library can match added tokens in between,
    but only if the normalizer does no more than mark spaces."""
    if pieces.is_unigram:
        return []  # their scores suffice
    if pieces.prefix is Prefix.NONE and not pieces.collapses_spaces and not pieces.charsmap:
        return []
    return [piece for piece in _user_defined(pieces) if pieces.isolates or SPACE in piece]


def _user_defined(pieces: Pieces) -> list[str]:
    return [pieces.tokens[i] for i in np.flatnonzero(pieces.types == USER_DEFINED).tolist()]


def add_tokens(backend: tokenizers.Tokenizer, added: Sequence[AddedToken]) -> None:
    """Add special tokens and others, in order. An existing one is unchanged."""
    # In runs: the library rebuilds its table for each call.
    for is_special, run in itertools.groupby(added, lambda token: bool(token.special)):
        add = backend.add_special_tokens if is_special else backend.add_tokens
        add(list(run))


def _add_pieces(backend: tokenizers.Tokenizer, pieces: Pieces) -> None:
    special = [pieces.tokens[i] for i in special_ids_of(pieces)]
    backend.add_special_tokens(
        [
            AddedToken(
                text,
                special=True,
                normalized=False,
                rstrip=pieces.strips_behind and text not in _NOT_STRIPPED,
            )
            for text in special
        ]
    )
    others = set(_user_defined(pieces)) - set(_isolated(pieces))
    if pieces.is_unigram:
        others = set() if pieces.isolates else {text for text in others if SPACE not in text}
    # Spaces are already markers when SentencePiece looks for its own symbols, such as runs of spaces.
    backend.add_tokens(
        [
            AddedToken(text, normalized=SPACE in text, rstrip=pieces.strips_behind and text == "</s>")
            for text in _user_defined(pieces)
            if text in others
        ]
    )


def merges_from_scores(
    tokens: Sequence[str], scores: np.ndarray, ids: Mapping[str, int], mergeable: np.ndarray
) -> list[tuple[str, str]]:
    """Every split of a piece into two pieces, best score first; of one piece, earlier ids first.

    SentencePiece merges the two neighbours whose piece scores highest: the same as merging by rank, in this
    order.
    """
    ranked: list[tuple[float, int, int, str, str]] = []
    for index in np.flatnonzero(mergeable).tolist():
        token, score = tokens[index], -float(scores[index])
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None and mergeable[left] and mergeable[right]:
                ranked.append((score, left, right, token[:cut], token[cut:]))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def checked_ids(source: str, tokens: Sequence[str]) -> dict[str, int]:
    """The id of each token. Raises BadModelFile if one is named twice, or if they are so long that a search
    for their parts would take minutes."""
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        raise BadModelFile(f"{source} names {len(tokens) - len(ids):,} tokens twice")
    longest = max(map(len, tokens), default=0)
    if sum(len(token) ** 2 for token in tokens) > SQUARES_MAX:
        raise BadModelFile(f"{source} has tokens of up to {longest:,} characters, which are no words")
    return ids
