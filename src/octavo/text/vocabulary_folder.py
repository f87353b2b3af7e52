"""The tokenizer of a folder, from the first of these that it has:

    tokenizer.json                       complete
    tokenizer.model                      SentencePiece (Llama 2, Mistral, Gemma), or ranks (Llama 3, GLM-4)
    tiktoken.model, *.tiktoken           ranks (Qwen 1)
    vocab.json with merges.txt           byte-level BPE (OPT, GPT-2)

All but the first have little about special tokens, and the last two nothing about pre-tokenising: the
folder's other files give the special tokens, and the family (tokenizer_class, model_type) decides the
pre-tokenizer. An unknown family is refused.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import tokenizers
from tokenizers import AddedToken

from octavo.errors import BadModelFile, ModelNotFound, UnsupportedModel
from octavo.fields import Fields, read_json_fields
from octavo.text.byte_level import byte_level_backend, byte_level_letters, merges_from_ranks, merges_from_text
from octavo.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from octavo.text.sentencepiece import NORMAL, Prefix, add_tokens, checked_ids, sentencepiece_backend
from octavo.text.sentencepiece_file import is_sentencepiece, read_sentencepiece
from octavo.text.tokenizer_json import TOKENIZER_BYTES_MAX, read_tokenizer_json

_IDS_MAX = 1 << 24
_ADDED_MAX = 1 << 16
# The pre-tokenizers of byte-level vocabularies, by tokenizer_class, else by model_type.
_CUTS: Mapping[str, str] = MappingProxyType(
    {
        "GPT2Tokenizer": "gpt-2",
        "GPT2TokenizerFast": "gpt-2",
        "CodeGenTokenizer": "phi-2",
        "GPTNeoXTokenizer": "olmo",
        "GPTNeoXTokenizerFast": "olmo",
        "Qwen2Tokenizer": "qwen2",
        "Qwen2TokenizerFast": "qwen2",
        "QWenTokenizer": "qwen2",
        "ChatGLM4Tokenizer": "chatglm-bpe",
        "gpt2": "gpt-2",
        "opt": "gpt-2",
        "phi": "phi-2",
        "gpt_neox": "olmo",
        "olmo": "olmo",
        "qwen": "qwen2",
        "qwen2": "qwen2",
        "qwen2_moe": "qwen2",
        "qwen3": "qwen2",
        "qwen3_moe": "qwen2",
        "chatglm": "chatglm-bpe",
        "glm": "glm4",
        "glm4": "glm4",
        "llama": "llama-bpe",
        "mllama": "llama-bpe",
        "gpt_oss": "gpt-4o",
        "starcoder2": "starcoder",
        "granite": "refact",
        "cohere": "command-r",
    }
)
_BEGINNINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"chatglm": ("[gMASK]", "<sop>"), "glm": ("[gMASK]", "<sop>"), "glm4": ("[gMASK]", "<sop>")}
)
_LLAMA3_NAMED = {0: "begin_of_text", 1: "end_of_text", 4: "finetune_right_pad_id", 6: "start_header_id"}
_LLAMA3_NAMED |= {7: "end_header_id", 8: "eom_id", 9: "eot_id", 10: "python_tag"}
_RANKS_BYTES_MAX = 64 << 20
_RANKS_MAX = 1 << 22
_RANKS_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class FolderVocabulary:
    """The library's tokenizer, and what it does not hold: the tokens that begin a text in addition to its own
    post-processor's, and the begin and the end token if no setting names them."""

    backend: tokenizers.Tokenizer
    source: str
    begin_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    eos_id: int | None = None


@dataclass(frozen=True, slots=True)
class _SideFiles:
    """The other files of the folder, all optional."""

    config: Fields  # config.json
    settings: Fields  # tokenizer_config.json
    added: Mapping[int, AddedToken]  # tokens by id

    @property
    def model_type(self) -> str:
        return self.config.text("model_type", "")

    @property
    def tokenizer_class(self) -> str:
        return self.settings.text("tokenizer_class", "")


