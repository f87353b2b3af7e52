"""A tokenizer built from GGUF metadata.

    tokenizer.ggml.model "gpt2"    byte-level BPE: tokens and merges; `pre` names how text is cut first
    tokenizer.ggml.model "llama"   SentencePiece pieces with scores: merged by score, unknown bytes as <0xNN>
    tokenizer.ggml.model "t5"      SentencePiece unigram: the likeliest pieces
    tokenizer.huggingface.json     a whole tokenizer.json; used if there are no tokenizer.ggml.tokens

C loops (zip, map) process the vocabulary, never Python token by token, except for SentencePiece's merges,
which the file does not list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tokenizers
from tokenizers import AddedToken

from octavo.errors import BadModelFile, UnsupportedModel
from octavo.fields import Fields
from octavo.text.byte_level import byte_level_backend, merges_from_text
from octavo.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from octavo.text.sentencepiece import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    Pieces,
    Prefix,
    checked_ids,
    sentencepiece_backend,
    special_ids_of,
)
from octavo.text.tokenizer_json import backend_of_json

_MODELS = ("gpt2", "llama", "t5")
_WHOLE = "tokenizer.huggingface.json"
# Architectures whose texts begin with more than one token.
_BEGINNINGS = {"chatglm": ("[gMASK]", "<sop>"), "glm4": ("[gMASK]", "<sop>")}


# The value of `tokenizer.ggml.pre` for older files without the key, if only one is possible: by architecture,
# and for Llama's by a token that only Llama 3 has.
_PRE, _PRE_UNKNOWN = "tokenizer.ggml.pre", "default"
_CUTS = {"gpt2": "gpt-2", "gptneox": "olmo", "starcoder2": "starcoder", "qwen2": "qwen2"}
_LLAMA3_BEGIN = b"<|begin_of_text|>"


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The library's tokenizer, and what it does not know: the special tokens, and those that begin a text in
    addition to its own post-processor's."""

    backend: tokenizers.Tokenizer
    size: int
    special_ids: frozenset[int]
    begin_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VocabularyFacts:
    """A vocabulary in words, its number of tokens, and what was guessed ("": nothing)."""

    name: str
    size: int
    doubt: str = ""


def build_vocabulary(metadata: Fields) -> GgufVocabulary:
    """Raises BadModelFile (bad or missing lists), UnsupportedModel (unknown kind or pre-tokenizer)."""
    if metadata.has(_WHOLE) and not metadata.has("tokenizer.ggml.tokens"):
        backend = backend_of_json(metadata.text(_WHOLE, ""), f"{metadata.source}: {_WHOLE}")
        added = backend.get_added_tokens_decoder()
        special = frozenset(id_ for id_, token in added.items() if token.special)
        return GgufVocabulary(backend, backend.get_vocab_size(), special, ())
    lists = _read_lists(metadata)
    kind, tokens, types, ids = lists.kind, lists.tokens, lists.types, lists.ids
    if kind == "gpt2":
        pre = _pre_tokenizer(metadata)
        source = f"{metadata.source}: tokenizer.ggml.merges"
        merges = merges_from_text(source, _strings(metadata, "tokenizer.ggml.merges"))
        backend, add_bos = byte_level_backend(source, ids, merges, pre), pre.add_bos
        special_ids: list[int] = np.flatnonzero(types == CONTROL).tolist()
        backend.add_special_tokens(
            [AddedToken(tokens[i], special=True, normalized=False) for i in special_ids]
        )
        user_defined = np.flatnonzero(types == USER_DEFINED).tolist()
        backend.add_tokens([AddedToken(tokens[i], normalized=False) for i in user_defined])
    else:
        pieces = _pieces(metadata, tokens, types, is_unigram=kind == "t5")
        backend, add_bos = sentencepiece_backend(pieces, ids), kind == "llama"
        special_ids = special_ids_of(pieces)
    if backend.get_vocab_size() != len(tokens):
        raise BadModelFile(
            f"{metadata.source}: tokenizer.ggml.tokens has tokens that cannot be distinguished"
        )
    return GgufVocabulary(
        backend, len(tokens), frozenset(special_ids), _begin_ids(metadata, backend, len(tokens), add_bos)
    )


def check_vocabulary(metadata: Fields) -> VocabularyFacts:
    """The facts of the vocabulary, without building it: the merges of a large one take a second.

    Raises what `build_vocabulary` raises, except for errors that only building finds: ambiguous tokens.
    """
    if metadata.has(_WHOLE) and not metadata.has("tokenizer.ggml.tokens"):
        return VocabularyFacts(_WHOLE, build_vocabulary(metadata).size)
    lists = _read_lists(metadata)
    named_ids(metadata, len(lists.tokens))
    if lists.kind == "gpt2":
        _pre_tokenizer(metadata)
        key = f"{metadata.source}: tokenizer.ggml.merges"
        for left, right in merges_from_text(key, _strings(metadata, "tokenizer.ggml.merges")):
            if left + right not in lists.ids:
                raise BadModelFile(f"{key}: {left + right!r:.80} is no token")
        name = _cut_of(metadata)
        return VocabularyFacts(
            f"byte-level BPE, cut as {name}", len(lists.tokens), pre_tokenizer_warning(metadata)
        )
    is_unigram = lists.kind == "t5"
    _pieces(metadata, lists.tokens, lists.types, is_unigram=is_unigram)
    return VocabularyFacts(f"SentencePiece {'unigram' if is_unigram else 'BPE'}", len(lists.tokens))


