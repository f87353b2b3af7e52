"""A tokenizer built from GGUF metadata: byte-level BPE with the file's pre-tokenizer, or SentencePiece BPE.

    tokenizer.ggml.model "gpt2"   tokens and merges in byte-level letters; `pre` names how text is split first
    tokenizer.ggml.model "llama"  SentencePiece pieces with scores: merged by score, unknown bytes as <0xNN>

The vocabulary is handled by C loops (zip, map), never token by token in Python, but for SentencePiece's
merges, which the file does not list: they are recovered from the scores (0.1 s for 32,000 pieces).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from octavo.errors import BadModelFile, UnsupportedModel
from octavo.fields import Fields

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "▁"

# How text is cut before merging, as the models were trained; it decides what can be one token.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """`pattern` None is GPT-2's own split, which the library has built in."""

    pattern: str | None = None
    digits_apart: bool = False
    compose: bool = False  # Unicode NFC first
    ignore_merges: bool = False  # a piece that is a token is taken whole, whatever the merges say
    add_bos: bool = False  # where the file does not say


_PRE_TOKENIZERS: Mapping[str, _PreTokenizer] = MappingProxyType(
    {
        "gpt-2": _PreTokenizer(),
        "default": _PreTokenizer(),  # files from before the key existed; the split of the first BPE models
        "smollm": _PreTokenizer(digits_apart=True),
        "llama-bpe": _PreTokenizer(_LLAMA3, ignore_merges=True, add_bos=True),
        "llama3": _PreTokenizer(_LLAMA3, ignore_merges=True, add_bos=True),
        "qwen2": _PreTokenizer(_QWEN2, compose=True),
        "deepseek-r1-qwen": _PreTokenizer(_QWEN2, compose=True),
        "tekken": _PreTokenizer(_TEKKEN, ignore_merges=True, add_bos=True),
    }
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The library's tokenizer, and what it does not know. `tokens[i]` is the text of id i, as stored."""

    backend: tokenizers.Tokenizer
    tokens: Sequence[str]
    special_ids: frozenset[int]
    add_bos: bool


def build_vocabulary(metadata: Fields) -> Vocabulary:
    """Raises BadModelFile (lists missing or at odds), UnsupportedModel (unknown kind or pre-tokenizer)."""
    kind = metadata.text("tokenizer.ggml.model", "")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(f"{metadata.source}: tokenizer model {kind!r:.40}; allowed: gpt2, llama")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        raise BadModelFile(
            f"{metadata.source}: tokenizer.ggml.tokens names {len(tokens) - len(ids):,} tokens twice"
        )
    types = _token_types(metadata, len(tokens))
    if kind == "gpt2":
        backend, add_bos = _byte_level(metadata, ids)
        normalized_marker = None
    else:
        prefix = metadata.flag("tokenizer.ggml.add_space_prefix", True)
        backend, add_bos = _sentencepiece(metadata, tokens, ids, types, prefix), True
        normalized_marker = None if prefix else _SPACE
    special = np.flatnonzero((types == _CONTROL) | ((types == _UNKNOWN) & (kind == "llama"))).tolist()
    backend.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in special])
    # Spaces are already markers when SentencePiece looks for its own symbols, such as runs of spaces.
    backend.add_tokens(
        [
            AddedToken(tokens[i], normalized=normalized_marker is not None and normalized_marker in tokens[i])
            for i in np.flatnonzero(types == _USER_DEFINED).tolist()
        ]
    )
    if backend.get_vocab_size() != len(tokens):
        raise BadModelFile(f"{metadata.source}: tokenizer.ggml.tokens has tokens that cannot be told apart")
    add_bos = metadata.flag("tokenizer.ggml.add_bos_token", add_bos)
    return Vocabulary(backend, tokens, frozenset(special), add_bos)


def _byte_level(metadata: Fields, ids: dict[str, int]) -> tuple[tokenizers.Tokenizer, bool]:
    """GPT-2's kind, and whether it begins texts with a begin token."""
    name = metadata.text("tokenizer.ggml.pre", "default")
    pre = _PRE_TOKENIZERS.get(name)
    if pre is None:
        raise UnsupportedModel(
            f"{metadata.source}: pre-tokenizer {name!r:.40}; allowed: {', '.join(_PRE_TOKENIZERS)}"
        )
    merges = _strings(metadata, "tokenizer.ggml.merges")
    lefts, _, rights = zip(*map(str.partition, merges, itertools.repeat(" ")), strict=True)
    try:
        model = models.BPE(
            vocab=ids, merges=list(zip(lefts, rights, strict=True)), ignore_merges=pre.ignore_merges
        )
    except Exception as error:  # the library raises nothing narrower
        raise BadModelFile(f"{metadata.source}: tokenizer.ggml.merges: {error}") from error
    backend = tokenizers.Tokenizer(model)
    if pre.compose:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if pre.digits_apart:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(pre.pattern), "isolated", invert=False))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend, pre.add_bos


def _sentencepiece(
    metadata: Fields, tokens: Sequence[str], ids: dict[str, int], types: np.ndarray, prefix: bool
) -> tokenizers.Tokenizer:
    """Llama's kind: spaces are markers (one more in front, if `prefix`), unknown characters are bytes."""
    scores = metadata.values.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens) or not np.isfinite(scores).all():
        raise BadModelFile(
            f"{metadata.source}: tokenizer.ggml.scores is not a list of {len(tokens):,} numbers"
        )
    merges = merges_from_scores(tokens, scores, ids, types == _NORMAL)
    unknown = metadata.integer("tokenizer.ggml.unknown_token_id", 0, len(tokens) - 1, 0)
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    )
    steps = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


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


def _strings(metadata: Fields, key: str) -> list[str]:
    """A list of strings, as UTF-8."""
    values = metadata.values.get(key)
    if not isinstance(values, tuple) or not values:
        raise BadModelFile(f"{metadata.source}: {key} is missing or not a list of strings")
    try:
        return list(map(bytes.decode, values))
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{metadata.source}: {key} has an entry that is not UTF-8") from error


def _token_types(metadata: Fields, count: int) -> np.ndarray:
    """(count,) of the kinds above; all normal where the file does not say."""
    types = metadata.values.get("tokenizer.ggml.token_type")
    if types is None:
        return np.full(count, _NORMAL)
    if not isinstance(types, np.ndarray) or len(types) != count:
        raise BadModelFile(f"{metadata.source}: tokenizer.ggml.token_type is not a list of {count:,} numbers")
    return types
