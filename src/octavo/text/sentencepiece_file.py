"""Reads a `tokenizer.model` of SentencePiece: its pieces, and the normalising of a text.

It is a protocol buffer, of which these fields are read (the others are for training):

    1  pieces, one each      1 text   2 score   3 type
    2  trainer_spec          3 model_type   24 treat_whitespace_as_suffix
                             40 unk_id   41 bos_id   42 eos_id
    3  normalizer_spec       2 precompiled_charsmap   3 add_dummy_prefix   4 remove_extra_whitespaces
                             5 escape_whitespaces

Every length is checked against the rest of the file before anything is read. The sentencepiece library could
read the pieces, but not the last message, so a parser would be needed anyway.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.errors import BadModelFile, UnsupportedModel
from octavo.text.sentencepiece import CONTROL, NORMAL, Pieces, Prefix

FILE_BYTES_MAX = 64 << 20
PIECES_MAX = 1 << 22
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_UNIGRAM, _BPE = 1, 2
_UTF8 = "its pieces are not UTF-8"


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message: a number, or bytes (of a fixed32 the four)."""

    number: int
    value: int | memoryview


def read_sentencepiece(path: Path) -> Pieces:
    """Raises BadModelFile, UnsupportedModel (neither unigram nor BPE, spaces behind words or as they are)."""
    size = path.stat().st_size
    if size > FILE_BYTES_MAX:
        raise BadModelFile(f"{path} has {size:,} bytes; allowed: up to {FILE_BYTES_MAX:,}")
    return pieces_of(path.read_bytes(), str(path))


def is_sentencepiece(head: bytes) -> bool:
    """Whether a file begins like such a model, with a piece."""
    return head[:1] == b"\x0a"


def pieces_of(data: bytes, source: str) -> Pieces:
    """The pieces in the bytes of a file."""
    try:
        return _read(memoryview(data), source)
    except (IndexError, struct.error, _Malformed) as error:
        raise BadModelFile(f"{source} is not a sound SentencePiece model: {error}") from error
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{source} is not a sound SentencePiece model: {_UTF8}") from error


def _read(data: memoryview, source: str) -> Pieces:
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, int | memoryview] = {}
    normalizer: dict[int, int | memoryview] = {}
    for field in _fields(data):
        if field.number == 1:
            piece = _message(field)
            tokens.append(bytes(_bytes(piece, 1)).decode())
            scores.append(_float(piece, 2))
            types.append(_integer(piece, 3, NORMAL))
            if len(tokens) > PIECES_MAX:
                raise _Malformed(f"more than {PIECES_MAX:,} pieces")
        elif field.number == 2:
            trainer |= _message(field)
        elif field.number == 3:
            normalizer |= _message(field)
    kind, unknown = _integer(trainer, 3, _UNIGRAM), _integer(trainer, 40, 0)
    if kind not in (_UNIGRAM, _BPE):
        raise UnsupportedModel(f"{source}: model_type {kind}; allowed: 1 (unigram), 2 (BPE)")
    if _integer(trainer, 24, 0) or not _integer(normalizer, 5, 1):
        raise UnsupportedModel(f"{source}: spaces behind words, or unmarked; allowed: marked, before words")
    if not tokens or not np.isfinite(scores).all() or not unknown < len(tokens):
        raise _Malformed("no pieces, a score that is no number, or an unknown piece that is none of them")
    return Pieces(
        source,
        tokens,
        np.array(scores, np.float32),
        np.array(types, np.int32),
        unknown,
        kind == _UNIGRAM,
        Prefix.EACH if _integer(normalizer, 3, 1) else Prefix.NONE,
        bool(_integer(normalizer, 4, 1)),
        bytes(_bytes(normalizer, 2)),
        isolates=True,
        begin=_control(types, _integer(trainer, 41, 1)),
        end=_control(types, _integer(trainer, 42, 2)),
    )


def _control(types: list[int], piece: int) -> int | None:
    """The piece, if it exists and is a control token."""
    return piece if piece < len(types) and types[piece] == CONTROL else None


class _Malformed(Exception):
    """The file is malformed; says why."""


def _message(field: _Field) -> dict[int, int | memoryview]:
    """A message's fields by number, the last of each."""
    if isinstance(field.value, int):
        raise _Malformed(f"field {field.number} is a number, not a message")
    return {inner.number: inner.value for inner in _fields(field.value)}


def _fields(data: memoryview) -> Iterator[_Field]:
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield _Field(number, value)
            continue
        if kind == _LENGTH:
            length, place = _varint(data, place)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise _Malformed(f"a field of wire type {kind}")
        if length > len(data) - place:
            raise _Malformed(f"a field of {length:,} bytes, where {len(data) - place:,} are left")
        yield _Field(number, data[place : place + length])
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """The number there, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise _Malformed("a number of more than ten bytes")


def _integer(fields: dict[int, int | memoryview], number: int, default: int) -> int:
    """A number; a negative one, which means "none", reads as larger than any allowed number."""
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise _Malformed(f"field {number} is no number")
    return value


def _float(fields: dict[int, int | memoryview], number: int) -> float:
    value = fields.get(number)
    if value is None:
        return 0.0
    if isinstance(value, int) or len(value) != 4:
        raise _Malformed(f"field {number} is no 32-bit number")
    (unpacked,) = struct.unpack("<f", value)
    return float(unpacked)


def _bytes(fields: dict[int, int | memoryview], number: int) -> memoryview:
    value = fields.get(number, memoryview(b""))
    if isinstance(value, int):
        raise _Malformed(f"field {number} is a number, not text")
    return value