def read_vocabulary(folder: Path) -> FolderVocabulary:
    """Raises ModelNotFound, BadModelFile, UnsupportedModel."""
    if (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        return FolderVocabulary(read_tokenizer_json(path), str(path))
    side = _read_side_files(folder)
    for path in [folder / "tokenizer.model", folder / "tiktoken.model", *sorted(folder.glob("*.tiktoken"))]:
        if not path.is_file():
            continue
        with path.open("rb") as file:
            head = file.read(256)
        if is_sentencepiece(head):
            return _of_sentencepiece(path, side)
        if is_ranks(head):
            return _of_ranks(path, side)
        raise BadModelFile(
            f"{path} is neither SentencePiece's nor a list of ranks; allowed: one of these, or tokenizer.json"
        )
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _of_merges(folder, side)
    raise ModelNotFound(
        f"{folder / 'tokenizer.json'} does not exist; allowed instead: tokenizer.model, a .tiktoken file, or "
        "vocab.json with merges.txt" + (" (not tekken.json)" if (folder / "tekken.json").is_file() else "")
    )


def optional_fields(path: Path) -> Fields:
    """The settings of a file; empty if it does not exist. Raises BadModelFile."""
    return read_json_fields(path) if path.is_file() else Fields(str(path), {})


def named_token(
    settings: Fields, key: str, backend: tokenizers.Tokenizer, default: int | None = None
) -> int | None:
    """The id of a token that the settings name, as a text or as an object with its content; `default` if they
    name no existing one."""
    value = settings.values.get(key)
    content = value.get("content") if isinstance(value, dict) else value
    token: int | None = backend.token_to_id(content) if isinstance(content, str) else None
    return default if token is None else token


# -- SentencePiece ---------------------------------------------------------------------------------------


def _of_sentencepiece(path: Path, side: _SideFiles) -> FolderVocabulary:
    pieces = read_sentencepiece(path)
    tokens, count = list(pieces.tokens), len(pieces.tokens)
    types = np.array(pieces.types)
    for id_, token in side.added.items():
        if id_ < count and tokens[id_] != token.content:
            tokens[id_], types[id_] = token.content, NORMAL  # another name for a reserved piece
    pieces = dataclasses.replace(pieces, tokens=tokens, types=types, prefix=_prefix(side, pieces.prefix))
    ids = checked_ids(str(path), tokens)
    backend = sentencepiece_backend(pieces, ids, list(side.added.values()))
    _check_added(str(path), backend, side.added)
    bos = named_token(side.settings, "bos_token", backend, pieces.begin)
    wants = side.settings.flag("add_bos_token", bos is not None)
    return FolderVocabulary(backend, str(path), _begin(backend, side, bos, wants), bos, pieces.end)


def _prefix(side: _SideFiles, own: Prefix) -> Prefix:
    """By the folder's other files: Hugging Face puts the space in front of the first text alone, unless the
    setting "legacy" restores the older behaviour."""
    settings, has = side.settings, own is not Prefix.NONE
    if side.tokenizer_class.startswith("Gemma"):
        return Prefix.NONE
    if not settings.flag("add_prefix_space", has):
        return Prefix.NONE
    is_llama = side.tokenizer_class.startswith("Llama")
    return Prefix.EACH if settings.flag("legacy", not is_llama) else Prefix.FIRST


# -- byte-level BPE --------------------------------------------------------------------------------------


def _of_ranks(path: Path, side: _SideFiles) -> FolderVocabulary:
    ranks = read_ranks(path)
    checked_ids(str(path), list(ranks))
    pre = _cut(path, side)
    added = dict(side.added) or _special_of_family(path, side.model_type, len(ranks))
    backend = byte_level_backend(
        str(path), ranks, merges_from_ranks(ranks), dataclasses.replace(pre, ignore_merges=True)
    )
    return _with_added(path, backend, side, added)


def _of_merges(folder: Path, side: _SideFiles) -> FolderVocabulary:
    path = folder / "merges.txt"
    if path.stat().st_size > TOKENIZER_BYTES_MAX:
        raise BadModelFile(f"{path} has {path.stat().st_size:,} bytes; allowed: {TOKENIZER_BYTES_MAX:,}")
    ids = read_json_fields(folder / "vocab.json").values
    if not ids or not all(type(id_) is int and 0 <= id_ < _IDS_MAX for id_ in ids.values()):
        raise BadModelFile(f"{folder / 'vocab.json'} is not an object of tokens and their ids")
    numbered = {token: id_ for token, id_ in ids.items() if isinstance(id_, int)}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{path} is not UTF-8") from error
    spelt = [line for line in lines if line.strip() and not line.startswith("#version")]
    backend = byte_level_backend(str(path), numbered, merges_from_text(str(path), spelt), _cut(path, side))
    added = dict(side.added)
    known = {token.content for token in added.values()}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        id_ = named_token(side.settings, name, backend, None)
        content = None if id_ is None else backend.id_to_token(id_)
        if id_ is not None and content not in known:
            added[id_] = AddedToken(content, special=True, normalized=False)
    return _with_added(path, backend, side, added)


def _with_added(
    path: Path, backend: tokenizers.Tokenizer, side: _SideFiles, added: Mapping[int, AddedToken]
) -> FolderVocabulary:
    add_tokens(backend, [added[id_] for id_ in sorted(added)])
    _check_added(str(path), backend, added)
    own = backend.token_to_id("<|begin_of_text|>")
    bos = named_token(side.settings, "bos_token", backend, own)
    wants = side.settings.flag("add_bos_token", own is not None and bos == own)
    return FolderVocabulary(backend, str(path), _begin(backend, side, bos, wants), bos)


def _cut(path: Path, side: _SideFiles) -> PreTokenizer:
    name = _CUTS.get(side.tokenizer_class) or _CUTS.get(side.model_type)
    if name is None:
        raise UnsupportedModel(
            f"{path} does not say how a text is cut, nor does model_type {side.model_type!r:.40}; allowed: "
            f"{', '.join(key for key in _CUTS if key.islower())}; or a tokenizer.json"
        )
    return PRE_TOKENIZERS[name]


def _special_of_family(path: Path, model_type: str, count: int) -> dict[int, AddedToken]:
    """The special tokens of a family that are defined only in its code."""
    if model_type in ("llama", "mllama"):
        names = [f"<|{_LLAMA3_NAMED[i]}|>" if i in _LLAMA3_NAMED else "" for i in range(256)]
        free = iter(range(256))
        names = [name or f"<|reserved_special_token_{next(free)}|>" for name in names]
    elif model_type == "qwen":
        names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    else:
        raise UnsupportedModel(
            f"{path} has no special tokens, and neither has tokenizer_config.json; allowed without: "
            "model_type llama, mllama, qwen"
        )
    return {count + i: AddedToken(name, special=True, normalized=False) for i, name in enumerate(names)}


# -- the other files -----------------------------------------------------------------------------------


def _read_side_files(folder: Path) -> _SideFiles:
    settings = optional_fields(folder / "tokenizer_config.json")
    named = optional_fields(folder / "special_tokens_map.json")
    both = Fields(settings.source, {**named.values, **settings.values})
    return _SideFiles(optional_fields(folder / "config.json"), both, _added_tokens(folder, settings))


def _added_tokens(folder: Path, settings: Fields) -> dict[int, AddedToken]:
    """The tokens of tokenizer_config.json and added_tokens.json, by id."""
    found: dict[int, AddedToken] = {}
    for content, id_ in optional_fields(folder / "added_tokens.json").values.items():
        if type(id_) is not int or not 0 <= id_ < _IDS_MAX or not content:
            raise BadModelFile(f"{folder / 'added_tokens.json'}: {content!r:.40} has no id")
        found[id_] = AddedToken(content, normalized=False)
    described = settings.inner("added_tokens_decoder")
    for key in described.values:
        one = described.inner(key)
        content = one.text("content", "")
        if not key.isdecimal() or len(key) > 8 or not content:
            raise described.bad(key, "an id, with the content of a token")
        special = one.flag("special", False)
        found[int(key)] = AddedToken(
            content,
            special=special,
            normalized=one.flag("normalized", not special) and not special,
            single_word=one.flag("single_word", False),
            lstrip=one.flag("lstrip", False),
            rstrip=one.flag("rstrip", False),
        )
    if len(found) > _ADDED_MAX:
        raise BadModelFile(f"{settings.source}: {len(found):,} added tokens; allowed: {_ADDED_MAX:,}")
    return dict(sorted(found.items()))


def _check_added(source: str, backend: tokenizers.Tokenizer, added: Mapping[int, AddedToken]) -> None:
    """Raise BadModelFile if a token got another id than the files give it."""
    for id_, token in added.items():
        if backend.token_to_id(token.content) != id_:
            raise BadModelFile(
                f"{source}: added token {token.content!r:.40} has id {id_:,}, where "
                f"{backend.token_to_id(token.content)} is next; allowed: ids that follow the vocabulary's"
            )


def _begin(
    backend: tokenizers.Tokenizer, side: _SideFiles, bos: int | None, wants_bos: bool
) -> tuple[int, ...]:
    names: Sequence[str] = _BEGINNINGS.get(side.model_type, ())
    ids = tuple(id_ for id_ in map(backend.token_to_id, names) if id_ is not None)
    if ids and len(ids) == len(names):
        return ids
    return (bos,) if wants_bos and bos is not None else ()


def is_ranks(head: bytes) -> bool:
    """Whether a file begins with a line of ranks."""
    return _RANKS_LINE.match(head) is not None


def read_ranks(path: Path) -> dict[str, int]:
    """The rank of each token, spelt in byte-level letters; ranks are 0 to n - 1. Raises BadModelFile.

    The file is of tiktoken's kind: a line for each token, its bytes in base64 and its rank ("IQ== 0").
    """
    size = path.stat().st_size
    if size > _RANKS_BYTES_MAX:
        raise BadModelFile(f"{path} has {size:,} bytes; allowed: up to {_RANKS_BYTES_MAX:,}")
    ranks: dict[str, int] = {}
    lines = path.read_bytes().splitlines()
    if len(lines) > _RANKS_MAX:
        raise BadModelFile(f"{path} has {len(lines):,} lines; allowed: up to {_RANKS_MAX:,}")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if _RANKS_LINE.fullmatch(line) is None:
            raise BadModelFile(f"{path}: line {number:,} is not a token in base64 and its rank")
        token, _, rank = line.partition(b" ")
        try:
            ranks[byte_level_letters(base64.b64decode(token, validate=True))] = int(rank)
        except binascii.Error as error:
            raise BadModelFile(f"{path}: line {number:,} is not base64: {error}") from error
    if not ranks or sorted(ranks.values()) != list(range(len(ranks))):
        raise BadModelFile(f"{path}: its {len(ranks):,} tokens do not have the ranks 0 to {len(ranks) - 1:,}")
    return ranks