def pre_tokenizer_warning(metadata: Fields) -> str:
    """A warning if neither a byte-level vocabulary nor its architecture says how texts are pre-tokenised; ""
    if that is known."""
    if metadata.text("tokenizer.ggml.model", "") != "gpt2" or metadata.has(_PRE):
        return ""
    if not metadata.has("tokenizer.ggml.tokens") or _cut_of(metadata) != _PRE_UNKNOWN:
        return ""
    return (
        f"the file does not say how texts are cut into words ({_PRE}): they are cut as GPT-2's are, and "
        "answers suffer if the model was trained with another cut; take a newer file of the model"
    )


def named_ids(metadata: Fields, count: int) -> dict[str, int]:
    """The begin token and the end tokens, of `count` tokens. Raises BadModelFile."""
    keys = {name: f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom")}
    return {name: metadata.integer(key, 0, count - 1) for name, key in keys.items() if metadata.has(key)}


@dataclass(frozen=True, slots=True)
class _Lists:
    """The lists that each kind of vocabulary has."""

    kind: str
    tokens: Sequence[str]
    ids: dict[str, int]
    types: np.ndarray


def _read_lists(metadata: Fields) -> _Lists:
    kind = metadata.text("tokenizer.ggml.model", "")
    if kind not in _MODELS:
        raise UnsupportedModel(
            f"{metadata.source}: tokenizer model {kind!r:.40}; allowed: {', '.join(_MODELS)}"
        )
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    ids = checked_ids(f"{metadata.source}: tokenizer.ggml.tokens", tokens)
    return _Lists(kind, tokens, ids, _token_types(metadata, len(tokens)))


def _pre_tokenizer(metadata: Fields) -> PreTokenizer:
    name = _cut_of(metadata)
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise UnsupportedModel(
            f"{metadata.source}: pre-tokenizer {name!r:.40}; allowed: {', '.join(PRE_TOKENIZERS)}"
        )
    return pre


def _cut_of(metadata: Fields) -> str:
    """The name of the pre-tokenizer: the file's, or the architecture's."""
    if metadata.has(_PRE):
        return metadata.text(_PRE, "")
    arch, tokens = metadata.text("general.architecture", ""), metadata.values.get("tokenizer.ggml.tokens")
    if arch == "llama" and isinstance(tokens, tuple) and _LLAMA3_BEGIN in tokens:
        return "llama-bpe"
    return _CUTS.get(arch, _PRE_UNKNOWN)


def _pieces(metadata: Fields, tokens: Sequence[str], types: np.ndarray, *, is_unigram: bool) -> Pieces:
    scores = metadata.values.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens) or not np.isfinite(scores).all():
        raise BadModelFile(
            f"{metadata.source}: tokenizer.ggml.scores is not a list of {len(tokens):,} numbers"
        )
    has_prefix = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    last = len(tokens) - 1
    return Pieces(
        metadata.source,
        tokens,
        scores,
        types,
        metadata.integer("tokenizer.ggml.unknown_token_id", 0, last, min(2, last) if is_unigram else 0),
        is_unigram,
        Prefix.EACH if has_prefix else Prefix.NONE,
        metadata.flag("tokenizer.ggml.remove_extra_whitespaces", False),
        _charsmap(metadata),
        metadata.text("general.architecture", "") == "phi3",
    )


def _charsmap(metadata: Fields) -> bytes:
    values = metadata.values.get("tokenizer.ggml.precompiled_charsmap")
    if values is None:
        return b""
    if not isinstance(values, np.ndarray) or values.dtype.itemsize != 1:
        raise BadModelFile(f"{metadata.source}: tokenizer.ggml.precompiled_charsmap is not a list of bytes")
    return values.tobytes()


def _begin_ids(metadata: Fields, backend: tokenizers.Tokenizer, count: int, add_bos: bool) -> tuple[int, ...]:
    """The tokens that begin a text: the begin token, if the file requires it, or those of the family."""
    names = _BEGINNINGS.get(metadata.text("general.architecture", ""), ())
    ids = tuple(id_ for id_ in map(backend.token_to_id, names) if id_ is not None)
    if ids and len(ids) == len(names):
        return ids
    key = "tokenizer.ggml.bos_token_id"
    if not metadata.has(key) or not metadata.flag("tokenizer.ggml.add_bos_token", add_bos):
        return ()
    return (metadata.integer(key, 0, count - 1),)


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
    """(count,) of SentencePiece's kinds; all normal by default."""
    types = metadata.values.get("tokenizer.ggml.token_type")
    if types is None:
        return np.full(count, NORMAL)
    if not isinstance(types, np.ndarray) or len(types) != count:
        raise BadModelFile(f"{metadata.source}: tokenizer.ggml.token_type is not a list of {count:,} numbers")
    return types
